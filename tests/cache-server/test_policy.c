/* Proves the eviction policy: who goes first, what is kept, what is remembered, and that its regions stay consistent
 * under any order of calls. */
#include "policy_int.h"

#include <stdlib.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"

#define BLOCK 1000u

static cs_policy_t *make(uint32_t blocks, uint32_t ids)
{
    cs_policy_t *p = NULL;
    cr_assert_eq(cs_policy_create((uint64_t)blocks * BLOCK, &p), VC_OK);
    cr_assert_eq(cs_policy_reserve(p, ids), VC_OK);
    return p;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void insert(cs_policy_t *p, uint32_t id, uint64_t key, uint32_t depth, bool full)
{
    cs_policy_item_t item = {.fp = mix(key + 1), .bytes = BLOCK, .block_index = depth, .is_full_copy = full};
    cs_policy_insert(p, id, &item, 0);
}

static uint32_t victim(cs_policy_t *p) { return cs_policy_victim(p, NULL, NULL, 0); }

static uint32_t evict(cs_policy_t *p)
{
    uint32_t id = victim(p);
    cs_policy_remove(p, id, true);
    return id;
}

/* Lets n one-time blocks through the cache, over ids [first, first + 8). */
static void scan(cs_policy_t *p, uint32_t first, uint32_t n, uint32_t *key)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = first + i % 8;
        cs_policy_remove(p, id, true);
        insert(p, id, (*key)++, 0, true);
    }
}

Test(policy, nothing_inside_has_no_victim)
{
    cs_policy_t *p = make(10, 10);
    cr_assert_eq(victim(p), CS_POLICY_NONE);
    cr_assert_eq(cs_policy_count(p), 0);
    cs_policy_destroy(p);
    cs_policy_destroy(NULL);
}

Test(policy, unused_items_go_oldest_first)
{
    cs_policy_t *p = make(64, 64);
    for (uint32_t i = 0; i < 64; i++)
        insert(p, i, i, 0, true);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(evict(p), i);
    cr_assert_eq(cs_policy_count(p), 32);
    cs_policy_destroy(p);
}

Test(policy, the_deepest_block_of_a_chain_goes_first)
{
    cs_policy_t *p = make(64, 64);
    for (uint32_t i = 0; i < 64; i++)
        insert(p, i, i, i, true);
    for (uint32_t i = 0; i < 64; i++)
        cs_policy_touch(p, i, 0);
    for (uint32_t i = 64; i-- > 0;)
        cr_assert_eq(evict(p), i);
    cs_policy_destroy(p);
}

/* One new block; the victims make room for it. Ids are those of the victims. */
static void store(cs_policy_t *p, uint32_t cap, uint64_t key, uint64_t *key_of)
{
    uint32_t id = cs_policy_count(p) < cap ? cs_policy_count(p) : evict(p);
    key_of[id] = key;
    insert(p, id, key, 0, true);
}

Test(policy, used_items_outlive_scans_once_scans_are_known)
{
    enum { CAP = 256, HOT = 100, ROUNDS = 60 };
    static uint64_t key_of[CAP];
    cs_policy_t *p = make(CAP, CAP);
    uint64_t key = 1000, missed = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint64_t hot = 0; hot < HOT; hot++) {
            uint32_t id = 0;
            while (id < cs_policy_count(p) && key_of[id] != hot)
                id++;
            if (id < cs_policy_count(p)) {
                cs_policy_touch(p, id, round);
            } else {
                store(p, CAP, hot, key_of);
                missed += round >= ROUNDS / 2;
            }
        }
        for (uint32_t i = 0; i < 2 * CAP; i++) /* LRU would lose every hot item in every round */
            store(p, CAP, key++, key_of);
    }
    cr_assert_leq(missed, HOT * ROUNDS / 2 / 20, "%lu", (unsigned long)missed);
    cs_policy_destroy(p);
}

Test(policy, a_new_item_has_its_time_even_among_favourites)
{
    cs_policy_t *p = make(64, 65);
    for (uint32_t i = 0; i < 64; i++)
        insert(p, i, i, 0, true);
    for (uint32_t k = 0; k < 5; k++)
        for (uint32_t i = 0; i < 64; i++)
            cs_policy_touch(p, i, 0);
    insert(p, 64, 64, 0, true);
    cr_assert_neq(evict(p), 64); /* the one just stored is not the one to go */
    cr_assert_neq(victim(p), 64);
    cs_policy_destroy(p);
}

