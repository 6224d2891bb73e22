/*
 * The verifier's state machine:
 *
 *   prompt rows missing --plan/judge--> ... --> first token --plan/judge--> ... --> finish
 *
 * Between rounds: kv.n_tokens == n_tokens - 1 (or less than n_prompt while the prompt is not done), sampler and text
 * hold exactly the committed tokens. A round looks at rows one after another and stops at the first that is no match or
 * ends the generation, so whatever was pushed into sampler and text on the way is committed: nothing has to be undone.
 * Owner thread: the request's.
 */
#include "speculate/verifier.h"

#include <sodium.h>
#include <string.h>

#include "speculate/text.h"
#include "vc/mem.h"

struct node_verifier {
    node_engine_t *engine;
    uint32_t n_vocab, context, max_tokens, max_draft;
    uint32_t *end_tokens;
    uint32_t n_end_tokens;
    node_sampler_t *sampler;
    node_text_t *text; /* NULL without stop strings */
    node_kv_t kv;
    uint32_t *tokens; /* [min(context, n_prompt + max_tokens)] */
    uint32_t n_tokens, n_prompt;
    node_finish_t finish;
    bool broken;                    /* a judge failed half way: no further round */
    crypto_generichash_state *hash; /* NULL: no digest wanted */
    node_verifier_stats_t stats;
    /* the planned round */
    bool planned;
    uint32_t kv_before, n_planned; /* rows in the KV before the pass; rows of the pass */
    uint32_t *drafts, n_drafts;    /* [max_draft] */
    uint32_t *chosen;              /* [max_draft + 1] */
    /* for start and step */
    node_row_t *rows; /* [max_draft + 1] */
    float *logits;    /* grown on demand */
    size_t cap_logits;
};

void node_verifier_opts_default(node_verifier_opts_t *opts)
{
    *opts = (node_verifier_opts_t){.max_tokens = 256, .max_draft = 64, .digest = true};
    node_sampling_default(&opts->sampling);
}

static vc_status_t check_opts(const node_verifier_opts_t *o, const uint32_t *prompt, uint32_t n_prompt, vc_err_t *err)
{
    const node_model_info_t *info = node_engine_info(o->engine);
    uint32_t context = o->context && o->context < info->context ? o->context : info->context;
    if (!n_prompt)
        return vc_err_set(err, VC_ERR_INVALID, "the prompt is empty");
    if (n_prompt >= context)
        return vc_err_set(err, VC_ERR_RANGE, "the prompt has %u tokens, which leaves no room in a context of %u",
                          n_prompt, context);
    for (uint32_t i = 0; i < n_prompt; i++)
        if (prompt[i] >= info->n_vocab)
            return vc_err_set(err, VC_ERR_INVALID, "prompt token %u is %u, the vocabulary has %u", i, prompt[i],
                              info->n_vocab);
    if (!o->max_tokens)
        return vc_err_set(err, VC_ERR_RANGE, "a budget of 0 tokens: nothing to generate");
    if (o->n_stops && !o->tok)
        return vc_err_set(err, VC_ERR_INVALID, "stop strings need a tokenizer");
    return VC_OK;
}

static vc_status_t alloc_state(node_verifier_t *v, const node_verifier_opts_t *o, uint32_t n_prompt, vc_err_t *err)
{
    uint32_t room = v->context - n_prompt;
    v->tokens = vc_calloc(n_prompt + VC_MIN(room, v->max_tokens), sizeof *v->tokens);
    v->drafts = vc_calloc(v->max_draft, sizeof *v->drafts);
    v->chosen = vc_calloc((size_t)v->max_draft + 1, sizeof *v->chosen);
    v->rows = vc_calloc((size_t)v->max_draft + 1, sizeof *v->rows);
    v->end_tokens = vc_calloc(o->n_end_tokens, sizeof *v->end_tokens);
    if (o->digest)
        v->hash = vc_alloc_aligned(64, vc_align_up(sizeof *v->hash, 64));
    if (!v->tokens || !v->drafts || !v->chosen || !v->rows || !v->end_tokens || (o->digest && !v->hash))
        return vc_err_set(err, VC_ERR_NOMEM, "verifier: out of memory");
    return VC_OK;
}

