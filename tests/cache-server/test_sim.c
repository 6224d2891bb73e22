/* Proves the traces (both formats, hostile text), the simulator against a plain one, and the policy on loads that it
 * was not made for: better than LRU on scans and loops, never much worse anywhere. */
#include "sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/mem.h"

/* ---- traces ---- */

static cs_trace_t *parse(const char *text)
{
    cs_trace_t *t = NULL;
    vc_err_t err = {0};
    cr_assert_eq(cs_trace_parse(text, strlen(text), &t, &err), VC_OK, "%s", err.msg);
    return t;
}

static void expect_same(const cs_trace_t *a, const cs_trace_t *b)
{
    cr_assert_eq(a->n_requests, b->n_requests);
    cr_assert_eq(a->n_blocks, b->n_blocks);
    cr_assert_eq(cs_trace_asked(a), cs_trace_asked(b));
    cr_assert_arr_eq(a->blocks, b->blocks, cs_trace_asked(a) * sizeof(*a->blocks));
    cr_assert_arr_eq(a->times_s, b->times_s, a->n_requests * sizeof(*a->times_s));
    cr_assert_arr_eq(a->starts, b->starts, (a->n_requests + 1) * sizeof(*a->starts));
}

Test(trace, both_formats_say_the_same)
{
    cs_trace_t *json = parse("{\"timestamp\": 5000, \"input_length\": 9, \"hash_ids\": [77, 5, 6]}\n"
                             "{\"hash_ids\": [77, 5, -9, 1000], \"timestamp\": 7500.5}\n\n"
                             "{\"timestamp\": 6000, \"hash_ids\": [8]}");
    cs_trace_t *compact = parse("vericache-trace 1\n0 +3\n2500 0-1 +2\n0 +1\n");
    expect_same(json, compact);
    cr_assert_eq(json->times_s[1], 2);
    cr_assert_eq(json->times_s[2], 2); /* never falls */
    cr_assert_eq(json->parents[3], 1);
    cr_assert_eq(json->depths[4], 3);
    cr_assert_eq(json->parents[5], CS_TRACE_NONE);
    cs_trace_destroy(json);
    cs_trace_destroy(compact);
}

Test(trace, hostile_text_gives_one_sentence_with_its_line)
{
    static const char *const wrong[][2] = {
        {"", "no request"},
        {"hello", "neither JSON"},
        {"vericache-trace 2\n0 +1", "neither JSON"},
        {"vericache-trace 1\n", "no request"},
        {"vericache-trace 1\n0", "1 to 65535 blocks"},
        {"vericache-trace 1\nx +1", "line 2: no time"},
        {"vericache-trace 1\n99999999999999999999 +1", "no time"},
        {"vericache-trace 1\n0 +0", "\"+\" needs"},
        {"vericache-trace 1\n0 +99999999", "\"+\" needs"},
        {"vericache-trace 1\n0 +65535 +1", "more than 65535"},
        {"vericache-trace 1\n0 +1\n0 1", "line 3: block 1 has not been seen"},
        {"vericache-trace 1\n0 +1\n0 0-4294967294", "has not been seen"},
        {"vericache-trace 1\n0 +3\n0 2-1", "no right end"},
        {"vericache-trace 1\n0 +3\n0 1", "another block before it"},
        {"vericache-trace 1\n0 +3\n0 0 0", "another block before it"},
        {"vericache-trace 1\n0 +1 ", "was expected"},
        {"vericache-trace 1\n0  +1", "neither"},
        {"{", "no JSON"},
        {"{}", "timestamp"},
        {"{\"timestamp\": -1, \"hash_ids\": [1]}", "timestamp"},
        {"{\"timestamp\": 1e300, \"hash_ids\": [1]}", "timestamp"},
        {"{\"timestamp\": 1}", "hash_ids"},
        {"{\"timestamp\": 1, \"hash_ids\": {}}", "hash_ids"},
        {"{\"timestamp\": 1, \"hash_ids\": []}", "1 to 65535 blocks"},
        {"{\"timestamp\": 1, \"hash_ids\": [\"1\"]}", "no integer"},
        {"{\"timestamp\": 1, \"hash_ids\": [1, 1]}", "another block before it"},
        {"{\"timestamp\": 1, \"hash_ids\": [1, 2]}\n{\"timestamp\": 1, \"hash_ids\": [2]}",
         "line 2: the block at position 0"},
        {"{\"timestamp\": 1, \"hash_ids\": [99999999999999999999]}", "no JSON"},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(wrong); i++) {
        cs_trace_t *t = NULL;
        vc_err_t err = {0};
        cr_assert_eq(cs_trace_parse(wrong[i][0], strlen(wrong[i][0]), &t, &err), VC_ERR_INVALID, "%s", wrong[i][0]);
        cr_assert_null(t);
        cr_assert_not_null(strstr(err.msg, wrong[i][1]), "\"%s\" says \"%s\"", wrong[i][0], err.msg);
        cr_assert_eq(cs_trace_parse(wrong[i][0], strlen(wrong[i][0]), &t, NULL), VC_ERR_INVALID);
    }
}

