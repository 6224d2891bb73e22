/* Proves the flags of the data plane on the program itself: --data-shm, --peer-timeout-ms, --data-ports,
 * --trust-data-network. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/outer_address.h"
#include "support/proc.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/clock.h"
#include "vc/mem.h"
#include "vc/ucx.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000

static const vcache_fidelity_t full = {0, "full@1", NULL};

typedef struct running {
    vt_tmpdir_t dir;
    vt_proc_t *proc;
    char address[128], data[128];
    vcache_client_t *client;
    small_space_t space;
} running_t;

static void word_after(const char *line, const char *key, char *out, size_t cap)
{
    const char *at = strstr(line, key);
    cr_assert_not_null(at, "%s in: %s", key, line);
    at += strlen(key);
    snprintf(out, cap, "%.*s", (int)strcspn(at, " \n"), at);
}

/* flags: up to two with their values. */
static void start(running_t *r, const char *const flags[4])
{
    char line[400] = "";
    vcache_options_t o;
    vt_tmpdir_create(&r->dir);
    const char *args[] = {"--data-dir", vt_tmpdir_path(&r->dir, "data"),
                          "--listen",   "127.0.0.1:0",
                          "--capacity", "256MiB",
                          flags[0],     flags[1],
                          flags[2],     flags[3],
                          NULL};
    r->proc = vt_proc_start("vericache-server", args, NULL);
    cr_assert(vt_proc_wait_line(r->proc, "ready listen=", WAIT_MS, line, sizeof(line)), "%s", vt_proc_output(r->proc));
    word_after(line, "listen=", r->address, sizeof(r->address));
    word_after(line, "data=", r->data, sizeof(r->data));
    vcache_options_default(&o);
    o.server = r->address;
    cr_assert_eq(vcache_connect(&o, &r->client, NULL), VC_OK);
    small_space_init(&r->space);
}

static void stop(running_t *r)
{
    vcache_disconnect(r->client);
    vt_proc_end(r->proc);
    vt_tmpdir_remove(&r->dir);
}

static double stat_of(running_t *r, const char *name)
{
    static vcache_stat_t stats[300];
    uint32_t n = 0;
    vcache_error_t err = {0};
    cr_assert_eq(vcache_stats(r->client, stats, 300, &n, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    cr_assert(false, "no statistic named %s", name);
    return -1;
}

static void store_and_fetch(running_t *r, vcache_path_t path)
{
    small_space_t *s = &r->space;
    vcache_register_stats_t rs;
    vcache_fetch_stats_t fs;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    small_sink_t sink = {.space = s};
    vcache_status_t st =
        vcache_register(r->client, s->enc, s->enc_len, s->tokens, 0, 8, &full, 1, small_space_record, s, &rs, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert_eq(rs.path, path);
    st = vcache_lookup(r->client, s->enc, s->enc_len, s->tokens, 8 * SMALL_BLOCK_TOKENS, &full, 1, NULL, &lease, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    st = vcache_fetch(lease, 0, 0, 8, small_sink_record, &sink, &fs, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert(sink.right == 8 && fs.path == path && fs.steps_down == 0, "path %d", (int)fs.path);
    vcache_lease_release(lease);
}

Test(data_flags, shared_memory_is_used_by_default_and_shows_in_the_statistics)
{
    static running_t r;
    start(&r, (const char *const[4]){NULL});
    store_and_fetch(&r, VCACHE_PATH_SHM);
    cr_assert(stat_of(&r, "data_shm_peers") == 1 && stat_of(&r, "data_shm_peers_total") == 1);
    cr_assert(stat_of(&r, "data_step_downs") == 0 && stat_of(&r, "data_shm_refused") == 0);
    stop(&r);
}

Test(data_flags, data_shm_off_leaves_the_network)
{
    static running_t r;
    start(&r, (const char *const[4]){"--data-shm=off"});
    store_and_fetch(&r, VCACHE_PATH_UCX);
    cr_assert(stat_of(&r, "data_shm_peers_total") == 0 && stat_of(&r, "data_peers_total") == 1);
    stop(&r);
}

Test(data_flags, data_ports_are_checked_and_serve)
{
    static running_t r;
    char *out = NULL;
    vt_tmpdir_create(&r.dir);
    const char *bad[] = {"--data-dir", vt_tmpdir_path(&r.dir, "data"), "--listen", "127.0.0.1:0", "--data-ports", "9-1",
                         NULL};
    cr_assert_neq(vt_proc_run("vericache-server", bad, NULL, WAIT_MS, &out), 0);
    cr_assert_not_null(strstr(out, "port range"), "%s", out);
    vc_free(out);
    vt_tmpdir_remove(&r.dir);
    start(&r, (const char *const[4]){"--data-ports", "26400-26430", "--data-shm=off"});
    store_and_fetch(&r, VCACHE_PATH_UCX);
    stop(&r);
}

static void on_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    *(int *)arg = 1;
}

Test(data_flags, a_silent_peer_is_closed_after_the_timeout_that_was_asked_for)
{
    static running_t r;
    vc_err_t err = {0};
    vc_ucx_t *ucx = NULL;
    vc_ucx_ep_t *ep;
    int lost = 0;
    start(&r, (const char *const[4]){"--peer-timeout-ms", "200"}); /* 5000 by default */
    vc_ucx_opts_t opts = {.address = r.data, .rndv_threshold = 1 << 19};
    uint64_t began = vc_clock_now_us(vc_clock_system());
    cr_assert(vc_ucx_open(&opts, &ucx, &err) == VC_OK, "%s", err.msg);
    cr_assert(vc_ucx_connect(ucx, on_lost, &lost, &ep, &err) == VC_OK, "%s", err.msg);
    while (!lost && vc_clock_now_us(vc_clock_system()) - began < 30000000)
        vc_ucx_wait(ucx, 100);
    cr_assert(lost == 1 && stat_of(&r, "data_peers_stalled") == 1);
    vc_ucx_close(ucx);
    store_and_fetch(&r, VCACHE_PATH_SHM);
    stop(&r);
}

Test(data_flags, an_address_of_the_network_serves_when_the_network_is_trusted)
{
    static running_t r;
    char address[64];
    if (!vt_outer_address(address, sizeof(address)))
        cr_skip_test("this machine has no IPv4 address but loopback");
    start(&r, (const char *const[4]){"--data-listen", address, "--trust-data-network", "--data-shm=off"});
    cr_assert(strncmp(r.data, address, strlen(address) - 1) == 0, "%s", r.data);
    store_and_fetch(&r, VCACHE_PATH_UCX);
    stop(&r);
}
