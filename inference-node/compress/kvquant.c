/*
 * KVQuant: keys before RoPE with thresholds per channel, values per token over all heads of a layer, non-uniform levels
 * of one codebook each, and outliers kept apart in f16. Thresholds and codebooks are learned once per model
 * (kvquant_calib.c); with levels=nf nothing is learned: NormalFloat levels, and the channels' extremes within the
 * block.
 *
 * The first `sinks` tokens of a text are exact in the record, and a drafter takes their block as a full page anyway. A
 * record depends on its block, its place, the spec and the blob alone. Layout: compress/METHODS.md.
 */
#include "compress/kvquant_int.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static const node_param_t kvquant_params[] = {
    {"bits", NODE_PARAM_UINT, offsetof(node_spec_t, bits), 0, 0, 4, "2,3,4"},
    {"outliers", NODE_PARAM_REAL, offsetof(node_spec_t, outliers), NODE_PARAM_FROM_ZERO, 0.1, 0.01, NULL},
    {"levels", NODE_PARAM_CHOICE, offsetof(node_spec_t, levels), 0, 0, 0, "calibrated,nf"},
    {"sinks", NODE_PARAM_UINT, offsetof(node_spec_t, sinks), 0, NODE_TILE, 1, NULL},
};

static vc_status_t kvquant_parse(node_spec_t *spec, const char *params, vc_err_t *err)
{
    return node_params_parse(spec, "kvquant", params, kvquant_params, VC_ARRAY_LEN(kvquant_params), err);
}

static uint32_t kvquant_needs(const node_spec_t *spec) { return spec->levels == 0 ? NODE_NEED_CALIB : 0; }
static uint32_t kvquant_window(const node_spec_t *spec)
{
    (void)spec;
    return 0;
}
static uint32_t kvquant_sinks(const node_spec_t *spec) { return spec->sinks ? 1 : 0; }

/* ---- the form of a part ---- */

vc_status_t node_kvquant_form(const node_spec_t *spec, const vc_kv_shape_t *shape, uint32_t block,
                              node_kvquant_form_t *form_p, vc_err_t *err)
{
    const uint32_t dim = shape->head_dim;
    if (dim == 0 || dim % 16 != 0 || dim > NODE_HEAD_DIM_MAX || shape->n_kv_head > NODE_KVQUANT_CHANNELS_MAX / dim)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "%s does not fit %u heads of %u channels", spec->text,
                          shape->n_kv_head, dim);
    const uint32_t channels = dim * shape->n_kv_head;
    *form_p = (node_kvquant_form_t){.bits = spec->bits,
                                    .n_head = shape->n_kv_head,
                                    .dim = dim,
                                    .channels = channels,
                                    .row_bytes = channels / 8 * spec->bits,
                                    .k_params = spec->levels ? 4 * channels : 0,
                                    .sinks = block == 0 ? spec->sinks : 0};
    return VC_OK;
}

node_kvquant_place_t node_kvquant_places(const node_kvquant_form_t *f)
{
    const size_t codes = (size_t)NODE_TILE * f->row_bytes, row = NODE_TILE * 2;
    node_kvquant_place_t p = {.k_codes = 0, .v_codes = codes, .k_params = 2 * codes};
    p.v_rho = p.k_params + f->k_params;
    p.v_z = p.v_rho + row;
    p.k_counts = p.v_z + row;
    p.v_counts = p.k_counts + row;
    p.lists = p.v_counts + row;
    return p;
}

/* Without the share of ties and of keys that leave their thresholds more often than the calibration's did. */
static double model_bits(const node_spec_t *spec, const node_model_info_t *model)
{
    const double channels = (double)model->n_kv_head * model->head_dim;
    double k = spec->bits + 16.0 / channels, v = spec->bits + 48.0 / channels;
    if (spec->levels)
        k += 32.0 / NODE_TILE;
    else
        k += 32.0 * spec->outliers;
    if (spec->outliers > 0)
        v += 32.0 * 2 * (1 + (uint32_t)((channels - 1) * (spec->outliers / 2))) / channels;
    return (k + v) / 2;
}

static double kvquant_bits(const node_spec_t *spec, uint32_t head_dim)
{
    const node_model_info_t typical = {.n_kv_head = 8, .head_dim = head_dim};
    return model_bits(spec, &typical);
}

/* ---- encoding ---- */

