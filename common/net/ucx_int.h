/* Inside of net/ucx*.c only. */
#ifndef VC_UCX_INT_H
#define VC_UCX_INT_H

#include <netdb.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "vc/ucx.h"

#define UCX_AM_ID 7u
#define UCX_DEVICES_MAX 256
#define UCX_REGIONS_MAX 4

struct vc_ucx_ep {
    vc_ucx_t *ucx;
    vc_ucx_ep_t *next; /* list of the open ones in vc_ucx */
    ucp_ep_h ep;
    vc_ucx_error_fn on_error;
    vc_ucx_done_fn close_done;
    void *arg, *close_arg;
    bool failed;
};

struct vc_ucx_shm {
    ucp_context_h context;
    size_t rndv_threshold;
};

struct vc_ucx {
    ucp_context_h context; /* over shared memory: of its vc_ucx_shm_t */
    bool shm;
    ucp_worker_h worker;
    ucp_listener_h listener;
    struct {
        ucp_mem_h memh;
        const uint8_t *base;
        size_t bytes;
    } regions[UCX_REGIONS_MAX];
    unsigned n_regions;
    size_t rndv_threshold;
    int fd, watched_fd;
    vc_ucx_op_t *running; /* shm */
    vc_ucx_msg_fn on_msg;
    void *msg_arg;
    vc_ucx_request_fn on_request;
    void *request_arg;
    vc_ucx_ep_t *eps;
    unsigned closing; /* endpoints whose close has not completed */
    struct sockaddr_storage addr;
    socklen_t addr_len;
    char address[NI_MAXHOST + 16];
};

vc_status_t vc_ucx_status(ucs_status_t status);

/* ucx.c */
vc_status_t vc_ucx_create_worker(vc_ucx_t *ucx, vc_err_t *err);

/* ucx_addr.c */
vc_status_t vc_ucx_resolve(const char *address, bool passive, struct sockaddr_storage *addr_p, socklen_t *len_p,
                           vc_err_t *err);
/* Comma-separated UCX device names for an address: the network device that carries it, and RDMA ports behind that. */
vc_status_t vc_ucx_devices(const char *address, const struct sockaddr_storage *addr, bool listen,
                           char devices[UCX_DEVICES_MAX], vc_err_t *err);
void vc_ucx_format(const struct sockaddr_storage *addr, char *text, size_t cap);
bool vc_ucx_have_rdma(void);

/* ucx_config.c */
vc_status_t vc_ucx_make_config(const vc_ucx_opts_t *opts, const char *devices, ucp_config_t **config_p, vc_err_t *err);
vc_status_t vc_ucx_make_shm_config(size_t rndv_threshold, ucp_config_t **config_p, vc_err_t *err);

#endif
