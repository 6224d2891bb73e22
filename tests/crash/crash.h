/*
 * Kill and check. One *life* is a process that opens the store, checks everything it finds against the model, then runs
 * writers and readers until it is killed; the next life does the same in the same directory. An *epoch* is a run of
 * lives over one directory that began empty.
 *
 * The model lies in memory shared between all lives and the test: what an operation is about to do is noted before the
 * call, what was acknowledged after it, so that a kill between any two instructions leaves a model that is right.
 *
 *   crash_model.c   what may, and what must be visible; the check after each restart
 *   crash_life.c    the victim
 *   crash_ops.c     its operations
 *   crash_epoch.c   forks, kills, counts; parses and prints cases
 *   crash_plan.c    which cases: every fault point that the scenario passes, then random ones
 *
 * A case is one line, SCENARIO SEED LIFE[;LIFE...], where LIFE says how that life ends:
 *   -                      by itself
 *   @US                    SIGKILL US microseconds after its start, recovery included
 *   +US                    SIGKILL US microseconds after recovery
 *   #N                     SIGKILL before the N-th operation
 *   POINT:COUNT:ACTION...  what fault.h says, as in VERICACHE_FAULT
 *
 * and ! before any of these means that the catalog is lost before the life begins, so that it has to be made anew.
 */
#ifndef CRASH_H
#define CRASH_H

#include <stdatomic.h>
#include <sys/types.h>

#include "cache-server/store_fixture.h"
#include "fault.h"

#define CRASH_WRITERS 3u
#define CRASH_READERS 1u
#define CRASH_THREADS (CRASH_WRITERS + CRASH_READERS)
#define CRASH_CHAINS 1024u
#define CRASH_SHARED 12u /* chains that every writer registers; the others belong to writer chain % CRASH_WRITERS */
#define CRASH_BLOCKS 8u
#define CRASH_LIFE_MAX 128u /* length of one LIFE */
#define CRASH_LIVES_MAX 32u /* of one case */
#define CRASH_LINE_MAX (CRASH_LIFE_MAX * (CRASH_LIVES_MAX + 1))

typedef struct crash_scenario {
    const char *name;
    uint64_t capacity_bytes;
    uint32_t n_layer, n_ops; /* record size; operations of each thread in one life */
    bool is_tight;           /* more is written than fits: objects may have been evicted */
} crash_scenario_t;

const crash_scenario_t *crash_scenario(const char *name); /* NULL: no such */

/* May be visible after a restart; must be, unless it was evicted; must be, since it may not be evicted; was written
 * once, whatever became of it: a catalog made anew from the segments finds that, too. */
enum { CRASH_MAY = 1, CRASH_MUST = 2, CRASH_PINNED = 4, CRASH_WRITTEN = 8 };

typedef enum { CRASH_IDLE = 0, CRASH_PUTTING, CRASH_COMMITTING } crash_step_t;
typedef enum { CRASH_OPENING = 0, CRASH_CHECKING, CRASH_RUNNING, CRASH_CLOSING, CRASH_OVER } crash_phase_t;

typedef struct crash_unit { /* one registration: blocks [first, n_blocks) of a chain */
    _Atomic uint32_t step;  /* crash_step_t */
    uint32_t chain, first, n_blocks, what;
} crash_unit_t;

typedef struct crash_ticket { /* what a client of the life before still holds */
    _Atomic bool is_set;
    uint64_t boot_id, id;
    cs_token_t token;
} crash_ticket_t;

typedef struct crash_counts {                                           /* over all epochs */
    _Atomic uint64_t lives, kills, recoveries_killed, points, rebuilds; /* points: names of fault points with a kill */
    _Atomic uint64_t commits, deletes, pins, aborts, abandoned, evictions, refused, lookups, reads, checked;
} crash_counts_t;

