/* Proves vericachectl against a server process: every command, as a table, as JSON, and by its exit code; and what the
 * server says and does when it is drained, by request and by signal. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/server_proc.h"
#include "support/small_space.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/rpc.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000
#define MOST_ARGS 12

typedef struct {
    vt_tmpdir_t dir;
    small_space_t space;
    vt_proc_t *server;
    char address[128];
    vcache_client_t *client;
} world_t;

static const vcache_fidelity_t full = {0, "full@1", NULL};

static void start(world_t *w)
{
    const char *args[] = {"--data-dir",
                          vt_tmpdir_path(&w->dir, "data"),
                          "--listen",
                          "127.0.0.1:0",
                          "--capacity",
                          "256MiB",
                          "--grace-ms=600000", /* longer than any test waits */
                          "--idle-ms=3600000",
                          "--scrub-rate=0",
                          NULL};
    w->server = server_proc_start(args, NULL, w->address, sizeof(w->address));
    vcache_options_t o;
    vcache_options_default(&o);
    o.server = w->address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &w->client, NULL), VC_OK);
}

static void end(world_t *w)
{
    vcache_disconnect(w->client);
    vt_proc_end(w->server);
    vt_tmpdir_remove(&w->dir);
}

static void begin(world_t *w)
{
    small_space_init(&w->space);
    vt_tmpdir_create(&w->dir);
    start(w);
}

static void store(world_t *w, uint32_t n)
{
    vcache_error_t err = {0};
    small_space_t *s = &w->space;
    cr_assert_eq(
        vcache_register(w->client, s->enc, s->enc_len, s->tokens, 0, n, &full, 1, small_space_record, s, NULL, &err),
        VC_OK, "%s", err.msg);
}

static vcache_lease_t *lease(world_t *w, uint32_t n)
{
    vcache_lease_t *l = NULL;
    vcache_error_t err = {0};
    small_space_t *s = &w->space;
    cr_assert_eq(
        vcache_lookup(w->client, s->enc, s->enc_len, s->tokens, n * SMALL_BLOCK_TOKENS, &full, 1, NULL, &l, &err),
        VC_OK, "%s", err.msg);
    cr_assert_not_null(l);
    return l;
}

/* Runs "vericachectl WORDS... --server ADDRESS"; the output is the caller's. */
static int ctl(const world_t *w, const char *words, char **out)
{
    char copy[400], *save = NULL;
    const char *args[MOST_ARGS + 3];
    int n = 0;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, " ", &save); word != NULL && n < MOST_ARGS; word = strtok_r(NULL, " ", &save))
        args[n++] = word;
    args[n++] = "--server";
    args[n++] = w->address;
    args[n] = NULL;
    return vt_proc_run("vericachectl", args, NULL, WAIT_MS, out);
}

static void says(const world_t *w, const char *words, int code, const char *text)
{
    char *out = NULL;
    int rc = ctl(w, words, &out);
    cr_assert_eq(rc, code, "%s: exit code %d: %s", words, rc, out);
    cr_assert_not_null(strstr(out, text), "%s: %s", words, out);
    vc_free(out);
}

static json_t *json(const world_t *w, const char *words)
{
    char *out = NULL, with[400];
    snprintf(with, sizeof(with), "%s --json", words);
    int rc = ctl(w, with, &out);
    cr_assert_eq(rc, 0, "%s: exit code %d: %s", words, rc, out);
    json_t *o = json_loads(out, 0, NULL);
    cr_assert_not_null(o, "%s: %s", words, out);
    vc_free(out);
    return o;
}

static long long number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    cr_assert(json_is_number(v) || json_is_boolean(v), "no %s", name);
    return json_is_boolean(v) ? json_is_true(v) : (long long)json_number_value(v);
}

/* ---- tests ---- */

Test(ctl, config_shows_values_and_sources)
{
    static world_t w;
    begin(&w);
    json_t *o = json(&w, "config"), *capacity = json_object_get(o, "capacity");
    cr_assert_str_eq(json_string_value(json_object_get(capacity, "source")), "flag");
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(o, "workers"), "source")), "default");
    cr_assert_eq(json_object_get(o, "no-such"), NULL);
    json_decref(o);
    says(&w, "config", 0, "grace-ms");
    end(&w);
}

