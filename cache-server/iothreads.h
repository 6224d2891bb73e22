/* pread/pwrite threads behind uring.h, for kernels and containers that refuse io_uring. */
#ifndef CS_IOTHREADS_H
#define CS_IOTHREADS_H

#include "uring.h"

typedef struct cs_iothreads cs_iothreads_t;

/* event_fd gets a tick for every finished transfer; not owned. */
vc_status_t cs_iothreads_create(int event_fd, cs_iothreads_t **threads_p, vc_err_t *err);
void cs_iothreads_destroy(cs_iothreads_t *threads); /* nothing may be in flight */
void cs_iothreads_push(cs_iothreads_t *threads, cs_io_t *io);
/* Finished transfers, linked by next, results in result; NULL when there are none. */
cs_io_t *cs_iothreads_take(cs_iothreads_t *threads);
void cs_iothreads_wait(cs_iothreads_t *threads); /* until take has something */

#endif
