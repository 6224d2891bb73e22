/*
 * Faults of the disk below RocksDB, in the running server. Debian's RocksDB ends the process when a log record cannot
 * be appended: then nothing committed is lost. Everything else is survived without a restart: commits fail while it
 * lasts, reads go on, and commits work again afterwards.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/proc.h"
#include "support/rocksdb_shim.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000
#define TRIES 100000

typedef struct rig {
    vt_tmpdir_t dir;
    small_space_t space;
    shim_control_t *shim;
    char control[400];
    vt_proc_t *server;
    char address[128];
    vcache_client_t *client;
} rig_t;

static const vcache_fidelity_t full = {0, "full@1", NULL};

static void connect_client(rig_t *r)
{
    vcache_options_t o;
    vcache_options_default(&o);
    o.server = r->address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &r->client, NULL), VC_OK);
}

static void start(rig_t *r)
{
    char preload[500], control[500], line[400] = "";
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/tests/librocksdb_shim.so", VC_BIN_DIR);
    snprintf(control, sizeof(control), "VC_SHIM_CONTROL=%s", r->control);
    const char *env[] = {preload, control, "ASAN_OPTIONS=verify_asan_link_order=0", NULL};
    const char *args[] = {"--data-dir",
                          vt_tmpdir_path(&r->dir, "data"),
                          "--listen",
                          "127.0.0.1:0",
                          "--data-listen=none",
                          "--capacity",
                          "256MiB",
                          NULL};
    r->server = vt_proc_start("vericache-server", args, env);
    cr_assert(vt_proc_wait_line(r->server, "ready listen=", WAIT_MS, line, sizeof(line)), "%s",
              vt_proc_output(r->server));
    const char *at = strstr(line, "listen=") + 7;
    snprintf(r->address, sizeof(r->address), "%.*s", (int)strcspn(at, " "), at);
    connect_client(r);
}

static void rig_init(rig_t *r)
{
    memset(r, 0, sizeof(*r));
    small_space_init(&r->space);
    vt_tmpdir_create(&r->dir);
    snprintf(r->control, sizeof(r->control), "%s", vt_tmpdir_path(&r->dir, "control"));
    r->shim = shim_map(r->control, 1);
    cr_assert_not_null(r->shim);
    start(r);
    cr_assert_gt(r->shim->seen, 0, "the library is not preloaded");
}

static void rig_fini(rig_t *r)
{
    vcache_disconnect(r->client);
    vt_proc_end(r->server);
    munmap(r->shim, sizeof(*r->shim));
    vt_tmpdir_remove(&r->dir);
}

static vcache_status_t put(rig_t *r, uint32_t n_blocks)
{
    return vcache_register(r->client, r->space.enc, r->space.enc_len, r->space.tokens, 0, n_blocks, &full, 1,
                           small_space_record, &r->space, NULL, NULL);
}

/* Blocks found, each fetched and compared. */
static uint32_t get(rig_t *r, uint32_t n_blocks)
{
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    small_sink_t sink = {.space = &r->space};
    vcache_status_t st = vcache_lookup(r->client, r->space.enc, r->space.enc_len, r->space.tokens,
                                       n_blocks * SMALL_BLOCK_TOKENS, &full, 1, &info, &lease, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    if (info.n_blocks[0] > 0) {
        st = vcache_fetch(lease, 0, 0, info.n_blocks[0], small_sink_record, &sink, NULL, &err);
        cr_assert_eq(st, VC_OK, "%s", err.msg);
        cr_assert_eq(sink.right, info.n_blocks[0]);
    }
    vcache_lease_release(lease);
    return info.n_blocks[0];
}

static void fail_calls(rig_t *r, uint32_t calls, int errnum, const char *name)
{
    snprintf(r->shim->name, sizeof(r->shim->name), "%s", name);
    r->shim->errnum = errnum;
    r->shim->calls = calls;
}

/* The maintenance thread looks once a second; a client just tries again. */
static void put_until_it_works(rig_t *r, uint32_t n_blocks)
{
    vcache_status_t st = VC_ERR_INTERNAL;
    for (int i = 0; i < TRIES && st != VC_OK; i++)
        st = put(r, n_blocks);
    cr_assert_eq(st, VC_OK, "%s", vt_proc_output(r->server));
}

static void restart(rig_t *r)
{
    vcache_disconnect(r->client);
    vt_proc_end(r->server);
    r->shim->calls = 0;
    start(r);
}

/* RocksDB may end the process, or answer with an error: then reads go on, and commits when the disk is well again. */
static void log_append_fails(int errnum, bool killed)
{
    static rig_t r;
    rig_init(&r);
    cr_assert_eq(put(&r, 20), VC_OK);
    fail_calls(&r, SHIM_WRITE, errnum, ".log");
    cr_assert_neq(put(&r, 30), VC_OK);
    cr_assert_gt(r.shim->failed, 0);
    bool runs = vcache_health(r.client, NULL) == VC_OK;
    if (runs) {
        cr_assert_eq(get(&r, 30), 20);
        cr_assert_neq(put(&r, 30), VC_OK);
    } else {
        cr_assert_eq(vt_proc_wait_exit(r.server, WAIT_MS), 128 + SIGABRT, "%s", vt_proc_output(r.server));
    }
    if (killed || !runs) {
        vt_proc_signal(r.server, SIGKILL);
        restart(&r);
        uint32_t n = get(&r, 30); /* the rest may be there or not, but only whole */
        cr_assert(n == 20 || n == 30, "%u", n);
    }
    r.shim->calls = 0;
    put_until_it_works(&r, 40);
    cr_assert_eq(get(&r, 40), 40);
    vt_proc_signal(r.server, SIGKILL);
    restart(&r);
    cr_assert_eq(get(&r, 40), 40);
    rig_fini(&r);
}

Test(disk_faults, the_last_byte_eaten_by_others_stops_commits_and_loses_nothing) { log_append_fails(ENOSPC, false); }
Test(disk_faults, a_log_that_cannot_be_appended_stops_commits_and_loses_nothing) { log_append_fails(EIO, false); }
Test(disk_faults, a_kill_while_the_disk_is_full_loses_nothing) { log_append_fails(ENOSPC, true); }

Test(disk_faults, a_log_that_cannot_be_synced_fails_commits_until_it_can)
{
    static rig_t r;
    rig_init(&r);
    cr_assert_eq(put(&r, 20), VC_OK);
    fail_calls(&r, SHIM_SYNC, EIO, ".log");
    cr_assert_neq(put(&r, 30), VC_OK);
    cr_assert_gt(r.shim->failed, 0);
    cr_assert_eq(get(&r, 30), 20); /* reads go on, and what was not acknowledged is not there */
    cr_assert_neq(put(&r, 30), VC_OK);
    r.shim->calls = 0;
    put_until_it_works(&r, 30);
    cr_assert_eq(get(&r, 30), 30);
    vt_proc_signal(r.server, SIGKILL);
    cr_assert_eq(vt_proc_wait_exit(r.server, WAIT_MS), 128 + SIGKILL);
    restart(&r);
    cr_assert_eq(get(&r, 30), 30);
    rig_fini(&r);
}

static void end_fails(unsigned calls, int error, const char *files)
{
    static rig_t r;
    rig_init(&r);
    cr_assert_eq(put(&r, 20), VC_OK);
    fail_calls(&r, calls, error, files);
    vt_proc_signal(r.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(r.server, WAIT_MS), 0, "%s", vt_proc_output(r.server));
    cr_assert_gt(r.shim->failed, 0);
    restart(&r);
    cr_assert_eq(get(&r, 20), 20);
    cr_assert_eq(put(&r, 40), VC_OK);
    cr_assert_eq(get(&r, 40), 40);
    rig_fini(&r);
}

Test(disk_faults, a_flush_that_fails_at_the_end_loses_nothing) { end_fails(SHIM_CREATE | SHIM_WRITE, ENOSPC, ".sst"); }
Test(disk_faults, a_manifest_that_cannot_be_written_loses_nothing)
{
    end_fails(SHIM_WRITE | SHIM_SYNC, EIO, "MANIFEST");
}
