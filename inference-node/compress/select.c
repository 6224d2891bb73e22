/*
 * The choice of rows: ranking, budgets, and the payload that a choice implies.
 *
 * A rank key is the score's bits turned round so that ascending keys are descending scores, with the place in the low
 * half: every key is different, ties go to the lower place, and "the best n" is all keys up to the n-th smallest one,
 * which is found without sorting.
 */
#include "compress/select.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

/* ---- ranking ---- */

static uint64_t rank_key(float score, uint32_t place)
{
    uint32_t u = node_bits_from_f32(score + 0.0f); /* -0 and +0 tie */
    u = u & 0x80000000u ? u : ~(u | 0x80000000u);
    if (score != score)
        u = UINT32_MAX;
    return (uint64_t)u << 32 | place;
}

static void swap_keys(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

/* The nth smallest (from 0) of n different keys, which it reorders. Median of three, so sorted input costs no more. */
static uint64_t nth_key(uint64_t *keys, size_t n, size_t nth)
{
    size_t lo = 0, hi = n - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (keys[mid] < keys[lo])
            swap_keys(&keys[mid], &keys[lo]);
        if (keys[hi] < keys[lo])
            swap_keys(&keys[hi], &keys[lo]);
        if (keys[hi] < keys[mid])
            swap_keys(&keys[hi], &keys[mid]);
        const uint64_t pivot = keys[mid];
        size_t i = lo, j = hi;
        for (;;) {
            while (keys[i] < pivot)
                i++;
            while (keys[j] > pivot)
                j--;
            if (i >= j)
                break;
            swap_keys(&keys[i++], &keys[j--]);
        }
        /* keys are different: everything up to j is below or is the pivot, and hi, above it, is not among that */
        if (nth <= j)
            hi = j;
        else
            lo = j + 1;
    }
    return keys[nth];
}

void node_select_top(const float *scores, uint32_t n, uint32_t take, uint64_t *kept, uint32_t base, uint64_t *keys)
{
    if (n == 0 || take == 0)
        return;
    uint64_t last = UINT64_MAX;
    if (take < n) {
        for (uint32_t i = 0; i < n; i++)
            keys[i] = rank_key(scores[i], i);
        last = nth_key(keys, n, take - 1);
    }
    for (uint32_t i = 0; i < n; i++)
        if (rank_key(scores[i], i) <= last)
            kept[(base + i) / 64] |= 1ull << (base + i) % 64;
}

uint32_t node_keep_count(double keep, uint32_t n)
{
    uint32_t count = (uint32_t)VC_MIN(keep * n + 0.5, (double)n);
    return VC_MIN(VC_MAX(count, 1u), n);
}

/* ---- a selection ---- */

node_selection_t *node_selection_create(const node_spec_t *spec, const node_compress_in_t *in, vc_err_t *err)
{
    const uint32_t n_heads = in->model->n_layer * in->model->n_kv_head, n_new = in->n_blocks - in->first_block;
    node_selection_t *s = vc_calloc(1, sizeof(*s));
    size_t n_words;
    if (s && vc_size_mul(n_heads, n_new, &n_words))
        s->kept = vc_calloc(n_words, sizeof(*s->kept));
    if (s == NULL || s->kept == NULL) {
        node_selection_free(s);
        vc_err_set(err, VC_ERR_NOMEM, "no memory for the selection of %u blocks", n_new);
        return NULL;
    }
    s->spec = spec;
    s->in = in;
    s->n_heads = n_heads;
    s->n_new = n_new;
    if (node_dropper_rows_init(&s->rows, spec, in->model->head_dim, true, err) != VC_OK) {
        node_selection_free(s);
        return NULL;
    }
    return s;
}

void node_selection_free(void *plan)
{
    node_selection_t *s = plan;
    if (s == NULL)
        return;
    vc_free(s->kept);
    vc_free(s);
}

void node_selection_keep_all(node_selection_t *s)
{
    memset(s->kept, 0xff, (size_t)s->n_heads * s->n_new * sizeof(*s->kept));
}

static vc_status_t check_scores(const node_selection_t *s, const float *scores, vc_err_t *err)
{
    const size_t n = (size_t)s->n_new * NODE_TILE;
    for (size_t i = 0; i < s->n_heads * n; i++)
        if (scores[i] != scores[i]) {
            const uint32_t head = (uint32_t)(i / n), n_kv = s->in->model->n_kv_head;
            return vc_err_set(err, VC_ERR_INVALID, "%s: the score of layer %u, head %u, position %zu is not a number",
                              s->spec->ops->name, head / n_kv, head % n_kv,
                              (size_t)s->in->first_block * NODE_TILE + i % n);
        }
    return VC_OK;
}

