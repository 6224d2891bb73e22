/* Proves that vericache-server refuses limits that cannot work with one sentence, and keeps the number of its
 * connections. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/server_proc.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/status.h"
#include "vericache/vericache.h"

#define WAIT_MS 60000

static void refused(const vt_tmpdir_t *dir, const char *a, const char *b, int code, const char *sentence)
{
    const char *args[] = {"--data-dir", vt_tmpdir_path(dir, "data"), "--listen", "127.0.0.1:0", a, b, NULL};
    char *out = NULL;
    int rc = vt_proc_run("vericache-server", args, NULL, WAIT_MS, &out);
    cr_assert_eq(rc, code, "%s: exit code %d: %s", a, rc, out);
    cr_assert_not_null(strstr(out, sentence), "%s: %s", a, out);
    vc_free(out);
}

Test(server_limits, limits_that_cannot_work_are_refused_with_one_sentence)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    refused(&dir, "--capacity=1MiB", NULL, 64, "--ballast=67108864 leaves nothing of --capacity=1048576");
    refused(&dir, "--capacity=66MiB", NULL, 64, "a capacity of 69206016 bytes is too small, the least that works is");
    refused(&dir, "--ballast=1MiB", NULL, 64, "a ballast of 1048576 bytes is too small, the least is");
    refused(&dir, "--ram=1000TB", NULL, 64, "--ram: ");
    refused(&dir, "--ram=9TB", NULL, 64, "bytes of memory of this machine");
    refused(&dir, "--tenant-quota=20GiB", NULL, 64, "--tenant-quota=21474836480 is more than --capacity=10737418240");
    refused(&dir, "--tenant-quota=1MiB", NULL, 64, "does not hold one record of --max-record=4194304");
    refused(&dir, "--max-uploads=0", NULL, 64, "--max-uploads: '0' is outside 1 to 65535");
    refused(&dir, "--max-uploads=70000", NULL, 64, "--max-uploads: '70000' is outside 1 to 65535");
    refused(&dir, "--max-connections=999999", NULL, 75, "open files are allowed, the least that works with");
    vt_tmpdir_remove(&dir);
}

static void limit(int what, rlim_t soft)
{
    struct rlimit rl; /* of this test's own process, handed down */
    cr_assert_eq(getrlimit(what, &rl), 0);
    rl.rlim_cur = soft;
    cr_assert_eq(setrlimit(what, &rl), 0);
}

Test(server_limits, a_limit_on_the_length_of_files_is_an_error_and_not_a_signal)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    limit(RLIMIT_FSIZE, 1000000);
    refused(&dir, "--ballast=16MiB", NULL, 74, "cannot allocate the ballast of 16777216 bytes: File too large");
    vt_tmpdir_remove(&dir);
}

#ifndef __SANITIZE_ADDRESS__ /* which needs terabytes of addresses */
#ifndef __SANITIZE_THREAD__
Test(server_limits, too_little_address_space_for_threads_is_refused_with_one_sentence)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    limit(RLIMIT_AS, (rlim_t)800 << 20);
    refused(&dir, "--ram=256MiB", NULL, 70, "(ulimit -v), leaves no 536870912 for the threads");
    vt_tmpdir_remove(&dir);
}
#endif
#endif

static int dial(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = (in_port_t)__builtin_bswap16((uint16_t)atoi(strrchr(address, ':') + 1));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* True when the server speaks first, as HTTP/2 has it; false when it hung up. */
static bool is_taken(int fd)
{
    static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    char byte;
    (void)!send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
    return recv(fd, &byte, 1, 0) == 1;
}

Test(server_limits, connections_beyond_the_limit_are_closed_and_the_others_served)
{
    enum { MOST = 20, TRIES = 60 };
    vt_tmpdir_t dir;
    char address[128];
    int fds[TRIES];
    uint32_t n = 0;
    vt_tmpdir_create(&dir);
    const char *args[] = {"--data-dir", vt_tmpdir_path(&dir, "data"), "--listen", "127.0.0.1:0", "--capacity",
                          "256MiB",     "--max-connections=20",       NULL};
    vt_proc_t *p = server_proc_start(args, NULL, address, sizeof(address));
    vcache_options_t o;
    vcache_client_t *c = NULL, *late = NULL;
    vcache_error_t err = {0};
    vcache_options_default(&o);
    o.server = address;
    o.use_data_plane = 0;
    cr_assert_eq(vcache_connect(&o, &c, NULL), VC_OK);
    cr_assert_eq(vcache_health(c, &err), VC_OK, "%s", err.msg);
    for (uint32_t i = 0; i < TRIES; i++) {
        fds[i] = dial(address);
        n += is_taken(fds[i]);
    }
    cr_assert_leq(n, MOST);
    cr_assert_geq(n, MOST / 2); /* what the store opens meanwhile counts too */
    cr_assert_eq(vcache_health(c, &err), VC_OK, "%s", err.msg);
    static vcache_stat_t stats[512];
    uint32_t n_stats = 0;
    double n_refused = 0;
    cr_assert_eq(vcache_stats(c, stats, 512, &n_stats, &err), VC_OK);
    for (uint32_t i = 0; i < n_stats; i++)
        if (strcmp(stats[i].name, "connections_refused") == 0)
            n_refused = stats[i].value;
    cr_assert_eq(n_refused, TRIES - n);
    for (uint32_t i = 0; i < TRIES; i++)
        close(fds[i]);
    cr_assert_eq(vcache_connect(&o, &late, NULL), VC_OK);
    while (vcache_health(late, &err) != VC_OK) /* the server sees that they are gone */
        ;
    vcache_disconnect(late);
    vcache_disconnect(c);
    vt_proc_end(p);
    vt_tmpdir_remove(&dir);
}
