/*
 * A catalog that is damaged or lost is made anew from the segments at the start: every committed record is there again
 * with the right bytes, nothing else is served, the cap holds, and the store goes on as if nothing had happened.
 */
#include "support/vc_test.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#include "disk_fixture.h"
#include "fault.h"
#include "keyspace_file.h"
#include "support/logcap.h"

static void open_with(fx_t *fx, uint32_t n_layer)
{
    vc_err_t err = {0};
    fx_init(fx, n_layer);
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
}

/* Ends the store as a kill would: nothing is flushed, the log keeps its rows. */
static void fill_and_end(fx_t *fx, const void *arg)
{
    uint32_t n_seeds = *(const uint32_t *)arg;
    if (fx_open(fx, CS_IO_AUTO, NULL) != VC_OK)
        _exit(1);
    for (uint32_t seed = 1; seed <= n_seeds; seed++) {
        if (fx_register(fx, seed, 0, 3, FX_BOTH) != VC_OK)
            _exit(2);
    }
    kill(getpid(), SIGKILL);
}

static bool was_killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }

static void fill_and_kill(const fx_t *parent, uint32_t n_seeds)
{
    int status = fx_in_child(parent, fill_and_end, &n_seeds);
    cr_assert(was_killed(status), "%d", status);
}

static void catalog_dir(const fx_t *fx, char path[300]) { snprintf(path, 300, "%s/catalog", fx->dir); }

/* Calls fn for each file of the catalog whose name begins so, or ends so. */
static uint32_t each_file(const fx_t *fx, const char *begin, const char *end, void (*fn)(const char *path))
{
    char dir[300], path[600];
    catalog_dir(fx, dir);
    DIR *list = opendir(dir);
    struct dirent *item;
    uint32_t n = 0;
    cr_assert_not_null(list);
    while ((item = readdir(list))) {
        size_t len = strlen(item->d_name), tail = strlen(end);
        if (item->d_name[0] == '.' || strncmp(item->d_name, begin, strlen(begin)) != 0 || len < tail ||
            strcmp(item->d_name + len - tail, end) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, item->d_name);
        fn(path);
        n++;
    }
    closedir(list);
    return n;
}

static void flip_middle(const char *path)
{
    struct stat st;
    uint8_t byte;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0);
    cr_assert_eq(fstat(fd, &st), 0);
    if (st.st_size > 0) {
        cr_assert_eq(pread(fd, &byte, 1, st.st_size / 2), 1);
        byte ^= 0x55;
        cr_assert_eq(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    }
    close(fd);
}

static void cut_short(const char *path) { cr_assert_eq(truncate(path, 7), 0); }
static void fill_with_junk(const char *path)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    for (int i = 0; i < 8000; i++)
        cr_assert_eq(write(fd, "junk junk junk\n", 15), 15);
    close(fd);
}
static void remove_file(const char *path) { cr_assert_eq(unlink(path), 0); }

static void expect_clean(const fx_t *fx)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/rebuild", fx->dir);
    cr_assert_neq(access(path, F_OK), 0);
    snprintf(path, sizeof(path), "%s/catalog.damaged-1", fx->dir);
    cr_assert_neq(access(path, F_OK), 0);
    cr_assert_leq(fx_du(fx), fx->opts.capacity_bytes);
}

/* Everything is there, leases and new registrations work, and a second start finds a sound catalog. */
static void expect_whole(fx_t *fx, uint32_t n_seeds, bool rebuilt)
{
    vc_err_t err = {0};
    cs_lookup_result_t r;
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_stats(fx).rebuilt_objects != 0, rebuilt);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t seed = 1; seed <= n_seeds; seed++) {
            cr_assert_eq(fx_readable(fx, seed, 3, 0), 3, "seed %u", seed);
            cr_assert_eq(fx_readable(fx, seed, 3, 1), 3, "seed %u", seed);
        }
        cr_assert_eq(fx_lookup(fx, 1, 3, true, &r), VC_OK);
        cr_assert_eq(r.n_blocks[0], 3);
        cr_assert_eq(fx_stats(fx).corrupt_disk, 0);
        cr_assert_eq(fx_register(fx, 900 + (uint32_t)pass, 0, 3, FX_BOTH), VC_OK);
        expect_clean(fx);
        cr_assert_eq(fx_reopen(fx), VC_OK);
        cr_assert_eq(fx_stats(fx).rebuilt_objects, 0);
        cr_assert_eq(fx_readable(fx, 900 + (uint32_t)pass, 3, 0), 3);
    }
}

