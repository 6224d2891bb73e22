/*
 * Integer linear of AVX-512: 16 outputs in a register, two panels and up to eight rows at a time, so that a pair of
 * inputs is broadcast once for 32 outputs. A word of codes is unpacked into registers of 16-bit pairs and met with
 * all rows before the next one. DOT is vpdpwssd where the CPU has it, else vpmaddwd and an addition: the sums are exact
 * integers, so both give the same bits, in any order.
 */
#include "kernels/linear_stream.h"

typedef int32_t __attribute__((may_alias)) pair_t;

#ifdef DOT_VNNI
#define DOT(acc, w, x) _mm512_dpwssd_epi32(acc, w, x)
#else
#define DOT(acc, w, x) _mm512_add_epi32(acc, _mm512_madd_epi16(w, x))
#endif
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Ends a sum for the compiler: GCC would reorder the integer additions into a tree that needs more registers. */
#define KEEP(v) __asm__("" : "+v"(v))

#define LINEAR_INLINE static inline __attribute__((always_inline))

enum { LINEAR_ROWS = 8, LINEAR_PANELS = 2, STREAM_ROWS = 1 };

/* Four registers of pairs: inputs 8 k ... of 4-bit codes, 8 k ... as two words of 8-bit ones. */
LINEAR_INLINE void unpack_word(const uint8_t *group, int k, __m512i c[4], const uint32_t type)
{
    if (type == NODE_W_Q8_0) {
        const __m512i w = _mm512_loadu_si512(group + k * 128), z = _mm512_loadu_si512(group + k * 128 + 64);
        c[0] = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
        c[1] = _mm512_srai_epi16(w, 8);
        c[2] = _mm512_srai_epi16(_mm512_slli_epi16(z, 8), 8);
        c[3] = _mm512_srai_epi16(z, 8);
        return;
    }
    const __m512i low = _mm512_set1_epi32(0x000f000f), w = _mm512_loadu_si512(group + k * 64);
    c[0] = _mm512_and_si512(w, low);
    c[1] = _mm512_and_si512(_mm512_srli_epi32(w, 4), low);
    c[2] = _mm512_and_si512(_mm512_srli_epi32(w, 8), low);
    c[3] = _mm512_and_si512(_mm512_srli_epi32(w, 12), low);
}

/* Exact dot products of a group; few rows have parts of their sums apart, so that one addition need not wait for the
 * last. */
LINEAR_INLINE void dot_group(__m512i s[LINEAR_ROWS][LINEAR_PANELS], const uint8_t *group, size_t panel_bytes,
                             const int16_t *x, size_t stride, const int nr, const int np, const uint32_t type)
{
    __m512i part[2][LINEAR_PANELS][3];
    const int parts = nr <= 2 ? 4 : 1;
    for (int r = 0; r < nr && parts > 1; r++)
        for (int p = 0; p < np; p++)
            for (int i = 0; i < parts - 1; i++)
                part[r][p][i] = _mm512_setzero_si512();
    UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i c[LINEAR_PANELS][4];
        for (int p = 0; p < np; p++)
            unpack_word(group + (size_t)p * panel_bytes, k, c[p], type);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const pair_t *at = (const pair_t *)(const void *)(x + (size_t)r * stride) + 4 * k;
            UNROLL
            for (int j = 0; j < 4; j++) {
                const __m512i v = _mm512_set1_epi32(at[j]);
                for (int p = 0; p < np; p++) {
                    __m512i *sum = parts == 1 || j == 0 ? &s[r][p] : &part[r][p][j - 1];
                    *sum = DOT(*sum, c[p][j], v);
                    KEEP(*sum);
                }
            }
        }
    }
    for (int r = 0; r < nr && parts > 1; r++)
        for (int p = 0; p < np; p++)
            s[r][p] = _mm512_add_epi32(_mm512_add_epi32(s[r][p], part[r][p][0]),
                                       _mm512_add_epi32(part[r][p][1], part[r][p][2]));
}

