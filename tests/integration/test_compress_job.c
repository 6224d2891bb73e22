/*
 * `vericache-node compress` as a process beside a server: copies of what is stored in full only, the same bytes that a
 * registration would have stored, killed in the middle and run again.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "node.h"
#include "support/remote_cluster.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define SPECS "snapkv:keep=0.5,window=32;kivi:bits=2;rot:bits=3;kvzip:keep=0.5,chunk=128"
static const char *const specs[] = {"snapkv:keep=0.5,window=32", "kivi:bits=2", "rot:bits=3",
                                    "kvzip:keep=0.5,chunk=128"};
enum { N_SPECS = 4, WAIT_MS = 120000, MOST_ARGS = 24 };

#define NEED_PROGRAMS()                                                               \
    do {                                                                              \
        if (!vt_proc_exists("vericache-server") || !vt_proc_exists("vericache-node")) \
            cr_skip_test("the programs are not built");                               \
    } while (0)

/* Server and files, no verify node. */
static void begin(remote_cluster_t *c)
{
    memset(c, 0, sizeof(*c));
    vt_tmpdir_create(&c->dir);
    remote_cluster_write_files(c);
    remote_cluster_start_server(c);
}

static vt_proc_t *job_start(remote_cluster_t *c, const char *compressors, const char *const *more)
{
    char model[512];
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c->dir, "model.gguf"));
    const char *args[MOST_ARGS] = {"compress",     "--model",   model,       "--server", c->server_address,
                                   "--compressor", compressors, "--threads", "1"};
    size_t n = 9;
    while (*more != NULL && n < MOST_ARGS - 1)
        args[n++] = *more++;
    return vt_proc_start("vericache-node", args, NULL);
}

static char *job_run(remote_cluster_t *c, const char *compressors, int code, const char *const *more)
{
    vt_proc_t *job = job_start(c, compressors, more);
    int rc = vt_proc_wait_exit(job, WAIT_MS);
    char *out = vt_proc_output(job);
    vt_proc_end(job);
    cr_assert_eq(rc, code, "compress exits %d: %s", rc, out);
    return out;
}

static const char *const once[] = {"--once", NULL};

/* The last line says what the pass found. */
static void job_says(remote_cluster_t *c, const char *compressors, const char *text)
{
    char *out = job_run(c, compressors, 0, once);
    cr_assert_not_null(strstr(out, text), "%s: %s", compressors, out);
    vc_free(out);
}

/* ---- what a server has ---- */

typedef struct {
    uint8_t *bytes[64];
    size_t len[64];
    uint32_t n;
} records_t;

static int keep(void *arg, uint32_t block, const void *record, size_t bytes)
{
    records_t *r = arg;
    cr_assert(block < 64 && r->bytes[block] == NULL);
    r->bytes[block] = vc_memdup(record, bytes);
    r->len[block] = bytes;
    r->n++;
    return 0;
}

/* The records of one copy of the only prefix. */
static void read_copy(remote_cluster_t *c, const char *text, records_t *r)
{
    node_opts_t o;
    node_t *node;
    node_spec_t spec;
    vc_err_t err = {0};
    uint8_t keyspace[VC_KEYSPACE_ENC_MAX];
    size_t keyspace_len;
    node_opts_default(&o);
    o.model_path = vt_tmpdir_path(&c->dir, "model.gguf");
    o.engine.n_threads = 1;
    cr_assert_eq(node_open(&o, &node, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(node_spec_parse(text, &spec, &err), VC_OK, "%s", err.msg);
    const node_model_info_t *info = node_engine_info(node->engine);
    cr_assert_eq(vc_keyspace_encode(&info->keyspace, keyspace, &keyspace_len, &err), VC_OK, "%s", err.msg);

    vcache_options_t vo;
    vcache_client_t *client;
    vcache_prefix_t prefix;
    uint32_t n = 0;
    vcache_lookup_info_t found;
    vcache_lease_t *lease;
    const vcache_fidelity_t fids[2] = {{0, "full@1", NULL}, {1, spec.text, NULL}};
    vcache_options_default(&vo);
    vo.server = c->server_address;
    vo.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&vo, &client, NULL), VC_OK);
    cr_assert_eq(vcache_prefixes(client, 0, 1, &prefix, &n, NULL), VC_OK);
    cr_assert_eq(n, 1);
    cr_assert_eq(vcache_lookup_tip(client, keyspace, keyspace_len, prefix.tip, fids, 2, &found, &lease, NULL), VC_OK);
    memset(r, 0, sizeof(*r));
    cr_assert_gt(found.n_blocks[0], 2);
    cr_assert_eq(found.n_blocks[1], found.n_blocks[0], "%s: %u of %u blocks", text, found.n_blocks[1],
                 found.n_blocks[0]);
    cr_assert_eq(vcache_fetch(lease, 1, 0, found.n_blocks[1], keep, r, NULL, NULL), VC_OK);
    vcache_lease_release(lease);
    vcache_disconnect(client);
    node_close(node);
}

