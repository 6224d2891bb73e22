/*
 * KVQuant's blob: thresholds of every key channel and the codebooks of every layer, learned from texts.
 *
 * Payload: u32 1, u32 how the fit was weighed (1 activation, 2 local sensitivity), u32 layers, u32 channels, u32 sets,
 * u32 tokens; then the shares of outliers, f64, ascending; then per set and layer the upper and the lower thresholds
 * [channels], and for 2, 3 and 4 bits the levels of K and those of V, f32.
 */
#include <stdio.h>
#include <stdlib.h>

#include "compress/kvquant_local.h"
#include "vc/bytes.h"
#include "vc/mem.h"

#define HEAD_BYTES 24u
#define LEVELS_OF_ALL 56u /* 2 * (4 + 8 + 16) */
#define SETS_MAX 8u
#define BITS_N 3u
#define THRESHOLD_MAX 131072.0f /* more than any key before RoPE can have */

static const uint32_t all_bits[BITS_N] = {2, 3, 4};

static size_t layer_floats(uint32_t channels) { return 2 * (size_t)channels + LEVELS_OF_ALL; }

static size_t payload_bytes(uint32_t n_layer, uint32_t channels, uint32_t n_sets)
{
    return HEAD_BYTES + 8u * n_sets + (size_t)n_sets * n_layer * layer_floats(channels) * sizeof(float);
}

/* ---- reading ---- */

static bool ascending_levels(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(x[i] >= -1.0f && x[i] <= 1.0f) || (i > 0 && x[i] < x[i - 1]))
            return false;
    return true;
}

static bool layer_valid(const float *x, uint32_t channels)
{
    for (uint32_t c = 0; c < channels; c++)
        if (!(x[c] <= THRESHOLD_MAX && x[channels + c] >= -THRESHOLD_MAX && x[channels + c] <= x[c]))
            return false;
    x += 2 * (size_t)channels;
    for (uint32_t i = 0; i < 2 * BITS_N; i++) {
        const uint32_t n = 1u << all_bits[i / 2];
        if (!ascending_levels(x, n))
            return false;
        x += n;
    }
    return true;
}

vc_status_t node_kvquant_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes,
                                     vc_err_t *err)
{
    const uint32_t channels = model->n_kv_head * model->head_dim;
    if (bytes < HEAD_BYTES || vc_le32(payload) != 1)
        return vc_err_set(err, VC_ERR_CORRUPT, "the kvquant calibration has a layout that this program does not know");
    const uint32_t label = vc_le32(payload + 4), n_sets = vc_le32(payload + 16);
    if (vc_le32(payload + 8) != model->n_layer || vc_le32(payload + 12) != channels || n_sets == 0 ||
        n_sets > SETS_MAX || bytes != payload_bytes(model->n_layer, channels, n_sets) ||
        (label != NODE_KVQUANT_ACTIVATION && label != NODE_KVQUANT_LOCAL))
        return vc_err_set(err, VC_ERR_CORRUPT,
                          "the kvquant calibration of %zu bytes is not that of %u layers of %u channels", bytes,
                          model->n_layer, channels);
    double before = -1;
    for (uint32_t s = 0; s < n_sets; s++) {
        double share;
        memcpy(&share, payload + HEAD_BYTES + 8 * s, sizeof(share));
        if (!(share > before && share >= 0 && share <= 1))
            return vc_err_set(err, VC_ERR_CORRUPT, "the kvquant calibration has a share of outliers that cannot be");
        before = share;
    }
    const float *x = (const float *)(const void *)(payload + HEAD_BYTES + 8 * n_sets);
    for (uint32_t i = 0; i < n_sets * model->n_layer; i++, x += layer_floats(channels))
        if (!layer_valid(x, channels))
            return vc_err_set(err, VC_ERR_CORRUPT, "the kvquant calibration has thresholds or levels that cannot be");
    return VC_OK;
}

/* Index of the set with this share, or the number of sets. */
static uint32_t find_set(const uint8_t *payload, double outliers)
{
    const uint32_t n_sets = vc_le32(payload + 16);
    for (uint32_t s = 0; s < n_sets; s++) {
        double share;
        memcpy(&share, payload + HEAD_BYTES + 8 * s, sizeof(share));
        if (share == outliers)
            return s;
    }
    return n_sets;
}

