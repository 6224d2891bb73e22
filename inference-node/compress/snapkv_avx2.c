/* SnapKV's arithmetic in AVX2: two registers are the 16 lanes of snapkv_score.c, same bits. */
#include <immintrin.h>

#include "compress/snapkv_int.h"
#include "kernels/numerics.h"

static void widen_avx2(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
}

/* R rows against 16 keys at a time. */
#define ROWS 4u
static inline void dots_rows(const float *q, size_t q_stride, uint32_t rows, uint32_t dim, const float *kt, float *z,
                             size_t z_stride)
{
    for (uint32_t i = 0; i < NODE_TILE; i += 16) {
        __m256 lo[ROWS], hi[ROWS];
        for (uint32_t r = 0; r < rows; r++)
            lo[r] = hi[r] = _mm256_setzero_ps();
        for (uint32_t c = 0; c < dim; c++) {
            __m256 k0 = _mm256_loadu_ps(kt + (size_t)c * NODE_TILE + i);
            __m256 k1 = _mm256_loadu_ps(kt + (size_t)c * NODE_TILE + i + 8);
            for (uint32_t r = 0; r < rows; r++) {
                __m256 w = _mm256_set1_ps(q[r * q_stride + c]);
                lo[r] = _mm256_fmadd_ps(w, k0, lo[r]);
                hi[r] = _mm256_fmadd_ps(w, k1, hi[r]);
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            _mm256_storeu_ps(z + r * z_stride + i, lo[r]);
            _mm256_storeu_ps(z + r * z_stride + i + 8, hi[r]);
        }
    }
}

static void dots_avx2(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *kt, float *z,
                      size_t z_stride)
{
    uint32_t r = 0;
    for (; r + ROWS <= n_rows; r += ROWS)
        dots_rows(q + r * q_stride, q_stride, ROWS, dim, kt, z + r * z_stride, z_stride);
    for (; r < n_rows; r++)
        dots_rows(q + r * q_stride, q_stride, 1, dim, kt, z + r * z_stride, z_stride);
}

/* node_exp for x <= 0: one scaling step is enough down to 2^-126. NaN stays NaN. */
static inline __m256 exp_avx2(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(NODE_ROUND_MAGIC);
    __m256 n = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(NODE_LOG2E)), magic), magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(NODE_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(NODE_LN2_LO), r);
    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(NODE_EXP_C5), r, _mm256_set1_ps(NODE_EXP_C4));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP_C3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP_C2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP_C1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(NODE_EXP_C0));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 small = _mm256_cmp_ps(x, _mm256_set1_ps(NODE_EXP_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(small, _mm256_mul_ps(q, _mm256_castsi256_ps(power)));
}

static void softmax_add_avx2(float *z, uint32_t n, float scale, float *acc)
{
    __m256 m8 = _mm256_set1_ps(-__builtin_inff());
    for (uint32_t i = 0; i < n; i += 8)
        m8 = _mm256_max_ps(_mm256_loadu_ps(z + i), m8);
    float m[8], max = -__builtin_inff();
    _mm256_storeu_ps(m, m8);
    for (int i = 0; i < 8; i++)
        max = m[i] > max ? m[i] : max;
    const __m256 top = _mm256_set1_ps(max), step = _mm256_set1_ps(scale);
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 p0 = exp_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(z + i), top), step));
        __m256 p1 = exp_avx2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(z + i + 8), top), step));
        s0 = _mm256_add_ps(s0, p0);
        s1 = _mm256_add_ps(s1, p1);
        _mm256_storeu_ps(z + i, p0);
        _mm256_storeu_ps(z + i + 8, p1);
    }
    float lane[NODE_SNAPKV_LANES];
    _mm256_storeu_ps(lane, s0);
    _mm256_storeu_ps(lane + 8, s1);
    const __m256 inv = _mm256_set1_ps(1.0f / node_snapkv_fold(lane));
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(_mm256_loadu_ps(z + i), inv, _mm256_loadu_ps(acc + i)));
}

const node_snapkv_ops_t node_snapkv_avx2 = {widen_avx2, dots_avx2, softmax_add_avx2};