static void free_copy(records_t *r)
{
    for (uint32_t b = 0; b < 64; b++)
        vc_free(r->bytes[b]);
}

Test(compress_job, makes_the_bytes_that_a_registration_stores)
{
    NEED_PROGRAMS();
    remote_cluster_t registered, later;
    begin(&registered);
    begin(&later);
    remote_cluster_register(&registered, SPECS);
    remote_cluster_register(&later, "");
    double lookups = remote_cluster_stat(&later, "lookups_full");
    job_says(&later, SPECS, "1 prefixes: 4 copies made, 0 there already, 0 without a full copy, 0 failed");
    cr_expect_eq(remote_cluster_stat(&later, "lookups_full"), lookups, "the job's reading counts as a reader's");
    for (int i = 0; i < N_SPECS; i++) {
        records_t a, b;
        read_copy(&registered, specs[i], &a);
        read_copy(&later, specs[i], &b);
        cr_assert_eq(a.n, b.n);
        for (uint32_t k = 0; k < a.n; k++)
            cr_assert(a.len[k] == b.len[k] && memcmp(a.bytes[k], b.bytes[k], a.len[k]) == 0, "%s, block %u", specs[i],
                      k);
        free_copy(&a);
        free_copy(&b);
    }
    job_says(&later, SPECS, "0 copies made, 4 there already");
    remote_cluster_stop(&registered);
    remote_cluster_stop(&later);
}

Test(compress_job, killed_in_the_middle_it_goes_on_where_it_was)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    remote_cluster_register(&c, "");
    /* Works one percent of the time: after the first copy it rests for long. */
    const char *slowly[] = {"--duty", "1", NULL};
    vt_proc_t *job = job_start(&c, SPECS, slowly);
    char line[300];
    cr_assert(vt_proc_wait_line(job, "records", WAIT_MS, line, sizeof(line)));
    cr_assert_not_null(strstr(line, specs[0]), "%s", line);
    vt_proc_signal(job, SIGKILL);
    cr_assert_eq(vt_proc_wait_exit(job, WAIT_MS), 128 + SIGKILL);
    char *before = vt_proc_output(job);
    vt_proc_end(job);
    int made = 0;
    for (const char *at = before; (at = strstr(at, "records")) != NULL; at++)
        made++;
    char text[120];
    snprintf(text, sizeof(text), "%d copies made, %d there already, 0 without a full copy, 0 failed", N_SPECS - made,
             made);
    job_says(&c, SPECS, text);
    for (int i = 0; i < N_SPECS; i++) {
        records_t r;
        read_copy(&c, specs[i], &r);
        free_copy(&r);
    }
    vc_free(before);
    remote_cluster_stop(&c);
}

Test(compress_job, goes_on_after_the_server_was_away_and_ends_on_a_signal)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    const char *often[] = {"--interval-ms", "100", "--json", NULL};
    vt_proc_end(c.server); /* the port stays */
    c.server = NULL;
    vt_proc_t *job = job_start(&c, "kivi:bits=4", often);
    cr_assert(vt_proc_wait_line(job, "pass ended early", WAIT_MS, NULL, 0));
    remote_cluster_start_server(&c);
    remote_cluster_register(&c, ""); /* comes while the job runs */
    cr_assert(vt_proc_wait_line(job, "\"compressor\":\"kivi:bits=4,group=32,residual=128\"", WAIT_MS, NULL, 0));
    vt_proc_signal(job, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(job, WAIT_MS), 0);
    vt_proc_end(job);
    remote_cluster_stop(&c);
}

/* Every pass fails then; the flag was once looked at behind good passes only. */
Test(compress_job, a_signal_ends_it_while_the_server_is_away)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    const char *often[] = {"--interval-ms", "100", NULL};
    vt_proc_end(c.server);
    c.server = NULL;
    vt_proc_t *job = job_start(&c, "kivi:bits=4", often);
    cr_assert(vt_proc_wait_line(job, "pass ended early", WAIT_MS, NULL, 0));
    vt_proc_signal(job, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(job, WAIT_MS), 0);
    vt_proc_end(job);
    remote_cluster_stop(&c);
}

