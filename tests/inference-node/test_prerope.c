/* Keys before RoPE from f16 pages and back: golden vectors of every scaling, partial rotation, equal bits on every ISA.
 */
#include <math.h>
#include <string.h>

#include "compress/prerope.h"
#include "kernels/numerics.h"
#include "model/rope.h"
#include "support/golden.h"
#include "support/vc_test.h"
#include "vc/mem.h"

enum { TILE = NODE_HEAD_DIM_MAX * NODE_TILE };

static node_model_info_t model_of(uint32_t head_dim, uint32_t rope_dims, const float *inv_freq, float mscale)
{
    node_model_info_t m = {
        .head_dim = head_dim, .rope_dims = rope_dims, .rope_inv_freq = inv_freq, .rope_mscale = mscale};
    return m;
}

/* One token's rows in the place of its position. */
static void put_row(uint16_t *k, const float *row, uint32_t d, uint32_t t)
{
    for (uint32_t c = 0; c < d; c++)
        k[c * NODE_TILE + t] = node_f16_from_f32(row[c]);
}

static double worst_pair(const float *x, uint32_t d)
{
    double top = 0;
    for (uint32_t c = 0; c < d; c++)
        top = fmax(top, fabs((double)x[c]));
    return top;
}

static void check_case(const golden_case_t *c)
{
    golden_tensor_t pos = golden_in(c, "positions"), pre = golden_in(c, "k_pre");
    golden_tensor_t post = golden_out(c, "k_post"), freq = golden_out(c, "inv_freq");
    const uint32_t d = (uint32_t)golden_int(c, "d"), heads = (uint32_t)golden_int(c, "H");
    node_model_info_t model = model_of(d, d, freq.f32, (float)golden_num(c, "m"));
    node_prerope_t *p = node_prerope_create(&model);
    cr_assert_not_null(p);
    static uint16_t k[TILE], back[TILE];
    static float got[TILE];
    for (size_t i = 0; i < pos.n; i++)
        for (uint32_t h = 0; h < heads; h++) {
            const float *before = pre.f32 + (i * heads + h) * d, *after = post.f32 + (i * heads + h) * d;
            const uint32_t t = pos.u32[i] % NODE_TILE;
            memset(k, 0, sizeof k);
            put_row(k, after, d, t);
            node_prerope_set_block(p, pos.u32[i] / NODE_TILE);
            node_prerope_undo(p, k, got);
            const double one = worst_pair(after, d) * 0x1p-11 * 1.5; /* the key's own rounding to f16, turned */
            for (uint32_t e = 0; e < d; e++)
                cr_assert(fabs((double)got[e * NODE_TILE + t] - (double)before[e]) <= one,
                          "%s: position %u head %u channel %u", c->name, pos.u32[i], h, e);
            node_prerope_apply(p, got, back);
            for (uint32_t e = 0; e < d; e++) {
                double want = node_f32_from_f16(k[e * NODE_TILE + t]),
                       have = node_f32_from_f16(back[e * NODE_TILE + t]);
                cr_assert(fabs(have - want) <= 1e-5 + fabs(want) * 0x1p-10, "%s: position %u channel %u", c->name,
                          pos.u32[i], e);
            }
            for (uint32_t e = 0; e < d; e++)
                got[e * NODE_TILE + t] = before[e];
            node_prerope_apply(p, got, back);
            for (uint32_t e = 0; e < d; e++) {
                double want = after[e], have = node_f32_from_f16(back[e * NODE_TILE + t]);
                cr_assert(fabs(have - want) <= 1e-6 + fabs(want) * 0x1p-11, "%s: position %u channel %u", c->name,
                          pos.u32[i], e);
            }
        }
    node_prerope_destroy(p);
    golden_tensor_free(&pos), golden_tensor_free(&pre), golden_tensor_free(&post), golden_tensor_free(&freq);
}

Test(prerope, every_scaling_and_its_factor_goes_back_and_forth_as_the_golden_vectors_say)
{
    golden_t *g = golden_open("rope");
    cr_assert_eq(golden_n_cases(g), 6u);
    for (size_t i = 0; i < golden_n_cases(g); i++) {
        golden_case_t c = golden_case_at(g, i);
        check_case(&c);
    }
    golden_close(g);
}

static void fill_keys(uint16_t *k, uint32_t d, uint32_t seed)
{
    for (uint32_t i = 0; i < d * NODE_TILE; i++)
        k[i] = node_f16_from_f32((float)(8.0 * golden_u(seed, i)));
}

