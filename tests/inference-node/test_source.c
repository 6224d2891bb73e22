/*
 * The drafter with a source under it: picks, margins and KV are those of a drafter without one, bit for bit, whatever
 * the source proposes and however commits, drops and steps follow on one another. The source here knows what the
 * drafter will choose, and lies now and then. Then what a source is told, and sources that fail or talk nonsense.
 */
#include <math.h>

#include "support/generation.h"

enum { N_PROMPT = 150, N_TEXT = 1200 };

/* A source with the answers in its hand: truth[position], where it is known. */
typedef struct {
    node_source_t base;
    uint32_t truth[N_TEXT], told[N_TEXT];
    uint64_t rng;
    uint32_t lies;       /* one proposal of so many is wrong; 0: none */
    uint32_t fails_at;   /* push fails from this many tokens on; 0: never */
    uint32_t nonsense;   /* proposals with chances and tokens that do not exist */
    uint32_t n_proposed; /* in all */
    float *rows;         /* [N_TEXT][d_model] told with the tokens, or NULL */
    bool has_row[N_TEXT];
    uint32_t d_model;
} script_t;

static uint32_t next_random(uint64_t *s, uint32_t n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33) % n;
}

static vc_status_t script_push(node_source_t *base, const uint32_t *tokens, uint32_t n, const float *rows)
{
    script_t *s = (script_t *)base;
    if (s->fails_at && base->n_tokens + n > s->fails_at)
        return VC_ERR_NOMEM;
    cr_assert_leq(base->n_tokens + n, N_TEXT);
    memcpy(s->told + base->n_tokens, tokens, n * sizeof *tokens);
    for (uint32_t i = 0; i < n; i++) {
        s->has_row[base->n_tokens + i] = rows != NULL;
        if (rows && s->rows)
            memcpy(s->rows + (size_t)(base->n_tokens + i) * s->d_model, rows + (size_t)i * s->d_model,
                   s->d_model * sizeof *rows);
    }
    return VC_OK;
}

static void script_truncate(node_source_t *base, uint32_t n_tokens) { cr_assert_lt(n_tokens, base->n_tokens); }

static uint32_t script_propose(node_source_t *base, uint32_t k, node_proposal_t *out)
{
    script_t *s = (script_t *)base;
    uint32_t n = 0;
    for (; n < k && base->n_tokens + n < N_TEXT && s->truth[base->n_tokens + n] != UINT32_MAX; n++) {
        bool lie = s->lies && next_random(&s->rng, s->lies) == 0;
        uint32_t token = s->truth[base->n_tokens + n];
        out[n] = (node_proposal_t){lie ? (token + 1) % TINY_N_VOCAB : token, s->nonsense ? 1e300 : 1};
    }
    if (s->nonsense && n > 2)
        out[n / 2].token = UINT32_MAX;
    if (s->nonsense && n)
        out[n - 1].chance = NAN;
    s->n_proposed += n;
    return n;
}

static void script_destroy(node_source_t *base) { vc_free(base); }

static const node_source_ops_t blind_ops = {"script",        false,          script_push,
                                            script_truncate, script_propose, script_destroy};
static const node_source_ops_t seeing_ops = {"script",        true,           script_push,
                                             script_truncate, script_propose, script_destroy};

static script_t *make_script(uint32_t lies)
{
    script_t *s = vc_calloc(1, sizeof *s);
    s->base.ops = &blind_ops;
    s->lies = lies;
    memset(s->truth, 0xff, sizeof s->truth);
    return s;
}

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    uint32_t prompt[N_PROMPT];
    node_body_t *body; /* two blocks of the prompt, crude */
} fx_t;

static void setup(fx_t *f)
{
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    f->engine = gen_engine(&f->model, 1, NODE_ISA_AUTO);
    gen_prompt(8, f->prompt, N_PROMPT);
    gen_request_t r = {.engine = f->engine,
                       .prompt = f->prompt,
                       .n_prompt = N_PROMPT,
                       .max_tokens = 1,
                       .spec = "kivi:bits=2,group=16,residual=64"};
    node_verdict_t verdict;
    node_verifier_t *v = gen_verifier(&r);
    GEN_OK(node_verifier_start(v, 0, &verdict, &gen_err));
    f->body = gen_body(&r, v);
    node_verifier_destroy(v);
}

