/*
 * Compressors behind one table. A spec such as "kivi:bits=4,group=32,residual=128" names the method and its parameters;
 * its canonical text (every parameter, fixed order) identifies the copy on the server.
 *
 * compress: full KV of newly registered blocks -> one record per block (design: payload depends on the block, the
 * prefix before it, and the spec; exact windows, residuals and sinks are never in it). load: records of a hit [+ full
 * pages of the first and the last blocks] -> node_body_t that attention walks over. A new method is one file and one
 * line in the table.
 */
#ifndef NODE_CODEC_H
#define NODE_CODEC_H

#include "kv/pages.h"
#include "model/engine.h"

typedef struct node_calib node_calib_t; /* calib.h */

typedef struct node_spec {
    char text[VC_SPEC_TEXT_MAX]; /* canonical */
    vc_spec_id_t id;
    const struct node_codec_ops *ops;
    const node_calib_t *calib; /* bound blob (calib.h), borrowed; NULL: none */
    /* parameters, meaning by method; unused ones are zero */
    double keep, eps, tau, outliers, clip;
    uint32_t window, kernel, bits, group, residual, max_pool;
    uint32_t sinks, future, budget, plus, chunk, stats, levels, vnorm, cov;
    uint32_t fit, row_fit;        /* rot: the range of a group is the one of least error */
    uint32_t center;              /* rot: keys less their block's mean */
    uint32_t row_bits, row_group; /* "dropper:...+rot:bits=4,group=64": how kept rows are coded; 0: f16 */
    uint64_t seed;
} node_spec_t;

enum {
    NODE_NEED_REPLAY = 2, /* node_compress_in_t.replay */
    NODE_NEED_CALIB = 4   /* spec.calib */
};

/* Methods that read the text again (KVzip, and calibration on any text). Token ids are borrowed. */
typedef struct node_replay {
    node_engine_t *engine;
    const uint32_t *first, *next, *suffix; /* "\n\nRepeat the previous context exactly.", "... starting with", and the
                                              template between a user's and an assistant's turn */
    uint32_t n_first, n_next, n_suffix;
    void (*enter)(void *arg), (*leave)(void *arg);              /* around every pass; may be NULL */
    void (*progress)(void *arg, uint32_t done, uint32_t total); /* may be NULL */
    void *arg;
} node_replay_t;

/* What a method wants to see of the passes that compute its rows (watch.h). */
typedef struct node_watch {
    uint32_t kinds;      /* node_capture_kind_t */
    uint32_t first, end; /* absolute positions */
    void *state;
} node_watch_t;

/* Texts that a method is calibrated on, as token ids. */
typedef struct node_calib_job {
    node_replay_t replay; /* engine and ids */
    const uint32_t *const *texts;
    const uint32_t *n_tokens;
    uint32_t n_texts;
    void (*note)(void *arg, const char *line); /* quality of the fit, for the operator; may be NULL */
    void *note_arg;
} node_calib_job_t;

/* Input of a compression: full KV whose pages cover [0, n_blocks * NODE_TILE) at least. */
typedef struct node_compress_in {
    const node_model_info_t *model;
    const node_kv_t *kv;
    const uint32_t *tokens; /* whole chain, n_blocks * NODE_TILE */
    uint32_t first_block;   /* new blocks are [first_block, n_blocks) */
    uint32_t n_blocks;
    void *watched;               /* state of the method's watch, which saw all its rows; NULL where it has none */
    const node_replay_t *replay; /* NULL unless NODE_NEED_REPLAY */
} node_compress_in_t;

