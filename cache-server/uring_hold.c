/* Held completions: a list in each ring, one release count for all of them. See uring_hold.h. */
#include "uring_hold.h"

#ifdef VC_FAULTS
#include <pthread.h>
#include <unistd.h>

#include "uring.h"
#include "vc/mem.h"

#define MAX_RINGS 64
#define UNTIL_RELEASE UINT32_MAX

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int rings[MAX_RINGS];
static uint32_t n_rings, n_held, releases;

void cs_hold_open(int event_fd)
{
    pthread_mutex_lock(&lock);
    if (n_rings < MAX_RINGS)
        rings[n_rings++] = event_fd;
    pthread_mutex_unlock(&lock);
}

void cs_hold_close(int event_fd)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n_rings; i++) {
        if (rings[i] == event_fd) {
            rings[i] = rings[--n_rings];
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void cs_hold_add(cs_hold_list_t *list, struct cs_io *io, int32_t result, unsigned long deliveries)
{
    struct cs_io **end = &list->first;
    while (*end)
        end = &(*end)->next;
    io->next = NULL;
    io->result = result;
    io->hold_left = deliveries == 0 ? UNTIL_RELEASE : (uint32_t)VC_MIN(deliveries, (unsigned long)UNTIL_RELEASE - 1);
    *end = io;
    list->n++;
    pthread_mutex_lock(&lock);
    io->hold_release = releases;
    n_held++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void cs_hold_count(cs_hold_list_t *list)
{
    for (struct cs_io *io = list->first; io; io = io->next) {
        if (io->hold_left != UNTIL_RELEASE && io->hold_left > 0)
            io->hold_left--;
    }
}

struct cs_io *cs_hold_take(cs_hold_list_t *list, bool all, bool idle, int32_t *result_p)
{
    if (!list->first)
        return NULL;
    pthread_mutex_lock(&lock);
    struct cs_io **at = &list->first, *io;
    while ((io = *at)) {
        bool counts = io->hold_left != UNTIL_RELEASE;
        if (all || io->hold_release != releases || io->hold_left == 0 || (idle && counts))
            break;
        at = &io->next;
    }
    if (io) {
        *at = io->next;
        *result_p = io->result;
        list->n--;
        n_held--;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return io;
}

void cs_fault_release(void)
{
    static const uint64_t one = 1;
    pthread_mutex_lock(&lock);
    releases++;
    for (uint32_t i = 0; i < n_rings; i++)
        (void)!write(rings[i], &one, sizeof(one));
    pthread_mutex_unlock(&lock);
}

void cs_fault_wait_held(uint32_t n)
{
    pthread_mutex_lock(&lock);
    while (n_held < n)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
#else
typedef int cs_uring_hold_unused_t; /* ISO C wants a declaration */
#endif
