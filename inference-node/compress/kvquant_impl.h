/*
 * KVQuant's arithmetic over 16 lanes, compiled once per ISA: the including file has chosen the vectors
 * (kernels/vec_*.h) and defines KVQUANT_OPS, the name of its table. Per lane only, and comparisons give whole numbers:
 * the same bits everywhere.
 */
#include "compress/kvquant_int.h"

static void widen(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        v16_store(dst + i, v16_load_f16(src + i));
}

static void codes(const float *x, uint32_t n, float rho, float z, const float *mids, uint32_t n_mids, uint8_t *out)
{
    const v16 scale = v16_set1(rho == 0.0f ? __builtin_inff() : rho), zero = v16_set1(z);
    for (uint32_t i = 0; i < n; i += 16) {
        float y[16];
        int32_t above[16] = {0};
        v16_store(y, v16_div(v16_sub(v16_load(x + i), zero), scale));
        for (uint32_t m = 0; m < n_mids; m++)
            for (int j = 0; j < 16; j++)
                above[j] += y[j] > mids[m];
        for (int j = 0; j < 16; j++)
            out[i + (uint32_t)j] = (uint8_t)(rho == 0.0f ? 0 : above[j]);
    }
}

static uint64_t outside(const float *x, float low, float high)
{
    uint64_t mask = 0;
    uint8_t flag[NODE_TILE];
    for (uint32_t i = 0; i < NODE_TILE; i++)
        flag[i] = (uint8_t)((x[i] < low) | (x[i] > high));
    for (uint32_t i = 0; i < NODE_TILE; i += 8) { /* eight bytes of 0 or 1 to eight bits */
        uint64_t w;
        memcpy(&w, flag + i, 8);
        mask |= (w * 0x0102040810204080ull >> 56) << i;
    }
    return mask;
}

const node_kvquant_ops_t KVQUANT_OPS = {widen, codes, outside};
