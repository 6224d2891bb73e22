/* RoPE against the golden vectors: frequencies, the YaRN factor, and rotated keys at nine positions. */
#include <math.h>
#include <string.h>

#include "kernels/ops.h"
#include "model/rope.h"
#include "support/golden.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static node_rope_t rope_of(const golden_case_t *c)
{
    node_rope_t r = {.dims = (uint32_t)golden_int(c, "d"), .theta = golden_num(c, "rope_theta"), .factor = 1};
    const char *type = golden_str(c, "rope_type");
    if (golden_has(c, "factor"))
        r.factor = golden_num(c, "factor");
    if (golden_has(c, "original_max_position_embeddings"))
        r.original_context = (uint32_t)golden_int(c, "original_max_position_embeddings");
    r.attn_factor = 1;
    r.beta_fast = 32;
    r.beta_slow = 1;
    if (strcmp(type, "linear") == 0)
        r.kind = NODE_ROPE_LINEAR;
    else if (strcmp(type, "yarn") == 0)
        r.kind = NODE_ROPE_YARN;
    else if (strcmp(type, "llama3") == 0) {
        r.kind = NODE_ROPE_LLAMA3;
        r.low_freq_factor = golden_num(c, "low_freq_factor");
        r.high_freq_factor = golden_num(c, "high_freq_factor");
    } else {
        cr_assert_str_eq(type, "default");
    }
    return r;
}

static void check_rotation(const golden_case_t *c, const node_rope_t *r, const float *inv_freq, float mscale)
{
    golden_tensor_t pos = golden_in(c, "positions"), pre = golden_in(c, "k_pre"), post = golden_out(c, "k_post");
    uint32_t d = r->dims, heads = (uint32_t)golden_int(c, "H");
    float cos[128], sin[128];
    for (size_t i = 0; i < pos.n; i++) {
        node_rope_table(inv_freq, d / 2, mscale, pos.u32[i], cos, sin);
        for (uint32_t h = 0; h < heads; h++) {
            float *head = pre.f32 + (i * heads + h) * d;
            node_ops_scalar.rope(head, cos, sin, d / 2);
            for (uint32_t k = 0; k < d; k++)
                cr_assert(fabs((double)head[k] - (double)post.f32[(i * heads + h) * d + k]) <= 1e-6,
                          "%s: position %u head %u dim %u", c->name, pos.u32[i], h, k);
        }
    }
    golden_tensor_free(&pos), golden_tensor_free(&pre), golden_tensor_free(&post);
}

Test(rope, every_kind_matches_the_golden_vectors)
{
    golden_t *g = golden_open("rope");
    cr_assert_eq(golden_n_cases(g), 6u);
    for (size_t i = 0; i < golden_n_cases(g); i++) {
        golden_case_t c = golden_case_at(g, i);
        node_rope_t r = rope_of(&c);
        float inv_freq[128], mscale;
        node_rope_inv_freq(&r, inv_freq, &mscale);
        cr_assert(fabs((double)mscale - golden_num(&c, "m")) < 1e-7, "%s: m", c.name);
        golden_tensor_t want = golden_out(&c, "inv_freq");
        for (size_t k = 0; k < want.n; k++)
            cr_assert(fabs((double)inv_freq[k] / (double)want.f32[k] - 1) <= 2e-7, "%s: inv_freq %zu", c.name, k);
        check_rotation(&c, &r, want.f32, mscale);
        golden_tensor_free(&want);
    }
    golden_close(g);
}

Test(rope, divisors_divide_the_frequencies)
{
    float divisors[4] = {1, 2, 4, 8}, plain[4], divided[4], m;
    node_rope_t r = {.dims = 8, .theta = 10000, .factor = 1};
    node_rope_inv_freq(&r, plain, &m);
    r.kind = NODE_ROPE_LLAMA3;
    r.divisors = divisors;
    node_rope_inv_freq(&r, divided, &m);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(divided[i], plain[i] / divisors[i]);
    cr_assert_eq(m, 1.0f);
}

Test(rope, the_text_tells_every_kind_and_parameter_apart)
{
    node_rope_t r[] = {
        {.dims = 64, .theta = 100000},
        {.dims = 64, .theta = 10000},
        {.dims = 32, .theta = 100000},
        {.kind = NODE_ROPE_LINEAR, .dims = 64, .theta = 100000, .factor = 4},
        {.kind = NODE_ROPE_YARN, .dims = 64, .theta = 100000, .factor = 4, .original_context = 2048},
        {.kind = NODE_ROPE_YARN, .dims = 64, .theta = 100000, .factor = 4, .original_context = 4096},
        {.kind = NODE_ROPE_LLAMA3, .dims = 64, .theta = 100000, .factor = 4, .original_context = 4096},
    };
    char text[VC_ARRAY_LEN(r)][256];
    for (size_t i = 0; i < VC_ARRAY_LEN(r); i++) {
        node_rope_text(&r[i], text[i], sizeof text[i]);
        for (size_t j = 0; j < i; j++)
            cr_assert(strcmp(text[i], text[j]) != 0, "%s", text[i]);
    }
    cr_assert_str_eq(text[0], "neox theta=100000 dims=64");
    char small[8];
    node_rope_text(&r[4], small, sizeof small);
    cr_assert_eq(strlen(small), 7u);
}
