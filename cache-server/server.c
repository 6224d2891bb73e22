/*
 * Start order: pool, memory tier, workers, store, data plane, service, ops port. Stop is the reverse. Nothing here
 * knows how any of them works.
 */
#include "server.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "acceptguard.h"
#include "dataplane.h"
#include "opshttp.h"
#include "service.h"
#include "store.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "vc/portfile.h"

#define FILES_WANTED 4096                /* segments, sockets, RocksDB tables */
#define THREADS_ROOM ((size_t)512 << 20) /* stacks of about thirty threads and their heaps */
#define FILES_LEAST 256                  /* 64 segments, 64 tables, the rest for connections */

struct cs_server {
    cs_bufpool_t *pool;
    cs_ramtier_t *ram;
    cs_workers_t *workers;
    cs_store_t *store;
    cs_dataplane_t *dataplane;
    cs_service_t *service;
    cs_opshttp_t *ops;
    const cs_config_t *config; /* the caller's */
    uint32_t grace_ms;
    uint64_t drain_us;                        /* when draining began; 0: not yet */
    char data_address[300], ops_address[300]; /* "none" where there is no ops port */
};

/* The libraries abort the process where they get no descriptor, so too low a limit is refused at start. */
static vc_status_t raise_file_limit(uint64_t max_connections, vc_err_t *err)
{
    struct rlimit rl;
    uint64_t least = FILES_LEAST + max_connections, wanted = VC_MAX(FILES_WANTED, least);
    if (getrlimit(RLIMIT_NOFILE, &rl) != 0 || rl.rlim_cur >= wanted)
        return VC_OK;
    rl.rlim_cur = rl.rlim_max < wanted ? rl.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &rl) != 0 || rl.rlim_cur < wanted)
        vc_log_warn("server", "few open files allowed limit=%llu wanted=%llu", (unsigned long long)rl.rlim_cur,
                    (unsigned long long)wanted);
    if (rl.rlim_cur < least)
        return vc_err_set(err, VC_ERR_BUSY,
                          "only %llu open files are allowed, the least that works with --max-connections=%llu is %llu "
                          "(ulimit -n)",
                          (unsigned long long)rl.rlim_cur, (unsigned long long)max_connections,
                          (unsigned long long)least);
    return VC_OK;
}

/* RocksDB and gRPC end the process where a thread gets no stack, so too low a limit is refused at start. */
static vc_status_t check_address_space(vc_err_t *err)
{
    struct rlimit rl;
    if (getrlimit(RLIMIT_AS, &rl) != 0 || rl.rlim_cur == RLIM_INFINITY)
        return VC_OK;
    void *room = mmap(NULL, THREADS_ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return vc_err_set(err, VC_ERR_NOMEM,
                          "the address space allowed, %llu bytes (ulimit -v), leaves no %llu for the threads",
                          (unsigned long long)rl.rlim_cur, (unsigned long long)THREADS_ROOM);
    munmap(room, THREADS_ROOM);
    return VC_OK;
}

static uint32_t data_stats(void *arg, cs_stat_t *stats, uint32_t cap)
{
    cs_server_t *s = arg;
    cs_dataplane_stats_t d;
    if (s->dataplane == NULL)
        return 0;
    cs_dataplane_get_stats(s->dataplane, &d);
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        {"peers_open", d.peers_open},
        {"peers_total", d.peers_total},
        {"peers_refused", d.peers_refused},
        {"peers_lost", d.peers_lost},
        {"peers_stalled", d.peers_stalled},
        {"fetches", d.fetches},
        {"puts", d.puts},
        {"records_sent", d.records_sent},
        {"bytes_sent", d.bytes_sent},
        {"records_received", d.records_received},
        {"bytes_received", d.bytes_received},
        {"bad_frames", d.bad_frames},
        {"unauthenticated", d.unauthenticated},
        {"stale", d.stale},
        {"wire_corrupt", d.wire_corrupt},
        {"ops_in_flight", d.ops_in_flight},
        {"pins_held", d.pins_held},
        {"shm_peers", d.shm_peers},
        {"shm_peers_total", d.shm_peers_total},
        {"shm_refused", d.shm_refused},
        {"step_downs", d.step_downs},
        {"pieces_sent", d.pieces_sent},
    };
    uint32_t n = (uint32_t)VC_MIN(cap, VC_ARRAY_LEN(all));
    for (uint32_t i = 0; i < n; i++) {
        snprintf(stats[i].name, sizeof(stats[i].name), "data_%s", all[i].name);
        stats[i].value = (double)all[i].value;
    }
    return n;
}