static void damaged(const char *begin, const char *end, void (*fn)(const char *path), bool flushed)
{
    fx_t fx;
    fx_init(&fx, 3);
    fill_and_kill(&fx, 40);
    if (flushed) { /* rows in table files instead of the log */
        cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
        fx_close(&fx);
    }
    cr_assert_gt(each_file(&fx, begin, end, fn), 0, "no file %s*%s", begin, end);
    expect_whole(&fx, 40, true);
    fx_fini(&fx);
}

Test(store_rebuild, after_a_flip_in_the_manifest) { damaged("MANIFEST-", "", flip_middle, true); }
Test(store_rebuild, after_the_manifest_was_cut_short) { damaged("MANIFEST-", "", cut_short, true); }
Test(store_rebuild, after_the_manifest_was_lost) { damaged("MANIFEST-", "", remove_file, true); }
Test(store_rebuild, after_current_names_junk) { damaged("CURRENT", "", fill_with_junk, true); }
Test(store_rebuild, after_current_was_emptied) { damaged("CURRENT", "", cut_short, true); }
Test(store_rebuild, after_current_was_lost) { damaged("CURRENT", "", remove_file, true); }
Test(store_rebuild, after_a_flip_in_every_table) { damaged("", ".sst", flip_middle, true); }
Test(store_rebuild, after_every_table_was_cut_short) { damaged("", ".sst", cut_short, true); }
Test(store_rebuild, after_every_table_was_lost) { damaged("", ".sst", remove_file, true); }
Test(store_rebuild, after_a_flip_in_the_middle_of_the_log) { damaged("", ".log", flip_middle, false); }
Test(store_rebuild, after_the_log_became_junk) { damaged("", ".log", fill_with_junk, false); }

Test(store_rebuild, after_the_whole_catalog_was_lost)
{
    fx_t fx;
    char path[300];
    fx_init(&fx, 3);
    fill_and_kill(&fx, 40);
    catalog_dir(&fx, path);
    cr_assert_eq(nftw(path, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    expect_whole(&fx, 40, true);
    fx_fini(&fx);
}

Test(store_rebuild, a_log_that_ends_in_the_middle_of_a_record_is_what_a_kill_leaves)
{
    fx_t fx;
    char dir[300], path[600];
    fx_init(&fx, 3);
    fill_and_kill(&fx, 40);
    catalog_dir(&fx, dir);
    DIR *list = opendir(dir);
    struct dirent *item;
    while ((item = readdir(list))) {
        struct stat st;
        if (!strstr(item->d_name, ".log"))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, item->d_name);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(truncate(path, st.st_size - 5), 0);
    }
    closedir(list);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_stats(&fx).rebuilt_objects, 0);
    for (uint32_t seed = 1; seed < 40; seed++) /* the last commit lost its row, as if it had not been answered yet */
        cr_assert_eq(fx_readable(&fx, seed, 3, 0), 3);
    fx_fini(&fx);
}

Test(store_rebuild, a_start_says_what_it_made_anew)
{
    fx_t fx;
    fx_init(&fx, 3);
    fill_and_kill(&fx, 5);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    vt_logcap_start(VC_LOG_INFO);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert(vt_logcap_has("the catalog cannot be used and is made anew from the segments"), "%s", vt_logcap_text());
    cr_assert(vt_logcap_has("catalog made anew records=30 "), "%s", vt_logcap_text());
    cr_assert(vt_logcap_has("dropped_damaged=0 dropped_unknown_keyspace=0"), "%s", vt_logcap_text());
    vt_logcap_stop();
    cr_assert_eq(fx_stats(&fx).rebuilt_objects, 30);
    fx_fini(&fx);
}

Test(store_rebuild, damaged_records_are_left_out_and_those_behind_them_are_not)
{
    fx_t fx;
    cs_pin_t pin;
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_FULL), VC_OK);
    static const uint32_t blocks[] = {2, 3, 9}, at[] = {0, 100, 9000};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fx_pin(&fx, 1, blocks[i], 0, &pin), VC_OK);
        fx_flip_byte(&fx, &pin, at[i]);
        cs_store_unpin(fx.store, &pin);
    }
    fx_close(&fx);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    vt_logcap_start(VC_LOG_INFO);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert(vt_logcap_has("records=17 "), "%s", vt_logcap_text());
    cr_assert(vt_logcap_has("dropped_damaged=2 "), "%s", vt_logcap_text()); /* one does not even begin like a record */
    vt_logcap_stop();
    for (uint32_t b = 0; b < 20; b++) {
        bool was_hit = b == 2 || b == 3 || b == 9;
        cr_assert_eq(fx_read(&fx, 1, b, 0), was_hit ? VC_ERR_NOT_FOUND : VC_OK, "block %u", b);
    }
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_FULL), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    fx_fini(&fx);
}

