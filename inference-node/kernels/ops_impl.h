/*
 * The operations that are written once, over sixteen-lane vectors. Each ops_<isa>.c includes its vec_<isa>.h, defines
 * ATTN_NQ and ATTN_SUMS (queries, and vectors of sums, that one register block of attention holds at most), ROW_TILE
 * and linear_quantised(), and then this file, which ends with the table named by OPS_TABLE.
 */
#include "kernels/ops.h"

#define INLINE static inline __attribute__((always_inline))
/* Of parts that run once for a block of queries and would be compiled once for each of its forms. */
#define APART static __attribute__((noinline))

INLINE float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

static void rms_norm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    v16 acc = v16_set1(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        acc = v16_fma(v, v, acc);
    }
    if (i < n) {
        v16 v = v16_load_n(x + i, n - i);
        acc = v16_fma(v, v, acc);
    }
    v16 r = v16_set1(1.0f / root(v16_sum(acc) / (float)n + eps));
    for (i = 0; i + 16 <= n; i += 16)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), r), v16_load(w + i)));
    if (i < n)
        v16_store_n(y + i, v16_mul(v16_mul(v16_load_n(x + i, n - i), r), v16_load_n(w + i, n - i)), n - i);
}

static void quantise(const node_acts_t *a, uint32_t row)
{
    const float *x = a->x + row * a->stride;
    int16_t *q = a->q + row * a->stride;
    size_t at = row * a->group_stride;
    for (uint32_t g = 0; g < a->n_in / NODE_GROUP; g++) {
        v16 lo = v16_load(x + g * NODE_GROUP), hi = v16_load(x + g * NODE_GROUP + 16);
        v16 top = v16_max(v16_abs(lo), v16_max(v16_abs(hi), v16_set1(0.0f)));
        float amax = v16_hmax(top);
        /* below 2^-100 the inverse could overflow: no signal */
        bool signal = amax > 0x1p-100f;
        float scale = signal ? amax / 32767.0f : 0.0f;
        v16 inv = v16_set1(signal ? 32767.0f / amax : 0.0f);
        int32_t sum = 0;
        v16_store_i16(q + g * NODE_GROUP, v16_mul(lo, inv), &sum);
        v16_store_i16(q + g * NODE_GROUP + 16, v16_mul(hi, inv), &sum);
        a->scale[at + g] = scale;
        a->isum[at + g] = sum;
        a->sum[at + g] = scale * (float)sum;
    }
}

static void add(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(x + i, v16_add(v16_load(x + i), v16_load(y + i)));
    if (i < n)
        v16_store_n(x + i, v16_add(v16_load_n(x + i, n - i), v16_load_n(y + i, n - i)), n - i);
}

static void scale(const float *x, float s, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(y + i, v16_mul(v16_load(x + i), v16_set1(s)));
    if (i < n)
        v16_store_n(y + i, v16_mul(v16_load_n(x + i, n - i), v16_set1(s)), n - i);
}

INLINE v16 gated(v16 g, v16 u)
{
    v16 one = v16_set1(1.0f);
    return v16_mul(v16_div(g, v16_add(one, v16_exp(v16_neg(g)))), u);
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(y + i, gated(v16_load(gate + i), v16_load(up + i)));
    if (i < n)
        v16_store_n(y + i, gated(v16_load_n(gate + i, n - i), v16_load_n(up + i, n - i)), n - i);
}

INLINE void rotate(v16 *a, v16 *b, v16 c, v16 s)
{
    v16 x = v16_fma(*a, c, v16_neg(v16_mul(*b, s)));
    *b = v16_fma(*b, c, v16_mul(*a, s));
    *a = x;
}

static void rope(float *head, const float *cos, const float *sin, uint32_t half)
{
    uint32_t i = 0;
    for (; i + 16 <= half; i += 16) {
        v16 a = v16_load(head + i), b = v16_load(head + half + i);
        rotate(&a, &b, v16_load(cos + i), v16_load(sin + i));
        v16_store(head + i, a);
        v16_store(head + half + i, b);
    }
    if (i < half) {
        uint32_t n = half - i;
        v16 a = v16_load_n(head + i, n), b = v16_load_n(head + half + i, n);
        rotate(&a, &b, v16_load_n(cos + i, n), v16_load_n(sin + i, n));
        v16_store_n(head + i, a, n);
        v16_store_n(head + half + i, b, n);
    }
}

