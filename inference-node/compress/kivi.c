/*
 * KIVI: keys per channel in groups of tokens, values per token in groups of channels, minimum and scale in f16.
 *
 * A page stores K as [dim][token] and V as [token][dim], so both are a matrix of rows cut into groups of neighbours:
 *   K: head_dim rows of NODE_TILE tokens, group = spec.group
 *   V: NODE_TILE rows of head_dim channels, group = min(spec.group, head_dim)
 * Groups divide a block, so a record depends on its block alone. The residual of the method (its last R exact tokens)
 * is not in the record: a drafter takes those blocks as full pages.
 *
 * Payload of a layer: per kv_head {K codes, K scales, K minima, V codes, V scales, V minima}, rows in order, codes
 * packed with the first in the low bits; then u32 0, the number of exact rows.
 */
#include "compress/codec_int.h"
#include "compress/kivi_int.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static const node_param_t kivi_params[] = {
    {"bits", NODE_PARAM_UINT, offsetof(node_spec_t, bits), 0, 0, 4, "2,4,8"},
    {"group", NODE_PARAM_UINT, offsetof(node_spec_t, group), 0, 0, 32, "16,32,64"},
    {"residual", NODE_PARAM_UINT, offsetof(node_spec_t, residual), 0, 8192, 128, NULL},
};

static vc_status_t kivi_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    vc_status_t st = node_params_parse(spec, "kivi", params, kivi_params, VC_ARRAY_LEN(kivi_params), err);
    if (st == VC_OK && spec->residual % spec->group != 0)
        return vc_err_set(err, VC_ERR_INVALID, "compressor kivi: residual=%u is not a multiple of group=%u",
                          spec->residual, spec->group);
    return st;
}

static uint32_t kivi_window(const node_spec_t *spec) { return spec->residual; }
static uint32_t kivi_sinks(const node_spec_t *spec) { return spec->residual ? 1 : 0; }

/* One of the two matrices of a head. */
typedef struct matrix {
    uint32_t rows, cols, group, bits;
} matrix_t;

static matrix_t k_matrix(const node_spec_t *spec, uint32_t dim)
{
    return (matrix_t){dim, NODE_TILE, spec->group, spec->bits};
}

static matrix_t v_matrix(const node_spec_t *spec, uint32_t dim)
{
    return (matrix_t){NODE_TILE, dim, VC_MIN(spec->group, dim), spec->bits};
}

static uint32_t codes_bytes(const matrix_t *m) { return m->rows * (m->cols * m->bits / 8); }
static uint32_t n_groups(const matrix_t *m) { return m->rows * (m->cols / m->group); }
static uint32_t matrix_bytes(const matrix_t *m) { return codes_bytes(m) + 4 * n_groups(m); }

