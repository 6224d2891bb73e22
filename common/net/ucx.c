/*
 * Context, worker and messages of vc/ucx.h.
 *
 * Requests are UCX's own and freed here; the caller's vc_ucx_op_t says whom to tell, so the hot path does not allocate.
 * An operation that completes inside the starting call reports through done as well: there is one way only.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "ucx_int.h"
#include "vc/mem.h"

#define SPIN_ROUNDS 200
#define READS_END_TURNS 100000 /* far more than the copies of all slots take */

static ucs_status_t on_am(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param);

static vc_status_t set_am_handler(vc_ucx_t *ucx, vc_err_t *err)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
        .cb = on_am,
        .arg = ucx,
    };
    ucs_status_t rc = ucp_worker_set_am_recv_handler(ucx->worker, &param);
    return rc == UCS_OK ? VC_OK
                        : vc_err_set(err, vc_ucx_status(rc), "ucx: no message handler: %s", ucs_status_string(rc));
}

vc_status_t vc_ucx_create_worker(vc_ucx_t *ucx, vc_err_t *err)
{
    ucx->watched_fd = -1;
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS | UCP_WORKER_PARAM_FIELD_FLAGS,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        .events = UCP_WAKEUP_RMA | UCP_WAKEUP_TX | UCP_WAKEUP_RX | UCP_WAKEUP_TAG_RECV,
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    ucs_status_t rc = ucp_worker_create(ucx->context, &params, &ucx->worker);
    if (rc == UCS_OK)
        rc = ucp_worker_get_efd(ucx->worker, &ucx->fd);
    if (rc != UCS_OK)
        return vc_err_set(err, vc_ucx_status(rc), "ucx: cannot create a worker: %s", ucs_status_string(rc));
    return set_am_handler(ucx, err);
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param)
{
    vc_ucx_t *ucx = arg;
    const uint64_t keepable = UCP_AM_RECV_ATTR_FLAG_DATA | UCP_AM_RECV_ATTR_FLAG_RNDV;
    vc_ucx_msg_t msg = {.header = header, .header_bytes = header_bytes, .bytes = bytes};
    msg.desc = (param->recv_attr & keepable) != 0 && bytes > 0 ? data : NULL;
    if (ucx->shm)
        msg.ep = ucx->eps; /* the only one */
    else if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
        for (vc_ucx_ep_t *ep = ucx->eps; ep != NULL && msg.ep == NULL; ep = ep->next)
            if (ep->ep == param->reply_ep)
                msg.ep = ep;
    }
    bool kept = ucx->on_msg != NULL && ucx->on_msg(ucx->msg_arg, &msg);
    kept = kept && msg.desc != NULL; /* nothing to keep of a message without payload */
    /* An error here would also drop a rendezvous, but for eager data only OK and INPROGRESS are allowed. */
    if (!kept && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
        return UCS_ERR_CANCELED;
    return kept ? UCS_INPROGRESS : UCS_OK;
}

static vc_status_t create_context(vc_ucx_t *ucx, const vc_ucx_opts_t *opts, const char *devices, vc_err_t *err)
{
    ucp_config_t *config = NULL;
    vc_status_t st = vc_ucx_make_config(opts, devices, &config, err);
    if (st != VC_OK)
        return st;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "vericache",
    };
    ucs_status_t rc = ucp_init(&params, config, &ucx->context);
    ucp_config_release(config);
    if (rc != UCS_OK)
        return vc_err_set(err, vc_ucx_status(rc), "ucx: no transport on device %s: %s", devices, ucs_status_string(rc));
    return VC_OK;
}