typedef struct kvquant_plan {
    const node_spec_t *spec;
    const node_compress_in_t *in;
    const node_kvquant_ops_t *ops;
    node_prerope_t *prerope;
    float *pre, *row, *scratch; /* [channels][NODE_TILE], [channels], [channels] */
    uint8_t *codes;             /* [NODE_TILE][channels] */
    uint8_t *column;            /* [NODE_TILE] codes of one channel */
    uint64_t *mask;             /* [channels] outliers of K */
    uint16_t *index;            /* [NODE_TILE][channels] outliers of V */
    uint32_t block;             /* whose parts are in `parts` */
    size_t part_cap;
    uint8_t *parts;    /* [n_layer][part_cap] */
    uint32_t *lengths; /* [n_layer]; 0: not made yet */
} kvquant_plan_t;

#define NO_BLOCK UINT32_MAX

static void plan_free(void *arg)
{
    kvquant_plan_t *p = arg;
    if (p == NULL)
        return;
    node_prerope_destroy(p->prerope);
    vc_free(p->pre);
    vc_free(p->row);
    vc_free(p->scratch);
    vc_free(p->codes);
    vc_free(p->column);
    vc_free(p->mask);
    vc_free(p->index);
    vc_free(p->parts);
    vc_free(p->lengths);
    vc_free(p);
}

static bool plan_alloc(kvquant_plan_t *p, const node_kvquant_form_t *f)
{
    const size_t n = f->channels, n_layer = p->in->model->n_layer;
    size_t bytes;
    p->part_cap = node_kvquant_places(f).lists + 8 * n * NODE_TILE + node_kvquant_exact_bytes(f);
    p->prerope = node_prerope_create(p->in->model);
    p->pre = vc_alloc_aligned(64, n * NODE_TILE * sizeof(float));
    p->row = vc_alloc_aligned(64, n * sizeof(float));
    p->scratch = vc_alloc_aligned(64, n * sizeof(float));
    p->codes = vc_alloc(n * NODE_TILE);
    p->column = vc_alloc(NODE_TILE);
    p->mask = vc_calloc(n, sizeof(*p->mask));
    p->index = vc_calloc(n * NODE_TILE, sizeof(*p->index));
    p->lengths = vc_calloc(n_layer, sizeof(*p->lengths));
    p->parts = vc_size_mul(n_layer, p->part_cap, &bytes) ? vc_alloc(bytes) : NULL;
    return p->prerope && p->pre && p->row && p->scratch && p->codes && p->column && p->mask && p->index && p->lengths &&
           p->parts;
}

static vc_status_t kvquant_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    node_kvquant_form_t form; /* of block 0: the longest part */
    vc_status_t st = node_kvquant_form(spec, &in->model->keyspace.shape, 0, &form, err);
    if (st == VC_OK && spec->levels == 0)
        st = node_kvquant_calib_fits(spec, spec->calib, err);
    if (st != VC_OK)
        return st;
    kvquant_plan_t *p = vc_calloc(1, sizeof(*p));
    if (p != NULL) {
        p->spec = spec;
        p->in = in;
        p->ops = node_kvquant_ops_best();
        p->block = NO_BLOCK;
    }
    if (p == NULL || !plan_alloc(p, &form)) {
        plan_free(p);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a compression plan");
    }
    *plan_p = p;
    return VC_OK;
}

/* What one layer is coded with. */
typedef struct layer_code {
    node_kvquant_form_t form;
    node_kvquant_layer_t learned; /* levels=calibrated */
    float k_mids[NODE_KVQUANT_LEVELS_MAX], v_mids[NODE_KVQUANT_LEVELS_MAX];
} layer_code_t;

static layer_code_t layer_code(const kvquant_plan_t *p, uint32_t block, uint32_t layer)
{
    layer_code_t c = {0};
    const uint32_t n = 1u << p->spec->bits;
    (void)node_kvquant_form(p->spec, &p->in->model->keyspace.shape, block, &c.form, NULL);
    if (p->spec->levels == 0)
        (void)node_kvquant_layer(p->spec->calib, p->spec, layer, &c.learned);
    else
        c.learned.k_levels = c.learned.v_levels = node_kvquant_nf(p->spec->bits);
    node_kvquant_mids(c.learned.k_levels, n, c.k_mids);
    node_kvquant_mids(c.learned.v_levels, n, c.v_mids);
    return c;
}

/* rho and z of a channel from the block alone, in f16, exact rows left out. */
static void block_params(const float *x, uint32_t sinks, uint8_t *rho_at, uint8_t *z_at, float *rho_p, float *z_p)
{
    float top = 0, bottom = 0;
    for (uint32_t t = sinks; t < NODE_TILE; t++) {
        top = t == sinks || x[t] > top ? x[t] : top;
        bottom = t == sinks || x[t] < bottom ? x[t] : bottom;
    }
    uint16_t rho = node_f16_from_f32((top - bottom) / 2), z = node_f16_from_f32((top + bottom) / 2 + 0.0f);
    vc_put_le16(rho_at, rho);
    vc_put_le16(z_at, z);
    *rho_p = node_f32_from_f16(rho);
    *z_p = node_f32_from_f16(z);
}

