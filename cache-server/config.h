/* The options of vericache-server. */
#ifndef CS_CONFIG_H
#define CS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/config.h"

#define CS_CONFIG_OPTIONS 64 /* room in the table; its end is the first entry without a name */

typedef struct cs_config {
    const char *listen, *data_dir, *data_listen, *data_ports, *ops_listen, *port_file;
    uint64_t capacity_bytes, ballast_bytes, ram_bytes, max_record_bytes, egress_bits_per_s;
    uint64_t n_workers, n_buffers, lease_ms, upload_ms, max_uploads, max_leases;
    uint64_t max_fetch_streams, max_put_streams, peer_timeout_ms, idle_ms, grace_ms;
    uint64_t scrub_bytes, scrub_interval_s, tenant_quota_bytes, max_connections;
    int io_mode, log_level;
    bool data_shm, trust_data_network, insecure;
    bool show_only; /* --help, --version or --print-config was answered: nothing more to do */
    vc_config_t *parsed;
    vc_opt_t table[CS_CONFIG_OPTIONS]; /* points into this struct, which therefore must not be copied or moved */
} cs_config_t;

/* Reads flags, environment and file, answers --help and the like on stdout, checks what values mean together. */
vc_status_t cs_config_load(cs_config_t *config, int argc, char **argv, char **environ_list, vc_err_t *err);
void cs_config_free(cs_config_t *config);

#endif
