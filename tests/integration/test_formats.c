/* Directories of every released format: opened, served with the right bytes, found clean; and `verify` as a program. */
#include <jansson.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "support/datadir.h"
#include "support/file.h"
#include "support/format_space.h"
#include "support/server_proc.h"
#include "support/vc_test.h"
#include "vc/bytes.h"

#define WAIT_MS 60000

static vt_proc_t *start(const vt_tmpdir_t *dir, char *address, size_t cap)
{
    const char *args[] = {
        "--data-dir", vt_tmpdir_path(dir, "data"), "--listen", "127.0.0.1:0", "--capacity", "64MiB", "--ballast",
        "16MiB",      "--data-listen=none",        NULL};
    return server_proc_start(args, NULL, address, cap);
}

static void stop(vt_proc_t *p)
{
    vt_proc_signal(p, SIGTERM);
    cr_assert_eq(vt_proc_wait_exit(p, WAIT_MS), 0, "%s", vt_proc_output(p));
    vt_proc_end(p);
}

/* Runs `verify` and returns its exit code; *out_p is what it printed. */
static int verify(const vt_tmpdir_t *dir, const char *extra, char **out_p)
{
    const char *args[] = {"verify", "--data-dir", vt_tmpdir_path(dir, "data"), extra, NULL};
    return vt_proc_run("vericache-server", args, NULL, WAIT_MS, out_p);
}

static void expect_clean(const vt_tmpdir_t *dir)
{
    char *out = NULL;
    int rc = verify(dir, NULL, &out);
    cr_assert_eq(rc, 0, "exit code %d: %s", rc, out);
    cr_assert_not_null(strstr(out, "no damage"), "%s", out);
    vc_free(out);
}

/* ---- what is in a directory, against the digests beside it ---- */

typedef struct digest_line {
    uint32_t keyspace, chain, fidelity, block;
    char hex[65];
    bool is_seen;
} digest_line_t;

typedef struct expected {
    digest_line_t lines[256];
    size_t n;
    uint32_t keyspace, chain, fidelity; /* of the fetch that runs */
    uint32_t right;
} expected_t;

static void load_digests(const char *name, expected_t *e)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/digests", name);
    char *text = (char *)vt_vector_read(path, NULL), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        digest_line_t *d = &e->lines[e->n++];
        cr_assert_lt(e->n, VC_ARRAY_LEN(e->lines));
        cr_assert_eq(sscanf(line, "%u %u %u %u %64s", &d->keyspace, &d->chain, &d->fidelity, &d->block, d->hex), 5);
    }
    vc_free(text);
}

/* Blocks before the fork belong to both chains; the line of the first one stands for them. */
static int on_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    expected_t *e = arg;
    uint8_t digest[32];
    char hex[65];
    crypto_generichash(digest, sizeof(digest), record, bytes, NULL, 0);
    vc_hex(digest, sizeof(digest), hex);
    for (size_t i = 0; i < e->n; i++) {
        digest_line_t *d = &e->lines[i];
        if (d->keyspace == e->keyspace && d->fidelity == e->fidelity && d->block == block &&
            d->chain == (block < FORMAT_FORK ? 0 : e->chain) && strcmp(d->hex, hex) == 0) {
            d->is_seen = true;
            e->right++;
            return 0;
        }
    }
    return 1;
}

static void fetch_chain(vcache_client_t *client, expected_t *e, uint32_t keyspace, uint32_t chain, uint32_t n)
{
    static format_chain_t c;
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t err = {0};
    format_chain_init(&c, keyspace, chain);
    vcache_status_t st =
        vcache_lookup(client, c.enc, c.enc_len, c.tokens, VC_ARRAY_LEN(c.tokens), format_fids, 2, &info, &lease, &err);
    cr_assert_eq(st, 0, "%s", err.msg);
    for (uint32_t f = 0; f < 2; f++) {
        cr_assert_eq(info.n_blocks[f], n);
        e->keyspace = keyspace;
        e->chain = chain;
        e->fidelity = f;
        e->right = 0;
        st = vcache_fetch(lease, f, 0, n, on_record, e, NULL, &err);
        cr_assert_eq(st, 0, "%s", err.msg);
        cr_assert_eq(e->right, n);
    }
    vcache_lease_release(lease);
}

static void fetch_everything(const char *address, const char *name)
{
    static expected_t e;
    vcache_options_t o;
    vcache_client_t *client = NULL;
    memset(&e, 0, sizeof(e));
    load_digests(name, &e);
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &client, NULL), 0);
    fetch_chain(client, &e, 0, 0, 12);
    fetch_chain(client, &e, 0, 1, 16);
    fetch_chain(client, &e, 1, 0, 9);
    for (size_t i = 0; i < e.n; i++)
        cr_assert(e.lines[i].is_seen, "line %zu of %s", i + 1, name);
    vcache_disconnect(client);
}

static void add_more(const char *address)
{
    static format_chain_t c;
    vcache_options_t o;
    vcache_client_t *client = NULL;
    vcache_error_t err = {0};
    format_chain_init(&c, 1, 1);
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &client, NULL), 0);
    cr_assert_eq(
        vcache_register(client, c.enc, c.enc_len, c.tokens, 0, 20, format_fids, 2, format_chain_record, &c, NULL, &err),
        0, "%s", err.msg);
    vcache_disconnect(client);
}

static const struct {
    const char *name;
    double pinned; /* objects that are pinned for good */
} released[] = {{"datadir-format1", 0}, {"datadir-format2", 6}};

