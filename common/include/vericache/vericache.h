/*
 * libvericache: the C client library of a VeriCache server. The only code that speaks to a server.
 *
 * Blocking calls with deadlines; one client may be used from several threads. Opaque handles, plain C types, stable
 * ABI. No call exits the process or writes to stderr; every error comes with one sentence in vcache_error_t. A lost
 * server is found at the next call: it returns VCACHE_UNREACHABLE within connect_ms and the call after that connects
 * again by itself. A restarted server is noticed by its boot id: old leases answer VCACHE_STALE.
 */
#ifndef VERICACHE_H
#define VERICACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VCACHE_API __attribute__((visibility("default")))

typedef struct vcache_client vcache_client_t;
typedef struct vcache_lease vcache_lease_t;

/* Same numbers as vc_status_t (vc/status.h). */
typedef int vcache_status_t;
typedef struct vcache_error {
    vcache_status_t status;
    char msg[500];
} vcache_error_t;

/* Short name of a status: "ok", "stale", "unreachable". Never NULL, static storage. */
VCACHE_API const char *vcache_status_name(vcache_status_t status);

typedef struct vcache_options {
    const char *server;      /* HOST:PORT of the control plane */
    const char *bearer;      /* tenant token or NULL */
    uint32_t connect_ms;     /* default 2000 */
    uint32_t call_ms;        /* deadline of a small call, default 5000 */
    uint32_t stream_idle_ms; /* a transfer that makes no progress for this long fails, default 10000 */
    int use_data_plane;      /* 1: shared memory where the server is on this machine and of this user, then UCX over the
                              * network, then gRPC; 2: UCX over the network, then gRPC; 0: gRPC only */
} vcache_options_t;

VCACHE_API void vcache_options_default(vcache_options_t *options);
/* Makes the handle; the first call connects. INVALID for an address that is not HOST:PORT. */
VCACHE_API vcache_status_t vcache_connect(const vcache_options_t *options, vcache_client_t **client_p,
                                          vcache_error_t *err);
VCACHE_API void vcache_disconnect(vcache_client_t *client); /* every lease and transfer must have ended */

/* Which column of the store. spec: canonical text, e.g. "full@1" or "kivi:bits=4,group=32,residual=128". */
typedef struct vcache_fidelity {
    int compressed; /* 0: full, 1: compressed */
    const char *spec;
    const uint8_t *calib_digest; /* 32 bytes, or NULL */
} vcache_fidelity_t;

typedef struct vcache_lookup_info {
    uint32_t n_blocks[8]; /* leading blocks present, per fidelity */
    uint64_t n_bytes[8];
    char miss_reason[8][64]; /* "", "absent", "evicted", "corrupt", "keyspace:rope" */
    uint64_t boot_id, generation;
} vcache_lookup_info_t;

/*
 * keyspace: encoding of vc_keyspace_encode, keyspace_len bytes. tokens: the prompt; blocks are cut by the keyspace's
 * block_tokens. n_fid <= 8. On any hit *lease_p holds the found objects; on none it is NULL. One round trip.
 * lease_p NULL is a probe: nothing is kept, and the server counts neither hit nor miss.
 */
VCACHE_API vcache_status_t vcache_lookup(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                         const uint32_t *tokens, uint32_t n_tokens, const vcache_fidelity_t *fids,
                                         uint32_t n_fid, vcache_lookup_info_t *info_p, vcache_lease_t **lease_p,
                                         vcache_error_t *err);
/*
 * The same of a chain that is known by its tip (32 bytes, as vcache_prefixes gives it) alone: all its blocks up to a
 * block of fids[0]. Nothing is found when one of them is absent from that column. For maintenance, such as making
 * another copy: the server counts it neither as a use nor as a hit. The records of a lease come with their tokens; only
 * these show that the chain is what was asked for.
 */
VCACHE_API vcache_status_t vcache_lookup_tip(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                             const uint8_t *tip, const vcache_fidelity_t *fids, uint32_t n_fid,
                                             vcache_lookup_info_t *info_p, vcache_lease_t **lease_p,
                                             vcache_error_t *err);
VCACHE_API vcache_status_t vcache_lease_renew(vcache_lease_t *lease, vcache_error_t *err);
VCACHE_API void vcache_lease_release(vcache_lease_t *lease); /* tells the server, frees the handle; NULL is fine */

/*
 * Receives whole records, in block order or as they come: block number (absolute), bytes. The record has been checked
 * (every CRC, the keyspace, the hash that was asked for). The memory is the library's and lasts for the call. Runs on
 * the thread inside vcache_fetch. A non-zero return ends the fetch with VCACHE_CANCELLED (-7).
 */
