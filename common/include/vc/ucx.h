/*
 * UCX for VeriCache: one context and one worker per vc_ucx_t, active messages of one id, sockaddr listener and
 * endpoints with error mode PEER (a dead peer is reported, a close by force takes back its requests). Shared memory has
 * a context of its own, whose endpoints notice nothing: see the end.
 *
 * Owner: whoever drives vc_ucx_progress; calls on one vc_ucx_t must not overlap. Callbacks run inside vc_ucx_progress
 * or inside the call that started the operation; they may start operations, but not close endpoints or the vc_ucx_t.
 * Every setting that matters is made here; UCX_* environment variables do not decide transports, devices, ports,
 * thresholds or warnings. UCX's own log lines go to vc/log.h as module "ucx".
 */
#ifndef VC_UCX_H
#define VC_UCX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct vc_ucx vc_ucx_t;
typedef struct vc_ucx_ep vc_ucx_ep_t;

typedef struct vc_ucx_opts {
    const char *address; /* HOST:PORT or [V6]:PORT: where to listen, or the peer; fixes the devices that are used */
    bool listen;
    const char *ports;     /* "LOW-HIGH" for the sockets behind the listener; NULL = any */
    size_t rndv_threshold; /* bytes from which a message goes by rendezvous */
} vc_ucx_opts_t;

/* UNREACHABLE: address unknown, not ours (listen) or without a route. */
vc_status_t vc_ucx_open(const vc_ucx_opts_t *opts, vc_ucx_t **ucx_p, vc_err_t *err);
/* Closes what is left by force and completes it; memory handed to send or recv is free after this. NULL is fine. */
void vc_ucx_close(vc_ucx_t *ucx);

unsigned vc_ucx_progress(vc_ucx_t *ucx);
int vc_ucx_fd(const vc_ucx_t *ucx); /* readable when there is something to progress, once armed */
bool vc_ucx_arm(vc_ucx_t *ucx);     /* false: progress first, events are pending */
/* Progress until something happened, spinning shortly, then sleeping at most timeout_ms. */
void vc_ucx_wait(vc_ucx_t *ucx, uint32_t timeout_ms);
/* vc_ucx_wait also returns when this descriptor can be read; -1: none. Not owned. */
void vc_ucx_watch(vc_ucx_t *ucx, int fd);
/* Registers a region; sends from and receives into it use the registration. At most 4 regions per vc_ucx_t (RANGE). */
vc_status_t vc_ucx_register(vc_ucx_t *ucx, void *base, size_t bytes, vc_err_t *err);

/* ---- messages ---- */

/* A message that arrived. header is valid inside the handler only. */
typedef struct vc_ucx_msg {
    const void *header;
    size_t header_bytes;
    size_t bytes;    /* of the payload */
    void *desc;      /* the payload, for vc_ucx_recv or vc_ucx_release; NULL when there is none */
    vc_ucx_ep_t *ep; /* where it came from; NULL when unknown or closing */
} vc_ucx_msg_t;
/* The handler owns a desc that is not NULL: exactly one vc_ucx_recv or vc_ucx_release, now or later, else the sender
 * hangs. True: the handler keeps it (or handed it to vc_ucx_recv). False: the payload is declined and released. */
typedef bool (*vc_ucx_msg_fn)(void *arg, const vc_ucx_msg_t *msg);
void vc_ucx_set_handler(vc_ucx_t *ucx, vc_ucx_msg_fn fn, void *arg);

/* OK, CANCELLED (endpoint closed), UNREACHABLE (peer gone), PROTOCOL (longer than the buffer). */
typedef void (*vc_ucx_done_fn)(void *arg, vc_status_t status);
/* One running send or receive: the caller's, filled by it, untouched until done ran. */
typedef struct vc_ucx_op {
    vc_ucx_done_fn done;
    void *arg;
    struct vc_ucx_op *next, **at; /* the module's: list of what runs over shared memory */
    bool reads;                   /* the module's: a receive */
} vc_ucx_op_t;
/* op, header and data stay the caller's and unchanged until done ran, which may be inside this call. Error returned:
 * done never runs. */
