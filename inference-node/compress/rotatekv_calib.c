/*
 * Calibration of RotateKV: per layer the order in which rotated key channels are grouped, by their signed sums over any
 * text. Payload of the blob: [n_layer][n_kv_head * head_dim] u16, every channel once: place j of a permuted row is
 * channel order[j] of the rotated one.
 */
#include <stdio.h>
#include <stdlib.h>

#include "compress/passes.h"
#include "compress/rotatekv_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

void node_rkv_sum(const float *x, uint32_t n, double *sums)
{
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t t = 0; t < NODE_TILE; t++)
            sums[c] += (double)x[(size_t)c * NODE_TILE + t];
}

typedef struct place {
    double sum;
    uint16_t channel;
} place_t;

static int compare(const void *a, const void *b)
{
    const place_t *x = a, *y = b;
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    return x->channel < y->channel ? -1 : x->channel > y->channel;
}

/* places: n of scratch. */
static void sort_places(place_t *places, const double *sums, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++)
        places[c] = (place_t){sums[c], (uint16_t)c};
    qsort(places, n, sizeof(*places), compare);
}

bool node_rkv_order(const double *sums, uint32_t n, uint16_t *order)
{
    place_t *places = vc_calloc(n, sizeof(*places));
    if (places == NULL)
        return false;
    sort_places(places, sums, n);
    for (uint32_t c = 0; c < n; c++)
        order[c] = places[c].channel;
    vc_free(places);
    return true;
}

vc_status_t node_rkv_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err)
{
    const uint32_t width = model->n_kv_head * model->head_dim;
    if (width > UINT16_MAX + 1u || bytes != (size_t)model->n_layer * width * 2)
        return vc_err_set(err, VC_ERR_CORRUPT, "a rotatekv blob of %zu bytes is not one of %u layers of %u channels",
                          bytes, model->n_layer, width);
    uint8_t *seen = vc_calloc(width, 1);
    if (seen == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to check a calibration blob");
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; st == VC_OK && l < model->n_layer; l++)
        for (uint32_t j = 0; st == VC_OK && j < width; j++) {
            const uint32_t channel = vc_le16(payload + ((size_t)l * width + j) * 2);
            if (channel >= width || seen[channel] == l % 255 + 1)
                st = vc_err_set(err, VC_ERR_CORRUPT, "a rotatekv blob does not name every channel of layer %u once", l);
            else
                seen[channel] = (uint8_t)(l % 255 + 1);
        }
    vc_free(seen);
    return st;
}

/* ---- making a blob ---- */

typedef struct maker {
    const node_calib_job_t *job;
    const node_model_info_t *model;
    node_rkv_shape_t shape;
    const node_rkv_ops_t *ops;
    node_prerope_t *prerope;
    float *x;     /* [width][NODE_TILE] */
    double *sums; /* [n_layer][width] */
    uint64_t n_tokens;
} maker_t;

/* Rows that a last page does not have are zero, and add nothing. */
static void add_block(maker_t *m, node_page_t *page, uint32_t block)
{
    const node_rkv_shape_t *s = &m->shape;
    node_prerope_set_block(m->prerope, block);
    for (uint32_t l = 0; l < m->model->n_layer; l++) {
        for (uint32_t h = 0; h < s->n_head; h++)
            node_prerope_undo(m->prerope, node_page_k(page, l, h), m->x + (size_t)h * s->dim * NODE_TILE);
        m->ops->rotate(m->x, s->width, s->key_block);
        node_rkv_sum(m->x, s->width, m->sums + (size_t)l * s->width);
    }
}

static vc_status_t add_text(maker_t *m, const uint32_t *tokens, uint32_t n, vc_err_t *err)
{
    const node_replay_t *r = &m->job->replay;
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(r->engine, &dims);
    vc_status_t st = node_kv_init(&kv, &dims, NULL);
    if (st != VC_OK)
        return vc_err_set(err, st, "no memory for the KV of a calibration text");
    st = node_passes_run(r, &kv, tokens, n, NULL, err);
    for (uint32_t b = 0; st == VC_OK && b < (n + NODE_TILE - 1) / NODE_TILE; b++)
        add_block(m, node_kv_page_at(&kv, b), b);
    m->n_tokens += n;
    node_kv_fini(&kv);
    return st;
}

static vc_status_t add_texts(maker_t *m, vc_err_t *err)
{
    const node_calib_job_t *job = m->job;
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < job->n_texts; i++) {
        st = add_text(m, job->texts[i], VC_MIN(job->n_tokens[i], m->model->context), err);
        if (st == VC_OK && job->replay.progress)
            job->replay.progress(job->replay.arg, i + 1, job->n_texts);
    }
    if (st == VC_OK && m->n_tokens == 0)
        st = vc_err_set(err, VC_ERR_INVALID, "rotatekv cannot be calibrated without any text");
    return st;
}

static vc_status_t write_payload(const maker_t *m, void **payload_p, size_t *bytes_p, vc_err_t *err)
{
    const uint32_t width = m->shape.width;
    const size_t bytes = (size_t)m->model->n_layer * width * 2;
    uint8_t *payload = vc_alloc(bytes);
    uint16_t *order = vc_calloc(width, sizeof(*order));
    bool ok = payload != NULL && order != NULL;
    for (uint32_t l = 0; ok && l < m->model->n_layer; l++) {
        ok = node_rkv_order(m->sums + (size_t)l * width, width, order);
        for (uint32_t j = 0; ok && j < width; j++)
            vc_put_le16(payload + ((size_t)l * width + j) * 2, order[j]);
    }
    vc_free(order);
    if (!ok) {
        vc_free(payload);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a calibration blob");
    }
    *payload_p = payload;
    *bytes_p = bytes;
    return VC_OK;
}

static void note(const maker_t *m)
{
    char line[120];
    snprintf(line, sizeof(line), "order of %u channels in %u layers from %llu tokens", m->shape.width,
             m->model->n_layer, (unsigned long long)m->n_tokens);
    if (m->job->note)
        m->job->note(m->job->note_arg, line);
}

vc_status_t node_rkv_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p, size_t *bytes_p,
                               vc_err_t *err)
{
    maker_t m = {.job = job, .model = node_engine_info(job->replay.engine)};
    vc_status_t st = node_rkv_shape(spec, m.model->n_kv_head, m.model->head_dim, &m.shape, err);
    if (st != VC_OK)
        return st;
    m.prerope = node_prerope_create(m.model);
    m.x = vc_alloc_aligned(64, (size_t)m.shape.width * NODE_TILE * sizeof(*m.x));
    m.sums = vc_calloc((size_t)m.model->n_layer * m.shape.width, sizeof(*m.sums));
    if (m.prerope == NULL || m.x == NULL || m.sums == NULL)
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to calibrate rotatekv");
    if (st == VC_OK) {
        m.ops = node_rkv_ops(node_prerope_level(m.prerope));
        st = add_texts(&m, err);
    }
    if (st == VC_OK)
        st = write_payload(&m, payload_p, bytes_p, err);
    if (st == VC_OK)
        note(&m);
    node_prerope_destroy(m.prerope);
    vc_free(m.x);
    vc_free(m.sums);
    return st;
}
