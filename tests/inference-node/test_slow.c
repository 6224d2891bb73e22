/*
 * The slow tier: a session whose oldest blocks lie in a file gives the bits of one in memory, whatever the budget, the
 * cut, the threads and the kind of io; damage, short files and full disks end in one sentence and never in a token.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kv/slow_int.h"
#include "support/generation.h"
#include "support/tmpdir.h"
#include "vc/config.h"

enum { N_LAYER = 6, N_TOKENS = 700, N_STEPS = 10, PASS_ROWS = 128, N_ALL = N_TOKENS + N_STEPS };

static vt_tmpdir_t dir;
static gen_model_t model;

static void setup(void)
{
    vt_tmpdir_create(&dir);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    o.n_layer = N_LAYER;
    o.context = 2048;
    gen_model_open(&model, &o);
}

static void teardown(void)
{
    gen_model_close(&model);
    vt_tmpdir_remove(&dir);
}

static uint32_t n_blocks(uint32_t tokens) { return (tokens + NODE_TILE - 1) / NODE_TILE; }

/* A budget of so many pages' bytes. */
static node_slow_opts_t opts_of(node_engine_t *engine, double pages)
{
    node_kv_dims_t d;
    node_engine_kv_dims(engine, &d);
    double page = (double)d.n_layer * d.n_kv_head * 2 * NODE_TILE * d.head_dim * 2;
    return (node_slow_opts_t){
        .dir = dir.path, .ram_bytes = (uint64_t)(pages * page), .max_tokens = N_ALL, .pass_rows = PASS_ROWS};
}

static vc_status_t open_slow(node_engine_t *engine, const node_slow_opts_t *o, node_kv_t *kv, vc_err_t *err)
{
    node_kv_dims_t dims;
    node_slow_t *slow = NULL;
    node_engine_kv_dims(engine, &dims);
    GEN_OK(node_kv_init(kv, &dims, NULL));
    vc_status_t st = node_slow_create(&dims, o, &slow, err);
    if (st == VC_OK)
        GEN_OK(node_kv_set_slow(kv, slow));
    return st;
}

static void text_of(uint32_t *tokens) { gen_prompt(7, tokens, N_ALL); }

typedef struct {
    vc_digest_t kv;
    float logits[N_STEPS][TINY_N_VOCAB];
} result_t;

/* N_TOKENS in passes of `cut`, then N_STEPS one by one, whose logits are kept; each step first tries three rows more
 * and takes them back, as a verifier does with refused drafts. */
static vc_status_t run(node_engine_t *engine, node_kv_t *kv, uint32_t cut, result_t *out, vc_err_t *err)
{
    uint32_t tokens[N_ALL], wrong[4] = {40, 41, 42, 43};
    text_of(tokens);
    vc_status_t st = VC_OK;
    while (st == VC_OK && kv->n_tokens < N_TOKENS)
        st = node_prefill(engine, kv, tokens + kv->n_tokens, VC_MIN(cut, N_TOKENS - kv->n_tokens), NULL, NULL, err);
    for (uint32_t i = 0; st == VC_OK && i < N_STEPS; i++) {
        uint32_t n = VC_MIN(4u, N_ALL - kv->n_tokens), before = kv->n_tokens;
        if ((st = node_prefill(engine, kv, wrong, n, NULL, NULL, err)) == VC_OK)
            st = node_kv_truncate(kv, before);
        if (st == VC_OK)
            st = node_prefill(engine, kv, tokens + N_TOKENS + i, 1, out->logits[i], NULL, err);
    }
    node_kv_t view;
    if (st == VC_OK && (st = node_slow_view(kv, &view, err)) == VC_OK) {
        node_kv_digest(&view, view.n_tokens, &out->kv);
        node_kv_fini(&view);
    }
    return st;
}

static result_t *plain_result(node_engine_t *engine)
{
    result_t *r = vc_calloc(1, sizeof *r);
    node_kv_dims_t dims;
    node_kv_t kv;
    node_engine_kv_dims(engine, &dims);
    GEN_OK(node_kv_init(&kv, &dims, NULL));
    GEN_OK(run(engine, &kv, PASS_ROWS, r, &gen_err));
    node_kv_fini(&kv);
    return r;
}

