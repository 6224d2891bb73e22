/*
 * Choosing rows: ranking with ties and what is not a number, budgets per head, per layer and over everything, protected
 * rows, and the payload that follows from a choice.
 */
#include <math.h>

#include "codec_fixture.h"
#include "compress/select.h"

/* ---- ranking ---- */

static uint64_t rank64(const float *scores, uint32_t n, uint32_t take)
{
    uint64_t kept[1] = {0}, keys[64];
    node_select_top(scores, n, take, kept, 0, keys);
    return kept[0];
}

Test(select, ties_go_to_the_lower_position)
{
    static const float same[6] = {1, 1, 1, 1, 1, 1}, zeros[4] = {0.0f, -0.0f, 0.0f, -0.0f};
    cr_assert_eq(rank64(same, 6, 3), 7);
    cr_assert_eq(rank64(zeros, 4, 2), 3, "minus zero ties with zero");
}

Test(select, what_is_not_a_number_ranks_last)
{
    const float scores[5] = {NAN, 0.5f, -1.0f, NAN, -INFINITY};
    cr_assert_eq(rank64(scores, 5, 1), 1u << 1);
    cr_assert_eq(rank64(scores, 5, 3), 1u << 1 | 1u << 2 | 1u << 4);
    cr_assert_eq(rank64(scores, 5, 4), 1u << 1 | 1u << 2 | 1u << 4 | 1u << 0);
}

Test(select, taking_all_or_more_takes_all)
{
    const float scores[3] = {3, 1, 2};
    cr_assert_eq(rank64(scores, 3, 3), 7);
    cr_assert_eq(rank64(scores, 3, 9), 7);
    cr_assert_eq(rank64(scores, 3, 0), 0);
}

static int by_score(const void *a, const void *b)
{
    const float *x = *(const float *const *)a, *y = *(const float *const *)b;
    return *x != *y ? (*x < *y) - (*x > *y) : (x > y) - (x < y);
}

/* Quick selection against plain sorting, with many ties, in ascending, descending and mixed order. */
Test(select, the_best_are_those_that_sorting_puts_in_front)
{
    enum { N = 777 };
    float scores[N];
    const float *order[N];
    uint64_t keys[N];
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < N; i++) {
            float u = floorf((float)golden_u(900 + round, i) * (round % 3 ? 1e6f : 20.0f));
            scores[i] = round % 5 == 3 ? (float)i : round % 5 == 4 ? -(float)i : u;
            order[i] = &scores[i];
        }
        qsort(order, N, sizeof(*order), by_score);
        const uint32_t take = round < 3 ? round : round * 13 % N, base = round % 2 ? 37 : 0;
        uint64_t kept[(N + 37) / 64 + 1] = {0};
        node_select_top(scores, N, take, kept, base, keys);
        uint32_t n = 0;
        for (size_t w = 0; w < VC_ARRAY_LEN(kept); w++)
            n += (uint32_t)__builtin_popcountll(kept[w]);
        cr_assert_eq(n, take);
        for (uint32_t i = 0; i < take; i++) {
            uint32_t bit = base + (uint32_t)(order[i] - scores);
            cr_assert(kept[bit / 64] >> bit % 64 & 1, "round %u: rank %u", round, i);
        }
    }
}

/* ---- counts ---- */

Test(select, a_share_is_the_nearest_count_and_never_nothing)
{
    cr_assert_eq(node_keep_count(0.25, 64), 16);
    cr_assert_eq(node_keep_count(0.1, 10), 1);
    cr_assert_eq(node_keep_count(1e-9, 4096), 1);
    cr_assert_eq(node_keep_count(0.29, 100), 29);
    cr_assert_eq(node_keep_count(1.0, 4096), 4096);
    cr_assert_eq(node_keep_count(0.5, 1), 1);
    cr_assert_eq(node_keep_count(0.5, 0), 0);
}

typedef struct scored {
    fx_t f;
    node_spec_t spec;
    node_selection_t *s;
    float *scores;
    uint32_t n; /* rows per head */
} scored_t;

