/*
 * The data plane from messages to the store and back, without UCX: this file takes the place of vc/ucx.h, so that
 * connections, messages, the order in which transfers end, and what becomes of peers are made of the input alone.
 *
 *   an event: byte 0, its three low bits say which
 *     0     a peer connects                     4     the oldest transfer ends well
 *     1, 2  a message of chosen fields          5     the oldest transfer fails, bit 3: cancelled
 *     3     a message of raw bytes: u8 length   6     all transfers end well; bit 3: the disk gets time first
 *           of the header, u8 pages of payload  7     a peer is lost
 *   and bits 4 and 5 name the peer. Tokens, which cannot be guessed, are filled in where bit 0 of the flags asks for
 * it.
 *
 * After the input every peer is lost; then nothing may be held any more: no buffer, view, pin, payload or endpoint.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache-server/store_fixture.h"
#include "dataplane.h"
#include "vc/frame.h"
#include "vc/log.h"
#include "vc/ucx.h"

#define PEERS 4
#define BLOCKS 6u
#define NAPS 2000u         /* turns of the worker */
#define LIMIT_US 60000000u /* only a broken build waits this long */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

/* ---- in place of UCX ---- */

typedef struct payload { /* what vc_ucx_msg_t.desc is here */
    struct vc_ucx_ep *ep;
    size_t bytes;
    uint32_t block;
} payload_t;

typedef struct transfer {
    struct transfer *next;
    struct vc_ucx_ep *ep;
    vc_ucx_op_t *op;
    payload_t *payload; /* of a receive */
    uint8_t *to;
} transfer_t;

struct vc_ucx_ep {
    vc_ucx_error_fn on_error;
    vc_ucx_done_fn close_done;
    void *arg, *close_arg;
    bool lost, closing;
};

static struct vc_ucx {
    int fd;
    vc_ucx_msg_fn on_msg;
    void *msg_arg;
    vc_ucx_request_fn on_request;
    void *request_arg;
    struct vc_ucx_ep *eps[PEERS], *accepted;
    transfer_t *transfers;
    uint32_t n_payloads, naps;
    const uint8_t *at, *end;
    _Atomic bool go; /* set by the test's thread after at and end; all else is the worker's */
} ucx;

static fx_t fx;
static cs_lookup_result_t lease;
static cs_upload_info_t upload;
static uint64_t boot_id;

static void end_transfer(transfer_t **at, vc_status_t status)
{
    transfer_t *t = *at;
    *at = t->next;
    if (t->payload != NULL) {
        bool whole = t->payload->bytes == vc_kvrec_full_bytes(&fx.ks.shape) && t->payload->block < BLOCKS;
        if (status == VC_OK && whole)
            fx_record(&fx, 2, t->payload->block, 0, t->to, t->payload->bytes);
        else if (status == VC_OK)
            memset(t->to, 0x42, t->payload->bytes);
        free(t->payload);
        ucx.n_payloads--;
    }
    t->op->done(t->op->arg, status);
    free(t);
}

static vc_status_t add_transfer(struct vc_ucx_ep *ep, vc_ucx_op_t *op, payload_t *payload, void *to)
{
    transfer_t *t = calloc(1, sizeof(*t)), **at = &ucx.transfers;
    must(t != NULL);
    *t = (transfer_t){NULL, ep, op, payload, to};
    while (*at != NULL)
        at = &(*at)->next;
    *at = t;
    return VC_OK;
}

vc_status_t vc_ucx_send(vc_ucx_ep_t *ep, const void *header, size_t header_bytes, const void *data, size_t bytes,
                        vc_ucx_op_t *op)
{
    vc_frame_t frame;
    must(!ep->closing);
    if (ep->lost)
        return VC_ERR_UNREACHABLE;
    must(vc_frame_decode(header, header_bytes, bytes, &frame, NULL) == VC_OK && !vc_frame_is_from_client(frame.type));
    uint8_t sum = 0; /* reads all of it */
    for (size_t i = 0; i < bytes; i++)
        sum ^= ((const uint8_t *)data)[i];
    static volatile uint8_t sink;
    sink = sum;
    (void)sink;
    return add_transfer(ep, op, NULL, NULL);
}

vc_status_t vc_ucx_recv(vc_ucx_t *u, void *desc, void *buf, size_t bytes, vc_ucx_op_t *op)
{
    payload_t *p = desc;
    (void)u;
    must(p->bytes == bytes);
    return add_transfer(p->ep, op, p, buf);
}