/* Files that were used many times hold whole records of earlier lives behind the new ones. */
Test(store_rebuild, earlier_lives_of_a_segment_cost_no_byte_and_no_room)
{
    fx_t fx;
    fx_init(&fx, 30);
    fx.opts.capacity_bytes = (uint64_t)64 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    uint32_t seed = 0;
    for (; fx_stats(&fx).evictions < 30; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 20, seed % 3 ? FX_BOTH : FX_FULL), VC_OK);
    fx_close(&fx);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_gt(fx_stats(&fx).rebuilt_objects, 0);
    for (int pass = 0; pass < 2; pass++) {
        uint32_t right = 0;
        for (uint32_t k = 0; k < seed; k++) {
            for (uint32_t b = 0; b < 20; b++) {
                for (uint32_t f = 0; f < 2; f++) {
                    vc_status_t status = fx_read(&fx, k, b, f);
                    cr_assert(status == VC_OK || status == VC_ERR_NOT_FOUND, "seed %u: %s", k, vc_status_name(status));
                    right += status == VC_OK;
                }
            }
        }
        cr_assert_eq(right, fx_stats(&fx).full.objects + fx_stats(&fx).compressed.objects);
        cr_assert_eq(fx_readable(&fx, seed - 1, 20, 0), 20);
        cr_assert_eq(fx_stats(&fx).corrupt_disk, 0);
        expect_clean(&fx);
        if (pass == 0) { /* and they are evicted like all others */
            uint32_t evictions = (uint32_t)fx_stats(&fx).evictions, last = seed + 400;
            for (; fx_stats(&fx).evictions < evictions + 20 && seed < last; seed++)
                cr_assert_eq(fx_register(&fx, seed, 0, 20, FX_BOTH), VC_OK);
            cr_assert_geq(fx_stats(&fx).evictions, evictions + 20);
        }
    }
    fx_fini(&fx);
}

Test(store_rebuild, prefixes_are_there_again_with_their_words)
{
    fx_t fx;
    cs_prefix_info_t info[8];
    uint32_t n = 0, tokens[12 * FX_BLOCK_TOKENS];
    vc_digest_t hashes[12];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 5, FX_BOTH), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 12, FX_BOTH), VC_OK); /* goes on: one prefix */
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_OK);
    fx_close(&fx);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(cs_store_list_prefixes(fx.store, true, 8, info, &n), VC_OK);
    cr_assert_eq(n, 2);
    fx_tokens(1, 12, tokens);
    fx_hashes(&fx, 1, 12, hashes);
    cr_assert_eq(info[0].n_blocks, 12);
    cr_assert_arr_eq(&info[0].tip, &hashes[11], sizeof(hashes[11]));
    cr_assert_eq(info[0].n_head_tokens, VC_MIN(FX_BLOCK_TOKENS, 64u));
    cr_assert_arr_eq(info[0].head_tokens, tokens, 4 * info[0].n_head_tokens);
    cr_assert_eq(info[1].n_blocks, 2);
    cr_assert_eq(fx_register(&fx, 1, 0, 14, FX_BOTH), VC_OK); /* and it is joined as before */
    cr_assert_eq(cs_store_list_prefixes(fx.store, true, 8, info, &n), VC_OK);
    cr_assert_eq(n, 2);
    cr_assert_eq(info[0].n_blocks, 14);
    fx_fini(&fx);
}

/* A log whose first record is junk: the tables with the pins are sound, and the catalog is not opened for writing. */
static void pin_and_damage(fx_t *fx)
{
    vc_digest_t hashes[3];
    cs_chain_sum_t sum;
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(fx, 1, 0, 3, FX_FULL), VC_OK);
    fx_hashes(fx, 1, 3, hashes);
    cs_chain_ref_t ref = {.keyspace = fx->ks_id, .hashes = hashes, .n_hashes = 3};
    cr_assert_eq(cs_store_pin_prefix(fx->store, &ref, &sum, NULL), VC_OK);
    cr_assert_eq(fx_stats(fx).kept_objects, 3);
    fx_close(fx); /* flushed: the rows are in tables */
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_register(fx, 2, 0, 3, FX_FULL), VC_OK);
    fx_close(fx);
    cr_assert_gt(each_file(fx, "", ".log", fill_with_junk), 0);
}

