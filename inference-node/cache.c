/*
 * The facade over libvericache. Owns the client handle and the encoded keyspace; knows records and bodies, no protocol.
 * Runs on the caller's thread. A record is used only after codec or record code has checked it against the model.
 */
#include "cache_int.h"

#include <stdio.h>
#include <string.h>

#include "compress/calib.h"
#include "vc/clock.h"
#include "vc/log.h"
#include "vc/mem.h"

void node_cache_opts_default(node_cache_opts_t *opts)
{
    *opts = (node_cache_opts_t){.use_data_plane = true, .connect_ms = 2000, .stream_idle_ms = 10000};
}

vc_status_t node_cache_copy_err(vc_err_t *err, const vcache_error_t *from, vcache_status_t status)
{
    return vc_err_set(err, (vc_status_t)status, "%s", from->msg);
}

vc_status_t node_cache_open(const node_cache_opts_t *opts, const node_model_info_t *model, node_cache_t **cache_p,
                            vc_err_t *err)
{
    node_cache_t *cache = vc_calloc(1, sizeof(*cache));
    if (cache == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the cache client");
    cache->model = model;
    cache->clock = vc_clock_system();
    vc_spec_full_text(NODE_NUMERICS_ID, cache->full_text);
    vc_status_t status = vc_keyspace_encode(&model->keyspace, cache->keyspace, &cache->keyspace_len, err);
    if (status != VC_OK) {
        vc_free(cache);
        return status;
    }
    vcache_options_t options;
    vcache_error_t cerr = {0};
    vcache_options_default(&options);
    options.server = opts->server;
    options.bearer = opts->bearer;
    options.connect_ms = opts->connect_ms;
    options.stream_idle_ms = opts->stream_idle_ms;
    options.use_data_plane = opts->use_data_plane;
    vcache_status_t cs = vcache_connect(&options, &cache->client, &cerr);
    if (cs != 0) {
        vc_free(cache);
        return node_cache_copy_err(err, &cerr, cs);
    }
    *cache_p = cache;
    return VC_OK;
}

void node_cache_close(node_cache_t *cache)
{
    if (cache == NULL)
        return;
    vcache_disconnect(cache->client);
    vc_free(cache);
}

void node_cache_give_up(node_cache_t *cache) { atomic_store_explicit(&cache->given_up, true, memory_order_relaxed); }

static bool is_given_up(node_cache_t *cache) { return atomic_load_explicit(&cache->given_up, memory_order_relaxed); }

static void stop_short(node_cache_result_t *result, vc_status_t status, const char *note)
{
    result->status = status;
    snprintf(result->note, sizeof(result->note), "%s", note);
}

/* A hit that ends before the prompt does is the ordinary case and worth no word. */
static void note_miss(node_cache_result_t *result, const char *reason)
{
    if (result->blocks_found == 0 && reason[0] != '\0' && result->note[0] == '\0')
        snprintf(result->note, sizeof(result->note), "miss: %.63s", reason);
}

static void add_fetch(node_cache_result_t *result, const vcache_fetch_stats_t *stats)
{
    result->bytes += stats->bytes;
    result->path = (uint32_t)stats->path;
    result->steps_down += stats->steps_down;
}

/* Blocks that may come from a cache: the last prompt token is always computed, its logits choose the first new token.
 */
static uint32_t usable_blocks(uint32_t n_tokens) { return n_tokens == 0 ? 0 : (n_tokens - 1) / NODE_TILE; }

static vcache_fidelity_t column_of(const node_spec_t *spec)
{
    return (vcache_fidelity_t){
        .compressed = 1, .spec = spec->text, .calib_digest = spec->calib != NULL ? spec->calib->digest.b : NULL};
}

vc_status_t node_cache_name_columns(const node_cache_t *cache, const node_spec_t *specs, uint32_t n_specs,
                                    vcache_fidelity_t *fids, vc_err_t *err)
{
    if (n_specs > 7)
        return vc_err_set(err, VC_ERR_INVALID, "at most 7 compressors at once, not %u", n_specs);
    fids[0] = (vcache_fidelity_t){.compressed = 0, .spec = cache->full_text};
    for (uint32_t i = 0; i < n_specs; i++)
        fids[i + 1] = column_of(&specs[i]);
    return VC_OK;
}

/* ---- full blocks ---- */

int node_cache_take_full(void *arg, uint32_t block, const void *record, size_t bytes)
{
    node_full_sink_t *sink = arg;
    if (is_given_up(sink->cache))
        return 1;
    if (block >= sink->n || sink->pages[block] != NULL)
        return 0; /* not asked for, or a repeat: the first good copy stays */
    return node_page_from_record(sink->cache->model, record, bytes, &sink->pages[block], &sink->err) != VC_OK;
}

void node_cache_fetch_full(node_cache_t *cache, const uint32_t *tokens, uint32_t n_tokens, node_kv_t *kv,
                           node_cache_result_t *result)
{
    *result = (node_cache_result_t){0};
    uint32_t usable = usable_blocks(n_tokens);
    if (usable == 0)
        return;
    uint64_t start = vc_clock_now_us(cache->clock);
    vcache_fidelity_t fid = {.compressed = 0, .spec = cache->full_text};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t cerr = {0};
    vcache_status_t status = vcache_lookup(cache->client, cache->keyspace, cache->keyspace_len, tokens,
                                           usable * NODE_TILE, &fid, 1, &info, &lease, &cerr);
    if (status != 0) {
        stop_short(result, (vc_status_t)status, cerr.msg);
        return;
    }
    result->blocks_found = VC_MIN(info.n_blocks[0], usable);
    note_miss(result, info.miss_reason[0]);
    if (result->blocks_found == 0) {
        vcache_lease_release(lease);
        result->us = vc_clock_now_us(cache->clock) - start;
        return;
    }
    node_full_sink_t sink = {.cache = cache, .n = result->blocks_found};
    sink.pages = vc_calloc(sink.n, sizeof(*sink.pages));
    if (sink.pages == NULL) {
        vcache_lease_release(lease);
        stop_short(result, VC_ERR_NOMEM, "no memory for fetched pages");
        return;
    }
    vcache_fetch_stats_t stats = {0};
    status = vcache_fetch(lease, 0, 0, sink.n, node_cache_take_full, &sink, &stats, &cerr);
    vcache_lease_release(lease);
    add_fetch(result, &stats);
    result->full_bytes = stats.bytes;
    if (status != 0)
        stop_short(result, (vc_status_t)status, sink.err.msg[0] != '\0' ? sink.err.msg : cerr.msg);
    uint32_t i = 0;
    for (; i < sink.n && sink.pages[i] != NULL; i++) {
        if (node_kv_append_page(kv, sink.pages[i]) != VC_OK) {
            stop_short(result, VC_ERR_NOMEM, "no memory for fetched pages");
            break;
        }
        result->blocks++;
    }
    for (; i < sink.n; i++) /* behind a hole, or refused */
        node_page_put(sink.pages[i]);
    vc_free(sink.pages);
    result->us = vc_clock_now_us(cache->clock) - start;
}

/* ---- a compressed copy with its exact windows ---- */

typedef struct body_sink {
    node_cache_t *cache;
    node_body_builder_t *builder;
    vc_err_t err;
    bool exact; /* records are full ones: they replace compressed rows */
} body_sink_t;

static int take_body(void *arg, uint32_t block, const void *record, size_t bytes)
{
    body_sink_t *sink = arg;
    if (is_given_up(sink->cache))
        return 1;
    if (!sink->exact)
        return node_body_add_record(sink->builder, record, bytes, &sink->err) != VC_OK;
    node_page_t *page = NULL;
    if (node_page_from_record(sink->cache->model, record, bytes, &page, &sink->err) != VC_OK)
        return 1;
    vc_status_t status = node_body_add_page(sink->builder, block, page);
    node_page_put(page);
    return status != VC_OK;
}

/* Full records of the first and last blocks sharpen the draft; without them it works from the compressed rows alone. */
static void fetch_windows(const node_spec_t *spec, vcache_lease_t *lease, uint32_t n_full, uint32_t n_body,
                          body_sink_t *sink, node_cache_result_t *result)
{
    uint32_t sinks = spec->ops->sink_blocks(spec);
    uint32_t window = (spec->ops->window_tokens(spec) + NODE_TILE - 1) / NODE_TILE;
    uint32_t last = VC_MIN(window, n_body);
    uint32_t first = VC_MIN(sinks, n_body - last);
    const uint32_t ranges[2][2] = {{0, first}, {n_body - last, last}};
    sink->exact = true;
    for (int i = 0; i < 2; i++) {
        if (ranges[i][1] == 0 || ranges[i][0] + ranges[i][1] > n_full)
            continue;
        vcache_fetch_stats_t stats = {0};
        vcache_error_t cerr = {0};
        vcache_status_t status = vcache_fetch(lease, 1, ranges[i][0], ranges[i][1], take_body, sink, &stats, &cerr);
        add_fetch(result, &stats);
        result->full_bytes += stats.bytes;
        if (status != 0)
            vc_log_warn("cache", "exact window of the draft copy not fetched reason=\"%s\"", cerr.msg);
    }
}

static vc_status_t build_body(node_cache_t *cache, const node_spec_t *spec, vcache_lease_t *lease, uint32_t n_full,
                              uint32_t n_body, node_body_t **body_p, node_cache_result_t *result)
{
    body_sink_t sink = {.cache = cache};
    vc_status_t status = node_body_begin(spec, cache->model, n_body, &sink.builder, &sink.err);
    if (status != VC_OK) {
        stop_short(result, status, sink.err.msg);
        return status;
    }
    vcache_fetch_stats_t stats = {0};
    vcache_error_t cerr = {0};
    status = (vc_status_t)vcache_fetch(lease, 0, 0, n_body, take_body, &sink, &stats, &cerr);
    add_fetch(result, &stats);
    if (status != VC_OK) {
        stop_short(result, status, sink.err.msg[0] != '\0' ? sink.err.msg : cerr.msg);
        node_body_abort(sink.builder);
        return status;
    }
    fetch_windows(spec, lease, n_full, n_body, &sink, result);
    status = node_body_finish(sink.builder, body_p, &sink.err);
    if (status != VC_OK)
        stop_short(result, status, sink.err.msg);
    else
        result->blocks = n_body;
    return status;
}

void node_cache_fetch_body(node_cache_t *cache, const node_spec_t *spec, const uint32_t *tokens, uint32_t n_tokens,
                           node_body_t **body_p, node_cache_result_t *result)
{
    *result = (node_cache_result_t){0};
    *body_p = NULL;
    uint32_t usable = usable_blocks(n_tokens);
    if (usable == 0)
        return;
    uint64_t start = vc_clock_now_us(cache->clock);
    const vcache_fidelity_t fids[2] = {column_of(spec), {.compressed = 0, .spec = cache->full_text}};
    vcache_lookup_info_t info;
    vcache_lease_t *lease = NULL;
    vcache_error_t cerr = {0};
    vcache_status_t status = vcache_lookup(cache->client, cache->keyspace, cache->keyspace_len, tokens,
                                           usable * NODE_TILE, fids, 2, &info, &lease, &cerr);
    if (status != 0) {
        stop_short(result, (vc_status_t)status, cerr.msg);
        return;
    }
    result->blocks_found = VC_MIN(info.n_blocks[0], usable);
    note_miss(result, info.miss_reason[0]);
    if (result->blocks_found > 0)
        (void)build_body(cache, spec, lease, info.n_blocks[1], result->blocks_found, body_p, result);
    vcache_lease_release(lease);
    result->us = vc_clock_now_us(cache->clock) - start;
}

/* ---- storing ---- */

vc_status_t node_cache_probe(node_cache_t *cache, const node_spec_t *specs, uint32_t n_specs, const uint32_t *tokens,
                             uint32_t n_tokens, uint32_t *counts, vc_err_t *err)
{
    vcache_fidelity_t fids[8];
    vcache_lookup_info_t info;
    vcache_error_t cerr = {0};
    vc_status_t named = node_cache_name_columns(cache, specs, n_specs, fids, err);
    if (named != VC_OK)
        return named;
    vcache_status_t status = vcache_lookup(cache->client, cache->keyspace, cache->keyspace_len, tokens, n_tokens, fids,
                                           n_specs + 1, &info, NULL, &cerr);
    if (status != 0)
        return node_cache_copy_err(err, &cerr, status);
    memcpy(counts, info.n_blocks, (n_specs + 1) * sizeof(counts[0]));
    return VC_OK;
}

/* Records of one spec, made when the first is asked for and kept until the upload ends: the server asks in its own
 * order. */
typedef struct made_records {
    void **data; /* [n_blocks] */
    size_t *len;
    bool made;
} made_records_t;

typedef struct store_source {
    node_cache_t *cache;
    const node_compress_in_t *in;
    const node_spec_t *specs;
    made_records_t made[8]; /* by column; column 0 (full) is made on the fly */
    const uint32_t *counts;
    node_watches_t *watches;
    node_store_what_t what;
    vc_err_t err;
} store_source_t;

typedef struct keep_arg {
    made_records_t *made;
    uint32_t n_blocks;
} keep_arg_t;

static int keep_record(void *arg, uint32_t block, const void *record, size_t bytes)
{
    keep_arg_t *keep = arg;
    if (block >= keep->n_blocks || keep->made->data[block] != NULL)
        return 1;
    keep->made->data[block] = vc_memdup(record, bytes);
    keep->made->len[block] = bytes;
    return keep->made->data[block] == NULL;
}

static vc_status_t make_records(store_source_t *source, uint32_t column)
{
    made_records_t *made = &source->made[column];
    node_compress_in_t in = *source->in;
    in.first_block = source->counts[column];
    made->data = vc_calloc(in.n_blocks, sizeof(*made->data));
    made->len = vc_calloc(in.n_blocks, sizeof(*made->len));
    if (made->data == NULL || made->len == NULL)
        return vc_err_set(&source->err, VC_ERR_NOMEM, "no memory for compressed records");
    const node_spec_t *spec = &source->specs[column - 1];
    keep_arg_t keep = {made, in.n_blocks};
    in.watched = source->watches != NULL ? node_watches_state(source->watches, column - 1) : NULL;
    vc_status_t status = node_compress(spec, &in, keep_record, &keep, &source->err);
    made->made = status == VC_OK;
    return status;
}

static int give_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p)
{
    store_source_t *source = arg;
    if (fid == 0 && source->what == NODE_STORE_BESIDE_FULL) { /* what was deleted or evicted does not come back */
        vc_err_set(&source->err, VC_ERR_NOT_FOUND, "the full copy of the prefix is no longer there");
        return 1;
    }
    if (fid == 0)
        return node_full_record(source->cache->model, source->in->kv, source->in->tokens, block, buf, cap, len_p,
                                &source->err) != VC_OK;
    made_records_t *made = &source->made[fid];
    if (!made->made && make_records(source, fid) != VC_OK)
        return 1;
    if (block >= source->in->n_blocks || made->data[block] == NULL || made->len[block] > cap) {
        vc_err_set(&source->err, VC_ERR_INTERNAL, "no record of block %u for %s", block, source->specs[fid - 1].text);
        return 1;
    }
    memcpy(buf, made->data[block], made->len[block]);
    *len_p = made->len[block];
    return 0;
}