vc_status_t vc_ucx_open(const vc_ucx_opts_t *opts, vc_ucx_t **ucx_p, vc_err_t *err)
{
    vc_ucx_t *ucx = vc_calloc(1, sizeof(*ucx));
    if (ucx == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the data plane");
    char devices[UCX_DEVICES_MAX];
    snprintf(ucx->address, sizeof(ucx->address), "%s", opts->address != NULL ? opts->address : "");
    ucx->rndv_threshold = opts->rndv_threshold;
    vc_status_t st = vc_ucx_resolve(opts->address, opts->listen, &ucx->addr, &ucx->addr_len, err);
    if (st == VC_OK)
        st = vc_ucx_devices(opts->address, &ucx->addr, opts->listen, devices, err);
    if (st == VC_OK)
        st = create_context(ucx, opts, devices, err);
    if (st == VC_OK)
        st = vc_ucx_create_worker(ucx, err);
    if (st != VC_OK) {
        vc_ucx_close(ucx);
        return st;
    }
    *ucx_p = ucx;
    return VC_OK;
}

/* ---- running operations ---- */

static void start(vc_ucx_t *ucx, vc_ucx_op_t *op, bool reads)
{
    op->reads = reads;
    op->at = NULL;
    if (!ucx->shm)
        return;
    op->next = ucx->running;
    op->at = &ucx->running;
    if (op->next != NULL)
        op->next->at = &op->next;
    ucx->running = op;
}

static void forget(vc_ucx_op_t *op)
{
    if (op->at == NULL)
        return;
    *op->at = op->next;
    if (op->next != NULL)
        op->next->at = op->at;
}

static void finish(vc_ucx_op_t *op, vc_status_t status)
{
    forget(op);
    op->done(op->arg, status);
}

static bool is_reading(const vc_ucx_t *ucx)
{
    const vc_ucx_op_t *op = ucx->running;
    while (op != NULL && !op->reads)
        op = op->next;
    return op != NULL;
}

/* UCX 1.13 ends the process where an endpoint of cma goes with a copy under way (an assertion on its queue). A copy
 * needs nothing from the other side and is over after some turns, also when that side is gone. */
static void end_reads(vc_ucx_t *ucx)
{
    for (int i = 0; i < READS_END_TURNS && is_reading(ucx); i++)
        vc_ucx_progress(ucx);
}

void vc_ucx_close(vc_ucx_t *ucx)
{
    if (ucx == NULL)
        return;
    ucx->on_msg = NULL; /* what still comes is declined */
    vc_ucx_listen_stop(ucx);
    while (!ucx->shm && ucx->eps != NULL)
        vc_ucx_ep_close(ucx->eps, NULL, NULL);
    while (ucx->closing > 0)
        vc_ucx_progress(ucx);
    if (ucx->worker != NULL) {
        end_reads(ucx);
        ucp_worker_destroy(ucx->worker); /* over shared memory this ends the endpoint and cancels most of what runs */
    }
    while (ucx->running != NULL)
        finish(ucx->running, VC_ERR_CANCELLED);
    if (ucx->shm)
        vc_free(ucx->eps);
    while (ucx->n_regions > 0)
        ucp_mem_unmap(ucx->context, ucx->regions[--ucx->n_regions].memh);
    if (ucx->context != NULL && !ucx->shm)
        ucp_cleanup(ucx->context);
    vc_free(ucx);
}

unsigned vc_ucx_progress(vc_ucx_t *ucx) { return ucp_worker_progress(ucx->worker); }
int vc_ucx_fd(const vc_ucx_t *ucx) { return ucx->fd; }
bool vc_ucx_arm(vc_ucx_t *ucx) { return ucp_worker_arm(ucx->worker) == UCS_OK; }

void vc_ucx_wait(vc_ucx_t *ucx, uint32_t timeout_ms)
{
    for (int i = 0; i < SPIN_ROUNDS; i++)
        if (vc_ucx_progress(ucx) != 0)
            return;
    if (!vc_ucx_arm(ucx)) {
        vc_ucx_progress(ucx);
        return;
    }
    struct pollfd pfd[2] = {{.fd = ucx->fd, .events = POLLIN}, {.fd = ucx->watched_fd, .events = POLLIN}};
    if (poll(pfd, 2, timeout_ms > 60000 ? 60000 : (int)timeout_ms) > 0)
        vc_ucx_progress(ucx);
}

void vc_ucx_watch(vc_ucx_t *ucx, int fd) { ucx->watched_fd = fd; }

vc_status_t vc_ucx_register(vc_ucx_t *ucx, void *base, size_t bytes, vc_err_t *err)
{
    if (ucx->n_regions == UCX_REGIONS_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "ucx: more than %d regions", UCX_REGIONS_MAX);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = base,
        .length = bytes,
    };
    ucp_mem_h memh = NULL;
    ucs_status_t rc = ucp_mem_map(ucx->context, &params, &memh);
    if (rc != UCS_OK)
        return vc_err_set(err, vc_ucx_status(rc), "ucx: cannot register %zu bytes: %s", bytes, ucs_status_string(rc));
    ucx->regions[ucx->n_regions].memh = memh;
    ucx->regions[ucx->n_regions].base = base;
    ucx->regions[ucx->n_regions++].bytes = bytes;
    return VC_OK;
}

