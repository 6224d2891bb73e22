/*
 * How much of what is asked for is there, by policy and size of the cache? Replays a conversation trace and made-up
 * loads through the server's policy and five others. No clock matters: the figures are the same on every machine.
 */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "sim/sim.h"
#include "vc/mem.h"

#ifndef BENCH_TRACE
#define BENCH_TRACE "tests/vectors/traces/conversation.trace"
#endif

static const uint32_t capacities[] = {500,   1000,  1500,  2000,  3000,  4000,  5000, 7500,
                                      10000, 15000, 20000, 25000, 30000, 40000, 50000};

/* Shown in this order; the oracle knows the future. */
static const cs_sim_policy_t columns[] = {CS_SIM_LRU,    CS_SIM_FIFO, CS_SIM_LFU,
                                          CS_SIM_S3FIFO, CS_SIM_OURS, CS_SIM_ORACLE};

static double hit_rate(const cs_trace_t *trace, cs_sim_policy_t policy, uint32_t capacity)
{
    cs_sim_result_t r;
    vc_status_t status = cs_sim_run(trace, policy, capacity, &r);
    if (status != VC_OK)
        bench_fail("cannot replay through %s: %s", cs_sim_name(policy), vc_status_text(status));
    return cs_sim_hit_rate(&r);
}

static void print_head(const char *what)
{
    printf("\n| %s |", what);
    for (size_t c = 0; c < VC_ARRAY_LEN(columns); c++)
        printf(" %s |", cs_sim_name(columns[c]));
    printf(" ours/lru |\n|---|");
    for (size_t c = 0; c <= VC_ARRAY_LEN(columns); c++)
        printf("---|");
    printf("\n");
}

/* Prints the row; the hit rate of ours against LRU's. */
static double row(const cs_trace_t *trace, const char *name, uint32_t capacity)
{
    double rate[CS_SIM_N];
    printf("| %s%u |", name, capacity);
    for (size_t c = 0; c < VC_ARRAY_LEN(columns); c++) {
        rate[columns[c]] = hit_rate(trace, columns[c], capacity);
        printf(" %.1f |", 100 * rate[columns[c]]);
    }
    double gain = rate[CS_SIM_LRU] > 0 ? rate[CS_SIM_OURS] / rate[CS_SIM_LRU] : 0;
    if (gain > 0)
        printf(" %.2f |\n", gain);
    else
        printf(" |\n"); /* LRU never hits */
    fflush(stdout);
    return gain;
}

static void conversation(const char *path)
{
    cs_trace_t *trace;
    vc_err_t err = {0};
    double least = 0;
    if (cs_trace_load(path, &trace, &err) != VC_OK)
        bench_fail("%s", err.msg);
    printf("%s: %u requests, %zu blocks asked for, %u different\n", path, trace->n_requests, cs_trace_asked(trace),
           trace->n_blocks);
    print_head("hit rate, %; capacity in blocks");
    for (size_t i = 0; i < VC_ARRAY_LEN(capacities); i++) {
        double gain = row(trace, "", capacities[i]);
        if (i == 0 || gain < least)
            least = gain;
        if (capacities[i] == 1000)
            bench_figure("hit_vs_lru_1000", gain);
        if (capacities[i] == 5000)
            bench_figure("hit_vs_lru_5000", gain);
    }
    bench_figure("hit_vs_lru_min", least);
    cs_trace_destroy(trace);
}

static void made_up(void)
{
    static const uint32_t some[] = {500, 1000, 2000};
    print_head("made-up loads");
    for (int load = 0; load < CS_LOAD_N; load++) {
        cs_trace_t *trace;
        char name[40];
        if (cs_load_make((cs_load_t)load, 1, bench_quick() ? 2000 : 20000, &trace) != VC_OK)
            bench_fail("no memory for the load %s", cs_load_name((cs_load_t)load));
        snprintf(name, sizeof(name), "%s ", cs_load_name((cs_load_t)load));
        for (size_t i = 0; i < VC_ARRAY_LEN(some); i++)
            row(trace, name, some[i]);
        cs_trace_destroy(trace);
    }
}

int main(int argc, char **argv)
{
    bench_init("policy", argc, argv);
    conversation(bench_option("trace", BENCH_TRACE));
    made_up();
    return 0;
}
