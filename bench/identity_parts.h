/*
 * The parts of bench_identity.c: which request and how it is run, drawn from a seed (identity_draw.c); models, engines
 * and calibrations (identity_models.c); one run (identity_run.c), its slow tier (identity_slow.c) and a draft source
 * that guesses (identity_source.c); several requests in one batch (identity_batch.c); counts by axis and the sentence
 * that describes a case (identity_report.c). One thread beside the engines' own.
 */
#ifndef IDENTITY_PARTS_H
#define IDENTITY_PARTS_H

#include <stdio.h>

#include "batch/batch.h"
#include "compress/calib.h"
#include "compress/replay_ids.h"
#include "harness.h"
#include "kv/slow.h"
#include "speculate/session.h"
#include "speculate/suffix.h"
#include "support/tiny_model.h"
#include "vc/mem.h"

enum {
    IDENTITY_CONTEXT = 4096, /* of the small models, and of what is asked of a file's */
    IDENTITY_TOKENS = 160,   /* committed behind a prompt at most */
    IDENTITY_STOPS = 3,
    IDENTITY_ENDS = 4,
    IDENTITY_RUNS = 6,    /* of each request, beside plain decoding */
    IDENTITY_SAME = 8,    /* requests in a row that have the same small model */
    IDENTITY_GROUP = 8,   /* requests that share batches, of a file's model half of it */
    IDENTITY_BATCHES = 2, /* of each group */
    IDENTITY_THREADS = 3  /* of an engine at most */
};

/* ---- random numbers: the same from the same seed, request and purpose ---- */

typedef struct {
    uint64_t state;
} identity_rng_t;
identity_rng_t identity_rng(uint64_t seed, uint64_t request, uint64_t purpose);
uint64_t identity_next(identity_rng_t *r);
uint32_t identity_below(identity_rng_t *r, uint32_t n); /* [0, n), n >= 1 */
bool identity_chance(identity_rng_t *r, uint32_t of_1000);
double identity_unit(identity_rng_t *r);                               /* [0, 1) */
uint32_t identity_log(identity_rng_t *r, uint32_t low, uint32_t high); /* [low, high], as many in every octave */

/* ---- models ---- */

typedef struct {
    bool is_file;
    char name[160];
    gguf_image_t image; /* of a small model */
    node_gguf_t *gguf;
    node_tokenizer_t *tok;
    node_replay_ids_t replay_ids;
    node_model_info_t info;
    node_engine_t *engines[IDENTITY_THREADS][NODE_ISA_AVX512 + 1]; /* made when first asked for */
    node_calib_t **calibs;                                         /* [codec], the same */
    uint32_t n_codecs;
    node_costs_t costs; /* of the engine of plain decoding, the same */
} identity_model_t;

void identity_model_file(identity_model_t *m, const char *path);
void identity_model_small(identity_model_t *m, uint64_t seed, uint64_t request);
void identity_model_close(identity_model_t *m);
/* Drops engines but the one of plain decoding: those of a file are large. */
void identity_model_trim(identity_model_t *m);
node_engine_t *identity_engine(identity_model_t *m, uint32_t threads, node_isa_t isa);
node_engine_t *identity_plain_engine(identity_model_t *m);
node_costs_t *identity_costs(identity_model_t *m);
/* Parses a spec, and calibrates its method on this model where it needs that. */
vc_status_t identity_spec(identity_model_t *m, const char *text, node_spec_t *spec_p, vc_err_t *err);
/* n tokens of a text of bench/texts from a random place on, repeated where it is short. */
void identity_text(const identity_model_t *m, identity_rng_t *r, uint32_t *tokens, uint32_t n);
void identity_texts_free(void);

/* ---- a case ---- */

typedef struct {
    uint64_t seed;
    uint32_t index; /* of the request */
    bool of_file;   /* which model */
    const char *source;
    uint32_t n_prompt, prompt[IDENTITY_CONTEXT];
    uint32_t max_tokens, context;
    node_sampling_t sampling;
    uint32_t ends[IDENTITY_ENDS], n_ends;
    const char *stops[IDENTITY_STOPS];
    uint32_t n_stops;
} identity_request_t;

