/*
 * Full KV with a little noise: every number times 1 + eps * u, u in [-1, 1) from a counter-based hash of (seed, layer,
 * key or value, head, absolute position, channel). For tests: a drafter of any badness whose output must still be
 * exact, and the same bytes wherever the block was cut or computed.
 */
#include "compress/codec_int.h"
#include "kernels/numerics.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static const node_param_t noise_params[] = {
    {"eps", NODE_PARAM_REAL, offsetof(node_spec_t, eps), 0, 100, 1e-3, NULL},
    {"seed", NODE_PARAM_UINT64, offsetof(node_spec_t, seed), 0, 0, 1, NULL},
};

typedef struct noise_plan {
    const node_spec_t *spec;
    const node_compress_in_t *in;
} noise_plan_t;

static vc_status_t noise_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    spec->keep = 1.0;
    return node_params_parse(spec, "noise", params, noise_params, VC_ARRAY_LEN(noise_params), err);
}

/* The finaliser of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Start of the stream of one row: channels add multiples of an odd constant. */
static uint64_t row_stream(uint64_t seed, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t position)
{
    uint64_t x = mix(seed + 0x9e3779b97f4a7c15ull);
    x = mix(x ^ ((uint64_t)layer << 32 | head << 1 | is_v));
    return mix(x ^ position);
}

static uint16_t noisy(uint16_t h, uint64_t stream, uint32_t channel, float eps)
{
    uint64_t z = mix(stream + (channel + 1) * 0x9e3779b97f4a7c15ull);
    float u = (float)(int32_t)(uint32_t)(z >> 40) * 0x1p-23f - 1.0f;
    float x = node_f32_from_f16(h);
    float delta = eps * u;
    return node_f16_from_f32(x + x * delta); /* saturates: never infinite */
}

static vc_status_t noise_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    noise_plan_t *plan = vc_calloc(1, sizeof(*plan));
    if (plan == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    *plan = (noise_plan_t){spec, in};
    *plan_p = plan;
    return VC_OK;
}

static uint32_t noise_layer_bytes(const void *plan, uint32_t block, uint32_t layer)
{
    (void)block, (void)layer;
    const node_model_info_t *m = ((const noise_plan_t *)plan)->in->model;
    return m->n_kv_head * node_dropper_head_bytes(NODE_TILE, m->head_dim);
}

/* Rows [row][dim], in place, after node_dropper_encode_head has put them there. */
static void add_noise(uint8_t *rows, uint32_t dim, uint32_t block, uint64_t seed, float eps, uint32_t layer,
                      uint32_t is_v, uint32_t head)
{
    for (uint32_t row = 0; row < NODE_TILE; row++) {
        uint64_t stream = row_stream(seed, layer, is_v, head, block * NODE_TILE + row);
        for (uint32_t c = 0; c < dim; c++, rows += 2)
            vc_put_le16(rows, noisy(vc_le16(rows), stream, c, eps));
    }
}

static void noise_encode(const void *arg, uint32_t block, uint32_t layer, void *part)
{
    const noise_plan_t *plan = arg;
    const uint32_t dim = plan->in->model->head_dim;
    const float eps = (float)plan->spec->eps;
    node_page_t *page = node_kv_page_at(plan->in->kv, block);
    uint8_t *at = part;
    for (uint32_t h = 0; h < plan->in->model->n_kv_head; h++) {
        uint8_t *rows = at + NODE_BITMAP_BYTES;
        at = node_dropper_encode_head(at, page, layer, h, dim, UINT64_MAX);
        add_noise(rows, dim, block, plan->spec->seed, eps, layer, 0, h);
        add_noise(rows + (size_t)NODE_TILE * dim * 2, dim, block, plan->spec->seed, eps, layer, 1, h);
    }
}

const node_codec_ops_t node_codec_noise = {
    .name = "noise",
    .params_help = "eps=0.001 seed=1",
    .kind = VC_KVREC_DROPPER,
    .parse = noise_parse,
    .bits = node_dropper_bits,
    .needs = node_codec_no_need,
    .window_tokens = node_codec_no_need,
    .sink_blocks = node_codec_no_need,
    .plan = noise_plan,
    .layer_bytes = noise_layer_bytes,
    .encode = noise_encode,
    .plan_free = vc_free,
    .decode = node_dropper_decode,
};
