/* Inside of the engine, shared by engine.c (lifecycle), forward.c (the pass) and attend.c (attention of one layer). */
#ifndef NODE_ENGINE_INT_H
#define NODE_ENGINE_INT_H

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/team.h"
#include "kv/slow.h"
#include "model/engine.h"
#include "model/vocab_part.h"
#include "model/weights.h"

/* Splits whose states are kept before they are folded, and how many row blocks may share that memory. */
#define NODE_SPLIT_WINDOW 64u
#define NODE_SPLIT_BLOCKS 16u
/* Up to so many rows take the pass of few.c. */
#define NODE_FEW_ROWS 4u

/* Online-softmax states of one block of queries. */
typedef struct node_states {
    float *m, *l; /* [NODE_QUERY_MAX] */
    float *o;     /* [NODE_QUERY_MAX][head_dim] */
} node_states_t;

typedef struct node_thread_scratch {
    float *q;                  /* [NODE_QUERY_MAX][head_dim], scaled */
    float *p;                  /* [NODE_QUERY_MAX][NODE_TILE] */
    node_coded_query_t *coded; /* [NODE_QUERY_MAX] of q, where the body has coded tiles */
    node_states_t split;       /* of the split at hand */
    node_states_t total;       /* splits folded so far */
    /* of a pass of few rows, where every thread makes its own copy: */
    float *x;           /* [NODE_FEW_ROWS][model_stride] residual stream */
    node_acts_t normed; /* as act_model */
    node_acts_t attn;   /* act_attn, quantised apart; x is the engine's */
} node_thread_scratch_t;

struct node_engine {
    node_model_info_t info;
    node_weights_t w;
    float *inv_freq;
    const node_ops_t *ops;
    node_isa_t isa;
    node_team_t *team;
    uint32_t n_threads, max_rows;
    bool few; /* passes of few rows may be few.c's: all weights of layers are quantised */
    _Atomic uint64_t saturations;
    void (*between)(void *arg); /* before each layer, by thread 0 */
    void *between_arg;
    uint64_t scratch_bytes;
    uint8_t *scratch; /* one block that everything below lies in */

    /* rows of a pass, [max_rows][stride] */
    size_t model_stride, q_stride, kv_stride, ffn_stride, rope_stride;
    float *x, *y;          /* residual stream; output of the last linear towards it */
    node_acts_t act_model; /* normed input of qkv, gate/up, logits */
    node_acts_t act_attn;  /* attention output, input of o */
    node_acts_t act_ffn;   /* gated, input of down */
    float *q, *k, *v;      /* after the projections, then after RoPE */
    float *gate, *up;
    float *cos, *sin;
    node_thread_scratch_t *threads; /* [n_threads] */
    node_states_t *splits;          /* [NODE_SPLIT_BLOCKS * NODE_SPLIT_WINDOW] */
    node_states_t *totals;          /* [NODE_SPLIT_BLOCKS] */
    /* splits of a (block, KV head) that are done; 0 between phases */
    _Atomic uint32_t n_done[NODE_SPLIT_BLOCKS];
    uint32_t *want;                /* rows with logits */
    struct node_row_block *blocks; /* [max_rows] */
};

struct node_vocab_part {
    const node_matrix_t *all;
    node_matrix_t m; /* the first n_out of cap rows */
    float *bias;     /* [cap], or NULL */
    uint32_t *tokens, cap;
    uint8_t *has; /* [vocabulary] */
};

/* Consecutive rows of one session that attend together. */
typedef struct node_row_block {
    const node_kv_t *kv;
    uint32_t first, n_rows; /* rows of the pass */
    uint32_t position;      /* of the first row */
} node_row_block_t;

typedef struct node_pass {
    node_engine_t *eng;
    const node_row_t *rows;
    uint32_t n_rows, n_want, n_blocks;
    uint32_t tail; /* rows below it need nothing of the last layer but their K and V */
    float *logits;
    const node_capture_t *capture;
    /* sessions with a slow tier: whether any has blocks there, how that went, whether a block came back damaged */
    bool streams;
    vc_status_t status;
    _Atomic bool damaged;
    vc_err_t *err;
} node_pass_t;