Test(policy, full_copies_go_before_compressed_copies_of_the_same_use)
{
    cs_policy_t *p = make(64, 64);
    bool gone[64] = {false};
    for (uint32_t i = 0; i < 64; i++) /* in pairs of one time */
        insert(p, i, i, i % 2, i % 2 == 1);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t id = evict(p);
        gone[id] = true;
        cr_assert(id % 2 == 1 || gone[id + 1], "%u went before %u", id, id + 1);
    }
    cs_policy_destroy(p);
}

Test(policy, ancient_compressed_copies_go_before_fresh_full_ones)
{
    cs_policy_t *p = make(64, 128);
    for (uint32_t i = 0; i < 32; i++)
        insert(p, i, i, 0, false);
    uint32_t key = 1000, gone = 0;
    for (uint32_t round = 0; round < 64 && gone < 32; round++) {
        scan(p, 64, 1024, &key);
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t id = victim(p);
            if (id < 32) {
                cs_policy_remove(p, id, true);
                gone++;
            }
        }
    }
    cr_assert_eq(gone, 32);
    cs_policy_destroy(p);
}

Test(policy, a_ghost_comes_back_with_its_history)
{
    cs_policy_t *p = make(64, 64);
    insert(p, 0, 0, 0, true);
    for (uint32_t i = 0; i < 7; i++)
        cs_policy_touch(p, 0, 0);
    uint16_t was = cs_policy_state(p, 0, 0);
    cs_policy_remove(p, 0, true);
    insert(p, 5, 0, 0, true);
    cr_assert_geq(cs_policy_state(p, 5, 0), was);
    cs_policy_remove(p, 5, false); /* deleted: forgotten */
    insert(p, 6, 0, 0, true);
    cr_assert_lt(cs_policy_state(p, 6, 0), was);
    cs_policy_destroy(p);
}

Test(policy, an_orphan_is_first_in_line_until_used_again)
{
    cs_policy_t *p = make(64, 64);
    for (uint32_t i = 0; i < 64; i++)
        insert(p, i, i, 0, true);
    cs_policy_touch(p, 63, 0);
    cs_policy_demote(p, 63);
    cr_assert_eq(victim(p), 63);
    cr_assert_eq(cs_policy_state(p, 63, 0), 0);
    cs_policy_touch(p, 63, 0);
    cr_assert_neq(victim(p), 63);
    cs_policy_demote(p, 62); /* from the window, too */
    cr_assert_eq(victim(p), 62);
    cs_policy_destroy(p);
}

static bool is_even(void *arg, uint32_t id)
{
    ++*(uint32_t *)arg;
    return id % 2 == 0;
}

static bool is_any(void *arg, uint32_t id)
{
    (void)arg;
    (void)id;
    return true;
}

Test(policy, kept_items_are_passed_over_and_keep_their_place)
{
    cs_policy_t *p = make(64, 64);
    uint32_t calls = 0;
    for (uint32_t i = 0; i < 64; i++)
        insert(p, i, i, 0, true);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t id = cs_policy_victim(p, is_even, &calls, 0);
        cr_assert_eq(id, 2 * i + 1);
        cs_policy_remove(p, id, true);
    }
    cr_assert_eq(cs_policy_victim(p, is_even, &calls, 0), CS_POLICY_NONE);
    cr_assert_eq(cs_policy_victim(p, is_any, NULL, 0), CS_POLICY_NONE);
    cr_assert_eq(cs_policy_count(p), 32);
    for (uint32_t i = 0; i < 32; i++) {
        cs_policy_touch(p, 2 * i, 0); /* parked ones can be used, */
        cs_policy_demote(p, 2 * i);   /* demoted */
    }
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(evict(p) % 2, 0); /* and go when nobody keeps them */
    cr_assert_eq(victim(p), CS_POLICY_NONE);
    cs_policy_destroy(p);
}

static bool is_leased(void *arg, uint32_t id)
{
    const bool *leased = arg;
    return *leased && id < 10;
}

