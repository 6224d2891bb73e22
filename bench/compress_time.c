/*
 * Time: making a copy against prefill, loading it, and one draft step against a step on full KV, on one text of the
 * longest prefix. What a method watches is seen during the prefill, so its part is a prefill with the watch less one
 * without.
 */
#include <string.h>

#include "compress_parts.h"
#include "role/local_body.h"
#include "vc/mem.h"

typedef struct {
    node_body_builder_t *builder;
    compress_made_t *made;
} sink_t;

static int add_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    sink_t *sink = arg;
    (void)block;
    double t0 = bench_now_s();
    OK(node_body_add_record(sink->builder, record, bytes, &compress_err));
    sink->made->load_s += bench_now_s() - t0;
    sink->made->wire_bytes += bytes;
    return 0;
}

/* Full records of the first and last blocks, as a drafter fetches them. */
static void add_exact(const node_spec_t *spec, const node_kv_t *full, uint32_t n_blocks, uint64_t record_bytes,
                      sink_t *sink)
{
    uint32_t last = VC_MIN((spec->ops->window_tokens(spec) + NODE_TILE - 1) / NODE_TILE, n_blocks);
    uint32_t first = VC_MIN(spec->ops->sink_blocks(spec), n_blocks - last);
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (b >= first && b + last < n_blocks)
            continue;
        OK(node_body_add_page(sink->builder, b, node_kv_page_at(full, b)));
        sink->made->wire_bytes += record_bytes;
        sink->made->memory_bytes +=
            (uint64_t)NODE_TILE * 4 * full->dims.n_layer * full->dims.n_kv_head * full->dims.head_dim;
    }
}

void compress_make(compress_run_t *run, const compress_spec_t *s, const node_kv_t *full, const uint32_t *tokens,
                   uint32_t n_blocks, void *watched, compress_made_t *made)
{
    const node_spec_t *spec = &s->spec;
    const node_model_info_t *info = node_engine_info(run->node->engine);
    node_compress_in_t in = {.model = info, .kv = full, .tokens = tokens, .n_blocks = n_blocks, .watched = watched};
    sink_t sink = {.made = made};
    *made = (compress_made_t){0};
    bool replays = (spec->ops->needs(spec) & NODE_NEED_REPLAY) != 0;
    const node_replay_t replay = node_replay(run->node);
    if (replays)
        in.replay = &replay;
    OK(node_body_begin(spec, info, n_blocks, &sink.builder, &compress_err));
    node_body_set_load(sink.builder, s->load);
    double t0 = bench_now_s();
    OK(node_compress(spec, &in, add_record, &sink, &compress_err));
    made->compress_s = bench_now_s() - t0 - made->load_s;
    if (replays && made->compress_s < compress_replay_s(spec)) /* came from the replay for another spec */
        made->compress_s += compress_replay_s(spec);
    t0 = bench_now_s();
    add_exact(spec, full, n_blocks, vc_kvrec_full_bytes(&info->keyspace.shape), &sink);
    OK(node_body_finish(sink.builder, &made->body, &compress_err));
    made->memory_bytes += made->body->bytes;
    made->load_s += bench_now_s() - t0;
}

/* Seconds of a prefill that `count` methods watch; *kv_p and *watches_p are the caller's. */
static double prefill(compress_run_t *run, const compress_text_t *text, uint32_t n, const node_spec_t *specs,
                      uint32_t count, node_kv_t *kv_p, node_watches_t **watches_p)
{
    static const uint32_t zero[COMPRESS_SPECS];
    node_kv_dims_t dims;
    node_engine_kv_dims(run->node->engine, &dims);
    OK(node_kv_init(kv_p, &dims, NULL));
    OK(node_watches_begin(specs, count, node_engine_info(run->node->engine), zero, n / NODE_TILE, watches_p,
                          &compress_err));
    double t0 = bench_now_s();
    OK(node_prefill(run->node->engine, kv_p, text->prefix, n, NULL, node_watches_capture(*watches_p), &compress_err));
    return bench_now_s() - t0;
}