static void check_same(const result_t *want, node_engine_t *engine, const node_slow_opts_t *o, uint32_t cut,
                       const char *what)
{
    (void)what; /* the plain runner prints no messages */
    result_t *got = vc_calloc(1, sizeof *got);
    node_kv_t kv;
    GEN_OK(open_slow(engine, o, &kv, &gen_err));
    GEN_OK(run(engine, &kv, cut, got, &gen_err));
    cr_assert(memcmp(want->logits, got->logits, sizeof want->logits) == 0, "%s: logits differ", what);
    cr_assert(gen_digest_equal(&want->kv, &got->kv), "%s: KV differs", what);
    node_slow_stats_t s;
    node_slow_stats(kv.slow, &s);
    uint32_t resident = 0;
    for (uint32_t b = 0; b < kv.n_pages; b++)
        resident += kv.pages[b] != NULL;
    cr_assert_gt(s.n_spilled, 0, "%s", what);
    cr_assert_leq(resident, s.max_pages, "%s", what);
    cr_assert_leq(s.ram_bytes, o->ram_bytes, "%s", what);
    cr_assert_gt(s.read_bytes, 2 * N_STEPS * (uint64_t)s.n_spilled, "%s", what);
    node_kv_fini(&kv);
    vc_free(got);
}

Test(slow, any_budget_cut_threads_and_io_give_the_bits_of_memory)
{
    setup();
    static const double budgets[] = {8.0, 9.5, 11};
    static const uint32_t cuts[] = {128, 31, 64, 100};
    for (uint32_t threads = 1; threads <= 2; threads++) {
        node_engine_t *engine = gen_engine(&model, threads, NODE_ISA_AUTO);
        result_t *want = plain_result(engine);
        for (size_t b = 0; b < VC_ARRAY_LEN(budgets); b++)
            for (int mode = NODE_SLOW_IO_AUTO; mode <= NODE_SLOW_IO_THREADS; mode++) {
                if ((b + (size_t)mode + threads) % VC_ARRAY_LEN(budgets) != 0 && VT_EVERY > 1)
                    continue; /* every budget and every io, not their product */
                char what[100];
                uint32_t cut = cuts[(b + (uint32_t)mode + threads) % VC_ARRAY_LEN(cuts)];
                node_slow_opts_t o = opts_of(engine, budgets[b]);
                o.io = mode == NODE_SLOW_IO_RING ? NODE_SLOW_IO_AUTO : (node_slow_io_mode_t)mode;
                snprintf(what, sizeof what, "%u threads, %.1f pages, cut %u, io %d", threads, budgets[b], cut, mode);
                check_same(want, engine, &o, cut, what);
            }
        vc_free(want);
        node_engine_destroy(engine);
    }
    teardown();
}

Test(slow, sessions_with_and_without_a_slow_tier_share_a_pass)
{
    setup();
    node_engine_t *engine = gen_engine(&model, 2, NODE_ISA_AUTO);
    result_t *want = plain_result(engine);
    uint32_t tokens[N_ALL];
    text_of(tokens);
    node_kv_t kv[3];
    node_slow_opts_t o = opts_of(engine, 8), more = opts_of(engine, 10);
    GEN_OK(open_slow(engine, &o, &kv[0], &gen_err));
    GEN_OK(open_slow(engine, &more, &kv[1], &gen_err));
    GEN_OK(node_kv_init(&kv[2], &kv[0].dims, NULL));
    for (int i = 0; i < 3; i++)
        while (kv[i].n_tokens < N_TOKENS)
            GEN_OK(node_prefill(engine, &kv[i], tokens + kv[i].n_tokens,
                                VC_MIN((uint32_t)PASS_ROWS, N_TOKENS - kv[i].n_tokens), NULL, NULL, &gen_err));
    static float logits[3][TINY_N_VOCAB];
    for (uint32_t s = 0; s < N_STEPS; s++) {
        node_row_t rows[3];
        for (int i = 0; i < 3; i++)
            rows[i] = (node_row_t){&kv[(s + (uint32_t)i) % 3], tokens[N_TOKENS + s], true};
        GEN_OK(node_forward(engine, rows, 3, logits[0], NULL, &gen_err));
        for (int i = 0; i < 3; i++)
            cr_assert(memcmp(want->logits[s], logits[i], sizeof logits[i]) == 0, "step %u, row %d", s, i);
    }
    for (int i = 0; i < 3; i++)
        node_kv_fini(&kv[i]);
    vc_free(want);
    node_engine_destroy(engine);
    teardown();
}

