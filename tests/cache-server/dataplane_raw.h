/* A peer that speaks UCX but says what it likes, and a world of 16 records with an honest client that is served at the
 * end. For the suites of misbehaving peers. */
#ifndef TEST_DATAPLANE_RAW_H
#define TEST_DATAPLANE_RAW_H

#include "dataplane_fixture.h"
#include "vc/bytes.h"
#include "vc/frame.h"
#include "vc/ucx.h"

/* ---- a peer that speaks UCX, but what it likes ---- */

typedef struct raw {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *ep;
    int n_sent, n_lost, n_received, n_by_type[16];
    vc_frame_t last;
    bool hold; /* keep payloads unread */
    uint8_t *buf;
    vc_ucx_op_t ops[64];
    uint8_t headers[64][VC_FRAME_MAX + 8];
    int n_ops;
} raw_t;

static inline void raw_done(void *arg, vc_status_t status)
{
    (void)status;
    ((raw_t *)arg)->n_sent++;
}

static inline void raw_lost(void *arg, vc_ucx_ep_t *ep, vc_status_t status)
{
    (void)ep;
    (void)status;
    ((raw_t *)arg)->n_lost++;
}

static inline bool raw_message(void *arg, const vc_ucx_msg_t *msg)
{
    raw_t *r = arg;
    cr_assert(vc_frame_decode(msg->header, msg->header_bytes, msg->bytes, &r->last, NULL) == VC_OK);
    r->n_by_type[r->last.type]++;
    return r->hold && msg->desc != NULL;
}

static inline void raw_connect(raw_t *r, const char *address)
{
    vc_err_t err = {0};
    memset(r, 0, sizeof(*r));
    vc_ucx_opts_t opts = {.address = address, .rndv_threshold = 512u << 10};
    cr_assert(vc_ucx_open(&opts, &r->ucx, &err) == VC_OK, "%s", err.msg);
    vc_ucx_set_handler(r->ucx, raw_message, r);
    cr_assert(vc_ucx_connect(r->ucx, raw_lost, r, &r->ep, &err) == VC_OK, "%s", err.msg);
    r->buf = vc_alloc_aligned(4096, 4u << 20);
    memset(r->buf, 0x42, 4u << 20);
}

static inline void raw_close(raw_t *r)
{
    vc_ucx_close(r->ucx);
    vc_free(r->buf);
}

static inline void raw_until(raw_t *r, const int *counter, int want)
{
    uint64_t limit = vc_clock_now_us(vc_clock_system()) + WORLD_LIMIT_US;
    while (*counter < want && vc_clock_now_us(vc_clock_system()) < limit)
        vc_ucx_progress(r->ucx);
    cr_assert(*counter >= want, "%d of %d", *counter, want);
}

/* Header bytes as they are, with a payload of any length. */
static inline void raw_send(raw_t *r, const void *header, size_t header_bytes, size_t payload)
{
    int i = r->n_ops++ % 64;
    memcpy(r->headers[i], header, header_bytes);
    r->ops[i] = (vc_ucx_op_t){.done = raw_done, .arg = r};
    vc_ucx_send(r->ep, r->headers[i], header_bytes, payload > 0 ? r->buf : NULL, payload, &r->ops[i]);
}

static inline void raw_send_frame(raw_t *r, const vc_frame_t *frame)
{
    uint8_t header[VC_FRAME_MAX];
    raw_send(r, header, vc_frame_encode(frame, header), frame->payload_bytes);
}

static inline void raw_hello(raw_t *r)
{
    raw_send_frame(r, &(vc_frame_t){.type = VC_FRAME_HELLO, .max_record_bytes = 4u << 20});
    raw_until(r, &r->n_by_type[VC_FRAME_WELCOME], 1);
}

static inline vc_frame_t fetch_frame(const vc_data_lease_t *lease, uint32_t n)
{
    vc_frame_t f = {.type = VC_FRAME_FETCH,
                    .request = 1,
                    .boot_id = lease->boot_id,
                    .lease_id = lease->lease_id,
                    .n = n,
                    .credits = 4};
    memcpy(f.token, lease->token, sizeof(f.token));
    return f;
}

/* ---- the world: 16 records, an honest client that is served at the end ---- */

static inline void abuse_open(world_t *w, const vc_kv_shape_t *shape, vc_data_lease_t *lease)
{
    world_open(w, shape, 16);
    world_start_server(w);
    world_fill(w);
    *lease = world_lease(w);
}

static inline void abuse_close(world_t *w, const vc_data_lease_t *lease)
{
    catcher_t c;
    vc_err_t err = {0};
    vc_data_t *data = world_connect(w);
    catcher_init(&c, w);
    cr_assert(vc_data_fetch(data, lease, 0, 0, 16, catch_record, &c, 0, NULL, &err) == VC_OK, "%s", err.msg);
    cr_assert(c.n_good == 16);
    vc_data_close(data);
    vc_free(c.want);
    WORLD_WAIT_EXACTLY(w, peers_open, 0);
    world_close(w);
}

#endif
