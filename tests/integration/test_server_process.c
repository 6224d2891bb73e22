/* Proves vericache-server and vericachectl as programs: start, refusals with exit codes, signals, data over a restart.
 */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/server_proc.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000

static vt_proc_t *start(const vt_tmpdir_t *dir, const char *extra, char *address, size_t cap)
{
    const char *args[] = {
        "--data-dir", vt_tmpdir_path(dir, "data"), "--listen", "127.0.0.1:0", "--capacity", "256MiB", extra, NULL};
    return server_proc_start(args, NULL, address, cap);
}

static void expect_refusal(const char *const *args, int code, const char *sentence)
{
    char *out = NULL;
    int rc = vt_proc_run("vericache-server", args, NULL, WAIT_MS, &out);
    cr_assert_eq(rc, code, "exit code %d: %s", rc, out);
    cr_assert_not_null(strstr(out, sentence), "%s", out);
    cr_assert_not_null(strstr(out, "vericache-server: "), "%s", out);
    vc_free(out);
}

/* ---- a small client ---- */

static vcache_client_t *connect_to(const char *address, int data_plane)
{
    vcache_options_t o;
    vcache_client_t *c = NULL;
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = data_plane;
    cr_assert_eq(vcache_connect(&o, &c, NULL), VC_OK);
    return c;
}

static const vcache_fidelity_t full = {0, "full@1", NULL};