vc_status_t node_verifier_create(const node_verifier_opts_t *o, const uint32_t *prompt, uint32_t n_prompt,
                                 node_verifier_t **v_p, vc_err_t *err)
{
    vc_status_t st = check_opts(o, prompt, n_prompt, err);
    if (st != VC_OK)
        return st;
    const node_model_info_t *info = node_engine_info(o->engine);
    node_verifier_t *v = vc_calloc(1, sizeof *v);
    if (!v)
        return vc_err_set(err, VC_ERR_NOMEM, "verifier: out of memory");
    v->engine = o->engine;
    v->n_vocab = info->n_vocab;
    v->context = o->context && o->context < info->context ? o->context : info->context;
    v->max_tokens = o->max_tokens;
    v->max_draft = o->max_draft;
    st = alloc_state(v, o, n_prompt, err);
    if (st == VC_OK)
        st = node_sampler_create(&o->sampling, info->n_vocab, &v->sampler, err);
    if (st == VC_OK && o->n_stops)
        st = node_text_create(o->tok, o->stops, o->n_stops, &v->text, err);
    if (st == VC_OK) {
        node_kv_dims_t dims;
        node_engine_kv_dims(o->engine, &dims);
        st = node_kv_init(&v->kv, &dims, NULL);
        if (st != VC_OK)
            vc_err_set(err, st, "verifier: no memory for KV");
    }
    if (st != VC_OK) {
        node_verifier_destroy(v);
        return st;
    }
    if (v->hash)
        crypto_generichash_init(v->hash, NULL, 0, VC_DIGEST_BYTES);
    v->n_end_tokens = o->n_end_tokens;
    if (o->n_end_tokens)
        memcpy(v->end_tokens, o->end_tokens, o->n_end_tokens * sizeof *v->end_tokens);
    memcpy(v->tokens, prompt, n_prompt * sizeof *prompt);
    v->n_tokens = v->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        node_sampler_push(v->sampler, prompt[i]);
    *v_p = v;
    return VC_OK;
}

void node_verifier_destroy(node_verifier_t *v)
{
    if (!v)
        return;
    node_kv_fini(&v->kv);
    node_sampler_destroy(v->sampler);
    node_text_destroy(v->text);
    vc_free(v->hash);
    vc_free(v->end_tokens);
    vc_free(v->tokens);
    vc_free(v->drafts);
    vc_free(v->chosen);
    vc_free(v->rows);
    vc_free(v->logits);
    vc_free(v);
}

vc_status_t node_verifier_load_page(node_verifier_t *v, node_page_t *page, vc_err_t *err)
{
    uint32_t n = v->kv.n_tokens;
    if (v->planned || n % NODE_TILE || n + NODE_TILE > v->n_prompt || v->n_tokens > v->n_prompt) {
        node_page_put(page);
        return vc_err_set(err, VC_ERR_INVALID,
                          "KV of block %u cannot be loaded here: the prompt has %u tokens, %u with KV", n / NODE_TILE,
                          v->n_prompt, n);
    }
    vc_status_t st = node_kv_append_page(&v->kv, page);
    if (st != VC_OK)
        node_page_put(page);
    return st == VC_OK ? st
                       : vc_err_set(err, st, "KV of block %u cannot be loaded: %s", n / NODE_TILE, vc_status_name(st));
}

bool node_verifier_is_prefilling(const node_verifier_t *v) { return v->n_tokens == v->n_prompt; }

static vc_status_t check_open(const node_verifier_t *v, vc_err_t *err)
{
    if (v->broken)
        return vc_err_set(err, VC_ERR_STALE, "the request has failed before");
    if (v->finish != NODE_FINISH_NONE)
        return vc_err_set(err, VC_ERR_STALE, "the request has ended (%s)", node_finish_name(v->finish));
    if (v->planned)
        return vc_err_set(err, VC_ERR_INVALID, "a round is planned already");
    return VC_OK;
}

