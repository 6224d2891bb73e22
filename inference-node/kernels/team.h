/*
 * A team of threads that runs one job at a time: the caller is thread 0, the others sleep between jobs. Inside a job
 * the threads meet at barriers; between two barriers they share at most one loop, whose items go to whoever asks next.
 * What an item computes must not depend on who runs it. run and destroy: one caller at a time. barrier and next:
 * threads of the running job.
 */
#ifndef NODE_TEAM_H
#define NODE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

#define NODE_TEAM_MAX 256u

typedef struct node_team node_team_t;
typedef void (*node_team_fn)(void *arg, uint32_t thread);

/* Processors that this process may run on. A team of more threads than that crawls: they wait for each other at every
 * barrier. */
uint32_t node_team_processors(void);
vc_status_t node_team_create(uint32_t n_threads, node_team_t **team_p, vc_err_t *err);
void node_team_destroy(node_team_t *team);
/* Returns when every thread has left fn. */
void node_team_run(node_team_t *team, node_team_fn fn, void *arg);
void node_team_barrier(node_team_t *team);
/* Takes the next item of the loop: false when all n_items are taken. */
bool node_team_next(node_team_t *team, uint32_t n_items, uint32_t *item_p);

#endif