/* Looked up once and held for sixteen turnovers, then let go: no other item of its kind ever got that old. */
Test(policy, what_was_kept_for_long_goes_once_it_is_released)
{
    enum { CHAINS = 9000, RELEASED = 1000, USED_AGAIN = 2000, LIVE = 60 };
    static uint32_t ids[LIVE];
    cs_policy_t *p = make(LIVE * 10, (LIVE + 2) * 10);
    bool leased = true;
    uint64_t key = 0;
    uint32_t free_id = 0, n_free = 0, left = 10;
    for (uint32_t chain = 0; chain < CHAINS && left > 0; chain++) {
        leased = chain < RELEASED;
        for (uint32_t b = 0; b < 10; b++) {
            uint32_t id = n_free > 0 ? ids[--n_free] : free_id++;
            insert(p, id, key++, b, true);
            if (chain == 0 || chain > USED_AGAIN)
                cs_policy_touch(p, id, 0);
        }
        while (cs_policy_count(p) > LIVE * 10 && left > 0) {
            uint32_t id = cs_policy_victim(p, is_leased, &leased, 0);
            cr_assert_neq(id, CS_POLICY_NONE);
            cs_policy_remove(p, id, true);
            if (id < 10) {
                cr_assert(!leased);
                left--;
            }
            ids[n_free++] = id;
        }
    }
    cr_assert_eq(left, 0, "%u of 10 stay for ever", left);
    cs_policy_destroy(p);
}

Test(policy, many_kept_items_cost_a_few_looks_per_call)
{
    enum { N = 20000 };
    cs_policy_t *p = make(N, N);
    uint32_t calls = 0;
    for (uint32_t i = 0; i < N; i++)
        insert(p, i, i, 0, true);
    for (uint32_t i = 0; i < N / 2; i++)
        cs_policy_remove(p, cs_policy_victim(p, is_even, &calls, 0), true);
    cr_assert_leq(calls, 6 * N);
    cs_policy_destroy(p);
}

Test(policy, what_is_restored_does_not_look_like_never_used_again)
{
    enum { N = 4096 };
    cs_policy_t *p = make(2 * N, 2 * N);
    for (uint32_t i = 0; i < N; i++) {
        insert(p, i, i, 0, true);
        cs_policy_restore(p, i, 2 << 7 | 1, 0); /* used twice, just now */
    }
    for (uint32_t i = 0; i < N; i++)
        insert(p, N + i, N + i, 0, true);
    for (uint32_t i = 0; i < N; i++) /* a turnover later the one half is used, the other never is */
        cs_policy_touch(p, i, 0);
    for (uint32_t i = 0; i < N / 2; i++)
        cr_assert_geq(evict(p), N);
    cs_policy_destroy(p);
}

Test(policy, state_survives_a_restart)
{
    static const uint32_t uses[4] = {1, 3, 7, 30};
    cs_policy_t *a = make(1 << 20, 64), *b = make(1 << 20, 64); /* so large that nothing ages meanwhile */
    for (uint32_t i = 0; i < 64; i++) {
        insert(a, i, i, 0, true);
        for (uint32_t k = 1; k < uses[i % 4]; k++)
            cs_policy_touch(a, i, 0);
    }
    cs_policy_demote(a, 9);
    for (uint32_t i = 0; i < 64; i++) {
        insert(b, i, i, 0, true);
        cs_policy_restore(b, i, cs_policy_state(a, i, 0), 0);
        cr_assert_eq(cs_policy_state(b, i, 0), cs_policy_state(a, i, 0));
    }
    cr_assert_eq(evict(b), 9);
    for (uint32_t i = 0, last = 0; i < 63; i++) { /* least used first */
        uint32_t id = evict(b);
        cr_assert_geq(id % 4, last);
        last = id % 4;
    }
    cs_policy_destroy(a);
    cs_policy_destroy(b);
}

Test(policy, memory_is_24_bytes_an_id_and_the_ghosts)
{
    enum { N = 1000000 };
    cs_policy_t *none = make(1, 1), *p = make(N, N);
    size_t ghosts = 2 * (size_t)N * 8 + (1 << 18);
    cr_assert_leq(cs_policy_memory_bytes(p), 24 * (size_t)N + ghosts + 4096);
    cr_assert_leq(cs_policy_memory_bytes(none), 3 << 20);
    cs_policy_destroy(none);
    cs_policy_destroy(p);
}

Test(policy, ages_fall_into_the_bucket_that_starts_before_them)
{
    uint32_t last = 0;
    for (uint32_t ticks = 0; ticks < 3000000; ticks += 1 + ticks / 1000) {
        uint32_t b = cs_worth_age(ticks);
        cr_assert_geq(b, last);
        cr_assert_geq(ticks, cs_worth_age_start(b));
        cr_assert(b + 1 == CS_WORTH_AGES || ticks < cs_worth_age_start(b + 1), "%u in %u", ticks, b);
        last = b;
    }
    cr_assert_eq(last, CS_WORTH_AGES - 1);
    for (uint32_t b = 0; b < CS_WORTH_AGES; b++)
        cr_assert_geq(cs_worth_age(cs_worth_age_start(b)), b); /* what is due moves on */
    cr_assert_eq(cs_worth_age(UINT32_MAX), CS_WORTH_AGES - 1);
}

