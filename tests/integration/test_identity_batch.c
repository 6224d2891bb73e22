/*
 * Identity of batches: what each of several requests of one process commits is bit for bit what it commits alone by
 * plain decoding, whatever else runs beside it: tokens, finish, digests of committed logits and of full KV over
 *   1-8 requests x draft length x compressor x staggered or lock-step x greedy or sampled x late arrivals x
 * cancellations, with prompts of several lengths cut between the others' iterations.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch/batch.h"
#include "support/generation.h"
#include "support/tmpdir.h"

enum { N_REQUESTS = 8, PROMPT_MAX = 900, MAX_ROWS = 72 };

typedef struct {
    gen_model_t model;
    node_engine_t *engine;
    uint32_t prompts[N_REQUESTS][PROMPT_MAX];
    gen_request_t requests[N_REQUESTS];
    gen_result_t base[N_REQUESTS];
} fx_t;

/* What a batch is run with. */
typedef struct {
    const fx_t *f;
    const char *spec;
    node_spec_t parsed;
    uint32_t n, x, max_running, prompt_rows;
    bool lock_step;
    const char *dir;  /* of the slow tier; NULL: full KV in memory */
    uint32_t n_pages; /* blocks of each request in memory */
    uint64_t delay_seed;
    uint64_t seed; /* of arrivals and cancellations; 0: all come at once, none is cancelled */
    uint64_t ids[N_REQUESTS];
    uint32_t damage_at; /* iteration in which one file of the tier is overwritten; 0: never */
    uint32_t n_ended[N_REQUESTS], n_cancelled, n_damaged;
    gen_result_t got[N_REQUESTS];
    node_batch_info_t info;
} run_t;

static uint64_t draw(uint64_t *s, uint64_t n)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

static node_sampling_t sampling_of(uint32_t i)
{
    node_sampling_t s;
    node_sampling_default(&s);
    if (i % 2) {
        s.temperature = 0.9;
        s.top_k = 60;
        s.top_p = 0.95;
        s.repeat_penalty = 1.1;
        s.seed = 20 + i;
    }
    return s;
}

static const uint32_t short_prompts[N_REQUESTS] = {130, 64, 399, 70, 256, 5, 191, 320};
static const uint32_t long_prompts[N_REQUESTS] = {610, 449, 899, 70, 768, 704, 513, 640}; /* the fourth fits memory */

static void setup(fx_t *f, const uint32_t *lengths)
{
    memset(f, 0, sizeof *f);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    node_engine_opts_t eo;
    node_engine_opts_default(&eo);
    eo.max_rows = MAX_ROWS; /* a few pages are enough for a pass, and eight long drafts are not one */
    GEN_OK(node_engine_create(f->model.gguf, f->model.tok, &eo, &f->engine, &gen_err));
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        gen_prompt(60 + i, f->prompts[i], lengths[i]);
        f->requests[i] = (gen_request_t){.engine = f->engine,
                                         .prompt = f->prompts[i],
                                         .n_prompt = lengths[i],
                                         .max_tokens = 17 + 5 * i,
                                         .sampling = sampling_of(i)};
        gen_run(&f->requests[i], &f->base[i]);
    }
}

static void teardown(fx_t *f)
{
    node_engine_destroy(f->engine);
    gen_model_close(&f->model);
}

static vc_status_t compress(void *arg, const node_kv_t *full, const uint32_t *tokens, uint32_t n_tokens,
                            node_body_t **body_p, vc_err_t *err)
{
    run_t *r = arg;
    return node_local_body(r->f->engine, &r->parsed, full, tokens, n_tokens / NODE_TILE, body_p, err);
}

static void ended(void *arg, const node_batch_end_t *end)
{
    run_t *r = arg;
    uint32_t i = (uint32_t)(uintptr_t)end->user;
    cr_assert_eq(end->id, r->ids[i]);
    r->n_ended[i]++;
    if (end->status == VC_ERR_CANCELLED) {
        r->n_cancelled++;
        return;
    }
    if (r->damage_at && end->status == VC_ERR_CORRUPT) {
        cr_assert_neq(strstr(end->error, "damaged"), NULL, "%s", end->error);
        r->n_damaged++;
        return;
    }
    cr_assert_eq(end->status, VC_OK, "request %u: %s", i, end->error);
    gen_collect(end->v, &r->got[i]);
    GEN_EQUAL(&r->f->base[i], &r->got[i], "request %u of %u, x %u, %s, %s", i, r->n, r->x,
              r->spec ? r->spec : "full KV", r->lock_step ? "lock-step" : "staggered");
}