Test(compress_job, says_in_one_sentence_what_is_wrong)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    static const struct {
        const char *compressor, *says;
        int code;
    } cases[] = {{"", "no compressor given", 64},
                 {"nonesuch", "unknown compressor", 64},
                 {"rot;kivi;rot:bits=4", "is given twice", 64}};
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        char *out = job_run(&c, cases[i].compressor, cases[i].code, once);
        cr_expect_not_null(strstr(out, cases[i].says), "%s", out);
        vc_free(out);
    }
    job_says(&c, "kivi", "0 prefixes: 0 copies made");
    vt_proc_end(c.server);
    c.server = NULL;
    char *out = job_run(&c, "kivi", 69, once);
    cr_expect_not_null(strstr(out, c.server_address), "%s", out);
    vc_free(out);
    remote_cluster_stop(&c);
}

static void drop_full_copy(remote_cluster_t *c)
{
    const char *drop_full[] = {"delete", NULL, "--fidelity", "full@1", "--server", c->server_address, NULL};
    const char *list[] = {"prefixes", "--json", "--server", c->server_address, NULL};
    char *out = NULL, tip[65] = "";
    cr_assert_eq(vt_proc_run("vericachectl", list, NULL, WAIT_MS, &out), 0);
    json_t *prefixes = json_loads(out, 0, NULL), *first = json_array_get(prefixes, 0);
    cr_assert_not_null(json_object_get(first, "tip"), "%s", out);
    snprintf(tip, sizeof(tip), "%s", json_string_value(json_object_get(first, "tip")));
    json_decref(prefixes);
    vc_free(out);
    drop_full[1] = tip;
    cr_assert_eq(vt_proc_run("vericachectl", drop_full, NULL, WAIT_MS, &out), 0, "%s", out);
    vc_free(out);
}

/* What an operator deletes while the job has it in hand is not stored again; when somebody registers it once more, it
 * is worked on as if new. */
Test(compress_job, a_prefix_deleted_meanwhile_is_not_brought_back_nor_given_up)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    remote_cluster_register(&c, "");
    const char *slowly[] = {"--duty", "2", "--interval-ms", "100", NULL}; /* rests for long after the first copy */
    vt_proc_t *job = job_start(&c, "kivi:bits=2;kivi:bits=4", slowly);
    cr_assert(vt_proc_wait_line(job, "records", WAIT_MS, NULL, 0));
    drop_full_copy(&c);
    char line[300];
    cr_assert(vt_proc_wait_line(job, "kivi:bits=4", WAIT_MS, line, sizeof(line)));
    cr_expect_not_null(strstr(line, "no longer there"), "%s", line);
    cr_assert(
        vt_proc_wait_line(job, "1 copies made, 0 there already, 1 without a full copy, 0 failed", WAIT_MS, NULL, 0));
    cr_expect_eq(remote_cluster_stat(&c, "objects_full"), 0, "the full copy is back");
    remote_cluster_register(&c, "");
    cr_assert(vt_proc_wait_line(job, "records", WAIT_MS, line, sizeof(line)));
    cr_expect_not_null(strstr(line, "kivi:bits=4"), "%s", line);
    vt_proc_signal(job, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(job, WAIT_MS), 0);
    vt_proc_end(job);
    remote_cluster_stop(&c);
}

/* A prefix that another model left there is nobody's business; one without a full copy cannot be compressed. */
Test(compress_job, works_on_full_copies_of_its_own_model_only)
{
    NEED_PROGRAMS();
    remote_cluster_t c;
    begin(&c);
    remote_cluster_register(&c, "kivi:bits=4");
    drop_full_copy(&c);
    job_says(&c, "rot:bits=4", "1 prefixes: 0 copies made, 0 there already, 1 without a full copy, 0 failed");
    char model[512];
    snprintf(model, sizeof(model), "%s", vt_tmpdir_path(&c.dir, "other.gguf"));
    const char *other[] = {"--once", "--model", model, NULL};
    char *out = job_run(&c, "rot:bits=4", 0, other);
    cr_expect_not_null(strstr(out, "0 prefixes"), "%s", out);
    vc_free(out);
    remote_cluster_stop(&c);
}
