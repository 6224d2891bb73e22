/* The store's main path: what was committed is found, read back bit for bit, and survives a restart. */
#include "support/vc_test.h"

#include "store_fixture.h"

static void round_trip(cs_io_mode_t mode)
{
    fx_t fx;
    vc_err_t err = {0};
    cs_lookup_result_t r;
    fx_init(&fx, 6);
    cr_assert_eq(fx_open(&fx, mode, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_workers_io_mode(fx.workers), mode);
    cr_assert_eq(fx_register(&fx, 1, 0, 12, FX_BOTH), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 20, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 12);
    cr_assert_eq(r.n_blocks[1], 12);
    cr_assert_eq(r.miss[0], CS_MISS_ABSENT);
    cr_assert_eq(fx_readable(&fx, 1, 12, 0), 12);
    cr_assert_eq(fx_readable(&fx, 1, 12, 1), 12);
    uint64_t generation = cs_store_generation(fx.store), boot = cs_store_boot_id(fx.store);
    fx_close(&fx);
    cr_assert_eq(fx_open(&fx, mode, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(cs_store_generation(fx.store), generation + 1);
    cr_assert_neq(cs_store_boot_id(fx.store), boot);
    cr_assert_eq(fx_lookup(&fx, 1, 12, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 12);
    cr_assert_eq(r.miss[0], CS_MISS_NONE);
    cr_assert_eq(fx_readable(&fx, 1, 12, 0), 12);
    cr_assert_eq(fx_readable(&fx, 1, 12, 1), 12);
    fx_fini(&fx);
}

Test(store, committed_records_read_back_and_survive_a_restart_in_mode_fixed) { round_trip(CS_IO_FIXED); }
Test(store, committed_records_read_back_and_survive_a_restart_in_mode_ring) { round_trip(CS_IO_RING); }
Test(store, committed_records_read_back_and_survive_a_restart_in_mode_threads) { round_trip(CS_IO_THREADS); }

static void open_default(fx_t *fx)
{
    vc_err_t err = {0};
    fx_init(fx, 6);
    cr_assert_eq(fx_open(fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
}

Test(store, nothing_is_visible_before_the_commit_and_everything_after)
{
    fx_t fx;
    cs_upload_info_t info;
    cs_lookup_result_t r;
    uint8_t missing[FX_MAX_BLOCKS];
    open_default(&fx);
    cr_assert_eq(fx_begin(&fx, 1, 0, 5, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(info.n_missing, 5);
    cr_assert_eq(fx_put_missing(&fx, &info, 1, 0, 5, FX_FULL, missing), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 5, true, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 0);
    cr_assert_eq(r.lease_id, 0);
    cr_assert_eq(fx_read(&fx, 1, 0, 0), VC_ERR_NOT_FOUND);
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 5, 0), 5);
    cr_assert_eq(fx_commit(&fx, &info), VC_ERR_STALE); /* it is over */
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    fx_fini(&fx);
}

Test(store, a_second_registration_asks_only_for_what_is_missing)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[2 * FX_MAX_BLOCKS];
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_begin(&fx, 1, 2, 6, FX_BOTH, &info, missing), VC_OK);
    const uint8_t want[8] = {0, 0, 1, 1, 1, 1, 1, 1};
    cr_assert_arr_eq(missing, want, 8);
    cr_assert_eq(info.n_missing, 6);
    cr_assert_eq(fx_put(&fx, &info, 1, 2, 0), VC_ERR_EXISTS);
    cr_assert_eq(fx_put_missing(&fx, &info, 1, 2, 6, FX_BOTH, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 4, 0), VC_ERR_EXISTS); /* twice in one upload */
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 6, 0), 6);
    cr_assert_eq(fx_read(&fx, 1, 5, 1), VC_OK);
    cs_store_stats_t stats = fx_stats(&fx);
    cr_assert_eq(stats.full.objects, 6);
    cr_assert_eq(stats.compressed.objects, 4);
    cr_assert_eq(stats.pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store, commit_refuses_while_objects_are_missing_and_goes_through_later)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[FX_MAX_BLOCKS];
    open_default(&fx);
    cr_assert_eq(fx_begin(&fx, 1, 0, 3, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_ERR_INVALID);
    cr_assert_eq(fx_put(&fx, &info, 1, 2, 0), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 1, 0), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    fx_fini(&fx);
}

Test(store, records_that_do_not_belong_to_the_upload_are_refused)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[FX_MAX_BLOCKS];
    open_default(&fx);
    cr_assert_eq(fx_begin(&fx, 1, 1, 3, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_ERR_MISMATCH); /* before the first block */
    cr_assert_eq(fx_put(&fx, &info, 1, 3, 0), VC_ERR_MISMATCH); /* behind the last */
    cr_assert_eq(fx_put(&fx, &info, 2, 1, 0), VC_ERR_MISMATCH); /* other tokens */
    cr_assert_eq(fx_put(&fx, &info, 1, 1, 1), VC_ERR_MISMATCH); /* other fidelity */
    vc_digest_t ks_id = fx.ks_id;
    memset(&fx.ks_id, 7, sizeof(fx.ks_id));
    cr_assert_eq(fx_put(&fx, &info, 1, 1, 0), VC_ERR_MISMATCH); /* other keyspace */
    fx.ks_id = ks_id;
    cs_buf_t *buf = cs_bufpool_get(fx.pool);
    uint32_t bytes = fx_record(&fx, 1, 1, 0, buf->data, buf->cap);
    cr_assert_eq(cs_store_put(fx.store, NULL, info.upload_id, &info.token, buf, bytes - 1, fx_signal, NULL, NULL),
                 VC_ERR_RANGE);
    buf->data[bytes / 2] ^= 1;
    cr_assert_eq(cs_store_put(fx.store, NULL, info.upload_id, &info.token, buf, bytes, fx_signal, NULL, NULL),
                 VC_ERR_CORRUPT);
    cs_bufpool_put(fx.pool, buf);
    cs_token_t wrong = info.token;
    wrong.b[15] ^= 1;
    cs_upload_info_t forged = info;
    forged.token = wrong;
    cr_assert_eq(fx_put(&fx, &forged, 1, 1, 0), VC_ERR_PERM);
    cr_assert_eq(fx_commit(&fx, &forged), VC_ERR_PERM);
    cr_assert_eq(cs_store_abort(fx.store, info.upload_id, &wrong), VC_ERR_PERM);
    cr_assert_eq(fx_put(&fx, &info, 1, 1, 0), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 2, 0), VC_OK);
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    fx_fini(&fx);
}

Test(store, impossible_registrations_and_lookups_are_refused)
{
    fx_t fx;
    cs_upload_info_t info;
    cs_lookup_result_t r;
    uint8_t missing[8];
    uint32_t tokens[64] = {0};
    vc_digest_t hash = {{0}};
    open_default(&fx);
    const cs_fidelity_t same[2] = {fx.fids[0], fx.fids[0]}, unknown = {9, fx.fids[0].spec};
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 0, fx.fids, 1, &info, missing, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 2, 2, fx.fids, 1, &info, missing, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 1u << 31, fx.fids, 1, &info, missing, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 1, fx.fids, 0, &info, missing, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 1, fx.fids, 9, &info, missing, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 1, same, 2, &info, missing, NULL), VC_ERR_INVALID);
    cr_assert_eq(cs_store_begin(fx.store, &fx.ks, tokens, 0, 1, &unknown, 1, &info, missing, NULL), VC_ERR_INVALID);
    vc_keyspace_t ks = fx.ks;
    ks.shape.n_layer = 0;
    cr_assert_neq(cs_store_begin(fx.store, &ks, tokens, 0, 1, fx.fids, 1, &info, missing, NULL), VC_OK);
    ks.shape.n_layer = 1000; /* larger than a buffer */
    cr_assert_eq(cs_store_begin(fx.store, &ks, tokens, 0, 1, fx.fids, 1, &info, missing, NULL), VC_ERR_NOSPACE);
    cr_assert_eq(cs_store_lookup(fx.store, &fx.ks_id, &hash, 1, fx.fids, 9, false, &r, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_lookup(fx.store, &fx.ks_id, &hash, 1u << 20, fx.fids, 1, false, &r, NULL), VC_ERR_RANGE);
    cr_assert_eq(cs_store_lookup(fx.store, &fx.ks_id, &hash, 1, &unknown, 1, false, &r, NULL), VC_ERR_INVALID);
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    fx_fini(&fx);
}

Test(store, open_uploads_are_bounded)
{
    fx_t fx;
    cs_upload_info_t info[3];
    uint8_t missing[8];
    fx_init(&fx, 6);
    fx.opts.max_uploads = 2;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, NULL), VC_OK);
    cr_assert_eq(fx_begin(&fx, 1, 0, 2, FX_FULL, &info[0], missing), VC_OK);
    cr_assert_eq(fx_begin(&fx, 2, 0, 2, FX_FULL, &info[1], missing), VC_OK);
    cr_assert_eq(fx_begin(&fx, 3, 0, 2, FX_FULL, &info[2], missing), VC_ERR_BUSY);
    cr_assert_eq(cs_store_abort(fx.store, info[0].upload_id, &info[0].token), VC_OK);
    cr_assert_eq(cs_store_abort(fx.store, info[0].upload_id, &info[0].token), VC_ERR_STALE);
    cr_assert_eq(fx_begin(&fx, 3, 0, 2, FX_FULL, &info[2], missing), VC_OK);
    cr_assert_eq(fx_stats(&fx).uploads_open, 2);
    cr_assert_eq(fx_stats(&fx).aborts, 1);
    fx_fini(&fx);
}