/* A session with blocks in the file, between two passes. */
static node_engine_t *spilled_session(node_kv_t *kv, node_slow_io_mode_t io)
{
    node_engine_t *engine = gen_engine(&model, 2, NODE_ISA_AUTO);
    uint32_t tokens[N_ALL];
    text_of(tokens);
    node_slow_opts_t o = opts_of(engine, 8);
    o.io = io;
    GEN_OK(open_slow(engine, &o, kv, &gen_err));
    while (kv->n_tokens < N_TOKENS)
        GEN_OK(node_prefill(engine, kv, tokens + kv->n_tokens, VC_MIN((uint32_t)PASS_ROWS, N_TOKENS - kv->n_tokens),
                            NULL, NULL, &gen_err));
    cr_assert_gt(node_slow_n_spilled(kv->slow), 2);
    return engine;
}

static vc_status_t one_step(node_engine_t *engine, node_kv_t *kv, vc_err_t *err)
{
    static float logits[TINY_N_VOCAB];
    uint32_t token = 50;
    return node_prefill(engine, kv, &token, 1, logits, NULL, err);
}

/* One bit of a block's part, wherever the file is. */
static void damage(const node_slow_t *s, uint32_t layer, uint32_t block)
{
    char path[64];
    uint8_t byte;
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    int fd = open(path, O_RDWR); /* not direct: any byte may be written */
    off_t at = (off_t)(node_slow_offset(s, layer, block) + 1234);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
}

Test(slow, one_flipped_bit_ends_the_session_with_a_sentence)
{
    setup();
    for (int mode = NODE_SLOW_IO_AUTO; mode <= NODE_SLOW_IO_THREADS; mode += 2) {
        node_kv_t kv, view;
        vc_err_t err = {0};
        node_engine_t *engine = spilled_session(&kv, (node_slow_io_mode_t)mode);
        damage(kv.slow, 4, 1);
        uint32_t before = kv.n_tokens;
        cr_assert_eq(one_step(engine, &kv, &err), VC_ERR_CORRUPT);
        cr_assert(strstr(err.msg, "layer 4") && strstr(err.msg, "damaged"), "%s", err.msg);
        cr_assert_eq(kv.n_tokens, before);
        cr_assert_eq(one_step(engine, &kv, &err), VC_ERR_STALE, "no further pass");
        cr_assert_eq(node_slow_view(&kv, &view, &err), VC_ERR_CORRUPT);
        node_page_t *page;
        cr_assert_eq(node_slow_load_page(kv.slow, 1, &page, &err), VC_ERR_CORRUPT);
        GEN_OK(node_slow_load_page(kv.slow, 0, &page, &gen_err));
        node_page_put(page);
        node_kv_fini(&kv);
        node_engine_destroy(engine);
    }
    teardown();
}

Test(slow, a_file_that_became_shorter_is_told)
{
    setup();
    for (int mode = NODE_SLOW_IO_AUTO; mode <= NODE_SLOW_IO_THREADS; mode += 2) {
        node_kv_t kv;
        vc_err_t err = {0};
        node_engine_t *engine = spilled_session(&kv, (node_slow_io_mode_t)mode);
        cr_assert_eq(ftruncate(kv.slow->fd, (off_t)node_slow_offset(kv.slow, 5, 1)), 0);
        cr_assert_eq(one_step(engine, &kv, &err), VC_ERR_RANGE);
        cr_assert(strstr(err.msg, "layer 5") && strstr(err.msg, "ends before"), "%s", err.msg);
        node_kv_fini(&kv);
        node_engine_destroy(engine);
    }
    teardown();
}

Test(slow, a_full_disk_and_a_bad_folder_are_told_before_the_first_token)
{
    setup();
    node_engine_t *engine = gen_engine(&model, 1, NODE_ISA_AUTO);
    vc_err_t err = {0};
    node_kv_t kv;
    node_slow_opts_t o = opts_of(engine, 8);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {65536, 65536};
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    cr_assert_eq(open_slow(engine, &o, &kv, &err), VC_ERR_NOSPACE);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    cr_assert(strstr(err.msg, "no room for") && strstr(err.msg, dir.path), "%s", err.msg);
    node_kv_fini(&kv);
    o.dir = "/nonexistent/folder";
    cr_assert_eq(open_slow(engine, &o, &kv, &err), VC_ERR_INVALID);
    cr_assert(strstr(err.msg, "/nonexistent/folder"), "%s", err.msg);
    node_kv_fini(&kv);
    node_engine_destroy(engine);
    teardown();
}