Test(ctl, stats_can_be_watched_as_lines_of_json)
{
    static world_t w;
    begin(&w);
    store(&w, 4);
    vcache_lease_release(lease(&w, 8));
    char *out = NULL, *save = NULL;
    int n = 0;
    cr_assert_eq(ctl(&w, "stats --watch --json --interval-ms 100 --count 3", &out), 0, "%s", out);
    for (char *line = strtok_r(out, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save), n++) {
        json_t *o = json_loads(line, 0, NULL);
        cr_assert_not_null(o, "%s", line);
        cr_assert_eq(number(o, "lookup_blocks_full"), 8);
        cr_assert_eq(number(o, "hit_blocks_full"), 4);
        cr_assert_eq(number(o, "time_lookup_count"), 1);
        cr_assert_gt(number(o, "unix_s"), 0);
        json_decref(o);
    }
    cr_assert_eq(n, 3);
    vc_free(out);
    says(&w, "stats --watch --interval-ms 100 --count 2", 0, "== ");
    end(&w);
}

Test(ctl, drain_refuses_reports_waits_and_resumes)
{
    static world_t w;
    begin(&w);
    store(&w, 6);
    vcache_lease_t *l = lease(&w, 6);
    vcache_error_t err = {0};
    json_t *o = json(&w, "leases");
    cr_assert_eq(number(o, "draining"), 0);
    cr_assert_eq(number(o, "leases"), 1);
    json_decref(o);
    says(&w, "drain --wait --wait-ms 1", 75, "not drained within 1 ms");
    says(&w, "health", 75, "draining");
    o = json(&w, "drain --query");
    cr_assert_eq(number(o, "draining"), 1);
    cr_assert_gt(number(o, "leased_bytes"), 0);
    cr_assert_eq(json_array_size(json_object_get(o, "ages")), 1);
    json_decref(o);
    cr_assert_eq(vcache_lookup(w.client, w.space.enc, w.space.enc_len, w.space.tokens, SMALL_BLOCK_TOKENS, &full, 1,
                               NULL, NULL, &err),
                 VC_ERR_UNREACHABLE);
    vcache_lease_release(l);
    says(&w, "drain --wait", 0, "draining: 0 leases over 0 bytes, 0 uploads, 0 commits, 0 transfers\ndrained\n");
    says(&w, "drain --resume", 0, "serving: 0 leases");
    says(&w, "health", 0, "serving");
    says(&w, "drain --resume --wait", 64, "--resume goes with neither");
    end(&w);
}

Test(ctl, scrub_waits_for_its_pass)
{
    static world_t w;
    begin(&w);
    store(&w, 10);
    says(&w, "scrub --query", 0, "idle: 0 of");
    says(&w, "scrub --stop", 69, "scrub: ");
    json_t *o = json(&w, "scrub --wait --rate 1GiB");
    cr_assert_eq(number(o, "running"), 0);
    cr_assert_eq(number(o, "passes"), 1);
    cr_assert_eq(number(o, "pass_objects"), 10);
    cr_assert_eq(number(o, "pass_corrupt"), 0);
    json_decref(o);
    end(&w);
}

Test(ctl, prefixes_are_pinned_over_a_restart_unpinned_and_deleted)
{
    static world_t w;
    char words[200], tip[80], keyspace[80];
    begin(&w);
    store(&w, 8);
    json_t *list = json(&w, "prefixes"), *p = json_array_get(list, 0);
    snprintf(tip, sizeof(tip), "%s", json_string_value(json_object_get(p, "tip")));
    snprintf(keyspace, sizeof(keyspace), "%s", json_string_value(json_object_get(p, "keyspace")));
    json_decref(list);
    snprintf(words, sizeof(words), "pin %.10s", tip);
    says(&w, words, 0, "pinned 8 objects, ");
    vcache_disconnect(w.client);
    vt_proc_signal(w.server, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(w.server, WAIT_MS), 0);
    vt_proc_end(w.server);
    start(&w);
    json_t *o = json(&w, "stats");
    cr_assert_eq(number(o, "kept_objects"), 8);
    json_decref(o);
    snprintf(words, sizeof(words), "unpin %s --keyspace %s", tip, keyspace);
    o = json(&w, words);
    cr_assert_eq(number(o, "objects"), 8);
    cr_assert_gt(number(o, "bytes"), 8 * 4096);
    json_decref(o);
    snprintf(words, sizeof(words), "delete %.8s --fidelity full@2", tip);
    says(&w, words, 69, "delete: ");
    snprintf(words, sizeof(words), "delete %.8s --fidelity full@1", tip);
    says(&w, words, 0, "deleted 8 objects, ");
    snprintf(words, sizeof(words), "delete %s --keyspace %s", tip, keyspace);
    says(&w, words, 69, "delete: ");
    end(&w);
}

