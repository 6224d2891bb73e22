/*
 * Sessions of one pool of the slow tier when something goes wrong: what is wrong with one file is told of its session
 * alone, and the others go on with the bits of memory.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "slow_pool_fixture.h"

typedef enum { DAMAGE, SHORT_FILE, IO_ERROR, N_FAULTS } fault_t;

/* One bit of the file, its end, or the file itself. */
static void break_file(const node_slow_t *s, fault_t fault)
{
    char path[64];
    uint8_t byte;
    off_t at = (off_t)node_slow_offset(s, 4, 1) + 1234;
    if (fault == SHORT_FILE) {
        cr_assert_eq(ftruncate(s->fd, (off_t)node_slow_offset(s, 4, 1)), 0);
        return;
    }
    if (fault == IO_ERROR) { /* reading a folder fails with an errno, as a bad sector does */
        int other = open("/", O_RDONLY | O_DIRECTORY);
        cr_assert(other >= 0 && dup2(other, s->fd) == s->fd);
        close(other);
        return;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    int fd = open(path, O_RDWR); /* not direct: any byte may be written */
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
}

/* Three sessions in a pass, the file of the second is broken: the pass names it and works without it. */
static void check_fault(fault_t fault, node_slow_io_mode_t io, uint64_t delay_seed)
{
    static const vc_status_t expected[N_FAULTS] = {VC_ERR_CORRUPT, VC_ERR_RANGE, VC_ERR_IO};
    static const char *const sentences[N_FAULTS] = {"layer 4", "layer 4 of", "Is a directory"};
    static float logits[3][TINY_N_VOCAB];
    uint32_t rows[3] = {2, 3, 1}, rest_rows[2] = {2, 1};
    node_slow_pool_opts_t o = pool_opts(8, 3);
    o.io = io;
    o.delay_seed = delay_seed;
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *pairs = open_pairs(pool, 3, 40, 650), *p[3] = {&pairs[0], &pairs[1], &pairs[2]};
    pair_t *rest[2] = {p[0], p[2]};
    GEN_OK(node_slow_prefetch(&p[0]->slow, UINT64_MAX));
    break_file(p[1]->slow.slow, fault);
    vc_err_t err = {0}, why = {0};
    cr_assert_eq(pass(p, 3, rows, true, logits[0], &err), expected[fault]);
    cr_assert_eq(node_slow_failed(&p[0]->slow, &why), VC_OK);
    cr_assert_eq(node_slow_failed(&p[2]->slow, &why), VC_OK);
    cr_assert_eq(node_slow_failed(&p[1]->slow, &why), expected[fault]);
    cr_assert_str_eq(why.msg, err.msg);
    cr_assert(strstr(why.msg, fault == SHORT_FILE ? "ends before" : sentences[fault]), "%s", why.msg);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(p[i]->slow.n_tokens, 650, "rows are taken back");
    cr_assert_eq(pass(p, 3, rows, true, logits[0], &err), VC_ERR_STALE);
    cr_assert_eq(node_slow_prefetch(&p[1]->slow, 1), VC_ERR_STALE);
    for (uint32_t i = 0; i < 3; i++)
        same_pass(rest, 2, rest_rows);
    check_digests(p[0], 1);
    check_digests(p[2], 1);
    close_pairs(pairs, 3, pool);
}

Test(slow_pool_faults, what_is_wrong_with_one_file_is_told_of_its_session_and_the_others_go_on)
{
    setup();
    static const node_slow_io_mode_t ios[] = {NODE_SLOW_IO_AUTO, NODE_SLOW_IO_THREADS, NODE_SLOW_IO_AUTO};
    for (fault_t f = DAMAGE; f < N_FAULTS; f++)
        for (uint32_t i = 0; i < VC_ARRAY_LEN(ios); i++)
            if (VT_EVERY == 1 || i == (uint32_t)f)
                check_fault(f, ios[i], i == 2 ? 5 + f : 0);
    teardown();
}

Test(slow_pool_faults, two_damaged_sessions_of_a_pass_are_both_told)
{
    setup();
    static float logits[2][TINY_N_VOCAB];
    uint32_t ones[2] = {1, 1};
    node_slow_pool_opts_t o = pool_opts(4, 2);
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *pairs = open_pairs(pool, 2, 50, 650), *p[2] = {&pairs[0], &pairs[1]};
    for (uint32_t i = 0; i < 2; i++)
        break_file(p[i]->slow.slow, DAMAGE);
    cr_assert_eq(pass(p, 2, ones, true, logits[0], NULL), VC_ERR_CORRUPT);
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(node_slow_failed(&p[i]->slow, NULL), VC_ERR_CORRUPT);
    close_pairs(pairs, 2, pool);
    teardown();
}

Test(slow_pool_faults, a_full_disk_is_told_to_the_session_that_meets_it)
{
    setup();
    node_slow_pool_opts_t o = pool_opts(4, 1);
    node_slow_opts_t so;
    node_slow_t *slow = NULL;
    vc_err_t err = {0};
    uint32_t one = 1;
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *p = open_pairs(pool, 1, 5, 650);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {65536, 65536};
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    so = session_opts(pool);
    cr_assert_eq(node_slow_create(&dims, &so, &slow, &err), VC_ERR_NOSPACE);
    cr_assert(strstr(err.msg, "no room for") && strstr(err.msg, dir.path), "%s", err.msg);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    same_pass(&p, 1, &one);
    check_digests(p, 1);
    close_pairs(p, 1, pool);
    teardown();
}
