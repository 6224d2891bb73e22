/*
 * Attention over coded tiles, included by ops_impl.h behind the softmax. Scores and outputs are integer dot products of
 * the codes with 8-bit queries and weights, which are exact in any order, so only the few float operations per
 * group have a fixed one. CODED_NS is how many vectors of tokens or channels are in registers together.
 */
#include "kernels/coded.h"

/* A sanitizer's checks of every load, unrolled for every width, would take the compiler a minute. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLLED
#define ONE_WIDTH_FOR_ALL
#elif defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

/* The Hadamard transform of a head in place: lanes first, then vectors, then the norm. */
static void hadamard(float *x, uint32_t dim)
{
    const uint32_t block = dim & (0u - dim);
    const v16 norm = v16_set1(1.0f / root((float)block));
    for (uint32_t i = 0; i < dim; i += 16)
        v16_store(x + i, v16_hadamard(v16_load(x + i)));
    for (uint32_t half = 16; half < block; half *= 2)
        for (uint32_t i = 0; i < dim; i += 2 * half)
            for (uint32_t c = i; c < i + half; c += 16) {
                v16 a = v16_load(x + c), b = v16_load(x + c + half);
                v16_store(x + c, v16_add(a, b));
                v16_store(x + c + half, v16_sub(a, b));
            }
    for (uint32_t i = 0; i < dim; i += 16)
        v16_store(x + i, v16_mul(v16_load(x + i), norm));
}

static void code_query(const node_coded_form_t *f, const float *x, node_coded_query_t *q)
{
    float r[NODE_HEAD_DIM_MAX];
    memcpy(r, x, f->dim * sizeof(float));
    hadamard(r, f->dim);
    const float half_levels = (float)((1u << f->bits) - 1u) * 0.5f;
    for (uint32_t g = 0; g < f->dim / f->group; g++) {
        const float *at = r + g * f->group;
        v16 top = v16_set1(0.0f), sum = top;
        for (uint32_t i = 0; i < f->group; i += 16) {
            v16 v = v16_load(at + i);
            top = v16_max(v16_abs(v), top);
            sum = v16_add(sum, v);
        }
        float amax = v16_hmax(top);
        bool signal = amax > 0x1p-100f; /* below it the inverse could overflow */
        v16 inv = v16_set1(signal ? 127.0f / amax : 0.0f);
        int32_t n = 0;
        for (uint32_t i = 0; i < f->group; i += 16)
            n += v16_store_i8(q->code + g * f->group + i, v16_mul(v16_load(at + i), inv));
        q->scale[g] = signal ? amax / 127.0f : 0.0f;
        q->sum[g] = v16_sum(sum);
        q->middle[g] = node_fma(-q->scale[g], (float)n, q->sum[g]) * half_levels;
    }
}

/* Vector i of the eight of a strip. */
INLINE b64 code_vector(const uint8_t *strip, const int i, const int bits)
{
    if (bits == 8)
        return b64_load(strip + i * 64);
    if (bits == 4)
        return b64_field(b64_load(strip + i / 2 * 64), i % 2 * 4, 15);
    b64 low = b64_field(b64_load(strip + i / 4 * 64), i % 4 * 2, 3);
    return bits == 2 ? low : b64_or(low, b64_four(b64_load(strip + 128), i));
}

/* Sixteen channels of CODED_NS strips that lie one after the other. */
INLINE void dot_keys(n16 acc[][CODED_NS], const uint8_t *strip, const node_coded_query_t *q, uint32_t c,
                     const int first, const int nq, const int bits)
{
    UNROLLED
    for (int i = first; i < first + 4; i++)
        UNROLLED
    for (int s = 0; s < CODED_NS; s++) {
        b64 codes = code_vector(strip + s * bits * 64, i, bits);
        UNROLLED
        for (int n = 0; n < nq; n++)
            acc[n][s] = n16_dot(acc[n][s], codes, q[n].code + c + (i - first) * 4, bits == 8);
    }
}

