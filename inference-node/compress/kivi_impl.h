/*
 * KIVI's quantiser over 16 lanes, compiled once per ISA: the including file has chosen the vectors (kernels/vec_*.h)
 * and defines KIVI_QUANTISE, the name of its function. The steps are those of kivi_int.h on whole vectors, so the bits
 * are the same everywhere.
 */
#include "compress/kivi_int.h"
#include "vc/bytes.h"

static inline void code_group(const uint16_t *x, uint32_t n, float scale, float min, uint32_t bits, uint8_t *codes)
{
    const v16 zero = v16_set1(0.0f), low = v16_set1(-node_kivi_levels(bits));
    int16_t wide[NODE_KIVI_GROUP_MAX];
    uint8_t code[NODE_KIVI_GROUP_MAX];
    int32_t unused = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        v16 t = v16_div(v16_sub(v16_load_f16(x + i), v16_set1(min)), v16_set1(scale));
        t = v16_neg(v16_max(v16_neg(v16_max(t, zero)), low));
        v16_store_i16(wide + i, t, &unused); /* rounds half to even */
    }
    for (uint32_t i = 0; i < n; i++)
        code[i] = (uint8_t)wide[i];
    node_kivi_pack(codes, code, n, bits);
}

void KIVI_QUANTISE(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes, uint8_t *scales,
                   uint8_t *mins)
{
    for (uint32_t g = 0; g < n_groups; g++, x += group, codes += group * bits / 8) {
        v16 top = v16_load_f16(x), low = v16_neg(top);
        for (uint32_t i = 16; i < group; i += 16) {
            v16 v = v16_load_f16(x + i);
            top = v16_max(v, top);
            low = v16_max(v16_neg(v), low);
        }
        node_kivi_params_t p = node_kivi_params(-v16_hmax(low) + 0.0f, v16_hmax(top) + 0.0f, bits);
        vc_put_le16(scales + 2 * g, p.scale16);
        vc_put_le16(mins + 2 * g, p.min16);
        if (p.scale16 == 0)
            memset(codes, 0, group * bits / 8);
        else
            code_group(x, group, node_f32_from_f16(p.scale16), node_f32_from_f16(p.min16), bits, codes);
    }
}