void vc_ucx_release(vc_ucx_t *u, void *desc)
{
    (void)u;
    free(desc);
    ucx.n_payloads--;
}

vc_status_t vc_ucx_open(const vc_ucx_opts_t *opts, vc_ucx_t **ucx_p, vc_err_t *err)
{
    (void)opts, (void)err;
    ucx.fd = eventfd(0, EFD_NONBLOCK);
    must(ucx.fd >= 0);
    *ucx_p = &ucx;
    return VC_OK;
}

void vc_ucx_close(vc_ucx_t *u)
{
    for (int i = 0; i < PEERS; i++)
        must(u->eps[i] == NULL);
    must(u->transfers == NULL && u->n_payloads == 0);
    close(u->fd);
}

void vc_ucx_set_handler(vc_ucx_t *u, vc_ucx_msg_fn fn, void *arg)
{
    u->on_msg = fn;
    u->msg_arg = arg;
}

vc_status_t vc_ucx_listen(vc_ucx_t *u, vc_ucx_request_fn fn, void *arg, vc_err_t *err)
{
    (void)err;
    u->on_request = fn;
    u->request_arg = arg;
    return VC_OK;
}

vc_status_t vc_ucx_accept(vc_ucx_t *u, void *request, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p)
{
    struct vc_ucx_ep *ep = calloc(1, sizeof(*ep));
    must(ep != NULL && request == u);
    ep->on_error = on_error;
    ep->arg = arg;
    *ep_p = u->accepted = ep;
    return VC_OK;
}

void vc_ucx_ep_close(vc_ucx_ep_t *ep, vc_ucx_done_fn done, void *arg)
{
    must(!ep->closing);
    ep->closing = true;
    ep->close_done = done;
    ep->close_arg = arg;
}

void vc_ucx_reject(vc_ucx_t *u, void *request) { must(request == u); }
void vc_ucx_listen_stop(vc_ucx_t *u) { u->on_request = NULL; }
const char *vc_ucx_listen_address(const vc_ucx_t *u) { return u->fd >= 0 ? "127.0.0.1:1" : ""; }
void *vc_ucx_ep_arg(const vc_ucx_ep_t *ep) { return ep->arg; }
int vc_ucx_fd(const vc_ucx_t *u) { return u->fd; }
bool vc_ucx_address_is_loopback(const char *address) { return address != NULL; }

vc_status_t vc_ucx_register(vc_ucx_t *u, void *base, size_t bytes, vc_err_t *err)
{
    (void)u, (void)err;
    return base != NULL && bytes > 0 ? VC_OK : VC_ERR_INVALID;
}

/* What this suite does not offer; here so that nothing of the real module is linked. */
vc_status_t vc_ucx_connect(vc_ucx_t *u, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p, vc_err_t *err)
{
    (void)u, (void)on_error, (void)arg, (void)ep_p, (void)err;
    abort();
}
void vc_ucx_wait(vc_ucx_t *u, uint32_t timeout_ms)
{
    (void)u, (void)timeout_ms;
    abort();
}
void vc_ucx_watch(vc_ucx_t *u, int fd)
{
    (void)u, (void)fd;
    abort();
}
vc_status_t vc_ucx_shm_open(size_t rndv_threshold, vc_ucx_shm_t **shm_p, vc_err_t *err)
{
    (void)rndv_threshold, (void)shm_p, (void)err;
    abort();
}
void vc_ucx_shm_close(vc_ucx_shm_t *shm) { must(shm == NULL); }
vc_status_t vc_ucx_shm_worker(vc_ucx_shm_t *shm, vc_ucx_t **ucx_p, vc_err_t *err)
{
    (void)shm, (void)ucx_p, (void)err;
    abort();
}
vc_status_t vc_ucx_shm_address(vc_ucx_t *u, uint8_t address[VC_UCX_ADDRESS_MAX], size_t *len_p, vc_err_t *err)
{
    (void)u, (void)address, (void)len_p, (void)err;
    abort();
}
vc_status_t vc_ucx_shm_attach(vc_ucx_t *u, const uint8_t *address, size_t len, void *arg, vc_ucx_ep_t **ep_p,
                              vc_err_t *err)
{
    (void)u, (void)address, (void)len, (void)arg, (void)ep_p, (void)err;
    abort();
}

/* ---- events ---- */

static uint8_t take(void) { return ucx.at < ucx.end ? *ucx.at++ : 0; }

