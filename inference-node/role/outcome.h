/* What a generation came to, for people and for scripts: one struct for solo and remote runs, one JSON object. */
#ifndef NODE_OUTCOME_H
#define NODE_OUTCOME_H

#include <stdio.h>

#include "speculate/accept.h"
#include "vc/keyspace.h"

#define NODE_OUTCOME_NOTES 8

typedef struct node_outcome {
    const char *mode; /* recompute, full, vericache, solo */
    uint32_t n_prompt;
    const uint32_t *tokens; /* committed after the prompt; the owner's */
    uint32_t n_tokens;
    node_finish_t finish;
    vc_digest_t digest; /* of the committed logits */
    uint64_t first_us;  /* from the request (model loaded) to the first verified token */
    uint64_t total_us;  /* from the request to the last one */
    uint64_t rounds;    /* verify passes with drafts */
    uint64_t drafted, accepted;
    uint64_t source_proposed, source_accepted; /* by the n-gram source; accepted by the drafter or the verifier */
    uint64_t slow_bytes;                       /* cache transfers and stream messages of this node */
    uint64_t fast_bytes;                       /* full KV that the verify node pulled */
    uint64_t fetch_us;                         /* look-up and transfer of what this node fetched */
    uint64_t verify_fetch_us;                  /* the same at the verify node */
    uint32_t prefix_blocks;              /* of the prompt's blocks, how many came from a cache (full or compressed) */
    uint32_t computed_tokens;            /* prompt tokens whose full KV was computed rather than fetched */
    uint32_t recoveries;                 /* verifiers lost and replaced, or local take-over */
    char notes[NODE_OUTCOME_NOTES][200]; /* what went another way than planned, in order */
    uint32_t n_notes;
    /* solo only */
    vc_digest_t kv_digest; /* full KV of all committed tokens but the last */
    uint64_t prefill_us, compress_us, draft_us, verify_us;
    const char *compressor; /* canonical text, or "" */
    uint32_t compressed_tokens;
    uint64_t compressed_bytes;
    uint64_t kv_ram_bytes; /* slow tier: full KV in memory at most; 0: there was none */
    uint64_t kv_written_bytes, kv_read_bytes, kv_wait_us;
    uint32_t plain_rounds; /* passes without drafts */
    uint32_t n_threads;
    const char *isa;
} node_outcome_t;

void node_outcome_note(node_outcome_t *outcome, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Tokens after the first one per second. 0 when there are none. */
double node_outcome_tokens_per_s(const node_outcome_t *outcome);
/* {"mode":..., "text":..., "tokens":[...], ...}, one line. */
vc_status_t node_outcome_print_json(const node_outcome_t *outcome, const char *text, size_t text_len, FILE *out);
/* A few lines for people. */
void node_outcome_print_stats(const node_outcome_t *outcome, FILE *out);

#endif
