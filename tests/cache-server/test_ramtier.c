/* The memory tier by itself: what stays, what goes, who waits, and that no byte of one record shows up in another. */
#include <pthread.h>
#include <string.h>

#include "ramtier.h"
#include "support/vc_test.h"
#include "vc/mem.h"

enum { PAGE = 4096, POOL_BUFS = 4, BUF_PAGES = 64 };

typedef struct tier {
    cs_bufpool_t *pool;
    cs_ramtier_t *ram;
} tier_t;

static tier_t open_tier(uint32_t pages, uint32_t slab_pages)
{
    tier_t t;
    vc_err_t err = {0};
    cr_assert_eq(cs_bufpool_create(POOL_BUFS, BUF_PAGES * PAGE, &t.pool, &err), VC_OK);
    cs_ramtier_opts_t opts = {(uint64_t)pages * PAGE, (uint64_t)slab_pages * PAGE, t.pool};
    cr_assert_eq(cs_ramtier_create(&opts, &t.ram, &err), VC_OK, "%s", err.msg);
    return t;
}

static cs_ramtier_stats_t stats_of(const tier_t *t)
{
    cs_ramtier_stats_t s;
    cs_ramtier_get_stats(t->ram, &s);
    return s;
}

static void close_tier(tier_t *t)
{
    cr_assert_eq(stats_of(t).views, 0);
    cs_ramtier_destroy(t->ram);
    cs_bufpool_destroy(t->pool);
}

static cs_ram_key_t key_of(uint32_t n, uint32_t pages)
{
    cs_ram_key_t key = {.object = {.fidelity = 1}, .header_crc = n * 2654435761u, .bytes = pages * PAGE};
    uint64_t mixed = (n + 1) * 0x9e3779b97f4a7c15u;
    memcpy(key.object.hash.b, &mixed, sizeof(mixed));
    memcpy(key.object.hash.b + 8, &n, sizeof(n));
    return key;
}

/* First and last word of every page: enough to catch another record's. */
static void write_record(uint8_t *data, const cs_ram_key_t *key)
{
    for (uint32_t at = 0; at < key->bytes; at += PAGE) {
        memcpy(data + at, &key->header_crc, 4);
        memcpy(data + at + PAGE - 4, &key->header_crc, 4);
    }
}

static bool is_record(const cs_view_t *view, const cs_ram_key_t *key)
{
    bool same = view->bytes == key->bytes;
    for (uint32_t at = 0; same && at < key->bytes; at += PAGE)
        same = memcmp(view->data + at, &key->header_crc, 4) == 0 &&
               memcmp(view->data + at + PAGE - 4, &key->header_crc, 4) == 0;
    return same;
}

typedef struct got {
    uint32_t calls;
    vc_status_t status;
    cs_view_t *view;
} got_t;

static void on_got(void *arg, vc_status_t status, cs_view_t *view)
{
    got_t *g = arg;
    g->calls++;
    g->status = status;
    g->view = view;
}

/* Asks, reads what is not there, and looks at it. True: it was there. */
static bool touch_record(tier_t *t, uint32_t n, uint32_t pages)
{
    cs_ram_key_t key = key_of(n, pages);
    got_t got = {0};
    cs_view_t *view = NULL;
    cs_ram_fill_t fill;
    cs_ram_answer_t answer = cs_ramtier_get(t->ram, &key, on_got, &got, &view, &fill);
    cr_assert(answer == CS_RAM_HIT || answer == CS_RAM_FILL);
    if (answer == CS_RAM_FILL) {
        write_record(fill.data, &key);
        cs_ramtier_filled(fill.view, VC_OK);
        cr_assert_eq(got.calls, 1);
        cr_assert_eq(got.status, VC_OK);
        view = got.view;
    }
    cr_assert(is_record(view, &key));
    cs_view_release(view);
    return answer == CS_RAM_HIT;
}

static bool is_there(tier_t *t, uint32_t n, uint32_t pages)
{
    cs_ram_key_t key = key_of(n, pages);
    cs_view_t *view = cs_ramtier_peek(t->ram, &key, true);
    bool there = view && is_record(view, &key);
    cs_view_release(view);
    return there;
}

