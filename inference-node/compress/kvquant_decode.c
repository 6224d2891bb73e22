/* KVQuant's layer parts from a record: every byte is checked before the first tile goes to the builder. */
#include "compress/kvquant_int.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

typedef struct decoder {
    node_kvquant_form_t form;
    node_kvquant_place_t at;
    node_kvquant_layer_t learned;
    const uint8_t *part;
    const uint8_t *k_list, *v_list, *exact; /* channels of K's outliers, of V's, the exact rows */
    uint32_t n_k, n_v;
    uint8_t *k_codes, *v_codes; /* [NODE_TILE][channels] */
    float *pre;                 /* [channels][NODE_TILE] keys before RoPE */
} decoder_t;

static bool channel_param(const decoder_t *d, uint32_t ch, float *rho_p, float *z_p)
{
    if (d->form.k_params == 0) {
        *rho_p = (d->learned.upper[ch] - d->learned.lower[ch]) / 2;
        *z_p = (d->learned.upper[ch] + d->learned.lower[ch]) / 2;
        return true;
    }
    const uint8_t *at = d->part + d->at.k_params;
    uint16_t rho = vc_le16(at + 2 * ch), z = vc_le16(at + 2 * (d->form.channels + ch));
    *rho_p = node_f32_from_f16(rho);
    *z_p = node_f32_from_f16(z);
    return (rho & 0x8000u) == 0 && node_f16_finite(at + 2 * ch, 1) &&
           node_f16_finite(at + 2 * (d->form.channels + ch), 1);
}

/* The lists' lengths follow from the counts; they must be all that the part has. */
static bool find_lists(decoder_t *d, uint32_t length)
{
    const node_kvquant_form_t *f = &d->form;
    const size_t exact = node_kvquant_exact_bytes(f);
    if (length < d->at.lists + exact)
        return false;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        d->n_k += vc_le16(d->part + d->at.k_counts + 2 * t);
        d->n_v += vc_le16(d->part + d->at.v_counts + 2 * t);
    }
    d->k_list = d->part + d->at.lists;
    if (length != d->at.lists + exact + 4 * ((size_t)d->n_k + d->n_v))
        return false;
    d->v_list = d->k_list + 4 * (size_t)d->n_k;
    d->exact = d->v_list + 4 * (size_t)d->n_v;
    return true;
}

/* Ascending channels, finite numbers, and code 0 in their places. */
static bool check_outliers(const decoder_t *d, const uint8_t *counts, const uint8_t *list, uint32_t n,
                           const uint8_t *codes)
{
    const node_kvquant_form_t *f = &d->form;
    if (!node_f16_finite(list + 2 * (size_t)n, n))
        return false;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        uint32_t next = 0, count = vc_le16(counts + 2 * t);
        if (t < f->sinks && count != 0)
            return false;
        for (; count > 0; count--, list += 2) {
            uint32_t ch = vc_le16(list);
            if (ch < next || ch >= f->channels || codes[(size_t)t * f->channels + ch] != 0)
                return false;
            next = ch + 1;
        }
    }
    return true;
}

static bool all_zero(const uint8_t *at, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= at[i];
    return any == 0;
}

/* Exact rows are the block's first ones, finite, and coded nowhere. */
static bool check_exact(const decoder_t *d)
{
    const node_kvquant_form_t *f = &d->form;
    const uint8_t *at = d->exact;
    if (vc_le32(at) != f->sinks)
        return false;
    at += 4;
    for (uint32_t t = 0; t < f->sinks; t++, at += 4 * (size_t)f->channels) {
        if (*at++ != t || !node_f16_finite(at, 2 * (size_t)f->channels))
            return false;
    }
    return all_zero(d->k_codes, (size_t)f->sinks * f->channels) &&
           all_zero(d->v_codes, (size_t)f->sinks * f->channels) && all_zero(d->part + d->at.v_rho, 2 * f->sinks) &&
           all_zero(d->part + d->at.v_z, 2 * f->sinks);
}