/* What every score of a tile gets where its keys are less their mean: the query's product with it. */
APART void mean_scores(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f, const uint8_t *tile, float *base,
                       const int nq)
{
    const uint16_t *mean = (const uint16_t *)(const void *)(tile + f->k_mean);
    v16 sum[3];
    for (int n = 0; n < nq; n++)
        sum[n] = v16_set1(0.0f);
    for (uint32_t c = 0; c < f->dim && f->k_mean; c += 16) {
        const v16 m = v16_load_f16(mean + c);
        for (int n = 0; n < nq; n++)
            sum[n] = v16_fma(v16_load(a->q + (q0 + (size_t)n) * f->dim + c), m, sum[n]);
    }
    for (int n = 0; n < nq; n++)
        base[n] = f->k_mean ? v16_sum(sum[n]) : 0.0f;
}

INLINE void coded_scores(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f, const node_coded_query_t *q,
                         const uint8_t *tile, const int nq, const int bits)
{
    const uint16_t *scales = (const uint16_t *)(const void *)(tile + f->k_scale);
    const uint16_t *mins = (const uint16_t *)(const void *)(tile + f->k_min);
    float base[3];
    mean_scores(a, q0, f, tile, base, nq);
    for (uint32_t t = 0; t < NODE_ATTN_TILE; t += 16 * CODED_NS) {
        v16 score[3][CODED_NS];
        n16 acc[3][CODED_NS];
        for (int n = 0; n < nq; n++)
            for (int s = 0; s < CODED_NS; s++) {
                score[n][s] = v16_set1(base[n]);
                acc[n][s] = n16_zero();
            }
        for (uint32_t c = 0, end = f->group; c < f->dim; c += 16) {
            const uint8_t *strip = tile + (size_t)(c / 32 * 4 + t / 16) * (size_t)bits * 64;
            if (c % 32 == 0)
                dot_keys(acc, strip, q, c, 0, nq, bits);
            else
                dot_keys(acc, strip, q, c, 4, nq, bits);
            if (c + 16 != end)
                continue;
            const uint32_t g = end / f->group - 1;
            end += f->group;
            for (int s = 0; s < CODED_NS; s++) {
                size_t at = (size_t)g * NODE_ATTN_TILE + t + (size_t)s * 16;
                v16 scale = v16_load_f16(scales + at), min = v16_load_f16(mins + at);
                for (int n = 0; n < nq; n++) {
                    v16 dot = v16_fma(v16_from_n16(acc[n][s]), v16_set1(q[n].scale[g]), v16_set1(q[n].middle[g]));
                    score[n][s] = v16_fma(scale, dot, score[n][s]);
                    score[n][s] = v16_fma(min, v16_set1(q[n].sum[g]), score[n][s]);
                    acc[n][s] = n16_zero();
                }
            }
        }
        for (int n = 0; n < nq; n++)
            for (int s = 0; s < CODED_NS; s++)
                v16_store(a->p + ((size_t)q0 + (uint32_t)n) * NODE_ATTN_TILE + t + (size_t)s * 16, score[n][s]);
    }
}

/* Up to three queries times the scales of every channel, as integers with one step for all channels: 8 bits, or 14 in
 * two halves where the codes have 8. Strip of sixteen tokens by strip, so that the inner loop needs one address; those
 * of one group of tokens are equal. */
#define FOLDED_AT(n, s) (((n)*4 + (s)) * NODE_HEAD_DIM_MAX)
typedef struct {
    int8_t code[2 * FOLDED_AT(3, 0)]; /* [query][strip][channel]; the low halves behind */
    float step[3][4];
    float rest[3][4]; /* q times the minima, and what rounding takes away from a key in the middle of its range */
} folded_t;

/* The queries for the group of tokens in strips [s, s + strips). Together, so that the steps of one hide the waits of
 * another. */
