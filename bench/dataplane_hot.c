/* The client of one hot record: fetched again and again over UCX, tcp or shared memory, into one buffer. */
#include <string.h>
#include <unistd.h>

#include "dataplane_parts.h"
#include "vc/crc32c.h"
#include "vc/frame.h"
#include "vc/mem.h"
#include "vc/ucx.h"
#include "vc/ucx_meet.h"

typedef struct hot {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    vc_ucx_shm_t *shm;
    int meet_fd;
    uint8_t *slot;
    bool welcome, failed;
    uint64_t n_sent, n_received, n_ended, n_wanted;
    vc_frame_t fetch;
    vc_ucx_op_t recv_ops[64];
    unsigned next_recv;
    struct {
        vc_ucx_op_t op;
        bool busy;
        size_t bytes;
        uint8_t header[VC_FRAME_MAX];
    } out[4 * OUTSTANDING];
} hot_t;

static void hot_received(void *arg, vc_status_t status)
{
    hot_t *h = arg;
    h->failed = h->failed || status != VC_OK;
    h->n_received++;
}

static void hot_sent(void *arg, vc_status_t status)
{
    (void)status; /* a lost peer shows in hot_lost */
    *(bool *)arg = false;
}

static void hot_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    ((hot_t *)arg)->failed = true;
}

static bool hot_message(void *arg, const vc_ucx_msg_t *msg)
{
    hot_t *h = arg;
    vc_frame_t frame;
    if (vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &frame, NULL) != VC_OK || frame.status != VC_OK) {
        h->failed = true;
        return false;
    }
    if (frame.type == VC_FRAME_WELCOME)
        h->welcome = true;
    if (frame.type == VC_FRAME_FETCH_END)
        h->n_ended++;
    if (frame.type != VC_FRAME_FETCH_DATA)
        return false;
    /* One slot for all, as the peer does it: only the time counts here, the bytes are equal anyway. */
    vc_ucx_op_t *op = &h->recv_ops[h->next_recv++ % VC_ARRAY_LEN(h->recv_ops)]; /* far more than are running */
    *op = (vc_ucx_op_t){.done = hot_received, .arg = h};
    if (vc_ucx_recv(h->ucx, msg->desc, h->slot, msg->bytes, op) != VC_OK)
        h->failed = true;
    return true;
}

static void hot_send(hot_t *h, const vc_frame_t *frame)
{
    size_t i = 0;
    while (i < VC_ARRAY_LEN(h->out) && h->out[i].busy)
        i++;
    if (i == VC_ARRAY_LEN(h->out))
        bench_fail("control messages pile up");
    h->out[i].busy = true;
    h->out[i].op = (vc_ucx_op_t){.done = hot_sent, .arg = &h->out[i].busy};
    h->out[i].bytes = vc_frame_encode(frame, h->out[i].header);
    if (vc_ucx_send(h->ep, h->out[i].header, h->out[i].bytes, NULL, 0, &h->out[i].op) != VC_OK)
        h->failed = true;
}

static void connect_net(hot_t *h, const char *address)
{
    vc_err_t err = {0};
    vc_ucx_opts_t opts = {.address = address, .rndv_threshold = 512u << 10};
    must(vc_ucx_open(&opts, &h->ucx, &err), &err, "connect");
    vc_ucx_set_handler(h->ucx, hot_message, h);
    must(vc_ucx_connect(h->ucx, hot_lost, h, &h->ep, &err), &err, "connect");
}

static void connect_shm(hot_t *h, const char *address)
{
    vc_err_t err = {0};
    vc_meet_msg_t msg = {.status = VC_OK};
    must(vc_meet_dial(address, &h->meet_fd, &err), &err, "meet");
    must(vc_ucx_shm_open(64u << 10, &h->shm, &err), &err, "shared memory");
    must(vc_ucx_shm_worker(h->shm, &h->ucx, &err), &err, "shared memory");
    vc_ucx_set_handler(h->ucx, hot_message, h);
    must(vc_ucx_shm_address(h->ucx, msg.address, &msg.address_bytes, &err), &err, "shared memory");
    must(vc_meet_send(h->meet_fd, &msg), &err, "meet");
    must(vc_meet_recv(h->meet_fd, 5000, &msg), &err, "meet");
    must(msg.status, &err, "meet");
    must(vc_ucx_shm_attach(h->ucx, msg.address, msg.address_bytes, h, &h->ep, &err), &err, "attach");
}

static void hot_open(hot_t *h, const job_t *job)
{
    vc_err_t err = {0};
    memset(h, 0, sizeof(*h));
    h->meet_fd = -1;
    h->slot = vc_alloc_aligned(4096, job->record_bytes);
    if (h->slot == NULL)
        bench_fail("out of memory");
    memset(h->slot, 0, job->record_bytes);
    if (job->shm)
        connect_shm(h, job->address);
    else
        connect_net(h, job->address);
    must(vc_ucx_register(h->ucx, h->slot, job->record_bytes, &err), &err, "register");
    vc_frame_t hello = {.type = VC_FRAME_HELLO, .max_record_bytes = (uint32_t)job->record_bytes};
    hot_send(h, &hello);
    while (!h->welcome && !h->failed)
        vc_ucx_wait(h->ucx, 1000);
    h->fetch = (vc_frame_t){
        .type = VC_FRAME_FETCH, .boot_id = job->lease.boot_id, .lease_id = job->lease.lease_id, .n = 1, .credits = 1};
    memcpy(h->fetch.token, job->lease.token, sizeof(h->fetch.token));
}

static void hot_close(hot_t *h)
{
    vc_ucx_close(h->ucx);
    vc_ucx_shm_close(h->shm);
    if (h->meet_fd >= 0)
        close(h->meet_fd);
    vc_free(h->slot);
}

static void hot_run(hot_t *h, uint64_t n)
{
    h->n_wanted = h->n_ended + n;
    uint64_t started = h->n_ended;
    while (h->n_ended < h->n_wanted) {
        while (started < h->n_wanted && started - h->n_ended < OUTSTANDING) {
            h->fetch.request++;
            started++;
            hot_send(h, &h->fetch);
        }
        vc_ucx_progress(h->ucx);
        if (h->failed)
            bench_fail("the hot fetch broke off");
    }
}

double hot_seconds(const job_t *job, uint32_t *crc_p)
{
    static hot_t h;
    hot_open(&h, job);
    hot_run(&h, job->n / 10 + OUTSTANDING);
    double t = bench_now_s();
    hot_run(&h, job->n);
    t = bench_now_s() - t;
    *crc_p = vc_crc32c(0, h.slot, job->record_bytes);
    hot_close(&h);
    return t;
}
