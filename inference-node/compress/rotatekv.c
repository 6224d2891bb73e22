/*
 * rotatekv: keys before RoPE, rotated over up to four heads, put in a calibrated order and quantised per token in
 * groups of channels; values rotated inside their head and quantised likewise. Tokens that hold the largest numbers of
 * the residual stream keep their rows exact. After the paper; what differs is in compress/METHODS.md.
 *
 * Payload of a layer, for K and then for V, over the channels of all heads: codes [NODE_TILE][n_kv_head * head_dim] of
 * b bits, the first in the low bits; scales f16 and zero points i16 [NODE_TILE][groups]. Then u32 number of exact rows
 * and for each u8 row of the block, K and V f16 [n_kv_head * head_dim], ascending.
 */
#include "compress/calib.h"
#include "compress/rot_int.h"
#include "compress/rotatekv_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

#define SINKS_MAX 256

static vc_status_t rkv_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    node_param_t table[] = {
        {"bits", NODE_PARAM_UINT, offsetof(node_spec_t, bits), 0, 0, 4, "2,3,4"},
        {"group", NODE_PARAM_UINT, offsetof(node_spec_t, group), 0, 0, 128, "16,32,64,128"},
        {"clip", NODE_PARAM_REAL, offsetof(node_spec_t, clip), 0, 1, 1, NULL},
        {"sinks", NODE_PARAM_UINT, offsetof(node_spec_t, sinks), 0, SINKS_MAX, 20, NULL},
        {"residual", NODE_PARAM_UINT, offsetof(node_spec_t, residual), 0, 8192, 64, NULL},
    };
    vc_status_t st = node_params_parse(spec, "rotatekv", params, table, VC_ARRAY_LEN(table), err);
    if (st != VC_OK || spec->bits != 2)
        return st;
    table[2].preset = 0.8; /* four levels are better spent on the middle */
    return node_params_parse(spec, "rotatekv", params, table, VC_ARRAY_LEN(table), err);
}

/* Sinks are a number per registration and share tokens: counted as three rows for five of them, over 2,048 tokens. */
static double rkv_bits(const node_spec_t *spec, uint32_t head_dim)
{
    return spec->bits + 32.0 / VC_MIN(spec->group, head_dim) + 0.6 * spec->sinks * 16.0 / 2048.0;
}

static uint32_t rkv_needs(const node_spec_t *spec)
{
    (void)spec;
    return NODE_NEED_CALIB;
}

static uint32_t rkv_window(const node_spec_t *spec) { return spec->residual; }
static uint32_t rkv_sink_blocks(const node_spec_t *spec) { return spec->residual ? 1 : 0; }

uint32_t node_rkv_key_block(uint32_t n_head, uint32_t dim)
{
    const uint32_t inside = dim & (0u - dim), heads = n_head & (0u - n_head);
    return inside == dim ? dim * VC_MIN(heads, 4u) : inside;
}

vc_status_t node_rkv_shape(const node_spec_t *spec, uint32_t n_head, uint32_t dim, node_rkv_shape_t *s_p, vc_err_t *err)
{
    const uint32_t group = VC_MIN(spec->group, dim);
    if (dim == 0 || dim % 16 != 0 || dim > NODE_HEAD_DIM_MAX || dim % group != 0 || n_head == 0 ||
        n_head > (UINT16_MAX + 1u) / dim)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%s does not fit %u heads of %u channels", spec->text, n_head, dim);
    const uint32_t width = n_head * dim;
    *s_p = (node_rkv_shape_t){.n_head = n_head,
                              .dim = dim,
                              .width = width,
                              .key_block = node_rkv_key_block(n_head, dim),
                              .value_block = dim & (0u - dim),
                              .group = group,
                              .n_groups = width / group,
                              .bits = spec->bits,
                              .row_bytes = width * spec->bits / 8};
    return VC_OK;
}

