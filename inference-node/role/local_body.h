/*
 * A compressed body made from full KV in this process: what a cache server would have stored and handed out, through
 * the same records, plus the exact pages that the method wants (its window and sinks).
 */
#ifndef NODE_ROLE_LOCAL_BODY_H
#define NODE_ROLE_LOCAL_BODY_H

#include "compress/codec.h"

/*
 * kv: full KV of at least n_blocks (>= 1) blocks of tokens; its pages are shared where they stay exact. Passes run on
 * the replay's engine: those of methods that read the text again between its enter and leave, others without.
 */
vc_status_t node_local_body_replay(const node_replay_t *replay, const node_spec_t *spec, const node_kv_t *kv,
                                   const uint32_t *tokens, uint32_t n_blocks, node_body_t **body_p, vc_err_t *err);
/* The same for all methods but those. */
vc_status_t node_local_body(node_engine_t *engine, const node_spec_t *spec, const node_kv_t *kv, const uint32_t *tokens,
                            uint32_t n_blocks, node_body_t **body_p, vc_err_t *err);

#endif
