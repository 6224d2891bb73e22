/*
 * One generation of a draft node, shared by role/draft.c (drafting for a verify node) and role/local.c (full KV here,
 * also the fallback). Owner: the thread of node_generate_remote.
 */
#ifndef NODE_REMOTE_H
#define NODE_REMOTE_H

#include "cache.h"
#include "node.h"
#include "role/generate.h"
#include "role/outcome.h"
#include "role/verify_wire.h"
#include "vc/clock.h"

typedef struct node_remote {
    const node_generate_opts_t *opts;
    FILE *out;
    const volatile sig_atomic_t *stop_flag;
    const vc_clock_t *clock;
    node_t *node;
    node_cache_t *cache; /* NULL without a server */
    node_spec_t spec;
    bool has_spec;
    uint32_t *tokens; /* prompt, then committed */
    uint32_t n_prompt, n_tokens, cap_tokens;
    uint32_t end_tokens[16], n_end_tokens;
    node_text_t *text;
    node_body_t *body; /* compressed copy, once it is here */
    uint64_t start_us;
    node_outcome_t outcome;
} node_remote_t;

bool node_remote_stopped(const node_remote_t *r);
/* Verified tokens: appended, turned into text, printed unless the output is JSON. PROTOCOL when base is not the next
 * position. */
vc_status_t node_remote_commit(node_remote_t *r, uint32_t base, const uint32_t *tokens, uint32_t n,
                               node_finish_t finish, const vc_digest_t *digest, vc_err_t *err);

/* Full KV here: from the server as far as it has it, computed otherwise; then decode, drafting from r->body when there
 * is one. Goes on behind the tokens committed so far, with the same bits. */
vc_status_t node_remote_run_local(node_remote_t *r, vc_err_t *err);
/* Draft for the verify nodes of opts->verifier; falls back to node_remote_run_local when none is left. */
vc_status_t node_remote_run_draft(node_remote_t *r, vc_err_t *err);

#endif
