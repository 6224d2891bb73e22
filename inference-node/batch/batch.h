/*
 * Continuous batching: many requests in one process on one engine. Each is a verifier (full KV), a drafter on its
 * compressed body and its estimates of costs and chances; schedule/ says in each iteration who drafts, who is verified
 * and which bytes of full KV move; one pass carries the rows of all of them.
 *
 *   add -> waiting -> prompt, in pieces -> compressed -> [drafts ... verified]* -> ended
 *          first come, first served         in the schedule
 *
 *   iteration   schedule step -> bytes ordered from the slow tier -> pass(es) over all rows
 *               -> verdicts and drafts taken -> times shared out -> schedule end -> prompts that are done join
 *
 * Full KV lies in memory, or beyond kv_ram in one slow tier that all requests share (kv/slow.h). In memory there is no
 * link: a verification comes at the ideal draft length, or earlier where the next draft does not pay; where no draft
 * pays the request decodes plainly beside the others. With a tier the schedule places it.
 *
 * A prompt gets `prompt_rows` rows of an iteration while others run. A request that fails (damage in its part of the
 * tier, say) ends with its sentence and the others go on. What is committed is the same bit for bit as alone.
 *
 * One owner thread; callbacks run on it, inside add, cancel, step and destroy, and call nothing of the batch.
 */
#ifndef NODE_BATCH_H
#define NODE_BATCH_H

#include "kv/slow.h"
#include "schedule/schedule.h"
#include "speculate/session.h"

typedef struct node_batch node_batch_t;

/* How a request ended. The verifier is gone after the callback. */
typedef struct node_batch_end {
    uint64_t id;
    void *user;
    vc_status_t status; /* OK: by the verifier's finish; CANCELLED; or what failed */
    const char *error;  /* the sentence, "" when OK */
    node_verifier_t *v;
    uint64_t compressed_bytes;
    uint64_t n_plain_rounds, n_source_rounds; /* without drafts; with proposals that no drafter saw */
    double draft_us, verify_us;               /* its shares of the iterations' times */
} node_batch_end_t;

typedef struct node_batch_opts {
    node_engine_t *engine; /* outlives the batch; the batch alone passes on it while it steps */
    const vc_clock_t *clock;
    uint32_t max_requests;   /* there at a time, waiting ones included */
    uint32_t max_running;    /* with KV */
    uint32_t draft_length;   /* fixed, 0: plain decoding, or NODE_DRAFT_AUTO. Without a compressed copy there are no
                                drafts when automatic, nor with full KV in the slow tier, all of which they would need */
    uint32_t max_draft;      /* drafts of a round at most when automatic */
    uint32_t prompt_rows;    /* rows of prompts in an iteration while others run */
    uint32_t window;         /* iterations that the schedule looks ahead */
    bool lock_step;          /* the baseline: all are verified in one iteration */
    uint64_t resident_bytes; /* for compressed copies of running requests */
    /* Slow tier: where kv_ram bytes are less than the full KV of max_running requests of max_tokens positions, each has
     * its part of them and the rest in a file. 0: all full KV is in memory. */
    uint64_t kv_ram;
    const char *kv_dir;
    uint64_t hold_bytes; /* for full KV on its way to a verification; 0: that of one request */
    uint32_t max_tokens; /* positions of a request at most; 0: the context */
    double link_rate;    /* bytes/s from the file, to begin with; it is measured */
    node_slow_io_mode_t io;
    uint64_t delay_seed; /* tests: as node_slow_pool_opts_t has it */
    /* Makes the compressed copy of the prompt's whole blocks; *body_p NULL: there is none, the request decodes plainly.
     * NULL: the same for every request that brings no body. */
    vc_status_t (*compress)(void *arg, const node_kv_t *full, const uint32_t *tokens, uint32_t n_tokens,
                            node_body_t **body_p, vc_err_t *err);
    /* Makes a draft source for a request, which the batch destroys (speculate/source.h); *source_p NULL, or source
     * itself: none. It proposes tokens under the drafter, and with an automatic length to the verifier in rounds
     * without drafts. */
    vc_status_t (*source)(void *arg, node_source_t **source_p, vc_err_t *err);
    void (*committed)(void *arg, void *user, const node_verdict_t *verdict); /* may be NULL */
    void (*ended)(void *arg, const node_batch_end_t *end);                   /* exactly once for each added request */
    void *arg;
} node_batch_opts_t;
void node_batch_opts_default(node_batch_opts_t *opts);

typedef struct node_batch_request {
    node_verifier_opts_t verifier; /* engine and max_draft are the batch's */
    const uint32_t *prompt;        /* copied */
    uint32_t n_prompt;
    node_page_t *const *pages; /* full KV of the prompt's first blocks, where it is there; references of its own */
    uint32_t n_pages;
    node_body_t *body; /* compressed copy of a part of the prompt, or NULL: made; a reference of its own */
    bool no_source;    /* none is made for it */
    void *user;
} node_batch_request_t;

/* INVALID, RANGE with a sentence, NOMEM. */
vc_status_t node_batch_create(const node_batch_opts_t *opts, node_batch_t **batch_p, vc_err_t *err);
/* Cancels what is there. */
void node_batch_destroy(node_batch_t *b);

/* BUSY when max_requests are there; INVALID, RANGE: the request is wrong in itself. No callback then. */
vc_status_t node_batch_add(node_batch_t *b, const node_batch_request_t *request, uint64_t *id_p, vc_err_t *err);
/* Ends it now: its callback runs before this returns. NOT_FOUND for one that is not there. */
vc_status_t node_batch_cancel(node_batch_t *b, uint64_t id);
/* One iteration. *busy_p: there are requests left. INTERNAL: the batch is broken; what goes wrong with a
 * request ends that request. */
vc_status_t node_batch_step(node_batch_t *b, bool *busy_p, vc_err_t *err);

/* For measurements: the slow tier reads no more than that, whatever the device could do. 0: as fast as it can. */
void node_batch_limit_link(node_batch_t *b, uint64_t bytes_per_s);

typedef struct node_batch_info {
    uint32_t n_waiting, n_prompts, n_running;
    uint64_t n_iterations, n_passes;
    uint64_t n_rows;                               /* that passes carried, those that failed too */
    uint64_t draft_rows, verify_rows, prompt_rows; /* that were of use */
    uint64_t n_verified, n_committed;              /* verifications; tokens, the first one of each request too */
    uint64_t pass_us;                              /* in passes and what follows them, waits for the link included */
    uint64_t link_wait_us;                         /* passes stood still for a layer */
    uint64_t idle_us;                              /* iterations without rows waited for the link */
    uint64_t link_bytes, link_busy_us;             /* full KV that came; time with reads under way */
    double link_rate;                              /* bytes/s as measured; 0 without a tier */
    uint64_t source_proposed, source_accepted;     /* by drafters or verifiers, of requests that have ended */
    uint64_t n_dropped;                            /* transfers thrown away for an older one */
} node_batch_info_t;
void node_batch_info(const node_batch_t *b, node_batch_info_t *info_p);

#endif