vc_status_t vc_ucx_send(vc_ucx_ep_t *ep, const void *header, size_t header_bytes, const void *data, size_t bytes,
                        vc_ucx_op_t *op);
/* Takes over desc, also on error. buf holds at least the message's bytes. Otherwise as send. */
vc_status_t vc_ucx_recv(vc_ucx_t *ucx, void *desc, void *buf, size_t bytes, vc_ucx_op_t *op);
void vc_ucx_release(vc_ucx_t *ucx, void *desc);

/* ---- connections ---- */

/* Runs once when the peer is gone; sends fail from then on. The endpoint still has to be closed. */
typedef void (*vc_ucx_error_fn)(void *arg, vc_ucx_ep_t *ep, vc_status_t status);
/* A connection request: vc_ucx_accept or vc_ucx_reject inside the call. */
typedef void (*vc_ucx_request_fn)(void *arg, void *request);
vc_status_t vc_ucx_listen(vc_ucx_t *ucx, vc_ucx_request_fn fn, void *arg, vc_err_t *err);
const char *vc_ucx_listen_address(const vc_ucx_t *ucx); /* HOST:PORT with the real port */
void vc_ucx_listen_stop(vc_ucx_t *ucx);
vc_status_t vc_ucx_accept(vc_ucx_t *ucx, void *request, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p);
void vc_ucx_reject(vc_ucx_t *ucx, void *request);
/* Returns at once; whether anybody is there shows in the first reply or in on_error. */
vc_status_t vc_ucx_connect(vc_ucx_t *ucx, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p, vc_err_t *err);
/* Starts a close by force: outstanding sends and receives complete with an error. done may be NULL; ep is gone when it
 * ran. Not inside a callback. */
void vc_ucx_ep_close(vc_ucx_ep_t *ep, vc_ucx_done_fn done, void *arg);
void *vc_ucx_ep_arg(const vc_ucx_ep_t *ep); /* arg of accept or connect */

/* ---- shared memory ---- */
/*
 * posix shared memory for small messages, cma (process_vm_readv by the receiver) for large ones; error mode NONE, since
 * UCX offers nothing else there. A peer that is gone is not noticed, and nothing can be taken back from it but by
 * closing the whole vc_ucx_t: so a vc_ucx_t has one peer, whose life is watched by other means (vc/ucx_meet.h).
 * vc_ucx_close ends every running operation (done runs, CANCELLED) without asking the peer. A stopped peer that wakes
 * up after that may still read memory that was sent to it, but writes nothing here.
 */
typedef struct vc_ucx_shm vc_ucx_shm_t; /* the context; workers of it share the caller's thread rules one by one */
#define VC_UCX_ADDRESS_MAX 1024u
/* UNSUPPORTED: no shared memory on this machine or for this user. */
vc_status_t vc_ucx_shm_open(size_t rndv_threshold, vc_ucx_shm_t **shm_p, vc_err_t *err);
void vc_ucx_shm_close(vc_ucx_shm_t *shm); /* after every vc_ucx_t of it; NULL is fine */
vc_status_t vc_ucx_shm_worker(vc_ucx_shm_t *shm, vc_ucx_t **ucx_p, vc_err_t *err);
/* What the peer needs for its vc_ucx_shm_attach. RANGE when it does not fit. */
vc_status_t vc_ucx_shm_address(vc_ucx_t *ucx, uint8_t address[VC_UCX_ADDRESS_MAX], size_t *len_p, vc_err_t *err);
/* The peer, at the address that its own vc_ucx_shm_address gave. UCX trusts it: only from a process that could as well
 * attach a debugger to this one. Once per vc_ucx_t; vc_ucx_ep_close is not for it, vc_ucx_close is. */
vc_status_t vc_ucx_shm_attach(vc_ucx_t *ucx, const uint8_t *address, size_t len, void *arg, vc_ucx_ep_t **ep_p,
                              vc_err_t *err);

/* ---- addresses ---- */
/* Splits and resolves nothing: true for 127/8, ::1 and "localhost". */
bool vc_ucx_address_is_loopback(const char *address);

#endif