static void free_records(store_source_t *source, uint32_t n_specs)
{
    for (uint32_t i = 1; i <= n_specs; i++) {
        for (uint32_t b = 0; source->made[i].data != NULL && b < source->in->n_blocks; b++)
            vc_free(source->made[i].data[b]);
        vc_free(source->made[i].data);
        vc_free(source->made[i].len);
    }
}

/* A replay may take longer than a server lets an upload be silent: its records are there before the upload begins. */
static vc_status_t make_slow_records(store_source_t *source, uint32_t n_specs)
{
    vc_status_t status = VC_OK;
    for (uint32_t i = 1; i <= n_specs && status == VC_OK; i++) {
        const node_spec_t *spec = &source->specs[i - 1];
        if (source->counts[i] < source->in->n_blocks && (spec->ops->needs(spec) & NODE_NEED_REPLAY))
            status = make_records(source, i);
    }
    return status;
}

vc_status_t node_cache_store(node_cache_t *cache, const node_compress_in_t *in, const node_spec_t *specs,
                             uint32_t n_specs, const uint32_t *counts, node_watches_t *watches, node_store_what_t what,
                             node_cache_stored_t *stored_p, vc_err_t *err)
{
    *stored_p = (node_cache_stored_t){0};
    uint32_t first = in->n_blocks;
    vcache_fidelity_t fids[8];
    for (uint32_t i = 0; i <= n_specs; i++) {
        first = VC_MIN(first, counts[i]);
        fids[i] = i == 0 ? (vcache_fidelity_t){.compressed = 0, .spec = cache->full_text} : column_of(&specs[i - 1]);
    }
    if (first == in->n_blocks) {
        stored_p->n_present = in->n_blocks * (n_specs + 1);
        return VC_OK;
    }
    store_source_t source = {
        .cache = cache, .in = in, .specs = specs, .counts = counts, .watches = watches, .what = what};
    vc_status_t made = make_slow_records(&source, n_specs);
    if (made != VC_OK) {
        free_records(&source, n_specs);
        return vc_err_set(err, made, "%s", source.err.msg);
    }
    vcache_register_stats_t stats = {0};
    vcache_error_t cerr = {0};
    vcache_status_t status = vcache_register(cache->client, cache->keyspace, cache->keyspace_len, in->tokens, first,
                                             in->n_blocks, fids, n_specs + 1, give_record, &source, &stats, &cerr);
    free_records(&source, n_specs);
    if (status != 0)
        return source.err.msg[0] != '\0' ? vc_err_set(err, source.err.status, "%s", source.err.msg)
                                         : node_cache_copy_err(err, &cerr, status);
    *stored_p = (node_cache_stored_t){stats.n_stored, stats.n_present, stats.bytes, (uint32_t)stats.path};
    return VC_OK;
}
