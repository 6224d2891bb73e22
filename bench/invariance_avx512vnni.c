/*
 * What one would write for AVX-512 VNNI if a row's bits might depend on how it is computed. It shares unpacking,
 * integer dot products, layouts and blocking with our kernels, which leave no trace in the bits, and differs where the
 * contract says how floats are combined: linear     even and odd groups, scales and minima have accumulators of their
 * own while there are few rows attention  one softmax state over all tiles (no splits, nothing to fold), sums of
 * probabilities stay vectors until the end, earlier outputs are rescaled only when a maximum moved, one or two queries
 * have two chains per sum
 */
#define DOT_VNNI
#include "kernels/int_avx512.h"

#include "invariance_parts.h"

#define INLINE static inline __attribute__((always_inline))

static inline void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y)
{
    (void)w;
    v16_store(out + (size_t)panel * NODE_PANEL, y);
}
#define LINEAR_PARTS_ONLY
#include "kernels/linear_avx512.h"

/* ---- linear ---- */

INLINE void free_rows(const node_matrix_t *w, uint32_t panel, const uint8_t *ahead, const node_acts_t *a, uint32_t row,
                      float *out, size_t out_stride, const int nr)
{
    enum { SPLIT = 2 };
    const int chains = nr <= 2 ? SPLIT : 1;
    v16 acc[LINEAR_ROWS][LINEAR_PANELS], more[2][LINEAR_PANELS][3];
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < 2; p++) {
            acc[r][p] = _mm512_setzero_ps();
            for (int i = 0; i < 3 && chains > 1; i++)
                more[r][p][i] = _mm512_setzero_ps();
        }
    const uint8_t *group = w->data + panel * w->panel_bytes;
    const int16_t *q = a->q + row * a->stride;
    const size_t at = row * a->group_stride;
    for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g += (uint32_t)chains)
        UNROLL
    for (int half = 0; half < chains; half++, group += w->group_bytes) {
        __m512i s[LINEAR_ROWS][LINEAR_PANELS];
        const uint32_t here = g + (uint32_t)half;
        for (size_t i = 0; i < 2 * w->group_bytes && ahead != NULL; i += 64, ahead += 64)
            __builtin_prefetch(ahead, 0, nr < LINEAR_ROWS ? 0 : 2);
        for (int r = 0; r < nr; r++)
            for (int p = 0; p < 2; p++)
                s[r][p] = _mm512_setzero_si512();
        dot_group(s, group, w->panel_bytes, q + (size_t)here * NODE_GROUP, a->stride, nr, 2, NODE_W_Q4_1);
        for (int p = 0; p < 2; p++) {
            const uint16_t *d = (const uint16_t *)(const void *)(group + (size_t)p * w->panel_bytes + 256);
            const v16 scale = v16_load_f16(d), min = v16_load_f16(d + 16);
            UNROLL
            for (int r = 0; r < nr; r++) {
                const size_t i = at + (size_t)r * a->group_stride + here;
                v16 t = _mm512_mul_ps(_mm512_cvtepi32_ps(s[r][p]), _mm512_set1_ps(a->scale[i]));
                v16 *sum = chains > 1 && half == 1 ? &more[r][p][0] : &acc[r][p];
                *sum = _mm512_fmadd_ps(scale, t, *sum);
                v16 *low = chains > 1 ? &more[r][p][1 + half] : &acc[r][p];
                *low = _mm512_fmadd_ps(min, _mm512_set1_ps(a->sum[i]), *low);
            }
        }
    }
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < 2; p++) {
            v16 y = acc[r][p];
            if (chains > 1)
                y = _mm512_add_ps(_mm512_add_ps(y, more[r][p][0]), _mm512_add_ps(more[r][p][1], more[r][p][2]));
            store_outputs(w, panel + (uint32_t)p, out + (size_t)r * out_stride, y);
        }
}