typedef int (*vcache_record_fn)(void *arg, uint32_t block, const void *record, size_t bytes);

/* How the bytes travelled. */
typedef enum {
    VCACHE_PATH_NONE = 0,
    VCACHE_PATH_GRPC = 1,
    VCACHE_PATH_UCX = 2, /* over the network */
    VCACHE_PATH_SHM = 3  /* UCX over shared memory */
} vcache_path_t;
typedef struct vcache_fetch_stats {
    uint64_t bytes;        /* record bytes received */
    uint64_t wire_corrupt; /* records that arrived damaged and were fetched again or refused */
    vcache_path_t path;    /* the last one used */
    uint32_t steps_down;   /* times that a path failed, or had failed a moment ago, and the next one took over */
} vcache_fetch_stats_t;

/* Blocks [first, first + n) of column fid of the lease. A block that arrives damaged is asked for once more over gRPC,
 * then CORRUPT. */
VCACHE_API vcache_status_t vcache_fetch(vcache_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                                        vcache_record_fn on_record, void *arg, vcache_fetch_stats_t *stats_p,
                                        vcache_error_t *err);

/*
 * Receives one layer of one block: `bytes` bytes of K, then V, as the record's payload lays them out (README of
 * common), whose checksum has been verified. Layer 0 of all blocks comes before layer 1 of any, and so on, so that a
 * model can start while the rest is on its way; within a layer blocks come in any order. Only blocks that have to be
 * fetched again (damaged on the way, or lost by a path that failed) come after all others, their layers ascending. Each
 * (layer, block) comes once. The memory is the library's and lasts for the call; it is aligned to 64 bytes at least.
 * Runs on the thread inside vcache_fetch_layers, which it delays; it must not call the library. Non-zero ends the fetch
 * with VCACHE_CANCELLED (-7).
 */
typedef int (*vcache_layer_fn)(void *arg, uint32_t layer, uint32_t block, const void *data, size_t bytes);
/* Blocks [first, first + n) of column fid, a full one (INVALID for a compressed one), n <= 4096, layer by layer over
 * the same paths as vcache_fetch. OK: every layer of every block was handed out. stats_p->bytes counts layer bytes. */
VCACHE_API vcache_status_t vcache_fetch_layers(vcache_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                                               vcache_layer_fn on_layer, void *arg, vcache_fetch_stats_t *stats_p,
                                               vcache_error_t *err);

/* Hands out records to store: fill buf (cap bytes) with the record of (fid, block), set *len_p. Non-zero ends the
 * registration. Called on the thread inside vcache_register, only for objects that the server lacks; again for the same
 * object when a transfer has to be repeated on another path. */
typedef int (*vcache_source_fn)(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p);
typedef struct vcache_register_stats {
    uint32_t n_stored, n_present; /* objects sent, objects that were there already */
    uint64_t bytes;
    vcache_path_t path;
} vcache_register_stats_t;
/* Registers blocks [first_block, n_blocks) of the chain over tokens in the given fidelities: begin, put, commit.
 * Nothing is visible unless OK is returned. */
VCACHE_API vcache_status_t vcache_register(vcache_client_t *client, const uint8_t *keyspace, size_t keyspace_len,
                                           const uint32_t *tokens, uint32_t first_block, uint32_t n_blocks,
                                           const vcache_fidelity_t *fids, uint32_t n_fid, vcache_source_fn source,
                                           void *arg, vcache_register_stats_t *stats_p, vcache_error_t *err);

/* Server statistics as flat name/value pairs (names: cache-server/OPERATING.md). */
typedef struct vcache_stat {
    char name[64];
    double value;
} vcache_stat_t;
VCACHE_API vcache_status_t vcache_stats(vcache_client_t *client, vcache_stat_t *stats, uint32_t cap, uint32_t *n_p,
                                        vcache_error_t *err);
typedef struct vcache_prefix {
    uint8_t tip[32], keyspace[32];
    uint32_t n_blocks;
    uint64_t hits, bytes;
    uint32_t head_tokens[64];
    uint32_t n_head_tokens;
} vcache_prefix_t;
VCACHE_API vcache_status_t vcache_prefixes(vcache_client_t *client, int by_bytes, uint32_t limit, vcache_prefix_t *out,
                                           uint32_t *n_p, vcache_error_t *err);
/* grpc.health.v1: OK when serving; BUSY while it drains. */
VCACHE_API vcache_status_t vcache_health(vcache_client_t *client, vcache_error_t *err);

/* ---- what is done to stored prefixes ---- */

/*
 * Which objects. By prompt: keyspace and tokens as in vcache_lookup; its full blocks from first_block on that are
 * stored. Or by tip: keyspace_id and tip as vcache_prefixes gives them, 32 bytes each; the chain that ends there, up to
 * its first block or the first hole. What is not used is NULL or 0.
 */
