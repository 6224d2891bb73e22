/*
 * What the suites of coded tiles share: tiles read in the plainest form, attention over a body's tiles by any table,
 * and the same in double over the numbers that they stand for. Static functions only; not every suite uses every
 * function.
 */
#ifndef CODED_FIXTURE_H
#define CODED_FIXTURE_H

#include "rot_fixture.h"

/* ---- coded tiles ---- */

static uint32_t field(const uint8_t *strip, uint32_t lane, uint32_t j, uint32_t i, uint32_t bits)
{
    const uint32_t at = lane * 4 + j;
    switch (bits) {
    case 8: return strip[i * 64 + at];
    case 4: return strip[i / 2 * 64 + at] >> (i % 2 * 4) & 15u;
    case 2: return strip[i / 4 * 64 + at] >> (i % 4 * 2) & 3u;
    default: return (strip[i / 4 * 64 + at] >> (i % 4 * 2) & 3u) | (strip[128 + at] >> i & 1u) << 2;
    }
}

static uint32_t tile_k(const node_coded_form_t *f, const uint8_t *tile, uint32_t t, uint32_t c)
{
    return field(tile + (c / 32 * 4 + t / 16) * f->bits * 64, t % 16, c % 4, c % 32 / 4, f->bits);
}

static uint32_t tile_v(const node_coded_form_t *f, const uint8_t *tile, uint32_t t, uint32_t c)
{
    return field(tile + f->v_codes + (c / 16 * 2 + t / 32) * f->bits * 64, c % 16, t % 4, t % 32 / 4, f->bits);
}

static float tile_param(const uint8_t *at, const node_coded_form_t *f, uint32_t t, uint32_t c)
{
    return node_f32_from_f16(vc_le16(at + 2 * (c / f->group * NODE_TILE + t)));
}

/* What the codes of K, or of V, stand for: rotated where the form is. */
static double tile_k_value(const node_coded_form_t *f, const uint8_t *tile, uint32_t t, uint32_t c)
{
    const uint32_t code = tile_k(f, tile, t, c);
    if (f->key_tokens == 0)
        return code * (double)tile_param(tile + f->k_scale, f, t, c) + tile_param(tile + f->k_min, f, t, c);
    const uint32_t at = 2 * (t / f->key_tokens * f->dim + c);
    return code * (double)node_f32_from_f16(vc_le16(tile + f->k_scale + at)) +
           node_f32_from_f16(vc_le16(tile + f->k_min + at));
}

/* Of a channel, in the model's own space. */
static double tile_k_mean(const node_coded_form_t *f, const uint8_t *tile, uint32_t c)
{
    return f->k_mean ? node_f32_from_f16(vc_le16(tile + f->k_mean + 2 * (size_t)c)) : 0.0;
}

static double tile_v_value(const node_coded_form_t *f, const uint8_t *tile, uint32_t t, uint32_t c)
{
    return tile_v(f, tile, t, c) * (double)tile_param(tile + f->v_scale, f, t, c) +
           tile_param(tile + f->v_min, f, t, c);
}

/* ---- attention ---- */

typedef struct attended {
    _Alignas(64) float o[NODE_QUERY_MAX * 128], m[NODE_QUERY_MAX], l[NODE_QUERY_MAX];
} attended_t;

static bool rotated_form(const node_coded_form_t *f) { return f->bits != 0 && f->key_tokens == 0; }

/* All tiles of one head as one split, exact pages too, outputs in the model's space but not divided. seen: how many
 * rows of each tile a query sees, NULL for all. */
static void attend_tiles(const node_ops_t *ops, const node_body_t *body, uint32_t head, uint32_t n_q, const float *q,
                         uint32_t (*seen)(uint32_t query, uint32_t tile), attended_t *out)
{
    static _Alignas(64) float p[NODE_QUERY_MAX * NODE_TILE];
    static node_coded_query_t coded[NODE_QUERY_MAX];
    const uint32_t dim = body->dims.head_dim;
    const bool turns = rotated_form(&body->form);
    bool turned = false;
    node_attn_t a = {.n_q = n_q, .head_dim = dim, .q = q, .m = out->m, .l = out->l, .o = out->o, .p = p};
    memset(out, 0, sizeof(*out));
    memset(coded, 0xa5, sizeof(coded));
    for (uint32_t i = 0; i < n_q; i++) {
        out->m[i] = -__builtin_inff();
        if (turns)
            ops->code_query(&body->form, q + (size_t)i * dim, &coded[i]);
    }
    for (uint32_t t = 0; t <= body->n_tiles[head]; t++) {
        const bool last = t == body->n_tiles[head];
        const node_tile_t tile = last ? (node_tile_t){0} : body->tiles[head][t];
        for (uint32_t i = 0; i < n_q && turned != (turns && tile.codes != NULL); i++)
            ops->hadamard(out->o + (size_t)i * dim, dim);
        turned = turns && tile.codes != NULL;
        for (uint32_t i = 0; i < n_q; i++)
            a.n_valid[i] = seen ? VC_MIN(tile.n_rows, seen(i, t)) : tile.n_rows;
        if (tile.codes)
            ops->attend_coded(&a, &body->form, coded, tile.codes);
        else if (!last)
            ops->attend(&a, tile.k, tile.v);
    }
}

static void attend_codes(const node_ops_t *ops, const node_body_t *body, uint32_t head, uint32_t n_q, const float *q,
                         attended_t *out)
{
    attend_tiles(ops, body, head, n_q, q, NULL, out);
}

