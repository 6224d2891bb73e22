/*
 * rot: keys after RoPE and values, each head rotated by a normalised Hadamard transform, then quantised per token in
 * groups of channels. Nothing is calibrated, and a record depends on its block alone. The first block and the last
 * `residual` tokens are not in it: a drafter takes those blocks as full pages.
 *
 * Keys of a channel lie around a value that changes slowly from token to token: with center=yes codes are of what they
 * differ from the mean of their block, and attention adds the query's product with the mean.
 *
 * Payload of a layer: per kv_head, with center=yes the mean of K [head_dim] f16, not rotated; for K and then for V
 * {codes, scales, minima}, tokens in order: codes [NODE_TILE][head_dim] of b bits, the first in the low bits; scales
 * and minima [NODE_TILE][head_dim / group] f16. Then u32 0, the number of exact rows. group is the smaller of the
 * parameter and head_dim.
 */
#include "compress/codec_int.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static const node_param_t rot_params[] = {
    {"bits", NODE_PARAM_UINT, offsetof(node_spec_t, bits), 0, 0, 4, "2,3,4,8"},
    {"group", NODE_PARAM_UINT, offsetof(node_spec_t, group), 0, 0, 64, "16,32,64,128"},
    {"residual", NODE_PARAM_UINT, offsetof(node_spec_t, residual), 0, 8192, 64, NULL},
    {"fit", NODE_PARAM_CHOICE, offsetof(node_spec_t, fit), 0, 0, 1, "range,error"},
    {"center", NODE_PARAM_CHOICE, offsetof(node_spec_t, center), 0, 0, 1, "no,yes"},
};

static vc_status_t rot_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    return node_params_parse(spec, "rot", params, rot_params, VC_ARRAY_LEN(rot_params), err);
}

static uint32_t rot_window(const node_spec_t *spec) { return spec->residual; }
static uint32_t rot_sinks(const node_spec_t *spec) { return spec->residual ? 1 : 0; }

static vc_status_t rows_of(const node_spec_t *spec, uint32_t dim, node_rot_rows_t *s, vc_err_t *err)
{
    vc_status_t st = node_rot_rows_init(s, spec->text, spec->bits, spec->group, spec->fit != 0, dim, err);
    if (st == VC_OK)
        s->center = spec->center != 0;
    return st;
}

static uint32_t head_length(const node_rot_rows_t *s)
{
    return node_rot_mean_bytes(s) + 2 * node_rot_rows_bytes(s, NODE_TILE);
}

static uint32_t layer_length(const node_rot_rows_t *s, uint32_t n_head) { return n_head * head_length(s) + 4; }

static double rot_bits(const node_spec_t *spec, uint32_t head_dim)
{
    /* the mean has 16 bits for the 2 * NODE_TILE numbers of a channel */
    return node_rot_bits(spec->bits, spec->group, head_dim) + (spec->center ? 16.0 / (2 * NODE_TILE) : 0.0);
}

typedef struct rot_plan {
    const node_compress_in_t *in;
    node_rot_rows_t rows;
    node_rot_quantise_fn quantise;
} rot_plan_t;

static vc_status_t rot_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    node_rot_rows_t rows;
    vc_status_t st = rows_of(spec, in->model->head_dim, &rows, err);
    if (st != VC_OK)
        return st;
    rot_plan_t *plan = vc_calloc(1, sizeof(*plan));
    if (plan == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    *plan = (rot_plan_t){in, rows, node_rot_quantise_best()};
    *plan_p = plan;
    return VC_OK;
}

static uint32_t rot_layer_bytes(const void *arg, uint32_t block, uint32_t layer)
{
    (void)block, (void)layer;
    const rot_plan_t *plan = arg;
    return layer_length(&plan->rows, plan->in->model->n_kv_head);
}

static void rot_encode(const void *arg, uint32_t block, uint32_t layer, void *part)
{
    const rot_plan_t *plan = arg;
    node_page_t *page = node_kv_page_at(plan->in->kv, block);
    uint8_t *at = part;
    for (uint32_t h = 0; h < plan->in->model->n_kv_head; h++)
        at = node_rot_encode_head(&plan->rows, plan->quantise, page, layer, h, UINT64_MAX, at);
    vc_put_le32(at, 0);
}