Test(store, an_abandoned_upload_is_freed_at_its_deadline)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[8];
    open_default(&fx);
    cr_assert_eq(fx_begin(&fx, 1, 0, 2, FX_FULL, &info, missing), VC_OK);
    cr_assert_eq(fx_put(&fx, &info, 1, 0, 0), VC_OK);
    vc_fake_clock_advance(&fx.clock, (uint64_t)fx.opts.upload_ms * 1000 - 1);
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).uploads_open, 1);
    vc_fake_clock_advance(&fx.clock, 1);
    cr_assert_eq(fx_put(&fx, &info, 1, 1, 0), VC_ERR_STALE); /* even before the tick */
    cs_store_tick(fx.store);
    cr_assert_eq(fx_stats(&fx).uploads_open, 0);
    cr_assert_eq(fx_stats(&fx).uploads_expired, 1);
    cr_assert_eq(fx_commit(&fx, &info), VC_ERR_STALE);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK); /* nothing of it is in the way */
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    fx_fini(&fx);
}

Test(store, an_upload_that_gets_records_lives_on)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[8];
    open_default(&fx);
    cr_assert_eq(fx_begin(&fx, 1, 0, 3, FX_FULL, &info, missing), VC_OK);
    for (uint32_t block = 0; block < 3; block++) {
        cr_assert_eq(fx_put(&fx, &info, 1, block, 0), VC_OK, "block %u", block);
        vc_fake_clock_advance(&fx.clock, (uint64_t)fx.opts.upload_ms * 750);
        cs_store_tick(fx.store);
    }
    cr_assert_eq(fx_commit(&fx, &info), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 3, 0), 3);
    fx_fini(&fx);
}