Test(trace, a_file_that_cannot_be_read_is_named)
{
    cs_trace_t *t = NULL;
    vc_err_t err = {0};
    cr_assert_eq(cs_trace_load("/nowhere/trace", &t, &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "/nowhere/trace"));
    cr_assert_neq(cs_trace_load("/", &t, &err), VC_OK);
}

/* ---- the simulator ---- */

/* LRU with nothing clever about it. */
static uint64_t plain_lru_hits(const cs_trace_t *t, uint32_t capacity)
{
    uint64_t hits = 0, *used = vc_calloc(t->n_blocks, sizeof(*used)); /* 0: not inside */
    uint32_t inside = 0;
    for (uint32_t r = 0; r < t->n_requests; r++) {
        size_t i = t->starts[r], end = t->starts[r + 1];
        while (i < end && used[t->blocks[i]])
            i++;
        hits += i - t->starts[r];
        end = VC_MIN(end, t->starts[r] + capacity);
        for (i = t->starts[r]; i < end; i++) {
            inside += used[t->blocks[i]] == 0;
            used[t->blocks[i]] = ((uint64_t)r + 1) << 16 | (65535 - (i - t->starts[r]));
        }
        for (; inside > capacity; inside--) {
            uint32_t oldest = CS_TRACE_NONE;
            for (uint32_t b = 0; b < t->n_blocks; b++)
                if (used[b] && (oldest == CS_TRACE_NONE || used[b] < used[oldest]))
                    oldest = b;
            used[oldest] = 0;
        }
    }
    vc_free(used);
    return hits;
}

static double hit_rate(const cs_trace_t *t, cs_sim_policy_t policy, uint32_t capacity)
{
    cs_sim_result_t r = {0};
    cr_assert_eq(cs_sim_run(t, policy, capacity, &r), VC_OK);
    cr_assert_eq(r.requests, t->n_requests);
    cr_assert_eq(r.asked, cs_trace_asked(t));
    cr_assert_leq(r.stored - r.evicted, capacity);
    return cs_sim_hit_rate(&r);
}

static cs_trace_t *load(cs_load_t kind, uint64_t seed, uint32_t n)
{
    cs_trace_t *t = NULL;
    cr_assert_eq(cs_load_make(kind, seed, n, &t), VC_OK);
    return t;
}

Test(sim, lru_is_lru)
{
    for (int kind = 0; kind < CS_LOAD_N; kind++) {
        cs_trace_t *t = load((cs_load_t)kind, 7, 300);
        for (uint32_t capacity = 3; capacity < 800; capacity *= 5) {
            cs_sim_result_t r = {0};
            cr_assert_eq(cs_sim_run(t, CS_SIM_LRU, capacity, &r), VC_OK);
            cr_assert_eq(r.hits, plain_lru_hits(t, capacity), "%s at %u", cs_load_name((cs_load_t)kind), capacity);
        }
        cs_trace_destroy(t);
    }
}

Test(sim, nobody_beats_the_oracle_and_all_agree_when_everything_fits)
{
    for (int kind = 0; kind < CS_LOAD_N; kind++) {
        cs_trace_t *t = load((cs_load_t)kind, 3, 1500);
        double all = hit_rate(t, CS_SIM_ORACLE, t->n_blocks);
        for (int policy = 0; policy < CS_SIM_N; policy++) {
            cr_assert_float_eq(hit_rate(t, (cs_sim_policy_t)policy, t->n_blocks), all, 1e-12);
            cr_assert_leq(hit_rate(t, (cs_sim_policy_t)policy, 400), hit_rate(t, CS_SIM_ORACLE, 400), "%s on %s",
                          cs_sim_name((cs_sim_policy_t)policy), cs_load_name((cs_load_t)kind));
            cr_assert_geq(hit_rate(t, (cs_sim_policy_t)policy, 1), 0); /* longer chains than room */
        }
        cs_trace_destroy(t);
    }
}