static uint32_t to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t over = 0;
    for (uint32_t i = 0; i < n; i += 16)
        over += v16_store_f16(y + i, v16_load(x + i));
    return over;
}

/* ---- float weights: one chain per output, NR rows x NP panels in registers ---- */

INLINE v16 weight16(const node_matrix_t *w, const uint8_t *panel, uint32_t i)
{
    return w->type == NODE_W_F16 ? v16_load_f16((const uint16_t *)(const void *)panel + (size_t)i * NODE_PANEL)
                                 : v16_load((const float *)(const void *)panel + (size_t)i * NODE_PANEL);
}

INLINE void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y)
{
    uint32_t o = panel * NODE_PANEL, left = w->n_out - o;
    if (w->bias != NULL)
        y = v16_add(y, v16_load(w->bias + o));
    if (left >= NODE_PANEL)
        v16_store(out + o, y);
    else
        v16_store_n(out + o, y, left);
}

INLINE void linear_float_block(const node_matrix_t *w, uint32_t panel, const float *x, size_t stride, float *out,
                               size_t out_stride, const int nr, const int np)
{
    v16 acc[4][4];
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < np; p++)
            acc[r][p] = v16_set1(0.0f);
    const uint8_t *data = w->data + (size_t)panel * w->panel_bytes;
    for (uint32_t i = 0; i < w->n_in; i++)
        for (int p = 0; p < np; p++) {
            v16 v = weight16(w, data + (size_t)p * w->panel_bytes, i);
            for (int r = 0; r < nr; r++)
                acc[r][p] = v16_fma(v, v16_set1(x[(size_t)r * stride + i]), acc[r][p]);
        }
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < np; p++)
            store_outputs(w, panel + (uint32_t)p, out + (size_t)r * out_stride, acc[r][p]);
}

static void linear_float(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const float *x, size_t stride,
                         uint32_t n_rows, float *out, size_t out_stride)
{
    while (panel < panel_end) {
        uint32_t np = panel_end - panel >= 4 ? 4 : 1, r = 0;
        for (; r + 4 <= n_rows && np == 1; r += 4)
            linear_float_block(w, panel, x + r * stride, stride, out + r * out_stride, out_stride, 4, 1);
        for (; r < n_rows; r++) {
            if (np == 4)
                linear_float_block(w, panel, x + r * stride, stride, out + r * out_stride, out_stride, 1, 4);
            else
                linear_float_block(w, panel, x + r * stride, stride, out + r * out_stride, out_stride, 1, 1);
        }
        panel += np;
    }
}

static void linear(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                   const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride)
{
    out += row * out_stride;
    if (!node_matrix_quantised(w->type)) {
        linear_float(w, panel, panel_end, a->x + row * a->stride, a->stride, n_rows, out, out_stride);
        return;
    }
    linear_quantised(w, panel, panel_end, ahead, a, row, n_rows, out, out_stride);
}

/* ---- attention ---- */

/* Vectors of a tile that a block of nq queries holds: the fewer queries, the more, since a sum waits for itself. */
#define BLOCK_NS(nq) ((nq)*4 <= ATTN_SUMS ? 4 : (nq)*2 <= ATTN_SUMS ? 2 : 1)
#define ATTN_NS BLOCK_NS(1)

/* Which rows of the next tile a block of queries asks for. */
typedef struct {
    uint32_t from, end;
} share_t;
#if ATTN_SUMS > 6
#define ASKS_ROW(share, r, at, ns) ((void)(share), true)
#define ASKS_BLOCK(q0) ((q0) == 0)
#else
/* Slow blocks: every one asks for its share, or memory would be waited for in the first and idle in the others. A line
 * is two vectors: where they are walked one after the other, each walk asks for every other row. */
#define ASKS_ROW(share, r, at, ns) \
    ((r) >= (share).from && (r) < (share).end && ((ns) > 1 || ((r) ^ ((uint32_t)(at) >> 5)) % 2 == 0))
#define ASKS_BLOCK(q0) true
#endif

INLINE share_t share_of(const node_attn_t *a, uint32_t q0, uint32_t nq, uint32_t rows)
{
    return (share_t){rows * q0 / a->n_q, rows * (q0 + nq) / a->n_q};
}

INLINE void ask_row(const uint16_t *ahead, share_t share, uint32_t r, size_t stride, bool once, const int ns)
{
    if (ahead != NULL && ASKS_ROW(share, r, (uintptr_t)ahead, ns))
        for (int s = 0; s < ns; s += 2)
            node_ask(ahead + r * stride + (size_t)s * 16, once);
}