Test(store_rebuild, what_was_pinned_stays_pinned_where_the_old_catalog_can_be_read)
{
    fx_t fx;
    fx_init(&fx, 3);
    pin_and_damage(&fx);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_gt(fx_stats(&fx).rebuilt_objects, 0);
    cr_assert_eq(fx_stats(&fx).kept_objects, 3);
    cr_assert_eq(fx_stats(&fx).kept_bytes, 3 * (1 + 3) * 4096);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    fx_fini(&fx);
}

/* ---- keyspaces ---- */

static void keyspaces_path(const fx_t *fx, char path[300]) { snprintf(path, 300, "%s/keyspaces", fx->dir); }

Test(store_rebuild, without_catalog_and_keyspace_file_nothing_is_served_and_all_is_counted)
{
    fx_t fx;
    char path[300];
    fx_init(&fx, 3);
    fill_and_kill(&fx, 4);
    keyspaces_path(&fx, path);
    cr_assert_eq(unlink(path), 0);
    catalog_dir(&fx, path);
    cr_assert_eq(nftw(path, fx_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    vt_logcap_start(VC_LOG_INFO);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert(vt_logcap_has("dropped_unknown_keyspace=24"), "%s", vt_logcap_text());
    vt_logcap_stop();
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 0);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_BOTH), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    expect_clean(&fx);
    fx_fini(&fx);
}

Test(store_rebuild, a_catalog_that_can_still_be_read_gives_the_keyspaces)
{
    fx_t fx;
    char path[300];
    fx_init(&fx, 3);
    fill_and_kill(&fx, 40);
    keyspaces_path(&fx, path);
    cr_assert_eq(unlink(path), 0);
    cr_assert_gt(each_file(&fx, "", ".log", flip_middle), 0); /* what is before the damage is read */
    expect_whole(&fx, 40, true);
    cr_assert_eq(access(path, F_OK), 0); /* written again */
    fx_fini(&fx);
}

typedef struct seen {
    uint32_t n;
    vc_digest_t ids[8];
} seen_t;

static void see_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    seen_t *seen = arg;
    (void)ks;
    seen->ids[seen->n++] = *id;
}

Test(store_rebuild, the_keyspace_file_has_what_has_objects_and_survives_its_own_damage)
{
    fx_t fx;
    seen_t seen = {0};
    uint32_t n_damaged = 9;
    char path[300];
    vc_digest_t first;
    open_with(&fx, 3);
    first = fx.ks_id;
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    for (char c = 'a'; c < 'd'; c++) {
        fx.ks.tenant_salt[0] = c;
        cr_assert_eq(vc_keyspace_id(&fx.ks, &fx.ks_id, NULL), VC_OK);
        cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    }
    cr_assert_eq(cs_keyspace_file_load(fx.dir, see_keyspace, &seen, &n_damaged, NULL), VC_OK);
    cr_assert_eq(n_damaged, 0);
    cr_assert_eq(seen.n, 4);
    cr_assert_arr_eq(&seen.ids[0], &first, sizeof(first));
    cr_assert_arr_eq(&seen.ids[3], &fx.ks_id, sizeof(first));
    keyspaces_path(&fx, path);
    flip_middle(path);
    seen.n = 0;
    cr_assert_eq(cs_keyspace_file_load(fx.dir, see_keyspace, &seen, &n_damaged, NULL), VC_OK);
    cr_assert_eq(n_damaged, 1);
    cr_assert_eq(seen.n, 3); /* the others are not lost with it */
    fx_close(&fx);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK); /* mended by the next start */
    seen.n = 0;
    cr_assert_eq(cs_keyspace_file_load(fx.dir, see_keyspace, &seen, &n_damaged, NULL), VC_OK);
    cr_assert_eq(n_damaged, 0);
    cr_assert_eq(seen.n, 4);
    fx_fini(&fx);
}

/* ---- when it cannot be done ---- */

Test(store_rebuild, on_a_full_disk_it_is_refused_with_one_sentence_and_done_when_there_is_room)
{
    fx_t fx;
    vc_err_t err = {0};
    char path[512];
    fx_init(&fx, 6);
    if (!on_small_disk(&fx, 128)) {
        fx_fini(&fx);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_BOTH), VC_OK);
    fx_close(&fx);
    snprintf(path, sizeof(path), "%s/ballast", fx.dir);
    cr_assert_eq(unlink(path), 0);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    fill_disk(fx.dir, 0);
    cr_assert_neq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK);
    cr_assert_not_null(strstr(err.msg, "read-only or full"), "%s", err.msg);
    clear_disk(fx.dir);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(fx_readable(&fx, 1, 20, 0), 20);
    cr_assert_eq(fx_readable(&fx, 1, 20, 1), 20);
    leave_disk(&fx);
}

