/* The first hit after a kill, with many objects. Part of bench_store. */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store_target.h"

/* ---- restart ---- */

static void open_small(target_t *t, const char *dir)
{
    make_names(t, (vc_kv_shape_t){1, 1, 16, 4, VC_DTYPE_F16}, 64); /* a record is 8 KiB */
    open_target(t, dir, SMALL_CHAIN, (uint64_t)2 << 30, 0);
}

static void fill_chain(target_t *t, uint32_t seed, bool is_committed)
{
    static uint32_t tokens[SMALL_CHAIN * 4];
    static uint8_t missing[SMALL_CHAIN];
    cs_upload_info_t info;
    gate_t gate;
    vc_digest_t hash, parent = t->ks_id;
    gate_init(&gate);
    chain_tokens(t, seed, SMALL_CHAIN, tokens);
    OK(cs_store_begin(t->store, &t->ks, tokens, 0, SMALL_CHAIN, &t->fids[FULL], 1, &info, missing, &err));
    for (uint32_t i = 0; i < SMALL_CHAIN; i++) {
        cs_buf_t *buf = cs_bufpool_at(t->pool, i);
        uint32_t bytes = make_record(t, FULL, tokens, i, &parent, buf->data, buf->cap, &hash);
        OK(cs_store_put(t->store, NULL, info.upload_id, &info.token, buf, bytes, gate_signal, &gate, &err));
        parent = hash;
    }
    gate_wait(&gate, SMALL_CHAIN);
    if (is_committed) {
        OK(cs_store_commit(t->store, info.upload_id, &info.token, gate_signal, &gate, &err));
        gate_wait(&gate, SMALL_CHAIN + 1);
    }
    gate_fini(&gate);
}

/* In a process of its own: fills the store and dies by SIGKILL in the middle of one more upload. */
void child_fill(const char *dir, uint32_t n_objects)
{
    target_t t;
    open_small(&t, dir);
    for (uint32_t seed = 0; seed < n_objects / SMALL_CHAIN; seed++)
        fill_chain(&t, seed, true);
    fill_chain(&t, n_objects, false);
    printf("filled\n");
    fflush(stdout);
    raise(SIGKILL);
}

/* In a process of its own: open, look up a chain, read its first record, die by SIGKILL again. */
void child_hit(const char *dir, uint32_t seed)
{
    static uint32_t tokens[SMALL_CHAIN * 4];
    static vc_digest_t hashes[SMALL_CHAIN];
    target_t t;
    cs_lookup_result_t found;
    cs_pin_t pin;
    gate_t gate;
    open_small(&t, dir);
    gate_init(&gate);
    chain_tokens(&t, seed, SMALL_CHAIN, tokens);
    vc_block_chain(&t.ks_id, tokens, SMALL_CHAIN * 4, 4, hashes);
    OK(cs_store_lookup(t.store, &t.ks_id, hashes, SMALL_CHAIN, &t.fids[FULL], 1, true, &found, &err));
    if (found.n_blocks[0] != SMALL_CHAIN)
        bench_fail("%u of %u blocks found after the restart", found.n_blocks[0], SMALL_CHAIN);
    OK(cs_store_pin_leased(t.store, cs_store_boot_id(t.store), found.lease_id, &found.token, 0, 0, &pin));
    OK(cs_store_read(t.store, NULL, &pin, cs_bufpool_at(t.pool, 0), gate_signal, &gate));
    gate_wait(&gate, 1);
    printf("hit\n");
    fflush(stdout);
    raise(SIGKILL);
}

static double run_child(const char *what, const char *dir, uint32_t number, const char *expected)
{
    char out[16384], n[16];
    snprintf(n, sizeof(n), "%u", number);
    char *argv[] = {"/proc/self/exe", "--child", (char *)what, "--data", (char *)dir, "--number", n, NULL};
    double t0 = bench_now_s();
    (void)bench_run(argv, out, sizeof(out)); /* it kills itself */
    double s = bench_now_s() - t0;
    if (!strstr(out, expected))
        bench_fail("the process that was to %s did not: %.300s", what, out);
    return s;
}

static int drop_cache(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)at;
    int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

void measure_restart(uint32_t n_objects)
{
    char dir[4200];
    bench_samples_t hit = {0};
    make_bench_dir("restart", dir, sizeof(dir));
    double s = run_child("fill", dir, n_objects, "filled");
    bench_note("%u objects of 8 KiB registered in %.1f s, then SIGKILL in the middle of an upload", n_objects, s);
    for (uint32_t round = 0; round < sb.n_rounds; round++) {
        sync();
        (void)nftw(dir, drop_cache, 16, FTW_PHYS);
        bench_add(&hit, run_child("hit", dir, round % (n_objects / SMALL_CHAIN), "hit\n"));
    }
    bench_note("from exec to the first record read and checked; page cache dropped for the store's files");
    bench_row("first hit after SIGKILL", "s", &hit);
    bench_figure("store_restart_first_hit_s", bench_median(&hit));
    bench_samples_free(&hit);
}