LINEAR_INLINE void linear_rows(const node_matrix_t *w, uint32_t panel, const uint8_t *ahead, const node_acts_t *a,
                               uint32_t row, float *out, size_t out_stride, const int nr, const int np,
                               const uint32_t type)
{
    v16 acc[LINEAR_ROWS][LINEAR_PANELS];
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < np; p++)
            acc[r][p] = _mm512_setzero_ps();
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32);
    const uint8_t *group = w->data + panel * w->panel_bytes;
    const int16_t *q = a->q + row * a->stride;
    size_t at = row * a->group_stride;
    for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
        __m512i s[LINEAR_ROWS][LINEAR_PANELS];
        if (ahead != NULL)
            for (size_t i = 0; i < np * bytes; i += 64, ahead += 64)
                node_ask(ahead, nr < LINEAR_ROWS);
        for (int r = 0; r < nr; r++)
            for (int p = 0; p < np; p++)
                s[r][p] = type == NODE_W_Q4_0 ? _mm512_set1_epi32(-8 * a->isum[at + (size_t)r * a->group_stride + g])
                                              : _mm512_setzero_si512();
        dot_group(s, group, w->panel_bytes, q + (size_t)g * NODE_GROUP, a->stride, nr, np, type);
        for (int p = 0; p < np; p++) {
            const uint16_t *d = (const uint16_t *)(const void *)(group + (size_t)p * w->panel_bytes + codes);
            const v16 scale = v16_load_f16(d), min = type == NODE_W_Q4_1 ? v16_load_f16(d + 16) : v16_set1(0.0f);
            UNROLL
            for (int r = 0; r < nr; r++) {
                const size_t i = at + (size_t)r * a->group_stride + g;
                v16 t = _mm512_mul_ps(_mm512_cvtepi32_ps(s[r][p]), _mm512_set1_ps(a->scale[i]));
                acc[r][p] = _mm512_fmadd_ps(scale, t, acc[r][p]);
                if (type == NODE_W_Q4_1)
                    acc[r][p] = _mm512_fmadd_ps(min, _mm512_set1_ps(a->sum[i]), acc[r][p]);
            }
        }
    }
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < np; p++)
            store_outputs(w, panel + (uint32_t)p, out + (size_t)r * out_stride, acc[r][p]);
}

/* A lone row, panel after panel. */
LINEAR_INLINE void linear_stream(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                                 const node_acts_t *a, uint32_t row, float *out, const uint32_t type)
{
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32), at = row * a->group_stride;
    const uint8_t *group = w->data + panel * w->panel_bytes;
    stream_t stream = stream_begin(group, (panel_end - panel) * w->panel_bytes, ahead);
    for (; panel < panel_end; panel++) {
        v16 acc = _mm512_setzero_ps();
        for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
            __m512i s[LINEAR_ROWS][LINEAR_PANELS];
            stream_ask(&stream, group, bytes);
            s[0][0] = type == NODE_W_Q4_0 ? _mm512_set1_epi32(-8 * a->isum[at + g]) : _mm512_setzero_si512();
            dot_group(s, group, 0, a->q + row * a->stride + (size_t)g * NODE_GROUP, 0, 1, 1, type);
            const uint16_t *d = (const uint16_t *)(const void *)(group + codes);
            const v16 t = _mm512_mul_ps(_mm512_cvtepi32_ps(s[0][0]), _mm512_set1_ps(a->scale[at + g]));
            acc = _mm512_fmadd_ps(v16_load_f16(d), t, acc);
            if (type == NODE_W_Q4_1)
                acc = _mm512_fmadd_ps(v16_load_f16(d + 16), _mm512_set1_ps(a->sum[at + g]), acc);
        }
        store_outputs(w, panel, out, acc);
    }
}

/* A tile of rows and the panels of the call stay in L1 together. */
LINEAR_INLINE uint32_t linear_tiles(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                                    const node_acts_t *a, uint32_t row, uint32_t first, uint32_t n_rows, float *out,
                                    size_t out_stride, const int nr, const uint32_t type)
{
    uint32_t r = first;
    for (; r + (uint32_t)nr <= n_rows; r += (uint32_t)nr, ahead = NULL) {
        uint32_t p = panel;
        const uint8_t *at = r == 0 ? ahead : NULL;
        for (; p + 2 <= panel_end; p += 2, at += at != NULL ? 2 * w->panel_bytes : 0)
            linear_rows(w, p, at, a, row + r, out + r * out_stride, out_stride, nr, 2, type);
        if (p < panel_end)
            for (int i = 0; i < nr; i += nr < 4 ? nr : 4) /* in fours: a lone panel is rare */
                linear_rows(w, p, NULL, a, row + r + (uint32_t)i, out + (r + (size_t)i) * out_stride, out_stride,
                            nr < 4 ? nr : 4, 1, type);
    }
    return r;
}

LINEAR_INLINE void linear_type(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const uint8_t *ahead,
                               const node_acts_t *a, uint32_t row, uint32_t n_rows, float *out, size_t out_stride,
                               const uint32_t type)
{
    if (n_rows == 1) {
        linear_stream(w, panel, panel_end, ahead, a, row, out, type);
        return;
    }
    uint32_t r = linear_tiles(w, panel, panel_end, ahead, a, row, 0, n_rows, out, out_stride, 8, type);
    r = linear_tiles(w, panel, panel_end, ahead, a, row, r, n_rows, out, out_stride, 4, type);
    r = linear_tiles(w, panel, panel_end, ahead, a, row, r, n_rows, out, out_stride, 3, type);
    r = linear_tiles(w, panel, panel_end, ahead, a, row, r, n_rows, out, out_stride, 2, type);
    (void)linear_tiles(w, panel, panel_end, ahead, a, row, r, n_rows, out, out_stride, 1, type);
}

#ifndef LINEAR_PARTS_ONLY
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
#endif
