/*
 * Integer linear of AVX2. A panel is two halves of eight outputs; a broadcast pair of inputs meets both, and four or
 * five rows share the unpacked codes. DOT is vpdpwssd where the CPU has it, else vpmaddwd and an addition: the sums are
 * exact integers, so both give the same bits.
 */
#include "kernels/linear_stream.h"

typedef int32_t __attribute__((may_alias)) pair_t;
#ifdef DOT_VNNI
#define DOT(acc, w, x) _mm256_dpwssd_avx_epi32(acc, w, x)
#else
#define DOT(acc, w, x) _mm256_add_epi32(acc, _mm256_madd_epi16(w, x))
#endif
#define LINEAR_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { STREAM_ROWS = 4 };

/* Ends a sum for the compiler: GCC would reorder the integer additions into a tree that needs twice the registers. */
#define KEEP(v) __asm__("" : "+x"(v))

/* Sums of a few rows are two each where the product adds as well, or each would wait for its latency. */
#ifdef DOT_VNNI
#define SUM_SETS(nr) ((nr) <= 2 ? 2 : 1)
#else
#define SUM_SETS(nr) 1
#endif

/* Dot products of both halves with rows 0..nr: s[2 * r] and s[2 * r + 1]. */
LINEAR_INLINE void dot_pair(__m256i *s, __m256i lo, __m256i hi, const pair_t *x, size_t pair_stride, const int nr)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        __m256i v = _mm256_set1_epi32(x[(size_t)r * pair_stride]);
        s[2 * r] = DOT(s[2 * r], lo, v);
        s[2 * r + 1] = DOT(s[2 * r + 1], hi, v);
        KEEP(s[2 * r]);
        KEEP(s[2 * r + 1]);
    }
}

LINEAR_INLINE void dot_group(__m256i *s, const uint8_t *group, const pair_t *x, size_t stride, const int nr,
                             const uint32_t type)
{
    const __m256i low = _mm256_set1_epi32(0x000f000f);
    __m256i *odd = s + (SUM_SETS(nr) - 1) * 2 * nr;
    for (int k = 0; k < (type == NODE_W_Q8_0 ? 8 : 4); k++) {
        __m256i lo = _mm256_loadu_si256((const void *)(group + k * 64));
        __m256i hi = _mm256_loadu_si256((const void *)(group + k * 64 + 32));
        if (type == NODE_W_Q8_0) {
            dot_pair(s, _mm256_srai_epi16(_mm256_slli_epi16(lo, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(hi, 8), 8),
                     x + 2 * k, stride, nr);
            dot_pair(odd, _mm256_srai_epi16(lo, 8), _mm256_srai_epi16(hi, 8), x + 2 * k + 1, stride, nr);
            continue;
        }
        UNROLL
        for (int j = 0; j < 4; j++)
            dot_pair(j % 2 == 0 ? s : odd, _mm256_and_si256(_mm256_srli_epi32(lo, 4 * j), low),
                     _mm256_and_si256(_mm256_srli_epi32(hi, 4 * j), low), x + 4 * k + j, stride, nr);
    }
    for (int i = 0; i < 2 * nr && SUM_SETS(nr) == 2; i++)
        s[i] = _mm256_add_epi32(s[i], odd[i]);
}

/* The integer part of group g: sums of rows at and following. */
LINEAR_INLINE void group_sums(__m256i *s, const uint8_t *group, const node_acts_t *a, const pair_t *x, size_t at,
                              uint32_t g, const int nr, const uint32_t type)
{
    for (int i = nr; i < SUM_SETS(nr) * nr; i++)
        s[2 * i] = s[2 * i + 1] = _mm256_setzero_si256();
    UNROLL
    for (int r = 0; r < nr; r++)
        s[2 * r] = s[2 * r + 1] = type == NODE_W_Q4_0
                                      ? _mm256_set1_epi32(-8 * a->isum[at + (size_t)r * a->group_stride + g])
                                      : _mm256_setzero_si256();
    dot_group(s, group, x + (size_t)g * (NODE_GROUP / 2), a->stride / 2, nr, type);
}

/* Its scales; at counts the group. */
LINEAR_INLINE void add_group(v16 *acc, const __m256i *s, const uint16_t *d, const node_acts_t *a, size_t at,
                             const int nr, const uint32_t type)
{
    UNROLL
    for (int r = 0; r < nr; r++) {
        size_t i = at + (size_t)r * a->group_stride;
        v16 dot = {_mm256_cvtepi32_ps(s[2 * r]), _mm256_cvtepi32_ps(s[2 * r + 1])};
        acc[r] = v16_fma(v16_load_f16(d), v16_mul(dot, v16_set1(a->scale[i])), acc[r]);
        if (type == NODE_W_Q4_1)
            acc[r] = v16_fma(v16_load_f16(d + 16), v16_set1(a->sum[i]), acc[r]);
    }
}

LINEAR_INLINE void linear_rows(const node_matrix_t *w, uint32_t panel, const uint8_t *ahead, const node_acts_t *a,
                               uint32_t row, float *out, size_t out_stride, const int nr, const uint32_t type)
{
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32);
    const uint8_t *group = w->data + panel * w->panel_bytes;
    const pair_t *x = (const pair_t *)(const void *)(a->q + row * a->stride);
    size_t at = row * a->group_stride;
    v16 acc[5];
    UNROLL
    for (int r = 0; r < nr; r++)
        acc[r] = v16_set1(0.0f);
    for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
        __m256i s[10];
        if (ahead != NULL)
            for (size_t i = 0; i < bytes; i += 64, ahead += 64)
                node_ask(ahead, nr < 4);
        group_sums(s, group, a, x, at, g, nr, type);
        add_group(acc, s, (const uint16_t *)(const void *)(group + codes), a, at + g, nr, type);
    }
    UNROLL
    for (int r = 0; r < nr; r++)
        store_outputs(w, panel, out + (size_t)r * out_stride, acc[r]);
}