/* ---- two uploads of the same objects ---- */

typedef struct racer {
    pthread_t thread;
    fx_t *fx;
    uint32_t seed, n_blocks;
    vc_status_t status;
} racer_t;

static void *race(void *arg)
{
    racer_t *r = arg;
    r->status = fx_register(r->fx, r->seed, 0, r->n_blocks, FX_BOTH);
    return NULL;
}

Test(store, two_uploads_of_the_same_objects_both_succeed_and_store_them_once)
{
    fx_t fx;
    cs_upload_info_t info[2];
    uint8_t missing[2][FX_MAX_BLOCKS];
    fx_wait_t w[2];
    open_default(&fx);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(fx_begin(&fx, 1, 0, 4, FX_FULL, &info[i], missing[i]), VC_OK);
        cr_assert_eq(info[i].n_missing, 4); /* being written by another counts as missing */
    }
    for (int i = 0; i < 2; i++)
        cr_assert_eq(fx_put_missing(&fx, &info[i], 1, 0, 4, FX_FULL, missing[i]), VC_OK);
    for (int i = 0; i < 2; i++) {
        fx_wait_init(&w[i]);
        cr_assert_eq(cs_store_commit(fx.store, info[i].upload_id, &info[i].token, fx_signal, &w[i], NULL), VC_OK);
    }
    for (int i = 0; i < 2; i++)
        cr_assert_eq(fx_wait_end(&w[i]), VC_OK);
    cr_assert_eq(fx_stats(&fx).full.objects, 4);
    cr_assert_eq(fx_stats(&fx).commits, 2);
    cr_assert_eq(fx_readable(&fx, 1, 4, 0), 4);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_stats(&fx).full.objects, 4);
    cr_assert_eq(fx_readable(&fx, 1, 4, 0), 4);
    fx_fini(&fx);
}

