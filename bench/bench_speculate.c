/*
 * What does draft and verify gain over plain decoding of the same request on the same engine, where does it pay, and
 * does it ever lose?
 *
 * Four texts of different kinds (bench/texts) behind prompts of 2k, 4k and 8k tokens, and a mixed load. Everything is
 * interleaved and told as medians over repetitions. A repetition decodes the same tokens from the same KV (the prompt's
 * pages are shared, not computed again) and is compared token by token with plain decoding; prefill, compression,
 * loading and the measuring of step costs are outside the clock. Run from the top of the repository.
 *   --part 2k|4k|8k|batch-2k|batch-4k|batch-8k|mixed (all), --texts LIST, --compressors LIST separated by ';', --fixed
 * yes (more fixed lengths)
 *   --isa NAME, --threads N, --reps N, --tokens N to decode, --model FILE
 *   --temperature T: sampled answers, which do not loop as greedy ones do; names of rows and figures say so
 *   --common N: drafts choose among the first N tokens of the vocabulary and the text's (0: all)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isa_option.h"
#include "speculate_parts.h"
#include "vc/log.h"
#include "vc/mem.h"

#define COMPRESSORS "rot:bits=4;snapkv:keep=0.25;snapkv:keep=0.25+rot:bits=4;kvzip:keep=0.25+rot:bits=4"
#define QUICK_COMPRESSORS "rot:bits=4;snapkv:keep=0.25"

vc_err_t speculate_err;

static void open_node(spec_bench_t *b)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_model();
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    o.engine.isa = bench_isa();
    OK(node_open(&o, &b->node, &speculate_err));
    double t0 = bench_now_s();
    const node_costs_t *c = node_step_costs(b->node);
    bench_note("isa %s, step costs measured in %.2f s: 1, 2, 4, 8, 16, 32 rows take %.1f, %.1f, %.1f, %.1f, %.1f, "
               "%.1f ms and %.2f, %.2f, %.2f, %.2f, %.2f, %.2f ms a thousand tokens",
               node_isa_name(node_engine_isa(b->node->engine)), bench_now_s() - t0, c->weights_us[0] / 1e3,
               c->weights_us[1] / 1e3, c->weights_us[2] / 1e3, c->weights_us[3] / 1e3, c->weights_us[4] / 1e3,
               c->weights_us[5] / 1e3, c->token_us[0], c->token_us[1], c->token_us[2], c->token_us[3], c->token_us[4],
               c->token_us[5]);
}

static void read_compressors(spec_bench_t *b)
{
    const char *at = bench_option("compressors", bench_quick() ? QUICK_COMPRESSORS : COMPRESSORS);
    for (size_t n; (n = strcspn(at, ";")) > 0; at += n + (at[n] != '\0')) {
        if (b->n_specs == SPEC_COMPRESSORS)
            bench_fail("--compressors takes %u at most", (unsigned)SPEC_COMPRESSORS);
        if (n >= sizeof b->specs[0])
            bench_fail("--compressors: '%.*s' is too long", (int)n, at);
        snprintf(b->specs[b->n_specs++], sizeof b->specs[0], "%.*s", (int)n, at);
    }
    if (b->n_specs == 0 || *at != '\0')
        bench_fail("--compressors is a list of specs separated by ';', none of them empty");
}

static void read_options(spec_bench_t *b)
{
    static const char *const kinds[SPEC_TEXTS] = {"prose", "chat", "code", "retrieval"};
    const char *texts = bench_option("texts", bench_quick() ? "prose" : "prose,chat,code,retrieval");
    for (uint32_t i = 0; i < SPEC_TEXTS; i++)
        if (strstr(texts, kinds[i]) != NULL)
            b->kinds[b->n_kinds++] = kinds[i];
    if (b->n_kinds == 0)
        bench_fail("--texts %s: none of prose, chat, code, retrieval", texts);
    read_compressors(b);
    b->reps = (uint32_t)atoi(bench_option("reps", bench_quick() ? "1" : "3"));
    b->n_new = (uint32_t)atoi(bench_option("tokens", bench_quick() ? "12" : "96"));
    if (b->reps == 0 || b->n_new < 2 || b->n_new > 400)
        bench_fail("--reps takes at least 1, --tokens 2 to 400");
    b->n_common = (uint32_t)atoi(bench_option("common", "4096"));
    node_sampling_default(&b->sampling);
    OK(node_sampling_set(&b->sampling, "temperature", bench_option("temperature", "0"), &speculate_err));
    OK(node_sampling_check(&b->sampling, &speculate_err));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *label;
        uint32_t tokens, quick_tokens;
    } lengths[] = {{"8k", 7712, 328}, {"4k", 4128, 264}, {"2k", 2080, 200}};
    spec_bench_t b = {0};
    bench_init("speculate", argc, argv);
    bench_options(
        "part texts text-dir compressors batch-compressor fixed isa threads reps tokens temperature model common");
    vc_log_set_level(VC_LOG_WARN);
    const char *part = bench_option("part", "all");
    bool all = strcmp(part, "all") == 0, any = false;
    read_options(&b);
    open_node(&b);
    for (int batch = 0; batch < 2; batch++)
        for (uint32_t i = 0; i < VC_ARRAY_LEN(lengths); i++) {
            char name[40], label[40];
            snprintf(name, sizeof name, "%s%s", batch ? "batch-" : "", lengths[i].label);
            snprintf(label, sizeof label, "%s%s", lengths[i].label, b.sampling.temperature > 0 ? "-sampled" : "");
            if (!all && strcmp(part, name) != 0)
                continue;
            any = true;
            (batch ? spec_batch : spec_table)(&b, bench_quick() ? lengths[i].quick_tokens : lengths[i].tokens, label);
        }
    if (all || strcmp(part, "mixed") == 0) {
        any = true;
        spec_mixed(&b);
    }
    node_close(b.node);
    if (!any)
        bench_fail("--part %s: not one of 2k, 4k, 8k, batch-2k, batch-4k, batch-8k, mixed", part);
    return 0;
}
