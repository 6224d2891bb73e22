/* Proves how a client chooses its way - shared memory, network, gRPC - steps down inside a fetch without losing or
 * changing a byte, and comes back to the better way later. */
#include <sched.h>

#include "client/client_int.h"
#include "dataplane.h"
#include "service_fixture.h"

#define BLOCKS 40u

typedef struct planes {
    sx_t sx;
    cs_dataplane_t *dp;
    vc_fake_clock_t server_clock, client_clock;
    vcache_client_t *client; /* wants every way */
    vcache_lease_t *lease;
} planes_t;

static void planes_start(planes_t *p)
{
    vc_err_t err = {0};
    vcache_options_t o;
    cs_dataplane_opts_t d;
    sx_start(&p->sx, 3);
    vc_fake_clock_init(&p->server_clock, 1000000);
    vc_fake_clock_init(&p->client_clock, 1000000);
    cs_dataplane_opts_default(&d);
    d.store = p->sx.fx.store;
    d.workers = p->sx.fx.workers;
    d.pool = p->sx.fx.pool;
    d.max_shm_peers = 1;
    d.clock = &p->server_clock.clock;
    cr_assert_eq(cs_dataplane_start(&d, &p->dp, &err), VC_OK, "%s", err.msg);
    cs_service_stop(p->sx.service, 100); /* again, now with something to offer */
    p->sx.opts.data_address = cs_dataplane_address(p->dp);
    p->sx.opts.shm_address = cs_dataplane_shm_address(p->dp);
    sx_serve(&p->sx);
    vcache_options_default(&o);
    o.server = p->sx.address;
    cr_assert_eq(vcache_connect(&o, &p->client, NULL), VC_OK);
    p->client->clock = &p->client_clock.clock;
    p->lease = NULL;
}

static vcache_lease_t *planes_lease(planes_t *p, vcache_client_t *client)
{
    vcache_client_t *old = p->sx.client;
    vcache_lease_t *lease = NULL;
    p->sx.client = client;
    cr_assert_eq(sx_lookup(&p->sx, 1, BLOCKS, NULL, &lease, NULL), VC_OK);
    p->sx.client = old;
    cr_assert_not_null(lease);
    return lease;
}

static void planes_end(planes_t *p)
{
    vcache_lease_release(p->lease);
    vcache_disconnect(p->client);
    cs_service_stop(p->sx.service, 2000);
    p->sx.service = NULL;
    cs_dataplane_stop(p->dp);
    vcache_disconnect(p->sx.client);
    fx_fini(&p->sx.fx);
}

static vcache_fetch_stats_t planes_fetch(planes_t *p, vcache_lease_t *lease)
{
    vcache_fetch_stats_t fs;
    vcache_error_t err = {0};
    sx_sink_t sink = {.fx = &p->sx.fx, .seed = 1};
    cr_assert_eq(vcache_fetch(lease, 0, 0, BLOCKS, sx_sink_record, &sink, &fs, &err), VC_OK, "%s", err.msg);
    cr_assert(sink.right == BLOCKS && sink.wrong == 0, "%u right, %u wrong", sink.right, sink.wrong);
    return fs;
}

static uint64_t stat_of(const planes_t *p, size_t offset)
{
    cs_dataplane_stats_t s;
    uint64_t value;
    cs_dataplane_get_stats(p->dp, &s);
    memcpy(&value, (const char *)&s + offset, sizeof(value));
    return value;
}
#define STAT(p, name) stat_of((p), offsetof(cs_dataplane_stats_t, name))

static void planes_register(planes_t *p, vcache_path_t path)
{
    vcache_register_stats_t rs;
    vcache_error_t err = {0};
    sx_source_t source = {0};
    cr_assert_eq(sx_register_by(&p->sx, p->client, 1, 0, BLOCKS, &source, &rs, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(rs.path, path);
}

Test(service_planes, the_ninth_client_uses_the_network_and_shared_memory_when_there_is_room)
{
    planes_t p;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM); /* this client is the only one that may share */
    p.lease = planes_lease(&p, p.client);
    vcache_fetch_stats_t fs = planes_fetch(&p, p.lease);
    cr_assert(fs.path == VCACHE_PATH_SHM && fs.steps_down == 0);

    vcache_options_t o;
    vcache_client_t *second = NULL;
    vc_fake_clock_t clock;
    vcache_options_default(&o);
    o.server = p.sx.address;
    cr_assert_eq(vcache_connect(&o, &second, NULL), VC_OK);
    vc_fake_clock_init(&clock, 1000000);
    second->clock = &clock.clock;
    vcache_lease_t *lease = planes_lease(&p, second);
    fs = planes_fetch(&p, lease);
    cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 1);
    cr_assert(STAT(&p, shm_refused) == 1 && STAT(&p, step_downs) == 1);

    vcache_lease_release(p.lease); /* there is room now, but the second has just been told that there is none */
    vcache_disconnect(p.client);
    p.lease = NULL;
    while (STAT(&p, shm_peers) != 0)
        sched_yield();
    fs = planes_fetch(&p, lease);
    cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 1);
    cr_assert(STAT(&p, shm_refused) == 1, "it did not ask again");
    vc_fake_clock_advance(&clock, 1000000);
    fs = planes_fetch(&p, lease);
    cr_assert(fs.path == VCACHE_PATH_SHM && fs.steps_down == 0);
    vcache_lease_release(lease);
    p.client = second;
    planes_end(&p);
}