Test(ramtier, what_was_read_once_stays_and_never_takes_more_than_its_memory)
{
    tier_t t = open_tier(100, 100);
    cr_assert_not(touch_record(&t, 1, 10));
    cr_assert(touch_record(&t, 1, 10));
    cr_assert_eq(stats_of(&t).hits, 1);
    cr_assert_eq(stats_of(&t).misses, 1);
    for (uint32_t n = 2; n < 100; n++) {
        cr_assert_not(touch_record(&t, n, 1 + n % 17));
        cr_assert_leq(stats_of(&t).used_bytes, 100 * PAGE);
    }
    cr_assert_gt(stats_of(&t).evicted, 0);
    cr_assert_geq(stats_of(&t).used_bytes, 80 * PAGE); /* and not much less */
    close_tier(&t);
}

Test(ramtier, without_slabs_a_record_goes_with_its_last_view)
{
    tier_t t = open_tier(0, 0);
    cs_ram_key_t key = key_of(1, 3);
    got_t got = {0};
    cs_view_t *view = NULL;
    cs_ram_fill_t fill;
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &got, &view, &fill), CS_RAM_FILL);
    cr_assert_lt(fill.buf_index, POOL_BUFS);
    write_record(fill.data, &key);
    cs_ramtier_filled(fill.view, VC_OK);
    cr_assert(is_there(&t, 1, 3));
    cs_view_release(got.view);
    cr_assert_not(is_there(&t, 1, 3));
    cr_assert_eq(stats_of(&t).capacity_bytes, 0);
    close_tier(&t);
}

Test(ramtier, other_bytes_under_the_same_key_are_another_record)
{
    tier_t t = open_tier(100, 100);
    cs_ram_key_t key = key_of(1, 2);
    cr_assert_not(touch_record(&t, 1, 2));
    key.header_crc++;
    cr_assert_null(cs_ramtier_peek(t.ram, &key, true));
    key.header_crc--;
    key.object.fidelity = 2;
    cr_assert_null(cs_ramtier_peek(t.ram, &key, true));
    cr_assert(is_there(&t, 1, 2));
    close_tier(&t);
}

Test(ramtier, a_forgotten_record_is_read_again_and_its_viewers_keep_theirs)
{
    tier_t t = open_tier(100, 100);
    cs_ram_key_t key = key_of(1, 2);
    cr_assert_not(touch_record(&t, 1, 2));
    cs_view_t *old = cs_ramtier_peek(t.ram, &key, true);
    cs_ramtier_forget(t.ram, &key.object);
    cr_assert_not(touch_record(&t, 1, 2)); /* a second copy */
    cs_view_t *fresh = cs_ramtier_peek(t.ram, &key, true);
    cr_assert(old && fresh && old->data != fresh->data);
    cr_assert(is_record(old, &key));
    cr_assert_eq(stats_of(&t).used_bytes, 4 * PAGE);
    cs_view_release(old);
    cr_assert_eq(stats_of(&t).used_bytes, 2 * PAGE);
    cs_view_release(fresh);
    cs_ramtier_forget(t.ram, &key.object);
    cr_assert_eq(stats_of(&t).used_bytes, 0);
    close_tier(&t);
}

Test(ramtier, a_fill_that_fails_is_told_to_all_who_wait_and_the_next_one_reads)
{
    tier_t t = open_tier(100, 100);
    cs_ram_key_t key = key_of(1, 2);
    got_t a = {0}, b = {0}, c = {0};
    cs_view_t *view = NULL;
    cs_ram_fill_t fill, other;
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &a, &view, &fill), CS_RAM_FILL);
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &b, &view, &other), CS_RAM_JOINED);
    cs_ramtier_filled(fill.view, VC_ERR_CORRUPT);
    cr_assert(a.calls == 1 && a.status == VC_ERR_CORRUPT && !a.view);
    cr_assert(b.calls == 1 && b.status == VC_ERR_CORRUPT && !b.view);
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &a, &view, &fill), CS_RAM_FILL);
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &c, &view, &other), CS_RAM_JOINED);
    cs_ramtier_cancel(fill.view, VC_ERR_BUSY); /* its own caller knows already */
    cr_assert(a.calls == 1 && c.calls == 1 && c.status == VC_ERR_BUSY);
    cr_assert_eq(stats_of(&t).used_bytes, 0);
    cr_assert_eq(stats_of(&t).coalesced, 2);
    close_tier(&t);
}

Test(ramtier, a_scan_passes_through_and_the_hot_records_stay)
{
    tier_t t = open_tier(1000, 1000);
    for (uint32_t round = 0; round < 4; round++)
        for (uint32_t n = 0; n < 80; n++)
            touch_record(&t, n, 10);
    for (uint32_t n = 1000; n < 3000; n++)
        cr_assert_not(touch_record(&t, n, 10));
    uint32_t kept = 0;
    for (uint32_t n = 0; n < 80; n++)
        kept += is_there(&t, n, 10);
    cr_assert_eq(kept, 80);
    close_tier(&t);
}