Test(store, concurrent_writers_of_shared_and_own_chains_all_read_back)
{
    enum { N = 8 };
    fx_t fx;
    racer_t racers[N];
    open_default(&fx);
    for (uint32_t i = 0; i < N; i++) {
        racers[i] = (racer_t){.fx = &fx, .seed = 1 + i / 2, .n_blocks = 20};
        pthread_create(&racers[i].thread, NULL, race, &racers[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(racers[i].thread, NULL);
        cr_assert_eq(racers[i].status, VC_OK);
    }
    cs_store_stats_t stats = fx_stats(&fx);
    cr_assert_eq(stats.full.objects, 80);
    cr_assert_eq(stats.compressed.objects, 80);
    cr_assert_leq(stats.commit_batches, stats.commits);
    for (uint32_t seed = 1; seed <= 4; seed++) {
        cr_assert_eq(fx_readable(&fx, seed, 20, 0), 20);
        cr_assert_eq(fx_readable(&fx, seed, 20, 1), 20);
    }
    fx_fini(&fx);
}

/* ---- what a lookup says ---- */

Test(store, hits_are_counted_by_fidelity_in_blocks_tokens_and_bytes)
{
    fx_t fx;
    cs_lookup_result_t r;
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 6, FX_FULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_COMPRESSED), VC_OK);
    uint64_t blocks[2] = {0}, bytes[2] = {0}, asked = 0;
    for (uint32_t n = 1; n <= 10; n++) {
        cr_assert_eq(fx_lookup(&fx, 1, n, true, &r), VC_OK);
        asked += n;
        for (int f = 0; f < 2; f++) {
            blocks[f] += r.n_blocks[f];
            bytes[f] += r.n_bytes[f];
        }
    }
    cr_assert_eq(fx_lookup(&fx, 99, 5, true, &r), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 6, false, &r), VC_OK); /* a probe: neither hit nor miss */
    cs_store_stats_t stats = fx_stats(&fx);
    const cs_fid_stats_t *got[2] = {&stats.full, &stats.compressed};
    for (int f = 0; f < 2; f++) {
        cr_assert_eq(got[f]->lookups, 11);
        cr_assert_eq(got[f]->lookup_hits, 10);
        cr_assert_eq(got[f]->lookup_blocks, asked + 5);
        cr_assert_eq(got[f]->lookup_tokens, (asked + 5) * FX_BLOCK_TOKENS);
        cr_assert_eq(got[f]->hit_blocks, blocks[f]);
        cr_assert_eq(got[f]->hit_tokens, blocks[f] * FX_BLOCK_TOKENS);
        cr_assert_eq(got[f]->hit_bytes, bytes[f]);
    }
    cr_assert_eq(blocks[0], 1 + 2 + 3 + 4 + 5 + 6 * 5);
    cr_assert_eq(blocks[1], 1 + 2 + 3 * 8);
    cr_assert_eq(stats.miss_absent, 4 + 7 + 2);
    fx_fini(&fx);
}

Test(store, a_hole_ends_the_hit_and_another_keyspace_never_matches)
{
    fx_t fx;
    cs_lookup_result_t r;
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 3, FX_FULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 4, 8, FX_FULL), VC_OK); /* block 3 is a hole */
    cr_assert_eq(fx_lookup(&fx, 1, 8, false, &r), VC_OK);
    cr_assert_eq(r.n_blocks[0], 3);
    vc_digest_t hashes[3], other = {{1}};
    fx_hashes(&fx, 1, 3, hashes);
    cr_assert_eq(cs_store_lookup(fx.store, &other, hashes, 3, fx.fids, 1, true, &r, NULL), VC_OK);
    cr_assert_eq(r.n_blocks[0], 0); /* right hashes under a wrong keyspace: nothing */
    cr_assert_eq(r.miss[0], CS_MISS_KEYSPACE);
    cr_assert_eq(fx_stats(&fx).miss_keyspace, 1);
    fx_fini(&fx);
}