typedef struct slow_sink {
    sx_sink_t sink;
    planes_t *p;
    uint64_t stall_at; /* after so many records this thread is silent until the server gives it up */
} slow_sink_t;

static int slow_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    slow_sink_t *s = arg;
    planes_t *p = s->p;
    int rc = sx_sink_record(&s->sink, block, record, bytes);
    uint64_t before = STAT(p, peers_stalled);
    if (s->sink.right == s->stall_at)
        while (STAT(p, peers_stalled) == before) {
            vc_fake_clock_advance(&p->server_clock, 6000000);
            sched_yield();
        }
    return rc;
}

static vcache_fetch_stats_t stalled_fetch(planes_t *p, uint64_t stall_at)
{
    vcache_fetch_stats_t fs;
    vcache_error_t err = {0};
    slow_sink_t s = {{.fx = &p->sx.fx, .seed = 1}, p, stall_at};
    cr_assert_eq(vcache_fetch(p->lease, 0, 0, BLOCKS, slow_record, &s, &fs, &err), VC_OK, "%s", err.msg);
    cr_assert(s.sink.right == BLOCKS && s.sink.wrong == 0, "%u right, %u wrong", s.sink.right, s.sink.wrong);
    return fs;
}

Test(service_planes, a_way_that_breaks_inside_a_fetch_is_left_for_the_next_and_taken_again_later)
{
    planes_t p;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM);
    p.lease = planes_lease(&p, p.client);
    for (uint64_t wait_us = 1000000; wait_us <= 4000000; wait_us *= 2) { /* each failure in a row doubles the wait */
        vcache_fetch_stats_t fs = stalled_fetch(&p, 5);
        cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 1, "path %d, %u steps", (int)fs.path, fs.steps_down);
        vc_fake_clock_advance(&p.client_clock, wait_us - 1);
        fs = planes_fetch(&p, p.lease);
        cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 1);
        vc_fake_clock_advance(&p.client_clock, 1);
    }
    vcache_fetch_stats_t fs = planes_fetch(&p, p.lease);
    cr_assert(fs.path == VCACHE_PATH_SHM && fs.steps_down == 0);
    fs = stalled_fetch(&p, 5); /* success in between: the wait is short again */
    vc_fake_clock_advance(&p.client_clock, 1000000);
    fs = planes_fetch(&p, p.lease);
    cr_assert(fs.path == VCACHE_PATH_SHM && fs.steps_down == 0);
    while (STAT(&p, ops_in_flight) + STAT(&p, pins_held) != 0)
        sched_yield();
    planes_end(&p);
}

Test(service_planes, without_a_data_plane_grpc_takes_over_and_the_server_counts_it)
{
    planes_t p;
    vcache_fetch_stats_t fs;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM);
    p.lease = planes_lease(&p, p.client);
    cs_dataplane_stop(p.dp); /* its addresses are still in the lease */
    fs = planes_fetch(&p, p.lease);
    cr_assert(fs.path == VCACHE_PATH_GRPC && fs.steps_down >= 1, "%u", fs.steps_down);
    cr_assert(sx_stat(&p.sx, "step_downs") >= 1);
    vcache_lease_release(p.lease);
    vcache_disconnect(p.client);
    sx_end(&p.sx);
}

Test(service_planes, a_name_of_another_machine_is_passed_over_in_silence)
{
    planes_t p;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM);
    cs_service_stop(p.sx.service, 100);
    p.sx.opts.shm_address = "shm:vericache-00000000000000000000000000000000";
    sx_serve(&p.sx);
    p.lease = planes_lease(&p, p.client);
    for (int i = 0; i < 2; i++) {
        vcache_fetch_stats_t fs = planes_fetch(&p, p.lease);
        cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 0);
    }
    cr_assert_eq(STAT(&p, step_downs), 0);
    planes_end(&p);
}
