/*
 * UCX configuration made by us, entry by entry, so that UCX_* variables of the environment decide nothing that matters,
 * and UCX's log lines in our log.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include "ucx_int.h"
#include "vc/log.h"
#include "vc/mem.h"

/* UCX logs a refused connection as an error; whether it is one is known above, where the status is seen. STOP also
 * keeps the process alive where cma finds that the other process is gone: UCX's own handler ends the process at such a
 * line, without it the transfer fails. */
static ucs_log_func_rc_t forward_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                     const ucs_log_component_config_t *comp, const char *message, va_list ap)
    __attribute__((format(printf, 6, 0)));
static ucs_log_func_rc_t forward_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                     const ucs_log_component_config_t *comp, const char *message, va_list ap)
{
    (void)comp;
    (void)function;
    char text[400];
    vsnprintf(text, sizeof(text), message, ap);
    const char *base = strrchr(file, '/'), *name = base != NULL ? base + 1 : file;
    bool peer_died = strcmp(name, "cma_ep.c") == 0;
    vc_log_level_t to = level == UCS_LOG_LEVEL_FATAL && !peer_died ? VC_LOG_ERROR : VC_LOG_DEBUG;
    if (level <= UCS_LOG_LEVEL_WARN)
        vc_log(to, "ucx", "%s at=%s:%u", text, name, line);
    return UCS_LOG_FUNC_RC_STOP;
}

static void init_globals(void)
{
    ucs_log_push_handler(forward_log);
    ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
}

/* UCX would take a range that it cannot read for none. */
static bool is_port_range(const char *text)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long low = strtoul(text, &end, 10), high;
    if (*end != '-' || end[1] < '0' || end[1] > '9')
        return false;
    high = strtoul(end + 1, &end, 10);
    return *end == '\0' && low >= 1 && low <= high && high <= 65535;
}

static vc_status_t apply(const char *const table[][2], size_t n, ucp_config_t **config_p, vc_err_t *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_globals);
    ucp_config_t *config = NULL;
    if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return vc_err_set(err, VC_ERR_INTERNAL, "ucx: cannot read its configuration");
    for (size_t i = 0; i < n; i++) {
        ucs_status_t rc = ucp_config_modify(config, table[i][0], table[i][1]);
        if (rc == UCS_OK)
            continue;
        ucp_config_release(config);
        return vc_err_set(err, VC_ERR_INVALID, "ucx: setting %s=%s is refused: %s", table[i][0], table[i][1],
                          ucs_status_string(rc));
    }
    *config_p = config;
    return VC_OK;
}

vc_status_t vc_ucx_make_config(const vc_ucx_opts_t *opts, const char *devices, ucp_config_t **config_p, vc_err_t *err)
{
    if (opts->ports != NULL && !is_port_range(opts->ports))
        return vc_err_set(err, VC_ERR_INVALID, "data-plane port range '%s' is not LOW-HIGH within 1-65535",
                          opts->ports);
    char threshold[24];
    snprintf(threshold, sizeof(threshold), "%zu", opts->rndv_threshold);
    const char *const table[][2] = {
        {"TLS", vc_ucx_have_rdma() ? "rc,ud,tcp" : "tcp"},
        {"NET_DEVICES", devices},
        {"WARN_INVALID_CONFIG", "n"},
        {"SOCKADDR_TLS_PRIORITY", "rdmacm,tcp"},
        {"RNDV_THRESH", threshold},
        /* The messages of a rendezvous on tcp go as zero-copy active messages; its emulated put is far slower. With
         * RDMA the receiver reads by itself. */
        {"RNDV_SCHEME", vc_ucx_have_rdma() ? "auto" : "am"},
        {"ZCOPY_THRESH", "auto"},
        {"PROTO_ENABLE", "n"},
        {"ADAPTIVE_PROGRESS", "y"},
        {"KEEPALIVE_INTERVAL", "2s"},
        /* Of transports and connection managers: without the prefix that their variables have (TCP_, TCP_CM_). A name
         * that nothing knows is not an error in UCX; test_ucx sees to it that these work. */
        {"CM_REUSEADDR", "y"},
        {"TX_SEG_SIZE", "64k"},
        {"RX_SEG_SIZE", "256k"},
        {"PORT_RANGE", opts->ports != NULL ? opts->ports : "0"},
    };
    return apply(table, VC_ARRAY_LEN(table), config_p, err);
}

vc_status_t vc_ucx_make_shm_config(size_t rndv_threshold, ucp_config_t **config_p, vc_err_t *err)
{
    char threshold[24];
    snprintf(threshold, sizeof(threshold), "%zu", rndv_threshold);
    const char *const table[][2] = {
        {"TLS", "posix,cma"},
        {"WARN_INVALID_CONFIG", "n"},
        {"RNDV_THRESH", threshold},
        /* The receiver reads. A put by the sender could still write here when its peer has been given up. */
        {"RNDV_SCHEME", "get_zcopy"},
        {"ZCOPY_THRESH", "auto"},
        {"PROTO_ENABLE", "n"},
        {"ADAPTIVE_PROGRESS", "y"},
    };
    return apply(table, VC_ARRAY_LEN(table), config_p, err);
}

vc_status_t vc_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK: return VC_OK;
    case UCS_ERR_NO_MEMORY: return VC_ERR_NOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR: return VC_ERR_INVALID;
    case UCS_ERR_CANCELED: return VC_ERR_CANCELLED;
    case UCS_ERR_MESSAGE_TRUNCATED: return VC_ERR_PROTOCOL;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED: return VC_ERR_UNSUPPORTED;
    case UCS_ERR_TIMED_OUT: return VC_ERR_TIMEOUT;
    case UCS_ERR_IO_ERROR: return VC_ERR_IO;
    default: return VC_ERR_UNREACHABLE; /* resets, rejections, lost links, busy ports */
    }
}
