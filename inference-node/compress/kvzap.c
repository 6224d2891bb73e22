/*
 * KVzap: a small map per layer, learned once, tells from a token's attention input how much the repetition of the text
 * would attend to it (log of KVzip+'s score). Nothing is attended or replayed online.
 *
 * With tau a row is kept where f >= tau: a record then depends on its block and the prefix alone, however it was
 * registered. With keep every head keeps its best rows among the newly registered ones. The last 128 tokens are judged
 * like all others: a drafter takes them as full pages, which is the window of the method at whatever cut it drafts.
 */
#include <math.h>
#include <string.h>

#include "compress/kvzap_int.h"
#include "compress/select.h"
#include "compress/watch.h"
#include "vc/mem.h"

static const node_param_t kvzap_params[] = {
    {"tau", NODE_PARAM_REAL, offsetof(node_spec_t, tau), -100, 100, -4, NULL},
    {"keep", NODE_PARAM_REAL, offsetof(node_spec_t, keep), 0, 1, 0.25, NULL},
};

static const node_codec_ops_t kvzap_keep; /* of specs that name a share */

static bool has_param(const char *params, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = params; at != NULL;) {
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return true;
        at = strchr(at, ',');
        if (at != NULL)
            at++;
    }
    return false;
}

static vc_status_t kvzap_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    /* once with both, so that every name and value is judged by one table */
    vc_status_t st = node_params_parse(spec, "kvzap", params, kvzap_params, 2, err);
    if (st != VC_OK)
        return st;
    bool by_share = has_param(params, "keep");
    if (by_share && has_param(params, "tau"))
        return vc_err_set(err, VC_ERR_INVALID, "compressor kvzap takes tau or keep, not both");
    spec->tau = spec->keep = 0;
    if (by_share)
        spec->ops = &kvzap_keep;
    return node_params_parse(spec, "kvzap", params, &kvzap_params[by_share], 1, err);
}

static uint32_t kvzap_needs(const node_spec_t *spec)
{
    (void)spec;
    return NODE_NEED_CALIB;
}

static uint32_t kvzap_window(const node_spec_t *spec)
{
    (void)spec;
    return NODE_KVZAP_WINDOW;
}

static uint32_t kvzap_sinks(const node_spec_t *spec)
{
    (void)spec;
    return 1;
}

/* What tau keeps depends on the text: the number is the share of the texts of the calibration, all rows without one. */
static double tau_bits(const node_spec_t *spec, uint32_t head_dim)
{
    node_spec_t by_share = *spec;
    by_share.keep = 1.0;
    if (spec->calib != NULL) {
        /* calib_check has seen the payload: its quantiles are the last of it */
        const uint8_t *end = spec->calib->payload + spec->calib->bytes;
        by_share.keep = node_kvzap_share((const float *)(const void *)end - NODE_KVZAP_QUANTILES, spec->tau);
    }
    return node_dropper_bits(&by_share, head_dim);
}

/* ---- watching: a row's predictions replace it at once ---- */

typedef struct kvzap_state {
    node_kvzap_model_t model;
    const node_kvzap_ops_t *ops; /* chosen once: asking the CPU is slow under a hypervisor */
    uint32_t first, end;         /* tokens */
    float *f;                    /* [layer][kv_head][token - first]; not a number until the row was seen */
    float *hidden, *row;
} kvzap_state_t;

static void kvzap_watch_free(void *arg)
{
    kvzap_state_t *s = arg;
    if (s == NULL)
        return;
    vc_free(s->f);
    vc_free(s->hidden);
    vc_free(s->row);
    vc_free(s);
}

static vc_status_t kvzap_watch(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                               uint32_t end_token, node_watch_t *watch_p, vc_err_t *err)
{
    if (spec->calib == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "compressor kvzap needs its calibration: vericache-node calibrate");
    node_kvzap_model_t view;
    vc_status_t st = node_kvzap_model_open(model, spec->calib->payload, spec->calib->bytes, &view, err);
    if (st != VC_OK)
        return st;
    size_t n = 0, n_heads = (size_t)view.n_layer * view.n_kv_head;
    kvzap_state_t *s = vc_calloc(1, sizeof(*s));
    if (s != NULL && vc_size_mul(n_heads, end_token - first_token, &n)) {
        *s = (kvzap_state_t){.model = view, .ops = node_kvzap_ops_best(), .first = first_token, .end = end_token};
        s->f = vc_calloc(n, sizeof(float));
        s->hidden = vc_calloc(view.hidden, sizeof(float));
        s->row = vc_calloc(view.n_kv_head, sizeof(float));
    }
    if (s == NULL || s->f == NULL || s->hidden == NULL || s->row == NULL) {
        kvzap_watch_free(s);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the scores of %u tokens", end_token - first_token);
    }
    for (size_t i = 0; i < n; i++)
        s->f[i] = NAN;
    *watch_p = (node_watch_t){.kinds = NODE_CAP_X, .first = first_token, .end = end_token, .state = s};
    return VC_OK;
}