Test(prerope, scaled_frequencies_of_the_model_are_used_and_not_plain_theta)
{
    const node_rope_t scaled = {.kind = NODE_ROPE_LLAMA3,
                                .dims = 64,
                                .theta = 500000,
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_context = 8192};
    const node_rope_t plain = {.dims = 64, .theta = 500000, .factor = 1};
    float freq[32], plain_freq[32], m, pre[64], cos[32], sin[32];
    node_rope_inv_freq(&scaled, freq, &m);
    node_rope_inv_freq(&plain, plain_freq, &m);
    const uint32_t position = 64 * 40 + 17;
    static uint16_t k[TILE];
    static float got[TILE], wrong[TILE];
    golden_fill(7, 2.0, pre, 64);
    float key[64];
    memcpy(key, pre, sizeof key);
    node_rope_table(freq, 32, 1.0f, position, cos, sin);
    node_ops_scalar.rope(key, cos, sin, 32);
    put_row(k, key, 64, 17);
    node_model_info_t model = model_of(64, 64, freq, 1.0f), other = model_of(64, 64, plain_freq, 1.0f);
    node_prerope_t *p = node_prerope_create(&model), *q = node_prerope_create(&other);
    node_prerope_set_block(p, 40), node_prerope_set_block(q, 40);
    node_prerope_undo(p, k, got), node_prerope_undo(q, k, wrong);
    double off = 0, off_plain = 0;
    for (uint32_t c = 0; c < 64; c++) {
        off = fmax(off, fabs((double)got[c * NODE_TILE + 17] - (double)pre[c]));
        off_plain = fmax(off_plain, fabs((double)wrong[c * NODE_TILE + 17] - (double)pre[c]));
    }
    cr_assert(off < 3e-3, "%g", off);
    cr_assert(off_plain > 0.1, "%g: the two frequencies are told apart", off_plain);
    node_prerope_destroy(p), node_prerope_destroy(q);
}

Test(prerope, channels_pair_with_the_one_half_a_head_away_and_not_with_their_neighbour)
{
    const float freq[2] = {1.0f, 0.5f};
    node_model_info_t model = model_of(16, 4, freq, 1.0f);
    node_prerope_t *p = node_prerope_create(&model);
    static uint16_t k[TILE];
    static float pre[TILE];
    put_row(k, (const float[16]){1, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 16, 3);
    node_prerope_set_block(p, 0);
    node_prerope_undo(p, k, pre);
    const double want[4] = {cos(3.0), 0, -sin(3.0), 0};
    for (uint32_t c = 0; c < 4; c++)
        cr_assert(fabs((double)pre[c * NODE_TILE + 3] - want[c]) < 1e-6, "channel %u", c);
    for (uint32_t c = 4; c < 16; c++)
        cr_assert_eq(pre[c * NODE_TILE + 3], (float)(c + 1), "channel %u is not rotated", c);
    node_prerope_apply(p, pre, k);
    cr_assert_eq(k[0 * NODE_TILE + 3], node_f16_from_f32(1.0f));
    cr_assert_eq(k[15 * NODE_TILE + 3], node_f16_from_f32(16.0f));
    node_prerope_destroy(p);
}

Test(prerope, all_isas_give_the_same_bits)
{
    static const struct {
        uint32_t d, dims;
        float m;
    } shapes[] = {{64, 64, 1.0f}, {80, 80, 1.2f}, {128, 64, 1.0f}, {16, 6, 0.7f}, {256, 256, 1.0f}};
    static uint16_t k[TILE], back[2][TILE];
    static float pre[2][TILE];
    for (size_t i = 0; i < VC_ARRAY_LEN(shapes); i++) {
        const node_rope_t rope = {.dims = shapes[i].dims, .theta = 10000, .factor = 1};
        float freq[128], m;
        node_rope_inv_freq(&rope, freq, &m);
        node_model_info_t model = model_of(shapes[i].d, shapes[i].dims, freq, shapes[i].m);
        fill_keys(k, shapes[i].d, (uint32_t)i + 1);
        k[5] = 0x7bff, k[7] = 0x8000, k[9] = 1;
        const size_t n = shapes[i].d * NODE_TILE;
        for (int level = NODE_OPS_SCALAR; level <= NODE_OPS_AVX512; level++) {
            node_prerope_t *p = node_prerope_create_level(&model, (node_ops_level_t)level);
            const int at = level != NODE_OPS_SCALAR;
            if (p == NULL)
                continue;
            node_prerope_set_block(p, 100);
            node_prerope_undo(p, k, pre[at]);
            node_prerope_apply(p, pre[at], back[at]);
            cr_assert_eq(memcmp(pre[0], pre[at], n * sizeof(float)), 0, "shape %zu level %d", i, level);
            cr_assert_eq(memcmp(back[0], back[at], n * sizeof(uint16_t)), 0, "shape %zu level %d", i, level);
            node_prerope_destroy(p);
        }
    }
}