Test(store, a_near_miss_names_the_one_field_that_differs)
{
    fx_t fx;
    open_default(&fx);
    cr_assert_null(cs_store_near_miss(fx.store, &fx.ks));
    cr_assert_eq(fx_register(&fx, 1, 0, 1, FX_FULL), VC_OK);
    cr_assert_null(cs_store_near_miss(fx.store, &fx.ks)); /* the same is no miss */
    vc_keyspace_t ks = fx.ks;
    strcpy(ks.rope, "neox theta=500000 dims=128");
    cr_assert_str_eq(cs_store_near_miss(fx.store, &ks), "rope");
    ks.model.b[0] ^= 1;
    cr_assert_null(cs_store_near_miss(fx.store, &ks)); /* two fields: another thing altogether */
    ks = fx.ks;
    ks.has_adapter = true;
    cr_assert_str_eq(cs_store_near_miss(fx.store, &ks), "adapter");
    ks = fx.ks;
    strcpy(ks.tenant_salt, "another tenant");
    cr_assert_null(cs_store_near_miss(fx.store, &ks)); /* never told about somebody else's */
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    ks = fx.ks;
    ks.shape.head_dim = 64;
    cr_assert_str_eq(cs_store_near_miss(fx.store, &ks), "head_dim");
    fx_fini(&fx);
}

Test(store, prefixes_follow_the_newest_tip_and_count_hits)
{
    fx_t fx;
    cs_lookup_result_t r;
    cs_prefix_info_t out[4];
    uint32_t n = 0;
    vc_digest_t hashes[10];
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_FULL), VC_OK);
    cr_assert_eq(fx_register(&fx, 1, 0, 4, FX_COMPRESSED), VC_OK); /* the same chain: no second prefix */
    cr_assert_eq(fx_register(&fx, 1, 4, 10, FX_FULL), VC_OK);      /* goes on where it ended */
    cr_assert_eq(fx_register(&fx, 2, 0, 2, FX_FULL), VC_OK);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(fx_lookup(&fx, 2, 5, true, &r), VC_OK);
    cr_assert_eq(fx_lookup(&fx, 1, 10, true, &r), VC_OK);
    for (int pass = 0; pass < 2; pass++) {
        cr_assert_eq(cs_store_list_prefixes(fx.store, pass == 1, 4, out, &n), VC_OK);
        cr_assert_eq(n, 2);
        const cs_prefix_info_t *longer = &out[pass == 1 ? 0 : 1], *hit = &out[pass == 1 ? 1 : 0];
        fx_hashes(&fx, 1, 10, hashes);
        cr_assert_arr_eq(&longer->tip, &hashes[9], sizeof(longer->tip));
        cr_assert_arr_eq(&longer->keyspace, &fx.ks_id, sizeof(longer->keyspace));
        cr_assert_eq(longer->n_blocks, 10);
        cr_assert_eq(longer->hits, 1);
        cr_assert_eq(hit->hits, 3);
        cr_assert_eq(hit->n_blocks, 2);
        cr_assert_eq(hit->n_head_tokens, 2 * FX_BLOCK_TOKENS);
        cr_assert_eq(hit->head_tokens[1], 2 * 1000003u + 1);
    }
    cr_assert_eq(cs_store_list_prefixes(fx.store, false, 1, out, &n), VC_OK);
    cr_assert_eq(n, 1);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(cs_store_list_prefixes(fx.store, true, 4, out, &n), VC_OK);
    cr_assert_eq(n, 2);
    cr_assert_eq(out[0].n_blocks, 10);
    cr_assert_eq(out[0].n_head_tokens, 16);
    fx_fini(&fx);
}

