/* Scores of ExpectedAttention for one KV head. Pure: any thread, one head per call. */
#include <math.h>

#include "compress/expatt_int.h"
#include "vc/mem.h"

typedef struct scratch {
    float *tile; /* [dim * NODE_TILE] keys, then values */
    float *z;    /* [n_group][n_pad] */
    float *acc;  /* [n_pad] */
    size_t n_pad;
} scratch_t;

static void free_scratch(scratch_t *s)
{
    vc_free(s->tile);
    vc_free(s->z);
    vc_free(s->acc);
}

static bool alloc_scratch(scratch_t *s, const node_expatt_head_t *in)
{
    size_t n_z;
    s->n_pad = vc_align_up(in->n_tokens, NODE_TILE);
    s->tile = vc_alloc_aligned(64, (size_t)in->dim * NODE_TILE * sizeof(float));
    s->acc = vc_alloc_aligned(64, s->n_pad * sizeof(float));
    s->z = vc_size_mul(in->n_group, s->n_pad * sizeof(float), &n_z) ? vc_alloc_aligned(64, n_z) : NULL;
    return s->tile && s->acc && s->z;
}

/* Mean over the group of the softmax of the expected logits. */
static void weigh(const node_expatt_ops_t *ops, const node_expatt_head_t *in, scratch_t *s)
{
    const size_t square = (size_t)in->dim * in->dim;
    for (uint32_t t = 0; t < s->n_pad / NODE_TILE; t++) {
        in->keys(in->arg, t, s->tile);
        for (uint32_t g = 0; g < in->n_group; g++)
            ops->logits(in->b + (size_t)g * in->dim, in->m != NULL ? in->m + g * square : NULL, in->dim, s->tile,
                        s->z + g * s->n_pad + (size_t)t * NODE_TILE);
    }
    memset(s->acc, 0, s->n_pad * sizeof(float));
    for (uint32_t g = 0; g < in->n_group; g++) {
        float *z = s->z + g * s->n_pad;
        for (size_t i = 0; i < in->sinks; i++)
            z[i] = -INFINITY;
        for (size_t i = in->n_tokens; i < s->n_pad; i++)
            z[i] = -INFINITY;
        ops->softmax_add(z, (uint32_t)s->n_pad, s->acc);
    }
    for (uint32_t i = 0; i < in->n_tokens; i++)
        s->acc[i] /= (float)in->n_group;
}

static void write_scores(const node_expatt_ops_t *ops, const node_expatt_head_t *in, scratch_t *s, float *scores)
{
    float norm[NODE_TILE];
    for (uint32_t t = in->first / NODE_TILE; t < s->n_pad / NODE_TILE; t++) {
        if (in->by_value) {
            in->values(in->arg, t, s->tile);
            ops->norms(s->tile, in->dim, norm);
        }
        for (uint32_t r = 0; r < NODE_TILE; r++) {
            uint32_t i = t * NODE_TILE + r;
            if (i < in->first || i >= in->n_tokens)
                continue;
            float p = s->acc[i];
            scores[i - in->first] = i < in->sinks ? 0.0f : in->by_value ? (p + in->eps) * norm[r] : p;
        }
    }
}

vc_status_t node_expatt_scores(const node_expatt_ops_t *ops, const node_expatt_head_t *in, float *scores, vc_err_t *err)
{
    scratch_t s = {0};
    vc_status_t st = VC_OK;
    if (alloc_scratch(&s, in)) {
        weigh(ops, in, &s);
        write_scores(ops, in, &s, scores);
    } else {
        st = vc_err_set(err, VC_ERR_NOMEM, "no memory to score %u tokens", in->n_tokens);
    }
    free_scratch(&s);
    return st;
}