static void add(run_t *r, node_batch_t *b, uint32_t i)
{
    const gen_request_t *g = &r->f->requests[i];
    node_batch_request_t q = {.prompt = g->prompt, .n_prompt = g->n_prompt, .user = (void *)(uintptr_t)i};
    node_verifier_opts_default(&q.verifier);
    q.verifier.sampling = gen_sampling(g);
    q.verifier.max_tokens = g->max_tokens;
    GEN_OK(node_batch_add(b, &q, &r->ids[i], &gen_err));
}

/* The first file of the tier, which has no name: all of it is overwritten. */
static void damage_a_file(void)
{
    DIR *fds = opendir("/proc/self/fd");
    static uint8_t junk[1 << 16];
    bool found = false;
    memset(junk, 0x5a, sizeof junk);
    for (struct dirent *e; !found && (e = readdir(fds)) != NULL;) {
        char path[300], target[300] = "";
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, "(deleted)") || stat(path, &st) != 0 ||
            !S_ISREG(st.st_mode) || st.st_size < 1 << 16)
            continue;
        found = true;
        int fd = open(path, O_WRONLY); /* not direct: any bytes may be written */
        cr_assert_geq(fd, 0);
        for (off_t at = 0; at < st.st_size; at += (off_t)sizeof junk)
            cr_assert_gt(pwrite(fd, junk, (size_t)VC_MIN((off_t)sizeof junk, st.st_size - at), at), 0);
        cr_assert_eq(fsync(fd), 0);
        close(fd);
    }
    closedir(fds);
    cr_assert(found, "a file of the tier");
}

/* Requests come one by one and some are cancelled at a moment of the generator's choice. */
static void run(run_t *r)
{
    node_batch_opts_t o;
    node_batch_t *b;
    uint64_t rng = r->seed;
    node_batch_opts_default(&o);
    o.engine = r->f->engine;
    o.max_running = r->max_running ? r->max_running : N_REQUESTS;
    o.draft_length = r->x;
    o.prompt_rows = r->prompt_rows ? r->prompt_rows : 32;
    o.lock_step = r->lock_step;
    o.ended = ended;
    o.arg = r;
    if (r->dir) {
        node_kv_dims_t d;
        node_engine_kv_dims(r->f->engine, &d);
        o.kv_ram = (uint64_t)o.max_running * r->n_pages * d.n_layer * d.n_kv_head * 2 * NODE_TILE * d.head_dim * 2;
        o.kv_dir = r->dir;
        o.max_tokens = 1024;
        o.window = 32;
        o.link_rate = 1e8 * (double)(1 + r->delay_seed % 5);
        o.delay_seed = r->delay_seed;
    }
    if (r->spec) {
        GEN_OK(node_spec_parse(r->spec, &r->parsed, &gen_err));
        o.compress = compress;
    }
    GEN_OK(node_batch_create(&o, &b, &gen_err));
    uint32_t added = 0;
    bool busy = true;
    for (uint32_t k = 0; busy || added < r->n; k++) {
        while (added < r->n && (!r->seed || !busy || draw(&rng, 6) == 0))
            add(r, b, added++);
        if (r->seed && added && draw(&rng, 25) == 0) {
            uint32_t i = (uint32_t)draw(&rng, added);
            vc_status_t expected = r->n_ended[i] ? VC_ERR_NOT_FOUND : VC_OK;
            cr_assert_eq(node_batch_cancel(b, r->ids[i]), expected);
        }
        if (r->damage_at && k == r->damage_at)
            damage_a_file();
        GEN_OK(node_batch_step(b, &busy, &gen_err));
        cr_assert_lt(k, 5000);
    }
    node_batch_info(b, &r->info);
    node_batch_destroy(b);
    for (uint32_t i = 0; i < r->n; i++)
        cr_assert_eq(r->n_ended[i], 1);
}