Test(ramtier, a_record_that_comes_back_soon_after_it_left_survives_the_next_scan)
{
    tier_t t = open_tier(1000, 1000);
    for (uint32_t n = 0; n < 100; n++)
        touch_record(&t, n, 10);
    for (uint32_t n = 100; n < 140; n++) /* the first ones leave */
        touch_record(&t, n, 10);
    cr_assert_not(touch_record(&t, 5, 10));
    for (uint32_t n = 200; n < 290; n++)
        touch_record(&t, n, 10);
    cr_assert(is_there(&t, 5, 10));
    cr_assert_not(is_there(&t, 30, 10));
    close_tier(&t);
}

Test(ramtier, what_is_viewed_stays_and_when_all_is_viewed_buffers_serve_until_they_are_out)
{
    enum { N = 10 };
    tier_t t = open_tier(100, 100);
    cs_view_t *views[N + POOL_BUFS];
    cs_ram_fill_t fill;
    uint32_t n;
    for (n = 0; n < N + POOL_BUFS; n++) {
        cs_ram_key_t key = key_of(n, 10);
        got_t got = {0};
        cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &got, &views[n], &fill), CS_RAM_FILL);
        cr_assert(n < N ? fill.buf_index >= POOL_BUFS : fill.buf_index < POOL_BUFS);
        write_record(fill.data, &key);
        cs_ramtier_filled(fill.view, VC_OK);
        views[n] = got.view;
    }
    cs_ram_key_t more = key_of(n, 10);
    got_t got = {0};
    cs_view_t *view = NULL;
    cr_assert_eq(cs_ramtier_get(t.ram, &more, on_got, &got, &view, &fill), CS_RAM_NO_ROOM);
    cr_assert_eq(got.calls, 0);
    cs_view_release(views[3]);
    cr_assert_not(touch_record(&t, n, 10)); /* in the place of 3 */
    cr_assert_not(is_there(&t, 3, 10));
    for (n = 0; n < N + POOL_BUFS; n++) {
        cs_ram_key_t key = key_of(n, 10);
        if (n != 3) {
            cr_assert(is_record(views[n], &key));
            cs_view_release(views[n]);
        }
    }
    close_tier(&t);
}

Test(ramtier, a_large_record_finds_room_among_small_ones_without_emptying_the_tier)
{
    tier_t t = open_tier(2000, 1000);
    for (uint32_t n = 0; n < 3000; n++)
        touch_record(&t, n, 1);
    uint64_t before = stats_of(&t).evicted;
    uint32_t held[16];
    cs_view_t *views[16];
    for (uint32_t i = 0; i < 16; i++) { /* viewed ones are in the way */
        held[i] = 2990 - i * 61;
        cs_ram_key_t key = key_of(held[i], 1);
        cr_assert_not_null(views[i] = cs_ramtier_peek(t.ram, &key, true));
    }
    cr_assert_not(touch_record(&t, 90000, 48));
    cr_assert(is_there(&t, 90000, 48));
    cr_assert_leq(stats_of(&t).evicted - before, 200);
    for (uint32_t i = 0; i < 16; i++) {
        cs_ram_key_t key = key_of(held[i], 1);
        cr_assert(is_record(views[i], &key));
        cs_view_release(views[i]);
    }
    close_tier(&t);
}

Test(ramtier, sizes_of_all_kinds_keep_the_memory_in_use)
{
    tier_t t = open_tier(3000, 500);
    uint64_t state = 7;
    for (uint32_t i = 0; i < 30000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = (uint32_t)(state >> 33) % 2000, pages = n % 7 == 0 ? 60 : 1 + n % 20;
        touch_record(&t, n, pages);
        cr_assert_leq(stats_of(&t).used_bytes, 3000 * PAGE);
    }
    cr_assert_geq(stats_of(&t).used_bytes, 3000 * PAGE * 9 / 10);
    for (uint32_t i = 0; i < POOL_BUFS; i++) /* none of it went to the pool */
        cr_assert_not_null(cs_bufpool_get(t.pool));
    for (uint32_t i = 0; i < POOL_BUFS; i++)
        cs_bufpool_put(t.pool, cs_bufpool_at(t.pool, i));
    close_tier(&t);
}

/* ---- against LRU ---- */

enum { LRU_RECORDS = 100, LRU_KEYS = 100000 };

