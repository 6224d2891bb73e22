/*
 * Linear layers as one would write them for AVX-512 VNNI if a row's bits might depend on how it is computed. They share
 * unpacking, integer dot products, layouts and blocking with our kernels, which leave no trace in the bits, and differ
 * where the contract says how floats are combined: even and odd groups, scales and minima have accumulators of their
 * own while there are few rows.
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