typedef struct vcache_chain {
    const uint8_t *keyspace;
    size_t keyspace_len;
    const uint32_t *tokens;
    uint32_t n_tokens, first_block;
    const uint8_t *keyspace_id, *tip;
    const vcache_fidelity_t *fidelity; /* NULL: the copies of every fidelity */
} vcache_chain_t;
typedef struct vcache_chain_sum {
    uint64_t n_objects, n_bytes; /* found and dealt with */
} vcache_chain_sum_t;

/*
 * Pinned objects are never evicted, also after a restart of the server, until they are unpinned or deleted. Pinning is
 * all or nothing, durable when the call returns, and pinning twice is pinning once. NOT_FOUND: nothing of the chain is
 * stored. NOSPACE: the server does not let that much be pinned. sum_p may be NULL.
 */
VCACHE_API vcache_status_t vcache_pin(vcache_client_t *client, const vcache_chain_t *chain, vcache_chain_sum_t *sum_p,
                                      vcache_error_t *err);
VCACHE_API vcache_status_t vcache_unpin(vcache_client_t *client, const vcache_chain_t *chain, vcache_chain_sum_t *sum_p,
                                        vcache_error_t *err);
/* Removes the objects, pinned ones too. Fetches that are running go on to their end; a lease finds nothing any more. */
VCACHE_API vcache_status_t vcache_delete(vcache_client_t *client, const vcache_chain_t *chain,
                                         vcache_chain_sum_t *sum_p, vcache_error_t *err);

/* ---- what operators ask ---- */

/* Takes the server out of use (new lookups and registrations answer UNREACHABLE, what is out goes on), puts it back, or
 * only asks; the report says what still holds on to it. */
typedef enum { VCACHE_DRAIN_QUERY = 0, VCACHE_DRAIN_START = 1, VCACHE_DRAIN_RESUME = 2 } vcache_drain_action_t;
typedef struct vcache_drain_report {
    int draining;
    uint32_t leases, uploads;
    uint32_t commits;   /* waiting for the disk */
    uint32_t transfers; /* streams, and operations of the data plane */
    uint64_t leased_bytes;
    uint32_t n_ages;
    struct {
        uint32_t below_s; /* since the lookup; 0: older than all others */
        uint32_t leases;
        uint64_t bytes;
    } ages[8];
} vcache_drain_report_t;
VCACHE_API vcache_status_t vcache_drain(vcache_client_t *client, vcache_drain_action_t action,
                                        vcache_drain_report_t *report_p, vcache_error_t *err);

/* The pass over every record in the background. START: EXISTS when one is running, which goes on at the rate given;
 * STOP: NOT_FOUND when none is. rate_bytes: per second, 0 = the server's. */
typedef enum { VCACHE_SCRUB_QUERY = 0, VCACHE_SCRUB_START = 1, VCACHE_SCRUB_STOP = 2 } vcache_scrub_action_t;
typedef struct vcache_scrub_info {
    int running;
    uint64_t rate_bytes;
    uint64_t pass_objects, pass_objects_total, pass_bytes, pass_bytes_total; /* of the running pass, or of the last */
    uint64_t pass_corrupt, pass_errors; /* records that were dropped; that the disk refused to read */
    uint64_t passes, corrupt, errors;   /* since the start of the server */
    uint64_t last_pass_s, last_pass_ms; /* end of the last pass, unix time, 0: none yet; how long it took */
} vcache_scrub_info_t;
VCACHE_API vcache_status_t vcache_scrub(vcache_client_t *client, vcache_scrub_action_t action, uint64_t rate_bytes,
                                        vcache_scrub_info_t *info_p, vcache_error_t *err);

/* Every option of the server in force. The strings last for the call. source: "flag", "environment", "file",
 * "default". */
typedef void (*vcache_option_fn)(void *arg, const char *name, const char *value, const char *source);
VCACHE_API vcache_status_t vcache_config(vcache_client_t *client, vcache_option_fn on_option, void *arg,
                                         vcache_error_t *err);

/* Statistics now and after every interval (100 to 3,600,000 ms; 0: one second), on the thread inside the call, until
 * on_stats returns non-zero (then OK) or the server stops (UNREACHABLE). The memory is the library's and lasts for the
 * call. BUSY: too many clients watch already. */
typedef int (*vcache_stats_fn)(void *arg, const vcache_stat_t *stats, uint32_t n);
VCACHE_API vcache_status_t vcache_watch_stats(vcache_client_t *client, uint32_t interval_ms, vcache_stats_fn on_stats,
                                              void *arg, vcache_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