static uint64_t rows_from(uint32_t first) { return first >= NODE_TILE ? 0 : ~0ull << first; }

/* Codes and outliers of all channels. */
static void code_keys(kvquant_plan_t *p, const layer_code_t *c, node_page_t *page, uint32_t layer, uint8_t *params)
{
    const node_kvquant_form_t *f = &c->form;
    const uint32_t n_mids = (1u << f->bits) - 1;
    const uint64_t coded = rows_from(f->sinks);
    for (uint32_t h = 0; h < f->n_head; h++)
        node_prerope_undo(p->prerope, node_page_k(page, layer, h), p->pre + (size_t)h * f->dim * NODE_TILE);
    for (uint32_t ch = 0; ch < f->channels; ch++) {
        const float *x = p->pre + (size_t)ch * NODE_TILE;
        float rho, z;
        p->mask[ch] = 0;
        if (p->spec->levels) {
            block_params(x, f->sinks, params + 2 * ch, params + 2 * (f->channels + ch), &rho, &z);
        } else {
            float high = c->learned.upper[ch], low = c->learned.lower[ch];
            rho = (high - low) / 2;
            z = (high + low) / 2;
            p->mask[ch] = p->ops->outside(x, low, high) & coded;
        }
        p->ops->codes(x, NODE_TILE, rho, z, c->k_mids, n_mids, p->column);
        const uint64_t zeros = p->mask[ch] | ~coded;
        for (uint32_t t = 0; t < NODE_TILE; t++)
            p->codes[(size_t)t * f->channels + ch] = zeros >> t & 1u ? 0 : p->column[t];
    }
}

static void pack_rows(const kvquant_plan_t *p, const node_kvquant_form_t *f, uint8_t *at)
{
    for (uint32_t t = 0; t < NODE_TILE; t++)
        node_rot_pack(at + (size_t)t * f->row_bytes, p->codes + (size_t)t * f->channels, f->channels, f->bits);
}

/* Counts per token, then channels and numbers in token order; returns the end of the list. */
static uint8_t *put_key_outliers(const kvquant_plan_t *p, const node_kvquant_form_t *f, uint8_t *counts, uint8_t *at)
{
    uint32_t count[NODE_TILE] = {0}, place[NODE_TILE], total = 0;
    for (uint32_t ch = 0; ch < f->channels; ch++)
        for (uint64_t m = p->mask[ch]; m; m &= m - 1)
            count[__builtin_ctzll(m)]++;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        vc_put_le16(counts + 2 * t, (uint16_t)count[t]);
        place[t] = total;
        total += count[t];
    }
    uint8_t *numbers = at + 2 * (size_t)total;
    for (uint32_t ch = 0; ch < f->channels; ch++)
        for (uint64_t m = p->mask[ch]; m; m &= m - 1) {
            uint32_t t = (uint32_t)__builtin_ctzll(m), i = place[t]++;
            vc_put_le16(at + 2 * (size_t)i, (uint16_t)ch);
            vc_put_le16(numbers + 2 * (size_t)i, node_f16_from_f32(p->pre[(size_t)ch * NODE_TILE + t]));
        }
    return numbers + 2 * (size_t)total;
}

/* One token's values: parameters to their places, codes to p->codes, outliers to p->index; returns how many. */
static uint32_t code_value_row(kvquant_plan_t *p, const layer_code_t *c, node_page_t *page, uint32_t layer, uint32_t t,
                               uint8_t *rho_at, uint8_t *z_at)
{
    const node_kvquant_form_t *f = &c->form;
    uint8_t *codes = p->codes + (size_t)t * f->channels;
    uint16_t *index = p->index + (size_t)t * f->channels, rho16 = 0, z16 = 0;
    uint32_t n_out = 0;
    memset(codes, 0, f->channels);
    if (t >= f->sinks) {
        float rho, z;
        for (uint32_t h = 0; h < f->n_head; h++)
            p->ops->widen(node_page_v(page, layer, h) + (size_t)t * f->dim, p->row + h * f->dim, f->dim);
        n_out = node_kvquant_value_row(p->row, f->channels, p->spec->outliers, &rho, &z, index, p->scratch);
        rho16 = node_f16_from_f32(rho);
        z16 = node_f16_from_f32(z);
        p->ops->codes(p->row, f->channels, node_f32_from_f16(rho16), node_f32_from_f16(z16), c->v_mids,
                      (1u << f->bits) - 1, codes);
        for (uint32_t i = 0; i < n_out; i++)
            codes[index[i]] = 0;
    }
    vc_put_le16(rho_at, rho16);
    vc_put_le16(z_at, z16);
    return n_out;
}

