/*
 * Text through the model in passes, for methods that see more of it than one prefill shows: between passes others may
 * use the engine. The thread that calls leads the passes.
 */
#ifndef NODE_PASSES_H
#define NODE_PASSES_H

#include "compress/codec.h"

/* Appends n tokens to kv in passes of some rows, each between enter and leave of the replay, whose ids are not read.
 * capture may be NULL. */
vc_status_t node_passes_run(const node_replay_t *replay, node_kv_t *kv, const uint32_t *tokens, uint32_t n,
                            const node_capture_t *capture, vc_err_t *err);
/* Makes *copy_p a session with the first n_blocks pages of full KV, shared; node_kv_fini when done. A failure leaves
 * nothing to undo. */
vc_status_t node_passes_share(const node_kv_t *kv, uint32_t n_blocks, node_kv_t *copy_p, vc_err_t *err);

#endif
