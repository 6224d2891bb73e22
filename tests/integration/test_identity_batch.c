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

#include "support/batching.h"
#include "support/tmpdir.h"

enum { N_REQUESTS = BATCHING_MAX, PROMPT_MAX = 900, MAX_ROWS = 72, STEP = VT_EVERY > 1 ? 6 : 2 };

static const uint32_t short_prompts[N_REQUESTS] = {130, 64, 399, 70, 256, 5, 191, 320};
static const uint32_t long_prompts[N_REQUESTS] = {610, 449, 899, 70, 768, 704, 513, 640}; /* the fourth fits memory */

/* Prompts are the fixture's: tests of a suite run in processes or one after the other. */
static uint32_t prompts[N_REQUESTS][PROMPT_MAX];

static void setup(batching_t *f, const uint32_t *lengths)
{
    memset(f, 0, sizeof *f);
    tiny_model_opts_t o;
    tiny_model_opts_default(&o);
    gen_model_open(&f->model, &o);
    batching_engine(f, MAX_ROWS);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        gen_prompt(60 + i, prompts[i], lengths[i]);
        batching_request(f, i,
                         &(gen_request_t){.prompt = prompts[i], .n_prompt = lengths[i], .max_tokens = 17 + 5 * i});
    }
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

Test(identity_batch, one_to_eight_requests_in_memory_commit_what_each_commits_alone)
{
    static const uint32_t lengths[] = {0, 1, 4, 16, 64, NODE_DRAFT_AUTO};
    static const char *const specs[] = {"rot:bits=4", "none", "snapkv:keep=0.25,window=32", "noise:eps=0.5,seed=3",
                                        NULL};
    batching_t f;
    setup(&f, short_prompts);
    uint64_t together = 0, alone = 0;
    for (uint32_t n = 1; n <= N_REQUESTS; n++)
        for (uint32_t i = n % STEP; i < VC_ARRAY_LEN(lengths); i += STEP) { /* every length beside four counts */
            batching_run_t r = {.f = &f,
                                .spec = specs[(n + i) % VC_ARRAY_LEN(specs)],
                                .n = n,
                                .x = lengths[i],
                                .prompt_rows = 7 + 20 * i,
                                .lock_step = (n + i / 2) % 2,
                                .source = (n / 2 + i) % 2};
            batching_go(&r);
            cr_assert_eq(r.n_cancelled, 0);
            together += r.info.n_passes;
            alone += r.info.draft_rows + r.info.n_verified;
        }
    cr_assert_lt(2 * together, alone, "%llu passes for %llu steps", (unsigned long long)together,
                 (unsigned long long)alone);
    batching_close(&f);
}

/* Every look at it is a millisecond later: passes of all widths take the same time. */
static uint64_t next_ms(void *arg) { return *(uint64_t *)arg += 1000; }

Test(identity_batch, a_sources_proposals_are_rounds_of_their_own_where_rows_cost_nothing)
{
    uint64_t now_us = 0;
    const vc_clock_t clock = {.mono_us = next_ms, .wall_us = next_ms, .arg = &now_us};
    batching_t f;
    setup(&f, short_prompts);
    for (uint32_t copy = 0; copy < 2; copy++) {
        batching_run_t r = {
            .f = &f, .spec = copy ? "rot:bits=4" : NULL, .n = 4, .x = NODE_DRAFT_AUTO, .source = true, .clock = &clock};
        batching_go(&r);
        cr_assert_gt(r.n_source_rounds, 0, "%s", copy ? "beside a copy" : "alone");
        cr_assert(copy || r.info.draft_rows == 0);
    }
    batching_close(&f);
}

Test(identity_batch, late_arrivals_and_cancellations_change_nothing_for_the_others)
{
    batching_t f;
    setup(&f, short_prompts);
    uint32_t cancelled = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        batching_run_t r = {.f = &f,
                            .spec = seed % 3 ? "kivi:bits=2,group=16,residual=64" : "none",
                            .n = N_REQUESTS,
                            .x = seed % 4 ? (uint32_t)seed % 9 : NODE_DRAFT_AUTO,
                            .max_running = 1 + (uint32_t)seed % 5,
                            .lock_step = seed % 2,
                            .seed = seed};
        batching_go(&r);
        cancelled += r.n_cancelled;
    }
    cr_assert_gt(cancelled, 5);
    cr_assert_lt(cancelled, 50);
    batching_close(&f);
}

Test(identity_batch, full_kv_on_disk_and_delays_drawn_by_chance_change_nothing)
{
    static const uint32_t lengths[] = {4, 0, NODE_DRAFT_AUTO, 16, 64, 1};
    static const char *const specs[] = {"rot:bits=4", "snapkv:keep=0.25,window=32", "none"};
    vt_tmpdir_t dir;
    batching_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    uint64_t streamed = 0;
    for (uint32_t k = 0; k < 8; k += VT_EVERY) {
        batching_run_t r = {.f = &f,
                            .spec = specs[k % VC_ARRAY_LEN(specs)],
                            .n = 1 + (k * 5) % N_REQUESTS,
                            .x = lengths[k % VC_ARRAY_LEN(lengths)],
                            .max_running = 1 + (k + 3) % N_REQUESTS,
                            .lock_step = k % 3 == 2,
                            .source = k % 4 / 2,
                            .dir = vt_tmpdir_path(&dir, ""),
                            .n_pages = 5 + k % 3,
                            .delay_seed = 1 + k,
                            .seed = k % 2 ? k : 0};
        batching_go(&r);
        streamed += r.info.link_bytes;
    }
    cr_assert_gt(streamed, (50u << 20) / VT_EVERY);
    vt_tmpdir_remove(&dir);
    batching_close(&f);
}

Test(identity_batch, without_a_compressed_copy_drafts_never_bring_full_kv_back_from_disk)
{
    vt_tmpdir_t dir;
    batching_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    batching_run_t memory = {.f = &f, .n = 3, .x = 4}, disk = memory;
    batching_go(&memory);
    cr_assert_gt(memory.info.draft_rows, 0);
    disk.dir = vt_tmpdir_path(&dir, "");
    disk.n_pages = 5;
    batching_go(&disk);
    cr_assert_gt(disk.info.link_bytes, 0);
    cr_assert_eq(disk.info.draft_rows, 0);
    vt_tmpdir_remove(&dir);
    batching_close(&f);
}

static void damage_once(batching_run_t *r, uint32_t k)
{
    (void)r;
    if (k == 34) /* the prompts are done, no answer is */
        damage_a_file();
}

Test(identity_batch, a_request_whose_file_is_damaged_ends_with_a_sentence_and_costs_the_others_one_pass)
{
    vt_tmpdir_t dir;
    batching_t f;
    setup(&f, long_prompts);
    vt_tmpdir_create(&dir);
    for (uint32_t lock_step = 0; lock_step < 2; lock_step++) {
        batching_run_t r = {.f = &f,
                            .spec = "rot:bits=4",
                            .n = 3,
                            .x = 4,
                            .lock_step = lock_step,
                            .dir = vt_tmpdir_path(&dir, ""),
                            .n_pages = 5,
                            .before_step = damage_once,
                            .damage = true};
        batching_go(&r);
        cr_assert_eq(r.n_damaged, 1);
        cr_assert_leq(r.info.n_passes, r.info.n_iterations + 1);
    }
    vt_tmpdir_remove(&dir);
    batching_close(&f);
}
