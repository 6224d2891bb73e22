/*
 * Attention sinks of RotateKV: in every layer the tokens that hold the largest magnitudes of the residual stream which
 * enters it. Magnitudes are compared as bits; of equal ones the earlier position stays.
 */
#include "compress/rotatekv_int.h"
#include "kernels/numerics.h"
#include "vc/mem.h"

typedef struct entry {
    uint32_t size; /* bits of |r| */
    uint32_t position;
} entry_t;

struct node_rkv_sinks {
    uint32_t n_layer, d_model, n_entries;
    uint32_t *n;      /* [n_layer] entries held */
    uint32_t *least;  /* [n_layer] size that a number has to exceed once all places are taken */
    entry_t *entries; /* [n_layer][n_entries], largest first, equal ones by position */
};

node_rkv_sinks_t *node_rkv_sinks_create(uint32_t n_layer, uint32_t d_model, uint32_t n_entries)
{
    node_rkv_sinks_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    *s = (node_rkv_sinks_t){.n_layer = n_layer, .d_model = d_model, .n_entries = n_entries};
    s->n = vc_calloc(n_layer, sizeof(*s->n));
    s->least = vc_calloc(n_layer, sizeof(*s->least));
    s->entries = vc_calloc((size_t)n_layer * n_entries, sizeof(*s->entries));
    if (s->n == NULL || s->least == NULL || s->entries == NULL) {
        node_rkv_sinks_free(s);
        return NULL;
    }
    return s;
}

void node_rkv_sinks_free(void *sinks)
{
    node_rkv_sinks_t *s = sinks;
    if (s == NULL)
        return;
    vc_free(s->n);
    vc_free(s->least);
    vc_free(s->entries);
    vc_free(s);
}

static void insert(node_rkv_sinks_t *s, uint32_t layer, uint32_t size, uint32_t position)
{
    entry_t *e = s->entries + (size_t)layer * s->n_entries;
    uint32_t n = s->n[layer];
    if (n == s->n_entries)
        n--; /* the last one leaves */
    uint32_t at = n;
    for (; at > 0 && e[at - 1].size < size; at--)
        e[at] = e[at - 1];
    e[at] = (entry_t){size, position};
    s->n[layer] = n + 1;
    if (n + 1 == s->n_entries)
        s->least[layer] = e[n].size;
}

/* Most rows hold nothing that large: one look over them, without a branch per number. The sign of a difference says
 * larger; the inner loop has a length that compilers make vectors of. */
static bool exceeds(const float *values, uint32_t n, uint32_t least)
{
    enum { STEP = 16 };
    uint32_t over[STEP] = {0}, any = 0, i = 0;
    for (; i + STEP <= n; i += STEP) {
        uint32_t bits[STEP];
        memcpy(bits, values + i, sizeof(bits));
        for (uint32_t k = 0; k < STEP; k++)
            over[k] |= least - (bits[k] & 0x7fffffffu);
    }
    for (uint32_t k = 0; k < STEP; k++)
        any |= over[k];
    for (; i < n; i++)
        any |= least - (node_bits_from_f32(values[i]) & 0x7fffffffu);
    return any >> 31;
}

void node_rkv_sinks_row(node_rkv_sinks_t *s, uint32_t layer, uint32_t position, const float *values)
{
    if (s->n[layer] == s->n_entries && !exceeds(values, s->d_model, s->least[layer]))
        return;
    for (uint32_t i = 0; i < s->d_model; i++) {
        const uint32_t size = node_bits_from_f32(values[i]) & 0x7fffffffu;
        if (s->n[layer] < s->n_entries || size > s->least[layer])
            insert(s, layer, size, position);
    }
}

void node_rkv_sinks_rows(const node_rkv_sinks_t *s, uint32_t layer, uint32_t first, uint32_t n_blocks, uint64_t *rows)
{
    const entry_t *e = s->entries + (size_t)layer * s->n_entries;
    for (uint32_t i = 0; i < s->n[layer]; i++) {
        const uint32_t at = e[i].position - first; /* a position before it wraps around and is left out */
        if (at / NODE_TILE < n_blocks)
            rows[at / NODE_TILE] |= 1ull << at % NODE_TILE;
    }
}
