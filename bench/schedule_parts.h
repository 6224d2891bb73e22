/*
 * Parts of `bench schedule`: bench_schedule.c reads the options and prepares what all parts share, schedule_<part>.c
 * measure.
 */
#ifndef BENCH_SCHEDULE_PARTS_H
#define BENCH_SCHEDULE_PARTS_H

#include "harness.h"
#include "node.h"

typedef struct schedule_load {
    node_t *node;
    uint32_t *prompt, n_prompt;
    node_kv_t full;      /* of the prompt's whole blocks */
    node_body_t *body;   /* the same, compressed */
    uint32_t kv_percent; /* of the full KV stays in memory */
} schedule_load_t;

/* One request: what a step costs with the full KV on disk, and what draft and verify gains. */
void schedule_single(schedule_load_t *load);
/* Many requests: verifications spread over iterations against all of them in one. */
void schedule_batch(schedule_load_t *load);

#endif