Test(ctl, wrong_words_are_refused_with_one_sentence)
{
    static world_t w;
    begin(&w);
    says(&w, "pin", 64, "pin needs TIP");
    says(&w, "pin 12345678 more", 64, "unexpected argument \"more\"");
    says(&w, "pin 123", 64, "is not 8 to 64 lower-case hex digits");
    says(&w, "pin ZZZZZZZZ", 64, "is not 8 to 64 lower-case hex digits");
    says(&w, "pin 12345678", 69, "no listed prefix has a tip that starts with 12345678");
    says(&w, "pin 12345678 --keyspace 12345678", 64, "--keyspace");
    says(&w, "stats --interval-ms 1", 64, "interval-ms");
    says(&w, "stats more", 64, "unexpected argument \"more\"");
    says(&w, "--help", 0, "unpin");
    end(&w);
}

Test(ctl, sigterm_waits_for_leases_and_says_what_it_waited_for)
{
    static world_t w;
    begin(&w);
    store(&w, 6);
    vcache_lease_t *l = lease(&w, 6);
    vcache_error_t err = {0};
    vcache_fetch_stats_t fs;
    small_sink_t sink = {.space = &w.space};
    vt_proc_signal(w.server, SIGTERM);
    cr_assert(vt_proc_wait_line(w.server, "stopping signal=TERM", WAIT_MS, NULL, 0));
    while (vcache_health(w.client, &err) != VC_ERR_BUSY)
        ;
    cr_assert_eq(vcache_fetch(l, 0, 0, 6, small_sink_record, &sink, &fs, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(sink.right, 6);
    vcache_lease_release(l);
    char line[400] = "";
    cr_assert(vt_proc_wait_line(w.server, "drained ms=", WAIT_MS, line, sizeof(line)));
    cr_assert_not_null(strstr(line, "leases=0 leased_bytes=0"), "%s", line);
    cr_assert_eq(vt_proc_wait_exit(w.server, WAIT_MS), 0);
    end(&w);
}

/* A lease is out, and a call that would run for an hour. */
Test(ctl, second_signal_ends_the_wait)
{
    static world_t w;
    vc_rpc_channel_t *ch = NULL;
    vc_rpc_channel_opts_t o;
    vc_rpc_stream_t *put = NULL;
    begin(&w);
    store(&w, 6);
    vcache_lease_t *l = lease(&w, 6);
    vc_rpc_channel_opts_default(&o);
    o.target = w.address;
    cr_assert_eq(vc_rpc_channel_create(&o, &ch, NULL), VC_OK);
    cr_assert_eq(vc_rpc_stream_open(ch, "/vericache.v1.Cache/PutRecord", 0, &put, NULL), VC_OK);
    json_t *stats;
    bool runs = false;
    while (!runs) {
        stats = json(&w, "stats");
        runs = number(stats, "rpc_put_streams") == 1;
        json_decref(stats);
    }
    vt_proc_signal(w.server, SIGTERM);
    cr_assert(vt_proc_wait_line(w.server, "stopping signal=TERM", WAIT_MS, NULL, 0));
    vt_proc_signal(w.server, SIGTERM);
    char line[400] = "";
    cr_assert(vt_proc_wait_line(w.server, "drained ms=", WAIT_MS, line, sizeof(line)));
    cr_assert_not_null(strstr(line, "leases=1"), "%s", line);
    cr_assert_not_null(strstr(line, "transfers=1"), "%s", line);
    cr_assert_eq(vt_proc_wait_exit(w.server, WAIT_MS), 0);
    vc_rpc_stream_destroy(put);
    vc_rpc_channel_destroy(ch);
    vcache_lease_release(l);
    end(&w);
}

Test(ctl, compressors_are_listed_without_a_server)
{
    const char *args[] = {"compressors", "--server", "127.0.0.1:1", "--json", NULL};
    char *out = NULL, *table = NULL;
    cr_assert_eq(vt_proc_run("vericachectl", args, NULL, WAIT_MS, &out), 0, "%s", out);
    json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL), *item, *rot = NULL;
    size_t i;
    json_array_foreach(json_object_get(o, "compressors"), i, item)
    {
        if (strcmp(json_string_value(json_object_get(item, "name")), "rot") == 0)
            rot = item;
    }
    cr_assert_not_null(rot, "%s", out);
    item = json_array_get(json_object_get(rot, "parameters"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(item, "name")), "bits");
    cr_expect_str_eq(json_string_value(json_object_get(item, "default")), "4");
    cr_expect_str_eq(json_string_value(json_object_get(item, "values")), "2,3,4,8");
    json_decref(o);
    /* The node lists the same. */
    const char *node[] = {"compressors", "--json", NULL};
    cr_assert_eq(vt_proc_run("vericache-node", node, NULL, WAIT_MS, &table), 0);
    cr_expect_str_eq(table, out);
    vc_free(out);
    vc_free(table);
}
