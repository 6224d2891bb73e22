/* The compressor that keeps everything: drafting from it must accept every token. The reference of all tests. */
#include "compress/codec_int.h"
#include "vc/mem.h"

typedef struct none_plan {
    const node_compress_in_t *in;
} none_plan_t;

static vc_status_t none_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    spec->keep = 1.0;
    return node_params_parse(spec, "none", params, NULL, 0, err);
}

static vc_status_t none_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    (void)spec;
    none_plan_t *plan = vc_calloc(1, sizeof(*plan));
    if (plan == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    plan->in = in;
    *plan_p = plan;
    return VC_OK;
}

static uint32_t none_layer_bytes(const void *plan, uint32_t block, uint32_t layer)
{
    (void)block, (void)layer;
    const node_model_info_t *m = ((const none_plan_t *)plan)->in->model;
    return m->n_kv_head * node_dropper_head_bytes(NODE_TILE, m->head_dim);
}

static void none_encode(const void *plan, uint32_t block, uint32_t layer, void *part)
{
    const node_compress_in_t *in = ((const none_plan_t *)plan)->in;
    node_page_t *page = node_kv_page_at(in->kv, block);
    uint8_t *at = part;
    for (uint32_t h = 0; h < in->model->n_kv_head; h++)
        at = node_dropper_encode_head(at, page, layer, h, in->model->head_dim, UINT64_MAX);
}

const node_codec_ops_t node_codec_none = {
    .name = "none",
    .params_help = "",
    .kind = VC_KVREC_DROPPER,
    .parse = none_parse,
    .bits = node_dropper_bits,
    .needs = node_codec_no_need,
    .window_tokens = node_codec_no_need,
    .sink_blocks = node_codec_no_need,
    .plan = none_plan,
    .layer_bytes = none_layer_bytes,
    .encode = none_encode,
    .plan_free = vc_free,
    .decode = node_dropper_decode,
};