/* acc[q][s] += mat[16 s ...] * coef[q], a step of chains(). */
INLINE void chain_row(v16 acc[ATTN_NQ][ATTN_NS], const uint16_t *mat, const float *coef, size_t coef_stride,
                      const int nq, const int ns)
{
#if ATTN_SUMS > 6
    v16 w[ATTN_NS];
    for (int s = 0; s < ns; s++)
        w[s] = v16_load_f16(mat + (size_t)s * 16);
    for (int q = 0; q < nq; q++) {
        v16 c = v16_set1(coef[(size_t)q * coef_stride]);
        for (int s = 0; s < ns; s++)
            acc[q][s] = v16_fma(w[s], c, acc[q][s]);
    }
#else
    for (int s = 0; s < ns; s++) {
        v16 w = v16_load_f16(mat + (size_t)s * 16);
        for (int q = 0; q < nq; q++)
            acc[q][s] = v16_fma(w, v16_set1(coef[(size_t)q * coef_stride]), acc[q][s]);
        __asm__("" : "+r"(coef)); /* read again for the next vector: there are no registers left to keep it in */
    }
#endif
}

#ifndef ATTN_ORDER
#define ATTN_ORDER "kernels/attn_order.h"
#endif
#include ATTN_ORDER

INLINE void scores_of_dim(const node_attn_t *a, uint32_t q0, const uint16_t *k, const uint16_t *ahead, size_t dim,
                          const int nq, const int ns)
{
    const share_t share = share_of(a, q0, (uint32_t)nq, (uint32_t)dim);
    for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 16 * (uint32_t)ns) {
        v16 acc[ATTN_NQ][ATTN_NS];
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++)
                acc[q][s] = v16_set1(0.0f);
        chains(acc, k + t, ahead != NULL ? ahead + t : NULL, share, NODE_ATTN_TILE, a->q + q0 * dim, dim, (uint32_t)dim,
               a->once, nq, ns);
        for (int q = 0; q < nq; q++)
            for (int s = 0; s < ns; s++)
                v16_store(a->p + ((size_t)q0 + (uint32_t)q) * NODE_ATTN_TILE + t + (size_t)s * 16, acc[q][s]);
    }
}

/* Many queries need a constant stride, or each would need a register for its address. */
INLINE void scores_block(const node_attn_t *a, uint32_t q0, const uint16_t *k, const uint16_t *ahead, const int nq,
                         const int ns)
{
    if (nq > 6 && a->head_dim == 64)
        scores_of_dim(a, q0, k, ahead, 64, nq, ns);
    else if (nq > 6 && a->head_dim == 128)
        scores_of_dim(a, q0, k, ahead, 128, nq, ns);
    else
        scores_of_dim(a, q0, k, ahead, a->head_dim, nq, ns);
}

/* How many tokens of the tile all queries of the block see. */
INLINE uint32_t seen_by_all(const node_attn_t *a, uint32_t q0, const int nq)
{
    uint32_t n = NODE_ATTN_TILE;
    for (int q = 0; q < nq; q++)
        n = a->n_valid[q0 + (uint32_t)q] < n ? a->n_valid[q0 + (uint32_t)q] : n;
    return n;
}

INLINE v16 seen_scores(const float *p, uint32_t i, uint32_t n)
{
    v16 s = v16_load(p + i * 16);
    return n >= (i + 1) * 16 ? s : v16_first(s, v16_set1(-__builtin_inff()), n > i * 16 ? n - i * 16 : 0);
}

/* Online softmax of a block of queries over the tile: scores become probabilities, masked ones +0. factor: what the
 * earlier outputs are rescaled with, sixteen. Queries that see nothing keep their state and their scores. Maxima, sums
 * and factors of the block are lanes of one vector. all: every query sees the whole tile. */