/* A range of zero has zero codes: what the encoder writes, no more. */
static bool check_params(const decoder_t *d)
{
    const node_kvquant_form_t *f = &d->form;
    const uint8_t *rho = d->part + d->at.v_rho;
    if (!node_f16_finite(rho, NODE_TILE) || !node_f16_finite(d->part + d->at.v_z, NODE_TILE))
        return false;
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        uint16_t r = vc_le16(rho + 2 * t);
        if ((r & 0x8000u) || (r == 0 && !all_zero(d->v_codes + (size_t)t * f->channels, f->channels)))
            return false;
    }
    for (uint32_t ch = 0; ch < f->channels; ch++) {
        float r, z;
        if (!channel_param(d, ch, &r, &z))
            return false;
        uint8_t any = 0;
        for (uint32_t t = 0; r == 0.0f && t < NODE_TILE; t++)
            any |= d->k_codes[(size_t)t * f->channels + ch];
        if (any)
            return false;
    }
    return true;
}

static const char *check_part(decoder_t *d, uint32_t length)
{
    const node_kvquant_form_t *f = &d->form;
    if (!find_lists(d, length))
        return "has another length than its counts say";
    for (uint32_t t = 0; t < NODE_TILE; t++) {
        node_rot_unpack(d->k_codes + (size_t)t * f->channels, d->part + d->at.k_codes + (size_t)t * f->row_bytes,
                        f->channels, f->bits);
        node_rot_unpack(d->v_codes + (size_t)t * f->channels, d->part + d->at.v_codes + (size_t)t * f->row_bytes,
                        f->channels, f->bits);
    }
    if (!check_outliers(d, d->part + d->at.k_counts, d->k_list, d->n_k, d->k_codes) ||
        !check_outliers(d, d->part + d->at.v_counts, d->v_list, d->n_v, d->v_codes))
        return "has an outlier that cannot be";
    if (!check_exact(d))
        return "has exact rows that cannot be";
    return check_params(d) ? NULL : "has a range or zero that cannot be";
}

/* ---- numbers ---- */

static void decode_keys(const decoder_t *d)
{
    const node_kvquant_form_t *f = &d->form;
    for (uint32_t ch = 0; ch < f->channels; ch++) {
        float value[NODE_KVQUANT_LEVELS_MAX], rho = 0, z = 0, *x = d->pre + (size_t)ch * NODE_TILE;
        (void)channel_param(d, ch, &rho, &z);
        for (uint32_t i = 0; i < 1u << f->bits; i++) /* a range of zero has one value */
            value[i] = rho == 0.0f ? z : rho * d->learned.k_levels[i] + z;
        for (uint32_t t = 0; t < NODE_TILE; t++)
            x[t] = value[d->k_codes[(size_t)t * f->channels + ch]];
    }
    const uint8_t *list = d->k_list, *numbers = list + 2 * (size_t)d->n_k;
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t n = vc_le16(d->part + d->at.k_counts + 2 * t); n > 0; n--, list += 2, numbers += 2)
            d->pre[(size_t)vc_le16(list) * NODE_TILE + t] = node_f32_from_f16(vc_le16(numbers));
}

/* v [NODE_TILE][channels] */
static void decode_values(const decoder_t *d, uint16_t *v)
{
    const node_kvquant_form_t *f = &d->form;
    const uint8_t *list = d->v_list, *numbers = list + 2 * (size_t)d->n_v;
    for (uint32_t t = 0; t < NODE_TILE; t++, v += f->channels) {
        uint16_t value[NODE_KVQUANT_LEVELS_MAX];
        const uint8_t *codes = d->v_codes + (size_t)t * f->channels;
        float rho = node_f32_from_f16(vc_le16(d->part + d->at.v_rho + 2 * t));
        float z = node_f32_from_f16(vc_le16(d->part + d->at.v_z + 2 * t));
        for (uint32_t i = 0; i < 1u << f->bits; i++)
            value[i] = node_f16_from_f32(rho == 0.0f ? z : rho * d->learned.v_levels[i] + z);
        for (uint32_t ch = 0; ch < f->channels; ch++)
            v[ch] = value[codes[ch]];
        for (uint32_t n = vc_le16(d->part + d->at.v_counts + 2 * t); n > 0; n--, list += 2, numbers += 2)
            v[vc_le16(list)] = vc_le16(numbers);
    }
}

