/*
 * KVzip: keep the tokens that are needed to repeat the text.
 *
 * The model is asked to repeat the registered text, chunk by chunk, on top of its full KV; a token's score is the
 * largest attention weight that any row of that replay gives it (kvzip_replay.c). KVzip+ weighs a token by the length
 * that its value has after the output projection, against the length of the row's input.
 *
 * Everything is scored but the first tokens, which are always kept; the rest of a chat template competes like any other
 * token, and a drafter takes the block that it lies in as a full page anyway.
 */
#include "compress/kvzip_int.h"
#include "vc/mem.h"

static const node_param_t kvzip_params[] = {
    {"keep", NODE_PARAM_REAL, offsetof(node_spec_t, keep), 0, 1, 0.3, NULL},
    {"plus", NODE_PARAM_CHOICE, offsetof(node_spec_t, plus), 0, 0, 1, "no,yes"},
    {"budget", NODE_PARAM_CHOICE, offsetof(node_spec_t, budget), 0, 0, NODE_BUDGET_GLOBAL, "head,layer,global"},
    {"chunk", NODE_PARAM_UINT, offsetof(node_spec_t, chunk), NODE_TILE, 32768, 1024, NULL},
};

static vc_status_t kvzip_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    vc_status_t st = node_params_parse(spec, "kvzip", params, kvzip_params, VC_ARRAY_LEN(kvzip_params), err);
    if (st == VC_OK && spec->chunk % NODE_TILE != 0)
        return vc_err_set(err, VC_ERR_INVALID, "compressor kvzip: chunk=%u is not a multiple of %u", spec->chunk,
                          NODE_TILE);
    return st;
}

static uint32_t kvzip_needs(const node_spec_t *spec)
{
    (void)spec;
    return NODE_NEED_REPLAY;
}

static uint32_t kvzip_sinks(const node_spec_t *spec)
{
    (void)spec;
    return 1;
}

static vc_status_t kvzip_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    float *scores = NULL;
    vc_status_t st = node_kvzip_replay(spec, in, &scores, err);
    if (st != VC_OK)
        return st;
    node_selection_t *s = node_selection_create(spec, in, err);
    if (s == NULL) {
        vc_free(scores);
        return VC_ERR_NOMEM;
    }
    const uint32_t n_protected = in->first_block == 0 ? NODE_KVZIP_SINK : 0;
    st = node_selection_fill(s, scores, n_protected, node_keep_count(spec->keep, s->n_new * NODE_TILE),
                             (node_budget_t)spec->budget, err);
    vc_free(scores);
    if (st != VC_OK) {
        node_selection_free(s);
        return st;
    }
    *plan_p = s;
    return VC_OK;
}

const node_codec_ops_t node_codec_kvzip = {
    .name = "kvzip",
    .params_help = "keep=0.3 plus=yes (no, yes) budget=global (head, layer, global) chunk=1024 (multiple of 64)",
    .kind = VC_KVREC_DROPPER,
    .parse = kvzip_parse,
    .bits = node_dropper_bits,
    .needs = kvzip_needs,
    .window_tokens = node_codec_no_need,
    .sink_blocks = kvzip_sinks,
    .chooses = true,
    .plan = kvzip_plan,
    .layer_bytes = node_selection_layer_bytes,
    .encode = node_selection_encode,
    .plan_free = node_selection_free,
    .decode = node_dropper_decode,
};