static double prefill_alone(compress_run_t *run, const compress_text_t *text, uint32_t n, const node_spec_t *spec)
{
    node_kv_t kv;
    node_watches_t *watches;
    double s = prefill(run, text, n, spec, spec ? 1 : 0, &kv, &watches);
    node_watches_free(watches);
    node_kv_fini(&kv);
    return s;
}

static double step_s(compress_run_t *run, node_kv_t *kv, uint32_t n, uint32_t token, float *logits)
{
    node_row_t row = {kv, token, true};
    double t0 = bench_now_s();
    OK(node_forward(run->node->engine, &row, 1, logits, NULL, &compress_err));
    double s = bench_now_s() - t0;
    OK(node_kv_truncate(kv, n));
    return s;
}

/* Steps at the first position behind the prefix, on full KV and on the body in turn. */
static double step_ratio(compress_run_t *run, const node_kv_t *full, node_body_t *body, uint32_t n, uint32_t token)
{
    float *logits = vc_alloc_aligned(64, node_engine_info(run->node->engine)->n_vocab * sizeof *logits);
    bench_samples_t ratio = {0};
    node_kv_t plain, draft;
    if (!logits)
        bench_fail("no memory for logits");
    OK(node_kv_init(&plain, &full->dims, NULL));
    for (uint32_t b = 0; b < n / NODE_TILE; b++)
        OK(node_kv_append_page(&plain, node_page_get(node_kv_page_at(full, b))));
    OK(node_kv_init(&draft, &full->dims, body));
    for (int i = 0; i < (bench_quick() ? 2 : 9); i++) {
        double base = step_s(run, &plain, n, token, logits);
        bench_add(&ratio, step_s(run, &draft, n, token, logits) / base);
    }
    node_kv_fini(&draft);
    node_kv_fini(&plain);
    double median = bench_median(&ratio);
    bench_samples_free(&ratio);
    vc_free(logits);
    return median;
}

/* The watch of a method costs the same whatever its parameters: one prefill per method. */
static const compress_spec_t *same_method(const compress_run_t *run, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (run->specs[k].spec.ops->watch && run->specs[k].spec.ops->watch == run->specs[i].spec.ops->watch)
            return &run->specs[k];
    return NULL;
}

static void time_spec(compress_run_t *run, uint32_t i, const compress_text_t *text, uint32_t n, const node_kv_t *full,
                      void *watched)
{
    compress_spec_t *s = &run->specs[i];
    const compress_spec_t *before = same_method(run, i);
    compress_made_t made;
    if (s->spec.ops->watch)
        s->watch_s = before ? before->watch_s : prefill_alone(run, text, n, &s->spec) - run->prefill_s;
    compress_make(run, s, full, text->prefix, n / NODE_TILE, watched, &made);
    s->compress_s = made.compress_s;
    s->load_s = made.load_s;
    s->step_vs_full = step_ratio(run, full, made.body, n, text->forced[run->n_prefixes - 1][0]);
    node_body_put(made.body);
}

void compress_times(compress_run_t *run)
{
    static node_spec_t specs[COMPRESS_SPECS];
    const compress_text_t *text = &run->texts[0];
    const uint32_t n = text->n_prefix[run->n_prefixes - 1];
    bench_samples_t base = {0};
    node_watches_t *watches;
    node_kv_t full;
    for (uint32_t i = 0; i < run->n_specs; i++)
        specs[i] = run->specs[i].spec;
    (void)prefill(run, text, n, specs, run->n_specs, &full, &watches);
    for (int i = 0; i < 3; i++)
        bench_add(&base, prefill_alone(run, text, n, NULL));
    run->prefill_s = bench_median(&base);
    bench_samples_free(&base);
    for (uint32_t i = 0; i < run->n_specs; i++)
        time_spec(run, i, text, n, &full, node_watches_state(watches, i));
    node_watches_free(watches);
    node_kv_fini(&full);
    compress_forget_replays();
    bench_note("times: %s, prefill of %u tokens %.2f s", text->name, n, run->prefill_s);
}
