/*
 * Integer linear of AVX-512: 16 outputs in a register, the codes of a group unpacked once into 16 registers of 16-bit
 * pairs and used for up to eight rows. DOT is vpdpwssd where the CPU has it, else vpmaddwd and an addition: the sums
 * are exact integers, so both give the same bits.
 */
typedef int32_t __attribute__((may_alias)) pair_t;

#ifdef DOT_VNNI
#define DOT(acc, w, x) _mm512_dpwssd_epi32(acc, w, x)
#else
#define DOT(acc, w, x) _mm512_add_epi32(acc, _mm512_madd_epi16(w, x))
#endif

/* Ends a sum for the compiler: GCC would reorder the integer additions into a tree that needs more registers. */
#define KEEP(v) __asm__("" : "+v"(v))

#define LINEAR_INLINE static inline __attribute__((always_inline))

LINEAR_INLINE void unpack_group(const uint8_t *group, __m512i c[16], const uint32_t type)
{
    if (type == NODE_W_Q8_0) {
        for (int k = 0; k < 8; k++) {
            __m512i w = _mm512_loadu_si512(group + k * 64);
            c[2 * k] = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
            c[2 * k + 1] = _mm512_srai_epi16(w, 8);
        }
        return;
    }
    __m512i low = _mm512_set1_epi32(0x000f000f);
    for (int k = 0; k < 4; k++) {
        __m512i w = _mm512_loadu_si512(group + k * 64);
        c[4 * k] = _mm512_and_si512(w, low);
        c[4 * k + 1] = _mm512_and_si512(_mm512_srli_epi32(w, 4), low);
        c[4 * k + 2] = _mm512_and_si512(_mm512_srli_epi32(w, 8), low);
        c[4 * k + 3] = _mm512_and_si512(_mm512_srli_epi32(w, 12), low);
    }
}

LINEAR_INLINE void linear_rows(const node_matrix_t *w, uint32_t panel, const node_acts_t *a, uint32_t row, float *out,
                               size_t out_stride, const int nr, const uint32_t type)
{
    __m512 acc[8];
    for (int r = 0; r < nr; r++)
        acc[r] = _mm512_setzero_ps();
    const uint32_t codes = type == NODE_W_Q8_0 ? 512 : 256;
    const size_t bytes = codes + (type == NODE_W_Q4_1 ? 64 : 32);
    const uint8_t *group = w->data + panel * w->panel_bytes;
    const int16_t *q = a->q + row * a->stride;
    size_t at = row * a->group_stride;
    for (uint32_t g = 0; g < w->n_in / NODE_GROUP; g++, group += bytes) {
        __m512i c[16];
        unpack_group(group, c, type);
        v16 d = v16_load_f16((const uint16_t *)(const void *)(group + codes));
        v16 m = v16_set1(0.0f);
        if (type == NODE_W_Q4_1)
            m = v16_load_f16((const uint16_t *)(const void *)(group + codes + 32));
        for (int r = 0; r < nr; r++) {
            const pair_t *x = (const pair_t *)(const void *)(q + (size_t)r * a->stride + g * NODE_GROUP);
            size_t i = at + (size_t)r * a->group_stride + g;
            __m512i s0 = type == NODE_W_Q4_0 ? _mm512_set1_epi32(-8 * a->isum[i]) : _mm512_setzero_si512();
            __m512i s1 = _mm512_setzero_si512();
            for (int j = 0; j < 16; j += 2) {
                s0 = DOT(s0, c[j], _mm512_set1_epi32(x[j]));
                s1 = DOT(s1, c[j + 1], _mm512_set1_epi32(x[j + 1]));
                KEEP(s0);
                KEEP(s1);
            }
            v16 t = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(s0, s1)), _mm512_set1_ps(a->scale[i]));
            acc[r] = _mm512_fmadd_ps(d, t, acc[r]);
            if (type == NODE_W_Q4_1)
                acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a->sum[i]), acc[r]);
        }
    }
    for (int r = 0; r < nr; r++)
        store_outputs(w, panel, out + (size_t)r * out_stride, acc[r]);
}

/* A tile of rows and the panels of the call stay in L1 together. */
LINEAR_INLINE void linear_type(const node_matrix_t *w, uint32_t panel, uint32_t panel_end, const node_acts_t *a,
                               uint32_t row, uint32_t n_rows, float *out, size_t out_stride, const uint32_t type)
{
    uint32_t r = 0;
    for (; r + 8 <= n_rows; r += 8)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 8, type);
    for (; r + 4 <= n_rows; r += 4)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 4, type);
    for (; r + 2 <= n_rows; r += 2)
        for (uint32_t p = panel; p < panel_end; p++)
            linear_rows(w, p, a, row + r, out + r * out_stride, out_stride, 2, type);
    for (; r + 1 <= n_rows; r += 1)
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
