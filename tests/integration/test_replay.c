/* Proves vericachectl replay: through the policy alone, and against a server under eviction, whose own count of hits
 * must be the client's to the block. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "support/server_proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"

#define WAIT_MS 120000

/* Documents by rank between conversations that grow: some 6,000 different blocks. */
static void write_trace(const char *path, uint32_t n_requests, bool as_json)
{
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    uint32_t state = 12345, fresh = 100000;
    if (!as_json)
        fputs("vericache-trace 1\n0 +12\n", f);
    for (uint32_t r = 0; r < n_requests; r++) {
        state = state * 1664525 + 1013904223;
        uint32_t doc = (state >> 16) % (1 + (state >> 24) % 60);
        bool once = (state >> 8) % 3 == 0;
        if (as_json) {
            fprintf(f, "{\"timestamp\": %u, \"input_length\": 9, \"hash_ids\": [1", r * 300);
            for (uint32_t b = 0; b < 20; b++)
                fprintf(f, ", %u", once ? fresh++ : 1000 * (doc + 1) + b);
            fputs("]}\n", f);
        } else {
            fprintf(f, once ? "300 0-1 +20\n" : "300 0-%u\n", 3 + doc % 9);
        }
    }
    fclose(f);
}

static json_t *replay(const char *const *args, int want_rc)
{
    char *out = NULL;
    int rc = vt_proc_run("vericachectl", args, NULL, WAIT_MS, &out);
    cr_assert_eq(rc, want_rc, "exit code %d: %s", rc, out);
    json_t *o = want_rc == 0 ? json_loads(out, 0, NULL) : NULL;
    cr_assert(want_rc != 0 || o != NULL, "%s", out);
    vc_free(out);
    return o;
}

static int64_t number(const json_t *o, const char *name)
{
    cr_assert(json_is_integer(json_object_get(o, name)), "no %s", name);
    return json_integer_value(json_object_get(o, name));
}

static vt_proc_t *start(const vt_tmpdir_t *dir, char *address, size_t cap)
{
    const char *args[] = {"--data-dir",
                          vt_tmpdir_path(dir, "data"),
                          "--listen",
                          "127.0.0.1:0",
                          "--capacity",
                          "64MiB",
                          "--ballast",
                          "16MiB",
                          "--max-record",
                          "64KiB",
                          "--data-listen",
                          "none",
                          NULL};
    return server_proc_start(args, NULL, address, cap);
}

Test(replay, the_server_counts_every_hit_that_we_count_under_eviction)
{
    vt_tmpdir_t dir;
    char address[128], path[300];
    vt_tmpdir_create(&dir);
    snprintf(path, sizeof(path), "%s", vt_tmpdir_path(&dir, "trace"));
    write_trace(path, 500, true);
    vt_proc_t *p = start(&dir, address, sizeof(address));
    const char *args[] = {"replay", "--trace", path, "--server", address, "--block-bytes", "16KiB", "--json", NULL};
    json_t *first = replay(args, 0);
    cr_assert_eq(number(first, "requests"), 500);
    cr_assert_eq(number(first, "blocks"), 500 * 21);
    cr_assert_eq(number(first, "server_blocks"), number(first, "blocks"));
    cr_assert_eq(number(first, "server_hits"), number(first, "hits"));
    cr_assert_gt(number(first, "hits"), 500);
    cr_assert_eq(number(first, "fetched"), number(first, "hits"));
    cr_assert_eq(number(first, "refused"), 0);
    cr_assert_gt(number(first, "evicted"), 100);
    cr_assert_eq(number(first, "stored"), number(first, "evicted") + number(first, "objects"));
    json_t *second = replay(args, 0); /* onto a full server: the counts are those of this replay */
    cr_assert_eq(number(second, "server_hits"), number(second, "hits"));
    cr_assert_gt(number(second, "hits"), 500);
    json_decref(first);
    json_decref(second);
    vt_proc_signal(p, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 0, "%s", vt_proc_output(p));
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}

Test(replay, simulates_every_policy_without_a_server)
{
    static const char *const policies[] = {"ours", "lru", "fifo", "lfu", "s3fifo", "oracle"};
    int64_t hits[VC_ARRAY_LEN(policies)];
    vt_tmpdir_t dir;
    char path[300];
    vt_tmpdir_create(&dir);
    snprintf(path, sizeof(path), "%s", vt_tmpdir_path(&dir, "trace"));
    write_trace(path, 2000, true);
    for (size_t i = 0; i < VC_ARRAY_LEN(policies); i++) {
        const char *args[] = {"replay",    "--trace", path, "--capacity-blocks", "400", "--policy",
                              policies[i], "--json",  NULL};
        json_t *o = replay(args, 0);
        hits[i] = number(o, "hits");
        cr_assert_str_eq(json_string_value(json_object_get(o, "policy")), policies[i]);
        cr_assert_eq(number(o, "stored") - number(o, "evicted"), 400);
        json_decref(o);
    }
    cr_assert_gt(hits[0], hits[1]); /* ours, LRU */
    for (size_t i = 0; i < VC_ARRAY_LEN(policies); i++)
        cr_assert_leq(hits[i], hits[5]); /* the oracle */
    write_trace(path, 200, false);
    json_decref(replay((const char *[]){"replay", "--trace", path, "--capacity-blocks", "50", "--json", NULL}, 0));
    vt_tmpdir_remove(&dir);
}

static void expect_error(const char *const *args, int code, const char *sentence)
{
    char *out = NULL;
    int rc = vt_proc_run("vericachectl", args, NULL, WAIT_MS, &out);
    cr_assert_eq(rc, code, "exit code %d: %s", rc, out);
    cr_assert_not_null(strstr(out, sentence), "%s", out);
    vc_free(out);
}

Test(replay, bad_traces_and_arguments_are_refused_with_one_sentence)
{
    vt_tmpdir_t dir;
    char path[300];
    vt_tmpdir_create(&dir);
    snprintf(path, sizeof(path), "%s", vt_tmpdir_path(&dir, "trace"));
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs("{\"timestamp\": 0, \"hash_ids\": [1, 2]}\n{\"timestamp\": 0, \"hash_ids\": [2]}\n", f);
    fclose(f);
    expect_error((const char *[]){"replay", NULL}, 64, "--trace");
    expect_error((const char *[]){"replay", "--trace", "/nowhere/t", NULL}, 64, "/nowhere/t");
    expect_error((const char *[]){"replay", "--trace", path, "--capacity-blocks", "9", NULL}, 64, "line 2");
    expect_error((const char *[]){"replay", "--trace", path, "--capacity-blocks", "9", "--policy", "magic", NULL}, 64,
                 "magic");
    expect_error((const char *[]){"replay", "--trace", path, "--block-bytes", "5", NULL}, 64, "block-bytes");
    write_trace(path, 3, false);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", vt_free_port());
    expect_error((const char *[]){"replay", "--trace", path, "--server", address, NULL}, 69, address);
    vt_tmpdir_remove(&dir);
}
