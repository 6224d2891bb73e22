/* Step costs of an engine and a memory of drafters: see costs.h. */
#include "speculate/costs.h"

#include <string.h>

#include "kv/pages.h"
#include "vc/mem.h"

enum {
    SHORT_TOKENS = NODE_TILE,
    LONG_TOKENS = 2048, /* more than caches hold of any real model, and little to fill */
    WIDEST = 5,         /* 32 rows; beyond, passes are bound by arithmetic and grow along a line */
    TRIES = 3,
};

#define KEEP_DRAFTER 0.7  /* of a drafter's figures per request */
#define CHANCE_WEIGHT 8.0 /* observations that a remembered chance is worth: texts differ */
#define LINK_BOUND 1.5    /* times the expected time: no engine, and no busy machine either, is as slow by itself */
#define ENOUGH_SEEN 16.0  /* observations in a request that say something about its compressor */

/* One pass of n rows, all with logits as a verify pass has; the rows are taken back. */
static vc_status_t time_pass(node_engine_t *engine, node_kv_t *kv, uint32_t n, float *logits, const vc_clock_t *clock,
                             double *us_p, vc_err_t *err)
{
    node_row_t rows[1u << WIDEST];
    uint32_t before = kv->n_tokens;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (node_row_t){.kv = kv, .token = 0, .want_logits = true};
    uint64_t t0 = vc_clock_now_us(clock);
    vc_status_t st = node_forward(engine, rows, n, logits, NULL, err);
    uint64_t t1 = vc_clock_now_us(clock);
    *us_p = (double)(t1 - t0) + 1; /* a clock that stands still is no reason to divide by 0 */
    if (st != VC_OK)
        return st;
    st = node_kv_truncate(kv, before);
    return st == VC_OK ? st : vc_err_set(err, st, "step costs: KV: %s", vc_status_name(st));
}

/* Shortest of some passes for each width. */
static vc_status_t measure_at(node_engine_t *engine, node_kv_t *kv, uint32_t n_tokens, float *logits,
                              const vc_clock_t *clock, double *us, vc_err_t *err)
{
    while (kv->n_tokens < n_tokens) {
        node_page_t *page = node_page_create(&kv->dims);
        if (page == NULL || node_kv_append_page(kv, page) != VC_OK) {
            node_page_put(page);
            return vc_err_set(err, VC_ERR_NOMEM, "step costs: no memory for KV");
        }
    }
    for (uint32_t i = 0; i <= WIDEST; i++) {
        uint32_t tries = i < WIDEST ? TRIES : TRIES - 1;
        us[i] = 0;
        for (uint32_t k = 0; k < tries; k++) {
            double t;
            vc_status_t st = time_pass(engine, kv, 1u << i, logits, clock, &t, err);
            if (st != VC_OK)
                return st;
            us[i] = us[i] > 0 && us[i] < t ? us[i] : t;
        }
    }
    return VC_OK;
}

/* Weights and attention apart; more rows are never cheaper in either. */
static void separate(node_costs_t *c, const double *near_us, const double *far_us, uint32_t far_tokens)
{
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        if (i <= WIDEST) {
            double token = (far_us[i] - near_us[i]) / (far_tokens - SHORT_TOKENS);
            c->token_us[i] = token > 0 ? token : 0;
            c->weights_us[i] = near_us[i] - SHORT_TOKENS * c->token_us[i];
        } else {
            c->token_us[i] = 3 * c->token_us[i - 1] - 2 * c->token_us[i - 2];
            c->weights_us[i] = 3 * c->weights_us[i - 1] - 2 * c->weights_us[i - 2];
        }
        if (i > 0 && c->token_us[i] < c->token_us[i - 1])
            c->token_us[i] = c->token_us[i - 1];
        if (i > 0 && c->weights_us[i] < c->weights_us[i - 1])
            c->weights_us[i] = c->weights_us[i - 1];
    }
}

vc_status_t node_costs_measure(node_costs_t *c, node_engine_t *engine, const vc_clock_t *clock, vc_err_t *err)
{
    const node_model_info_t *info = node_engine_info(engine);
    uint32_t far_tokens = LONG_TOKENS;
    double near_us[WIDEST + 1], far_us[WIDEST + 1];
    node_kv_dims_t dims;
    node_kv_t kv;
    c->known = false;
    while (far_tokens + (1u << WIDEST) > info->context && far_tokens > SHORT_TOKENS)
        far_tokens -= NODE_TILE;
    if (far_tokens <= SHORT_TOKENS || node_engine_max_rows(engine) < 1u << WIDEST)
        return vc_err_set(err, VC_ERR_RANGE, "step costs: the context or the passes of the model are too short");
    float *logits = vc_alloc_aligned(64, ((size_t)info->n_vocab << WIDEST) * sizeof *logits);
    if (logits == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "step costs: no memory for logits");
    node_engine_kv_dims(engine, &dims);
    vc_status_t st = node_kv_init(&kv, &dims, NULL);
    if (st == VC_OK) {
        st = measure_at(engine, &kv, SHORT_TOKENS, logits, clock, near_us, err);
        if (st == VC_OK)
            st = measure_at(engine, &kv, far_tokens, logits, clock, far_us, err);
        node_kv_fini(&kv);
    }
    vc_free(logits);
    if (st == VC_OK)
        separate(c, near_us, far_us, far_tokens);
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++)
        c->scale[i] = 1;
    c->known = st == VC_OK;
    return st;
}

