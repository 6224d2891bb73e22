/* Proves how a client chooses its way - shared memory, network, gRPC - steps down inside a fetch without losing or
 * changing a byte, and comes back to the better way later. */
#include <sched.h>
#include <stdatomic.h>

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
    cs_dataplane_fault_fn fault;
    void *fault_arg;
} planes_t;

static void half_in_memory(sx_t *sx) { sx->fx.ram_bytes = BLOCKS / 2 * vc_kvrec_full_bytes(&sx->fx.ks.shape); }

static void planes_start_with_fault(planes_t *p)
{
    vc_err_t err = {0};
    vcache_options_t o;
    cs_dataplane_opts_t d;
    sx_start_with(&p->sx, 3, half_in_memory); /* so that records come from memory and from disk */
    vc_fake_clock_init(&p->server_clock, 1000000);
    vc_fake_clock_init(&p->client_clock, 1000000);
    cs_dataplane_opts_default(&d);
    d.store = p->sx.fx.store;
    d.workers = p->sx.fx.workers;
    d.pool = p->sx.fx.pool;
    d.max_shm_peers = 1;
    d.clock = &p->server_clock.clock;
    d.fault = p->fault;
    d.fault_arg = p->fault_arg;
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

static void planes_start(planes_t *p)
{
    p->fault = NULL;
    planes_start_with_fault(p);
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

/* ---- layer by layer ---- */

typedef struct layer_sink {
    planes_t *p;
    uint32_t next[BLOCKS];          /* layer that is due */
    uint32_t last_layer, n, n_late; /* late: of a block that was fetched again */
    uint32_t stall_at, stop_at;     /* number of the part; 0: never */
} layer_sink_t;

static int take_layer(void *arg, uint32_t layer, uint32_t block, const void *data, size_t bytes)
{
    layer_sink_t *s = arg;
    planes_t *p = s->p;
    static uint8_t want[1u << 20];
    vc_kvrec_head_t head;
    vc_kvrec_layer_t at;
    uint32_t n = fx_record(&p->sx.fx, 1, block, 0, want, sizeof(want));
    cr_assert(vc_kvrec_decode(want, n, &head, NULL) == VC_OK);
    vc_kvrec_layer(&head, layer, &at);
    cr_assert(layer == s->next[block]++, "layer %u of block %u twice or out of turn", layer, block);
    cr_assert(bytes == at.length && memcmp(data, want + at.offset, bytes) == 0, "layer %u of %u differs", layer, block);
    s->n_late += layer < s->last_layer;
    s->last_layer = VC_MAX(layer, s->last_layer);
    s->n++;
    if (s->n == s->stall_at) {
        uint64_t before = STAT(p, peers_stalled);
        while (STAT(p, peers_stalled) == before) {
            vc_fake_clock_advance(&p->server_clock, 6000000);
            sched_yield();
        }
    }
    return s->n == s->stop_at;
}

static vcache_fetch_stats_t layers_of(planes_t *p, layer_sink_t *s, vc_status_t want)
{
    vcache_fetch_stats_t fs;
    vcache_error_t err = {0};
    s->p = p;
    vcache_status_t st = vcache_fetch_layers(p->lease, 0, 0, BLOCKS, take_layer, s, &fs, &err);
    cr_assert(st == want, "%s", err.msg);
    for (uint32_t b = 0; want == VC_OK && b < BLOCKS; b++)
        cr_assert(s->next[b] == p->sx.fx.ks.shape.n_layer, "block %u has %u layers", b, s->next[b]);
    return fs;
}

Test(service_planes, layers_come_in_order_and_are_the_same_bytes_on_every_way)
{
    planes_t p;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM);
    p.lease = planes_lease(&p, p.client);
    static const struct {
        int use;
        vcache_path_t path;
    } ways[] = {{1, VCACHE_PATH_SHM}, {2, VCACHE_PATH_UCX}, {0, VCACHE_PATH_GRPC}};
    for (size_t i = 0; i < VC_ARRAY_LEN(ways); i++) {
        layer_sink_t s = {.last_layer = 0};
        p.client->o.use_data_plane = ways[i].use;
        vcache_fetch_stats_t fs = layers_of(&p, &s, VC_OK);
        cr_assert(fs.path == ways[i].path && fs.steps_down == 0 && fs.wire_corrupt == 0, "way %zu", i);
        cr_assert(s.n_late == 0);
        planes_fetch(&p, p.lease); /* whole records, some of which stay in memory */
        layer_sink_t again = {.last_layer = 0};
        layers_of(&p, &again, VC_OK);
        cr_assert(again.n_late == 0);
        layer_sink_t stop = {.stop_at = BLOCKS + 3};
        layers_of(&p, &stop, VC_ERR_CANCELLED);
        cr_assert_eq(stop.n, BLOCKS + 3);
    }
    vcache_error_t err = {0};
    layer_sink_t s = {.p = &p};
    cr_assert_eq(vcache_fetch_layers(p.lease, 1, 0, 4, take_layer, &s, NULL, &err), VC_ERR_INVALID); /* compressed */
    cr_assert_eq(vcache_fetch_layers(p.lease, 0, 1, BLOCKS, take_layer, &s, NULL, &err), VC_ERR_RANGE);
    planes_end(&p);
}

Test(service_planes, a_way_that_breaks_between_layers_is_followed_by_the_next)
{
    planes_t p;
    planes_start(&p);
    planes_register(&p, VCACHE_PATH_SHM);
    p.lease = planes_lease(&p, p.client);
    layer_sink_t s = {.stall_at = BLOCKS + 7};
    vcache_fetch_stats_t fs = layers_of(&p, &s, VC_OK);
    cr_assert(fs.path == VCACHE_PATH_UCX && fs.steps_down == 1);
    cs_dataplane_stop(p.dp);
    layer_sink_t t = {.last_layer = 0};
    fs = layers_of(&p, &t, VC_OK);
    cr_assert(fs.path == VCACHE_PATH_GRPC && fs.steps_down >= 1);
    vcache_lease_release(p.lease);
    vcache_disconnect(p.client);
    sx_end(&p.sx);
}

static void flip_some(void *arg, uint8_t *bytes, uint32_t n)
{
    _Atomic uint32_t *calls = arg;
    uint32_t call = atomic_fetch_add(calls, 1);
    if (call == 1 || call == 3) /* a header, and later a layer */
        bytes[n / 2] ^= 1;
}

Test(service_planes, a_layer_damaged_on_the_way_is_never_handed_out_and_comes_again)
{
    planes_t p;
    static _Atomic uint32_t calls;
    p.fault = flip_some;
    p.fault_arg = (void *)&calls;
    planes_start_with_fault(&p);
    calls = 1000;
    planes_register(&p, VCACHE_PATH_SHM);
    p.lease = planes_lease(&p, p.client);
    calls = 0;
    layer_sink_t s = {.last_layer = 0};
    vcache_fetch_stats_t fs = layers_of(&p, &s, VC_OK);
    cr_assert(fs.wire_corrupt == 2 && s.n_late > 0, "%u damaged, %u late", (unsigned)fs.wire_corrupt, s.n_late);
    while (STAT(&p, wire_corrupt) < 2)
        sched_yield();
    planes_end(&p);
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