INLINE void softmax_rows(const node_attn_t *a, uint32_t q0, float *factor, const int nq, const bool all)
{
    v16 x[ATTN_NQ];
    float m[16];
    for (int q = 0; q < nq; q++) {
        const float *p = a->p + (q0 + (size_t)q) * NODE_ATTN_TILE;
        const uint32_t n = all ? NODE_ATTN_TILE : a->n_valid[q0 + (uint32_t)q];
        x[q] = v16_max(v16_max(seen_scores(p, 0, n), seen_scores(p, 1, n)),
                       v16_max(seen_scores(p, 2, n), seen_scores(p, 3, n)));
    }
    const v16 before = v16_load_n(a->m + q0, (uint32_t)nq), top = v16_max(before, v16_hmax_each(x, nq));
    const v16 f = v16_exp2_low(v16_sub(before, top));
    v16_store(m, top);
    v16_store(factor, f);
    for (int q = 0; q < nq; q++) {
        float *p = a->p + (q0 + (size_t)q) * NODE_ATTN_TILE;
        const uint32_t n = all ? NODE_ATTN_TILE : a->n_valid[q0 + (uint32_t)q];
        if (n == 0) {
            m[q] = a->m[q0 + (uint32_t)q];
            factor[q] = 1.0f;
            x[q] = v16_set1(0.0f);
            continue;
        }
        v16 s[4];
        for (uint32_t i = 0; i < 4; i++) {
            s[i] = v16_exp2_low(v16_sub(seen_scores(p, i, n), v16_set1(m[q])));
            v16_store(p + i * 16, s[i]);
        }
        x[q] = v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3]));
    }
    add_sums(a, q0, x, all ? f : v16_load(factor), nq);
    v16_store_n(a->m + q0, all ? top : v16_load(m), (uint32_t)nq);
}

/* For the numbers of queries that blocks have. */
APART void softmax_block(const node_attn_t *a, uint32_t q0, float *factor, const int nq, bool all)
{
    if (!all)
        softmax_rows(a, q0, factor, nq, false);
#if ATTN_NQ > 6
    else if (nq == ATTN_NQ)
        softmax_rows(a, q0, factor, ATTN_NQ, true);
#endif
#if ATTN_NQ > 3
    else if (nq == 6)
        softmax_rows(a, q0, factor, 6, true);
#endif
    else if (nq == 3)
        softmax_rows(a, q0, factor, 3, true);
    else
        softmax_rows(a, q0, factor, 1, true);
}

/* What each query sees beyond the first `common` tokens. Tokens that it does not see are not touched at all: their V
 * cannot reach it, not even as 0 times NaN. */
APART void outputs_rest(const node_attn_t *a, uint32_t q0, const uint16_t *v, uint32_t common, const int nq)
{
    for (uint32_t q = q0; q < q0 + (uint32_t)nq; q++) {
        const uint32_t n = a->n_valid[q] - common;
        for (uint32_t dim = 0; dim < a->head_dim && n > 0; dim += 16) {
            float *o = a->o + (size_t)q * a->head_dim + dim;
            v16 acc[ATTN_NQ][ATTN_NS];
            acc[0][0] = v16_load(o);
            chains(acc, v + (size_t)common * a->head_dim + dim, NULL, (share_t){0}, a->head_dim,
                   a->p + (size_t)q * NODE_ATTN_TILE + common, NODE_ATTN_TILE, n, false, 1, 1);
            v16_store(o, acc[0][0]);
        }
    }
}

/* Over the first `common` tokens. */
INLINE void outputs_block(const node_attn_t *a, uint32_t q0, const float *factor, uint32_t dim, const uint16_t *v,
                          const uint16_t *ahead, uint32_t common, const int nq, const int ns)
{
    v16 acc[ATTN_NQ][ATTN_NS];
    for (int q = 0; q < nq; q++) {
        const float *o = a->o + (q0 + (size_t)q) * a->head_dim + dim;
        v16 f = v16_set1(factor[q]);
        for (int s = 0; s < ns; s++)
            acc[q][s] = v16_mul(v16_load(o + (size_t)s * 16), f);
    }
    chains(acc, v + dim, ahead != NULL ? ahead + dim : NULL, share_of(a, q0, (uint32_t)nq, NODE_ATTN_TILE), a->head_dim,
           a->p + (size_t)q0 * NODE_ATTN_TILE, NODE_ATTN_TILE, common, a->once, nq, ns);
    for (int q = 0; q < nq; q++) {
        float *o = a->o + (q0 + (size_t)q) * a->head_dim + dim;
        for (int s = 0; s < ns; s++)
            v16_store(o + (size_t)s * 16, acc[q][s]);
    }
}