static void kvzap_watch_row(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t position, const float *x)
{
    kvzap_state_t *s = arg;
    if (kind != NODE_CAP_X || position < s->first || position >= s->end)
        return;
    node_kvzap_predict(s->ops, &s->model, layer, x, s->hidden, s->row);
    float *f = s->f + (size_t)layer * s->model.n_kv_head * (s->end - s->first) + (position - s->first);
    for (uint32_t h = 0; h < s->model.n_kv_head; h++)
        f[(size_t)h * (s->end - s->first)] = s->row[h];
}

/* ---- the choice ---- */

static vc_status_t check_state(const node_compress_in_t *in, vc_err_t *err)
{
    const kvzap_state_t *s = in->watched;
    const node_model_info_t *m = in->model;
    if (s == NULL || s->first != in->first_block * NODE_TILE || s->end != in->n_blocks * NODE_TILE ||
        s->model.n_layer != m->n_layer || s->model.n_kv_head != m->n_kv_head)
        return vc_err_set(err, VC_ERR_INVALID, "kvzap has not seen the rows of blocks %u to %u", in->first_block,
                          in->n_blocks);
    return VC_OK;
}

static vc_status_t keep_above(node_selection_t *sel, const float *f, double tau, vc_err_t *err)
{
    const uint32_t n_rows = sel->n_new * NODE_TILE, n_kv_head = sel->in->model->n_kv_head;
    for (uint32_t h = 0; h < sel->n_heads; h++)
        for (uint32_t i = 0; i < n_rows; i++)
            if (isnan(f[(size_t)h * n_rows + i]))
                return vc_err_set(err, VC_ERR_INVALID,
                                  "kvzap: the score of layer %u, head %u, position %u is not a number", h / n_kv_head,
                                  h % n_kv_head, sel->in->first_block * NODE_TILE + i);
    for (size_t b = 0; b < (size_t)sel->n_heads * sel->n_new; b++)
        sel->kept[b] = node_kvzap_above(f + b * NODE_TILE, tau);
    return VC_OK;
}

static vc_status_t kvzap_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    vc_status_t st = check_state(in, err);
    if (st != VC_OK)
        return st;
    node_selection_t *sel = node_selection_create(spec, in, err);
    if (sel == NULL)
        return VC_ERR_NOMEM;
    const float *f = ((const kvzap_state_t *)in->watched)->f;
    const uint32_t n_new = sel->n_new * NODE_TILE;
    if (!spec->ops->chooses)
        st = keep_above(sel, f, spec->tau, err);
    else if (in->n_blocks * NODE_TILE <= NODE_KVZAP_WINDOW)
        node_selection_keep_all(sel); /* too short to choose from */
    else
        st = node_selection_fill(sel, f, 0, node_keep_count(spec->keep, n_new), NODE_BUDGET_HEAD, err);
    if (st != VC_OK) {
        node_selection_free(sel);
        return st;
    }
    *plan_p = sel;
    return VC_OK;
}

#define KVZAP_SLOTS                                                                                        \
    .name = "kvzap", .params_help = "tau=-4 or keep=0.25", .kind = VC_KVREC_DROPPER, .parse = kvzap_parse, \
    .needs = kvzap_needs, .window_tokens = kvzap_window, .sink_blocks = kvzap_sinks, .watch = kvzap_watch, \
    .watch_row = kvzap_watch_row, .watch_free = kvzap_watch_free, .calibrate = node_kvzap_calibrate,       \
    .calib_check = node_kvzap_calib_check, .plan = kvzap_plan, .layer_bytes = node_selection_layer_bytes,  \
    .encode = node_selection_encode, .plan_free = node_selection_free, .decode = node_dropper_decode

const node_codec_ops_t node_codec_kvzap = {KVZAP_SLOTS, .bits = tau_bits, .chooses = false};
static const node_codec_ops_t kvzap_keep = {KVZAP_SLOTS, .bits = node_dropper_bits, .chooses = true};