static uint32_t more_stats(void *arg, cs_stat_t *stats, uint32_t cap)
{
    uint32_t n = data_stats(arg, stats, cap);
    if (n < cap) {
        snprintf(stats[n].name, sizeof(stats[n].name), "connections_refused");
        stats[n++].value = (double)cs_acceptguard_refused();
    }
    return n;
}

static void each_option(void *arg, vc_config_fn each, void *each_arg)
{
    const cs_server_t *s = arg;
    vc_config_each(s->config->table, s->config->parsed, each, each_arg);
}

/* ---- start ---- */

static vc_status_t start_store(cs_server_t *s, const cs_config_t *c, vc_err_t *err)
{
    vc_status_t st = cs_bufpool_create((uint32_t)c->n_buffers, (size_t)c->max_record_bytes, &s->pool, err);
    if (st != VC_OK)
        return st;
    cs_ramtier_opts_t r = {.bytes = c->ram_bytes, .pool = s->pool};
    st = cs_ramtier_create(&r, &s->ram, err);
    if (st != VC_OK)
        return st;
    cs_workers_opts_t w = {
        .n_workers = (uint32_t)c->n_workers, .queue_depth = 64, .io_mode = (cs_io_mode_t)c->io_mode, .pool = s->pool};
    st = cs_workers_start(&w, &s->workers, err);
    if (st != VC_OK)
        return st;
    cs_store_opts_t o;
    cs_store_opts_default(&o);
    o.data_dir = c->data_dir;
    o.capacity_bytes = c->capacity_bytes;
    o.ballast_bytes = c->ballast_bytes;
    o.lease_ms = (uint32_t)c->lease_ms;
    o.upload_ms = (uint32_t)c->upload_ms;
    o.max_uploads = (uint32_t)c->max_uploads;
    o.max_leases = (uint32_t)c->max_leases;
    o.tenant_quota_bytes = c->tenant_quota_bytes;
    o.scrub_bytes = c->scrub_bytes;
    o.scrub_interval_s = (uint32_t)c->scrub_interval_s;
    o.workers = s->workers;
    o.pool = s->pool;
    o.ram = s->ram;
    vc_status_t room = check_address_space(err);
    return room == VC_OK ? cs_store_open(&o, &s->store, err) : room;
}

static vc_status_t start_dataplane(cs_server_t *s, const cs_config_t *c, vc_err_t *err)
{
    if (strcmp(c->data_listen, "none") == 0 || c->data_listen[0] == '\0')
        return VC_OK;
    cs_dataplane_opts_t o;
    cs_dataplane_opts_default(&o);
    o.listen = c->data_listen;
    o.data_ports = c->data_ports[0] != '\0' ? c->data_ports : NULL;
    o.trust_data_network = c->trust_data_network;
    o.shm = c->data_shm;
    o.peer_timeout_ms = (uint32_t)c->peer_timeout_ms;
    o.store = s->store;
    o.workers = s->workers;
    o.pool = s->pool;
    vc_status_t st = cs_dataplane_start(&o, &s->dataplane, err);
    if (st == VC_OK)
        snprintf(s->data_address, sizeof(s->data_address), "%s", cs_dataplane_address(s->dataplane));
    return st;
}

static vc_status_t start_service(cs_server_t *s, const cs_config_t *c, vc_err_t *err)
{
    cs_service_opts_t o;
    cs_service_opts_default(&o);
    o.listen = c->listen;
    o.max_fetch_streams = (uint32_t)c->max_fetch_streams;
    o.max_put_streams = (uint32_t)c->max_put_streams;
    o.egress_bits_per_s = c->egress_bits_per_s;
    o.idle_ms = (uint32_t)c->idle_ms;
    o.store = s->store;
    o.pool = s->pool;
    o.data_address = s->data_address;
    o.shm_address = s->dataplane != NULL ? cs_dataplane_shm_address(s->dataplane) : "";
    o.more_stats = more_stats;
    o.each_option = each_option;
    o.arg = s;
    return cs_service_start(&o, &s->service, err);
}

static const char *why_not_ready(void *arg)
{
    const cs_server_t *s = arg;
    return cs_service_is_draining(s->service) ? "draining" : NULL;
}

static uint32_t all_stats(void *arg, cs_stat_t *stats, uint32_t cap)
{
    cs_server_t *s = arg;
    return cs_service_list_stats(s->service, stats, cap);
}