/* ---- drafters ---- */

static const node_costs_drafter_t *find(const node_costs_t *c, const char *name)
{
    for (uint32_t i = 0; name != NULL && i < NODE_COSTS_NAMES; i++)
        if (c->drafters[i].used && strcmp(c->drafters[i].name, name) == 0)
            return &c->drafters[i];
    return NULL;
}

/* As if a step on the body took time by its bytes. */
static double plain_draft_us(const node_costs_t *c, uint32_t n_tokens, const node_body_t *body)
{
    double full = 4.0 * body->dims.n_layer * body->dims.n_kv_head * body->dims.head_dim * body->n_tokens;
    double share = full > 0 && (double)body->bytes < full ? (double)body->bytes / full : 1;
    uint32_t tail = n_tokens > body->n_tokens ? n_tokens - body->n_tokens : 0;
    return c->scale[0] * (c->weights_us[0] + c->token_us[0] * (tail + share * body->n_tokens));
}

void node_costs_at(const node_costs_t *c, uint32_t n_tokens, const node_body_t *body, const char *name,
                   node_length_costs_t *out)
{
    memset(out, 0, sizeof *out);
    if (!c->known)
        return;
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++)
        out->verify_us[i] = c->scale[i] * (c->weights_us[i] + c->token_us[i] * n_tokens);
    if (body == NULL)
        return;
    const node_costs_drafter_t *d = find(c, name);
    out->draft_us = plain_draft_us(c, n_tokens, body) * (d != NULL && d->step > 0 ? d->step : 1);
}

void node_costs_expect_chance(const node_costs_t *c, const char *name, node_length_t *l)
{
    const node_costs_drafter_t *d = find(c, name);
    if (d != NULL && d->weight > 0)
        node_length_expect_chance(l, d->chance, CHANCE_WEIGHT);
}

static node_costs_drafter_t *place(node_costs_t *c, const char *name)
{
    node_costs_drafter_t *d = &c->drafters[0];
    for (uint32_t i = 0; i < NODE_COSTS_NAMES; i++) {
        if (c->drafters[i].used && strcmp(c->drafters[i].name, name) == 0)
            return &c->drafters[i];
        if (c->drafters[i].used < d->used)
            d = &c->drafters[i]; /* a free one, or the one that was away the longest */
    }
    *d = (node_costs_drafter_t){.chance = 0};
    memcpy(d->name, name, strlen(name) + 1);
    return d;
}

/* The widths that were measured, and the others by the nearest narrower one. */
static void learn_passes(node_costs_t *c, const node_length_t *l)
{
    double keep = c->scaled ? KEEP_DRAFTER : 0, ratio = 0;
    if (!c->known || l->cost_us[0] <= 0 || l->cost_us[0] > LINK_BOUND * l->expected.verify_us[0])
        return;
    for (uint32_t i = 0; i < NODE_LENGTH_COSTS; i++) {
        double expected = node_length_expected_us(l, l->cost_rows[i]);
        if (l->cost_us[i] > 0 && expected > 0)
            ratio = l->cost_us[i] / expected;
        c->scale[i] *= keep + (1 - keep) * ratio;
    }
    c->scaled = true;
}

void node_costs_learn(node_costs_t *c, uint32_t n_tokens, const node_body_t *body, const char *name,
                      const node_length_t *l)
{
    learn_passes(c, l);
    if (name == NULL || body == NULL || strlen(name) >= sizeof c->drafters[0].name || l->draft_us <= 0)
        return;
    node_costs_drafter_t *d = place(c, name);
    d->used = ++c->n_used;
    if (c->known) {
        double step = l->draft_us / plain_draft_us(c, n_tokens, body);
        d->step = d->step > 0 ? d->step + (1 - KEEP_DRAFTER) * (step - d->step) : step;
    }
    if (l->all_seen < ENOUGH_SEEN)
        return;
    d->chance = (d->chance * d->weight * KEEP_DRAFTER + node_length_mean_chance(l)) / (d->weight * KEEP_DRAFTER + 1);
    d->weight = d->weight * KEEP_DRAFTER + 1;
}
