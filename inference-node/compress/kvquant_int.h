/*
 * Inside of KVQuant: the arithmetic that has one version per ISA, the rules for one row of values, the fit of a
 * codebook, and the blob as the coder sees it. Apart from the record so that each can be held to reference numbers.
 *
 * A number is rho * level + z: rho and z per channel for keys before RoPE (thresholds learned once), per token for
 * values; levels ascend within [-1, 1], one codebook per layer for K and one for V.
 */
#ifndef NODE_KVQUANT_INT_H
#define NODE_KVQUANT_INT_H

#include "compress/calib.h"
#include "compress/codec_int.h"
#include "kernels/backend.h"
#include "kernels/numerics.h"

#define NODE_KVQUANT_LEVELS_MAX 16u
#define NODE_KVQUANT_CHANNELS_MAX 32768u /* of a layer: an index and a count fit 16 bits */
#define NODE_KVQUANT_BINS 4096u

/* Bitwise equal on every ISA (kvquant_impl.h). */
typedef struct node_kvquant_ops {
    void (*widen)(const uint16_t *src, float *dst, size_t n); /* f16 to f32; n a multiple of 16 */
    /* codes[i]: the level nearest to (x[i] - z) / rho, the lower one of two that are equally near; 0 where rho is 0.
     * mids: the n_mids middles between neighbouring levels; n a multiple of 16. */
    void (*codes)(const float *x, uint32_t n, float rho, float z, const float *mids, uint32_t n_mids, uint8_t *codes);
    /* Bit i: x[i] < low or x[i] > high, of NODE_TILE numbers. */
    uint64_t (*outside)(const float *x, float low, float high);
} node_kvquant_ops_t;

extern const node_kvquant_ops_t node_kvquant_scalar, node_kvquant_avx2, node_kvquant_avx512;
/* NULL when the CPU lacks it. */
const node_kvquant_ops_t *node_kvquant_ops(node_ops_level_t level);
const node_kvquant_ops_t *node_kvquant_ops_best(void);

/* mids[n - 1] of n levels. */
void node_kvquant_mids(const float *levels, uint32_t n, float *mids);
/* Levels of NormalFloat, 2^bits of them. */
const float *node_kvquant_nf(uint32_t bits);

int node_kvquant_ascending(const void *a, const void *b); /* for qsort of floats */
/* Thresholds of one channel from its ascending numbers; outliers 0: the extremes. */
void node_kvquant_thresholds(const float *sorted, uint32_t n, double outliers, float *upper_p, float *lower_p);

/*
 * The rule for one token's values x[n]: outliers are those at or above the upper quantile or at or below the lower one
 * (none where the share is 0), so a row of equal numbers is all outliers. *rho_p and *z_p come from the others, the
 * row's lower median counted among them. out[i] for each outlier's channel, ascending; returns how many. scratch: n.
 */
uint32_t node_kvquant_value_row(const float *x, uint32_t n, double outliers, float *rho_p, float *z_p, uint16_t *out,
                                float *scratch);

/* ---- kvquant_fit.c ---- */

/* Weighted numbers in [-1, 1], in bins. Sums in double. */
typedef struct node_kvquant_hist {
    double w[NODE_KVQUANT_BINS], wx[NODE_KVQUANT_BINS], wxx[NODE_KVQUANT_BINS];
} node_kvquant_hist_t;
void node_kvquant_hist_add(node_kvquant_hist_t *h, double x, double weight);
/* The levels with the least weighted squared error, for each of the bits asked for (4 at most): levels[i] gets
 * 2^bits[i], ascending. An empty histogram gives NormalFloat. NOMEM only. */
vc_status_t node_kvquant_fit(const node_kvquant_hist_t *h, const uint32_t *bits, uint32_t n_bits, float *const *levels,
                             vc_err_t *err);

/* ---- kvquant_calib.c: payload of a blob ---- */

#define NODE_KVQUANT_BITS_MIN 2u
#define NODE_KVQUANT_BITS_MAX 4u
/* How the elements were weighed in the fit. */
enum { NODE_KVQUANT_ACTIVATION = 1, NODE_KVQUANT_LOCAL = 2 };

/* Of one layer; pointers into the payload. */
typedef struct node_kvquant_layer {
    const float *upper, *lower;       /* [channels] */
    const float *k_levels, *v_levels; /* [1 << bits] */
} node_kvquant_layer_t;
/* False where the blob has nothing for this share of outliers. */
bool node_kvquant_layer(const node_calib_t *calib, const node_spec_t *spec, uint32_t layer, node_kvquant_layer_t *out);

vc_status_t node_kvquant_calibrate(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p,
                                   size_t *bytes_p, vc_err_t *err);
vc_status_t node_kvquant_calib_check(const node_model_info_t *model, const uint8_t *payload, size_t bytes,
                                     vc_err_t *err);
vc_status_t node_kvquant_calib_fits(const node_spec_t *spec, const node_calib_t *calib, vc_err_t *err);

/* ---- kvquant.c and kvquant_decode.c share the form of a layer part ---- */

typedef struct node_kvquant_form {
    uint32_t bits, n_head, dim, channels; /* channels = n_head * dim */
    uint32_t row_bytes;                   /* codes of one token */
    uint32_t k_params;                    /* bytes of rho and z of keys: only where no blob has thresholds */
    uint32_t sinks;                       /* exact rows of this block */
} node_kvquant_form_t;
/* UNSUPPORTED: the shape does not fit. */
vc_status_t node_kvquant_form(const node_spec_t *spec, const vc_kv_shape_t *shape, uint32_t block,
                              node_kvquant_form_t *form_p, vc_err_t *err);
/* Offsets in a part, up to the lists of outliers, which begin at `lists`. */
typedef struct node_kvquant_place {
    size_t k_codes, v_codes, k_params, v_rho, v_z, k_counts, v_counts, lists;
} node_kvquant_place_t;
node_kvquant_place_t node_kvquant_places(const node_kvquant_form_t *f);
static inline size_t node_kvquant_exact_bytes(const node_kvquant_form_t *f)
{
    return 4 + (size_t)f->sinks * (1 + 4 * (size_t)f->channels);
}

vc_status_t node_kvquant_decode(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                                uint32_t length, node_body_builder_t *builder, vc_err_t *err);

#endif
