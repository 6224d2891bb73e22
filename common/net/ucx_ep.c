/* Listener and endpoints of vc/ucx.h. */
#include <string.h>

#include "ucx_int.h"
#include "vc/mem.h"

/* ---- listener ---- */

static void on_request(ucp_conn_request_h request, void *arg)
{
    vc_ucx_t *ucx = arg;
    ucx->on_request(ucx->request_arg, request);
}

vc_status_t vc_ucx_listen(vc_ucx_t *ucx, vc_ucx_request_fn fn, void *arg, vc_err_t *err)
{
    ucx->on_request = fn;
    ucx->request_arg = arg;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)&ucx->addr, .addrlen = ucx->addr_len},
        .conn_handler = {.cb = on_request, .arg = ucx},
    };
    ucs_status_t rc = ucp_listener_create(ucx->worker, &params, &ucx->listener);
    if (rc == UCS_ERR_BUSY)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "data-plane address %s is in use by another process", ucx->address);
    if (rc != UCS_OK)
        return vc_err_set(err, VC_ERR_UNREACHABLE, "cannot listen on data-plane address %s: %s", ucx->address,
                          ucs_status_string(rc));
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    rc = ucp_listener_query(ucx->listener, &attr);
    if (rc != UCS_OK)
        return vc_err_set(err, VC_ERR_INTERNAL, "ucx: the listener does not tell its port: %s", ucs_status_string(rc));
    ucx->addr = attr.sockaddr;
    vc_ucx_format(&ucx->addr, ucx->address, sizeof(ucx->address));
    return VC_OK;
}

const char *vc_ucx_listen_address(const vc_ucx_t *ucx) { return ucx->address; }

void vc_ucx_listen_stop(vc_ucx_t *ucx)
{
    if (ucx->listener == NULL)
        return;
    ucp_listener_destroy(ucx->listener);
    ucx->listener = NULL;
}

void vc_ucx_reject(vc_ucx_t *ucx, void *request) { ucp_listener_reject(ucx->listener, request); }

/* ---- endpoints ---- */

static void on_ep_error(void *arg, ucp_ep_h handle, ucs_status_t status)
{
    (void)handle;
    vc_ucx_ep_t *ep = arg;
    if (ep->failed)
        return;
    ep->failed = true;
    if (ep->on_error != NULL)
        ep->on_error(ep->arg, ep, vc_ucx_status(status));
}

static vc_status_t create_ep(vc_ucx_t *ucx, ucp_ep_params_t *params, vc_ucx_error_fn on_error, void *arg,
                             vc_ucx_ep_t **ep_p, ucs_status_t *rc_p)
{
    vc_ucx_ep_t *ep = vc_calloc(1, sizeof(*ep));
    if (ep == NULL) {
        *rc_p = UCS_ERR_NO_MEMORY;
        return VC_ERR_NOMEM;
    }
    ep->ucx = ucx;
    ep->on_error = on_error;
    ep->arg = arg;
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_ep_error;
    params->err_handler.arg = ep;
    *rc_p = ucp_ep_create(ucx->worker, params, &ep->ep);
    if (*rc_p != UCS_OK) {
        vc_free(ep);
        return vc_ucx_status(*rc_p);
    }
    ep->next = ucx->eps;
    ucx->eps = ep;
    *ep_p = ep;
    return VC_OK;
}

vc_status_t vc_ucx_accept(vc_ucx_t *ucx, void *request, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p)
{
    ucs_status_t rc;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    return create_ep(ucx, &params, on_error, arg, ep_p, &rc);
}

vc_status_t vc_ucx_connect(vc_ucx_t *ucx, vc_ucx_error_fn on_error, void *arg, vc_ucx_ep_t **ep_p, vc_err_t *err)
{
    ucs_status_t rc;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)&ucx->addr, .addrlen = ucx->addr_len},
    };
    vc_status_t st = create_ep(ucx, &params, on_error, arg, ep_p, &rc);
    if (st != VC_OK)
        return vc_err_set(err, st, "cannot connect to data-plane address %s: %s", ucx->address, ucs_status_string(rc));
    return VC_OK;
}

void *vc_ucx_ep_arg(const vc_ucx_ep_t *ep) { return ep->arg; }

static void unlink_ep(vc_ucx_ep_t *ep)
{
    for (vc_ucx_ep_t **at = &ep->ucx->eps; *at != NULL; at = &(*at)->next) {
        if (*at == ep) {
            *at = ep->next;
            return;
        }
    }
}

static void closed(vc_ucx_ep_t *ep)
{
    vc_ucx_done_fn done = ep->close_done;
    void *arg = ep->close_arg;
    ep->ucx->closing--;
    vc_free(ep);
    if (done != NULL)
        done(arg, VC_OK);
}

static void on_closed(void *request, ucs_status_t status, void *user_data)
{
    (void)status; /* a close by force ends the endpoint whatever it answers */
    ucp_request_free(request);
    closed(user_data);
}

void vc_ucx_ep_close(vc_ucx_ep_t *ep, vc_ucx_done_fn done, void *arg)
{
    unlink_ep(ep);
    ep->on_error = NULL;
    ep->close_done = done;
    ep->close_arg = arg;
    ep->ucx->closing++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = ep,
    };
    ucs_status_ptr_t ptr = ucp_ep_close_nbx(ep->ep, &param);
    if (!UCS_PTR_IS_PTR(ptr))
        closed(ep);
}
