/* AVX2 with FMA and F16C. A panel is two halves of eight outputs; four rows share the unpacked codes of a half. */
#include "kernels/vec_avx2.h"

#include "kernels/ops.h"

#define ATTN_NQ 3
#define ATTN_NS 2
#define ROW_TILE 4
#define OPS_NAME "avx2"
#define OPS_TABLE node_ops_avx2

static inline void store_outputs(const node_matrix_t *w, uint32_t panel, float *out, v16 y);

typedef int32_t __attribute__((may_alias)) pair_t;
#define LINEAR_INLINE static inline __attribute__((always_inline))

/* s[r] += dot products of one code word (four or two pairs of inputs) with rows 0..nr of x. */
LINEAR_INLINE void dot_pair(__m256i s[4], __m256i c, const pair_t *x, size_t pair_stride, const int nr)
{
    for (int r = 0; r < nr; r++)
        s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(c, _mm256_set1_epi32(x[(size_t)r * pair_stride])));
}

LINEAR_INLINE void dot_group(__m256i s[4], const uint8_t *half, const pair_t *x, size_t pair_stride, const int nr,
                             const uint32_t type)
{
    if (type == NODE_W_Q8_0) {
        for (int k = 0; k < 8; k++) {
            __m256i w = _mm256_loadu_si256((const void *)(half + k * 64));
            dot_pair(s, _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), x + 2 * k, pair_stride, nr);
            dot_pair(s, _mm256_srai_epi16(w, 8), x + 2 * k + 1, pair_stride, nr);
        }
        return;
    }
    __m256i low = _mm256_set1_epi32(0x000f000f);
    for (int k = 0; k < 4; k++) {
        __m256i w = _mm256_loadu_si256((const void *)(half + k * 64));
        dot_pair(s, _mm256_and_si256(w, low), x + 4 * k, pair_stride, nr);
        dot_pair(s, _mm256_and_si256(_mm256_srli_epi32(w, 4), low), x + 4 * k + 1, pair_stride, nr);
        dot_pair(s, _mm256_and_si256(_mm256_srli_epi32(w, 8), low), x + 4 * k + 2, pair_stride, nr);
        dot_pair(s, _mm256_and_si256(_mm256_srli_epi32(w, 12), low), x + 4 * k + 3, pair_stride, nr);
    }
}

LINEAR_INLINE __m256 load8_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

/* One half of a panel (0 or 1) for nr rows. */
LINEAR_INLINE void linear_half(const node_matrix_t *w, uint32_t panel, uint32_t half, const node_acts_t *a,
                               uint32_t row, __m256 acc[4], const int nr, const uint32_t type)
{
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32);
    const uint8_t *group = w->data + panel * w->panel_bytes;
    const pair_t *x = (const pair_t *)(const void *)(a->q + row * a->stride);
    size_t at = row * a->group_stride;
    for (int r = 0; r < nr; r++)
        acc[r] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
        __m256i s[4];
        for (int r = 0; r < nr; r++)
            s[r] = type == NODE_W_Q4_0 ? _mm256_set1_epi32(-8 * a->isum[at + (size_t)r * a->group_stride + g])
                                       : _mm256_setzero_si256();
        dot_group(s, group + half * 32, x + g * (NODE_GROUP / 2), a->stride / 2, nr, type);
        __m256 d = load8_f16(group + codes + half * 16);
        for (int r = 0; r < nr; r++) {
            size_t i = at + (size_t)r * a->group_stride + g;
            acc[r] = _mm256_fmadd_ps(d, _mm256_mul_ps(_mm256_cvtepi32_ps(s[r]), _mm256_set1_ps(a->scale[i])), acc[r]);
            if (type == NODE_W_Q4_1)
                acc[r] = _mm256_fmadd_ps(load8_f16(group + codes + 32 + half * 16), _mm256_set1_ps(a->sum[i]), acc[r]);
        }
    }
}

LINEAR_INLINE void linear_rows(const node_matrix_t *w, uint32_t panel, const node_acts_t *a, uint32_t row, float *out,
                               size_t out_stride, const int nr, const uint32_t type)
{
    __m256 lo[4], hi[4];
    linear_half(w, panel, 0, a, row, lo, nr, type);
    linear_half(w, panel, 1, a, row, hi, nr, type);
    for (int r = 0; r < nr; r++)
        store_outputs(w, panel, out + (size_t)r * out_stride, (v16){lo[r], hi[r]});
}

LINEAR_INLINE void linear_type(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const node_acts_t *a,
                               uint32_t row, uint32_t n_rows, float *out, size_t out_stride, const uint32_t type)
{
    uint32_t r = 0;
    for (; r + 4 <= n_rows; r += 4)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 4, type);
    for (; r + 2 <= n_rows; r += 2)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 2, type);
    for (; r < n_rows; r++)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 1, type);
}

static void linear_quantised(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const node_acts_t *a,
                             uint32_t row, uint32_t n_rows, float *out, size_t out_stride)
{
    if (w->type == NODE_W_Q4_1)
        linear_type(w, panel, panel_end, a, row, n_rows, out, out_stride, NODE_W_Q4_1);
    else if (w->type == NODE_W_Q8_0)
        linear_type(w, panel, panel_end, a, row, n_rows, out, out_stride, NODE_W_Q8_0);
    else
        linear_type(w, panel, panel_end, a, row, n_rows, out, out_stride, NODE_W_Q4_0);
}

#include "kernels/ops_impl.h"
