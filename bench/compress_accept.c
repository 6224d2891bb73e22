/*
 * What a compressed body costs in acceptance.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress_parts.h"
#include "node.h"
#include "role/local_body.h"
#include "role/prompt.h"
#include "vc/log.h"
#include "vc/mem.h"

enum { MAX_SPECS = 24, MAX_TEXTS = 8, N_X = 3 };
static const uint32_t lengths[N_X] = {8, 16, 30};

typedef struct {
    char text[VC_SPEC_TEXT_MAX];
    uint64_t n, same, runs;
    uint64_t accepted[N_X];
    uint64_t bytes, numbers; /* of the bodies in memory */
} spec_t;

static node_t *node;

static void open_node(void)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_option("model", getenv("VERICACHE_MODEL"));
    if (!o.model_path || !o.model_path[0])
        bench_fail("no model: give --model FILE or set VERICACHE_MODEL");
    o.calib_dir = bench_option("calibration", "");
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    OK(node_open(&o, &node, &compress_err));
}

/* tokens[0..n) of a file from an offset on; false when it is too short. */
static bool read_tokens(const char *path, uint32_t n, uint32_t *tokens)
{
    char *data;
    size_t bytes;
    uint32_t *ids, n_ids;
    OK(node_prompt_read_file(path, (size_t)4 << 20, &data, &bytes, &compress_err));
    OK(node_tokenizer_encode(node->tok, data, bytes, false, &ids, &n_ids, &compress_err));
    bool enough = n_ids >= n;
    if (enough)
        memcpy(tokens, ids, n * sizeof *tokens);
    vc_free(ids);
    vc_free(data);
    return enough;
}

/* The most likely next token at each forced position. Takes kv over. */
static void choices(node_kv_t *kv, const uint32_t *forced, uint32_t n, uint32_t *out)
{
    enum { ROWS = 64 };
    const uint32_t n_vocab = node_engine_info(node->engine)->n_vocab;
    float *logits = vc_alloc_aligned(64, (size_t)ROWS * n_vocab * sizeof *logits);
    if (!logits)
        bench_fail("no memory for logits");
    for (uint32_t done = 0; done < n; done += ROWS) {
        node_row_t rows[ROWS];
        uint32_t m = VC_MIN(n - done, (uint32_t)ROWS);
        for (uint32_t i = 0; i < m; i++)
            rows[i] = (node_row_t){kv, forced[done + i], true};
        OK(node_forward(node->engine, rows, m, logits, NULL, &compress_err));
        for (uint32_t i = 0; i < m; i++) {
            const float *l = logits + (size_t)i * n_vocab;
            uint32_t best = 0;
            for (uint32_t v = 1; v < n_vocab; v++)
                best = l[v] > l[best] ? v : best;
            out[done + i] = best;
        }
    }
    vc_free(logits);
    node_kv_fini(kv);
}

static void tally(spec_t *s, const uint32_t *want, const uint32_t *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->same += want[i] == got[i];
    s->n += n;
    for (uint32_t i = 0; i + lengths[N_X - 1] <= n; i++, s->runs++) {
        uint32_t run = 0;
        while (run < lengths[N_X - 1] && want[i + run] == got[i + run])
            run++;
        for (int x = 0; x < N_X; x++)
            s->accepted[x] += VC_MIN(run, lengths[x]);
    }
}