/* One matrix of the payload to the codes [NODE_TILE][dim] and parameters [group][NODE_TILE] of a coded tile. */
static void decode_matrix(const node_rot_rows_t *s, const uint8_t *at, uint8_t *codes, uint8_t *scales, uint8_t *mins)
{
    const node_coded_rows_t rows = node_rot_rows_at(s, at, NODE_TILE);
    const uint8_t *scale_at = rows.scales, *min_at = rows.mins;
    node_rot_unpack(codes, at, NODE_TILE * s->dim, s->bits);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t g = 0; g < s->n_groups; g++, scale_at += 2, min_at += 2) {
            uint16_t scale = vc_le16(scale_at), min = vc_le16(min_at); /* a tile has the machine's byte order */
            memcpy(scales + 2 * ((size_t)g * NODE_TILE + t), &scale, 2);
            memcpy(mins + 2 * ((size_t)g * NODE_TILE + t), &min, 2);
        }
}

static void decode_head(const node_rot_rows_t *s, const node_coded_form_t *f, const uint8_t *at, uint8_t *tile)
{
    uint8_t codes[NODE_HEAD_DIM_MAX * NODE_TILE];
    if (s->center) /* a small head does not fill the mean's place */
        memset(tile + f->k_mean, 0, f->bytes - f->k_mean);
    for (uint32_t c = 0; s->center && c < s->dim; c++, at += 2) {
        uint16_t mean = vc_le16(at);
        memcpy(tile + f->k_mean + 2 * (size_t)c, &mean, 2);
    }
    decode_matrix(s, at, codes, tile + f->k_scale, tile + f->k_min);
    node_coded_put_k(f, tile, codes);
    decode_matrix(s, at + node_rot_rows_bytes(s, NODE_TILE), codes, tile + f->v_scale, tile + f->v_min);
    node_coded_put_v(f, tile, codes);
}

/* What cannot be in the payload of a head, or NULL. */
static const char *wrong_in_head(const node_rot_rows_t *s, const uint8_t *at)
{
    if (!node_f16_finite(at, node_rot_mean_bytes(s) / 2))
        return "a mean of keys";
    at += node_rot_mean_bytes(s);
    if (!node_rot_rows_valid(s, at, NODE_TILE))
        return "a scale or minimum of keys";
    return node_rot_rows_valid(s, at + node_rot_rows_bytes(s, NODE_TILE), NODE_TILE) ? NULL
                                                                                     : "a scale or minimum of values";
}

static vc_status_t rot_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                              uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    const uint32_t dim = head->shape.head_dim, n_head = head->shape.n_kv_head;
    node_rot_rows_t s;
    vc_status_t st = rows_of(spec, dim, &s, err);
    if (st != VC_OK)
        return st;
    if (length != layer_length(&s, n_head) || vc_le32((const uint8_t *)part + length - 4) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "rot block %u layer %u: %u bytes where %u ending in a zero count belong",
                          head->block_index, layer, length, layer_length(&s, n_head));
    for (uint32_t h = 0; h < n_head; h++) {
        const char *wrong = wrong_in_head(&s, (const uint8_t *)part + (size_t)h * head_length(&s));
        if (wrong)
            return vc_err_set(err, VC_ERR_CORRUPT, "rot block %u layer %u: %s that cannot be in head %u",
                              head->block_index, layer, wrong, h);
    }
    node_coded_form_t form;
    node_coded_form_init(&form, s.bits, dim, s.group);
    if (s.center)
        node_coded_form_add_mean(&form);
    for (uint32_t h = 0; st == VC_OK && h < n_head; h++) {
        uint8_t *tile;
        st = node_body_own_tile(builder, head->block_index, layer, h, &form, &tile, err);
        if (st == VC_OK && tile != NULL)
            decode_head(&s, &form, (const uint8_t *)part + (size_t)h * head_length(&s), tile);
    }
    return st;
}

const node_codec_ops_t node_codec_rot = {
    .name = "rot",
    .params_help = "bits=4 (2, 3, 4, 8) group=64 (16, 32, 64, 128) residual=64 fit=error (range, error)"
                   " center=yes (no, yes)",
    .kind = VC_KVREC_QUANTISER,
    .parse = rot_parse,
    .bits = rot_bits,
    .needs = node_codec_no_need,
    .window_tokens = rot_window,
    .sink_blocks = rot_sinks,
    .plan = rot_plan,
    .layer_bytes = rot_layer_bytes,
    .encode = rot_encode,
    .plan_free = vc_free,
    .decode = rot_decode,
};
