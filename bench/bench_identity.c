/*
 * A soak of identity: is what is committed the same, bit for bit, however it was made? Random requests on small random
 * models and, where one is named, on a real one. Each is decoded plainly and then several times in ways drawn at
 * random: compressor, draft source, draft length, threads, instruction set, prefill cut, prefix hit, resumption, slow
 * tier with and without a pool and with transfers held back; and with others in batches of 1 to 8. Tokens, the reason
 * of the end, a digest of the committed logits and one of the full KV are compared. A difference is printed with all
 * its parameters; the exit code is 1 then. The figure is the number of differences: 0.
 *   --seconds N (default 60; --quick 8), or --requests N instead
 *   --seed N (default 1), --only REQUEST[.RUN]: that one again; --only A,B,C:N: batch N of these
 *   --model FILE (else VERICACHE_MODEL; without either small models only), --file-share N of 1000 requests (default 60)
 *   --text-dir DIR, --dir DIR for the files of the slow tier
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "identity_parts.h"
#include "vc/log.h"

enum { MOST_DIFFERENCES = 10 };

typedef struct {
    uint64_t seed;
    identity_model_t file, small;
    bool has_file;
    uint64_t small_of; /* requests / IDENTITY_SAME that the small model is for */
    uint32_t file_share, batch;
    identity_group_t groups[2]; /* of small models, of the file's */
    uint64_t requests, runs, proposed, accepted, differences, refused;
    bench_samples_t resident; /* MiB, after every request */
} soak_t;

static double resident_mib(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL && fscanf(f, "%*u %llu", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576;
}

/* What a method says no to is no difference, but is told once. */
static bool is_refusal(vc_status_t st) { return st == VC_ERR_UNSUPPORTED || st == VC_ERR_INVALID; }

static void told_once(const char *spec, const char *sentence)
{
    static char seen[64][200];
    static uint32_t n_seen;
    for (uint32_t i = 0; i < n_seen; i++)
        if (strncmp(seen[i], sentence, sizeof seen[i] - 1) == 0)
            return;
    if (n_seen < VC_ARRAY_LEN(seen))
        snprintf(seen[n_seen++], sizeof seen[0], "%.199s", sentence);
    bench_note("refused: %s: %s", spec ? spec : "no compressor", sentence);
}

static void group_clear(identity_group_t *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        node_verifier_destroy(g->members[i]->plain);
        vc_free(g->members[i]);
    }
    g->n = 0;
}

static void one_run(soak_t *k, identity_model_t *m, const identity_request_t *q, uint32_t index, node_verifier_t *plain,
                    const identity_result_t *base)
{
    identity_run_t v;
    identity_result_t got;
    vc_err_t err = {0};
    char words[200] = "";
    identity_draw_run(m, q, index, &v);
    vc_status_t st = identity_run(m, q, &v, plain, base, &got, &err);
    if (is_refusal(st)) {
        told_once(v.spec, err.msg);
        k->refused++;
        return;
    }
    if (st == VC_OK)
        identity_compare(base, &got, words, sizeof words);
    else
        snprintf(words, sizeof words, "%s: %.150s", vc_status_name(st), err.msg);
    k->runs++;
    k->proposed += got.proposed;
    k->accepted += got.accepted;
    identity_count(m, q, &v, &got);
    if (words[0]) {
        k->differences++;
        printf("DIFFERENT: %s\n", words);
        identity_describe(stdout, m, q, &v);
        fflush(stdout);
    }
}

static identity_model_t *model_of(soak_t *k, uint32_t index)
{
    identity_rng_t r = identity_rng(k->seed, index, 4);
    if (k->has_file && identity_chance(&r, k->file_share))
        return &k->file;
    if (k->small_of != index / IDENTITY_SAME) {
        group_clear(&k->groups[0]);
        identity_model_close(&k->small);
        identity_model_small(&k->small, k->seed, index);
        k->small_of = index / IDENTITY_SAME;
    }
    return &k->small;
}

/* Draws a request, decodes it plainly, and adds it to its model's group. */
static identity_member_t *join(soak_t *k, uint32_t index)
{
    identity_model_t *m = model_of(k, index);
    identity_group_t *g = &k->groups[m->is_file];
    identity_member_t *member = vc_calloc(1, sizeof *member);
    if (!member)
        bench_fail("out of memory");
    g->model = m;
    g->seed = k->seed;
    identity_draw_request(m, k->seed, index, &member->q);
    identity_plain(m, &member->q, &member->plain, &member->base);
    g->members[g->n++] = member;
    return member;
}

static void different_in_batch(void *arg, const identity_member_t *m, const char *how, const char *words)
{
    soak_t *k = arg;
    const identity_group_t *g = &k->groups[m->q.of_file];
    k->differences++;
    printf("DIFFERENT: request %u in a batch of %s: %s\n  model: %s\n  repeat with --seed %" PRIu64 " --only ",
           m->q.index, how, words, g->model->name, k->seed);
    for (uint32_t i = 0; i < g->n; i++)
        printf("%s%u", i ? "," : "", g->members[i]->q.index);
    printf(":%u\n", k->batch);
    fflush(stdout);
}

static void one_batch(soak_t *k, identity_group_t *g, uint32_t index)
{
    identity_result_t sum = {0};
    k->batch = index;
    identity_batch(g, index, different_in_batch, k, &sum);
    k->runs += sum.n;
    k->proposed += sum.proposed;
    k->accepted += sum.accepted;
}