Test(sim, equal_runs_have_equal_results)
{
    cs_trace_t *a = load(CS_LOAD_MIXTURE, 5, 2000), *b = load(CS_LOAD_MIXTURE, 5, 2000);
    expect_same(a, b);
    for (int policy = 0; policy < CS_SIM_N; policy++)
        cr_assert_eq(hit_rate(a, (cs_sim_policy_t)policy, 300), hit_rate(b, (cs_sim_policy_t)policy, 300));
    cs_trace_destroy(a);
    cs_trace_destroy(b);
}

/* ---- the policy on made-up loads ---- */

/* At least gain times the hit rate of LRU, and at least that of S3-FIFO less slack (in hit rate). */
static void expect_gain(cs_load_t kind, uint32_t capacity, double gain, double s3fifo_slack)
{
    for (uint64_t seed = 11; seed < 13; seed++) {
        cs_trace_t *t = load(kind, seed, 8000);
        double lru = hit_rate(t, CS_SIM_LRU, capacity), ours = hit_rate(t, CS_SIM_OURS, capacity);
        double s3fifo = hit_rate(t, CS_SIM_S3FIFO, capacity);
        cr_assert_geq(ours, gain * lru, "%s at %u: %f, LRU %f", cs_load_name(kind), capacity, ours, lru);
        cr_assert_geq(ours, s3fifo - s3fifo_slack, "%s at %u: %f, S3-FIFO %f", cs_load_name(kind), capacity, ours,
                      s3fifo);
        cs_trace_destroy(t);
    }
}

Test(policy_loads, documents_by_rank)
{
    expect_gain(CS_LOAD_ZIPF, 500, 1.2, 0.01);
    expect_gain(CS_LOAD_ZIPF, 2000, 1.1, 0.01);
}

Test(policy_loads, scans_do_not_drive_out_what_is_used)
{
    expect_gain(CS_LOAD_SCAN, 500, 1.8, 0.01);
    expect_gain(CS_LOAD_SCAN, 2000, 1.3, 0.01);
}

Test(policy_loads, a_loop_larger_than_the_cache_still_hits)
{
    static const uint32_t capacities[] = {500, 1000, 2000};
    for (size_t i = 0; i < VC_ARRAY_LEN(capacities); i++) {
        cs_trace_t *t = load(CS_LOAD_LOOP, 1, 8000);
        double ours = hit_rate(t, CS_SIM_OURS, capacities[i]), oracle = hit_rate(t, CS_SIM_ORACLE, capacities[i]);
        cr_assert_float_eq(hit_rate(t, CS_SIM_LRU, capacities[i]), 0, 0);
        cr_assert_geq(ours, oracle / 2, "%u: %f, oracle %f", capacities[i], ours, oracle);
        cs_trace_destroy(t);
    }
}

Test(policy_loads, conversations_and_changing_ranks)
{
    expect_gain(CS_LOAD_SESSIONS, 500, 0.97, 0.02);
    expect_gain(CS_LOAD_SESSIONS, 2000, 0.97, 0.02);
    expect_gain(CS_LOAD_SHIFT, 500, 1.0, 0.02);
    expect_gain(CS_LOAD_SHIFT, 2000, 0.97, 0.02);
    expect_gain(CS_LOAD_MIXTURE, 500, 1.3, 0.02);
    expect_gain(CS_LOAD_MIXTURE, 2000, 1.1, 0.02);
}

/* ---- and on a real one ---- */

Test(policy_loads, the_conversation_trace_keeps_its_gain_over_lru)
{
    cs_trace_t *t = NULL;
    vc_err_t err = {0};
    cr_assert_eq(cs_trace_load(VC_TEST_VECTORS "/traces/conversation.trace", &t, &err), VC_OK, "%s", err.msg);
    cr_assert_eq(t->n_requests, 12031);
    static const struct {
        uint32_t capacity;
        double lru, gain; /* LRU as published with the trace, in percent */
    } floors[] = {{500, 4.2, 1.0}, {1000, 4.5, 1.3}, {5000, 11.2, 1.3}, {10000, 21.2, 1.0}, {50000, 35.5, 1.0}};
    for (size_t i = 0; i < VC_ARRAY_LEN(floors); i++) {
        double lru = hit_rate(t, CS_SIM_LRU, floors[i].capacity), ours = hit_rate(t, CS_SIM_OURS, floors[i].capacity);
        cr_assert_float_eq(100 * lru, floors[i].lru, 0.06);
        cr_assert_geq(ours, floors[i].gain * lru, "%u: %f, LRU %f", floors[i].capacity, ours, lru);
    }
    cs_trace_destroy(t);
}
