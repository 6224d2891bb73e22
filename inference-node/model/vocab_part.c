/* Rows of the output matrix by themselves: see vocab_part.h. */
#include "model/vocab_part.h"

#include <string.h>

#include "model/engine_int.h"
#include "vc/mem.h"

vc_status_t node_vocab_part_create(const node_engine_t *eng, uint32_t cap, node_vocab_part_t **part_p, vc_err_t *err)
{
    const node_matrix_t *all = &eng->w.logits;
    node_vocab_part_t *part = vc_calloc(1, sizeof *part);
    if (part == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "part of the vocabulary: out of memory");
    cap = VC_MIN(cap, all->n_out);
    uint32_t panels = (cap + NODE_PANEL - 1) / NODE_PANEL;
    size_t bytes = 0;
    part->all = all;
    part->cap = cap;
    part->m = *all;
    part->m.n_out = part->m.n_panels = 0;
    part->m.bias = NULL;
    part->m.data = NULL;
    part->tokens = vc_calloc(VC_MAX(cap, 1u), sizeof *part->tokens);
    part->has = vc_calloc(all->n_out, 1);
    if (all->bias != NULL)
        part->bias = vc_calloc((size_t)panels * NODE_PANEL, sizeof *part->bias);
    if (vc_size_mul(all->panel_bytes, VC_MAX(panels, 1u), &bytes))
        part->m.data = vc_alloc_aligned(64, vc_align_up(bytes, 64));
    if (!part->tokens || !part->has || !part->m.data || (all->bias != NULL && !part->bias)) {
        node_vocab_part_destroy(part);
        return vc_err_set(err, VC_ERR_NOMEM, "part of the vocabulary: no memory for %u tokens", cap);
    }
    memset(part->m.data, 0, bytes);
    part->m.bias = part->bias;
    *part_p = part;
    return VC_OK;
}

void node_vocab_part_destroy(node_vocab_part_t *part)
{
    if (part == NULL)
        return;
    vc_free(part->m.data);
    vc_free(part->bias);
    vc_free(part->tokens);
    vc_free(part->has);
    vc_free(part);
}

bool node_vocab_part_add(node_vocab_part_t *part, uint32_t token)
{
    if (token >= part->all->n_out)
        return false;
    if (part->has[token])
        return true;
    uint32_t at = part->m.n_out;
    if (at == part->cap)
        return false;
    node_matrix_copy_row(&part->m, at, part->all, token);
    if (part->bias != NULL)
        part->bias[at] = part->all->bias[token];
    part->tokens[at] = token;
    part->has[token] = 1;
    part->m.n_out = at + 1;
    part->m.n_panels = (at + NODE_PANEL) / NODE_PANEL;
    return true;
}

bool node_vocab_part_has(const node_vocab_part_t *part, uint32_t token)
{
    return token < part->all->n_out && part->has[token];
}

const uint32_t *node_vocab_part_tokens(const node_vocab_part_t *part, uint32_t *n_p)
{
    *n_p = part->m.n_out;
    return part->tokens;
}