/* Few rows, panel after panel: memory takes longer than the arithmetic. */
LINEAR_INLINE void linear_stream(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                                 const node_acts_t *a, uint32_t row, float *out, size_t out_stride, const int nr,
                                 const uint32_t type)
{
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32), at = row * a->group_stride;
    const pair_t *x = (const pair_t *)(const void *)(a->q + row * a->stride);
    const uint8_t *group = w->data + panel * w->panel_bytes;
    stream_t stream = stream_begin(group, (panel_end - panel) * w->panel_bytes, ahead);
    for (; panel < panel_end; panel++) {
        v16 acc[STREAM_ROWS];
        UNROLL
        for (int r = 0; r < nr; r++)
            acc[r] = v16_set1(0.0f);
        for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
            __m256i s[2 * STREAM_ROWS];
            stream_ask(&stream, group, bytes);
            group_sums(s, group, a, x, at, g, nr, type);
            add_group(acc, s, (const uint16_t *)(const void *)(group + codes), a, at + g, nr, type);
        }
        UNROLL
        for (int r = 0; r < nr; r++)
            store_outputs(w, panel, out + (size_t)r * out_stride, acc[r]);
    }
}

/* As few tiles of one or two rows as can be: they unpack for little. */
static inline uint32_t tile_rows(uint32_t left)
{
    if (left >= 5 && left % 4 != 0 && left != 6)
        return 5;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* A tile of rows and the panels of the call stay in L1 together. */
LINEAR_INLINE void linear_type(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                               const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride,
                               const uint32_t type)
{
    switch (n_rows) {
    case 1: linear_stream(w, panel, panel_end, ahead, a, row, out, out_stride, 1, type); return;
    case 2: linear_stream(w, panel, panel_end, ahead, a, row, out, out_stride, 2, type); return;
    case 3: linear_stream(w, panel, panel_end, ahead, a, row, out, out_stride, 3, type); return;
    case 4: linear_stream(w, panel, panel_end, ahead, a, row, out, out_stride, 4, type); return;
    default: break;
    }
    for (uint32_t r = 0, nr; r < n_rows; r += nr) {
        nr = tile_rows(n_rows - r);
        for (uint32_t p = panel; p < panel_end; p++) {
            const uint8_t *next = ahead != NULL && r == 0 ? ahead + (p - panel) * w->panel_bytes : NULL;
            float *y = out + r * out_stride;
            switch (nr) {
            case 5: linear_rows(w, p, next, a, row + r, y, out_stride, 5, type); break;
            case 4: linear_rows(w, p, next, a, row + r, y, out_stride, 4, type); break;
            case 2: linear_rows(w, p, next, a, row + r, y, out_stride, 2, type); break;
            default: linear_rows(w, p, next, a, row + r, y, out_stride, 1, type);
            }
        }
    }
}

static void linear_quantised(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                             const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride)
{
    if (w->type == NODE_W_Q4_1)
        linear_type(w, panel, panel_end, ahead, a, row, n_rows, out, out_stride, NODE_W_Q4_1);
    else if (w->type == NODE_W_Q8_0)
        linear_type(w, panel, panel_end, ahead, a, row, n_rows, out, out_stride, NODE_W_Q8_0);
    else
        linear_type(w, panel, panel_end, ahead, a, row, n_rows, out, out_stride, NODE_W_Q4_0);
}
