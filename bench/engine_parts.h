/* What the parts of bench_engine share. */
#ifndef BENCH_ENGINE_PARTS_H
#define BENCH_ENGINE_PARTS_H

#include "harness.h"
#include "model/engine.h"

enum { ENGINE_MAX_DEPTHS = 8 };

/* What the machine can do at most, measured by simple loops on all threads. */
typedef struct {
    double fma_per_s; /* f32 multiply-adds */
    double dot_per_s; /* int16 multiply-adds */
} roofline_t;

typedef struct {
    const char *model, *peer; /* peer NULL: none */
    uint32_t threads, reps, steps, prompt;
    uint32_t depths[ENGINE_MAX_DEPTHS], n_depths;
    node_gguf_t *gguf;
    node_engine_t *eng;
    const node_model_info_t *info;
    float *logits;       /* [64][n_vocab] */
    roofline_t roofline; /* zero where that part does not run */
} bench_t;

void engine_check(vc_status_t st, const vc_err_t *err);
void engine_fill_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab);
/* A session with that many tokens in it. */
void engine_fill(bench_t *b, node_kv_t *kv, uint32_t depth);
/* what_512, what_2k ... */
void engine_name(char *name, size_t size, const char *what, uint32_t depth);

/* engine_peer.c. The path of llama-bench, or NULL with a note. */
const char *engine_find_peer(void);
/* Tokens per second of llama-bench at these arguments, with flash attention or without. */
double engine_peer_rate(const bench_t *b, const char *prompt, const char *gen, const char *depth, bool flash);
/* Which of the two is faster there: tried once each, unless --fa says on or off. */
bool engine_peer_flash(const bench_t *b, const char *prompt, const char *gen, const char *depth);

/* engine_roofline.c */
roofline_t engine_roofline(const bench_t *b);

/* engine_memory.c. Reads a buffer of that many bytes as fast as the machine can. NULL for scalar code. */
typedef struct engine_reader engine_reader_t;
engine_reader_t *engine_reader_open(const bench_t *b, double bytes);
/* Bytes per second of reading it so many times over. */
double engine_reader_rate(engine_reader_t *r, uint32_t times);
void engine_reader_close(engine_reader_t *r);

/* engine_verify.c. Passes of many rows at the depths, as shares of the multiply-add peak. */
void engine_verify(bench_t *b);

#endif
