/* Shared by the files of batch/: batch.c (life of requests), pass.c (rows and verdicts), round.c (draft lengths, costs
 * and the schedule's answers), link.c (bytes of full KV). */
#ifndef NODE_BATCH_INT_H
#define NODE_BATCH_INT_H

#include "batch/batch.h"
#include "batch/share.h"

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
    node_drafter_t *d; /* NULL: it decodes plainly */
    node_body_t *body;
    node_sampling_t sampling;
    uint32_t end;        /* prompt and committed tokens at most */
    node_page_t **pages; /* loaded when the prompt begins */
    uint32_t n_pages;
    node_length_t length;
    bool shared; /* the drafter has the verifier's rows of this round */
    bool plain;  /* no drafts in this round */
    double round_us, draft_us, verify_us;
    uint64_t n_plain_rounds;
    /* this iteration */
    work_t work;
    bool in_pass, done; /* planned; came out of its pass */
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
    member_t *members;           /* [max_requests] */
    member_t **order;            /* [max_requests] scratch */
    node_schedule_task_t *tasks; /* [max_running] */
    node_row_t *rows;            /* [max_rows] */
    float *logits;               /* grown on demand */
    size_t cap_logits;
    uint32_t max_rows;
    uint64_t next_id;
    node_batch_info_t info;
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
vc_status_t batch_run(node_batch_t *b, vc_err_t *err);

/* round.c */
node_schedule_cost_t batch_round_cost(node_batch_t *b, member_t *m);
/* After the passes, before the schedule's end: shares the time out, tells lengths and schedule. */
void batch_account(node_batch_t *b, double us);

#endif