void vc_ucx_set_handler(vc_ucx_t *ucx, vc_ucx_msg_fn fn, void *arg)
{
    ucx->on_msg = fn;
    ucx->msg_arg = arg;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    finish(user_data, vc_ucx_status(status));
}

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    (void)length;
    on_sent(request, status, user_data);
}

/* The registration that covers the data, or NULL. */
static ucp_mem_h find_region(const vc_ucx_t *ucx, const void *data, size_t bytes)
{
    uintptr_t p = (uintptr_t)data;
    for (unsigned i = 0; i < ucx->n_regions; i++) {
        uintptr_t base = (uintptr_t)ucx->regions[i].base;
        if (p >= base && bytes <= ucx->regions[i].bytes && p - base <= ucx->regions[i].bytes - bytes)
            return ucx->regions[i].memh;
    }
    return NULL;
}

/* The result of a starting call: failed, done at once, or reported by its callback. */
static vc_status_t started(ucs_status_ptr_t ptr, vc_ucx_op_t *op)
{
    if (UCS_PTR_IS_ERR(ptr)) {
        forget(op);
        return vc_ucx_status(UCS_PTR_STATUS(ptr));
    }
    if (ptr == NULL)
        finish(op, VC_OK);
    return VC_OK;
}

static void use_region(const vc_ucx_t *ucx, const void *data, size_t bytes, ucp_request_param_t *param)
{
    ucp_mem_h memh = find_region(ucx, data, bytes);
    if (memh == NULL)
        return;
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param->memh = memh;
}

vc_status_t vc_ucx_send(vc_ucx_ep_t *ep, const void *header, size_t header_bytes, const void *data, size_t bytes,
                        vc_ucx_op_t *op)
{
    vc_ucx_t *ucx = ep->ucx;
    if (ep->failed)
        return VC_ERR_UNREACHABLE;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = ucx->shm ? 0 : UCP_AM_SEND_FLAG_REPLY, /* shared memory: who else could it be */
        .cb.send = on_sent,
        .user_data = op,
    };
    start(ucx, op, false);
    param.flags |= bytes >= ucx->rndv_threshold ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    use_region(ucx, data, bytes, &param);
    return started(ucp_am_send_nbx(ep->ep, UCX_AM_ID, header, header_bytes, data, bytes, &param), op);
}

vc_status_t vc_ucx_recv(vc_ucx_t *ucx, void *desc, void *buf, size_t bytes, vc_ucx_op_t *op)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = op,
    };
    start(ucx, op, true);
    use_region(ucx, buf, bytes, &param);
    return started(ucp_am_recv_data_nbx(ucx->worker, desc, buf, bytes, &param), op);
}

void vc_ucx_release(vc_ucx_t *ucx, void *desc) { ucp_am_data_release(ucx->worker, desc); }