void invariance_linear_free(const node_matrix_t *w, const uint8_t *ahead, const node_acts_t *a, uint32_t n_rows,
                            float *out, size_t out_stride)
{
    for (uint32_t first = 0; first < w->n_panels; first += 4) {
        const uint32_t end = first + 4 < w->n_panels ? first + 4 : w->n_panels;
        for (uint32_t r = 0; r < n_rows;)
            for (uint32_t left = n_rows - r, nr = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1, p = first;;) {
                const uint8_t *next = r == 0 && ahead != NULL ? ahead + p * w->panel_bytes : NULL;
                float *to = out + (size_t)r * out_stride;
                switch (nr) {
                case 8: free_rows(w, p, next, a, r, to, out_stride, 8); break;
                case 4: free_rows(w, p, next, a, r, to, out_stride, 4); break;
                case 2: free_rows(w, p, next, a, r, to, out_stride, 2); break;
                default: free_rows(w, p, next, a, r, to, out_stride, 1);
                }
                p += 2;
                if (p >= end) {
                    r += nr;
                    break;
                }
            }
    }
}

/* ---- attention ---- */

enum { MAX_NQ = 12, MAX_NS = 4 };

/* acc[q][s] += sum over r of mat[r][16 s ...] * coef[q][r]; two chains where there are too few to hide their waits. */
INLINE void free_chains(v16 acc[MAX_NQ][MAX_NS], const uint16_t *mat, const uint16_t *ahead, size_t mat_stride,
                        const float *coef, size_t coef_stride, uint32_t n, const int nq, const int ns)
{
    v16 odd[2][MAX_NS];
    const bool two = nq * ns < 8;
    for (int q = 0; q < nq && two; q++)
        for (int s = 0; s < ns; s++)
            odd[q][s] = v16_set1(0.0f);
    for (uint32_t r = 0; r < n; r += two ? 2 : 1)
        for (int half = 0; half < (two ? 2 : 1); half++) {
            v16 w[MAX_NS];
            const uint32_t at = r + (uint32_t)half;
            if (ahead != NULL)
                for (int s = 0; s < ns; s += 2)
                    __builtin_prefetch(ahead + at * mat_stride + (size_t)s * 16, 0, 0);
            for (int s = 0; s < ns; s++)
                w[s] = v16_load_f16(mat + at * mat_stride + (size_t)s * 16);
            for (int q = 0; q < nq; q++) {
                v16 c = v16_set1(coef[(size_t)q * coef_stride + at]);
                for (int s = 0; s < ns; s++)
                    if (two && half == 1)
                        odd[q][s] = v16_fma(w[s], c, odd[q][s]);
                    else
                        acc[q][s] = v16_fma(w[s], c, acc[q][s]);
            }
        }
    for (int q = 0; q < nq && two; q++)
        for (int s = 0; s < ns; s++)
            acc[q][s] = v16_add(acc[q][s], odd[q][s]);
}

INLINE void free_scores(const invariance_attn_t *a, uint32_t q0, const uint16_t *k, const uint16_t *ahead, const int nq,
                        const int ns)
{
    enum { DIM = 64 };
    for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 16 * (uint32_t)ns) {
        v16 acc[MAX_NQ][MAX_NS];
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++)
                acc[q][s] = v16_set1(0.0f);
        free_chains(acc, k + t, ahead != NULL ? ahead + t : NULL, NODE_ATTN_TILE, a->q + (size_t)q0 * DIM, DIM, DIM, nq,
                    ns);
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++)
                v16_store(a->p + (q0 + (size_t)q) * NODE_ATTN_TILE + t + (size_t)s * 16, acc[q][s]);
    }
}