const node_rkv_ops_t *node_rkv_ops(node_ops_level_t level)
{
    switch (level) {
    case NODE_OPS_AVX512: return &node_rkv_avx512;
    case NODE_OPS_AVX2: return &node_rkv_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return &node_rkv_scalar;
}

bool node_rkv_scratch_init(node_rkv_scratch_t *t, const node_rkv_shape_t *s)
{
    const size_t n = (size_t)s->width * NODE_TILE, groups = (size_t)s->n_groups * NODE_TILE;
    *t = (node_rkv_scratch_t){.x = vc_alloc_aligned(64, n * sizeof(*t->x)),
                              .scales = vc_alloc_aligned(64, groups * sizeof(*t->scales)),
                              .zeros = vc_alloc_aligned(64, groups * sizeof(*t->zeros)),
                              .k = vc_alloc_aligned(64, n * sizeof(*t->k)),
                              .v = vc_alloc_aligned(64, n * sizeof(*t->v)),
                              .codes = vc_alloc_aligned(64, n),
                              .rows = vc_alloc_aligned(64, n)};
    if (t->x && t->scales && t->zeros && t->k && t->v && t->codes && t->rows)
        return true;
    node_rkv_scratch_fini(t);
    return false;
}

void node_rkv_scratch_fini(node_rkv_scratch_t *t)
{
    vc_free(t->x);
    vc_free(t->scales);
    vc_free(t->zeros);
    vc_free(t->k);
    vc_free(t->v);
    vc_free(t->codes);
    vc_free(t->rows);
    *t = (node_rkv_scratch_t){0};
}

/* The layer's part of the blob, in the machine's byte order. */
static void layer_order(const node_spec_t *spec, const node_rkv_shape_t *s, uint32_t layer, uint16_t *order)
{
    const uint8_t *at = spec->calib->payload + (size_t)layer * s->width * 2;
    for (uint32_t j = 0; j < s->width; j++)
        order[j] = vc_le16(at + 2 * (size_t)j);
}

static vc_status_t check_calib(const node_spec_t *spec, const node_rkv_shape_t *s, uint32_t n_layer, vc_err_t *err)
{
    if (spec->calib == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "compressor rotatekv needs a calibration blob of this model");
    if (spec->calib->bytes != (size_t)n_layer * s->width * 2)
        return vc_err_set(err, VC_ERR_MISMATCH, "the calibration blob of rotatekv is of another model");
    return VC_OK;
}

/* ---- watching ---- */

static vc_status_t rkv_watch(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                             uint32_t end_token, node_watch_t *watch_p, vc_err_t *err)
{
    *watch_p = (node_watch_t){.kinds = 0, .first = first_token, .end = end_token, .state = NULL};
    if (spec->sinks == 0)
        return VC_OK;
    watch_p->kinds = NODE_CAP_RESID;
    watch_p->state = node_rkv_sinks_create(model->n_layer, model->d_model, spec->sinks);
    return watch_p->state ? VC_OK : vc_err_set(err, VC_ERR_NOMEM, "no memory to watch the residual stream");
}

static void rkv_watch_row(void *state, node_capture_kind_t kind, uint32_t layer, uint32_t position, const float *values)
{
    if (kind == NODE_CAP_RESID)
        node_rkv_sinks_row(state, layer, position, values);
}

/* ---- compression ---- */

typedef struct rkv_plan {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    const node_rkv_ops_t *ops;
    node_rkv_shape_t shape;
    node_rkv_grid_t grid;
    node_prerope_t *prerope;
    node_rkv_scratch_t room;
    uint64_t *exact; /* [layer][block - first_block], bit = row of the block */
    uint16_t *order; /* [layer][width] */
} rkv_plan_t;

static void rkv_plan_free(void *arg)
{
    rkv_plan_t *p = arg;
    if (p == NULL)
        return;
    node_prerope_destroy(p->prerope);
    node_rkv_scratch_fini(&p->room);
    vc_free(p->exact);
    vc_free(p->order);
    vc_free(p);
}

static bool plan_room(rkv_plan_t *p)
{
    const uint32_t n_layer = p->in->model->n_layer;
    p->prerope = node_prerope_create(p->in->model);
    p->exact = vc_calloc((size_t)n_layer * (p->in->n_blocks - p->in->first_block), sizeof(*p->exact));
    p->order = vc_calloc((size_t)n_layer * p->shape.width, sizeof(*p->order));
    if (p->prerope == NULL || p->exact == NULL || p->order == NULL || !node_rkv_scratch_init(&p->room, &p->shape))
        return false;
    p->ops = node_rkv_ops(node_prerope_level(p->prerope));
    return true;
}

static vc_status_t rkv_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    const node_model_info_t *model = in->model;
    node_rkv_shape_t shape;
    vc_status_t st = node_rkv_shape(spec, model->n_kv_head, model->head_dim, &shape, err);
    if (st == VC_OK)
        st = check_calib(spec, &shape, model->n_layer, err);
    if (st == VC_OK && spec->sinks > 0 && in->watched == NULL)
        st = vc_err_set(err, VC_ERR_INVALID, "compressor rotatekv needs the residual stream of the new blocks");
    if (st != VC_OK)
        return st;
    rkv_plan_t *p = vc_calloc(1, sizeof(*p));
    if (p == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    p->spec = spec;
    p->in = in;
    p->shape = shape;
    p->grid = node_rkv_grid(spec, shape.group);
    if (!plan_room(p)) {
        rkv_plan_free(p);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    }
    const uint32_t n_new = in->n_blocks - in->first_block;
    for (uint32_t l = 0; l < model->n_layer; l++) {
        layer_order(spec, &shape, l, p->order + (size_t)l * shape.width);
        if (spec->sinks > 0)
            node_rkv_sinks_rows(in->watched, l, in->first_block * NODE_TILE, n_new, p->exact + (size_t)l * n_new);
    }
    *plan_p = p;
    return VC_OK;
}

static uint64_t exact_rows(const rkv_plan_t *p, uint32_t block, uint32_t layer)
{
    return p->exact[(size_t)layer * (p->in->n_blocks - p->in->first_block) + block - p->in->first_block];
}

static uint32_t rkv_layer_bytes(const void *arg, uint32_t block, uint32_t layer)
{
    const rkv_plan_t *p = arg;
    return 2 * node_rkv_matrix_bytes(&p->shape) + 4 +
           (uint32_t)__builtin_popcountll(exact_rows(p, block, layer)) * node_rkv_exact_bytes(&p->shape);
}

/* dst [n][m] from src [m][n]. */
static void turn_bytes(uint8_t *dst, const uint8_t *src, uint32_t m, uint32_t n)
{
    for (uint32_t i = 0; i < m; i += 8)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t k = i; k < i + 8; k++)
                dst[(size_t)j * m + k] = src[(size_t)k * n + j];
}

