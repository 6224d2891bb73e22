/*
 * bench sim: machines and models by their published numbers, and the loop that plays requests through
 * schedule/schedule.h, one iteration of the engine after the other. Nothing is measured here and no clock is read.
 */
#ifndef SIM_PARTS_H
#define SIM_PARTS_H

#include <stdbool.h>
#include <stdint.h>

/* Where each number is from: bench/README.md, "Simulator". */
typedef struct sim_machine {
    const char *name;
    double mem_bytes, mem_rate; /* of all GPUs together, bytes and bytes/s */
    double flops;               /* dense, bf16 */
    double link_rate;           /* host memory to the GPUs, bytes/s in one direction */
} sim_machine_t;

typedef struct sim_model {
    const char *name;
    double n_params;
    uint32_t n_layer, n_head, n_kv_head, head_dim;
    double mean_run; /* accepted of 30 drafts at a quarter of the KV */
} sim_model_t;

/* What no data sheet says; the same for every machine, varied one by one by the bench. */
typedef struct sim_assumed {
    double mem_share;  /* of the memory's rate that decoding reaches */
    double flop_share; /* of the arithmetic peak */
    double link_share; /* of the PCIe rate */
    double fill;       /* of the memory that may be used */
    double step_s;     /* fixed cost of an iteration: launches, sampling, batch forming */
    double hold;       /* transient memory in full KVs, and at most half of what the weights leave */
    double run_more;   /* added to the model's mean accepted run */
    double kept;       /* long context: compressed over full bytes */
    uint32_t answer;   /* tokens; answers vary evenly between half and one and a half of that */
} sim_assumed_t;

typedef struct sim_case {
    const sim_machine_t *machine;
    const sim_model_t *model;
    sim_assumed_t assumed;
    uint32_t prefix;      /* tokens */
    double kept;          /* compressed over full bytes */
    double chance;        /* of a draft */
    double link_rate;     /* of full KV to where it is verified, bytes/s */
    double slow_rate;     /* remote: the compressed copy's link, and a verify node of its own; 0: long context */
    uint32_t outstanding; /* requests in the system; one that ends is followed by the next */
    uint32_t n_requests;  /* to end before the run does; the first quarter is not counted */
} sim_case_t;

typedef struct sim_result {
    bool fits;
    double tokens_s, requests_s;
    double running;                         /* mean */
    double drafts, committed;               /* per verification, mean */
    double link_use, slow_use, compute_use; /* shares of the time; in a remote run the busier node's compute */
} sim_result_t;

double sim_kv_token_bytes(const sim_model_t *m); /* K and V of one token, 16 bits an element */
/* The chance at which `run` of `x` drafts are accepted on average. */
double sim_chance_of_run(double run, uint32_t x);

typedef struct sim_rows {
    double n, kv_bytes; /* rows of a pass; bytes of KV that it reads */
} sim_rows_t;
double sim_pass_s(const sim_case_t *c, sim_rows_t rows); /* roofline; 0 for no rows */

sim_result_t sim_schedule(const sim_case_t *c, bool lock_step);
/* Without drafts: full KV in GPU memory, as many requests as fit; remote: fetched over the slow link first. */
sim_result_t sim_plain(const sim_case_t *c);
/* Long context only: full KV outside, streamed through for every token. */
sim_result_t sim_streamed(const sim_case_t *c);

/* One predicted span (one load to another, or one value) beside the published speed-up. */
typedef struct sim_bar {
    char label[64];
    double low, high, published;
} sim_bar_t;
/* Writes the SVG file; ends the program when it cannot. */
void sim_plot(const char *path, const sim_bar_t *bars, uint32_t n_bars);

#endif