vc_status_t node_kvquant_calib_fits(const node_spec_t *spec, const node_calib_t *calib, vc_err_t *err)
{
    if (calib == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "%s needs its calibration", spec->text);
    if (find_set(calib->payload, spec->outliers) == vc_le32(calib->payload + 16))
        return vc_err_set(
            err, VC_ERR_INVALID,
            "the kvquant calibration has no thresholds for outliers=%g; they are made with: vericache-node "
            "calibrate --method %s",
            spec->outliers, spec->text); /* the text has the number's every digit */
    return VC_OK;
}

bool node_kvquant_layer(const node_calib_t *calib, const node_spec_t *spec, uint32_t layer, node_kvquant_layer_t *out)
{
    const uint8_t *payload = calib->payload;
    const uint32_t n_layer = vc_le32(payload + 8), channels = vc_le32(payload + 12), n_sets = vc_le32(payload + 16);
    const uint32_t set = find_set(payload, spec->outliers);
    if (set == n_sets || layer >= n_layer)
        return false;
    const float *x = (const float *)(const void *)(payload + HEAD_BYTES + 8 * n_sets) +
                     ((size_t)set * n_layer + layer) * layer_floats(channels);
    out->upper = x;
    out->lower = x + channels;
    x += 2 * (size_t)channels + 2 * ((1u << spec->bits) - 4u); /* the codebooks of fewer bits come first */
    out->k_levels = x;
    out->v_levels = x + (1u << spec->bits);
    return true;
}

/* ---- making ---- */

typedef struct maker {
    const node_spec_t *spec;
    const node_calib_job_t *job;
    const node_model_info_t *model;
    node_kvquant_texts_t texts;
    uint32_t channels, n_rows; /* tokens that count: sinks left out */
    double shares[SETS_MAX];
    uint32_t n_sets, n_steps;
    float *keys, *values;         /* [channels][n_rows] before RoPE, [n_rows][channels] */
    float *k_weights, *v_weights; /* the same, of the fit */
    float *sorted, *scratch;      /* [n_rows], [channels] */
    uint16_t *index;              /* [channels] */
    node_kvquant_hist_t *k_hist, *v_hist;
    node_prerope_t *prerope;
    uint8_t *payload;
} maker_t;

static void step_done(maker_t *m)
{
    m->n_steps++;
    if (m->job->replay.progress)
        m->job->replay.progress(m->job->replay.arg, m->n_steps, m->job->n_texts + m->model->n_layer);
}

static void choose_shares(maker_t *m)
{
    static const double usual[] = {0.0, 0.001, 0.01};
    bool put = false;
    for (uint32_t i = 0; i < VC_ARRAY_LEN(usual); i++) {
        if (!put && m->spec->outliers < usual[i]) {
            m->shares[m->n_sets++] = m->spec->outliers;
            put = true;
        }
        put = put || m->spec->outliers == usual[i];
        m->shares[m->n_sets++] = usual[i];
    }
    if (!put)
        m->shares[m->n_sets++] = m->spec->outliers;
}

/* Keys before RoPE and values of one layer, sinks left out. */
static void gather(maker_t *m, uint32_t layer)
{
    const uint32_t dim = m->model->head_dim;
    float pre[NODE_HEAD_DIM_MAX * NODE_TILE];
    uint32_t base = 0;
    for (uint32_t i = 0; i < m->texts.n; i++) {
        const node_kv_t *kv = &m->texts.kv[i];
        for (uint32_t b = 0; b * NODE_TILE < kv->n_tokens; b++) {
            node_page_t *page = node_kv_page_at(kv, b);
            const uint32_t first = b == 0 ? m->texts.sinks : 0, end = VC_MIN(NODE_TILE, kv->n_tokens - b * NODE_TILE);
            node_prerope_set_block(m->prerope, b);
            for (uint32_t h = 0; h < m->model->n_kv_head; h++) {
                const uint16_t *v = node_page_v(page, layer, h);
                node_prerope_undo(m->prerope, node_page_k(page, layer, h), pre);
                for (uint32_t c = 0; c < dim; c++)
                    for (uint32_t t = first; t < end; t++) {
                        const size_t ch = h * dim + c, row = base + t - first;
                        m->keys[ch * m->n_rows + row] = pre[c * NODE_TILE + t];
                        m->values[row * m->channels + ch] = node_f32_from_f16(v[(size_t)t * dim + c]);
                    }
            }
            base += end - first;
        }
    }
}