/* The rotated matrix in room->x to its bytes; returns the first one after it. */
static uint8_t *encode_matrix(const rkv_plan_t *p, const uint16_t *order, uint8_t *at)
{
    const node_rkv_shape_t *s = &p->shape;
    const node_rkv_scratch_t *r = &p->room;
    p->ops->quantise(&p->grid, r->x, order, s->width, r->codes, r->scales, r->zeros);
    turn_bytes(r->rows, r->codes, s->width, NODE_TILE);
    node_rot_pack(at, r->rows, NODE_TILE * s->width, s->bits);
    uint8_t *scale_at = at + node_rkv_codes_bytes(s), *zero_at = scale_at + node_rkv_params_bytes(s);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t g = 0; g < s->n_groups; g++, scale_at += 2, zero_at += 2) {
            vc_put_le16(scale_at, node_f16_from_f32(r->scales[(size_t)g * NODE_TILE + t])); /* exact */
            vc_put_le16(zero_at, (uint16_t)r->zeros[(size_t)g * NODE_TILE + t]);
        }
    return zero_at;
}

static uint8_t *encode_exact(const node_rkv_shape_t *s, node_page_t *page, uint32_t layer, uint64_t rows, uint8_t *at)
{
    vc_put_le32(at, (uint32_t)__builtin_popcountll(rows));
    at += 4;
    for (; rows != 0; rows &= rows - 1) {
        const uint32_t t = (uint32_t)__builtin_ctzll(rows);
        *at++ = (uint8_t)t;
        for (uint32_t h = 0; h < s->n_head; h++)
            for (uint32_t c = 0; c < s->dim; c++, at += 2)
                vc_put_le16(at, node_page_k(page, layer, h)[(size_t)c * NODE_TILE + t]);
        for (uint32_t h = 0; h < s->n_head; h++)
            for (uint32_t c = 0; c < s->dim; c++, at += 2)
                vc_put_le16(at, node_page_v(page, layer, h)[(size_t)t * s->dim + c]);
    }
    return at;
}

