/*
 * `vericache-node serve --role verify`: the verify node. Main thread: waits for a signal. Everything else happens on
 * the gRPC server's slot threads (role/verify_session.h). SIGTERM and SIGINT let running streams go on for a grace
 * period, then end.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "role/cmd.h"
#include "role/options.h"
#include "role/verify_session.h"
#include "role/verify_wire.h"
#include "vc/addr.h"
#include "vc/config.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "vc/portfile.h"

#define MESSAGE_MAX_BYTES (8u << 20)

typedef struct serve_opts {
    const char *model, *listen, *server, *port_file, *calibration, *kv_dir;
    int role, isa, log_level;
    uint64_t threads, kv_ram, max_draft, streams, grace_ms;
    bool store, data_plane, insecure;
} serve_opts_t;

#define SERVE_N_OPTS 18
static void fill_table(serve_opts_t *o, vc_opt_t *table)
{
    const vc_opt_t rows[SERVE_N_OPTS] = {
        {"role", VC_OPT_ENUM, &o->role, "verify", 0, 0, "verify", "what this node does for others"},
        NODE_OPT_MODEL(o->model),
        {"listen", VC_OPT_STRING, &o->listen, "127.0.0.1:7071", 0, 0, NULL, "HOST:PORT for draft nodes (port 0: any)"},
        {"server", VC_OPT_STRING, &o->server, NULL, 0, 0, NULL, "cache server HOST:PORT (none: compute everything)"},
        NODE_OPT_DATA_PLANE(o->data_plane),
        {"store", VC_OPT_BOOL, &o->store, "true", 0, 0, NULL, "store new blocks when a request ends"},
        NODE_OPT_CALIBRATION(o->calibration),
        NODE_OPT_THREADS(o->threads),
        NODE_OPT_ISA(o->isa),
        {"kv-ram", VC_OPT_BYTES, &o->kv_ram, "4GiB", 1 << 20, 0, NULL, "full KV of all requests together"},
        {"kv-dir", VC_OPT_STRING, &o->kv_dir, NULL, 0, 0, NULL,
         "files for full KV beyond a request's share of --kv-ram (none: more requests than fit are refused)"},
        {"max-draft", VC_OPT_U64, &o->max_draft, "64", 1, 255, NULL, "drafts verified in one pass"},
        {"streams", VC_OPT_U64, &o->streams, "8", 1, 256, NULL, "requests served at once"},
        {"grace-ms", VC_OPT_U64, &o->grace_ms, "2000", 0, 600000, NULL, "time for running requests at shutdown"},
        {"insecure", VC_OPT_BOOL, &o->insecure, "false", 0, 0, NULL,
         "allow a listen address that is not loopback, without TLS"},
        {"port-file", VC_OPT_STRING, &o->port_file, NULL, 0, 0, NULL, "write listen=HOST:PORT here once ready"},
        NODE_OPT_LOG_LEVEL(o->log_level, "info"),
        {0},
    };
    memcpy(table, rows, sizeof(rows));
}

static vc_status_t start_and_wait(const serve_opts_t *o, node_verify_service_t *service, const sigset_t *signals,
                                  vc_err_t *err)
{
    const vc_rpc_method_t method = {
        .name = NODE_VERIFY_METHOD, .stream = node_verify_stream, .slots = (uint32_t)o->streams};
    vc_rpc_server_opts_t ropts;
    vc_rpc_server_opts_default(&ropts);
    ropts.listen = o->listen;
    ropts.methods = &method;
    ropts.n_methods = 1;
    ropts.arg = service;
    ropts.max_message_bytes = MESSAGE_MAX_BYTES;
    vc_rpc_server_t *server = NULL;
    vc_status_t status = vc_rpc_server_start(&ropts, &server, err);
    if (status != VC_OK)
        return status;
    if (o->port_file != NULL && o->port_file[0] != '\0')
        status = vc_portfile_write(o->port_file, o->listen, vc_rpc_server_port(server), "", err);
    if (status == VC_OK) {
        int sig = 0;
        vc_log_info("verify", "ready listen=%s port=%d server=%s", o->listen, vc_rpc_server_port(server),
                    o->server != NULL && o->server[0] != '\0' ? o->server : "none");
        sigwait(signals, &sig);
        vc_log_info("verify",
                    "stopping signal=%d streams=%" PRIu64 " committed=%" PRIu64 " accepted=%" PRIu64
                    " drafted=%" PRIu64,
                    sig, service->n_streams, service->n_committed, service->n_accepted, service->n_drafted);
    }
    vc_rpc_server_stop(server, (uint32_t)o->grace_ms);
    return status;
}

/* Options that nothing reads in this run. */
static vc_status_t refuse_idle(const serve_opts_t *o, const vc_opt_t *table, const vc_config_t *config, vc_err_t *err)
{
    bool server = o->server != NULL && o->server[0] != '\0';
    const node_idle_opt_t list[] = {
        {"store", o->store && !server, "with a --server"},
        {"data-plane", o->data_plane && !server, "with a --server"},
        {"calibration", !server || !o->store, "with --server and --store"},
    };
    return node_opts_refuse_idle(table, config, list, VC_ARRAY_LEN(list), err);
}