static vc_status_t start_ops(cs_server_t *s, const cs_config_t *c, vc_err_t *err)
{
    snprintf(s->ops_address, sizeof(s->ops_address), "none");
    if (strcmp(c->ops_listen, "none") == 0 || c->ops_listen[0] == '\0')
        return VC_OK;
    cs_opshttp_opts_t o = {.listen = c->ops_listen, .why_not_ready = why_not_ready, .stats = all_stats, .arg = s};
    vc_status_t st = cs_opshttp_start(&o, &s->ops, err);
    if (st != VC_OK)
        return st;
    size_t host_len = (size_t)(strrchr(c->ops_listen, ':') - c->ops_listen);
    snprintf(s->ops_address, sizeof(s->ops_address), "%.*s:%d", (int)VC_MIN(host_len, 255), c->ops_listen,
             cs_opshttp_port(s->ops));
    return VC_OK;
}

static vc_status_t announce(const cs_server_t *s, const cs_config_t *c, vc_err_t *err)
{
    size_t host_len = (size_t)(strrchr(c->listen, ':') - c->listen);
    const char *data = s->data_address[0] != '\0' ? s->data_address : "none";
    if (c->port_file[0] != '\0') {
        char more[640];
        snprintf(more, sizeof(more), "data=%s\nops=%s\n", data, s->ops_address);
        vc_status_t st = vc_portfile_write(c->port_file, c->listen, cs_server_port(s), more, err);
        if (st != VC_OK)
            return st;
    }
    vc_log_info("server", "ready listen=%.*s:%d data=%s ops=%s boot=%016llx generation=%llu%s", (int)host_len,
                c->listen, cs_server_port(s), data, s->ops_address, (unsigned long long)cs_store_boot_id(s->store),
                (unsigned long long)cs_store_generation(s->store),
                cs_store_is_readonly(s->store) ? " readonly=true" : "");
    return VC_OK;
}

vc_status_t cs_server_start(const cs_config_t *config, cs_server_t **server_p, vc_err_t *err)
{
    cs_server_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    s->config = config;
    s->grace_ms = (uint32_t)config->grace_ms;
    vc_status_t st = raise_file_limit(config->max_connections, err);
    if (st == VC_OK)
        st = start_store(s, config, err);
    if (st == VC_OK)
        st = start_dataplane(s, config, err);
    if (st == VC_OK)
        st = start_service(s, config, err);
    if (st == VC_OK)
        st = start_ops(s, config, err);
    if (st == VC_OK) {
        cs_acceptguard_set(config->max_connections);
        st = announce(s, config, err);
    }
    if (st != VC_OK) {
        cs_server_stop(s);
        return st;
    }
    *server_p = s;
    return VC_OK;
}

int cs_server_port(const cs_server_t *server) { return cs_service_port(server->service); }
const char *cs_server_data_address(const cs_server_t *server) { return server->data_address; }

/* ---- stop ---- */

void cs_server_drain(cs_server_t *s)
{
    s->drain_us = VC_MAX(vc_clock_now_us(vc_clock_system()), 1);
    cs_service_drain(s->service, true);
}

bool cs_server_is_drained(cs_server_t *s)
{
    cs_drain_report_t r;
    cs_service_report(s->service, &r);
    return cs_drain_is_done(&r);
}

void cs_server_end_grace(cs_server_t *s) { s->grace_ms = 0; }

/* Says what is still out, and returns what is left of the grace period. */
static uint32_t end_drain(cs_server_t *s)
{
    cs_drain_report_t r;
    if (s->drain_us == 0)
        cs_server_drain(s);
    cs_service_report(s->service, &r);
    uint64_t ms = (vc_clock_now_us(vc_clock_system()) - s->drain_us) / 1000;
    vc_log_info("server",
                "drained ms=%llu leases=%u leased_bytes=%llu oldest_lease_ms=%llu uploads=%u commits=%u transfers=%u",
                (unsigned long long)ms, r.leases.n_leases, (unsigned long long)r.leases.n_bytes,
                (unsigned long long)r.leases.oldest_ms, r.uploads, r.commits, r.transfers);
    return ms < s->grace_ms ? s->grace_ms - (uint32_t)ms : 0;
}

void cs_server_stop(cs_server_t *s)
{
    if (s == NULL)
        return;
    uint32_t grace_ms = s->service != NULL ? end_drain(s) : 0;
    cs_opshttp_stop(s->ops); /* it looks into the service */
    cs_service_stop(s->service, grace_ms);
    if (s->dataplane != NULL)
        cs_dataplane_stop(s->dataplane);
    if (s->store != NULL)
        cs_store_close(s->store);
    if (s->workers != NULL)
        cs_workers_stop(s->workers);
    cs_ramtier_destroy(s->ram);
    if (s->pool != NULL)
        cs_bufpool_destroy(s->pool);
    vc_free(s);
}