/* Rows of one head as numbers [token][dim]: of the full pages, or what the codes of a body stand for. */
static void full_rows(const fx_t *f, uint32_t head, double *k, double *v)
{
    const uint32_t dim = f->model.head_dim, n_head = f->model.n_kv_head;
    for (uint32_t b = 0; b < f->in.n_blocks; b++) {
        node_page_t *page = node_kv_page_at(&f->kv, b);
        page_rows(page, head / n_head, head % n_head, dim, false, k + (size_t)b * NODE_TILE * dim);
        page_rows(page, head / n_head, head % n_head, dim, true, v + (size_t)b * NODE_TILE * dim);
    }
}

/* Returns how many rows the tiles of the head have. */
static uint32_t body_rows(const node_body_t *body, uint32_t head, double *k, double *v)
{
    const node_coded_form_t *f = &body->form;
    const uint32_t dim = body->dims.head_dim;
    uint32_t n = 0;
    for (uint32_t i = 0; i < body->n_tiles[head]; i++)
        for (uint32_t r = 0; r < body->tiles[head][i].n_rows; r++, n++, k += dim, v += dim) {
            const node_tile_t *tile = &body->tiles[head][i];
            for (uint32_t c = 0; c < dim; c++) {
                k[c] = tile->codes ? tile_k_value(f, tile->codes, r, c)
                                   : node_f32_from_f16(tile->k[(size_t)c * NODE_TILE + r]);
                v[c] =
                    tile->codes ? tile_v_value(f, tile->codes, r, c) : node_f32_from_f16(tile->v[(size_t)r * dim + c]);
            }
            if (tile->codes && rotated_form(f)) {
                hadamard(k, dim);
                hadamard(v, dim);
                for (uint32_t c = 0; c < dim; c++)
                    k[c] += tile_k_mean(f, tile->codes, c);
            }
        }
    return n;
}

/* Plain attention in double; q has log2(e) / sqrt(d) in it. */
static void attend_rows(const double *k, const double *v, uint32_t n, uint32_t dim, const float *q, double *out)
{
    double *z = calloc(n, sizeof(*z)), max = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t c = 0; c < dim; c++)
            z[t] += q[c] * k[(size_t)t * dim + c];
        max = fmax(max, z[t]);
    }
    memset(out, 0, dim * sizeof(*out));
    for (uint32_t t = 0; t < n; t++) {
        double p = exp2(z[t] - max);
        sum += p;
        for (uint32_t c = 0; c < dim; c++)
            out[c] += p * v[(size_t)t * dim + c];
    }
    for (uint32_t c = 0; c < dim; c++)
        out[c] /= sum;
    free(z);
}

static void made_up_queries(float *q, uint32_t n, uint32_t dim, double size)
{
    for (uint32_t i = 0; i < n * dim; i++)
        q[i] = (float)(size * golden_u(9, i) / sqrt(dim));
}

typedef struct errors {
    double full, coded; /* against attention over the full rows; over the numbers that the codes stand for */
} errors_t;

/* Root mean squares of the outputs' errors over all heads, over that of the outputs. */
static errors_t errors_of(const fx_t *f, const char *text, double size)
{
    enum { N_Q = 3 };
    static _Alignas(64) float q[N_Q * 128];
    static attended_t got;
    const uint32_t dim = f->model.head_dim, n = f->in.n_blocks * NODE_TILE;
    double *k = calloc((size_t)n * dim, sizeof(*k)), *v = calloc((size_t)n * dim, sizeof(*v));
    double off[2] = {0}, all[2] = {0};
    fx_records_t r = {0};
    fx_compress(text, &f->in, &r);
    node_body_t *body = fx_body(text, &f->model, &r, r.n);
    made_up_queries(q, N_Q, dim, size);
    for (uint32_t h = 0; h < f->model.n_layer * f->model.n_kv_head; h++) {
        attend_codes(&node_ops_scalar, body, h, N_Q, q, &got);
        for (int which = 0; which < 2; which++) {
            if (which)
                (void)body_rows(body, h, k, v);
            else
                full_rows(f, h, k, v);
            for (uint32_t i = 0; i < N_Q; i++) {
                double want[128];
                attend_rows(k, v, n, dim, q + (size_t)i * dim, want);
                for (uint32_t c = 0; c < dim; c++) {
                    double d = got.o[i * dim + c] / got.l[i] - want[c];
                    off[which] += d * d;
                    all[which] += want[c] * want[c];
                }
            }
        }
    }
    node_body_put(body);
    fx_records_free(&r);
    free(k);
    free(v);
    return (errors_t){sqrt(off[0] / all[0]), sqrt(off[1] / all[1])};
}

/* Every table's attention over head 0 has the scalar one's bits, for one query and for many. */
static void attend_alike_on_every_isa(const node_body_t *body, uint32_t dim, const float *q, const char *what)
{
    static const uint32_t counts[] = {1, 2, 3, 7, 32};
    static attended_t want, got;
    const node_ops_t *list[4] = {node_ops_get(NODE_OPS_AVX2), node_ops_get(NODE_OPS_AVX512),
                                 node_ops_get(NODE_OPS_AVX2) ? &node_ops_avx2 : NULL,
                                 node_ops_get(NODE_OPS_AVX512) ? &node_ops_avx512 : NULL};
    for (size_t n = 0; n < VC_ARRAY_LEN(counts); n++) {
        attend_codes(&node_ops_scalar, body, 0, counts[n], q, &want);
        for (int i = 0; i < 4; i++) {
            if (list[i] == NULL)
                continue;
            attend_codes(list[i], body, 0, counts[n], q, &got);
            cr_assert(memcmp(&want, &got, sizeof(want)) == 0, "%s, %u channels, %u queries on %s", what, dim, counts[n],
                      list[i]->name);
        }
    }
}

#endif