/* Every head keeps its protected rows and the best take[head] of the others. */
static void fill_heads(node_selection_t *s, const float *scores, uint32_t n_protected, const uint32_t *take,
                       uint64_t *keys)
{
    const uint32_t n = s->n_new * NODE_TILE;
    for (uint32_t h = 0; h < s->n_heads; h++) {
        uint64_t *kept = s->kept + (size_t)h * s->n_new;
        for (uint32_t i = 0; i < n_protected; i++)
            kept[i / 64] |= 1ull << i % 64;
        node_select_top(scores + (size_t)h * n + n_protected, n - n_protected, take[h], kept, n_protected, keys);
    }
}

/* How many rows of each head are among the best `total` of all heads. keys: room for every row of every head. */
static void count_ranked(const node_selection_t *s, const float *scores, uint32_t n_protected, size_t total,
                         uint32_t *take, uint64_t *keys)
{
    const uint32_t n = s->n_new * NODE_TILE;
    size_t n_keys = 0;
    for (uint32_t h = 0; h < s->n_heads; h++)
        for (uint32_t i = n_protected; i < n; i++, n_keys++)
            keys[n_keys] = rank_key(scores[(size_t)h * n + i], h * n + i);
    memset(take, 0, s->n_heads * sizeof(*take));
    if (total == 0)
        return;
    if (total < n_keys)
        nth_key(keys, n_keys, total - 1); /* the best are in front then */
    for (size_t i = 0; i < VC_MIN(total, n_keys); i++)
        take[(uint32_t)keys[i] / n]++;
}

/* A layer's heads share its count equally; what is left over goes to the first heads, one row each. */
static void even_layers(const node_selection_t *s, uint32_t *take)
{
    const uint32_t n_kv = s->in->model->n_kv_head;
    for (uint32_t l = 0; l < s->n_heads; l += n_kv) {
        uint32_t sum = 0;
        for (uint32_t h = 0; h < n_kv; h++)
            sum += take[l + h];
        for (uint32_t h = 0; h < n_kv; h++)
            take[l + h] = sum / n_kv + (h < sum % n_kv);
    }
}

vc_status_t node_selection_fill(node_selection_t *s, const float *scores, uint32_t n_protected, uint32_t take,
                                node_budget_t budget, vc_err_t *err)
{
    const uint32_t n = s->n_new * NODE_TILE;
    n_protected = VC_MIN(n_protected, n);
    take = VC_MIN(VC_MAX(take, VC_MAX(n_protected, 1u)), n) - n_protected;
    vc_status_t st = check_scores(s, scores, err);
    if (st != VC_OK)
        return st;
    size_t all;
    if (!vc_size_mul(s->n_heads, n, &all) || all > UINT32_MAX)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%u rows of %u heads are too many to rank", n, s->n_heads);
    uint32_t *takes = vc_calloc(s->n_heads, sizeof(*takes));
    uint64_t *keys = vc_calloc(budget == NODE_BUDGET_HEAD ? n : all, sizeof(*keys));
    if (takes == NULL || keys == NULL) {
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to rank %u rows of %u heads", n, s->n_heads);
    } else {
        if (budget == NODE_BUDGET_HEAD)
            for (uint32_t h = 0; h < s->n_heads; h++)
                takes[h] = take;
        else
            count_ranked(s, scores, n_protected, (size_t)take * s->n_heads, takes, keys);
        if (budget == NODE_BUDGET_LAYER)
            even_layers(s, takes);
        fill_heads(s, scores, n_protected, takes, keys);
    }
    vc_free(takes);
    vc_free(keys);
    return st;
}

/* ---- slots of node_codec_ops_t ---- */

static uint64_t kept_of(const node_selection_t *s, uint32_t block, uint32_t layer, uint32_t head)
{
    size_t index = (size_t)layer * s->in->model->n_kv_head + head;
    return s->kept[index * s->n_new + (block - s->in->first_block)];
}

uint32_t node_selection_layer_bytes(const void *plan, uint32_t block, uint32_t layer)
{
    const node_selection_t *s = plan;
    const node_model_info_t *m = s->in->model;
    uint32_t bytes = 0;
    for (uint32_t h = 0; h < m->n_kv_head; h++)
        bytes += node_dropper_rows_bytes(&s->rows, (uint32_t)__builtin_popcountll(kept_of(s, block, layer, h)));
    return bytes;
}

void node_selection_encode(const void *plan, uint32_t block, uint32_t layer, void *part)
{
    const node_selection_t *s = plan;
    const node_model_info_t *m = s->in->model;
    node_page_t *page = node_kv_page_at(s->in->kv, block);
    uint8_t *at = part;
    for (uint32_t h = 0; h < m->n_kv_head; h++)
        at = node_dropper_rows_encode(&s->rows, at, page, layer, h, kept_of(s, block, layer, h));
}