/* Blocks [1, 1 + n_new) are new; layers have scores of different sizes, so a common ranking prefers the later ones. */
static void open_scored(scored_t *t, uint32_t n_layer, uint32_t n_kv, uint32_t n_new, uint32_t seed)
{
    memset(t, 0, sizeof(*t));
    fx_open(&t->f, fx_model(n_layer, n_kv * 2, n_kv, 16), n_new + 1, 64, seed);
    t->f.in.first_block = 1;
    t->spec = fx_spec("snapkv");
    t->s = node_selection_create(&t->spec, &t->f.in, NULL);
    cr_assert_not_null(t->s);
    t->n = n_new * NODE_TILE;
    t->scores = vc_calloc((size_t)t->s->n_heads * t->n, sizeof(float));
    for (uint32_t h = 0; h < t->s->n_heads; h++)
        for (uint32_t i = 0; i < t->n; i++)
            t->scores[(size_t)h * t->n + i] =
                (float)((1.0 + 0.2 * h) * (1.0 + golden_u(seed + 1, (uint64_t)h * t->n + i)));
}

static void close_scored(scored_t *t)
{
    node_selection_free(t->s);
    vc_free(t->scores);
    fx_close(&t->f);
}

static uint32_t count_head(const scored_t *t, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < t->s->n_new; b++)
        n += (uint32_t)__builtin_popcountll(t->s->kept[(size_t)head * t->s->n_new + b]);
    return n;
}

static bool is_kept(const scored_t *t, uint32_t head, uint32_t i)
{
    return t->s->kept[(size_t)head * t->s->n_new + i / 64] >> i % 64 & 1;
}

static void fill(scored_t *t, uint32_t n_protected, uint32_t take, node_budget_t budget)
{
    memset(t->s->kept, 0, (size_t)t->s->n_heads * t->s->n_new * sizeof(uint64_t));
    vc_err_t err = {0};
    cr_assert_eq(node_selection_fill(t->s, t->scores, n_protected, take, budget, &err), VC_OK, "%s", err.msg);
}

/* The lowest kept and the highest dropped score of a head's open rows. */
static void edges(const scored_t *t, uint32_t head, uint32_t n_protected, float *low_p, float *high_p)
{
    *low_p = INFINITY;
    *high_p = -INFINITY;
    for (uint32_t i = n_protected; i < t->n; i++) {
        float score = t->scores[(size_t)head * t->n + i];
        if (is_kept(t, head, i))
            *low_p = fminf(*low_p, score);
        else
            *high_p = fmaxf(*high_p, score);
    }
}

Test(select, every_budget_sums_to_the_same_rows_and_keeps_the_best)
{
    static const uint32_t takes[] = {1, 5, 33, 48, 100, 191, 192, 500};
    scored_t t;
    open_scored(&t, 3, 2, 3, 700);
    for (node_budget_t budget = NODE_BUDGET_HEAD; budget <= NODE_BUDGET_GLOBAL; budget++)
        for (size_t k = 0; k < VC_ARRAY_LEN(takes); k++)
            for (uint32_t n_protected = 0; n_protected <= 5; n_protected += 5) {
                fill(&t, n_protected, takes[k], budget);
                uint32_t sum = 0, want = VC_MIN(VC_MAX(takes[k], n_protected), t.n);
                float low_all = INFINITY, high_all = -INFINITY;
                for (uint32_t h = 0; h < t.s->n_heads; h++) {
                    sum += count_head(&t, h);
                    float low, high;
                    edges(&t, h, n_protected, &low, &high);
                    cr_assert(low > high, "budget %d take %u head %u", (int)budget, takes[k], h);
                    low_all = fminf(low_all, low);
                    high_all = fmaxf(high_all, high);
                    for (uint32_t i = 0; i < n_protected; i++)
                        cr_assert(is_kept(&t, h, i));
                    if (budget == NODE_BUDGET_HEAD)
                        cr_assert_eq(count_head(&t, h), want);
                }
                cr_assert_eq(sum, want * t.s->n_heads, "budget %d take %u", (int)budget, takes[k]);
                if (budget == NODE_BUDGET_GLOBAL)
                    cr_assert(low_all > high_all, "one ranking of everything");
            }
    close_scored(&t);
}

Test(select, a_layer_budget_is_the_layer_s_count_under_one_ranking_in_equal_parts)
{
    scored_t t;
    open_scored(&t, 3, 3, 2, 710);
    uint32_t ranked[3] = {0};
    fill(&t, 2, 40, NODE_BUDGET_GLOBAL);
    for (uint32_t h = 0; h < 9; h++)
        ranked[h / 3] += count_head(&t, h);
    cr_assert(ranked[0] < ranked[1] && ranked[1] < ranked[2], "later layers score higher here");
    fill(&t, 2, 40, NODE_BUDGET_LAYER);
    for (uint32_t l = 0; l < 3; l++) {
        uint32_t sum = 0;
        for (uint32_t h = 0; h < 3; h++) {
            uint32_t n = count_head(&t, l * 3 + h);
            cr_assert_eq(n, ranked[l] / 3 + (h < ranked[l] % 3), "layer %u head %u", l, h);
            sum += n;
        }
        cr_assert_eq(sum, ranked[l]);
    }
    close_scored(&t);
}