Test(store, parts_of_a_record_are_its_bytes)
{
    fx_t fx;
    cs_pin_t pin;
    fx_wait_t w;
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    cr_assert_eq(fx_pin(&fx, 1, 1, 0, &pin), VC_OK);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, pin.bytes);
    cs_buf_t *whole = cs_bufpool_get(fx.pool), *part = cs_bufpool_get(fx.pool);
    uint32_t bytes = fx_record(&fx, 1, 1, 0, whole->data, whole->cap);
    for (uint32_t at = 0; at < bytes; at += 4096) {
        memset(part->data, 0xee, part->cap);
        fx_wait_init(&w);
        cr_assert_eq(cs_store_read_part(fx.store, NULL, &pin, at, 4096, part, 8192, fx_signal, &w), VC_OK);
        cr_assert_eq(fx_wait_end(&w), VC_OK);
        cr_assert_arr_eq(part->data + 8192, whole->data + at, 4096);
        cr_assert_eq(part->data[8191], 0xee);
    }
    cr_assert_eq(cs_store_read_part(fx.store, NULL, &pin, 100, 4096, part, 0, fx_signal, &w), VC_ERR_RANGE);
    cr_assert_eq(cs_store_read_part(fx.store, NULL, &pin, 0, bytes + 4096, part, 0, fx_signal, &w), VC_ERR_RANGE);
    cr_assert_eq(cs_store_read_part(fx.store, NULL, &pin, 4096, bytes, part, 0, fx_signal, &w), VC_ERR_RANGE);
    cr_assert_eq(cs_store_read_part(fx.store, NULL, &pin, 0, 4096, part, (uint32_t)part->cap, fx_signal, &w),
                 VC_ERR_RANGE);
    cs_bufpool_put(fx.pool, whole);
    cs_bufpool_put(fx.pool, part);
    cs_store_unpin(fx.store, &pin);
    cr_assert_eq(fx_stats(&fx).pinned_bytes, 0);
    fx_fini(&fx);
}

Test(store, a_directory_in_use_is_refused_by_name)
{
    fx_t fx;
    cs_store_t *second = NULL;
    vc_err_t err = {0};
    open_default(&fx);
    cr_assert_eq(cs_store_open(&fx.opts, &second, &err), VC_ERR_BUSY);
    cr_assert_not_null(strstr(err.msg, fx.dir));
    fx_fini(&fx);
}

Test(store, options_that_cannot_work_are_refused_with_what_would)
{
    fx_t fx;
    vc_err_t err = {0};
    fx_init(&fx, 6);
    fx.opts.capacity_bytes = 1 << 20;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_RANGE);
    unsigned long long least = strtoull(strstr(err.msg, "works is ") + 9, NULL, 10);
    fx.opts.capacity_bytes = least - 1;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_RANGE);
    fx.opts.capacity_bytes = least;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_OK, "%s", err.msg);
    /* And it does work, for as much as one likes. */
    for (uint32_t seed = 0; seed < 40; seed++)
        cr_assert_eq(fx_register(&fx, seed, 0, 20, FX_BOTH), VC_OK);
    cr_assert_leq(fx_du(&fx), least);
    fx_close(&fx);
    fx.opts.ballast_bytes = 4096;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_RANGE);
    fx.opts.ballast_bytes = 16 << 20;
    fx.opts.max_leases = 0;
    cr_assert_eq(fx_open(&fx, CS_IO_AUTO, &err), VC_ERR_RANGE);
    fx_fini(&fx);
}

Test(store, abandoned_keyspaces_and_specs_leave_no_trace)
{
    fx_t fx;
    cs_upload_info_t info;
    uint8_t missing[4];
    open_default(&fx);
    cr_assert_eq(fx_register(&fx, 1, 0, 2, FX_FULL), VC_OK);
    vc_keyspace_t ks = fx.ks;
    uint32_t tokens[4] = {1, 2, 3, 4};
    for (uint32_t i = 0; i < 10000; i++) { /* more than there are slots */
        cs_fidelity_t fid = {VC_FIDELITY_COMPRESSED, {{0}}};
        memcpy(fid.spec.b, &i, sizeof(i));
        memcpy(ks.model.b, &i, sizeof(i));
        cr_assert_eq(cs_store_begin(fx.store, &ks, tokens, 0, 1, &fid, 1, &info, missing, NULL), VC_OK);
        cr_assert_eq(cs_store_abort(fx.store, info.upload_id, &info.token), VC_OK);
    }
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    cr_assert_eq(fx_reopen(&fx), VC_OK);
    cr_assert_eq(fx_readable(&fx, 1, 2, 0), 2);
    fx_fini(&fx);
}
