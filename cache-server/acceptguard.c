/* Our accept4 goes to the kernel by itself: asking the next library for its own would only be a detour. */
#include "acceptguard.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vc/mem.h"

#define RESERVE 128 /* for files of the store */

static _Atomic int highest = INT_MAX; /* relaxed, like the counter: a connection more or less does not matter */
static _Atomic uint64_t refused;

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    for (;;) {
        socklen_t room = len != NULL ? *len : 0;
        int got = (int)syscall(SYS_accept4, fd, addr, len, flags);
        if (got < 0 || got <= atomic_load_explicit(&highest, memory_order_relaxed))
            return got;
        /* counted before the peer can know, so that it finds itself in the statistics that it asks for next */
        atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed);
        close(got);
        if (len != NULL)
            *len = room;
    }
}

static uint64_t open_now(void)
{
    uint64_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - VC_MIN(n, 3); /* ".", ".." and its own */
}

void cs_acceptguard_set(uint64_t max_connections)
{
    struct rlimit rl = {0};
    uint64_t most = getrlimit(RLIMIT_NOFILE, &rl) == 0 ? rl.rlim_cur : 1024;
    most = most > RESERVE ? most - RESERVE : 1;
    if (max_connections != 0)
        most = VC_MIN(most, open_now() + max_connections);
    atomic_store_explicit(&highest, (int)VC_MIN(most, INT_MAX) - 1, memory_order_relaxed);
}

uint64_t cs_acceptguard_refused(void) { return atomic_load_explicit(&refused, memory_order_relaxed); }