Test(identity_batch, one_to_eight_requests_in_memory_commit_what_each_commits_alone)
{
    static const uint32_t lengths[] = {0, 1, 4, 16, 64, NODE_DRAFT_AUTO};
    static const char *const specs[] = {"rot:bits=4", "none", "snapkv:keep=0.25,window=32", "noise:eps=0.5,seed=3",
                                        NULL};
    fx_t f;
    setup(&f, short_prompts);
    uint64_t together = 0, alone = 0;
    for (uint32_t n = 1; n <= N_REQUESTS; n++)
        for (uint32_t i = n % 2; i < VC_ARRAY_LEN(lengths); i += 2) { /* every length beside four counts */
            run_t r = {.f = &f,
                       .spec = specs[(n + i) % VC_ARRAY_LEN(specs)],
                       .n = n,
                       .x = lengths[i],
                       .prompt_rows = 7 + 20 * i,
                       .lock_step = (n + i / 2) % 2};
            run(&r);
            cr_assert_eq(r.n_cancelled, 0);
            together += r.info.n_passes;
            alone += r.info.draft_rows + r.info.n_verified;
        }
    cr_assert_lt(2 * together, alone, "%llu passes for %llu steps", (unsigned long long)together,
                 (unsigned long long)alone);
    teardown(&f);
}

Test(identity_batch, late_arrivals_and_cancellations_change_nothing_for_the_others)
{
    fx_t f;
    setup(&f, short_prompts);
    uint32_t cancelled = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run_t r = {.f = &f,
                   .spec = seed % 3 ? "kivi:bits=2,group=16,residual=64" : "none",
                   .n = N_REQUESTS,
                   .x = seed % 4 ? (uint32_t)seed % 9 : NODE_DRAFT_AUTO,
                   .max_running = 1 + (uint32_t)seed % 5,
                   .lock_step = seed % 2,
                   .seed = seed};
        run(&r);
        cancelled += r.n_cancelled;
    }
    cr_assert_gt(cancelled, 5);
    cr_assert_lt(cancelled, 50);
    teardown(&f);
}

Test(identity_batch, full_kv_on_disk_and_delays_drawn_by_chance_change_nothing)
{
    static const uint32_t lengths[] = {4, 0, NODE_DRAFT_AUTO, 16, 64, 1};
    static const char *const specs[] = {"rot:bits=4", "snapkv:keep=0.25,window=32", "none"};
    vt_tmpdir_t dir;
    fx_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    uint64_t streamed = 0;
    for (uint32_t k = 0; k < 8; k++) {
        run_t r = {.f = &f,
                   .spec = specs[k % VC_ARRAY_LEN(specs)],
                   .n = 1 + (k * 5) % N_REQUESTS,
                   .x = lengths[k % VC_ARRAY_LEN(lengths)],
                   .max_running = 1 + (k + 3) % N_REQUESTS,
                   .lock_step = k % 3 == 2,
                   .dir = vt_tmpdir_path(&dir, ""),
                   .n_pages = 5 + k % 3,
                   .delay_seed = 1 + k,
                   .seed = k % 2 ? k : 0};
        run(&r);
        streamed += r.info.link_bytes;
    }
    cr_assert_gt(streamed, 50u << 20);
    vt_tmpdir_remove(&dir);
    teardown(&f);
}

Test(identity_batch, without_a_compressed_copy_drafts_never_bring_full_kv_back_from_disk)
{
    vt_tmpdir_t dir;
    fx_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    run_t memory = {.f = &f, .n = 3, .x = 4}, disk = memory;
    run(&memory);
    cr_assert_gt(memory.info.draft_rows, 0);
    disk.dir = vt_tmpdir_path(&dir, "");
    disk.n_pages = 5;
    run(&disk);
    cr_assert_gt(disk.info.link_bytes, 0);
    cr_assert_eq(disk.info.draft_rows, 0);
    vt_tmpdir_remove(&dir);
    teardown(&f);
}

Test(identity_batch, a_request_whose_file_is_damaged_ends_with_a_sentence_and_the_others_go_on)
{
    vt_tmpdir_t dir;
    fx_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    for (uint32_t lock_step = 0; lock_step < 2; lock_step++) {
        run_t r = {.f = &f,
                   .spec = "rot:bits=4",
                   .n = 3,
                   .x = 4,
                   .lock_step = lock_step,
                   .dir = vt_tmpdir_path(&dir, ""),
                   .n_pages = 5,
                   .damage_at = 34}; /* the prompts are done, no answer is */
        run(&r);
        cr_assert_eq(r.n_damaged, 1);
    }
    vt_tmpdir_remove(&dir);
    teardown(&f);
}