static double stat_of(const char *address, const char *name)
{
    static vcache_stat_t stats[512];
    uint32_t n = 0;
    vcache_options_t o;
    vcache_client_t *client = NULL;
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &client, NULL), 0);
    cr_assert_eq(vcache_stats(client, stats, VC_ARRAY_LEN(stats), &n, NULL), 0);
    vcache_disconnect(client);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(stats[i].name, name) == 0)
            return stats[i].value;
    }
    cr_assert_fail("no %s", name);
    return 0;
}

Test(formats, a_directory_of_every_released_format_is_clean_served_and_still_clean_afterwards)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(released); i++) {
        vt_tmpdir_t dir;
        char address[128];
        vt_tmpdir_create(&dir);
        vt_datadir_unpack(&dir, released[i].name);
        expect_clean(&dir);
        vt_proc_t *p = start(&dir, address, sizeof(address));
        fetch_everything(address, released[i].name);
        cr_assert_eq(stat_of(address, "kept_objects"), released[i].pinned);
        add_more(address);
        stop(p);
        expect_clean(&dir);
        p = start(&dir, address, sizeof(address));
        fetch_everything(address, released[i].name);
        vt_proc_signal(p, SIGKILL);
        vt_proc_wait_exit(p, WAIT_MS);
        vt_proc_end(p);
        expect_clean(&dir);
        vt_tmpdir_remove(&dir);
    }
}

/* ---- the command ---- */

static void expect_finding(const vt_tmpdir_t *dir, const char *file, uint64_t at, const char *kind, const char *text)
{
    char *out = NULL;
    bool is_found = false;
    vt_flip_byte(vt_tmpdir_path(dir, file), at, 0x08);
    cr_assert_eq(verify(dir, NULL, &out), 65, "%s", out);
    cr_assert_not_null(strstr(out, kind), "%s", out);
    cr_assert_not_null(strstr(out, text), "%s", out);
    vc_free(out);
    cr_assert_eq(verify(dir, "--json", &out), 65, "%s", out);
    json_t *root = json_loads(out, 0, NULL), *one;
    cr_assert_not_null(root, "%s", out);
    size_t i;
    json_array_foreach(json_object_get(root, "findings"), i, one)
    {
        is_found = is_found || (strcmp(json_string_value(json_object_get(one, "kind")), kind) == 0 &&
                                strstr(json_string_value(json_object_get(one, "text")), text));
    }
    cr_assert(is_found, "%s", out);
    cr_assert_geq(json_integer_value(json_object_get(json_object_get(root, "counts"), kind)), 1);
    cr_assert_geq(json_integer_value(json_object_get(root, "damage")), 1);
    json_decref(root);
    vc_free(out);
    vt_flip_byte(vt_tmpdir_path(dir, file), at, 0x08);
}

Test(verify_command, names_a_flipped_byte_of_every_class_with_exit_code_65)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    vt_datadir_unpack(&dir, "datadir-format1");
    expect_clean(&dir);
    expect_finding(&dir, "data/segments/00000000.seg", 30, "segment_header", "00000000.seg");
    expect_finding(&dir, "data/segments/00000000.seg", 4096 + 150, "record", "00000000.seg at 4096");
    expect_finding(&dir, "data/segments/00000000.seg", 4096 + 5000, "record", "layer 0");
    expect_finding(&dir, "data/segments/00000001.seg", 4096 + 8190, "record", "after the last layer");
    expect_finding(&dir, "data/catalog/CURRENT", 3, "catalog_file", "CURRENT");
    expect_finding(&dir, "data/catalog/MANIFEST-000025", 940, "catalog_file", "MANIFEST-000025");
    expect_finding(&dir, "data/catalog/000024.log", 1234, "catalog_file", "000024.log");
    expect_finding(&dir, "data/catalog/000018.sst", 2000, "catalog", "000018.sst");
    expect_clean(&dir);
    vt_tmpdir_remove(&dir);
}

Test(verify_command, refusals_have_a_sentence_and_their_exit_code)
{
    vt_tmpdir_t dir;
    char address[128], *out = NULL;
    vt_tmpdir_create(&dir);
    vt_datadir_unpack(&dir, "datadir-format1");
    vt_proc_t *p = start(&dir, address, sizeof(address));
    cr_assert_eq(verify(&dir, NULL, &out), 75, "%s", out);
    cr_assert_not_null(strstr(out, "a server holds the data directory"), "%s", out);
    vc_free(out);
    stop(p);
    cr_assert_eq(verify(&dir, "--capacity=1MiB", &out), 65);
    cr_assert_not_null(strstr(out, "capacity"), "%s", out);
    vc_free(out);
    cr_assert_eq(verify(&dir, "--loudly", &out), 64);
    cr_assert_not_null(strstr(out, "loudly"), "%s", out);
    vc_free(out);
    cr_assert_eq(verify(&dir, "more", &out), 64);
    vc_free(out);
    cr_assert_eq(vt_proc_run("vericache-server", (const char *[]){"verify", NULL}, NULL, WAIT_MS, &out), 64);
    cr_assert_not_null(strstr(out, "--data-dir is required"), "%s", out);
    vc_free(out);
    cr_assert_eq(vt_proc_run("vericache-server", (const char *[]){"verify", "--help", NULL}, NULL, WAIT_MS, &out), 0);
    cr_assert_not_null(strstr(out, "changes nothing"), "%s", out);
    vc_free(out);
    cr_assert_eq(vt_proc_run("vericache-server",
                             (const char *[]){"verify", "--data-dir", vt_tmpdir_path(&dir, "none"), NULL}, NULL,
                             WAIT_MS, &out),
                 69);
    vc_free(out);
    vt_tmpdir_remove(&dir);
}