static void deliver(struct vc_ucx_ep *ep, const uint8_t *header, size_t header_bytes, size_t bytes, uint32_t block)
{
    uint8_t *exact = malloc(header_bytes + 1); /* exact size, so that a sanitizer sees an overrun */
    payload_t *p = bytes > 0 ? calloc(1, sizeof(*p)) : NULL;
    must(exact != NULL && (bytes == 0 || p != NULL));
    memcpy(exact + 1, header, header_bytes);
    if (p != NULL) {
        *p = (payload_t){ep, bytes, block};
        ucx.n_payloads++;
    }
    vc_ucx_msg_t msg = {.header = exact + 1, .header_bytes = header_bytes, .bytes = bytes, .desc = p, .ep = ep};
    if (!ucx.on_msg(ucx.msg_arg, &msg) && p != NULL)
        vc_ucx_release(&ucx, p);
    free(exact);
}

static void chosen_message(struct vc_ucx_ep *ep)
{
    uint8_t header[VC_FRAME_MAX], flags = take();
    vc_frame_t f = {.type = (vc_frame_type_t)(1 + take() % 12), .request = take() % 5};
    f.fid = (flags >> 1 & 3) == 3 ? 1 : 0;
    f.first = take() % (BLOCKS + 2);
    f.n = 1 + take() % (BLOCKS + 1);
    f.credits = 1u << (take() % 11);
    f.stepped_down = flags & 8;
    f.boot_id = boot_id + (flags >> 7);
    f.lease_id = lease.lease_id;
    f.upload_id = upload.upload_id + (flags >> 7);
    if ((flags & 1) != 0)
        memcpy(f.token, f.type == VC_FRAME_PUT_DATA ? upload.token.b : lease.token.b, sizeof(f.token));
    f.max_record_bytes = 4096u << (take() % 6);
    if ((flags & 16) != 0 && f.type == VC_FRAME_FETCH) {
        f.head_bytes = 4096;
        f.part_bytes = 4096u << (flags >> 6 & 1);
        f.n_layer = 1 + take() % 4;
    }
    size_t bytes = 0;
    if (f.type == VC_FRAME_PUT_DATA) {
        f.payload_bytes = 4096u * (take() % 6);
        bytes = f.payload_bytes + ((flags & 32) != 0 ? 4096 : 0);
    }
    deliver(ep, header, vc_frame_encode(&f, header), bytes, f.first);
}

static void raw_message(struct vc_ucx_ep *ep)
{
    uint8_t header[255];
    size_t n = take(), bytes = 4096u * (take() % 8);
    for (size_t i = 0; i < n; i++)
        header[i] = take();
    deliver(ep, header, n, bytes, UINT32_MAX);
}

static void lose(struct vc_ucx_ep *ep)
{
    if (ep->lost || ep->closing)
        return;
    ep->lost = true;
    ep->on_error(ep->arg, ep, VC_ERR_UNREACHABLE);
}

static void connect_peer(struct vc_ucx_ep **slot)
{
    if (*slot != NULL || ucx.on_request == NULL)
        return;
    ucx.accepted = NULL;
    ucx.on_request(ucx.request_arg, &ucx);
    *slot = ucx.accepted;
}

static void run_event(void)
{
    uint8_t what = take();
    struct vc_ucx_ep **slot = &ucx.eps[what >> 4 & 3], *ep = *slot;
    bool open = ep != NULL && !ep->closing;
    switch (what & 7) {
    case 0: connect_peer(slot); break;
    case 1:
    case 2:
        if (open)
            chosen_message(ep);
        break;
    case 3:
        if (open)
            raw_message(ep);
        break;
    case 4:
        if (ucx.transfers != NULL)
            end_transfer(&ucx.transfers, VC_OK);
        break;
    case 5:
        if (ucx.transfers != NULL)
            end_transfer(&ucx.transfers, (what & 8) != 0 ? VC_ERR_CANCELLED : VC_ERR_UNREACHABLE);
        break;
    case 6:
        if ((what & 8) != 0 && ucx.naps == 0) {
            ucx.naps = NAPS;
            ucx.at--; /* this event again after the last of them */
            break;
        }
        ucx.naps = 0;
        while (ucx.transfers != NULL)
            end_transfer(&ucx.transfers, VC_OK);
        break;
    default:
        if (open)
            lose(ep);
    }
}

