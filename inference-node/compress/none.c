/* The compressor that keeps everything: drafting from it must accept every token. The reference of all tests. */
#include "compress/select.h"

static vc_status_t none_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    spec->keep = 1.0;
    return node_params_parse(spec, "none", params, NULL, 0, err);
}

static vc_status_t none_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    node_selection_t *s = node_selection_create(spec, in, err);
    if (s == NULL)
        return VC_ERR_NOMEM;
    node_selection_keep_all(s);
    *plan_p = s;
    return VC_OK;
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
    .layer_bytes = node_selection_layer_bytes,
    .encode = node_selection_encode,
    .plan_free = node_selection_free,
    .decode = node_dropper_decode,
};
