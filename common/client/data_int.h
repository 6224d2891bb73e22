/* Inside of client/data*.c: the connection that fetch and put share. Everything is guarded by vc_data.lock. */
#ifndef VC_CLIENT_DATA_INT_H
#define VC_CLIENT_DATA_INT_H

#include <pthread.h>
#include <stdbool.h>

#include "data.h"
#include "vc/frame.h"
#include "vc/kvrec.h"
#include "vc/ucx.h"
#include "vc/ucx_meet.h"

#define DATA_MAX_SLOTS 64u
#define DATA_N_CONTROL 32u
#define DATA_RNDV_BYTES (512u << 10)
#define DATA_SHM_RNDV_BYTES (64u << 10)

typedef enum { SLOT_FREE, SLOT_RECEIVING, SLOT_READY, SLOT_SENDING } data_slot_state_t;

typedef struct data_slot { /* one record of registered memory */
    vc_data_t *data;
    uint8_t *buf;
    data_slot_state_t state;
    uint64_t request; /* put: of its PUT_DATA */
    uint32_t block, bytes;
    uint32_t mask, slice; /* of a piece */
    vc_status_t status;
    bool sent, acknowledged; /* put: free again when both */
    struct data_slot *next;  /* ready list */
    vc_ucx_op_t op;
    size_t header_bytes;
    uint8_t header[VC_FRAME_MAX];
} data_slot_t;

typedef struct data_control {
    vc_data_t *data;
    bool busy;
    vc_ucx_op_t op;
    uint8_t header[VC_FRAME_MAX];
} data_control_t;

struct vc_data {
    pthread_mutex_t lock;
    vc_data_opts_t opts;
    char address[300];
    /* the connection; ucx is NULL while there is none */
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    vc_ucx_shm_t *shm; /* over shared memory, with the socket that shows the server's end */
    int meet_fd;
    bool welcome;
    uint64_t boot_id;
    uint32_t put_window;
    size_t slot_bytes;
    uint8_t *region;
    vc_status_t broken; /* not OK: the connection is of no use any more */
    vc_err_t why;
    uint64_t progress_us; /* last sign of life */
    uint64_t next_request;
    bool stepped_down; /* to be told with the next fetch */
    /* the running call */
    uint64_t fetch_request; /* 0: none */
    uint32_t first, n, n_arrived;
    vc_data_layout_t layout; /* layer-major; n_layer 0: block-major */
    uint8_t *seen;           /* bitmap of n blocks, or of n blocks for every slice */
    bool ended;
    vc_status_t end_status;
    uint32_t end_n_sent;
    vc_status_t refused; /* ERROR for the running request, or a PUT_ACK that is not OK */
    vc_err_t refusal;
    uint64_t put_first, put_last; /* request ids of the running put, [first, last] */
    uint32_t n_unfinished;        /* slots that are SLOT_SENDING */
    uint64_t n_acked, bytes_acked;
    data_slot_t *ready, **ready_tail;
    data_slot_t slots[DATA_MAX_SLOTS];
    data_control_t control[DATA_N_CONTROL];
};

uint64_t data_now_us(void);
/* Connects when there is no usable connection. */
vc_status_t data_ensure(vc_data_t *d, vc_err_t *err);
vc_status_t data_reconnect(vc_data_t *d, vc_err_t *err); /* the same for a later call: UNREACHABLE if not */
void data_drop(vc_data_t *d);
/* Waits for something to happen; TIMEOUT without a sign of life for idle_ms, or why the connection broke. */
vc_status_t data_wait(vc_data_t *d, uint32_t idle_ms, vc_err_t *err);
vc_status_t data_send_control(vc_data_t *d, const vc_frame_t *frame, uint32_t idle_ms, vc_err_t *err);
void data_break(vc_data_t *d, vc_status_t status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
data_slot_t *data_take_slot(vc_data_t *d); /* NULL: none is free */

/* Messages for the running call, from the handler. True: the payload was taken over. */
bool data_fetch_message(vc_data_t *d, const vc_frame_t *frame, void *desc);
void data_put_message(vc_data_t *d, const vc_frame_t *frame);

#endif