Test(policy, wrong_ids_do_nothing)
{
    cs_policy_t *p = make(8, 8);
    cs_policy_touch(p, 3, 0);
    cs_policy_touch(p, 1000000, 0);
    cs_policy_demote(p, CS_POLICY_NONE);
    cs_policy_remove(p, 7, true);
    cs_policy_restore(p, 7, 77, 0);
    insert(p, 1000000, 1, 0, true);
    cr_assert_eq(cs_policy_state(p, 7, 0), 0);
    cr_assert_eq(cs_policy_count(p), 0);
    insert(p, 7, 1, 0, true);
    insert(p, 7, 2, 0, true); /* inside already */
    cr_assert_eq(cs_policy_count(p), 1);
    cs_policy_destroy(p);
}

/* ---- any order of calls, against a set ---- */

typedef struct model {
    uint8_t inside[512], kept[512];
    uint32_t n, n_kept;
} model_t;

static bool model_keeps(void *arg, uint32_t id)
{
    const model_t *m = arg;
    cr_assert(id < 512 && m->inside[id], "asked about %u, which is not inside", id);
    return m->kept[id];
}

static void model_step(cs_policy_t *p, model_t *m, uint64_t r)
{
    uint32_t id = (uint32_t)(r >> 8) % 512, what = (uint32_t)(r % 100);
    if (!m->inside[id] && what < 60) {
        cs_policy_item_t item = {.fp = mix(r >> 40),
                                 .bytes = 1 + (uint32_t)(r >> 50),
                                 .block_index = (uint32_t)(r >> 20) % 9,
                                 .is_full_copy = r >> 63};
        cs_policy_insert(p, id, &item, (uint32_t)(r >> 33));
        m->inside[id] = 1;
        m->kept[id] = 0;
        m->n++;
    } else if (m->inside[id] && what < 30) {
        cs_policy_touch(p, id, (uint32_t)(r >> 33));
    } else if (m->inside[id] && what < 40) {
        m->n_kept += m->kept[id] ? -1u : 1u;
        m->kept[id] ^= 1;
    } else if (m->inside[id] && what < 45) {
        cs_policy_demote(p, id);
    } else if (m->inside[id] && what < 50) {
        cs_policy_restore(p, id, cs_policy_state(p, id, 0), 0);
    } else if (m->inside[id] && what < 60) {
        m->n_kept -= m->kept[id];
        m->inside[id] = 0;
        m->n--;
        cs_policy_remove(p, id, r >> 63);
    } else if (what >= 60) {
        uint32_t v = cs_policy_victim(p, model_keeps, m, 0);
        cr_assert_eq(v == CS_POLICY_NONE, m->n == m->n_kept, "victim %u with %u of %u kept", v, m->n_kept, m->n);
        if (v != CS_POLICY_NONE) {
            cr_assert(m->inside[v] && !m->kept[v]);
            m->inside[v] = 0;
            m->n--;
            cs_policy_remove(p, v, true);
        }
    }
}

Test(policy, any_order_of_calls_keeps_the_set)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cs_policy_t *p = NULL;
        static model_t m;
        memset(&m, 0, sizeof(m));
        cr_assert_eq(cs_policy_create(seed * 5000, &p), VC_OK);
        cr_assert_eq(cs_policy_reserve(p, 256), VC_OK);
        for (uint32_t i = 0; i < 20000; i++) {
            if (i == 300) /* grows while in use */
                cr_assert_eq(cs_policy_reserve(p, 512), VC_OK);
            uint64_t r = mix(seed * 1000003 + i);
            if (i < 300)
                r &= ~(UINT64_C(256) << 8);
            model_step(p, &m, r);
            cr_assert_eq(cs_policy_count(p), m.n);
        }
        cs_policy_destroy(p);
    }
}

Test(policy, equal_calls_give_equal_answers)
{
    uint64_t sums[2] = {0};
    for (int run = 0; run < 2; run++) {
        cs_policy_t *p = make(100, 256);
        for (uint32_t i = 0, key = 0; i < 50000; i++) {
            uint64_t r = mix(i);
            if (cs_policy_count(p) == 256)
                sums[run] = mix(sums[run] ^ evict(p));
            uint32_t id = (uint32_t)(r >> 8) % 256;
            insert(p, id, key++ % 700, (uint32_t)(r >> 20) % 5, r % 3);
            cs_policy_touch(p, (uint32_t)(r >> 30) % 256, i);
        }
        cs_policy_destroy(p);
    }
    cr_assert_eq(sums[0], sums[1]);
}