/* only: one run of it; 0: all. */
static void one_request(soak_t *k, uint32_t index, uint32_t only)
{
    identity_member_t *member = join(k, index);
    const bool of_file = member->q.of_file;
    identity_group_t *g = &k->groups[of_file];
    for (uint32_t run = 1; run <= IDENTITY_RUNS; run++)
        if (!only || run == only)
            one_run(k, g->model, &member->q, run, member->plain, &member->base);
    k->requests++;
    bool last_of_model = !of_file && index % IDENTITY_SAME == IDENTITY_SAME - 1;
    if (!only && (last_of_model || g->n == (of_file ? IDENTITY_GROUP / 2 : IDENTITY_GROUP))) {
        for (uint32_t i = 1; i <= IDENTITY_BATCHES; i++)
            one_batch(k, g, i);
        group_clear(g);
    }
    if (of_file)
        identity_model_trim(&k->file);
    bench_add(&k->resident, resident_mib());
}

static void print_progress(const soak_t *k, double seconds)
{
    printf("%6.0f s  %8" PRIu64 " requests  %9" PRIu64 " runs  %10" PRIu64 " drafts, %" PRIu64
           " accepted  %6.1f MiB resident  %" PRIu64 " different\n",
           seconds, k->requests, k->runs, k->proposed, k->accepted, resident_mib(), k->differences);
    fflush(stdout);
}

static void soak(soak_t *k)
{
    double limit = bench_number("seconds", bench_quick() ? "8" : "60", 1, 1e7), start = bench_now_s(), next = 0;
    uint32_t most = (uint32_t)bench_number("requests", "0", 0, 1e9);
    for (uint32_t i = 0; k->differences < MOST_DIFFERENCES; i++) {
        double now = bench_now_s() - start;
        if (most ? i >= most : now >= limit)
            break;
        if (now >= next) {
            print_progress(k, now);
            next = now + VC_MAX(10.0, limit / 30);
        }
        one_request(k, i, 0);
    }
    print_progress(k, bench_now_s() - start);
}

/* A,B,C:N */
static void repeat_batch(soak_t *k, const char *only)
{
    char *end;
    identity_group_t *g = NULL;
    for (;; only = end + 1) {
        uint32_t index = (uint32_t)strtoul(only, &end, 10);
        if (end == only || (*end != ',' && *end != ':') || (g != NULL && g->n == IDENTITY_GROUP))
            bench_fail("--only A,B,C:N takes at most %d requests and the number of the batch", IDENTITY_GROUP);
        g = &k->groups[join(k, index)->q.of_file];
        if (*end == ':')
            break;
    }
    one_batch(k, g, (uint32_t)strtoul(end + 1, NULL, 10));
}

static void repeat(soak_t *k, const char *only)
{
    char *end;
    if (strchr(only, ':')) {
        repeat_batch(k, only);
        print_progress(k, 0);
        return;
    }
    unsigned long request = strtoul(only, &end, 10), run = *end == '.' ? strtoul(end + 1, &end, 10) : 0;
    if (*end || end == only || run > IDENTITY_RUNS)
        bench_fail("--only takes REQUEST or REQUEST.RUN, RUN from 1 to %d, not %s", IDENTITY_RUNS, only);
    one_request(k, (uint32_t)request, (uint32_t)run);
    print_progress(k, 0);
}

/* Models come and go, so that the halves of the time are compared and not two moments. */
static void report_memory(soak_t *k)
{
    bench_samples_t half[2] = {0};
    for (size_t i = 0; i < k->resident.n; i++)
        bench_add(&half[2 * i >= k->resident.n], k->resident.v[i]);
    bench_row("resident, first half", "MiB", &half[0]);
    bench_row("resident, second half", "MiB", &half[1]);
    bench_note("resident at most: %.1f MiB, then %.1f MiB", bench_max(&half[0]), bench_max(&half[1]));
    bench_samples_free(&half[0]);
    bench_samples_free(&half[1]);
    bench_samples_free(&k->resident);
}

int main(int argc, char **argv)
{
    static soak_t k;
    bench_init("identity", argc, argv);
    bench_options("seconds requests seed only model file-share text-dir dir");
    vc_log_set_level(VC_LOG_WARN);
    const char *path = bench_option("model", getenv("VERICACHE_MODEL")), *only = bench_option("only", NULL);
    k.seed = (uint64_t)bench_number("seed", "1", 0, 9007199254740992.0);
    k.file_share = (uint32_t)bench_number("file-share", "60", 0, 1000);
    k.small_of = UINT64_MAX;
    k.has_file = path != NULL && path[0] != '\0';
    if (k.has_file)
        identity_model_file(&k.file, path);
    bench_note("seed %" PRIu64 ", %s", k.seed, k.has_file ? k.file.name : "small models only");
    if (only)
        repeat(&k, only);
    else
        soak(&k);
    identity_print_counts();
    report_memory(&k);
    bench_note("%" PRIu64 " refused", k.refused);
    bench_figure("identity_runs", (double)k.runs);
    bench_figure("identity_accepted", (double)k.accepted);
    bench_figure("identity_differences", (double)k.differences);
    group_clear(&k.groups[0]);
    group_clear(&k.groups[1]);
    identity_model_close(&k.small);
    if (k.has_file)
        identity_model_close(&k.file);
    identity_texts_free();
    return k.differences != 0;
}