/* Position of row i of the pass. */
static inline uint32_t node_row_position(const node_row_block_t *b, uint32_t i) { return b->position + i - b->first; }

/* Attention of one layer for the blocks from first_block on: reads eng->q and the pages, writes act_attn.x. Every
 * thread of the team calls it; on return all rows are done and visible. */
void node_attend_layer(node_pass_t *pass, uint32_t layer, uint32_t first_block, uint32_t thread);
/* Rows that share the tiles of a KV head, of a run of that many: blocks of about equal size, as few as there can be. */
uint32_t node_attend_block_rows(const node_engine_t *eng, uint32_t run);

/* The same, and before it the rotation of q and k and the rows of K and V, which node_forward_worker does in a phase of
 * their own. ahead: what the thread reads afterwards. Where node_attend_fresh_fits. */
void node_attend_fresh(node_pass_t *pass, uint32_t layer, uint32_t thread, const uint8_t *ahead);
bool node_attend_fresh_fits(const node_pass_t *pass, uint32_t layer);
/* What node_attend_fresh reads first in that thread; NULL: nothing. */
const uint8_t *node_attend_first(const node_pass_t *pass, uint32_t layer, uint32_t thread);

/* Both: every thread of the team calls it; on return there is a result, visible to all. */
void node_forward_worker(void *pass, uint32_t thread);
void node_few_worker(void *pass, uint32_t thread);
bool node_few_fits(const node_pass_t *pass); /* else the pass is node_forward_worker's */

/* forward.c: parts of a pass that few.c has too. */
const node_row_block_t *node_block_of(const node_pass_t *pass, uint32_t row);
void node_embed(const node_pass_t *pass, uint32_t row, float *x);
void node_rope_row(node_pass_t *pass, uint32_t row); /* cos and sin */
void node_rotate_heads(const node_engine_t *eng, uint32_t row, float *heads, uint32_t n, const float *norm);
void node_rope_store(node_pass_t *pass, uint32_t layer, uint32_t row); /* RoPE of q and k; K and V into the page */
/* Rotates k of one KV head, and stores k and v as the row's of its page. */
void node_store_kv(node_engine_t *eng, uint32_t layer, uint32_t row, const node_row_block_t *b, uint32_t head);

/* linear.c */
typedef struct node_target {
    const node_matrix_t *m;
    float *out;
    size_t stride;
} node_target_t;
typedef struct node_range {
    uint32_t from, end;
} node_range_t;
/* Rows [first, rows_end) times n matrices, shared by the team. Every thread calls it; on return all is done and
 * visible. */
void node_linear(node_pass_t *pass, const node_acts_t *a, uint32_t first, uint32_t rows_end,
                 const node_target_t *targets, uint32_t n);
/* One thread's own part of the same, panels node_own_panels of the list; no barrier. ahead: what it reads next. */
void node_linear_own(const node_pass_t *pass, uint32_t thread, const node_acts_t *a, uint32_t first, uint32_t rows_end,
                     const node_target_t *targets, uint32_t n, const uint8_t *ahead);
node_range_t node_own_panels(const node_engine_t *eng, const node_target_t *targets, uint32_t n, uint32_t thread);
/* Where the weights of a panel of the list begin; NULL past the end. */
const uint8_t *node_panel_data(const node_target_t *targets, uint32_t n, uint32_t panel);
/* Logits from the normed rows that want them; as node_linear. */
void node_project(node_pass_t *pass, const node_acts_t *normed);

/* stream.c. Before the pass, once; nothing of it has happened yet when this fails. */
vc_status_t node_stream_begin(node_pass_t *pass, vc_err_t *err);
/* Where pass->streams, by every thread of the team: the layer's blocks are there and whole. False: the pass ends here,
 * for all threads alike, and pass->status says why. */
bool node_stream_layer(node_pass_t *pass, uint32_t layer, uint32_t thread);
void node_stream_release(node_pass_t *pass, uint32_t thread); /* the layer has been attended */
void node_stream_abort(node_pass_t *pass);                    /* after a pass that failed */

#endif
