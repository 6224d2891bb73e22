/* The statistics of ExpectedAttention from any text: the payload of its calibration blob. */
#include <math.h>
#include <stdio.h>

#include "compress/calib.h"
#include "compress/expatt_int.h"
#include "compress/passes.h"
#include "vc/bytes.h"
#include "vc/mem.h"

enum { PAYLOAD_HEAD = 64 };

static size_t head_floats(const node_model_info_t *m) { return ((size_t)m->head_dim + 1) * m->head_dim; }

static bool payload_bytes(const node_model_info_t *m, size_t *bytes_p)
{
    size_t n;
    return vc_size_mul((size_t)m->n_layer * m->n_head, head_floats(m), &n) && vc_size_mul(n, sizeof(float), &n) &&
           vc_size_add(n, PAYLOAD_HEAD, bytes_p);
}

const float *node_expatt_blob_head(const node_model_info_t *m, const uint8_t *payload, uint32_t layer, uint32_t head)
{
    return (const float *)(const void *)(payload + PAYLOAD_HEAD) + ((size_t)layer * m->n_head + head) * head_floats(m);
}

/* ---- from disk ---- */

static bool head_is_sane(const float *at, uint32_t dim)
{
    const float *cov = at + dim;
    for (uint32_t i = 0; i < dim; i++) {
        if (!isfinite(at[i]) || !(cov[(size_t)i * dim + i] >= 0))
            return false;
        for (uint32_t j = 0; j <= i; j++)
            if (!isfinite(cov[(size_t)i * dim + j]) || cov[(size_t)i * dim + j] != cov[(size_t)j * dim + i])
                return false;
    }
    return true;
}

vc_status_t node_expatt_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err)
{
    size_t want;
    if (!payload_bytes(model, &want) || bytes != want)
        return vc_err_set(err, VC_ERR_CORRUPT, "query statistics of %zu bytes do not fit the model", bytes);
    bool sane = vc_le32(payload) >= 2;
    for (uint32_t i = 4; i < PAYLOAD_HEAD; i++)
        sane &= payload[i] == 0;
    if (!sane)
        return vc_err_set(err, VC_ERR_CORRUPT, "the head of the query statistics is not one");
    for (uint32_t l = 0; l < model->n_layer; l++)
        for (uint32_t h = 0; h < model->n_head; h++)
            if (!head_is_sane(node_expatt_blob_head(model, payload, l, h), model->head_dim))
                return vc_err_set(err, VC_ERR_CORRUPT,
                                  "the query statistics of layer %u, head %u are no mean and covariance", l, h);
    return VC_OK;
}

/* ---- from texts ---- */

typedef struct reader {
    const node_calib_job_t *job;
    const node_expatt_ops_t *ops;
    node_expatt_stats_t *stats;
    uint32_t done, total; /* tokens */
} reader_t;

static void take_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position,
                     const float *values)
{
    (void)kind, (void)row;
    const reader_t *r = arg;
    if (position >= r->stats->first)
        node_expatt_stats_row(r->stats, r->ops, layer, position, values);
}

static vc_status_t read_text(reader_t *r, uint32_t sinks, const uint32_t *tokens, uint32_t n, vc_err_t *err)
{
    const node_replay_t *replay = &r->job->replay;
    const node_capture_t capture = {NODE_CAP_Q, take_row, r};
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(replay->engine, &dims);
    vc_status_t st = node_kv_init(&kv, &dims, NULL);
    if (st != VC_OK)
        return vc_err_set(err, st, "no memory for the KV of %u tokens", n);
    node_expatt_stats_next(r->stats, sinks, n);
    st = node_passes_run(replay, &kv, tokens, n, &capture, err);
    r->done += n;
    if (replay->progress != NULL)
        replay->progress(replay->arg, r->done, r->total);
    node_kv_fini(&kv);
    return st;
}

/* Of all that queries hold, how much the mean and nothing else explains: how far there is something to expect. */
static void note_quality(const node_calib_job_t *job, const node_model_info_t *m, const uint8_t *payload)
{
    double mean2 = 0, trace = 0;
    for (uint32_t i = 0; i < m->n_layer * m->n_head; i++) {
        const float *at = node_expatt_blob_head(m, payload, i / m->n_head, i % m->n_head);
        for (uint32_t c = 0; c < m->head_dim; c++) {
            mean2 += (double)at[c] * (double)at[c];
            trace += (double)at[m->head_dim + (size_t)c * m->head_dim + c];
        }
    }
    char line[128];
    snprintf(line, sizeof(line), "statistics of %u tokens of %u texts; the mean query holds %.0f %% of the energy",
             vc_le32(payload), job->n_texts, 100.0 * mean2 / (mean2 + trace));
    if (job->note != NULL)
        job->note(job->note_arg, line);
}

static vc_status_t write_payload(const node_expatt_stats_t *s, const node_model_info_t *m, void **payload_p,
                                 size_t *bytes_p, vc_err_t *err)
{
    const uint32_t n = node_expatt_stats_count(s, 0);
    size_t bytes = 0;
    if (n < 2)
        return vc_err_set(err, VC_ERR_INVALID, "query statistics need more text than %u tokens", n);
    uint8_t *payload = payload_bytes(m, &bytes) ? vc_alloc_aligned(64, bytes) : NULL;
    if (payload == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the query statistics");
    memset(payload, 0, PAYLOAD_HEAD);
    vc_put_le32(payload, n);
    for (uint32_t l = 0; l < m->n_layer; l++)
        for (uint32_t h = 0; h < m->n_head; h++) {
            float *at = (float *)(uintptr_t)node_expatt_blob_head(m, payload, l, h);
            node_expatt_stats_get(s, l, h, true, at, at + m->head_dim);
        }
    *payload_p = payload;
    *bytes_p = bytes;
    return VC_OK;
}

vc_status_t node_expatt_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                  size_t *bytes_p, vc_err_t *err)
{
    const node_model_info_t *m = node_engine_info(job->replay.engine);
    reader_t r = {.job = job, .ops = node_expatt_ops_best()};
    uint32_t longest = 0;
    for (uint32_t i = 0; i < job->n_texts; i++) {
        r.total += job->n_tokens[i];
        longest = VC_MAX(longest, job->n_tokens[i]);
    }
    if (longest > m->context)
        return vc_err_set(err, VC_ERR_RANGE, "a text of %u tokens leaves the context of %u", longest, m->context);
    vc_status_t st = node_expatt_stats_create(m, 0, longest, &r.stats, err);
    for (uint32_t i = 0; st == VC_OK && i < job->n_texts; i++)
        if (job->n_tokens[i] > spec->sinks)
            st = read_text(&r, spec->sinks, job->texts[i], job->n_tokens[i], err);
    if (st == VC_OK)
        st = write_payload(r.stats, m, payload_p, bytes_p, err);
    if (st == VC_OK)
        note_quality(job, m, *payload_p);
    vc_free(r.stats);
    return st;
}
