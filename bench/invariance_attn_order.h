/*
 * Attention as it may be where a row's bits do not matter, in place of kernels/attn_order.h: blocks with too few sums
 * in registers to hide the waits of a multiply-add have FREE_CHAINS for each, and the sum of a query's probabilities
 * stays a vector over all tiles: l is [n_q][16], its lanes are added once, at the end.
 */

INLINE void chain_step(v16 sum[ATTN_NQ][ATTN_NS], const uint16_t *mat, const uint16_t *ahead, share_t share,
                       size_t mat_stride, const float *coef, size_t coef_stride, uint32_t r, bool once, const int nq,
                       const int ns)
{
    ask_row(ahead, share, r, mat_stride, once, ns);
    chain_row(sum, mat + r * mat_stride, coef + r, coef_stride, nq, ns);
}

INLINE void chains(v16 acc[ATTN_NQ][ATTN_NS], const uint16_t *mat, const uint16_t *ahead, share_t share,
                   size_t mat_stride, const float *coef, size_t coef_stride, uint32_t n, bool once, const int nq,
                   const int ns)
{
    const int more = FREE_CHAINS(nq, ns) - 1;
    v16 sum[3][ATTN_NQ][ATTN_NS];
    for (int q = 0; q < nq; q++)
        for (int s = 0; s < ns; s++)
            sum[0][q][s] = sum[1][q][s] = sum[2][q][s] = v16_set1(0.0f);
    uint32_t r = 0;
    for (; r + (uint32_t)more < n; r += 1 + (uint32_t)more) {
        chain_step(acc, mat, ahead, share, mat_stride, coef, coef_stride, r, once, nq, ns);
        if (more > 0)
            chain_step(sum[0], mat, ahead, share, mat_stride, coef, coef_stride, r + 1, once, nq, ns);
        if (more > 1)
            chain_step(sum[1], mat, ahead, share, mat_stride, coef, coef_stride, r + 2, once, nq, ns);
        if (more > 2)
            chain_step(sum[2], mat, ahead, share, mat_stride, coef, coef_stride, r + 3, once, nq, ns);
    }
    for (; r < n; r++)
        chain_step(acc, mat, ahead, share, mat_stride, coef, coef_stride, r, once, nq, ns);
    for (int q = 0; q < nq; q++)
        for (int s = 0; s < ns; s++) {
            if (more > 1)
                sum[1][q][s] = v16_add(sum[1][q][s], sum[2][q][s]);
            if (more > 0)
                acc[q][s] = v16_add(acc[q][s], v16_add(sum[0][q][s], sum[1][q][s]));
        }
}

INLINE void add_sums(const node_attn_t *a, uint32_t q0, const v16 *x, v16 factor, const int nq)
{
    float f[16];
    v16_store(f, factor);
    for (int q = 0; q < nq; q++) {
        float *l = a->l + (q0 + (size_t)q) * 16;
        v16_store(l, v16_fma(v16_load(l), v16_set1(f[q]), x[q]));
    }
}