INLINE void fold_group(const node_attn_t *a, uint32_t q0, uint32_t dim, const uint16_t *scales, const uint16_t *mins,
                       folded_t *w, uint32_t s, const int strips, const int nq, const int bits)
{
    const float levels = bits == 8 ? 8191.0f : 127.0f, half_levels = (float)((1 << bits) - 1) * 0.5f;
    float x[3][NODE_HEAD_DIM_MAX];
    v16 top[3], rest[3], lost[3], inv[3], back[3];
    for (int n = 0; n < nq; n++)
        top[n] = rest[n] = lost[n] = v16_set1(0.0f);
    for (uint32_t c = 0; c < dim; c += 16) {
        const v16 scale = v16_load_f16(scales + c), min = v16_load_f16(mins + c);
        UNROLLED
        for (int n = 0; n < nq; n++) {
            v16 v = v16_load(a->q + (q0 + (size_t)n) * dim + c), y = v16_mul(v, scale);
            v16_store(x[n] + c, y);
            top[n] = v16_max(v16_abs(y), top[n]);
            rest[n] = v16_fma(v, min, rest[n]);
        }
    }
    UNROLLED
    for (int n = 0; n < nq; n++) {
        const float max = v16_hmax(top[n]);
        const bool signal = max > 0x1p-100f;
        w->step[n][s] = signal ? max * (1.0f / levels) : 0.0f;
        inv[n] = v16_set1(signal ? levels / max : 0.0f);
        back[n] = v16_set1(-w->step[n][s]);
    }
    for (uint32_t c = 0; c < dim; c += 16)
        UNROLLED
    for (int n = 0; n < nq; n++) {
        v16 y = v16_load(x[n] + c), code = v16_round(v16_mul(y, inv[n]));
        lost[n] = v16_add(lost[n], v16_fma(code, back[n], y));
        UNROLLED
        for (int i = 0; i < strips; i++) {
            int8_t *at = w->code + FOLDED_AT(n, (int)s + i) + c;
            if (bits == 8)
                v16_store_high_low(at, at + FOLDED_AT(3, 0), code);
            else
                (void)v16_store_i8(at, code);
        }
    }
    for (int n = 0; n < nq; n++) {
        w->rest[n][s] = v16_sum(v16_fma(lost[n], v16_set1(half_levels), rest[n]));
        for (uint32_t i = 1; i < (uint32_t)strips; i++) {
            w->step[n][s + i] = w->step[n][s];
            w->rest[n][s + i] = w->rest[n][s];
        }
    }
}

INLINE void fold_queries(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f, const uint8_t *tile,
                         folded_t *w, const int strips, const int nq, const int bits)
{
    const uint16_t *scales = (const uint16_t *)(const void *)(tile + f->k_scale);
    const uint16_t *mins = (const uint16_t *)(const void *)(tile + f->k_min);
    for (uint32_t s = 0; s < 4; s += (uint32_t)strips, scales += f->dim, mins += f->dim)
        fold_group(a, q0, f->dim, scales, mins, w, s, strips, nq, bits);
}

/* Sixteen channels of CODED_NS strips; q: folded codes at the first strip and channel. */
INLINE void dot_channels(n16 high[][CODED_NS], n16 low[][CODED_NS], const uint8_t *strip, const int8_t *q,
                         const int first, const int nq, const int bits)
{
    UNROLLED
    for (int i = first; i < first + 4; i++)
        UNROLLED
    for (int s = 0; s < CODED_NS; s++) {
        b64 codes = code_vector(strip + s * bits * 64, i, bits);
        UNROLLED
        for (int n = 0; n < nq; n++) {
            const int8_t *at = q + FOLDED_AT(n, s) + (i - first) * 4;
            high[n][s] = n16_dot(high[n][s], codes, at, bits == 8);
            if (bits == 8)
                low[n][s] = n16_dot(low[n][s], codes, at + FOLDED_AT(3, 0), 1);
        }
    }
}