typedef struct lru {
    uint64_t used_at[LRU_KEYS]; /* 0: not there */
    uint32_t keys[LRU_RECORDS];
    uint32_t n;
    uint64_t now;
} lru_t;

static bool lru_touch(lru_t *l, uint32_t n)
{
    bool hit = l->used_at[n] != 0;
    if (!hit && l->n == LRU_RECORDS) {
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < l->n; i++)
            if (l->used_at[l->keys[i]] < l->used_at[l->keys[oldest]])
                oldest = i;
        l->used_at[l->keys[oldest]] = 0;
        l->keys[oldest] = n;
    } else if (!hit) {
        l->keys[l->n++] = n;
    }
    l->used_at[n] = ++l->now;
    return hit;
}

/* Keys 1 to 1023, each about as likely as 1 / its number: any power of two, and any number below the next one. */
static uint32_t zipf_key(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t low = 1u << (uint32_t)(*state >> 33) % 10;
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return low + (uint32_t)(*state >> 33) % low;
}

/* Skewed use, and every so often somebody reads a long chain once. */
Test(ramtier, hits_more_than_lru_under_skewed_use_with_scans)
{
    static lru_t lru;
    tier_t t = open_tier(LRU_RECORDS * 10, LRU_RECORDS * 10);
    uint64_t state = 3;
    uint32_t ours = 0, theirs = 0, scan = 50000;
    memset(&lru, 0, sizeof(lru));
    for (uint32_t i = 0; i < 40000; i++) {
        uint32_t n = i % 1000 >= 800 ? scan++ : zipf_key(&state);
        ours += touch_record(&t, n, 10);
        theirs += lru_touch(&lru, n);
    }
    cr_log_info("hits of 40000: S3-FIFO %u, LRU %u", ours, theirs);
    cr_assert_gt(ours, theirs + theirs / 20);
    close_tier(&t);
}

/* ---- reading ahead ---- */

static bool ahead(tier_t *t, uint32_t n, uint32_t pages)
{
    cs_ram_key_t key = key_of(n, pages);
    cs_ram_fill_t fill;
    if (!cs_ramtier_ahead(t->ram, &key, &fill))
        return false;
    write_record(fill.data, &key);
    cs_ramtier_filled(fill.view, VC_OK);
    return true;
}

Test(ramtier, reading_ahead_takes_no_more_than_the_share_of_probation_and_nothing_that_was_used)
{
    tier_t t = open_tier(1000, 1000);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t n = 0; n < 100; n++)
            touch_record(&t, n, 10);
    cr_assert_not(ahead(&t, 500, 10)); /* full of records that were used */
    for (uint32_t n = 100; n < 110; n++)
        touch_record(&t, n, 10);
    uint32_t n_ahead = 0;
    for (uint32_t n = 501; n < 540; n++)
        n_ahead += ahead(&t, n, 10);
    cr_assert_gt(n_ahead, 0);
    cr_assert_leq(n_ahead, 10);
    uint32_t kept = 0;
    for (uint32_t n = 0; n < 100; n++)
        kept += is_there(&t, n, 10);
    cr_assert_geq(kept, 90); /* the ten that came later took their places */
    cr_assert_eq(stats_of(&t).ahead, n_ahead);
    close_tier(&t);
}

Test(ramtier, the_first_use_of_what_was_read_ahead_is_a_first_use)
{
    tier_t t = open_tier(1000, 1000);
    cr_assert(ahead(&t, 1, 10));
    cr_assert_not(ahead(&t, 1, 10)); /* it is there */
    cr_assert(touch_record(&t, 1, 10));
    cr_assert_eq(stats_of(&t).ahead_used, 1);
    cr_assert(ahead(&t, 2, 10));
    for (uint32_t n = 100; n < 400; n++) /* neither is worth more than what a scan brings; the second waits longer */
        touch_record(&t, n, 10);
    cr_assert_not(is_there(&t, 1, 10));
    cr_assert_not(is_there(&t, 2, 10));
    cr_assert_eq(stats_of(&t).ahead_wasted, 1);
    cr_assert_eq(stats_of(&t).ahead_used, 1);
    for (uint32_t n = 600; n < 605; n++) /* its share is free again */
        cr_assert(ahead(&t, n, 10));
    close_tier(&t);
}