static void fetch_all(const small_space_t *s, vcache_client_t *c, uint32_t n, vcache_path_t path)
{
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    vcache_fetch_stats_t fs;
    small_sink_t sink = {.space = s};
    vcache_status_t st =
        vcache_lookup(c, s->enc, s->enc_len, s->tokens, n * SMALL_BLOCK_TOKENS, &full, 1, &info, &lease, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert_eq(info.n_blocks[0], n);
    st = vcache_fetch(lease, 0, 0, n, small_sink_record, &sink, &fs, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, n);
    cr_assert_eq(fs.path, path);
    cr_assert_eq(fs.steps_down, 0);
    vcache_lease_release(lease);
}

static json_t *ctl_json(const char *address, const char *command)
{
    const char *args[] = {command, "--json", "--server", address, NULL};
    char *out = NULL;
    cr_assert_eq(vt_proc_run("vericachectl", args, NULL, WAIT_MS, &out), 0, "%s", out);
    json_t *o = json_loads(out, 0, NULL);
    cr_assert_not_null(o, "%s", out);
    vc_free(out);
    return o;
}

static double number(const json_t *o, const char *name)
{
    cr_assert(json_is_number(json_object_get(o, name)), "no %s", name);
    return json_number_value(json_object_get(o, name));
}

/* ---- tests ---- */

Test(server_process, data_outlives_a_restart_and_kill_on_both_paths)
{
    vt_tmpdir_t dir;
    static small_space_t s;
    char address[128];
    vcache_error_t err = {0};
    vcache_register_stats_t rs;
    small_space_init(&s);
    vt_tmpdir_create(&dir);
    vt_proc_t *p = start(&dir, NULL, address, sizeof(address));
    vcache_client_t *c = connect_to(address, 0), *ucx = connect_to(address, 1);
    vcache_status_t st =
        vcache_register(c, s.enc, s.enc_len, s.tokens, 0, 20, &full, 1, small_space_record, &s, &rs, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert_eq(rs.path, VCACHE_PATH_GRPC);
    st = vcache_register(ucx, s.enc, s.enc_len, s.tokens, 0, 40, &full, 1, small_space_record, &s, &rs, &err);
    cr_assert_eq(st, VC_OK, "%s", err.msg);
    cr_assert_eq(rs.path, VCACHE_PATH_SHM);
    cr_assert_eq(rs.n_stored, 20);
    fetch_all(&s, c, 40, VCACHE_PATH_GRPC);
    fetch_all(&s, ucx, 40, VCACHE_PATH_SHM);
    vcache_disconnect(c);
    vcache_disconnect(ucx);
    vt_proc_signal(p, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 0, "%s", vt_proc_output(p));
    vt_proc_end(p);
    p = start(&dir, NULL, address, sizeof(address));
    c = connect_to(address, 0);
    fetch_all(&s, c, 40, VCACHE_PATH_GRPC);
    vt_proc_signal(p, SIGKILL);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 128 + SIGKILL);
    cr_assert_eq(vcache_health(c, &err), VC_ERR_UNREACHABLE);
    vcache_disconnect(c);
    vt_proc_end(p);
    p = start(&dir, "--data-listen=none", address, sizeof(address));
    c = connect_to(address, 1); /* wants the data plane, is offered none: no step down */
    fetch_all(&s, c, 40, VCACHE_PATH_GRPC);
    vcache_disconnect(c);
    vt_proc_signal(p, SIGINT);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 0);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

Test(server_process, reported_hit_rate_is_the_one_that_we_counted)
{
    vt_tmpdir_t dir;
    static small_space_t s;
    char address[128];
    uint32_t hit = 0, asked = 0;
    small_space_init(&s);
    vt_tmpdir_create(&dir);
    vt_proc_t *p = start(&dir, NULL, address, sizeof(address));
    vcache_client_t *c = connect_to(address, 0);
    cr_assert_eq(vcache_register(c, s.enc, s.enc_len, s.tokens, 0, 10, &full, 1, small_space_record, &s, NULL, NULL),
                 VC_OK);
    for (uint32_t n = 1; n <= 30; n++) {
        vcache_lookup_info_t info;
        vcache_lease_t *lease = NULL;
        vcache_status_t st =
            vcache_lookup(c, s.enc, s.enc_len, s.tokens, n * SMALL_BLOCK_TOKENS, &full, 1, &info, &lease, NULL);
        cr_assert_eq(st, VC_OK);
        vcache_lease_release(lease);
        hit += info.n_blocks[0];
        asked += n;
    }
    json_t *o = ctl_json(address, "stats");
    cr_assert_eq(number(o, "hit_blocks_full"), hit);
    cr_assert_eq(number(o, "lookup_blocks_full"), asked);
    cr_assert_float_eq(number(o, "hit_rate_blocks_full"), (double)hit / asked, 1e-9);
    cr_assert_eq(number(o, "hit_tokens_full"), hit * SMALL_BLOCK_TOKENS);
    cr_assert_eq(number(o, "rpc_lookups"), 30);
    json_decref(o);
    o = ctl_json(address, "prefixes");
    cr_assert_eq(json_array_size(o), 1);
    cr_assert_eq(number(json_array_get(o, 0), "blocks"), 10);
    json_decref(o);
    o = ctl_json(address, "health");
    cr_assert_str_eq(json_string_value(json_object_get(o, "status")), "serving");
    json_decref(o);
    vcache_disconnect(c);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

Test(server_process, ports_are_written_to_a_file)
{
    vt_tmpdir_t dir;
    char address[128], flag[400], text[300] = "", listen[100], data[100];
    unsigned port = 0;
    vt_tmpdir_create(&dir);
    snprintf(flag, sizeof(flag), "--port-file=%s", vt_tmpdir_path(&dir, "ports"));
    vt_proc_t *p = start(&dir, flag, address, sizeof(address));
    FILE *f = fopen(vt_tmpdir_path(&dir, "ports"), "r");
    cr_assert_not_null(f);
    cr_assert_gt(fread(text, 1, sizeof(text) - 1, f), 0);
    fclose(f);
    cr_assert_eq(sscanf(text, "%u\nlisten=%99s\ndata=%99s", &port, listen, data), 3, "%s", text);
    cr_assert_str_eq(listen, address);
    cr_assert_eq(port, (unsigned)atoi(strrchr(address, ':') + 1));
    cr_assert_not_null(strstr(data, "127.0.0.1:"));
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

Test(server_process, busy_port_is_named_with_its_exit_code)
{
    vt_tmpdir_t dir;
    char address[128];
    vt_tmpdir_create(&dir);
    vt_proc_t *p = start(&dir, NULL, address, sizeof(address));
    const char *busy[] = {"--data-dir", vt_tmpdir_path(&dir, "other"), "--listen", address, "--capacity", "256MiB",
                          NULL};
    char sentence[200];
    snprintf(sentence, sizeof(sentence), "cannot listen on %s: the port is in use", address);
    expect_refusal(busy, 69, sentence);
    /* the same data directory: held by the first one */
    const char *held[] = {"--data-dir", vt_tmpdir_path(&dir, "data"), "--listen", "127.0.0.1:0", "--capacity", "256MiB",
                          NULL};
    expect_refusal(held, 75, "data");
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

Test(server_process, wrong_arguments_are_refused_with_one_sentence)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    const char *data = vt_tmpdir_path(&dir, "data");
    expect_refusal((const char *[]){"--no-such-flag", NULL}, 64, "no-such-flag");
    expect_refusal((const char *[]){NULL}, 64, "--data-dir is required");
    expect_refusal((const char *[]){"--data-dir", data, "--capacity", "-3", NULL}, 64, "capacity");
    expect_refusal((const char *[]){"--data-dir", data, "--workers", "0", NULL}, 64, "workers");
    expect_refusal((const char *[]){"--data-dir", data, "--io", "magic", NULL}, 64, "io");
    expect_refusal((const char *[]){"--data-dir", data, "--listen", "7070", NULL}, 64, "HOST:PORT");
    expect_refusal((const char *[]){"--data-dir", data, "--listen", "0.0.0.0:0", NULL}, 64, "--insecure");
    expect_refusal((const char *[]){"--data-dir", data, "extra", NULL}, 64, "extra");
    expect_refusal((const char *[]){"--data-dir", data, "--listen", "127.0.0.1:0", "--data-listen", "0.0.0.0:0", NULL},
                   64, "trust");
    expect_refusal((const char *[]){"--data-dir", "/proc/nowhere/data", "--listen", "127.0.0.1:0", NULL}, 64,
                   "/proc/nowhere");
    vt_tmpdir_remove(&dir);
}

Test(server_process, help_version_and_print_config_need_no_data_directory)
{
    const char *const flags[] = {"--help", "--version", "--print-config"}, *const words[] = {"--egress-limit", "0.",
                                                                                             "listen = 127.0.0.1:7070"};
    for (int i = 0; i < 3; i++) {
        const char *args[] = {flags[i], NULL};
        char *out = NULL;
        cr_assert_eq(vt_proc_run("vericache-server", args, NULL, WAIT_MS, &out), 0);
        cr_assert_not_null(strstr(out, words[i]), "%s", out);
        vc_free(out);
    }
}

Test(server_process, ctl_reports_errors_with_exit_codes)
{
    char *out = NULL, address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", vt_free_port());
    cr_assert_eq(
        vt_proc_run("vericachectl", (const char *[]){"health", "--server", address, NULL}, NULL, WAIT_MS, &out), 69);
    cr_assert_not_null(strstr(out, address), "%s", out);
    vc_free(out);
    cr_assert_eq(vt_proc_run("vericachectl", (const char *[]){"dance", NULL}, NULL, WAIT_MS, &out), 64);
    cr_assert_not_null(strstr(out, "dance"), "%s", out);
    vc_free(out);
    cr_assert_eq(vt_proc_run("vericachectl", (const char *[]){NULL}, NULL, WAIT_MS, &out), 64);
    vc_free(out);
    char env[96];
    snprintf(env, sizeof(env), "VERICACHE_SERVER=%s", address);
    const char *envs[] = {env, "VERICACHE_DATA_DIR=/tmp", NULL}; /* the server's variable is none of its business */
    cr_assert_eq(vt_proc_run("vericachectl", (const char *[]){"stats", NULL}, envs, WAIT_MS, &out), 69);
    cr_assert_not_null(strstr(out, address), "%s", out);
    vc_free(out);
}