/* Where every block of the prompt was loaded, its last row is computed again: its logits are wanted. */
static vc_status_t prompt_position(node_verifier_t *v, uint32_t *first_p, vc_err_t *err)
{
    if (v->kv.n_tokens >= v->n_prompt) {
        vc_status_t st = node_kv_truncate(&v->kv, v->n_prompt - 1);
        if (st != VC_OK)
            return vc_err_set(err, st, "verifier: KV cannot be cut: %s", vc_status_name(st));
    }
    *first_p = v->kv.n_tokens;
    return VC_OK;
}

static uint32_t budget_left(const node_verifier_t *v) { return v->max_tokens - (v->n_tokens - v->n_prompt); }

uint32_t node_verifier_max_useful(const node_verifier_t *v)
{
    if (v->finish != NODE_FINISH_NONE || node_verifier_is_prefilling(v))
        return 0;
    return node_accept_useful(v->max_draft, budget_left(v), v->context - v->n_tokens);
}

vc_status_t node_verifier_plan(node_verifier_t *v, const uint32_t *drafts, uint32_t n_drafts, node_row_t *rows,
                               uint32_t cap, uint32_t *n_rows_p, uint32_t *n_logits_p, vc_err_t *err)
{
    vc_status_t st = check_open(v, err);
    if (st != VC_OK)
        return st;
    bool prompt = node_verifier_is_prefilling(v);
    if (!cap || (prompt && n_drafts))
        return vc_err_set(err, VC_ERR_INVALID, cap ? "drafts before the first token" : "a pass of 0 rows");
    uint32_t first = v->n_tokens - 1, n_rows = 1, n_useful = 0;
    if (prompt) {
        if ((st = prompt_position(v, &first, err)) != VC_OK)
            return st;
        n_rows = VC_MIN(cap, v->n_prompt - first);
    } else {
        n_useful = VC_MIN(VC_MIN(n_drafts, node_verifier_max_useful(v)), cap - 1);
        n_rows += n_useful;
    }
    for (uint32_t i = 0; i < n_useful; i++)
        if (drafts[i] >= v->n_vocab)
            return vc_err_set(err, VC_ERR_INVALID, "draft token %u is %u, the vocabulary has %u", i, drafts[i],
                              v->n_vocab);
    for (uint32_t i = 0; i < n_rows; i++) {
        bool known = first + i < v->n_tokens;
        rows[i] = (node_row_t){&v->kv, known ? v->tokens[first + i] : drafts[first + i - v->n_tokens],
                               !prompt || first + i + 1 == v->n_prompt};
    }
    if (n_useful)
        memcpy(v->drafts, drafts, n_useful * sizeof *drafts);
    v->n_drafts = n_useful;
    v->planned = true;
    v->kv_before = v->kv.n_tokens;
    v->n_planned = n_rows;
    *n_rows_p = n_rows;
    *n_logits_p = !prompt ? n_rows : first + n_rows == v->n_prompt;
    return VC_OK;
}

vc_status_t node_verifier_cancel(node_verifier_t *v, vc_err_t *err)
{
    if (!v->planned)
        return VC_OK;
    v->planned = false;
    vc_status_t st = node_kv_truncate(&v->kv, v->kv_before);
    v->broken |= st != VC_OK;
    return st == VC_OK ? st : vc_err_set(err, st, "verifier: KV cannot be cut: %s", vc_status_name(st));
}

/* Picks row by row until a token is no match or ends the request; fills out. */
static vc_status_t choose(node_verifier_t *v, const float *logits, node_accept_out_t *out, vc_err_t *err)
{
    node_accept_in_t in = {.drafts = v->drafts,
                           .n_drafts = v->n_drafts,
                           .chosen = v->chosen,
                           .end_tokens = v->end_tokens,
                           .n_end_tokens = v->n_end_tokens,
                           .budget_left = budget_left(v),
                           .context_left = v->context - v->n_tokens};
    do {
        uint32_t j = in.n_chosen++;
        node_pick_t pick;
        vc_status_t st = node_sampler_pick(v->sampler, logits + (size_t)j * v->n_vocab, v->n_tokens + j, &pick, err);
        bool stopped = false;
        if (st == VC_OK && v->text)
            st = node_text_push(v->text, pick.token, &stopped, err);
        if (st != VC_OK)
            return st;
        v->chosen[j] = pick.token;
        node_sampler_push(v->sampler, pick.token);
        in.stop_after = stopped ? j + 1 : 0;
        node_accept(&in, out);
    } while (out->finish == NODE_FINISH_NONE && out->n_committed == out->n_accepted);
    return VC_OK;
}

