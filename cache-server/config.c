/* The option table, and the rules between options. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vc/addr.h"
#include "vc/kvrec.h"
#include "vc/mem.h"

static void fill_table(cs_config_t *c)
{
    const vc_opt_t all[CS_CONFIG_OPTIONS] = {
        {"listen", VC_OPT_STRING, &c->listen, "127.0.0.1:7070", 0, 0, NULL,
         "HOST:PORT of the control plane (gRPC); port 0 = any"},
        {"data-dir", VC_OPT_STRING, &c->data_dir, NULL, 0, 0, NULL,
         "directory of the store, made where only the last part of its path is missing; required"},
        {"capacity", VC_OPT_BYTES, &c->capacity_bytes, "10GiB", 1 << 20, 1e18, NULL,
         "hard limit over every file in the data directory"},
        {"ballast", VC_OPT_BYTES, &c->ballast_bytes, "64MiB", 0, 1e15, NULL,
         "reserve inside the capacity, released when the disk is full"},
        {"ram", VC_OPT_BYTES, &c->ram_bytes, "256MiB", 0, 1e13, NULL,
         "memory tier: records that are kept in memory; 0 = none"},
        {"io", VC_OPT_ENUM, &c->io_mode, "auto", 0, 0, "auto|fixed|ring|threads", "how the disk is read and written"},
        {"workers", VC_OPT_U64, &c->n_workers, "1", 1, 64, NULL, "data worker threads"},
        {"buffers", VC_OPT_U64, &c->n_buffers, "32", 4, 4096, NULL,
         "transfer buffers, each as large as the largest record"},
        {"max-record", VC_OPT_BYTES, &c->max_record_bytes, "4MiB", 8192, VC_KVREC_MAX_BYTES, NULL,
         "largest record, one block of one fidelity"},
        {"lease-ms", VC_OPT_U64, &c->lease_ms, "30000", 100, 86400000, NULL, "life of a lease"},
        {"upload-ms", VC_OPT_U64, &c->upload_ms, "60000", 100, 86400000, NULL,
         "an upload that gets no record and no commit for this long is freed"},
        {"max-uploads", VC_OPT_U64, &c->max_uploads, "64", 1, 65535, NULL, "uploads open at once"},
        {"tenant-quota", VC_OPT_BYTES, &c->tenant_quota_bytes, "0", 0, 1e18, NULL,
         "what the objects of one tenant may take; 0 = no limit"},
        {"max-connections", VC_OPT_U64, &c->max_connections, "0", 0, 1000000, NULL,
         "control-plane connections at once; 0 = as many as open files allow"},
        {"max-leases", VC_OPT_U64, &c->max_leases, "4096", 1, 65535, NULL, "leases open at once"},
        {"max-fetch-streams", VC_OPT_U64, &c->max_fetch_streams, "8", 1, 256, NULL,
         "gRPC Fetch streams served at once; more wait"},
        {"max-put-streams", VC_OPT_U64, &c->max_put_streams, "4", 1, 256, NULL,
         "gRPC PutRecord streams served at once; more wait"},
        {"egress-limit", VC_OPT_RATE, &c->egress_bits_per_s, "0", 0, 1e15, NULL,
         "bits per second of all Fetch streams together; 0 = no limit"},
        {"scrub-rate", VC_OPT_BYTES, &c->scrub_bytes, "8MiB", 0, 1e12, NULL,
         "bytes per second that the background re-read takes at most; 0 = no automatic passes"},
        {"scrub-interval-s", VC_OPT_U64, &c->scrub_interval_s, "86400", 1, 31536000, NULL,
         "an automatic re-read starts this long after the one before it started"},
        {"data-listen", VC_OPT_STRING, &c->data_listen, "127.0.0.1:0", 0, 0, NULL,
         "HOST:PORT of the data plane (UCX), or none"},
        {"data-ports", VC_OPT_STRING, &c->data_ports, "", 0, 0, NULL, "LOW-HIGH, ports of the data connections"},
        {"trust-data-network", VC_OPT_BOOL, &c->trust_data_network, "false", 0, 0, NULL,
         "allow a data plane that is not on loopback; it is neither encrypted nor hardened"},
        {"data-shm", VC_OPT_BOOL, &c->data_shm, "true", 0, 0, NULL,
         "share memory with clients of the same user on this machine"},
        {"ops-listen", VC_OPT_STRING, &c->ops_listen, "127.0.0.1:0", 0, 0, NULL,
         "HOST:PORT of the operators' HTTP port (/healthz, /readyz, /metrics), or none"},
        {"peer-timeout-ms", VC_OPT_U64, &c->peer_timeout_ms, "5000", 100, 3600000, NULL,
         "a data-plane peer that makes no progress is closed after this"},
        {"idle-ms", VC_OPT_U64, &c->idle_ms, "30000", 100, 3600000, NULL,
         "a gRPC stream that makes no progress is ended after this"},
        {"insecure", VC_OPT_BOOL, &c->insecure, "false", 0, 0, NULL,
         "allow a control plane that is not on loopback without TLS"},
        {"grace-ms", VC_OPT_U64, &c->grace_ms, "5000", 0, 3600000, NULL,
         "what running calls get at shutdown before they are cancelled"},
        {"port-file", VC_OPT_STRING, &c->port_file, "", 0, 0, NULL,
         "when ready, write the control port, then listen=, data= and ops= lines"},
        {"log-level", VC_OPT_ENUM, &c->log_level, "info", 0, 0, "error|warn|info|debug", "how much to log"},
        {NULL, VC_OPT_BOOL, NULL, NULL, 0, 0, NULL, NULL},
    };
    memcpy(c->table, all, sizeof(all));
}

/* Here, and not only where the data plane starts: a refusal must come before the data directory is touched. */
static vc_status_t check_data_listen(const cs_config_t *c, vc_err_t *err)
{
    if (c->data_listen[0] == '\0' || strcmp(c->data_listen, "none") == 0)
        return VC_OK;
    vc_status_t st = vc_addr_check(c->data_listen, err);
    if (st != VC_OK) {
        (void)vc_err_prefix(err, "--data-listen");
        return st;
    }
    if (!c->trust_data_network && !vc_addr_is_loopback(c->data_listen))
        return vc_err_set(err, VC_ERR_INVALID,
                          "--data-listen=%s is not a loopback address and the data plane is neither encrypted nor "
                          "hardened: give --trust-data-network to allow it",
                          c->data_listen);
    return VC_OK;
}