Test(slow, a_budget_that_is_too_small_names_one_that_works)
{
    setup();
    node_engine_t *engine = gen_engine(&model, 1, NODE_ISA_AUTO);
    vc_err_t err = {0};
    node_kv_t kv;
    node_slow_opts_t o = opts_of(engine, 2);
    cr_assert_eq(open_slow(engine, &o, &kv, &err), VC_ERR_RANGE);
    char number[32];
    const char *advice = strstr(err.msg, ": --kv-ram ");
    cr_assert(advice != NULL && sscanf(advice, ": --kv-ram %31s would do", number) == 1, "%s", err.msg);
    node_kv_fini(&kv);
    cr_assert_eq(vc_parse_bytes(number, &o.ram_bytes), VC_OK, "%s", number);
    GEN_OK(open_slow(engine, &o, &kv, &gen_err));
    cr_assert_eq(node_slow_needed(&kv.dims, &o), true);
    o.ram_bytes = opts_of(engine, n_blocks(N_ALL)).ram_bytes;
    cr_assert_eq(node_slow_needed(&kv.dims, &o), false, "everything has a place in memory");
    uint32_t tokens[PASS_ROWS + 1];
    gen_prompt(1, tokens, PASS_ROWS + 1);
    cr_assert_eq(node_prefill(engine, &kv, tokens, PASS_ROWS + 1, NULL, NULL, &err), VC_ERR_RANGE, "a pass too large");
    cr_assert_eq(kv.n_tokens, 0);
    node_kv_fini(&kv);
    node_engine_destroy(engine);
    teardown();
}

Test(slow, truncation_into_spilled_blocks_brings_them_back)
{
    setup();
    static const uint32_t cuts[] = {70, 128, 1, 0};
    for (size_t i = 0; i < VC_ARRAY_LEN(cuts); i++) {
        node_kv_t kv;
        node_engine_t *engine = spilled_session(&kv, NODE_SLOW_IO_AUTO);
        result_t *want = plain_result(engine), *got = vc_calloc(1, sizeof *got);
        GEN_OK(node_kv_truncate(&kv, cuts[i]));
        cr_assert_eq(node_slow_n_spilled(kv.slow), cuts[i] / NODE_TILE);
        GEN_OK(run(engine, &kv, 90, got, &gen_err));
        cr_assert(memcmp(want->logits, got->logits, sizeof want->logits) == 0, "cut %u", cuts[i]);
        cr_assert(gen_digest_equal(&want->kv, &got->kv), "cut %u", cuts[i]);
        vc_free(want);
        vc_free(got);
        node_kv_fini(&kv);
        node_engine_destroy(engine);
    }
    teardown();
}

Test(slow, pages_that_others_hold_stay_and_views_can_be_kept)
{
    setup();
    node_kv_t kv, view;
    node_engine_t *engine = spilled_session(&kv, NODE_SLOW_IO_AUTO);
    uint32_t n = node_slow_n_spilled(kv.slow), tokens[N_ALL];
    text_of(tokens);
    node_page_t *held = node_page_get(kv.pages[n]);
    for (uint32_t i = N_TOKENS; i < N_ALL; i++)
        GEN_OK(node_prefill(engine, &kv, tokens + i, 1, NULL, NULL, &gen_err));
    cr_assert_eq(node_slow_n_spilled(kv.slow), n, "spilling stops at a page that is held");
    node_page_put(held);
    GEN_OK(node_kv_truncate(&kv, N_ALL - 1));
    GEN_OK(node_prefill(engine, &kv, tokens + N_ALL - 1, 1, NULL, NULL, &gen_err));
    cr_assert_eq(node_slow_n_spilled(kv.slow), n + 1);
    GEN_OK(node_slow_view(&kv, &view, &gen_err));
    cr_assert(node_page_is_shared(view.pages[0]), "not to be written to");
    node_page_t *own = node_page_own(view.pages[1]), *loaded;
    GEN_OK(node_slow_load_page(kv.slow, 1, &loaded, &gen_err));
    for (uint32_t l = 0; l < N_LAYER; l++)
        cr_assert(memcmp(node_page_v(own, l, 1), node_page_v(loaded, l, 1), (size_t)NODE_TILE * kv.dims.head_dim * 2) ==
                  0);
    node_kv_fini(&view);
    node_kv_fini(&kv);
    cr_assert(memcmp(node_page_k(own, 3, 0), node_page_k(loaded, 3, 0), (size_t)NODE_TILE * 16 * 2) == 0);
    node_page_put(own);
    node_page_put(loaded);
    node_engine_destroy(engine);
    teardown();
}