/* nq queries by ns vectors of tokens or dims are in registers together. */
INLINE void attend_block(const node_attn_t *a, uint32_t q0, const uint16_t *k, const uint16_t *v, const int nq,
                         const int ns)
{
    float factor[16];
    const uint16_t *next_k = ASKS_BLOCK(q0) ? a->next_k : NULL, *next_v = ASKS_BLOCK(q0) ? a->next_v : NULL;
    const uint32_t common = seen_by_all(a, q0, nq);
    scores_block(a, q0, k, next_k, nq, ns);
    softmax_block(a, q0, factor, nq, common == NODE_ATTN_TILE);
    uint32_t dim = 0;
    for (; dim + 16 * (uint32_t)ns <= a->head_dim; dim += 16 * (uint32_t)ns)
        outputs_block(a, q0, factor, dim, v, next_v, common, nq, ns);
    for (; dim < a->head_dim; dim += 16)
        outputs_block(a, q0, factor, dim, v, next_v, common, nq, 1);
    if (common < NODE_ATTN_TILE)
        outputs_rest(a, q0, v, common, nq);
}

static void attend(const node_attn_t *a, const uint16_t *k, const uint16_t *v)
{
    uint32_t q = 0;
#if ATTN_NQ > 6 /* each vector of K or V serves many queries: widening it costs half as much as a multiply-add */
    for (; q + ATTN_NQ <= a->n_q; q += ATTN_NQ)
        attend_block(a, q, k, v, ATTN_NQ, BLOCK_NS(ATTN_NQ));
#endif
#if ATTN_NQ > 3
    for (; q + 6 <= a->n_q; q += 6)
        attend_block(a, q, k, v, 6, BLOCK_NS(6));
    for (; q + 3 <= a->n_q; q += 3)
        attend_block(a, q, k, v, 3, BLOCK_NS(3));
#endif
    for (; q < a->n_q; q++)
        attend_block(a, q, k, v, 1, BLOCK_NS(1));
}

#include "kernels/coded_impl.h"

INLINE void fold_outputs(float *a, const float *b, v16 factor_a, v16 factor_b, const uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d += 16)
        v16_store(a + d, v16_fma(v16_load(a + d), factor_a, v16_mul(v16_load(b + d), factor_b)));
}

/* Maxima, sums and factors of sixteen queries are lanes of one vector. */
static void fold(uint32_t n_q, uint32_t head_dim, float *am, float *al, float *ao, const float *bm, const float *bl,
                 const float *bo)
{
    for (uint32_t q0 = 0; q0 < n_q; q0 += 16) {
        const uint32_t n = n_q - q0 < 16 ? n_q - q0 : 16;
        const v16 ma = v16_load_n(am + q0, n), mb = v16_load_n(bm + q0, n), top = v16_max(ma, mb);
        const v16 factor_a = v16_exp2_low(v16_sub(ma, top)), factor_b = v16_exp2_low(v16_sub(mb, top));
        float m[16], l[16], fa[16], fb[16];
        v16_store(m, top);
        v16_store(fa, factor_a);
        v16_store(fb, factor_b);
        v16_store(l, v16_fma(v16_load_n(al + q0, n), factor_a, v16_mul(v16_load_n(bl + q0, n), factor_b)));
        for (uint32_t i = 0, q = q0; i < n; i++, q++) {
            if (bl[q] == 0.0f) /* the split had nothing for this query */
                continue;
            al[q] = l[i];
            am[q] = m[i];
            float *a = ao + (size_t)q * head_dim;
            const float *b = bo + (size_t)q * head_dim;
            const v16 x = v16_set1(fa[i]), y = v16_set1(fb[i]);
            if (head_dim == 64)
                fold_outputs(a, b, x, y, 64);
            else
                fold_outputs(a, b, x, y, head_dim);
        }
    }
}

static void finish(float l, const float *o, uint32_t head_dim, float *y)
{
    for (uint32_t d = 0; d < head_dim; d += 16)
        v16_store(y + d, v16_div(v16_load(o + d), v16_set1(l)));
}

const node_ops_t OPS_TABLE = {.name = OPS_NAME,
                              .row_tile = ROW_TILE,
                              .stream_rows = STREAM_ROWS,
                              .rms_norm = rms_norm,
                              .quantise = quantise,
                              .linear = linear,
                              .add = add,
                              .swiglu = swiglu,
                              .rope = rope,
                              .scale = scale,
                              .to_f16 = to_f16,
                              .attend = attend,
                              .hadamard = hadamard,
                              .code_query = code_query,
                              .attend_coded = attend_coded,
                              .fold = fold,
                              .finish = finish};