static float *layer_at(const maker_t *m, uint32_t set, uint32_t layer)
{
    return (float *)(void *)(m->payload + HEAD_BYTES + 8 * m->n_sets) +
           ((size_t)set * m->model->n_layer + layer) * layer_floats(m->channels);
}

static void find_thresholds(maker_t *m, uint32_t layer)
{
    for (uint32_t ch = 0; ch < m->channels; ch++) {
        memcpy(m->sorted, m->keys + (size_t)ch * m->n_rows, m->n_rows * sizeof(float));
        qsort(m->sorted, m->n_rows, sizeof(float), node_kvquant_ascending);
        for (uint32_t s = 0; s < m->n_sets; s++) {
            float *x = layer_at(m, s, layer);
            node_kvquant_thresholds(m->sorted, m->n_rows, m->shares[s], &x[ch], &x[m->channels + ch]);
        }
    }
}

/* Every number that is coded goes to the histogram, with the weight of an error in it. */
static void count_keys(maker_t *m, const float *upper, const float *lower)
{
    for (uint32_t ch = 0; ch < m->channels; ch++) {
        const float high = upper[ch], low = lower[ch], rho = (high - low) / 2, z = (high + low) / 2;
        const float *x = m->keys + (size_t)ch * m->n_rows, *w = m->k_weights + (size_t)ch * m->n_rows;
        for (uint32_t i = 0; rho > 0 && i < m->n_rows; i++)
            if (x[i] >= low && x[i] <= high)
                node_kvquant_hist_add(m->k_hist, ((double)x[i] - z) / rho, (double)w[i] * rho * rho);
    }
}

static void count_values(maker_t *m, double outliers)
{
    for (uint32_t i = 0; i < m->n_rows; i++) {
        const float *x = m->values + (size_t)i * m->channels, *w = m->v_weights + (size_t)i * m->channels;
        float rho, z;
        uint32_t n_out = node_kvquant_value_row(x, m->channels, outliers, &rho, &z, m->index, m->scratch), next = 0;
        rho = node_f32_from_f16(node_f16_from_f32(rho)); /* what the record has */
        z = node_f32_from_f16(node_f16_from_f32(z));
        for (uint32_t ch = 0; rho > 0 && ch < m->channels; ch++) {
            if (next < n_out && m->index[next] == ch) {
                next++;
                continue;
            }
            node_kvquant_hist_add(m->v_hist, ((double)x[ch] - z) / rho, (double)w[ch] * rho * rho);
        }
    }
}

static vc_status_t fit_layer(maker_t *m, uint32_t layer, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t s = 0; st == VC_OK && s < m->n_sets; s++) {
        float *x = layer_at(m, s, layer), *k_levels[BITS_N], *v_levels[BITS_N];
        memset(m->k_hist, 0, sizeof(*m->k_hist));
        memset(m->v_hist, 0, sizeof(*m->v_hist));
        count_keys(m, x, x + m->channels);
        count_values(m, m->shares[s]);
        x += 2 * (size_t)m->channels;
        for (uint32_t i = 0; i < BITS_N; i++) {
            k_levels[i] = x;
            v_levels[i] = x + (1u << all_bits[i]);
            x += 2u << all_bits[i];
        }
        st = node_kvquant_fit(m->k_hist, all_bits, BITS_N, k_levels, err);
        if (st == VC_OK)
            st = node_kvquant_fit(m->v_hist, all_bits, BITS_N, v_levels, err);
    }
    return st;
}

static vc_status_t alloc_maker(maker_t *m, size_t *bytes_p, vc_err_t *err)
{
    size_t n;
    *bytes_p = payload_bytes(m->model->n_layer, m->channels, m->n_sets);
    m->payload = vc_calloc(1, *bytes_p);
    m->prerope = node_prerope_create(m->model);
    m->k_hist = vc_calloc(1, sizeof(*m->k_hist));
    m->v_hist = vc_calloc(1, sizeof(*m->v_hist));
    m->sorted = vc_calloc(m->n_rows, sizeof(float));
    m->scratch = vc_calloc(m->channels, sizeof(float));
    m->index = vc_calloc(m->channels, sizeof(*m->index));
    if (vc_size_mul(m->n_rows, m->channels, &n)) {
        m->keys = vc_calloc(n, sizeof(float));
        m->values = vc_calloc(n, sizeof(float));
        m->k_weights = vc_calloc(n, sizeof(float));
        m->v_weights = vc_calloc(n, sizeof(float));
    }
    if (!m->payload || !m->prerope || !m->k_hist || !m->v_hist || !m->sorted || !m->scratch || !m->index || !m->keys ||
        !m->values || !m->k_weights || !m->v_weights)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to calibrate on %u tokens", m->n_rows);
    return VC_OK;
}

