/*
 * What a compressed body costs in acceptance.
 *
 * The true text behind a prefix is forced, and at every position the next token that the drafter would choose is
 * compared with the choice of full KV. Texts are real, so no position lies in a loop of greedy decoding. The text is
 * taken in rounds of COMPRESS_LONGEST drafts; a round starts on the verifier's rows, as drafting does.
 */
#include <string.h>

#include "compress_parts.h"
#include "vc/mem.h"

void compress_tally_add(compress_tally_t *sum, const compress_tally_t *t)
{
    sum->n += t->n;
    sum->same += t->same;
    sum->rounds += t->rounds;
    for (int x = 0; x < COMPRESS_LENGTHS; x++)
        sum->accepted[x] += t->accepted[x];
    sum->tokens += t->tokens;
    sum->wire_bytes += t->wire_bytes;
    sum->memory_bytes += t->memory_bytes;
}

typedef struct {
    compress_run_t *run;
    uint32_t n_prefix, n_forced;
    const uint32_t *forced;
    float *logits;   /* [COMPRESS_LONGEST][n_vocab] */
    node_kv_t truth; /* full KV of prefix and forced text */
} case_t;

/* The most likely next tokens behind n rows, n <= COMPRESS_LONGEST. */
static void choose(const case_t *c, node_kv_t *kv, const uint32_t *tokens, uint32_t n, uint32_t *out)
{
    const uint32_t n_vocab = node_engine_info(c->run->node->engine)->n_vocab;
    node_row_t rows[COMPRESS_LONGEST];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (node_row_t){kv, tokens[i], true};
    OK(node_forward(c->run->node->engine, rows, n, c->logits, NULL, &compress_err));
    for (uint32_t i = 0; i < n; i++) {
        const float *l = c->logits + (size_t)i * n_vocab;
        uint32_t best = 0;
        for (uint32_t v = 1; v < n_vocab; v++)
            best = l[v] > l[best] ? v : best;
        out[i] = best;
    }
}

/* A drafter's session at a position of the forced text: the body, then the verifier's rows. */
static void start_round(const case_t *c, node_body_t *body, uint32_t done, node_kv_t *kv)
{
    uint32_t end = c->n_prefix + done;
    OK(node_kv_init(kv, &c->truth.dims, body));
    for (uint32_t b = c->n_prefix / NODE_TILE; b * NODE_TILE < end; b++)
        OK(node_kv_append_page(kv, node_page_get(node_kv_page_at(&c->truth, b))));
    OK(node_kv_truncate(kv, end));
}

static void choose_all(const case_t *c, node_body_t *body, uint32_t *out)
{
    for (uint32_t done = 0; done < c->n_forced; done += COMPRESS_LONGEST) {
        node_kv_t kv;
        start_round(c, body, done, &kv);
        choose(c, &kv, c->forced + done, VC_MIN(c->n_forced - done, (uint32_t)COMPRESS_LONGEST), out + done);
        node_kv_fini(&kv);
    }
}

/* A round may start anywhere: runs of equal choices are counted from every position that has a longest round behind
 * it. */
static void count(compress_tally_t *t, const uint32_t *want, const uint32_t *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        t->same += want[i] == got[i];
    t->n += n;
    for (uint32_t i = 0; i + COMPRESS_LONGEST <= n; i++, t->rounds++) {
        uint32_t run = 0;
        while (run < COMPRESS_LONGEST && want[i + run] == got[i + run])
            run++;
        for (int x = 0; x < COMPRESS_LENGTHS; x++)
            t->accepted[x] += VC_MIN(run, compress_lengths[x]);
    }
}

/* Full KV of the prefix, seen by every method that watches, then the forced text on top of it. */
static node_watches_t *make_truth(case_t *c, const uint32_t *prefix, uint32_t *want)
{
    static node_spec_t specs[COMPRESS_SPECS]; /* the watches borrow them */
    static const uint32_t zero[COMPRESS_SPECS];
    compress_run_t *run = c->run;
    node_kv_dims_t dims;
    node_watches_t *watches;
    for (uint32_t i = 0; i < run->n_specs; i++)
        specs[i] = run->specs[i].spec;
    node_engine_kv_dims(run->node->engine, &dims);
    OK(node_kv_init(&c->truth, &dims, NULL));
    OK(node_watches_begin(specs, run->n_specs, node_engine_info(run->node->engine), zero, c->n_prefix / NODE_TILE,
                          &watches, &compress_err));
    OK(node_prefill(run->node->engine, &c->truth, prefix, c->n_prefix, NULL, node_watches_capture(watches),
                    &compress_err));
    for (uint32_t done = 0; done < c->n_forced; done += COMPRESS_LONGEST)
        choose(c, &c->truth, c->forced + done, VC_MIN(c->n_forced - done, (uint32_t)COMPRESS_LONGEST), want + done);
    return watches;
}

static void measure(compress_run_t *run, uint32_t t, uint32_t p)
{
    const compress_text_t *text = &run->texts[t];
    const node_model_info_t *info = node_engine_info(run->node->engine);
    case_t c = {.run = run, .n_prefix = text->n_prefix[p], .n_forced = run->n_forced, .forced = text->forced[p]};
    uint32_t *want = vc_calloc(2 * (size_t)c.n_forced, sizeof *want), *got = want + c.n_forced;
    c.logits = vc_alloc_aligned(64, (size_t)COMPRESS_LONGEST * info->n_vocab * sizeof *c.logits);
    if (!want || !c.logits)
        bench_fail("no memory for logits");
    node_watches_t *watches = make_truth(&c, text->prefix, want);
    node_kv_t full; /* the prefix alone */
    OK(node_kv_init(&full, &c.truth.dims, NULL));
    for (uint32_t b = 0; b < c.n_prefix / NODE_TILE; b++)
        OK(node_kv_append_page(&full, node_page_get(node_kv_page_at(&c.truth, b))));
    for (uint32_t i = 0; i < run->n_specs; i++) {
        compress_spec_t *s = &run->specs[i];
        compress_made_t made;
        compress_make(run, s, &full, text->prefix, c.n_prefix / NODE_TILE, node_watches_state(watches, i), &made);
        compress_tally_t tally = {
            .tokens = c.n_prefix, .wire_bytes = made.wire_bytes, .memory_bytes = made.memory_bytes};
        choose_all(&c, made.body, got);
        node_body_put(made.body);
        count(&tally, want, got, c.n_forced);
        s->at[t][p] = tally;
        compress_tally_add(&s->sum[p], &tally);
        compress_tally_add(&s->all, &tally);
    }
    node_watches_free(watches);
    compress_forget_replays();
    node_kv_fini(&full);
    node_kv_fini(&c.truth);
    vc_free(c.logits);
    vc_free(want);
}

void compress_acceptance(compress_run_t *run)
{
    for (uint32_t t = 0; t < run->n_texts; t++)
        for (uint32_t p = 0; p < run->n_prefixes; p++) {
            double t0 = bench_now_s();
            measure(run, t, p);
            bench_note("%s, %u tokens: %.0f s", run->texts[t].name, run->texts[t].n_prefix[p], bench_now_s() - t0);
        }
}
