/* A made-up calibration of KVQuant, as the bytes of its blob's payload. Static functions only. */
#ifndef KVQUANT_FIXTURE_H
#define KVQUANT_FIXTURE_H

#include "compress/kvquant_int.h"
#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/mem.h"

#pragma GCC diagnostic ignored "-Wunused-function"

/* One share of outliers with the thresholds [channels], the same in every layer. levels: of `bits`, for K and V; other
 * sizes, or all where it is NULL, are NormalFloat. */
static uint8_t *kvq_payload(const node_model_info_t *m, double share, const float *upper, const float *lower,
                            uint32_t bits, const float *levels, size_t *bytes_p)
{
    const uint32_t channels = m->n_kv_head * m->head_dim;
    const size_t n = 32 + (size_t)m->n_layer * (2 * (size_t)channels + 56) * 4;
    uint8_t *payload = vc_alloc_aligned(64, vc_align_up(n, 64));
    cr_assert_not_null(payload);
    vc_writer_t w = vc_writer(payload, n);
    const uint32_t head[] = {1, NODE_KVQUANT_LOCAL, m->n_layer, channels, 1, 1000};
    for (uint32_t i = 0; i < VC_ARRAY_LEN(head); i++)
        vc_write_u32(&w, head[i]);
    vc_write_bytes(&w, &share, sizeof(share));
    for (uint32_t l = 0; l < m->n_layer; l++) {
        vc_write_bytes(&w, upper, channels * sizeof(float));
        vc_write_bytes(&w, lower, channels * sizeof(float));
        for (uint32_t b = 2; b <= 4; b++)
            for (int matrix = 0; matrix < 2; matrix++)
                vc_write_bytes(&w, levels && b == bits ? levels : node_kvquant_nf(b), sizeof(float) << b);
    }
    cr_assert(!w.failed && w.p == w.end);
    *bytes_p = n;
    return payload;
}

/* For numbers between -2 and 2 before RoPE is undone: a few leave the thresholds. */
static uint8_t *kvq_plain_payload(const node_model_info_t *m, size_t *bytes_p)
{
    float upper[1024], lower[1024];
    cr_assert_leq(m->n_kv_head * m->head_dim, 1024);
    for (uint32_t c = 0; c < m->n_kv_head * m->head_dim; c++) {
        upper[c] = 2.2f + 0.25f * (float)(c % 2);
        lower[c] = -2.3f;
    }
    return kvq_payload(m, 0.01, upper, lower, 0, NULL, bytes_p);
}

#endif