#ifdef VC_FAULTS
static void open_armed(fx_t *fx, const void *point)
{
    cs_fault_arm(point);
    _exit(fx_open(fx, CS_IO_AUTO, NULL) == VC_OK ? 0 : 1);
}

static void killed_at(const char *point)
{
    fx_t fx;
    fx_init(&fx, 3);
    fill_and_kill(&fx, 40);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    int status = fx_in_child(&fx, open_armed, point);
    cr_assert(was_killed(status), "%s: %d", point, status);
    status = fx_in_child(&fx, open_armed, point); /* and once more: the second one finds what the first one left */
    cr_assert(was_killed(status), "%s: %d", point, status);
    expect_whole(&fx, 40, true);
    fx_fini(&fx);
}

Test(store_rebuild, killed_while_it_walks_a_segment) { killed_at("segment.read_header:1:kill"); }
Test(store_rebuild, killed_while_rows_are_written) { killed_at("rebuild.write:1:kill"); }
Test(store_rebuild, killed_before_the_new_catalog_is_flushed) { killed_at("catalog.flush:1:kill"); }

static void pin_damage_and_end(fx_t *fx, const void *arg)
{
    (void)arg;
    pin_and_damage(fx);
}

Test(store_rebuild, killed_while_catalogs_change_places_the_pins_are_in_the_new_one)
{
    fx_t fx;
    fx_init(&fx, 3);
    cr_assert_eq(fx_in_child(&fx, pin_damage_and_end, NULL), 0);
    int status = fx_in_child(&fx, open_armed, "rebuild.swap:1:kill");
    cr_assert(was_killed(status), "%d", status);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_stats(&fx).rebuilt_objects, 0); /* it was there already */
    cr_assert_eq(fx_stats(&fx).kept_objects, 3);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    expect_clean(&fx);
    fx_fini(&fx);
}

Test(store_rebuild, a_segment_that_cannot_be_opened_is_not_left_out)
{
    fx_t fx;
    vc_err_t err = {0};
    fx_init(&fx, 3);
    fill_and_kill(&fx, 10);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    cr_assert_eq(cs_fault_arm("segment.open:1:eio"), VC_OK);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_IO);
    cr_assert_not_null(strstr(err.msg, ".seg"), "%s", err.msg);
    cs_fault_arm(NULL);
    expect_whole(&fx, 10, true);
    fx_fini(&fx);
}

Test(store_rebuild, a_page_that_cannot_be_read_costs_its_record_only)
{
    fx_t fx;
    cs_pin_t pin;
    char fault[80];
    open_with(&fx, 3);
    cr_assert_eq(fx_register(&fx, 1, 0, 20, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 0, 0, &pin), VC_OK);
    cs_store_unpin(fx.store, &pin);
    fx_close(&fx);
    cr_assert_gt(each_file(&fx, "MANIFEST-", "", cut_short), 0);
    /* Segments go by their numbers; an empty one of this size is one read. */
    snprintf(fault, sizeof(fault), "record.read:%u:eio,record.read:%u:eio", pin.segment + 1, pin.segment + 2);
    cr_assert_eq(cs_fault_arm(fault), VC_OK);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cs_fault_arm(NULL);
    cr_assert_eq(fx_stats(&fx).rebuilt_objects, 19);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_read(&fx, 1, 1, 0), VC_OK);
    fx_fini(&fx);
}

Test(store_rebuild, a_keyspace_file_that_cannot_be_written_fails_no_commit)
{
    fx_t fx;
    char path[300];
    open_with(&fx, 3);
    cr_assert_eq(cs_fault_arm("keyspaces.write:1+:enospc"), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    keyspaces_path(&fx, path);
    cr_assert_neq(access(path, F_OK), 0);
    cs_fault_arm(NULL);
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_OK); /* the next commit tries again */
    cr_assert_eq(access(path, F_OK), 0);
    fx_fini(&fx);
}

Test(store_rebuild, an_io_error_of_the_catalog_is_no_reason_to_throw_it_away)
{
    fx_t fx;
    vc_err_t err = {0};
    fx_init(&fx, 3);
    fill_and_kill(&fx, 4);
    cr_assert_eq(cs_fault_arm("catalog.open:1:eio"), VC_OK);
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_IO);
    cs_fault_arm(NULL);
    expect_whole(&fx, 4, false);
    fx_fini(&fx);
}
#endif
