/* Compresses in memory: records go from the compressor straight into the body's builder. No state. */
#include "role/local_body.h"

#include "compress/watch.h"

typedef struct {
    node_body_builder_t *builder;
    vc_status_t status;
    vc_err_t *err;
} sink_t;

static int add_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    sink_t *sink = arg;
    (void)block;
    sink->status = node_body_add_record(sink->builder, record, bytes, sink->err);
    return sink->status != VC_OK;
}

static vc_status_t add_exact_pages(const node_spec_t *spec, const node_kv_t *kv, uint32_t n_blocks,
                                   node_body_builder_t *builder, vc_err_t *err)
{
    uint32_t window = (spec->ops->window_tokens(spec) + NODE_TILE - 1) / NODE_TILE;
    uint32_t sinks = spec->ops->sink_blocks(spec);
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (b >= sinks && b + window < n_blocks)
            continue;
        vc_status_t st = node_body_add_page(builder, b, node_kv_page_at(kv, b));
        if (st != VC_OK)
            return vc_err_set(err, st, "exact block %u: %s", b, vc_status_name(st));
    }
    return VC_OK;
}

vc_status_t node_local_body(node_engine_t *engine, const node_spec_t *spec, const node_kv_t *kv, const uint32_t *tokens,
                            uint32_t n_blocks, node_body_t **body_p, vc_err_t *err)
{
    if (spec->ops->needs(spec) & NODE_NEED_REPLAY)
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s reads the text again, which this caller does not offer",
                          spec->ops->name);
    const node_replay_t no_words = {.engine = engine};
    return node_local_body_replay(&no_words, spec, kv, tokens, n_blocks, body_p, err);
}

vc_status_t node_local_body_replay(const node_replay_t *replay, const node_spec_t *spec, const node_kv_t *kv,
                                   const uint32_t *tokens, uint32_t n_blocks, node_body_t **body_p, vc_err_t *err)
{
    node_engine_t *engine = replay->engine;
    node_compress_in_t in = {.model = node_engine_info(engine),
                             .kv = kv,
                             .tokens = tokens,
                             .first_block = 0,
                             .n_blocks = n_blocks,
                             .replay = replay};
    node_watches_t *watches = NULL;
    vc_status_t st = node_watches_begin(spec, 1, in.model, &in.first_block, n_blocks, &watches, err);
    if (st == VC_OK)
        st = node_watches_complete(watches, engine, kv, tokens, NULL, NULL, NULL, err);
    if (st == VC_OK)
        in.watched = node_watches_state(watches, 0);
    sink_t sink = {NULL, VC_OK, err};
    if (st == VC_OK)
        st = node_body_begin(spec, in.model, n_blocks, &sink.builder, err);
    if (st == VC_OK) {
        st = node_compress(spec, &in, add_record, &sink, err);
        if (sink.status != VC_OK) /* the sentence in err is the builder's */
            st = sink.status;
    }
    if (st == VC_OK)
        st = add_exact_pages(spec, kv, n_blocks, sink.builder, err);
    if (st == VC_OK)
        st = node_body_finish(sink.builder, body_p, err);
    else
        node_body_abort(sink.builder);
    node_watches_free(watches);
    return st;
}