/* Closes that have begun end here: the transfers of the endpoint, then itself. */
static unsigned finish_closes(void)
{
    unsigned n = 0;
    for (int i = 0; i < PEERS; i++) {
        struct vc_ucx_ep *ep = ucx.eps[i];
        if (ep == NULL || !ep->closing)
            continue;
        for (transfer_t **at = &ucx.transfers; *at != NULL;) {
            if ((*at)->ep == ep)
                end_transfer(at, VC_ERR_CANCELLED);
            else
                at = &(*at)->next;
        }
        ucx.eps[i] = NULL;
        if (ep->close_done != NULL)
            ep->close_done(ep->close_arg, VC_OK);
        free(ep);
        n++;
    }
    return n;
}

/* One event a turn, so that the store's answers come in between. */
unsigned vc_ucx_progress(vc_ucx_t *u)
{
    unsigned n = finish_closes();
    /* Acquire: at and end, and the lease, were written before. */
    if (!atomic_load_explicit(&u->go, memory_order_acquire))
        return n;
    if (u->naps > 1) {
        u->naps--;
        return n + 1;
    }
    if (u->at < u->end) {
        run_event();
        return n + 1;
    }
    while (u->transfers != NULL) {
        end_transfer(&u->transfers, VC_OK);
        n++;
    }
    for (int i = 0; i < PEERS; i++)
        if (u->eps[i] != NULL)
            lose(u->eps[i]);
    return n;
}

bool vc_ucx_arm(vc_ucx_t *u)
{
    bool busy = u->transfers != NULL;
    for (int i = 0; i < PEERS; i++)
        busy = busy || (u->eps[i] != NULL && (u->eps[i]->closing || u->at == u->end));
    return !busy && !(atomic_load_explicit(&u->go, memory_order_acquire) && u->at < u->end);
}

/* ---- one input ---- */

static void start_store(void)
{
    vc_log_set_level(VC_LOG_ERROR);
    fx_init(&fx, 2);
    fx.ram_bytes = 4 * 12288;
    must(fx_open(&fx, CS_IO_AUTO, NULL) == VC_OK);
    must(fx_register(&fx, 1, 0, BLOCKS, FX_BOTH) == VC_OK);
    boot_id = cs_store_boot_id(fx.store);
}

static void wait_idle(const cs_dataplane_t *dp)
{
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + LIMIT_US;
    cs_dataplane_stats_t s;
    do {
        must(vc_clock_now_us(vc_clock_system()) < limit);
        sched_yield();
        cs_dataplane_get_stats(dp, &s);
    } while (s.peers_open + s.ops_in_flight + s.pins_held != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cs_dataplane_opts_t o;
    cs_dataplane_t *dp = NULL;
    cs_store_stats_t stats;
    uint8_t missing[BLOCKS];
    if (fx.store == NULL)
        start_store();
    must(fx_lookup(&fx, 1, BLOCKS, true, &lease) == VC_OK);
    must(fx_begin(&fx, 2, 0, BLOCKS, FX_FULL, &upload, missing) == VC_OK);
    cs_dataplane_opts_default(&o);
    o.shm = false;
    o.max_peers = PEERS - 1; /* so that one is turned away */
    o.window = 3;
    o.put_window = 2;
    o.store = fx.store;
    o.workers = fx.workers;
    o.pool = fx.pool;
    atomic_store_explicit(&ucx.go, false, memory_order_relaxed);
    must(cs_dataplane_start(&o, &dp, NULL) == VC_OK);
    ucx.at = data;
    ucx.end = data + size;
    atomic_store_explicit(&ucx.go, true, memory_order_release);
    must(eventfd_write(ucx.fd, 1) == 0);
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + LIMIT_US;
    while (*(const uint8_t *volatile *)&ucx.at < ucx.end) { /* a count for waiting only */
        must(vc_clock_now_us(vc_clock_system()) < limit);
        sched_yield();
    }
    wait_idle(dp);
    cs_dataplane_stop(dp);
    (void)cs_store_abort(fx.store, upload.upload_id, &upload.token);
    (void)cs_store_lease_release(fx.store, boot_id, lease.lease_id, &lease.token);
    vc_fake_clock_advance(&fx.clock, 1000000);
    cs_store_tick(fx.store);
    cs_store_get_stats(fx.store, &stats);
    must(stats.uploads_open == 0 && stats.leases_open == 0 && stats.pinned_bytes == 0 && stats.corrupt_disk == 0);
    return 0;
}