static vc_status_t check_addresses(const serve_opts_t *o, vc_err_t *err)
{
    vc_status_t status = vc_addr_check(o->listen, err);
    if (status != VC_OK) {
        (void)vc_err_prefix(err, "--listen");
    } else if (o->server != NULL && o->server[0] != '\0') {
        status = vc_addr_check(o->server, err);
        if (status != VC_OK)
            (void)vc_err_prefix(err, "--server");
    }
    return status;
}

static vc_status_t run_serve(serve_opts_t *o, vc_err_t *err)
{
    vc_status_t status = check_addresses(o, err);
    if (status == VC_OK && o->kv_dir != NULL && o->kv_dir[0] != '\0')
        status = node_opts_kv_dir(&o->kv_dir, err);
    if (status != VC_OK)
        return status;
    if (!vc_addr_is_loopback(o->listen) && !o->insecure)
        return vc_err_set(err, VC_ERR_INVALID,
                          "--listen %s is not loopback; without TLS that needs --insecure, on a trusted network",
                          o->listen);
    sigset_t signals; /* blocked before any thread starts, so that only sigwait sees them */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    node_opts_t nopts;
    node_opts_default(&nopts);
    nopts.model_path = o->model;
    nopts.calib_dir = o->calibration;
    nopts.engine.n_threads = (uint32_t)o->threads;
    nopts.engine.isa = (node_isa_t)o->isa;
    node_t *node = NULL;
    status = node_open(&nopts, &node, err);
    if (status != VC_OK)
        return status;
    node_cache_opts_t copts;
    node_cache_opts_default(&copts);
    copts.server = o->server;
    copts.use_data_plane = o->data_plane;
    node_verify_service_t service = {
        .node = node,
        .cache_opts = o->server != NULL && o->server[0] != '\0' ? &copts : NULL,
        .store_at_end = o->store,
        .kv_ram_bytes = o->kv_ram,
        .kv_dir = o->kv_dir != NULL && o->kv_dir[0] != '\0' ? o->kv_dir : NULL,
        .n_slots = (uint32_t)o->streams,
        .max_draft = (uint32_t)o->max_draft,
        .clock = vc_clock_system(),
    };
    status = start_and_wait(o, &service, &signals, err);
    node_close(node);
    return status;
}

int node_cmd_serve(int argc, char **argv)
{
    serve_opts_t o = {0};
    vc_opt_t table[SERVE_N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    int rc = 0;
    fill_table(&o, table);
    if (!node_cmd_begin(table, "", false, argc, argv, &config, &rc))
        return rc;
    vc_log_set_level((vc_log_level_t)o.log_level);
    vc_status_t status = VC_OK;
    if (vc_config_n_args(config) > 0)
        status = vc_err_set(&err, VC_ERR_INVALID, "serve takes no arguments: %s", vc_config_arg(config, 0));
    if (status == VC_OK)
        status = refuse_idle(&o, table, config, &err);
    if (status == VC_OK)
        status = run_serve(&o, &err);
    vc_config_free(config);
    return status == VC_OK ? 0 : node_cmd_fail("serve", status, &err);
}