/* One head's tiles, exact rows in their places. */
static void decode_head(const decoder_t *d, const node_prerope_t *prerope, const uint16_t *values, uint32_t head,
                        uint16_t *k, uint16_t *v)
{
    const node_kvquant_form_t *f = &d->form;
    node_prerope_apply(prerope, d->pre + (size_t)head * f->dim * NODE_TILE, k);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        memcpy(v + (size_t)t * f->dim, values + (size_t)t * f->channels + head * f->dim, f->dim * sizeof(*v));
    const uint8_t *row = d->exact + 4;
    for (uint32_t t = 0; t < f->sinks; t++, row += 1 + 4 * (size_t)f->channels) {
        const uint8_t *k_row = row + 1 + 2 * (size_t)head * f->dim, *v_row = k_row + 2 * (size_t)f->channels;
        for (uint32_t c = 0; c < f->dim; c++) {
            k[(size_t)c * NODE_TILE + t] = vc_le16(k_row + 2 * c);
            v[(size_t)t * f->dim + c] = vc_le16(v_row + 2 * c);
        }
    }
}

static vc_status_t put_tiles(const decoder_t *d, const vc_kvrec_head_t *head, uint32_t layer,
                             node_body_builder_t *builder, vc_err_t *err)
{
    const node_kvquant_form_t *f = &d->form;
    uint16_t k[NODE_HEAD_DIM_MAX * NODE_TILE], v[NODE_HEAD_DIM_MAX * NODE_TILE];
    const node_prerope_t *prerope = node_body_prerope(builder, head->block_index);
    uint16_t *values = vc_alloc((size_t)NODE_TILE * f->channels * sizeof(*values));
    if (prerope == NULL || values == NULL) {
        vc_free(values);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory to decode block %u", head->block_index);
    }
    decode_keys(d);
    decode_values(d, values);
    vc_status_t st = VC_OK;
    for (uint32_t h = 0; st == VC_OK && h < f->n_head; h++) {
        decode_head(d, prerope, values, h, k, v);
        st = node_body_put_tile(builder, head->block_index, layer, h, k, v, err);
    }
    vc_free(values);
    return st;
}

vc_status_t node_kvquant_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                                uint32_t length, node_body_builder_t *builder, vc_err_t *err)
{
    decoder_t d = {.part = part};
    vc_status_t st = node_kvquant_form(spec, &head->shape, head->block_index, &d.form, err);
    if (st == VC_OK && spec->levels == 0)
        st = node_kvquant_calib_fits(spec, spec->calib, err);
    if (st != VC_OK)
        return st;
    if (spec->levels == 0)
        (void)node_kvquant_layer(spec->calib, spec, layer, &d.learned);
    else
        d.learned.k_levels = d.learned.v_levels = node_kvquant_nf(spec->bits);
    d.at = node_kvquant_places(&d.form);
    const size_t n = (size_t)d.form.channels * NODE_TILE;
    d.k_codes = vc_alloc(n);
    d.v_codes = vc_alloc(n);
    d.pre = vc_alloc_aligned(64, n * sizeof(*d.pre));
    if (d.k_codes == NULL || d.v_codes == NULL || d.pre == NULL) {
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to decode block %u", head->block_index);
    } else {
        const char *wrong = check_part(&d, length);
        st = wrong == NULL ? put_tiles(&d, head, layer, builder, err)
                           : vc_err_set(err, VC_ERR_CORRUPT, "kvquant block %u layer %u: the part of %u bytes %s",
                                        head->block_index, layer, length, wrong);
    }
    vc_free(d.k_codes);
    vc_free(d.v_codes);
    vc_free(d.pre);
    return st;
}