typedef struct crash_model {
    _Atomic uint8_t objects[2][CRASH_CHAINS][CRASH_BLOCKS]; /* CRASH_MAY ... */
    _Atomic uint32_t deletes_begun[CRASH_CHAINS];           /* counted before the call */
    _Atomic uint32_t deletes_ended[CRASH_CHAINS];           /* counted after it, and after its flags */
    _Atomic uint32_t touched[CRASH_CHAINS];                 /* life that last wrote it */
    crash_unit_t units[CRASH_WRITERS];
    crash_ticket_t leases[CRASH_THREADS], uploads[CRASH_WRITERS];
    uint32_t next_chain[CRASH_WRITERS];
    uint32_t life;                       /* number of the present life in its epoch, from 1 */
    bool is_killed[CRASH_LIVES_MAX + 3]; /* by life */
    uint64_t generation;                 /* of the last life whose store opened */
    uint64_t boot_id;
    uint32_t attempts;              /* lives since then */
    _Atomic uint64_t bytes_written; /* records, in this epoch */
    _Atomic uint32_t phase, steps;
    _Atomic bool is_rebuilt;       /* the catalog was lost since the last check */
    _Atomic bool tolerates_errors; /* the life injects failures that are no kills */
    crash_counts_t counts;
#ifdef VC_FAULTS
    cs_fault_passes_t passes, passes_at_open; /* of this life; of its recovery */
    cs_fault_passes_t most, most_at_open;     /* of any life, of all epochs */
#endif
    _Atomic bool has_failed;
    char failure[512];
    vc_digest_t hashes[CRASH_CHAINS][CRASH_BLOCKS];
} crash_model_t;

/* ---- crash_model.c ---- */
crash_model_t *crash_model_create(void); /* shared with every process forked later */
void crash_model_destroy(crash_model_t *model);
void crash_model_begin_epoch(crash_model_t *model, const fx_t *fx);
uint32_t crash_seed(uint32_t chain); /* of the fixture's tokens and bytes */
/* Notes the first failure of a life. */
void crash_fail(crash_model_t *model, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Everything visible is legal and right; afterwards the model holds what was found. all: reads every record, not only
 * those of chains written lately and a sample. */
void crash_model_check(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, bool all);
bool crash_may_have_evicted(const crash_model_t *model, const crash_scenario_t *scenario);
bool crash_is_visible(const crash_model_t *model, fx_t *fx, uint32_t chain, uint32_t block, uint32_t f);

/* ---- crash_ops.c ---- */
typedef struct crash_worker { /* one thread of a life */
    pthread_t thread;
    crash_model_t *model;
    const crash_scenario_t *scenario;
    fx_t *fx;
    uint64_t state;
    uint32_t number; /* below CRASH_WRITERS it writes */
    uint32_t kill_at_step;
    uint32_t n_leases;
} crash_worker_t;
void crash_write_something(crash_worker_t *w);
void crash_read_something(crash_worker_t *w);
void crash_rule_something(crash_worker_t *w); /* deletes, pins or unpins; writers only */

/* ---- crash_life.c ---- */
/* The whole life of a forked process; never returns. Exit codes: 0 came to its end, 1 failed (model->failure). */
void crash_life(crash_model_t *model, const crash_scenario_t *scenario, fx_t *fx, uint64_t seed, const char *how,
                bool check_all) __attribute__((noreturn));

/* ---- crash_epoch.c ---- */
/* Runs one case, and one life more that checks every byte. False: it failed; said on stderr with the line that repeats
 * it, up to the life that failed. */
bool crash_epoch(crash_model_t *model, const char *line);
uint32_t crash_random(uint64_t *state);

/* ---- crash_plan.c ---- */
/* Kills at every fault point that lives of the scenario pass, at several of its passes each (at half as many where
 * the build is sanitized); an empty plan without VC_FAULTS. False: a case failed, or a point that is passed often was
 * never reached again. */
bool crash_sweep(crash_model_t *model, const char *scenario, uint64_t seed);
/* Random lives until the model has counted n_kills, or until deadline_s of the monotonic clock (0: none). */
bool crash_storm(crash_model_t *model, const char *scenario, uint64_t seed, uint64_t n_kills, double deadline_s);
/* The kept cases, one a line, # for remarks. */
bool crash_replay(crash_model_t *model, const char *path);
double crash_now_s(void);
void crash_report(const crash_model_t *model, const char *title, double since_s);

#endif