static void count_round(node_verifier_t *v, const node_accept_out_t *out)
{
    v->stats.n_rounds++;
    v->stats.n_proposed += v->n_drafts;
    v->stats.n_accepted += out->n_accepted;
    bool refused = out->n_accepted < v->n_drafts && out->n_committed > out->n_accepted;
    v->stats.n_drafted += out->n_accepted + refused;
    v->stats.n_full += v->n_drafts && out->n_accepted == v->n_drafts;
}

vc_status_t node_verifier_judge(node_verifier_t *v, const float *logits, node_verdict_t *verdict_p, vc_err_t *err)
{
    if (!v->planned || v->kv.n_tokens != v->kv_before + v->n_planned)
        return vc_err_set(err, VC_ERR_INVALID, "a verdict without the planned pass");
    bool prompt = node_verifier_is_prefilling(v);
    v->planned = false;
    *verdict_p = (node_verdict_t){.base = v->n_tokens, .tokens = v->tokens + v->n_tokens};
    if (prompt && v->kv.n_tokens < v->n_prompt)
        return VC_OK;
    node_accept_out_t out = {0};
    vc_status_t st = choose(v, logits, &out, err);
    if (st == VC_OK) {
        if (v->hash)
            for (uint32_t i = 0; i < out.n_committed; i++)
                crypto_generichash_update(v->hash, (const uint8_t *)(logits + (size_t)i * v->n_vocab),
                                          (size_t)v->n_vocab * sizeof *logits);
        memcpy(v->tokens + v->n_tokens, v->chosen, out.n_committed * sizeof *v->tokens);
        v->n_tokens += out.n_committed;
        if (v->kv.n_tokens > v->n_tokens - 1) {
            st = node_kv_truncate(&v->kv, v->n_tokens - 1);
            if (st != VC_OK)
                vc_err_set(err, st, "verifier: KV cannot be cut: %s", vc_status_name(st));
        }
    }
    if (st != VC_OK) {
        v->broken = true;
        return st;
    }
    if (!prompt)
        count_round(v, &out);
    v->finish = out.finish;
    verdict_p->n_drafts = v->n_drafts;
    verdict_p->n_accepted = out.n_accepted;
    verdict_p->n_tokens = out.n_committed;
    verdict_p->finish = out.finish;
    return VC_OK;
}

static vc_status_t need_logits(node_verifier_t *v, uint32_t n_rows, vc_err_t *err)
{
    size_t need = (size_t)n_rows * v->n_vocab;
    if (need <= v->cap_logits)
        return VC_OK;
    vc_free(v->logits);
    v->cap_logits = 0;
    v->logits = vc_alloc_aligned(64, vc_align_up(need * sizeof *v->logits, 64));
    if (!v->logits)
        return vc_err_set(err, VC_ERR_NOMEM, "verifier: no memory for %u rows of logits", n_rows);
    v->cap_logits = need;
    return VC_OK;
}

/* The planned round's pass and its verdict. */
static vc_status_t run_planned(node_verifier_t *v, const node_row_t *rows, uint32_t n_rows, uint32_t n_logits,
                               node_verdict_t *verdict_p, vc_err_t *err)
{
    vc_status_t st = need_logits(v, n_logits, err);
    if (st == VC_OK)
        st = node_forward(v->engine, rows, n_rows, v->logits, NULL, err);
    if (st != VC_OK) {
        node_verifier_cancel(v, NULL);
        return st;
    }
    return node_verifier_judge(v, v->logits, verdict_p, err);
}