Test(ramtier, who_asks_for_what_is_being_read_ahead_waits_for_it)
{
    tier_t t = open_tier(1000, 1000);
    cs_ram_key_t key = key_of(1, 10);
    cs_ram_fill_t fill, other;
    cs_view_t *view = NULL;
    got_t got = {0};
    cr_assert(cs_ramtier_ahead(t.ram, &key, &fill));
    cr_assert_eq(cs_ramtier_get(t.ram, &key, on_got, &got, &view, &other), CS_RAM_JOINED);
    write_record(fill.data, &key);
    cs_ramtier_filled(fill.view, VC_OK);
    cr_assert(got.calls == 1 && got.status == VC_OK && is_record(got.view, &key));
    cs_view_release(got.view);
    cr_assert_eq(stats_of(&t).ahead_used, 1);
    cr_assert(cs_ramtier_ahead(t.ram, &(cs_ram_key_t){.object = key.object, .header_crc = 1, .bytes = PAGE}, &fill));
    cs_ramtier_filled(fill.view, VC_ERR_IO); /* nobody waits, nothing stays */
    cr_assert_eq(stats_of(&t).used_bytes, 10 * PAGE);
    close_tier(&t);
}

/* ---- life ---- */

Test(ramtier, a_tier_larger_than_the_machine_is_refused_by_name)
{
    tier_t t = open_tier(0, 0);
    cs_ramtier_t *ram = NULL;
    vc_err_t err = {0};
    cs_ramtier_opts_t opts = {(uint64_t)1 << 42, 0, t.pool};
    cr_assert_eq(cs_ramtier_create(&opts, &ram, &err), VC_ERR_NOMEM);
    cr_assert_not_null(strstr(err.msg, "--ram"));
    cr_assert_null(ram);
    opts.bytes = UINT64_MAX;
    cr_assert_eq(cs_ramtier_create(&opts, &ram, &err), VC_ERR_RANGE);
    cr_assert_not_null(strstr(err.msg, "--ram"));
    close_tier(&t);
}

/* ---- threads ---- */

typedef struct reader {
    tier_t *t;
    uint64_t state;
    uint32_t wrong, served;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    cs_view_t *view;
} reader_t;

static void reader_got(void *arg, vc_status_t status, cs_view_t *view)
{
    reader_t *r = arg;
    pthread_mutex_lock(&r->lock);
    r->is_done = true;
    r->view = status == VC_OK ? view : NULL;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void read_one(reader_t *r, uint32_t n)
{
    cs_ram_key_t key = key_of(n, 1 + n % 30);
    cs_ram_fill_t fill;
    r->is_done = false;
    r->view = NULL;
    cs_ram_answer_t answer = cs_ramtier_get(r->t->ram, &key, reader_got, r, &r->view, &fill);
    if (answer == CS_RAM_NO_ROOM)
        return;
    if (answer == CS_RAM_FILL) {
        write_record(fill.data, &key);
        cs_ramtier_filled(fill.view, n % 50 == 0 ? VC_ERR_IO : VC_OK);
    }
    if (answer != CS_RAM_HIT) {
        pthread_mutex_lock(&r->lock);
        while (!r->is_done)
            pthread_cond_wait(&r->changed, &r->lock);
        pthread_mutex_unlock(&r->lock);
    }
    r->served += r->view != NULL;
    r->wrong += r->view && !is_record(r->view, &key);
    cs_view_release(r->view);
    if (n % 97 == 0)
        cs_ramtier_forget(r->t->ram, &key.object);
    if (n % 31 == 0)
        (void)ahead(r->t, n + 1, 1 + (n + 1) % 30);
}

static void *reader_main(void *arg)
{
    reader_t *r = arg;
    for (int i = 0; i < 4000; i++) {
        r->state = r->state * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = (uint32_t)(r->state >> 33);
        read_one(r, n % 3 ? n % 40 : n % 400);
    }
    return NULL;
}

Test(ramtier, threads_that_read_forget_and_read_ahead_see_whole_records_only)
{
    enum { N = 4 };
    tier_t t = open_tier(900, 300);
    static reader_t readers[N];
    pthread_t threads[N];
    for (uint32_t i = 0; i < N; i++) {
        readers[i] = (reader_t){.t = &t, .state = i + 1};
        pthread_mutex_init(&readers[i].lock, NULL);
        pthread_cond_init(&readers[i].changed, NULL);
        cr_assert_eq(pthread_create(&threads[i], NULL, reader_main, &readers[i]), 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(readers[i].wrong, 0);
        cr_assert_gt(readers[i].served, 1000);
        pthread_cond_destroy(&readers[i].changed);
        pthread_mutex_destroy(&readers[i].lock);
    }
    cr_assert_gt(stats_of(&t).hits, 0);
    cr_assert_gt(stats_of(&t).evicted, 0);
    close_tier(&t);
}