/* l: a vector per query. Returns whether any factor is not 1. */
static __attribute__((noinline)) bool free_softmax(float *rows, float *m, v16 *l, float *factor, int nq)
{
    v16 x[MAX_NQ];
    for (int q = 0; q < nq; q++) {
        const float *p = rows + (size_t)q * NODE_ATTN_TILE;
        x[q] = v16_max(v16_max(v16_load(p), v16_load(p + 16)), v16_max(v16_load(p + 32), v16_load(p + 48)));
    }
    const v16 before = v16_load_n(m, (uint32_t)nq), top = v16_max(before, v16_hmax_each(x, nq));
    const v16 f = v16_exp2_low(v16_sub(before, top));
    v16_store_n(m, top, (uint32_t)nq);
    v16_store_n(factor, f, (uint32_t)nq);
    const bool moved = (_mm512_cmp_ps_mask(before, top, _CMP_LT_OQ) & v16_mask((uint32_t)nq)) != 0;
    for (int q = 0; q < nq; q++) {
        float *p = rows + (size_t)q * NODE_ATTN_TILE;
        v16 s[4];
        for (uint32_t i = 0; i < 4; i++) {
            s[i] = v16_exp2_low(v16_sub(v16_load(p + i * 16), v16_set1(m[q])));
            v16_store(p + i * 16, s[i]);
        }
        l[q] = v16_fma(l[q], v16_set1(factor[q]), v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3])));
    }
    return moved;
}

INLINE void free_outputs(const invariance_attn_t *a, uint32_t q0, const float *factor, bool moved, const uint16_t *v,
                         const uint16_t *ahead, const int nq, const int ns)
{
    for (uint32_t dim = 0; dim < a->head_dim; dim += 16 * (uint32_t)ns) {
        v16 acc[MAX_NQ][MAX_NS];
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++) {
                acc[q][s] = v16_load(a->o + (q0 + (size_t)q) * a->head_dim + dim + (size_t)s * 16);
                if (moved)
                    acc[q][s] = v16_mul(acc[q][s], v16_set1(factor[q]));
            }
        free_chains(acc, v + dim, ahead != NULL ? ahead + dim : NULL, a->head_dim, a->p + (size_t)q0 * NODE_ATTN_TILE,
                    NODE_ATTN_TILE, NODE_ATTN_TILE, nq, ns);
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++)
                v16_store(a->o + (q0 + (size_t)q) * a->head_dim + dim + (size_t)s * 16, acc[q][s]);
    }
}

INLINE void free_block(const invariance_attn_t *a, uint32_t q0, uint32_t tile, float *m, v16 *l, const int nq,
                       const int ns)
{
    float factor[MAX_NQ];
    const bool more = q0 == 0 && tile + 1 < a->n_tiles;
    free_scores(a, q0, a->k[tile], more ? a->k[tile + 1] : NULL, nq, ns);
    bool moved = free_softmax(a->p + (size_t)q0 * NODE_ATTN_TILE, m + q0, l + q0, factor, nq);
    free_outputs(a, q0, factor, moved, a->v[tile], more ? a->v[tile + 1] : NULL, nq, ns);
}

void invariance_attend_free(const invariance_attn_t *a)
{
    float m[NODE_QUERY_MAX];
    v16 l[NODE_QUERY_MAX];
    for (uint32_t i = 0; i < a->n_q; i++) {
        m[i] = -__builtin_inff();
        l[i] = v16_set1(0.0f);
    }
    memset(a->o, 0, (size_t)a->n_q * a->head_dim * sizeof *a->o);
    for (uint32_t tile = 0; tile < a->n_tiles; tile++) {
        uint32_t q = 0;
        for (; q + 12 <= a->n_q; q += 12)
            free_block(a, q, tile, m, l, 12, 2);
        for (; q + 6 <= a->n_q; q += 6)
            free_block(a, q, tile, m, l, 6, 4);
        for (; q + 3 <= a->n_q; q += 3)
            free_block(a, q, tile, m, l, 3, 4);
        for (; q < a->n_q; q++)
            free_block(a, q, tile, m, l, 1, 4);
    }
    for (uint32_t i = 0; i < a->n_q; i++)
        for (uint32_t d = 0; d < a->head_dim; d += 16) {
            const size_t at = (size_t)i * a->head_dim + d;
            v16_store(a->out + at, v16_div(v16_load(a->o + at), v16_set1(v16_sum(l[i]))));
        }
}