static void teardown(fx_t *f)
{
    node_body_put(f->body);
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static node_drafter_t *make(const fx_t *f, bool body, bool sampled, uint32_t max_draft, node_source_t *source)
{
    node_drafter_opts_t o;
    node_drafter_t *d = NULL;
    node_drafter_opts_default(&o);
    o.engine = f->engine;
    o.body = body ? f->body : NULL;
    o.sampling = gen_sampled(sampled, 5);
    o.max_draft = max_draft;
    o.source = source;
    o.clock = NULL; /* the number of proposals is a matter of the script alone */
    GEN_OK(node_drafter_create(&o, f->prompt, N_PROMPT, &d, &gen_err));
    return d;
}

static uint32_t end_of(const node_drafter_t *d) { return node_drafter_n_committed(d) + node_drafter_n_pending(d); }

/* Up to x picks by planned steps of at most `cap` rows, taken a few at a time. */
static uint32_t draft_planned(const fx_t *f, node_drafter_t *d, uint32_t x, uint32_t cap, node_pick_t *picks)
{
    node_row_t rows[64];
    float *logits = vc_calloc((size_t)64 * TINY_N_VOCAB, sizeof *logits);
    uint32_t n = 0, n_rows, n_logits, got;
    while (n < x) {
        uint32_t ready = node_drafter_n_ready(d);
        GEN_OK(node_drafter_plan(d, rows, cap, &n_rows, &n_logits, &gen_err));
        cr_assert_leq(n_rows, cap);
        cr_assert_leq(n_logits, n_rows);
        cr_assert(!ready || !n_rows);
        if (n % 3 == 2) { /* changed its mind, before the pass or behind it */
            if (n % 2)
                GEN_OK(node_forward(f->engine, rows, n_rows, logits, NULL, &gen_err));
            GEN_OK(node_drafter_cancel(d, &gen_err));
            GEN_OK(node_drafter_plan(d, rows, cap, &n_rows, &n_logits, &gen_err));
        }
        GEN_OK(node_forward(f->engine, rows, n_rows, logits, NULL, &gen_err));
        GEN_OK(node_drafter_take(d, logits, picks + n, VC_MIN(x - n, 3u), &got, &gen_err));
        n += got;
    }
    vc_free(logits);
    return n;
}

/* x picks of both; the one without a source goes first and so writes the truth for the other. */
static void draft_both(const fx_t *f, node_drafter_t *plain, node_drafter_t *with, script_t *s, uint64_t *rng)
{
    uint32_t x = 1 + next_random(rng, 12), tokens[16], n, at = end_of(plain);
    double margins[16];
    node_pick_t picks[16];
    GEN_OK(node_drafter_draft(plain, x, tokens, margins, &n, &gen_err));
    memcpy(s->truth + at, tokens, n * sizeof *tokens);
    switch (next_random(rng, 3)) {
    case 0: {
        uint32_t got[16], m;
        double margin[16];
        GEN_OK(node_drafter_draft(with, x, got, margin, &m, &gen_err));
        cr_assert_eq(m, n);
        for (uint32_t i = 0; i < m; i++)
            picks[i] = (node_pick_t){got[i], margin[i]};
        break;
    }
    case 1:
        for (uint32_t i = 0; i < n; i++)
            GEN_OK(node_drafter_next(with, &picks[i], &gen_err));
        break;
    default: cr_assert_eq(draft_planned(f, with, n, 2 + next_random(rng, 20), picks), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(picks[i].token, tokens[i], "pick at %u", at + i);
        cr_assert_eq(picks[i].margin, margins[i]);
    }
    cr_assert_eq(end_of(with), end_of(plain));
    uint32_t told = s->base.n_tokens;
    cr_assert_leq(told, end_of(with) + node_drafter_n_ready(with));
    cr_assert_eq(memcmp(s->told, f->prompt, sizeof f->prompt), 0);
    uint32_t here = node_drafter_n_committed(with);
    if (told > here)
        cr_assert_eq(memcmp(s->told + here, node_drafter_pending(with), (told - here) * sizeof *s->told), 0);
}

/* A verdict: some of the drafts, and mostly tokens behind them, of which the first may be the next draft or not. */
static void commit_both(node_drafter_t *plain, node_drafter_t *with, script_t *s, uint64_t *rng)
{
    uint32_t tokens[70], n = next_random(rng, node_drafter_n_pending(plain) + 1), end = end_of(plain);
    memcpy(tokens, node_drafter_pending(plain), n * sizeof *tokens);
    bool kept[2], is_other = next_random(rng, 4) != 0;
    uint32_t at = node_drafter_n_committed(plain) + n;
    if (is_other)
        tokens[n++] = at < end && next_random(rng, 2) ? s->truth[at] : next_random(rng, TINY_N_VOCAB);
    for (uint32_t more = is_other ? next_random(rng, 3) : 0; more; more--)
        tokens[n++] = next_random(rng, TINY_N_VOCAB);
    GEN_OK(node_drafter_commit(plain, tokens, n, &kept[0], &gen_err));
    GEN_OK(node_drafter_commit(with, tokens, n, &kept[1], &gen_err));
    cr_assert_eq(kept[0], kept[1]);
    cr_assert_eq(node_drafter_n_pending(plain), node_drafter_n_pending(with));
    if (end_of(plain) < N_TEXT - 40)
        memset(s->truth + end_of(plain), 0xff, (N_TEXT - end_of(plain)) * sizeof *s->truth);
}

static void compare_kv(node_drafter_t *plain, node_drafter_t *with)
{
    const node_kv_t *a = node_drafter_kv(plain), *b = node_drafter_kv(with);
    uint32_t n = VC_MIN(a->n_tokens, b->n_tokens);
    vc_digest_t da, db;
    cr_assert_geq(n + 1, node_drafter_n_committed(plain));
    node_kv_digest(a, n, &da);
    node_kv_digest(b, n, &db);
    cr_assert(gen_digest_equal(&da, &db), "KV of %u rows", n);
}

static void walk(const fx_t *f, bool body, bool sampled, uint32_t lies)
{
    script_t *s = make_script(lies);
    node_drafter_t *plain = make(f, body, sampled, 40, NULL), *with = make(f, body, sampled, 40, &s->base);
    uint64_t rng = 1 + lies;
    for (uint32_t i = 0; i < 60 && end_of(plain) < N_TEXT - 60; i++) {
        if (node_drafter_n_pending(plain) < 28)
            draft_both(f, plain, with, s, &rng);
        if (next_random(&rng, 3))
            commit_both(plain, with, s, &rng);
        if (next_random(&rng, 8) == 0) {
            GEN_OK(node_drafter_drop(plain, &gen_err));
            GEN_OK(node_drafter_drop(with, &gen_err));
            cr_assert_leq(s->base.n_tokens, node_drafter_n_committed(with));
            if (!body && node_drafter_n_rows(plain) &&
                node_drafter_n_rows(plain) + 1 >= node_drafter_n_committed(plain) &&
                node_drafter_n_rows(with) + 1 >= node_drafter_n_committed(with))
                compare_kv(plain, with);
        }
    }
    node_drafter_stats_t a, b;
    node_drafter_stats(plain, &a);
    node_drafter_stats(with, &b);
    cr_assert_eq(a.n_proposed, 0);
    cr_assert_gt(b.n_accepted, 20);
    cr_assert_lt(b.n_passes, a.n_passes);
    cr_assert(lies ? b.n_accepted < b.n_proposed : b.n_accepted >= b.n_proposed * 3 / 4);
    node_drafter_destroy(plain);
    node_drafter_destroy(with);
    node_source_destroy(&s->base);
}

Test(source, picks_margins_and_kv_are_those_of_a_drafter_without_one)
{
    fx_t f;
    setup(&f);
    const uint32_t lies[] = {0, 10, 2};
    for (uint32_t i = 0; i < VC_ARRAY_LEN(lies); i++)
        for (int body = 0; body < 2; body++)
            for (int sampled = 0; sampled < 2; sampled++)
                walk(&f, body, sampled, lies[i]);
    teardown(&f);
}

typedef struct {
    float *rows;
    uint32_t d_model;
} seen_t;

static void see(void *arg, node_capture_kind_t kind, uint32_t layer, uint32_t row, uint32_t position, const float *v)
{
    seen_t *s = arg;
    (void)kind, (void)layer, (void)row;
    memcpy(s->rows + (size_t)position * s->d_model, v, s->d_model * sizeof *v);
}

Test(source, one_that_wants_rows_is_told_those_that_its_tokens_were_picked_from)
{
    enum { N_NEW = 20 };
    fx_t f;
    setup(&f);
    script_t *s = make_script(3);
    s->base.ops = &seeing_ops;
    s->d_model = node_engine_info(f.engine)->d_model;
    s->rows = vc_calloc((size_t)N_TEXT * s->d_model, sizeof *s->rows);
    node_drafter_t *plain = make(&f, false, false, 40, NULL), *with = make(&f, false, false, 40, &s->base);
    uint32_t tokens[N_NEW], n;
    GEN_OK(node_drafter_draft(plain, N_NEW, tokens, NULL, &n, &gen_err));
    memcpy(s->truth + N_PROMPT, tokens, sizeof tokens);
    GEN_OK(node_drafter_draft(with, N_NEW, tokens, NULL, &n, &gen_err));
    cr_assert_eq(memcmp(tokens, s->truth + N_PROMPT, sizeof tokens), 0);
    /* the whole text in one pass, all its rows shown */
    seen_t seen = {vc_calloc((size_t)(N_PROMPT + N_NEW) * s->d_model, sizeof(float)), s->d_model};
    const node_capture_t capture = {.kinds = NODE_CAP_NORMED, .fn = see, .arg = &seen};
    float *logits = vc_calloc((size_t)(N_PROMPT + N_NEW) * TINY_N_VOCAB, sizeof *logits);
    node_row_t rows[N_PROMPT + N_NEW];
    node_kv_t kv;
    GEN_OK(node_kv_init(&kv, &node_drafter_kv(plain)->dims, NULL));
    for (uint32_t i = 0; i < N_PROMPT + N_NEW; i++)
        rows[i] = (node_row_t){&kv, i < N_PROMPT ? f.prompt[i] : tokens[i - N_PROMPT], true};
    GEN_OK(node_forward(f.engine, rows, N_PROMPT + N_NEW, logits, &capture, &gen_err));
    for (uint32_t i = 0; i < N_PROMPT; i++)
        cr_assert(!s->has_row[i]);
    for (uint32_t i = N_PROMPT; i < N_PROMPT + N_NEW; i++) {
        cr_assert(s->has_row[i]);
        cr_assert_eq(memcmp(s->rows + (size_t)i * s->d_model, seen.rows + (size_t)(i - 1) * s->d_model,
                            s->d_model * sizeof(float)),
                     0, "row of the token at %u", i);
    }
    node_kv_fini(&kv);
    vc_free(logits);
    vc_free(seen.rows);
    vc_free(s->rows);
    node_drafter_destroy(plain);
    node_drafter_destroy(with);
    node_source_destroy(&s->base);
    teardown(&f);
}

Test(source, one_that_fails_or_talks_nonsense_changes_nothing)
{
    fx_t f;
    setup(&f);
    for (uint32_t nonsense = 0; nonsense < 2; nonsense++) {
        script_t *s = make_script(0);
        s->nonsense = nonsense;
        s->fails_at = nonsense ? 0 : N_PROMPT + 8;
        node_drafter_t *plain = make(&f, true, true, 40, NULL), *with = make(&f, true, true, 40, &s->base);
        uint32_t want[30], got[30], n;
        GEN_OK(node_drafter_draft(plain, 30, want, NULL, &n, &gen_err));
        memcpy(s->truth + N_PROMPT, want, sizeof want);
        GEN_OK(node_drafter_draft(with, 30, got, NULL, &n, &gen_err));
        cr_assert_eq(memcmp(got, want, sizeof want), 0);
        cr_assert_gt(s->n_proposed, 0);
        cr_assert_eq(s->base.off, !nonsense);
        node_drafter_destroy(plain);
        node_drafter_destroy(with);
        node_source_destroy(&s->base);
    }
    teardown(&f);
}

Test(source, no_more_is_proposed_than_there_is_room_for)
{
    fx_t f;
    setup(&f);
    script_t *s = make_script(0);
    node_drafter_t *plain = make(&f, false, false, 40, NULL), *with = make(&f, false, false, 5, &s->base);
    uint32_t tokens[40], n;
    GEN_OK(node_drafter_draft(plain, 40, tokens, NULL, &n, &gen_err));
    memcpy(s->truth + N_PROMPT, tokens, sizeof tokens);
    GEN_OK(node_drafter_draft(with, 2, tokens, NULL, &n, &gen_err)); /* two were wanted: one row of proposals */
    cr_assert(n == 2 && node_drafter_n_ready(with) == 0);
    GEN_OK(node_drafter_draft(with, 40, tokens, NULL, &n, &gen_err));
    cr_assert_eq(n, 3);
    cr_assert_eq(end_of(with) + node_drafter_n_ready(with), N_PROMPT + 5);
    node_pick_t pick;
    cr_assert_eq(node_drafter_next(with, &pick, &gen_err), VC_ERR_RANGE);
    node_drafter_destroy(with);
    node_drafter_opts_t o;
    node_drafter_opts_default(&o);
    o.engine = f.engine;
    o.source = &s->base; /* it serves another drafter now */
    o.context = N_PROMPT + 3;
    o.clock = NULL;
    GEN_OK(node_drafter_create(&o, f.prompt, N_PROMPT, &with, &gen_err));
    cr_assert_eq(s->base.n_tokens, 0);
    GEN_OK(node_drafter_draft(with, 9, tokens, NULL, &n, &gen_err));
    cr_assert_eq(n, 3);
    cr_assert_eq(memcmp(tokens, s->truth + N_PROMPT, 3 * sizeof *tokens), 0);
    node_drafter_stats_t stats;
    node_drafter_stats(with, &stats);
    cr_assert(stats.n_passes == 1 && stats.n_proposed == 2 && stats.n_accepted == 2 && stats.n_wide == 1);
    node_proposal_t none[4];
    cr_assert_eq(node_drafter_propose(plain, 4, none), 0);
    node_drafter_destroy(plain);
    node_drafter_destroy(with);
    node_source_destroy(&s->base);
    teardown(&f);
}

/* ---- in a session ---- */

/* Each look at the clock takes as long, so that what pays is a matter of the script alone: the machine has no say. */
static uint64_t tick(void *arg)
{
    uint64_t *now = arg;
    return *now += 100;
}

Test(source, a_session_commits_the_plain_bits_with_a_body_and_without_one)
{
    enum { N_NEW = 60 };
    fx_t f;
    uint64_t now = 0;
    const vc_clock_t clock = {tick, tick, &now};
    setup(&f);
    gen_request_t r = {
        .engine = f.engine, .prompt = f.prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .clock = &clock};
    const char *const specs[] = {NULL, "none", "noise:eps=0.5,seed=3"};
    const uint32_t xs[] = {NODE_DRAFT_AUTO, 4, 16};
    for (int sampled = 0; sampled < 2; sampled++) {
        gen_result_t base, got;
        r.sampling = gen_sampled(sampled, 5);
        r.source = NULL;
        r.x = 0;
        gen_run(&r, &base);
        for (size_t i = 0; i < VC_ARRAY_LEN(specs) * VC_ARRAY_LEN(xs); i++) {
            script_t *s = make_script(5);
            memcpy(s->truth + N_PROMPT, base.tokens, sizeof(uint32_t) * N_NEW);
            r.spec = specs[i % 3];
            r.x = xs[i / 3];
            r.source = &s->base;
            gen_run(&r, &got);
            GEN_EQUAL(&base, &got, "%s, x %u", r.spec ? r.spec : "no body", r.x);
            cr_assert_gt(got.session.source_accepted, 5);
            cr_assert_lt(got.session.source_accepted, got.session.source_proposed);
            if (!r.spec && r.x == NODE_DRAFT_AUTO) {
                cr_assert_gt(got.session.n_source_rounds, 0);
                cr_assert_lt(got.stats.n_rounds, N_NEW - 5);
                cr_assert_eq(got.session.source_accepted, got.stats.n_accepted);
            }
            node_source_destroy(&s->base);
        }
    }
    teardown(&f);
}

Test(source, drafts_of_length_0_ask_no_source)
{
    fx_t f;
    setup(&f);
    script_t *s = make_script(0);
    gen_result_t got;
    gen_request_t r = {
        .engine = f.engine, .prompt = f.prompt, .n_prompt = N_PROMPT, .max_tokens = 20, .source = &s->base};
    gen_run(&r, &got);
    cr_assert_eq(s->base.n_tokens, 0);
    cr_assert_eq(got.session.n_plain_rounds, 19);
    node_source_destroy(&s->base);
    teardown(&f);
}