INLINE void channel_scores(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f, const uint8_t *tile,
                           const int nq, const int bits)
{
    folded_t w;
    switch (f->key_tokens) {
    case 16: fold_queries(a, q0, f, tile, &w, 1, nq, bits); break;
    case 32: fold_queries(a, q0, f, tile, &w, 2, nq, bits); break;
    default: fold_queries(a, q0, f, tile, &w, 4, nq, bits);
    }
    for (uint32_t s0 = 0; s0 < NODE_ATTN_TILE / 16; s0 += CODED_NS) {
        n16 high[3][CODED_NS], low[3][CODED_NS];
        for (int n = 0; n < nq; n++)
            for (int s = 0; s < CODED_NS; s++)
                high[n][s] = low[n][s] = n16_zero();
        for (uint32_t c = 0; c < f->dim; c += 16) {
            const uint8_t *strip = tile + (size_t)(c / 32 * 4 + s0) * (size_t)bits * 64;
            const int8_t *q = w.code + FOLDED_AT(0, s0) + c;
            __asm__("" : "+r"(q)); /* one address and constant offsets, not an address for each */
            if (c % 32 == 0)
                dot_channels(high, low, strip, q, 0, nq, bits);
            else
                dot_channels(high, low, strip, q, 4, nq, bits);
        }
        for (int n = 0; n < nq; n++)
            for (int s = 0; s < CODED_NS; s++) {
                const uint32_t at = s0 + (uint32_t)s;
                n16 dot = bits == 8 ? n16_high_low(high[n][s], low[n][s]) : high[n][s];
                v16_store(a->p + ((size_t)q0 + (uint32_t)n) * NODE_ATTN_TILE + (size_t)at * 16,
                          v16_fma(v16_from_n16(dot), v16_set1(w.step[n][at]), v16_set1(w.rest[n][at])));
            }
    }
}

/* p times the scales of a group, as integers: 8 bits, or 14 in two halves where the codes have 8. */
typedef struct {
    uint8_t low[NODE_ATTN_TILE];
    int8_t high[2][NODE_ATTN_TILE];
    float scale, sum; /* of one integer step; of p times the minima */
} weights_t;

APART void code_weights(const float *p, const uint16_t *scales, const uint16_t *mins, weights_t *w, const int bits)
{
    const float levels = bits == 8 ? 16383.0f : 255.0f;
    v16 x[4], top = v16_set1(0.0f), sum = top;
    for (int i = 0; i < 4; i++) {
        v16 v = v16_load(p + i * 16);
        x[i] = v16_mul(v, v16_load_f16(scales + i * 16));
        sum = v16_fma(v, v16_load_f16(mins + i * 16), sum);
        top = v16_max(x[i], top);
    }
    float max = v16_hmax(top);
    bool signal = max > 0x1p-100f;
    v16 inv = v16_set1(signal ? levels / max : 0.0f);
    for (int i = 0; i < 4; i++)
        if (bits == 8)
            v16_store_high_low(w->high[0] + i * 16, w->high[1] + i * 16, v16_mul(x[i], inv));
        else
            v16_store_u8(w->low + i * 16, v16_mul(x[i], inv));
    w->scale = signal ? max / levels : 0.0f;
    w->sum = v16_sum(sum);
}

/* ns vectors of channels that share a group. */
INLINE void coded_outputs(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f, const weights_t *w,
                          const float *factor, const uint8_t *tile, uint32_t c, const int nq, const int ns,
                          const int bits)
{
    n16 low[3][CODED_NS], high[3][CODED_NS];
    for (int n = 0; n < nq; n++)
        for (int s = 0; s < ns; s++)
            high[n][s] = low[n][s] = n16_zero();
    const uint8_t *strip = tile + f->v_codes + (size_t)(c / 16 * 2) * (size_t)bits * 64;
    for (int t = 0; t < 2; t++, strip += bits * 64)
        UNROLLED
    for (int i = 0; i < 8; i++)
        UNROLLED
    for (int s = 0; s < ns; s++) {
        b64 codes = code_vector(strip + s * 2 * bits * 64, i, bits);
        UNROLLED
        for (int n = 0; n < nq; n++) {
            if (bits < 8) {
                low[n][s] = n16_dot_unsigned(low[n][s], codes, w[n].low + t * 32 + i * 4);
                continue;
            }
            high[n][s] = n16_dot(high[n][s], codes, w[n].high[0] + t * 32 + i * 4, 1);
            low[n][s] = n16_dot(low[n][s], codes, w[n].high[1] + t * 32 + i * 4, 1);
        }
    }
    for (int n = 0; n < nq; n++)
        for (int s = 0; s < ns; s++) {
            float *o = a->o + (q0 + (size_t)n) * a->head_dim + c + (size_t)s * 16;
            v16 y = v16_fma(v16_load(o), v16_set1(factor[n]), v16_set1(w[n].sum));
            n16 dot = bits == 8 ? n16_high_low(high[n][s], low[n][s]) : low[n][s];
            v16_store(o, v16_fma(v16_from_n16(dot), v16_set1(w[n].scale), y));
        }
}