struct node_body_builder;
typedef struct node_codec_ops {
    const char *name;
    const char *params_help; /* "keep=0.25 window=64 kernel=5 pool=avg" */
    vc_kvrec_kind_t kind;
    vc_status_t (*parse)(node_spec_t *spec, const char *params,
                         vc_err_t *err); /* fills parameters and canonical text */
    double (*bits)(const node_spec_t *spec,
                   uint32_t head_dim); /* that the payload takes per K or V number of the block, from geometry */
    /* The same where it depends on more of the model than a head's size; NULL: it does not. */
    double (*model_bits)(const node_spec_t *spec, const node_model_info_t *model);
    uint32_t (*needs)(const node_spec_t *spec);
    uint32_t (*window_tokens)(const node_spec_t *spec); /* exact rows at the end that the drafter should take from full
                                                           records (R); 0 = none */
    uint32_t (*sink_blocks)(const node_spec_t *spec);   /* exact blocks at the start */
    bool chooses; /* which rows are kept or exact depends on the registered span: the header names it (horizon) */
    /* Watching: NULL slots where nothing is wanted. watch sets kinds (of Q, K, V, X, RESID; 0: this spec wants
     * nothing), state and the first position (end is end_token); what it leaves in state is freed with watch_free.
     * watch_row runs on the thread that leads the pass while the others go on: short, no locks, no allocation; what
     * goes wrong is kept in the state and told by plan. */
    vc_status_t (*watch)(const node_spec_t *spec, const node_model_info_t *model, uint32_t first_token,
                         uint32_t end_token, node_watch_t *watch_p, vc_err_t *err);
    void (*watch_row)(void *state, node_capture_kind_t kind, uint32_t layer, uint32_t position, const float *values);
    void (*watch_free)(void *state);
    /* Calibration: NULL slots where the method has none. calibrate gives the payload of a blob (freed with vc_free);
     * calib_check says whether a payload from disk can be used at all. */
    vc_status_t (*calibrate)(const node_spec_t *spec, const node_calib_job_t *job, void **payload_p, size_t *bytes_p,
                             vc_err_t *err);
    vc_status_t (*calib_check)(const node_model_info_t *model, const uint8_t *payload, size_t bytes, vc_err_t *err);
    /* Whether a checked blob has what these parameters need; NULL: any blob of the method does. */
    vc_status_t (*calib_fits)(const node_spec_t *spec, const node_calib_t *calib, vc_err_t *err);
    /* plan_p: method state for this span (e.g. the selection); layer_bytes and encode are then called per (block,
     * layer), any order. */
    vc_status_t (*plan)(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err);
    uint32_t (*layer_bytes)(const void *plan, uint32_t block, uint32_t layer);
    void (*encode)(const void *plan, uint32_t block, uint32_t layer, void *part);
    void (*plan_free)(void *plan);
    /* Validates one layer part fully, then adds its rows to the builder. */
    vc_status_t (*decode)(const node_spec_t *spec, const vc_kvrec_head_t *head, uint32_t layer, const void *part,
                          uint32_t length, struct node_body_builder *builder, vc_err_t *err);
} node_codec_ops_t;

/* "none", "noise:eps=1e-3,seed=1", "snapkv:keep=0.25", "kivi:bits=4". INVALID names the parameter and the methods there
 * are. */
vc_status_t node_spec_parse(const char *text, node_spec_t *spec_p, vc_err_t *err);
const node_codec_ops_t *const *node_codecs(uint32_t *n_p); /* the table, for help texts and tests */

/* Receives each record in block order; the memory lasts for the call. Non-zero ends with CANCELLED. */
typedef int (*node_record_fn)(void *arg, uint32_t block, const void *record, size_t bytes);
vc_status_t node_compress(const node_spec_t *spec, const node_compress_in_t *in, node_record_fn on_record, void *arg,
                          vc_err_t *err);
/* The full record of one page. buf holds vc_kvrec_full_bytes(). */
vc_status_t node_full_record(const node_model_info_t *model, const node_kv_t *kv, const uint32_t *tokens,
                             uint32_t block, void *buf, size_t cap, size_t *bytes_p, vc_err_t *err);
/* A page from a full record that vc_kvrec_check accepted; refuses another keyspace, numerics or shape (MISMATCH). */
vc_status_t node_page_from_record(const node_model_info_t *model, const void *record, size_t bytes,
                                  node_page_t **page_p, vc_err_t *err);

/* Building a body: records in any order, then exact pages that replace compressed rows of their block, then finish. */
typedef struct node_body_builder node_body_builder_t;
/* spec and model are borrowed until finish or abort. */
vc_status_t node_body_begin(const node_spec_t *spec, const node_model_info_t *model, uint32_t n_blocks,
                            node_body_builder_t **b_p, vc_err_t *err);
/* Checks the record (vc_kvrec_check, keyspace, spec, block index) and decodes it. */
vc_status_t node_body_add_record(node_body_builder_t *b, const void *record, size_t bytes, vc_err_t *err);
vc_status_t node_body_add_page(node_body_builder_t *b, uint32_t block,
                               node_page_t *page); /* takes a reference of its own */
/* How keys that are stored before RoPE are attended: converted once at load to 8-bit codes as `rot` has them, or
 * dequantised to f16 after RoPE, which is what their papers specify. Before the first record. */
typedef enum { NODE_LOAD_CODES = 0, NODE_LOAD_PAGES } node_load_t;
void node_body_set_load(node_body_builder_t *b, node_load_t load);
/* Every block must have come. Frees the builder, also on failure. */
vc_status_t node_body_finish(node_body_builder_t *b, node_body_t **body_p, vc_err_t *err);
void node_body_abort(node_body_builder_t *b);

/* The two facts that a scheduler may know. */
uint32_t node_body_n_dropped(const node_body_t *body, uint32_t layer, uint32_t kv_head);
double node_spec_bits_per_element(const node_spec_t *spec, const node_model_info_t *model);

#endif