/* Protecting rows by a top score would let ties of that score push them out: they are a set of their own. */
Test(select, defect_1_protected_rows_survive_scores_that_all_tie)
{
    scored_t t;
    open_scored(&t, 2, 1, 2, 720);
    for (uint32_t i = 0; i < 2 * t.n; i++)
        t.scores[i] = INFINITY;
    for (uint32_t i = 0; i < 7; i++)
        t.scores[i] = t.scores[t.n + i] = -INFINITY;
    for (node_budget_t budget = NODE_BUDGET_HEAD; budget <= NODE_BUDGET_GLOBAL; budget++) {
        fill(&t, 7, 10, budget);
        cr_assert_eq(t.s->kept[0] & 0x7f, 0x7f);
        cr_assert_eq(t.s->kept[2] & 0x7f, 0x7f);
        cr_assert_eq(count_head(&t, 0) + count_head(&t, 1), 20);
    }
    /* ties of one ranking go to the lower layer first, then to the lower position */
    cr_assert_eq(t.s->kept[0], (1ull << 13) - 1);
    cr_assert_eq(t.s->kept[2], 0x7f);
    close_scored(&t);
}

Test(select, defect_2_a_budget_of_nothing_keeps_a_row_per_head)
{
    scored_t t;
    open_scored(&t, 1, 2, 1, 730);
    fill(&t, 0, 0, NODE_BUDGET_HEAD);
    cr_assert(count_head(&t, 0) == 1 && count_head(&t, 1) == 1);
    close_scored(&t);
}

Test(select, a_score_that_is_not_a_number_is_an_error_that_says_where)
{
    scored_t t;
    open_scored(&t, 2, 2, 1, 740);
    t.scores[3 * NODE_TILE + 5] = NAN;
    vc_err_t err = {0};
    cr_assert_eq(node_selection_fill(t.s, t.scores, 0, 8, NODE_BUDGET_HEAD, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "layer 1, head 1, position 69"), "%s", err.msg);
    close_scored(&t);
}

/* ---- payload ---- */

/* Unequal counts are bitmaps and rows, never rows of zeros that attention would see. */
Test(select, defect_16_ragged_counts_take_bytes_of_the_kept_rows_only)
{
    scored_t t;
    open_scored(&t, 2, 2, 3, 750);
    fill(&t, 0, 20, NODE_BUDGET_GLOBAL);
    t.s->kept[1] = 0; /* a head may keep nothing of a block */
    uint8_t part[2 * (8 + 64 * 16 * 4)];
    for (uint32_t b = 1; b < 4; b++)
        for (uint32_t l = 0; l < 2; l++) {
            uint32_t want = 0;
            for (uint32_t h = 0; h < 2; h++)
                want += 8 + (uint32_t)__builtin_popcountll(t.s->kept[(l * 2 + h) * 3 + b - 1]) * 16 * 4;
            cr_assert_eq(node_selection_layer_bytes(t.s, b, l), want);
            memset(part, 0xa5, sizeof(part));
            node_selection_encode(t.s, b, l, part);
            uint64_t first;
            memcpy(&first, part, sizeof(first));
            cr_assert_eq(first, t.s->kept[(l * 2) * 3 + b - 1]);
            cr_assert(want == sizeof(part) || part[want] == 0xa5, "nothing is written past the part");
            uint32_t bytes0 = 8 + (uint32_t)__builtin_popcountll(first) * 16 * 4;
            uint64_t second;
            memcpy(&second, part + bytes0, sizeof(second));
            cr_assert_eq(second, t.s->kept[(l * 2 + 1) * 3 + b - 1]);
        }
    close_scored(&t);
}

Test(select, keeping_all_keeps_every_row_of_every_head)
{
    scored_t t;
    open_scored(&t, 2, 2, 2, 760);
    node_selection_keep_all(t.s);
    for (uint32_t h = 0; h < 4; h++)
        cr_assert_eq(count_head(&t, h), 2 * NODE_TILE);
    close_scored(&t);
}