INLINE void attend_coded_block(const node_attn_t *a, uint32_t q0, const node_coded_form_t *f,
                               const node_coded_query_t *q, const uint8_t *tile, const int nq, const int bits)
{
    const uint16_t *scales = (const uint16_t *)(const void *)(tile + f->v_scale);
    const uint16_t *mins = (const uint16_t *)(const void *)(tile + f->v_min);
    float factor[16];
    weights_t w[3];
    /* the whole next tile at once: a coded one is a few kilobytes */
    for (uint32_t at = 0; at < f->bytes && q0 == 0 && a->next_codes != NULL; at += 64)
        node_ask(a->next_codes + at, a->once);
    if (f->key_tokens != 0 && bits != 3)
        channel_scores(a, q0, f, tile, nq, bits);
    else
        coded_scores(a, q0, f, q + q0, tile, nq, bits);
    softmax_block(a, q0, factor, nq, seen_by_all(a, q0, nq) == NODE_ATTN_TILE);
    for (int n = 0; n < nq; n++)
        if (a->n_valid[q0 + (uint32_t)n] == 0) /* the softmax has left its scores in place */
            memset(a->p + ((size_t)q0 + (uint32_t)n) * NODE_ATTN_TILE, 0, NODE_ATTN_TILE * sizeof *a->p);
    for (uint32_t g = 0; g < f->dim / f->group; g++) {
        for (int n = 0; n < nq; n++)
            code_weights(a->p + ((size_t)q0 + (uint32_t)n) * NODE_ATTN_TILE, scales + (size_t)g * NODE_ATTN_TILE,
                         mins + (size_t)g * NODE_ATTN_TILE, &w[n], bits);
        uint32_t c = g * f->group, end = c + f->group;
        for (; c + 16 * CODED_NS <= end && CODED_NS > 1 && bits < 8; c += 16 * CODED_NS)
            coded_outputs(a, q0, f, w, factor, tile, c, nq, CODED_NS, bits);
        for (; c + 32 <= end && CODED_NS > 1 && bits < 8; c += 32)
            coded_outputs(a, q0, f, w, factor, tile, c, nq, 2, bits);
        for (; c < end; c += 16)
            coded_outputs(a, q0, f, w, factor, tile, c, nq, 1, bits);
    }
}

INLINE void attend_coded_bits(const node_attn_t *a, const node_coded_form_t *f, const node_coded_query_t *q,
                              const uint8_t *tile, const int bits)
{
    uint32_t q0 = 0;
    for (; q0 + 3 <= a->n_q; q0 += 3)
        attend_coded_block(a, q0, f, q, tile, 3, bits);
    for (; q0 < a->n_q; q0++)
        attend_coded_block(a, q0, f, q, tile, 1, bits);
}

static void attend_coded(const node_attn_t *a, const node_coded_form_t *f, const node_coded_query_t *q,
                         const uint8_t *tile)
{
#ifdef ONE_WIDTH_FOR_ALL
    attend_coded_bits(a, f, q, tile, (int)f->bits);
#else
    switch (f->bits) {
    case 2: attend_coded_bits(a, f, q, tile, 2); break;
    case 3: attend_coded_bits(a, f, q, tile, 3); break;
    case 4: attend_coded_bits(a, f, q, tile, 4); break;
    default: attend_coded_bits(a, f, q, tile, 8);
    }
#endif
}
