/* exp2 and exp of 16 lanes, the steps of numerics.h on whole vectors. Needs v16_round, v16_scale2 and v16_range. */
#ifndef NODE_VEC_EXP_H
#define NODE_VEC_EXP_H

static inline v16 v16_exp2(v16 x)
{
    v16 n = v16_round(x), r = v16_sub(x, n);
    v16 q = v16_fma(v16_set1(NODE_EXP2_C5), r, v16_set1(NODE_EXP2_C4));
    q = v16_fma(q, r, v16_set1(NODE_EXP2_C3));
    q = v16_fma(q, r, v16_set1(NODE_EXP2_C2));
    q = v16_fma(q, r, v16_set1(NODE_EXP2_C1));
    q = v16_fma(q, r, v16_set1(NODE_EXP2_C0));
    return v16_range(x, NODE_EXP2_MIN, NODE_EXP2_MAX, v16_scale2(v16_fma(q, r, v16_set1(1.0f)), n));
}

static inline v16 v16_exp(v16 x)
{
    v16 n = v16_round(v16_mul(x, v16_set1(NODE_LOG2E))), m = v16_neg(n);
    v16 r = v16_fma(m, v16_set1(NODE_LN2_HI), x);
    r = v16_fma(m, v16_set1(NODE_LN2_LO), r);
    v16 q = v16_fma(v16_set1(NODE_EXP_C5), r, v16_set1(NODE_EXP_C4));
    q = v16_fma(q, r, v16_set1(NODE_EXP_C3));
    q = v16_fma(q, r, v16_set1(NODE_EXP_C2));
    q = v16_fma(q, r, v16_set1(NODE_EXP_C1));
    q = v16_fma(q, r, v16_set1(NODE_EXP_C0));
    return v16_range(x, NODE_EXP_MIN, NODE_EXP_MAX, v16_scale2(v16_fma(q, r, v16_set1(1.0f)), n));
}

#endif