static uint8_t *code_values(kvquant_plan_t *p, const layer_code_t *c, node_page_t *page, uint32_t layer, uint8_t *part,
                            const node_kvquant_place_t *at, uint8_t *list)
{
    const node_kvquant_form_t *f = &c->form;
    uint32_t count[NODE_TILE], total = 0;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        count[t] = code_value_row(p, c, page, layer, t, part + at->v_rho + 2 * t, part + at->v_z + 2 * t);
        vc_put_le16(part + at->v_counts + 2 * t, (uint16_t)count[t]);
        total += count[t];
    }
    uint8_t *numbers = list + 2 * (size_t)total;
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t i = 0; i < count[t]; i++) {
            uint16_t ch = p->index[(size_t)t * f->channels + i];
            const uint16_t *v = node_page_v(page, layer, ch / f->dim);
            vc_put_le16(list, ch);
            vc_put_le16(numbers, v[(size_t)t * f->dim + ch % f->dim]);
            list += 2;
            numbers += 2;
        }
    return numbers;
}

/* Exact rows are the page's own, keys after RoPE. */
static uint8_t *put_exact(const node_kvquant_form_t *f, node_page_t *page, uint32_t layer, uint8_t *at)
{
    vc_put_le32(at, f->sinks);
    at += 4;
    for (uint32_t t = 0; t < f->sinks; t++) {
        *at++ = (uint8_t)t;
        for (uint32_t ch = 0; ch < f->channels; ch++, at += 2)
            vc_put_le16(at, node_page_k(page, layer, ch / f->dim)[(size_t)(ch % f->dim) * NODE_TILE + t]);
        for (uint32_t ch = 0; ch < f->channels; ch++, at += 2)
            vc_put_le16(at, node_page_v(page, layer, ch / f->dim)[(size_t)t * f->dim + ch % f->dim]);
    }
    return at;
}

/* How long a part is follows from its outliers, so it is made when its length is asked for. */
static uint32_t make_part(kvquant_plan_t *p, uint32_t block, uint32_t layer)
{
    if (p->block != block) {
        p->block = block;
        memset(p->lengths, 0, p->in->model->n_layer * sizeof(*p->lengths));
        node_prerope_set_block(p->prerope, block);
    }
    if (p->lengths[layer] == 0) {
        const layer_code_t c = layer_code(p, block, layer);
        const node_kvquant_place_t at = node_kvquant_places(&c.form);
        node_page_t *page = node_kv_page_at(p->in->kv, block);
        uint8_t *part = p->parts + layer * p->part_cap;
        code_keys(p, &c, page, layer, part + at.k_params);
        pack_rows(p, &c.form, part + at.k_codes);
        uint8_t *end = put_key_outliers(p, &c.form, part + at.k_counts, part + at.lists);
        end = code_values(p, &c, page, layer, part, &at, end);
        pack_rows(p, &c.form, part + at.v_codes);
        end = put_exact(&c.form, page, layer, end);
        p->lengths[layer] = (uint32_t)(end - part);
    }
    return p->lengths[layer];
}

/* The plan is one caller's, and its cache of parts is nothing that shows: const only to the outside. */
static kvquant_plan_t *cache_of(const void *arg) { return (kvquant_plan_t *)(uintptr_t)arg; }

static uint32_t kvquant_layer_bytes(const void *arg, uint32_t block, uint32_t layer)
{
    return make_part(cache_of(arg), block, layer);
}

static void kvquant_encode(const void *arg, uint32_t block, uint32_t layer, void *part)
{
    kvquant_plan_t *p = cache_of(arg);
    const uint32_t bytes = make_part(p, block, layer);
    memcpy(part, p->parts + layer * p->part_cap, bytes);
}

const node_codec_ops_t node_codec_kvquant = {
    .name = "kvquant",
    .params_help = "bits=4 (2, 3, 4) outliers=0.01 (0 to 0.1) levels=calibrated (calibrated, nf) sinks=1 (0 to 64)",
    .kind = VC_KVREC_QUANTISER,
    .parse = kvquant_parse,
    .bits = kvquant_bits,
    .model_bits = model_bits,
    .needs = kvquant_needs,
    .window_tokens = kvquant_window,
    .sink_blocks = kvquant_sinks,
    .calibrate = node_kvquant_calibrate,
    .calib_check = node_kvquant_calib_check,
    .calib_fits = node_kvquant_calib_fits,
    .plan = kvquant_plan,
    .layer_bytes = kvquant_layer_bytes,
    .encode = kvquant_encode,
    .plan_free = plan_free,
    .decode = node_kvquant_decode,
};