static void rkv_encode(const void *arg, uint32_t block, uint32_t layer, void *part)
{
    const rkv_plan_t *p = arg;
    const node_rkv_shape_t *s = &p->shape;
    node_page_t *page = node_kv_page_at(p->in->kv, block);
    node_prerope_set_block(p->prerope, block);
    for (uint32_t h = 0; h < s->n_head; h++)
        node_prerope_undo(p->prerope, node_page_k(page, layer, h), p->room.x + (size_t)h * s->dim * NODE_TILE);
    p->ops->rotate(p->room.x, s->width, s->key_block);
    uint8_t *at = encode_matrix(p, p->order + (size_t)layer * s->width, part);
    for (uint32_t h = 0; h < s->n_head; h++) {
        const uint16_t *v = node_page_v(page, layer, h);
        uint16_t *turned = p->room.v + (size_t)h * s->dim * NODE_TILE;
        for (uint32_t t = 0; t < NODE_TILE; t++)
            for (uint32_t c = 0; c < s->dim; c++)
                turned[(size_t)c * NODE_TILE + t] = v[(size_t)t * s->dim + c];
    }
    p->ops->widen(p->room.v, s->width, p->room.x);
    p->ops->rotate(p->room.x, s->width, s->value_block);
    at = encode_matrix(p, NULL, at);
    encode_exact(s, page, layer, exact_rows(p, block, layer), at);
}

/* ---- loading ---- */

/* Scales are finite and not negative; a zero one has a zero point and codes of zero: what encode_matrix writes. */
static bool matrix_valid(const node_rkv_shape_t *s, const uint8_t *at)
{
    const uint8_t *scale_at = at + node_rkv_codes_bytes(s), *zero_at = scale_at + node_rkv_params_bytes(s);
    const uint32_t group_bytes = s->group * s->bits / 8;
    if (!node_f16_finite(scale_at, (size_t)NODE_TILE * s->n_groups))
        return false;
    for (uint32_t g = 0; g < NODE_TILE * s->n_groups; g++) {
        const uint16_t scale = vc_le16(scale_at + 2 * (size_t)g);
        if (scale & 0x8000u)
            return false;
        uint32_t any = 0;
        if (scale == 0)
            any = vc_le16(zero_at + 2 * (size_t)g);
        for (uint32_t i = 0; scale == 0 && i < group_bytes; i++)
            any |= at[(size_t)g * group_bytes + i];
        if (any)
            return false;
    }
    return true;
}

static bool exact_valid(const node_rkv_shape_t *s, const uint8_t *at, uint32_t n)
{
    int before = -1;
    for (; n > 0; n--, at += node_rkv_exact_bytes(s)) {
        if (*at <= before || *at >= NODE_TILE || !node_f16_finite(at + 1, 2 * (size_t)s->width))
            return false;
        before = *at;
    }
    return true;
}

static vc_status_t part_valid(const node_rkv_shape_t *s, const vc_kvrec_head_t *head, uint32_t layer,
                              const uint8_t *part, uint32_t length, vc_err_t *err)
{
    const uint32_t codes = 2 * node_rkv_matrix_bytes(s);
    const uint32_t n = length >= codes + 4 ? vc_le32(part + codes) : 0;
    if (length < codes + 4 || n > NODE_TILE || length != codes + 4 + n * node_rkv_exact_bytes(s))
        return vc_err_set(err, VC_ERR_CORRUPT,
                          "rotatekv block %u layer %u: %u bytes do not fit %u of codes and %u rows", head->block_index,
                          layer, length, codes, n);
    for (uint32_t i = 0; i < 2; i++)
        if (!matrix_valid(s, part + (size_t)i * node_rkv_matrix_bytes(s)))
            return vc_err_set(err, VC_ERR_CORRUPT, "rotatekv block %u layer %u: %s have a scale that cannot be",
                              head->block_index, layer, i ? "values" : "keys");
    if (!exact_valid(s, part + codes + 4, n))
        return vc_err_set(err, VC_ERR_CORRUPT, "rotatekv block %u layer %u: exact rows out of order or not finite",
                          head->block_index, layer);
    return VC_OK;
}

/* Numbers of one matrix, still rotated, into room->x. */
static void decode_matrix(const node_rkv_shape_t *s, const node_rkv_ops_t *ops, const uint8_t *at,
                          const uint16_t *order, const node_rkv_scratch_t *r)
{
    const uint8_t *scale_at = at + node_rkv_codes_bytes(s), *zero_at = scale_at + node_rkv_params_bytes(s);
    node_rot_unpack(r->rows, at, NODE_TILE * s->width, s->bits);
    turn_bytes(r->codes, r->rows, NODE_TILE, s->width);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t g = 0; g < s->n_groups; g++, scale_at += 2, zero_at += 2) {
            r->scales[(size_t)g * NODE_TILE + t] = node_f32_from_f16(vc_le16(scale_at));
            r->zeros[(size_t)g * NODE_TILE + t] = (int16_t)vc_le16(zero_at);
        }
    ops->restore(r->codes, r->scales, r->zeros, order, s->width, s->group, r->x);
}