static void check_read_once(node_verifier_t *v, node_engine_t *engine, node_body_t *body)
{
    node_drafter_opts_t d;
    node_drafter_t *drafter;
    uint32_t n;
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    node_drafter_opts_default(&d);
    d.engine = engine;
    d.body = body;
    GEN_OK(node_drafter_create(&d, tokens, n, &drafter, &gen_err));
    GEN_OK(node_drafter_share(drafter, node_verifier_kv(v), &gen_err));
    const node_page_t *second = node_kv_page_at(node_drafter_kv(drafter), 2);
    cr_assert(second != NULL && node_kv_page_at(node_verifier_kv(v), 2) == NULL);
    GEN_OK(node_drafter_share(drafter, node_verifier_kv(v), &gen_err));
    cr_assert_eq(node_kv_page_at(node_drafter_kv(drafter), 2), second, "read once");
    node_drafter_destroy(drafter);
}

/* A body of two blocks leaves the drafter a long tail, most of which is spilled before it is first shared. */
Test(slow, a_drafter_reads_spilled_blocks_back_once_and_the_text_is_that_of_memory)
{
    setup();
    enum { N_PROMPT = 600, N_NEW = 60 };
    node_engine_t *engine = gen_engine(&model, 2, NODE_ISA_AUTO);
    uint32_t prompt[N_PROMPT];
    gen_prompt(3, prompt, N_PROMPT);
    gen_request_t r = {.engine = engine, .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .x = 6};
    gen_result_t want;
    gen_run(&r, &want);
    node_slow_opts_t o = opts_of(engine, 8);
    o.max_tokens = N_PROMPT + N_NEW + 64;
    node_kv_dims_t dims;
    node_slow_t *slow;
    node_engine_kv_dims(engine, &dims);
    node_verifier_t *v = gen_verifier(&r);
    GEN_OK(node_slow_create(&dims, &o, &slow, &gen_err));
    GEN_OK(node_kv_set_slow(node_verifier_kv(v), slow));
    node_verdict_t verdict;
    GEN_OK(node_verifier_start(v, PASS_ROWS, &verdict, &gen_err));
    cr_assert_gt(node_slow_n_spilled(slow), 2);
    node_kv_t view;
    node_spec_t spec;
    node_body_t *body;
    GEN_OK(node_slow_view(node_verifier_kv(v), &view, &gen_err));
    GEN_OK(node_spec_parse("rot:bits=4", &spec, &gen_err));
    GEN_OK(node_local_body(engine, &spec, &view, prompt, 2, &body, &gen_err));
    node_kv_fini(&view);
    check_read_once(v, engine, body);

    uint32_t n;
    node_session_t *s = gen_session(&r, v, body);
    while (verdict.finish == NODE_FINISH_NONE)
        GEN_OK(node_session_round(s, &verdict, &gen_err));
    const uint32_t *tokens = node_verifier_tokens(v, &n);
    cr_assert_eq(n - N_PROMPT, want.n);
    cr_assert(memcmp(tokens + N_PROMPT, want.tokens, want.n * sizeof *tokens) == 0);
    vc_digest_t logits, kv;
    node_verifier_digest(v, &logits);
    GEN_OK(node_slow_view(node_verifier_kv(v), &view, &gen_err));
    node_kv_digest(&view, n - 1, &kv);
    node_kv_fini(&view);
    cr_assert(gen_digest_equal(&logits, &want.logits) && gen_digest_equal(&kv, &want.kv));
    node_session_destroy(s);
    node_body_put(body);
    node_verifier_destroy(v);
    node_engine_destroy(engine);
    teardown();
}