static void measure_text(const char *path, uint32_t prefix, uint32_t n_forced, spec_t *specs, uint32_t n_specs)
{
    uint32_t *tokens = vc_calloc((size_t)prefix + 3 * (size_t)n_forced, sizeof *tokens);
    if (!tokens)
        bench_fail("no memory for tokens");
    if (!read_tokens(path, prefix + n_forced, tokens)) {
        bench_note("%s has fewer than %u tokens: left out", path, prefix + n_forced);
        vc_free(tokens);
        return;
    }
    uint32_t *want = tokens + prefix + n_forced, *got = want + n_forced;
    node_kv_dims_t dims;
    node_kv_t full, kv;
    node_engine_kv_dims(node->engine, &dims);
    OK(node_kv_init(&full, &dims, NULL));
    OK(node_prefill(node->engine, &full, tokens, prefix, NULL, NULL, &compress_err));
    OK(node_kv_init(&kv, &dims, NULL));
    for (uint32_t b = 0; b < prefix / NODE_TILE; b++)
        OK(node_kv_append_page(&kv, node_page_get(node_kv_page_at(&full, b))));
    choices(&kv, tokens + prefix, n_forced, want);
    for (uint32_t i = 0; i < n_specs; i++) {
        node_spec_t spec;
        node_body_t *body;
        OK(node_spec_parse(specs[i].text, &spec, &compress_err));
        OK(node_bind_spec(node, &spec, &compress_err));
        const node_replay_t replay = node_replay(node);
        OK(node_local_body_replay(&replay, &spec, &full, tokens, prefix / NODE_TILE, &body, &compress_err));
        specs[i].bytes += body->bytes;
        specs[i].numbers += (uint64_t)prefix * dims.n_layer * dims.n_kv_head * dims.head_dim * 2;
        OK(node_kv_init(&kv, &dims, body));
        node_body_put(body);
        choices(&kv, tokens + prefix, n_forced, got);
        tally(&specs[i], want, got, n_forced);
    }
    node_kv_fini(&full);
    vc_free(tokens);
}

static uint32_t split(const char *list, char (*out)[VC_SPEC_TEXT_MAX], uint32_t max)
{
    uint32_t n = 0;
    for (; *list && n < max; list += *list == ';') {
        size_t length = strcspn(list, ";");
        if (length >= VC_SPEC_TEXT_MAX)
            bench_fail("an entry of a list has at most %d bytes", VC_SPEC_TEXT_MAX - 1);
        if (length)
            snprintf(out[n++], VC_SPEC_TEXT_MAX, "%.*s", (int)length, list);
        list += length;
    }
    return n;
}

void compress_acceptance(void)
{
    open_node();
    static char texts[MAX_TEXTS][VC_SPEC_TEXT_MAX], names[MAX_SPECS][VC_SPEC_TEXT_MAX];
    static spec_t specs[MAX_SPECS];
    uint32_t n_texts =
        split(bench_option("texts", "/usr/share/common-licenses/GPL-3;tests/vectors/text/mixed.txt"), texts, MAX_TEXTS);
    uint32_t n_specs =
        split(bench_option("compressors", "rot:bits=4;kivi:bits=4;rot:bits=3;rot:bits=2;rot:bits=8"), names, MAX_SPECS);
    uint32_t prefix = (uint32_t)atoi(bench_option("prefix", bench_quick() ? "256" : "2048")) / NODE_TILE * NODE_TILE;
    uint32_t forced = (uint32_t)atoi(bench_option("forced", bench_quick() ? "64" : "256"));
    for (uint32_t i = 0; i < n_specs; i++)
        memcpy(specs[i].text, names[i], sizeof specs[i].text);
    for (uint32_t t = 0; t < n_texts; t++)
        measure_text(texts[t], prefix, forced, specs, n_specs);
    printf("%-36s %8s %8s %24s %8s\n", "compressor", "bits", "same", "accepted at 8/16/30", "memory");
    for (uint32_t i = 0; i < n_specs && specs[i].n; i++) {
        const spec_t *s = &specs[i];
        node_spec_t spec;
        OK(node_spec_parse(s->text, &spec, &compress_err));
        OK(node_bind_spec(node, &spec, &compress_err));
        double runs = (double)VC_MAX(s->runs, 1u);
        printf("%-36s %8.2f %8.4f %8.2f%8.2f%8.2f %8.3f\n", s->text,
               node_spec_bits_per_element(&spec, node_engine_info(node->engine)), (double)s->same / (double)s->n,
               (double)s->accepted[0] / runs, (double)s->accepted[1] / runs, (double)s->accepted[2] / runs,
               (double)s->bytes / (2.0 * (double)s->numbers));
    }
    node_close(node);
}
