/*
 * Barrier: every arrival adds to `arrived`; the last one clears it and the loop counter and moves `phase` on. Waiters
 * watch `phase`, first spinning (a pass has hundreds of barriers a few microseconds apart), then in futex.
 * Jobs use the same word-and-futex scheme on `job`.
 */
#include "kernels/team.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "vc/mem.h"

/* Pauses: about 50, 25 and 5 microseconds. The processor is offered to others now and then: what a waiter waits for may
 * be a thread that has none, since another engine spins there. Where nobody else wants it, that is a short call. */
enum { SPIN_BARRIER = 2000, SPIN_JOB = 1000, SPIN_YIELD = 200 };

/* A counter that threads wait on to change. sleepers is raised before the kernel compares the word, and the word is
 * changed before sleepers is read (both sequentially consistent), so a sleeper is either seen or does not sleep. */
typedef struct {
    _Alignas(64) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
} event_t;

typedef struct {
    node_team_t *team;
    uint32_t index;
    pthread_t thread;
} member_t;

struct node_team {
    event_t job, phase;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t next;
    uint32_t n_threads;
    bool stop;       /* written before job moves on, read after */
    node_team_fn fn; /* the same */
    void *arg;
    uint32_t n_started;
    member_t *members;
};

static void event_wait(event_t *e, uint32_t old, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(&e->word, memory_order_acquire) != old)
            return;
        if (i % SPIN_YIELD == SPIN_YIELD - 1)
            sched_yield();
        else
            _mm_pause();
    }
    atomic_fetch_add(&e->sleepers, 1);
    while (atomic_load(&e->word) == old)
        syscall(SYS_futex, &e->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&e->sleepers, 1);
}

static void event_fire(event_t *e)
{
    atomic_fetch_add(&e->word, 1);
    if (atomic_load(&e->sleepers) != 0)
        syscall(SYS_futex, &e->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

uint32_t node_team_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than the set has room for */
    return online > 0 ? (uint32_t)online : 1;
}

void node_team_barrier(node_team_t *team)
{
    if (team->n_threads == 1) {
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        return;
    }
    uint32_t phase = atomic_load_explicit(&team->phase.word, memory_order_relaxed);
    /* acq_rel: the last one sees what all others wrote, and its event hands that on */
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->n_threads) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        event_fire(&team->phase);
    } else {
        event_wait(&team->phase, phase, SPIN_BARRIER);
    }
}

bool node_team_next(node_team_t *team, uint32_t n_items, uint32_t *item_p)
{
    /* relaxed: the items' data was published by the barrier before */
    *item_p = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
    return *item_p < n_items;
}

static void *member_main(void *arg)
{
    member_t *m = arg;
    node_team_t *team = m->team;
    node_fp_mode_set_default();
    for (uint32_t job = 0;; job++) {
        event_wait(&team->job, job, SPIN_JOB);
        if (team->stop)
            return NULL;
        team->fn(team->arg, m->index);
        node_team_barrier(team);
    }
}

void node_team_run(node_team_t *team, node_team_fn fn, void *arg)
{
    uint32_t mode = node_fp_mode_set_default();
    team->fn = fn;
    team->arg = arg;
    if (team->n_threads > 1)
        event_fire(&team->job);
    fn(arg, 0);
    node_team_barrier(team);
    node_fp_mode_restore(mode);
}

vc_status_t node_team_create(uint32_t n_threads, node_team_t **team_p, vc_err_t *err)
{
    if (n_threads == 0 || n_threads > NODE_TEAM_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "thread count %u is not in 1..%u", n_threads, NODE_TEAM_MAX);
    node_team_t *team = vc_alloc_aligned(64, sizeof *team);
    member_t *members = vc_calloc(n_threads, sizeof *members);
    if (team == NULL || members == NULL) {
        vc_free(team);
        vc_free(members);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a team of %u threads", n_threads);
    }
    *team = (node_team_t){.n_threads = n_threads, .n_started = 1, .members = members};
    for (uint32_t i = 1; i < n_threads; i++) {
        members[i] = (member_t){.team = team, .index = i};
        int rc = pthread_create(&members[i].thread, NULL, member_main, &members[i]);
        if (rc != 0) {
            node_team_destroy(team);
            return vc_err_set(err, vc_status_from_errno(rc), "cannot start thread %u of %u: errno %d", i, n_threads,
                              rc);
        }
        team->n_started++;
    }
    *team_p = team;
    return VC_OK;
}

void node_team_destroy(node_team_t *team)
{
    if (team == NULL)
        return;
    team->stop = true;
    event_fire(&team->job);
    for (uint32_t i = 1; i < team->n_started; i++)
        pthread_join(team->members[i].thread, NULL);
    vc_free(team->members);
    vc_free(team);
}
