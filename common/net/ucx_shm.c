/*
 * Shared memory of vc/ucx.h: a context for posix and cma, and workers that have one peer each. There is no connection
 * set-up: both sides learn the other's worker address elsewhere and make an endpoint of it.
 */
#include <string.h>

#include "ucx_int.h"
#include "vc/mem.h"

vc_status_t vc_ucx_shm_open(size_t rndv_threshold, vc_ucx_shm_t **shm_p, vc_err_t *err)
{
    ucp_config_t *config = NULL;
    vc_ucx_shm_t *shm = vc_calloc(1, sizeof(*shm));
    if (shm == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for shared-memory transfers");
    shm->rndv_threshold = rndv_threshold;
    vc_status_t st = vc_ucx_make_shm_config(rndv_threshold, &config, err);
    if (st != VC_OK) {
        vc_free(shm);
        return st;
    }
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "vericache-shm",
    };
    ucs_status_t rc = ucp_init(&params, config, &shm->context);
    ucp_config_release(config);
    if (rc != UCS_OK) {
        vc_free(shm);
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "ucx: no shared memory here: %s", ucs_status_string(rc));
    }
    *shm_p = shm;
    return VC_OK;
}

void vc_ucx_shm_close(vc_ucx_shm_t *shm)
{
    if (shm == NULL)
        return;
    ucp_cleanup(shm->context);
    vc_free(shm);
}

vc_status_t vc_ucx_shm_worker(vc_ucx_shm_t *shm, vc_ucx_t **ucx_p, vc_err_t *err)
{
    vc_ucx_t *ucx = vc_calloc(1, sizeof(*ucx));
    if (ucx == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a shared-memory peer");
    ucx->context = shm->context;
    ucx->shm = true;
    ucx->rndv_threshold = shm->rndv_threshold;
    vc_status_t st = vc_ucx_create_worker(ucx, err);
    if (st != VC_OK) {
        vc_ucx_close(ucx);
        return st;
    }
    *ucx_p = ucx;
    return VC_OK;
}

vc_status_t vc_ucx_shm_address(vc_ucx_t *ucx, uint8_t address[VC_UCX_ADDRESS_MAX], size_t *len_p, vc_err_t *err)
{
    ucp_address_t *own = NULL;
    size_t len = 0;
    ucs_status_t rc = ucp_worker_get_address(ucx->worker, &own, &len);
    if (rc != UCS_OK)
        return vc_err_set(err, vc_ucx_status(rc), "ucx: a worker has no address: %s", ucs_status_string(rc));
    bool fits = len <= VC_UCX_ADDRESS_MAX;
    if (fits) {
        memcpy(address, own, len);
        *len_p = len;
    }
    ucp_worker_release_address(ucx->worker, own);
    return fits ? VC_OK : vc_err_set(err, VC_ERR_RANGE, "ucx: a worker address of %zu bytes", len);
}

vc_status_t vc_ucx_shm_attach(vc_ucx_t *ucx, const uint8_t *address, size_t len, void *arg, vc_ucx_ep_t **ep_p,
                              vc_err_t *err)
{
    if (ucx->eps != NULL || len == 0 || len > VC_UCX_ADDRESS_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "ucx: not an address, or a second peer of one worker");
    vc_ucx_ep_t *ep = vc_calloc(1, sizeof(*ep));
    if (ep == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a shared-memory peer");
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .err_mode = UCP_ERR_HANDLING_MODE_NONE,
        .address = (const ucp_address_t *)(const void *)address,
    };
    ep->ucx = ucx;
    ep->arg = arg;
    ucs_status_t rc = ucp_ep_create(ucx->worker, &params, &ep->ep);
    if (rc != UCS_OK) {
        vc_free(ep);
        return vc_err_set(err, VC_ERR_UNREACHABLE, "ucx: the peer's memory cannot be shared: %s",
                          ucs_status_string(rc));
    }
    ucx->eps = ep;
    *ep_p = ep;
    return VC_OK;
}