/* Memory that is never there is refused at start: later it would be a crash under load. */
static vc_status_t check_memory(const cs_config_t *c, vc_err_t *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t there = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    uint64_t buffers = c->n_buffers * c->max_record_bytes; /* 4096 of at most VC_KVREC_MAX_BYTES */
    if (c->ram_bytes <= there && buffers <= there - c->ram_bytes)
        return VC_OK;
    return vc_err_set(
        err, VC_ERR_INVALID,
        "--ram=%llu and --buffers=%llu of --max-record=%llu are more than the %llu bytes of memory of this "
        "machine",
        (unsigned long long)c->ram_bytes, (unsigned long long)c->n_buffers, (unsigned long long)c->max_record_bytes,
        (unsigned long long)there);
}

static vc_status_t check_space(const cs_config_t *c, vc_err_t *err)
{
    if (c->ballast_bytes >= c->capacity_bytes)
        return vc_err_set(err, VC_ERR_INVALID, "--ballast=%llu leaves nothing of --capacity=%llu",
                          (unsigned long long)c->ballast_bytes, (unsigned long long)c->capacity_bytes);
    if (c->tenant_quota_bytes > c->capacity_bytes)
        return vc_err_set(err, VC_ERR_INVALID, "--tenant-quota=%llu is more than --capacity=%llu",
                          (unsigned long long)c->tenant_quota_bytes, (unsigned long long)c->capacity_bytes);
    if (c->tenant_quota_bytes != 0 && c->tenant_quota_bytes < c->max_record_bytes)
        return vc_err_set(err, VC_ERR_INVALID, "--tenant-quota=%llu does not hold one record of --max-record=%llu",
                          (unsigned long long)c->tenant_quota_bytes, (unsigned long long)c->max_record_bytes);
    return VC_OK;
}

static vc_status_t check_ops_listen(const cs_config_t *c, vc_err_t *err)
{
    if (c->ops_listen[0] == '\0' || strcmp(c->ops_listen, "none") == 0)
        return VC_OK;
    vc_status_t st = vc_addr_check(c->ops_listen, err);
    if (st != VC_OK) {
        (void)vc_err_prefix(err, "--ops-listen");
        return st;
    }
    if (!c->insecure && !vc_addr_is_loopback(c->ops_listen))
        return vc_err_set(err, VC_ERR_INVALID,
                          "--ops-listen=%s is not a loopback address and has no TLS: give --insecure to allow it",
                          c->ops_listen);
    return VC_OK;
}

static vc_status_t check(const cs_config_t *c, vc_err_t *err)
{
    if (vc_config_n_args(c->parsed) != 0)
        return vc_err_set(err, VC_ERR_INVALID, "unexpected argument \"%.100s\"", vc_config_arg(c->parsed, 0));
    if (c->data_dir[0] == '\0')
        return vc_err_set(err, VC_ERR_INVALID, "--data-dir is required");
    vc_status_t st = check_space(c, err);
    if (st == VC_OK)
        st = check_memory(c, err);
    if (st != VC_OK)
        return st;
    st = vc_addr_check(c->listen, err);
    if (st != VC_OK) {
        (void)vc_err_prefix(err, "--listen");
        return st;
    }
    if (!c->insecure && !vc_addr_is_loopback(c->listen))
        return vc_err_set(err, VC_ERR_INVALID,
                          "--listen=%s is not a loopback address and the control plane has no TLS: give --insecure to "
                          "allow it",
                          c->listen);
    st = check_ops_listen(c, err);
    return st == VC_OK ? check_data_listen(c, err) : st;
}

vc_status_t cs_config_load(cs_config_t *config, int argc, char **argv, char **environ_list, vc_err_t *err)
{
    *config = (cs_config_t){0};
    fill_table(config);
    vc_status_t st = vc_config_parse(config->table, argc, argv, environ_list, &config->parsed, err);
    if (st != VC_OK)
        return st;
    config->show_only = true;
    if (vc_config_wants_version(config->parsed)) {
        printf("vericache-server %s\n", VC_VERSION);
    } else if (vc_config_wants_help(config->parsed)) {
        printf("vericache-server: stores prefix KV of language models, full and compressed.\n"
               "usage: vericache-server --data-dir DIR [options]\n"
               "       vericache-server verify --data-dir DIR [--json]   checks a directory that no server holds\n\n");
        vc_config_print_help(config->table, stdout);
    } else if (vc_config_wants_print(config->parsed)) {
        vc_config_print_values(config->table, config->parsed, stdout);
    } else {
        config->show_only = false;
        config->max_record_bytes = vc_align_up((size_t)config->max_record_bytes, VC_KVREC_ALIGN);
        st = check(config, err);
    }
    if (st != VC_OK)
        cs_config_free(config);
    return st;
}

void cs_config_free(cs_config_t *config)
{
    vc_config_free(config->parsed);
    config->parsed = NULL;
}
