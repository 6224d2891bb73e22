/*
 * The order in which attention adds floats, which the numerics contract fixes; included by ops_impl.h. What attention
 * does besides leaves no trace in the bits. Whoever defines ATTN_ORDER includes another file with the same functions:
 * bench_invariance measures with one what the fixed order costs.
 */

/* acc[q][s] += sum over r of mat[r][16 s ...] * coef[q][r], r ascending: scores (mat = K, lanes = tokens, r = dim) and
 * outputs (mat = V, lanes = dims, r = token) are the same loop. ahead: the same rows of the tile that comes next, asked
 * for from memory meanwhile; NULL where there is none. */
INLINE void chains(v16 acc[ATTN_NQ][ATTN_NS], const uint16_t *mat, const uint16_t *ahead, share_t share,
                   size_t mat_stride, const float *coef, size_t coef_stride, uint32_t n, bool once, const int nq,
                   const int ns)
{
    for (uint32_t r = 0; r < n; r++) {
        ask_row(ahead, share, r, mat_stride, once, ns);
        chain_row(acc, mat + r * mat_stride, coef + r, coef_stride, nq, ns);
    }
}

/* The sums of a block's queries over a tile: l = l * factor + the lanes of x, sixteen queries as one vector. */
INLINE void add_sums(const node_attn_t *a, uint32_t q0, const v16 *x, v16 factor, const int nq)
{
    v16 l = v16_fma(v16_load_n(a->l + q0, (uint32_t)nq), factor, v16_sum_each(x, nq));
    v16_store_n(a->l + q0, l, (uint32_t)nq);
}
