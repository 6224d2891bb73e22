/*
 * Full KV on disk: what a request pays for it, and what draft and verify gains there. This file reads the options and
 * prepares a prompt, its full KV and its compressed copy; schedule_*.c measure, each what its first comment says.
 *   --model FILE (else VERICACHE_MODEL), --texts LIST separated by ';', --threads N, --reps N, --compressor SPEC,
 *   --kv-ram-percent N of the full KV (default 20), --dir DIR for the files (default $TMPDIR or /tmp)
 *   --part single|batch to run one part only (default all); those of the batch: schedule_batch.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "role/local_body.h"
#include "role/prompt.h"
#include "schedule_parts.h"
#include "vc/mem.h"

#define TEXTS "bench/texts/prose.txt;bench/texts/chat.txt;bench/texts/code.txt;bench/texts/retrieval.txt"

static vc_err_t err;
#define OK(call) BENCH_OK(call, err)

static schedule_load_t load;

static void open_node(void)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_model();
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    OK(node_open(&o, &load.node, &err));
}

/* Tokens of the files one after the other, round again where they are too few. */
static void read_prompt(void)
{
    char list[1024];
    uint32_t have = 0, rounds = 0;
    load.prompt = vc_calloc(load.n_prompt, sizeof *load.prompt);
    if (!load.prompt)
        bench_fail("no memory for the prompt");
    for (; have < load.n_prompt; rounds++) {
        uint32_t before = have;
        snprintf(list, sizeof list, "%s", bench_option("texts", TEXTS));
        for (char *save = NULL, *path = strtok_r(list, ";", &save); path; path = strtok_r(NULL, ";", &save)) {
            char *data;
            size_t bytes;
            uint32_t *ids, n_ids;
            OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &err));
            OK(node_tokenizer_encode(load.node->tok, data, bytes, false, &ids, &n_ids, &err));
            uint32_t n = VC_MIN(n_ids, load.n_prompt - have);
            memcpy(load.prompt + have, ids, n * sizeof *ids);
            have += n;
            vc_free(ids);
            vc_free(data);
        }
        if (have == before)
            bench_fail("no tokens from %s", bench_option("texts", TEXTS));
    }
    if (rounds > 1)
        bench_note("the texts are repeated to %u tokens", load.n_prompt);
}

static void load_prompt(void)
{
    read_prompt();
    node_kv_dims_t dims;
    node_engine_kv_dims(load.node->engine, &dims);
    OK(node_kv_init(&load.full, &dims, NULL));
    double t0 = bench_now_s();
    OK(node_prefill(load.node->engine, &load.full, load.prompt, load.n_prompt / NODE_TILE * NODE_TILE, NULL, NULL,
                    &err));
    bench_note("%u tokens prefilled in %.1f s", load.full.n_tokens, bench_now_s() - t0);
}

static void compress(void)
{
    const char *text = bench_option("compressor", "rot:bits=4");
    node_spec_t spec;
    OK(node_spec_parse(text, &spec, &err));
    OK(node_bind_spec(load.node, &spec, &err));
    const node_replay_t replay = node_replay(load.node);
    OK(node_local_body_replay(&replay, &spec, &load.full, load.prompt, load.n_prompt / NODE_TILE, &load.body, &err));
    bench_note("compressed by %s to %.1f MB", text, (double)load.body->bytes / 1e6);
}

/* Whether --part names it, or nothing. */
static bool wanted(const char *part)
{
    const char *only = bench_option("part", part);
    return strcmp(only, part) == 0;
}

int main(int argc, char **argv)
{
    bench_init("schedule", argc, argv);
    bench_options("model texts threads reps compressor kv-ram-percent dir part batch draft-length temperature "
                  "hold-percent link-rate");
    load.n_prompt = bench_quick() ? 1056 : 7584;
    load.kv_percent = (uint32_t)atoi(bench_option("kv-ram-percent", bench_quick() ? "60" : "20"));
    open_node();
    load_prompt();
    compress();
    if (wanted("single"))
        schedule_single(&load);
    if (wanted("batch"))
        schedule_batch(&load);
    node_body_put(load.body);
    node_kv_fini(&load.full);
    vc_free(load.prompt);
    node_close(load.node);
    return 0;
}