static void free_maker(maker_t *m)
{
    node_kvquant_texts_free(&m->texts);
    node_prerope_destroy(m->prerope);
    vc_free(m->keys);
    vc_free(m->values);
    vc_free(m->k_weights);
    vc_free(m->v_weights);
    vc_free(m->sorted);
    vc_free(m->scratch);
    vc_free(m->index);
    vc_free(m->k_hist);
    vc_free(m->v_hist);
    vc_free(m->payload);
}

static void put_head(const maker_t *m)
{
    vc_writer_t w = vc_writer(m->payload, HEAD_BYTES + 8u * m->n_sets);
    const uint32_t head[] = {1, NODE_KVQUANT_LOCAL, m->model->n_layer, m->channels, m->n_sets, m->n_rows};
    for (uint32_t i = 0; i < VC_ARRAY_LEN(head); i++)
        vc_write_u32(&w, head[i]);
    vc_write_bytes(&w, m->shares, m->n_sets * sizeof(double));
}

static vc_status_t make_layers(maker_t *m, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t l = 0; st == VC_OK && l < m->model->n_layer; l++) {
        gather(m, l);
        find_thresholds(m, l);
        st = node_kvquant_local_weights(&m->texts, m->job->replay.engine, l, m->k_weights, m->v_weights, err);
        if (st == VC_OK)
            st = fit_layer(m, l, err);
        step_done(m);
    }
    return st;
}

static vc_status_t read_texts(maker_t *m, vc_err_t *err)
{
    vc_status_t st = VC_OK;
    for (uint32_t i = 0; st == VC_OK && i < m->job->n_texts; i++) {
        if (m->job->n_tokens[i] <= m->texts.sinks)
            continue;
        st = node_kvquant_texts_add(&m->texts, &m->job->replay, m->job->texts[i], m->job->n_tokens[i], err);
        step_done(m);
    }
    m->n_rows = m->texts.n_rows;
    if (st == VC_OK && m->n_rows < NODE_TILE)
        st = vc_err_set(err, VC_ERR_INVALID, "kvquant learns nothing from %u tokens", m->n_rows);
    return st;
}

static void tell(const maker_t *m)
{
    char line[200];
    const float *x = layer_at(m, m->n_sets - 1, m->model->n_layer / 2) + 2 * (size_t)m->channels;
    if (m->job->note == NULL)
        return;
    snprintf(
        line, sizeof(line),
        "%u tokens, weighed by local sensitivity; middle layer, 2 bits: keys %.3f %.3f %.3f %.3f, values %.3f %.3f "
        "%.3f %.3f",
        m->n_rows, (double)x[0], (double)x[1], (double)x[2], (double)x[3], (double)x[4], (double)x[5], (double)x[6],
        (double)x[7]);
    m->job->note(m->job->note_arg, line);
}

vc_status_t node_kvquant_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                   size_t *bytes_p, vc_err_t *err)
{
    maker_t m = {.spec = spec, .job = job, .model = node_engine_info(job->replay.engine)};
    node_kvquant_form_t form;
    size_t bytes = 0;
    vc_status_t st = node_kvquant_form(spec, &m.model->keyspace.shape, 0, &form, err);
    if (st != VC_OK)
        return st;
    m.channels = form.channels;
    choose_shares(&m);
    st = node_kvquant_texts_init(&m.texts, m.model, job->n_texts, VC_MAX(spec->sinks, 1u), err);
    if (st == VC_OK)
        st = read_texts(&m, err);
    if (st == VC_OK)
        st = alloc_maker(&m, &bytes, err);
    if (st == VC_OK) {
        put_head(&m);
        st = make_layers(&m, err);
    }
    if (st == VC_OK) {
        tell(&m);
        *payload_p = m.payload;
        *bytes_p = bytes;
        m.payload = NULL;
    }
    free_maker(&m);
    return st;
}
