/*
 * The parts of bench_speculate.c: prompts and their KV (speculate_texts.c), one run of a request and single steps
 * (speculate_run.c), the table of one prompt length (speculate_table.c), the mixed load (speculate_mixed.c),
 * four requests in a batch (speculate_batch.c).
 */
#ifndef SPECULATE_PARTS_H
#define SPECULATE_PARTS_H

#include "harness.h"
#include "node.h"
#include "speculate/session.h"

extern vc_err_t speculate_err;
#define OK(call) BENCH_OK(call, speculate_err)

enum {
    SPEC_TEXTS = 4,
    SPEC_PAGES = 128,
    SPEC_COMPRESSORS = 6,
    SPEC_MODES = 8, /* draft lengths that are compared */
    SPEC_FIXED = 8, /* the fixed length whose match chance and costs are told */
    SPEC_WIDTHS = 6 /* passes that are timed by themselves: 1, 2, 5, 9, 17, 33 rows */
};
static const uint32_t spec_widths[SPEC_WIDTHS] = {1, 2, 5, 9, 17, 33};

/* A prompt of n tokens that ends inside a text of one kind; others lie before it where that is too short. */
typedef struct {
    const char *kind;
    uint32_t *tokens, n;
    node_page_t *pages[SPEC_PAGES]; /* full KV of its whole blocks */
    uint32_t n_pages;
} spec_prompt_t;

typedef struct {
    node_t *node;
    node_sampling_t sampling;
    uint32_t n_common;             /* node_drafter_opts_t */
    uint32_t n_new, reps;          /* tokens a run decodes, repetitions */
    const char *kinds[SPEC_TEXTS]; /* chosen with --texts */
    uint32_t n_kinds;
    char specs[SPEC_COMPRESSORS][VC_SPEC_TEXT_MAX]; /* compressors, as asked for */
    uint32_t n_specs;
} spec_bench_t;

void spec_prompt_load(const spec_bench_t *b, spec_prompt_t *p, const char *kind, uint32_t n);
void spec_prompt_free(spec_prompt_t *p);
node_body_t *spec_compress(const spec_bench_t *b, const spec_prompt_t *p, const char *text);
/* A verifier behind the prompt's KV with its first token committed, and room for n_new more. */
node_verifier_t *spec_start(const spec_bench_t *b, const spec_prompt_t *p, uint32_t n_new);

typedef struct {
    double us;
    uint64_t n_tokens, accepted, looked_at, rounds, plain_rounds;
} spec_run_t;
/* How a request is decoded. */
typedef struct {
    node_body_t *body; /* or NULL */
    const char *name;  /* of its compressor */
    uint32_t x;        /* drafts; NODE_DRAFT_AUTO: the automatic length */
    bool source;       /* with the n-gram source */
} spec_way_t;
typedef struct {
    uint32_t *tokens, n;
} spec_tokens_t;
/* The same tokens in any way; ends the bench where they are not `first`'s, which takes them where it is empty. */
spec_run_t spec_run(const spec_bench_t *b, const spec_prompt_t *p, const spec_way_t *way, spec_tokens_t *first);
/* Drafts of one kind add up. */
void spec_add(spec_run_t *sum, const spec_run_t *r);
double spec_us_per_token(const spec_run_t *r);
/* Of a draft that was looked at. */
double spec_chance(const spec_run_t *r);

double spec_pass_us(const spec_bench_t *b, const spec_prompt_t *p, uint32_t n_rows);    /* one verify pass */
double spec_draft_us(const spec_bench_t *b, const spec_prompt_t *p, node_body_t *body); /* one draft step */

/* Most that plain_us a token can be divided by with these step costs, over x from 0: tokens / (x drafts + a pass of
 * x + 1), passes of n widths. */
double spec_promise(double plain_us, double draft_us, const uint32_t *widths, const double *pass_us, uint32_t n,
                    double chance, uint32_t *x_p);
/* The shortest context from where the engine's step costs and this chance promise a gain; 0: none. */
uint32_t spec_pays_from(const spec_bench_t *b, const node_body_t *body, const char *name, double chance);

void spec_table(const spec_bench_t *b, uint32_t n_tokens, const char *label);
void spec_mixed(const spec_bench_t *b);
void spec_batch(const spec_bench_t *b, uint32_t n_tokens, const char *label);

#endif