/* Exact rows over the ones that went through codes. */
static void decode_exact(const node_rkv_shape_t *s, const uint8_t *at, uint32_t n, const node_rkv_scratch_t *r)
{
    for (; n > 0; n--) {
        const uint32_t t = *at++;
        for (uint32_t c = 0; c < s->width; c++, at += 2)
            r->k[(size_t)c * NODE_TILE + t] = vc_le16(at);
        for (uint32_t c = 0; c < s->width; c++, at += 2)
            r->v[((size_t)(c / s->dim) * NODE_TILE + t) * s->dim + c % s->dim] = vc_le16(at);
    }
}

/* The whole layer into room->k and room->v. */
static void decode_layer(const node_rkv_shape_t *s, const uint8_t *part, const uint16_t *order,
                         const node_prerope_t *prerope, const node_rkv_scratch_t *r)
{
    const node_rkv_ops_t *ops = node_rkv_ops(node_prerope_level(prerope));
    const size_t half = (size_t)s->dim * NODE_TILE;
    decode_matrix(s, ops, part, order, r);
    ops->rotate(r->x, s->width, s->key_block);
    for (uint32_t h = 0; h < s->n_head; h++)
        node_prerope_apply(prerope, r->x + h * half, r->k + h * half);
    decode_matrix(s, ops, part + node_rkv_matrix_bytes(s), NULL, r);
    ops->rotate(r->x, s->width, s->value_block);
    uint16_t turned[NODE_HEAD_DIM_MAX * NODE_TILE];
    for (uint32_t h = 0; h < s->n_head; h++) {
        ops->narrow(r->x + h * half, s->dim, turned);
        for (uint32_t t = 0; t < NODE_TILE; t++)
            for (uint32_t c = 0; c < s->dim; c++)
                r->v[h * half + (size_t)t * s->dim + c] = turned[(size_t)c * NODE_TILE + t];
    }
    const uint8_t *rows = part + 2 * (size_t)node_rkv_matrix_bytes(s);
    decode_exact(s, rows + 4, vc_le32(rows), r);
}

static vc_status_t put_layer(const node_rkv_shape_t *s, const node_spec_t *spec, uint32_t block, uint32_t layer,
                             const uint8_t *part, node_body_builder_t *builder, vc_err_t *err)
{
    const node_prerope_t *prerope = node_body_prerope(builder, block);
    const size_t half = (size_t)s->dim * NODE_TILE;
    node_rkv_scratch_t room;
    uint16_t *order = vc_calloc(s->width, sizeof(*order));
    if (prerope == NULL || order == NULL || !node_rkv_scratch_init(&room, s)) {
        vc_free(order);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to decode block %u", block);
    }
    layer_order(spec, s, layer, order);
    decode_layer(s, part, order, prerope, &room);
    vc_status_t st = VC_OK;
    for (uint32_t h = 0; st == VC_OK && h < s->n_head; h++)
        st = node_body_put_tile(builder, block, layer, h, room.k + h * half, room.v + h * half, err);
    node_rkv_scratch_fini(&room);
    vc_free(order);
    return st;
}

static vc_status_t rkv_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                              uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    node_rkv_shape_t s;
    vc_status_t st = node_rkv_shape(spec, head->shape.n_kv_head, head->shape.head_dim, &s, err);
    if (st == VC_OK)
        st = check_calib(spec, &s, head->shape.n_layer, err);
    if (st == VC_OK)
        st = part_valid(&s, head, layer, part, length, err);
    return st == VC_OK ? put_layer(&s, spec, head->block_index, layer, part, builder, err) : st;
}

const node_codec_ops_t node_codec_rotatekv = {
    .name = "rotatekv",
    .params_help = "bits=4 (2, 3, 4) group=128 (16, 32, 64, 128) clip=1 (0.8 at 2 bits) sinks=20 residual=64",
    .kind = VC_KVREC_QUANTISER,
    .parse = rkv_parse,
    .bits = rkv_bits,
    .needs = rkv_needs,
    .window_tokens = rkv_window,
    .sink_blocks = rkv_sink_blocks,
    .chooses = true,
    .watch = rkv_watch,
    .watch_row = rkv_watch_row,
    .watch_free = node_rkv_sinks_free,
    .calibrate = node_rkv_calibrate,
    .calib_check = node_rkv_calib_check,
    .plan = rkv_plan,
    .layer_bytes = rkv_layer_bytes,
    .encode = rkv_encode,
    .plan_free = rkv_plan_free,
    .decode = rkv_decode,
};
