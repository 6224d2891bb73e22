/* Shared by the files of batch/: batch.c (life of requests), pass.c (rows and verdicts), round.c (draft lengths, costs
 * and the schedule's answers), link.c (the slow tier and its link). */
#ifndef NODE_BATCH_INT_H
#define NODE_BATCH_INT_H

#include "batch/batch.h"
#include "batch/gain.h"
#include "batch/share.h"
#include "speculate/choice.h"

typedef enum {
    MEMBER_FREE,
    MEMBER_WAITING,
    MEMBER_PROMPT,
    MEMBER_STARTED, /* its first token is there; compressed after the iteration */
    MEMBER_RUNNING  /* the schedule knows it */
} member_state_t;

typedef enum { WORK_NONE, WORK_PROMPT, WORK_VERIFY, WORK_DRAFT } work_t;

typedef struct member {
    member_state_t state;
    uint64_t id, schedule_id;
    void *user;
    node_verifier_t *v;
    node_drafter_t *d;     /* NULL: it decodes plainly */
    node_source_t *source; /* under d */
    bool drafts;           /* d is drafted from; else it is there for the source alone */
    bool no_source;        /* none is to be made */
    node_body_t *body;
    node_sampling_t sampling;
    uint32_t end;        /* prompt and committed tokens at most */
    node_page_t **pages; /* loaded when the prompt begins */
    uint32_t n_pages;
    node_length_t length;
    bool shared; /* the drafter has the verifier's rows of this round */
    bool plain;  /* no drafts in this round */
    double round_us, draft_us, verify_us;
    uint64_t n_plain_rounds, n_source_rounds, direct_proposed, direct_accepted;
    node_choice_t choice;                             /* of what the round is, with an automatic length */
    uint32_t proposals[NODE_SOURCE_MAX], n_proposals; /* of the source straight to the verifier, in this round */
    /* this iteration */
    work_t work;
    bool done;                               /* came out of its pass */
    uint64_t link_here, link_due, link_most; /* as the schedule's task has it */
    uint64_t link_had;                       /* what the schedule knows to be here */
    uint32_t n_rows, n_logits, cap;
    node_verdict_t verdict;
    node_pick_t *picks; /* [max_draft] */
    uint32_t n_picks;
    bool enough;
    node_share_load_t load;
} member_t;

struct node_batch {
    node_batch_opts_t opt;
    node_schedule_t *schedule;
    node_share_t share;
    node_gain_t gain;            /* of drafting, with full KV in memory */
    member_t *members;           /* [max_requests] */
    member_t **order;            /* [max_requests] scratch */
    node_schedule_task_t *tasks; /* [max_running] */
    node_row_t *rows;            /* [max_rows] */
    float *logits;               /* grown on demand */
    size_t cap_logits;
    uint32_t max_rows;
    uint64_t next_id;
    double chance_hits, chance_seen; /* drafts of all requests, decayed: what a new one may expect */
    node_batch_info_t info;
    /* slow tier; NULL: all is in memory */
    node_slow_pool_t *pool;
    node_slow_opts_t tier;        /* of one request */
    uint64_t hold_bytes;          /* that the schedule may plan with */
    uint64_t n_lent;              /* buffers of the pool that may be lent to read-ahead */
    double link_rate, step_us;    /* measured: bytes/s, compute time of an iteration */
    uint64_t read_bytes, wait_us; /* of the pool at the last look */
};

static inline uint32_t batch_max_draft(const node_batch_t *b)
{
    return b->opt.draft_length == NODE_DRAFT_AUTO ? b->opt.max_draft : b->opt.draft_length;
}

/* Ends a request: callback, then everything is given back. The schedule forgets it unless it did already. */
void batch_end(node_batch_t *b, member_t *m, vc_status_t status, const char *error);
member_t *batch_of_schedule(node_batch_t *b, uint64_t schedule_id);
/* Members in this state by age, in b->order. */
uint32_t batch_collect(node_batch_t *b, member_state_t state);

/* pass.c: runs the work of all members. */
void batch_run(node_batch_t *b);

/* round.c */
void batch_round_first(const node_batch_t *b, member_t *m);
/* What the coming round is, and its costs for the schedule. */
vc_status_t batch_round_begin(node_batch_t *b, member_t *m, node_schedule_cost_t *cost_p, vc_err_t *err);
/* After the passes, before the schedule's end: shares the time out, tells lengths and schedule. */
void batch_account(node_batch_t *b, double us);

/* link.c. Without a tier all of it does nothing. */
vc_status_t batch_link_open(node_batch_t *b, vc_err_t *err);
vc_status_t batch_link_join(node_batch_t *b, member_t *m, vc_err_t *err); /* before the request has KV */
void batch_link_full(node_batch_t *b, const member_t *m, node_schedule_request_t *r);
double batch_link_us(const node_batch_t *b, const member_t *m);
/* Budgets as measured; `also` (may be NULL) is to fit into them. */
void batch_link_budgets(node_batch_t *b, const node_schedule_request_t *also);
/* Bytes that the tasks ask for. */
void batch_link_order(node_batch_t *b);
/* Whether reads go on between the layers of passes. */
void batch_link_between(node_batch_t *b, bool on);
/* After the passes: bytes that came; waits for some where no pass had rows. Gives the time that passes stood still. */
uint64_t batch_link_came(node_batch_t *b, uint64_t took_us, bool had_rows);

#endif
