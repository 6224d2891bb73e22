/*
 * The parts of bench_compress.c: texts (compress_texts.c), the list of compressors and the reference figures
 * (compress_specs.c), acceptance and size (compress_accept.c), time (compress_time.c), table, CSV and comparison
 * (compress_table.c), the plot (compress_plot.c), attention by itself (compress_attention.c). One thread.
 */
#ifndef COMPRESS_PARTS_H
#define COMPRESS_PARTS_H

#include "compress/watch.h"
#include "harness.h"
#include "node.h"

extern vc_err_t compress_err;
#define OK(call) BENCH_OK(call, compress_err)

enum { COMPRESS_SPECS = 64, COMPRESS_TEXTS = 8, COMPRESS_PREFIXES = 2, COMPRESS_LENGTHS = 4, COMPRESS_LONGEST = 30 };
static const uint32_t compress_lengths[COMPRESS_LENGTHS] = {4, 8, 16, COMPRESS_LONGEST};

/* What one compressor did on one text, or on several: everything adds up. */
typedef struct {
    uint64_t n, same; /* positions; those with the token that full KV chooses */
    uint64_t rounds, accepted[COMPRESS_LENGTHS];
    uint64_t tokens, wire_bytes, memory_bytes; /* of prefixes; compressed and exact records; bodies */
} compress_tally_t;

typedef struct {
    node_spec_t spec;
    node_load_t load;           /* of methods that store keys before RoPE */
    const char *series, *label; /* for the plot: points of one series are joined */
    char asked[VC_SPEC_TEXT_MAX];
    compress_tally_t at[COMPRESS_TEXTS][COMPRESS_PREFIXES], sum[COMPRESS_PREFIXES], all;
    double compress_s, load_s, step_vs_full; /* on one text of the longest prefix; 0: not timed */
    double watch_s;                          /* what watching added to the prefill there; 0: watches nothing */
} compress_spec_t;

typedef struct {
    const char *name, *kind;
    uint32_t *prefix, n_prefix[COMPRESS_PREFIXES]; /* the shorter prefix is the beginning of the longer one */
    uint32_t *forced[COMPRESS_PREFIXES];           /* what follows each */
} compress_text_t;

typedef struct {
    node_t *node;
    compress_spec_t specs[COMPRESS_SPECS];
    uint32_t n_specs;
    compress_text_t texts[COMPRESS_TEXTS];
    uint32_t n_texts, n_prefixes, prefixes[COMPRESS_PREFIXES], n_forced;
    double prefill_s; /* of the longest prefix, without watching */
} compress_run_t;

/* Texts of the tree; the model must be open. Those that are too short are left out with a note. */
void compress_texts_load(compress_run_t *run);
void compress_texts_free(compress_run_t *run);
/* The compressors that this build has, bound to their blobs. */
void compress_specs_load(compress_run_t *run);

/* KVzip reads the text again; the scores of one text serve all its specs. */
double compress_replay_s(const node_spec_t *spec); /* of the scores last used */
void compress_forget_replays(void);

/* A body made through records, and what it cost. watched: of the spec's watch, NULL where it has none. */
typedef struct {
    node_body_t *body;
    uint64_t wire_bytes; /* compressed records and the exact ones of first and last blocks */
    uint64_t memory_bytes;
    double compress_s, load_s;
} compress_made_t;
void compress_make(compress_run_t *run, const compress_spec_t *s, const node_kv_t *full, const uint32_t *tokens,
                   uint32_t n_blocks, void *watched, compress_made_t *made);

void compress_acceptance(compress_run_t *run); /* fills at, sum, all */
void compress_times(compress_run_t *run);      /* fills the times */
void compress_tally_add(compress_tally_t *sum, const compress_tally_t *t);
static inline double compress_same(const compress_tally_t *t) { return t->n ? (double)t->same / (double)t->n : 0; }
static inline double compress_accepted(const compress_tally_t *t, int x)
{
    return t->rounds ? (double)t->accepted[x] / (double)t->rounds : 0;
}
static inline double compress_wire(const compress_tally_t *t)
{
    return t->tokens ? (double)t->wire_bytes / (double)t->tokens : 0;
}
static inline double compress_memory(const compress_tally_t *t)
{
    return t->tokens ? (double)t->memory_bytes / (double)t->tokens : 0;
}

/* No other compressor accepts as much with as few bytes (longest prefix). */
bool compress_on_front(const compress_run_t *run, uint32_t i);
void compress_print(const compress_run_t *run);
void compress_compare(const compress_run_t *run); /* with the reference figures */
void compress_write_csv(const compress_run_t *run, const char *path);
void compress_write_plot(const compress_run_t *run, const char *path);

/* One decoding step's attention over n_tokens: full f16 pages against bodies, interleaved. */
void compress_attention(uint32_t n_tokens);

#endif