typedef enum { IDENTITY_DRAFTER, IDENTITY_GUESSES } identity_drafts_t;
/* Under the drafter: nothing, the n-gram source, or one that guesses, now and then right, and may fail. */
typedef enum { IDENTITY_NO_SOURCE, IDENTITY_SUFFIX, IDENTITY_WILD, IDENTITY_N_SOURCES } identity_source_t;
/* Where the oldest full KV lies: in memory, in a file with buffers of its own, in a file with those of a pool. */
typedef enum { IDENTITY_IN_RAM, IDENTITY_OWN_TIER, IDENTITY_POOL, IDENTITY_N_TIERS } identity_tier_t;

typedef struct {
    uint32_t index; /* of the run, from 1; 0 is plain decoding */
    identity_drafts_t drafts;
    identity_source_t source;
    uint32_t n_common;    /* tokens that greedy drafts choose among, besides the text's; 0: all */
    bool costs;           /* the session knows the engine's step costs */
    uint32_t x;           /* draft length; of guesses at most */
    const char *spec;     /* of the drafter; NULL: it has the full KV */
    uint32_t body_blocks; /* of the prompt that are compressed */
    uint32_t right;       /* of 1000 guesses are what plain decoding commits */
    uint32_t threads;
    node_isa_t isa;
    uint32_t cut;        /* rows a prefill pass; 0: all that the engine takes */
    uint32_t hit_blocks; /* loaded from records */
    uint32_t n_resume;   /* tokens that were committed before; a hundredth of what there is */
    identity_tier_t tier;
    double slow_part;    /* of the full KV that may stay in memory, above the least */
    double hold_part;    /* of a pool's buffers, above the least */
    bool slow_threads;   /* transfers by threads instead of a ring */
    uint64_t delay_seed; /* holds transfers back, in an order of its own; 0: they come as they come */
} identity_run_t;

void identity_draw_request(identity_model_t *m, uint64_t seed, uint32_t index, identity_request_t *q);
void identity_draw_run(const identity_model_t *m, const identity_request_t *q, uint32_t run, identity_run_t *v);

typedef struct {
    uint32_t tokens[IDENTITY_TOKENS], n;
    node_finish_t finish;
    vc_digest_t logits, kv;
    uint64_t proposed, accepted, spilled;
} identity_result_t;

/* Plain decoding; *v_p is kept for the records of its prompt. */
void identity_plain(identity_model_t *m, const identity_request_t *q, node_verifier_t **v_p, identity_result_t *out);
/* REFUSED outcomes come as a status with their sentence. */
vc_status_t identity_run(identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                         node_verifier_t *plain, const identity_result_t *base, identity_result_t *out, vc_err_t *err);
void identity_verifier_opts(const identity_model_t *m, const identity_request_t *q, node_engine_t *engine,
                            node_verifier_opts_t *o);
vc_status_t identity_collect(node_verifier_t *v, identity_result_t *out, vc_err_t *err);
/* The tier of a run for this request; *pool_p: NULL, or what outlives the session. Nothing where all fits in memory. */
vc_status_t identity_add_tier(const identity_run_t *v, const identity_request_t *q, node_kv_t *kv,
                              node_slow_pool_t **pool_p, vc_err_t *err);
/* Between passes: reads ahead, looks, gives back, at random. */
vc_status_t identity_poke_tier(identity_rng_t *r, node_kv_t *kv);
/* A source under the drafter, or NULL. base outlives it. */
node_source_t *identity_make_source(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                                    const identity_result_t *base);
/* What differs first, as words; empty: nothing does. */
void identity_compare(const identity_result_t *want, const identity_result_t *got, char *words, size_t cap);

/* ---- batches ---- */

typedef struct {
    identity_request_t q;
    identity_result_t base;
    node_verifier_t *plain;
} identity_member_t;

typedef struct {
    identity_model_t *model;
    uint64_t seed;
    uint32_t n;
    identity_member_t *members[IDENTITY_GROUP];
} identity_group_t;

/* Batch number `index` of the group, from 1. different: told for each request that differs. */
void identity_batch(const identity_group_t *g, uint32_t index,
                    void (*different)(void *arg, const identity_member_t *m, const char *how, const char *words),
                    void *arg, identity_result_t *sum);

/* ---- report ---- */

void identity_describe(FILE *f, const identity_model_t *m, const identity_request_t *q, const identity_run_t *v);
void identity_count(const identity_model_t *m, const identity_request_t *q, const identity_run_t *v,
                    const identity_result_t *got);
void identity_count_value(const char *axis, const char *value, const identity_result_t *got);
void identity_print_counts(void);

#endif