/* The geometry that packing needs; head sizes in use (64, 80 with group 16, 96, 128) have it. */
static vc_status_t check_dim(const node_spec_t *spec, uint32_t dim, vc_err_t *err)
{
    uint32_t group = VC_MIN(spec->group, dim);
    if (dim == 0 || dim % group != 0 || group * spec->bits % 8 != 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%s does not fit a head of %u channels", spec->text, dim);
    return VC_OK;
}

static uint32_t layer_length(const node_spec_t *spec, uint32_t n_head, uint32_t dim)
{
    matrix_t k = k_matrix(spec, dim), v = v_matrix(spec, dim);
    return n_head * (matrix_bytes(&k) + matrix_bytes(&v)) + 4;
}

static double kivi_bits(const node_spec_t *spec, uint32_t head_dim)
{
    matrix_t k = k_matrix(spec, head_dim), v = v_matrix(spec, head_dim);
    return 8.0 * (matrix_bytes(&k) + matrix_bytes(&v)) / (2.0 * NODE_TILE * head_dim);
}

void node_kivi_quantise_plain(const uint16_t *x, uint32_t n_groups, uint32_t group, uint32_t bits, uint8_t *codes,
                              uint8_t *scales, uint8_t *mins)
{
    const float levels = node_kivi_levels(bits);
    for (uint32_t g = 0; g < n_groups; g++, x += group, codes += group * bits / 8) {
        float f[NODE_KIVI_GROUP_MAX] = {0}, scale, min;
        uint8_t code[NODE_KIVI_GROUP_MAX];
        for (uint32_t i = 0; i < group; i++)
            f[i] = node_f32_from_f16(x[i]);
        node_kivi_fit(f, group, bits, &scale, &min);
        uint16_t scale16 = node_f16_from_f32(scale), min16 = node_f16_from_f32(min);
        scale = node_f32_from_f16(scale16); /* codes belong to the stored parameters */
        min = node_f32_from_f16(min16);
        for (uint32_t i = 0; i < group; i++)
            code[i] = node_kivi_code(f[i], scale, min, levels);
        node_kivi_pack(codes, code, group, bits);
        vc_put_le16(scales + 2 * g, scale16);
        vc_put_le16(mins + 2 * g, min16);
    }
}

node_kivi_quantise_fn node_kivi_quantise(node_ops_level_t level)
{
    if (node_ops_get(level) == NULL)
        return NULL;
    switch (level) {
    case NODE_OPS_AVX512: return node_kivi_quantise_avx512;
    case NODE_OPS_AVX2: return node_kivi_quantise_avx2;
    case NODE_OPS_SCALAR: break;
    }
    return node_kivi_quantise_scalar;
}

/* Heads narrower than a vector go one number at a time. */
static node_kivi_quantise_fn best_quantise(uint32_t group)
{
    return group % 16 != 0 ? node_kivi_quantise_plain : node_kivi_quantise(node_ops_best_level());
}

static void encode_matrix(const matrix_t *m, node_kivi_quantise_fn quantise, const uint16_t *x, uint8_t *codes)
{
    uint8_t *scales = codes + codes_bytes(m), *mins = scales + 2 * n_groups(m);
    quantise(x, n_groups(m), m->group, m->bits, codes, scales, mins);
}

static bool matrix_valid(const matrix_t *m, const uint8_t *codes)
{
    const uint8_t *scales = codes + codes_bytes(m);
    return node_groups_valid(codes, scales, scales + 2 * n_groups(m), n_groups(m), m->group * m->bits / 8);
}

/* Up to 4 bits a group has at most 16 values, so they are rounded to f16 once and looked up. */
static void decode_group(const uint8_t *codes, uint32_t n, uint32_t bits, float scale, float min, uint16_t *out)
{
    uint16_t value[16];
    if (bits == 8) {
        for (uint32_t i = 0; i < n; i++)
            out[i] = node_f16_from_f32(node_kivi_value(codes[i], scale, min));
        return;
    }
    for (uint32_t c = 0; c < 1u << bits; c++)
        value[c] = node_f16_from_f32(node_kivi_value(c, scale, min));
    if (bits == 4) {
        for (uint32_t i = 0; i < n / 2; i++) {
            out[2 * i] = value[codes[i] & 15u];
            out[2 * i + 1] = value[codes[i] >> 4];
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = value[node_kivi_unpack(codes, i, 2)];
}

static void decode_matrix(const matrix_t *m, const uint8_t *codes, uint16_t *out)
{
    const uint8_t *scales = codes + codes_bytes(m), *mins = scales + 2 * n_groups(m);
    for (uint32_t g = 0; g < n_groups(m); g++, out += m->group) {
        decode_group(codes, m->group, m->bits, node_f32_from_f16(vc_le16(scales + 2 * g)),
                     node_f32_from_f16(vc_le16(mins + 2 * g)), out);
        codes += m->group * m->bits / 8;
    }
}

typedef struct kivi_plan {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    node_kivi_quantise_fn quantise_k, quantise_v; /* chosen once: asking the CPU is slow under a hypervisor */
} kivi_plan_t;

static vc_status_t kivi_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    vc_status_t st = check_dim(spec, in->model->head_dim, err);
    if (st != VC_OK)
        return st;
    kivi_plan_t *plan = vc_calloc(1, sizeof(*plan));
    if (plan == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    *plan =
        (kivi_plan_t){spec, in, best_quantise(spec->group), best_quantise(v_matrix(spec, in->model->head_dim).group)};
    *plan_p = plan;
    return VC_OK;
}

static uint32_t kivi_layer_bytes(const void *arg, uint32_t block, uint32_t layer)
{
    (void)block, (void)layer;
    const kivi_plan_t *plan = arg;
    return layer_length(plan->spec, plan->in->model->n_kv_head, plan->in->model->head_dim);
}

static void kivi_encode(const void *arg, uint32_t block, uint32_t layer, void *part)
{
    const kivi_plan_t *plan = arg;
    const node_model_info_t *model = plan->in->model;
    node_page_t *page = node_kv_page_at(plan->in->kv, block);
    const matrix_t k = k_matrix(plan->spec, model->head_dim), v = v_matrix(plan->spec, model->head_dim);
    uint8_t *at = part;
    for (uint32_t h = 0; h < model->n_kv_head; h++) {
        encode_matrix(&k, plan->quantise_k, node_page_k(page, layer, h), at);
        at += matrix_bytes(&k);
        encode_matrix(&v, plan->quantise_v, node_page_v(page, layer, h), at);
        at += matrix_bytes(&v);
    }
    vc_put_le32(at, 0);
}

/* Heads that coded tiles cannot have are attended as pages. */
static bool fits_tiles(const matrix_t *v) { return v->cols <= NODE_HEAD_DIM_MAX && v->group % 16 == 0; }

/* Codes of a matrix, one a byte, and its parameters from [row][group] to [group][row], as coded tiles have them. */
static void unpack_matrix(const matrix_t *m, const uint8_t *at, uint8_t *codes, uint8_t *scales, uint8_t *mins)
{
    const uint8_t *scale_at = at + codes_bytes(m), *min_at = scale_at + 2 * n_groups(m);
    node_rot_unpack(codes, at, m->rows * m->cols, m->bits);
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t g = 0; g < m->cols / m->group; g++, scale_at += 2, min_at += 2) {
            uint16_t scale = vc_le16(scale_at), min = vc_le16(min_at); /* a tile has the machine's byte order */
            memcpy(scales + 2 * ((size_t)g * m->rows + r), &scale, 2);
            memcpy(mins + 2 * ((size_t)g * m->rows + r), &min, 2);
        }
}

static vc_status_t load_codes(const matrix_t *k, const matrix_t *v, const vc_kvrec_head_t *head, uint32_t layer,
                              const uint8_t *part, node_body_builder_t *builder, vc_err_t *err)
{
    uint8_t codes[NODE_HEAD_DIM_MAX * NODE_TILE];
    node_coded_form_t form;
    vc_status_t st = VC_OK;
    node_coded_form_init_channels(&form, v->bits, v->cols, v->group, k->group);
    for (uint32_t h = 0; st == VC_OK && h < head->shape.n_kv_head; h++, part += matrix_bytes(k) + matrix_bytes(v)) {
        uint8_t *tile;
        st = node_body_own_tile(builder, head->block_index, layer, h, &form, &tile, err);
        if (st != VC_OK || tile == NULL)
            break;
        unpack_matrix(k, part, codes, tile + form.k_scale, tile + form.k_min);
        node_coded_put_k_channels(&form, tile, codes);
        unpack_matrix(v, part + matrix_bytes(k), codes, tile + form.v_scale, tile + form.v_min);
        node_coded_put_v(&form, tile, codes);
    }
    return st;
}

static vc_status_t kivi_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                               uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    const uint32_t dim = head->shape.head_dim, n_head = head->shape.n_kv_head;
    vc_status_t st = check_dim(spec, dim, err);
    if (st != VC_OK)
        return st;
    if (length != layer_length(spec, n_head, dim) || vc_le32((const uint8_t *)part + length - 4) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT,
                          "kivi block %u layer %u: %u bytes where %u ending in a zero count belong", head->block_index,
                          layer, length, layer_length(spec, n_head, dim));
    const matrix_t k = k_matrix(spec, dim), v = v_matrix(spec, dim);
    const uint32_t head_bytes = matrix_bytes(&k) + matrix_bytes(&v);
    for (uint32_t h = 0; h < n_head; h++) {
        const uint8_t *at = (const uint8_t *)part + (size_t)h * head_bytes;
        if (!matrix_valid(&k, at) || !matrix_valid(&v, at + matrix_bytes(&k)))
            return vc_err_set(err, VC_ERR_CORRUPT,
                              "kivi block %u layer %u: head %u has a scale or minimum that cannot be",
                              head->block_index, layer, h);
    }
    if (node_body_load(builder) == NODE_LOAD_CODES && fits_tiles(&v))
        return load_codes(&k, &v, head, layer, part, builder, err);
    node_page_t *page;
    st = node_body_own_page(builder, head->block_index, &page, err);
    for (uint32_t h = 0; st == VC_OK && page != NULL && h < n_head; h++) {
        const uint8_t *at = (const uint8_t *)part + (size_t)h * head_bytes;
        decode_matrix(&k, at, node_page_k(page, layer, h));
        decode_matrix(&v, at + matrix_bytes(&k), node_page_v(page, layer, h));
    }
    return st;
}

const node_codec_ops_t node_codec_kivi = {
    .name = "kivi",
    .params_help = "bits=4 (2, 4, 8) group=32 (16, 32, 64) residual=128 (multiple of group)",
    .kind = VC_KVREC_QUANTISER,
    .parse = kivi_parse,
    .bits = kivi_bits,
    .needs = node_codec_no_need,
    .window_tokens = kivi_window,
    .sink_blocks = kivi_sinks,
    .plan = kivi_plan,
    .layer_bytes = kivi_layer_bytes,
    .encode = kivi_encode,
    .plan_free = vc_free,
    .decode = kivi_decode,
};
