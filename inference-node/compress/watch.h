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

/* first_blocks[i]: spec i will compress [first_blocks[i], n_blocks); nothing to watch where that is empty. specs and
 * model are borrowed. */
vc_status_t node_watches_begin(const node_spec_t *specs, uint32_t n_specs, const node_model_info_t *model,
                               const uint32_t *first_blocks, uint32_t n_blocks, node_watches_t **w_p, vc_err_t *err);
/* For node_prefill and node_forward of the chain's one session, which only grows; NULL when nobody watches (or w is).
 */
const node_capture_t *node_watches_capture(node_watches_t *w);
/*
 * Before prefill goes on behind rows that came from elsewhere: passes over those of kv that the methods have to see, on
 * a session that shares its pages, so that what is computed next can be watched live and nothing runs twice. tokens:
 * of the whole chain. enter and leave (may be NULL) bracket every pass.
 */
vc_status_t node_watches_catch_up(node_watches_t *w, node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens,
                                  void (*enter)(void *arg), void (*leave)(void *arg), void *arg, vc_err_t *err);
/* Afterwards: the same for whatever is still missing; a method that missed rows in between is started over. kv: full KV
 * of at least n_blocks blocks, not changed. */
vc_status_t node_watches_complete(node_watches_t *w, node_engine_t *engine, const node_kv_t *kv, const uint32_t *tokens,
                                  void (*enter)(void *arg), void (*leave)(void *arg), void *arg, vc_err_t *err);
/* For node_compress_in_t.watched of specs[i]; NULL for a method that watches nothing. Owned by w. */
void *node_watches_state(node_watches_t *w, uint32_t i);
void node_watches_free(node_watches_t *w); /* NULL is fine */

#endif