vc_status_t node_verifier_start(node_verifier_t *v, uint32_t rows_per_pass, node_verdict_t *verdict_p, vc_err_t *err)
{
    vc_status_t st = check_open(v, err);
    uint32_t first;
    if (st == VC_OK && !node_verifier_is_prefilling(v))
        return vc_err_set(err, VC_ERR_INVALID, "the request has started already");
    if (st == VC_OK)
        st = prompt_position(v, &first, err);
    if (st == VC_OK)
        st = need_logits(v, 1, err);
    /* all but the last row, then the last one as a round: a row's bits do not depend on the cut */
    while (st == VC_OK && v->kv.n_tokens + 1 < v->n_prompt) {
        uint32_t left = v->n_prompt - 1 - v->kv.n_tokens;
        uint32_t n = rows_per_pass ? VC_MIN(left, rows_per_pass) : left;
        st = node_prefill(v->engine, &v->kv, v->tokens + v->kv.n_tokens, n, NULL, NULL, err);
    }
    return st == VC_OK ? node_verifier_step(v, NULL, 0, verdict_p, err) : st;
}

vc_status_t node_verifier_step(node_verifier_t *v, const uint32_t *drafts, uint32_t n_drafts, node_verdict_t *verdict_p,
                               vc_err_t *err)
{
    uint32_t n_rows, n_logits;
    vc_status_t st = node_verifier_plan(v, drafts, n_drafts, v->rows, v->max_draft + 1, &n_rows, &n_logits, err);
    return st == VC_OK ? run_planned(v, v->rows, n_rows, n_logits, verdict_p, err) : st;
}

/* The committed tokens so far against those that another verifier is said to have committed. */
static vc_status_t compare_committed(const node_verifier_t *v, const uint32_t *committed, uint32_t n, vc_err_t *err)
{
    uint32_t have = v->n_tokens - v->n_prompt;
    for (uint32_t i = 0; i < n && i < have; i++)
        if (v->tokens[v->n_prompt + i] != committed[i])
            return vc_err_set(err, VC_ERR_MISMATCH, "committed token %u is %u, this model commits %u", i, committed[i],
                              v->tokens[v->n_prompt + i]);
    if (have < n && v->finish != NODE_FINISH_NONE)
        return vc_err_set(err, VC_ERR_MISMATCH, "%u committed tokens, but the request ends after %u (%s)", n, have,
                          node_finish_name(v->finish));
    return VC_OK;
}

vc_status_t node_verifier_resume(node_verifier_t *v, const uint32_t *committed, uint32_t n, node_verdict_t *verdict_p,
                                 vc_err_t *err)
{
    vc_status_t st = node_verifier_start(v, 0, verdict_p, err);
    while (st == VC_OK && (st = compare_committed(v, committed, n, err)) == VC_OK) {
        uint32_t have = v->n_tokens - v->n_prompt;
        if (have >= n + (v->finish == NODE_FINISH_NONE))
            break;
        /* one round more than needed only where nothing new has come yet */
        st = node_verifier_step(v, committed + VC_MIN(have, n), n - VC_MIN(have, n), verdict_p, err);
    }
    v->stats = (node_verifier_stats_t){0};
    if (st != VC_OK) {
        v->broken = true;
        return st;
    }
    uint32_t base = v->n_prompt + n;
    *verdict_p =
        (node_verdict_t){.base = base, .n_tokens = v->n_tokens - base, .tokens = v->tokens + base, .finish = v->finish};
    return VC_OK;
}

node_finish_t node_verifier_finish(const node_verifier_t *v) { return v->finish; }

const uint32_t *node_verifier_tokens(const node_verifier_t *v, uint32_t *n_p)
{
    *n_p = v->n_tokens;
    return v->tokens;
}

uint32_t node_verifier_n_prompt(const node_verifier_t *v) { return v->n_prompt; }

node_kv_t *node_verifier_kv(node_verifier_t *v) { return &v->kv; }

void node_verifier_digest(const node_verifier_t *v, vc_digest_t *digest_p)
{
    memset(digest_p, 0, sizeof *digest_p);
    if (!v->hash)
        return;
    crypto_generichash_state copy = *v->hash; /* the running state goes on */
    crypto_generichash_final(&copy, digest_p->b, sizeof digest_p->b);
}

void node_verifier_stats(const node_verifier_t *v, node_verifier_stats_t *stats_p) { *stats_p = v->stats; }
