/*
 * What methods see of the passes that compute the rows they will compress: queries, attention inputs, the residual
 * stream. Seen live during prefill, so that nothing is computed twice; where rows came from a cache instead, the passes
 * are run again on top of the same KV, which by the numerics contract shows the same bits. A method sees every row of
 * its range once, in ascending position, layers of one pass in order; its state must not depend on where passes are
 * cut.
 */
#ifndef NODE_WATCH_H
#define NODE_WATCH_H

#include "compress/codec.h"

typedef struct node_watches node_watches_t; /* one watch per spec that has a watch slot */

/* first_blocks[i]: spec i will compress [first_blocks[i], n_blocks). specs and model are borrowed. */
vc_status_t node_watches_begin(const node_spec_t *specs, uint32_t n_specs, const node_model_info_t *model,
                               const uint32_t *first_blocks, uint32_t n_blocks, node_watches_t **w_p, vc_err_t *err);
/* For node_prefill and node_forward of the chain's one session; NULL when nobody watches. */
const node_capture_t *node_watches_capture(node_watches_t *w);
/*
 * Makes whole what was not seen live: starts those methods over and runs passes over their rows on a session that
 * shares the pages of kv (full KV of at least n_blocks blocks of tokens, not changed). enter and leave (may be NULL)
 * bracket every pass.
 */
vc_status_t node_watches_complete(node_watches_t *w, node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens,
                                  void (*enter)(void *arg), void (*leave)(void *arg), void *arg, vc_err_t *err);
/* For node_compress_in_t.watched of specs[i]; NULL for a method that watches nothing. Owned by w. */
void *node_watches_state(node_watches_t *w, uint32_t i);
void node_watches_free(node_watches_t *w); /* NULL is fine */

#endif
