/* SnapKV's arithmetic in AVX-512: one register is the 16 lanes of snapkv_score.c, same bits. */
#include <immintrin.h>

#include "compress/snapkv_int.h"
#include "kernels/numerics.h"

static void widen_avx512(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(src + i))));
}

/* R rows against the whole tile: 4 registers a row. */
#define ROWS 4u
static inline void dots_rows(const float *q, size_t q_stride, uint32_t rows, uint32_t dim, const float *kt, float *z,
                             size_t z_stride)
{
    __m512 a[ROWS][4];
    for (uint32_t r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++)
            a[r][i] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < dim; c++, kt += NODE_TILE) {
        __m512 k0 = _mm512_loadu_ps(kt), k1 = _mm512_loadu_ps(kt + 16);
        __m512 k2 = _mm512_loadu_ps(kt + 32), k3 = _mm512_loadu_ps(kt + 48);
        for (uint32_t r = 0; r < rows; r++) {
            __m512 w = _mm512_set1_ps(q[r * q_stride + c]);
            a[r][0] = _mm512_fmadd_ps(w, k0, a[r][0]);
            a[r][1] = _mm512_fmadd_ps(w, k1, a[r][1]);
            a[r][2] = _mm512_fmadd_ps(w, k2, a[r][2]);
            a[r][3] = _mm512_fmadd_ps(w, k3, a[r][3]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < 4; i++)
            _mm512_storeu_ps(z + r * z_stride + i * 16, a[r][i]);
}

static void dots_avx512(const float *q, size_t q_stride, uint32_t n_rows, uint32_t dim, const float *kt, float *z,
                        size_t z_stride)
{
    uint32_t r = 0;
    for (; r + ROWS <= n_rows; r += ROWS)
        dots_rows(q + r * q_stride, q_stride, ROWS, dim, kt, z + r * z_stride, z_stride);
    for (; r < n_rows; r++)
        dots_rows(q + r * q_stride, q_stride, 1, dim, kt, z + r * z_stride, z_stride);
}

/* node_exp for x <= 0: one scaling step is enough down to 2^-126. NaN stays NaN. */
static inline __m512 exp_avx512(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(NODE_ROUND_MAGIC);
    __m512 n = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(NODE_LOG2E)), magic), magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(NODE_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(NODE_LN2_LO), r);
    __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(NODE_EXP_C5), r, _mm512_set1_ps(NODE_EXP_C4));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP_C3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP_C2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP_C1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(NODE_EXP_C0));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    __mmask16 used = _mm512_cmp_ps_mask(x, _mm512_set1_ps(NODE_EXP_MIN), _CMP_NLT_UQ);
    return _mm512_maskz_mul_ps(used, q, _mm512_castsi512_ps(power));
}

static void softmax_add_avx512(float *z, uint32_t n, float scale, float *acc)
{
    __m512 m16 = _mm512_set1_ps(-__builtin_inff());
    for (uint32_t i = 0; i < n; i += 16)
        m16 = _mm512_max_ps(_mm512_loadu_ps(z + i), m16);
    float lane[NODE_SNAPKV_LANES], max = -__builtin_inff();
    _mm512_storeu_ps(lane, m16);
    for (uint32_t i = 0; i < NODE_SNAPKV_LANES; i++)
        max = lane[i] > max ? lane[i] : max;
    const __m512 top = _mm512_set1_ps(max), step = _mm512_set1_ps(scale);
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 p = exp_avx512(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(z + i), top), step));
        sum = _mm512_add_ps(sum, p);
        _mm512_storeu_ps(z + i, p);
    }
    _mm512_storeu_ps(lane, sum);
    const __m512 inv = _mm512_set1_ps(1.0f / node_snapkv_fold(lane));
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(acc + i, _mm512_fmadd_ps(_mm512_loadu_ps(z + i), inv, _mm512_loadu_ps(acc + i)));
}

const node_snapkv_ops_t node_snapkv_avx512 = {widen_avx512, dots_avx512, softmax_add_avx512};
