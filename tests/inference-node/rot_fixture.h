/*
 * What the suites of rot share: its transform and the reading of its records in the plainest form. Static functions
 * only; not every suite uses every function.
 */
#ifndef ROT_FIXTURE_H
#define ROT_FIXTURE_H

#include <math.h>

#include "codec_fixture.h"
#include "compress/rot_int.h"
#include "vc/bytes.h"

static const uint32_t all_bits[] = {2, 3, 4, 8};
enum { N_BITS = 4 };

/* Natural order, normalised, over blocks of the largest power of two that divides the head. */
static void hadamard(double *x, uint32_t dim)
{
    const uint32_t block = node_rot_block(dim);
    double y[NODE_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < dim; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < block; j++)
            y[i] += (__builtin_popcount(i % block & j) % 2 ? -1 : 1) * x[i / block * block + j];
        y[i] /= sqrt(block);
    }
    memcpy(x, y, dim * sizeof(*x));
}

/* One matrix of a head inside a part. */
typedef struct matrix {
    uint32_t dim, group, bits;
    const uint8_t *codes, *scales, *mins, *end;
} matrix_t;

static matrix_t matrix_at(const uint8_t *at, uint32_t dim, uint32_t group, uint32_t bits)
{
    matrix_t m = {dim, VC_MIN(group, dim), bits, at, NULL, NULL, NULL};
    m.scales = at + NODE_TILE * dim * bits / 8;
    m.mins = m.scales + NODE_TILE * (dim / m.group) * 2;
    m.end = m.mins + NODE_TILE * (dim / m.group) * 2;
    return m;
}

/* Code of a channel, one bit at a time. */
static uint32_t code_at(const matrix_t *m, uint32_t token, uint32_t channel)
{
    uint32_t code = 0;
    for (uint32_t i = 0; i < m->bits; i++) {
        uint32_t at = (token * m->dim + channel) * m->bits + i;
        code |= (uint32_t)(m->codes[at / 8] >> at % 8 & 1) << i;
    }
    return code;
}

static double param_at(const uint8_t *at, const matrix_t *m, uint32_t token, uint32_t channel)
{
    return node_f32_from_f16(vc_le16(at + 2 * (token * (m->dim / m->group) + channel / m->group)));
}

/* The mean of keys that a head of a part starts with, or zeros; returns where its matrices start. */
static const uint8_t *mean_at(const uint8_t *at, const node_spec_t *spec, uint32_t dim, double *mean)
{
    for (uint32_t c = 0; c < dim; c++)
        mean[c] = spec->center ? node_f32_from_f16(vc_le16(at + 2 * c)) : 0.0;
    return at + (spec->center ? 2 * dim : 0);
}

/* x [token][dim], less the mean. */
static void take_mean(double *x, uint32_t dim, const double *mean)
{
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t c = 0; c < dim; c++)
            x[t * dim + c] -= mean[c];
}

static void page_rows(node_page_t *page, uint32_t layer, uint32_t head, uint32_t dim, bool values, double *x)
{
    const uint16_t *k = node_page_k(page, layer, head), *v = node_page_v(page, layer, head);
    for (uint32_t t = 0; t < NODE_TILE; t++)
        for (uint32_t c = 0; c < dim; c++)
            x[t * dim + c] = node_f32_from_f16(values ? v[t * dim + c] : k[c * NODE_TILE + t]);
}

static const uint8_t *part_of(const fx_records_t *r, uint32_t block, uint32_t layer, uint32_t *length_p)
{
    vc_kvrec_head_t head;
    vc_kvrec_layer_t part;
    cr_assert_eq(vc_kvrec_check(r->data[block], r->bytes[block], &head, NULL), VC_OK);
    vc_kvrec_layer(&head, layer, &part);
    *length_p = part.length;
    return r->data[block] + part.offset;
}

#endif
