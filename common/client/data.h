/*
 * The client's side of the data plane: whole records over UCX, by FETCH and PUT. Internal to libvericache.
 *
 * Blocking calls; UCX is driven inside the calling thread, no thread of its own. One connection at a time, guarded by a
 * mutex: calls from several threads run one after the other. After a failure the connection is dropped and the next
 * call connects again. A record counts as received only after every checksum held in this process's memory.
 *
 * Codes: UNREACHABLE (nobody there, peer died, connect took too long), TIMEOUT (no progress for idle_ms) and PROTOCOL
 * (peer broke the protocol) mean "step down to gRPC"; STALE, PERM, RANGE, BUSY and NOT_FOUND are the server's answer.
 */
#ifndef VC_CLIENT_DATA_H
#define VC_CLIENT_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct vc_data vc_data_t;

typedef struct vc_data_opts {
    uint32_t connect_ms;     /* default 2000 */
    uint32_t idle_ms;        /* default 10000; a transfer without progress for this long fails */
    uint32_t n_slots;        /* receive slots = records in flight or waiting to be looked at, default 16, 1..64: twice
                              * the window of a server, which so reads on while this side sums */
    size_t max_record_bytes; /* slot size limit; the server's largest record, at most this, is what is allocated */
} vc_data_opts_t;
void vc_data_opts_default(vc_data_opts_t *opts);

typedef struct vc_data_stats {
    uint64_t records, bytes; /* received and checked, or sent and acknowledged */
    uint64_t wire_corrupt;   /* records that arrived damaged; reported to the server */
    uint64_t absent;         /* blocks the server answered with a status instead of bytes */
} vc_data_stats_t;

/* address: "HOST:PORT" of the server's UCX listener, or "shm:NAME" for shared memory with a server of the same user on
 * this machine, as Lookup and BeginRegister return them. Connects at once, within connect_ms; UNREACHABLE otherwise. Of
 * a name also: NOT_FOUND (not on this machine), PERM (another user's), BUSY (the server shares with enough others),
 * UNSUPPORTED. */
vc_status_t vc_data_connect(const char *address, const vc_data_opts_t *opts, vc_data_t **data_p, vc_err_t *err);
void vc_data_close(vc_data_t *data); /* NULL is fine; no call may be running */
const char *vc_data_address(const vc_data_t *data);
/* The next fetch tells the server that a better path than this one failed. */
void vc_data_note_step_down(vc_data_t *data);

/*
 * One block: `bytes` at `record` when status is OK (checked: every CRC; valid during the call; 4 KiB aligned). When
 * status is not OK, record is NULL and this block has to come from elsewhere: CORRUPT (damaged on the wire or at the
 * server), NOT_FOUND. Blocks come in any order, each exactly once. Non-zero ends the fetch with CANCELLED.
 * block is the absolute block number of the lease, as in `first`.
 */
typedef int (*vc_data_record_fn)(void *arg, uint32_t block, vc_status_t status, const void *record, size_t bytes);

typedef struct vc_data_lease { /* what the token proves */
    uint64_t boot_id, lease_id;
    uint8_t token[16];
} vc_data_lease_t;

/* OK when every block of [first, first + n) of column fid was handed to on_record. stats_p may be NULL; it is written
 * also on failure. idle_ms 0: the connection's default. */
vc_status_t vc_data_fetch(vc_data_t *data, const vc_data_lease_t *lease, uint32_t fid, uint32_t first, uint32_t n,
                          vc_data_record_fn on_record, void *arg, uint32_t idle_ms, vc_data_stats_t *stats_p,
                          vc_err_t *err);

/* The layout of every record of the range, which has to be one (full records of one shape). Multiples of 4096. */
typedef struct vc_data_layout {
    uint32_t head_bytes, part_bytes, n_layer;
} vc_data_layout_t;
/*
 * A slice of one block, unchecked: slice 0 is the header, slice 1 + i is layer i. Bytes valid during the call. OK: go
 * on. CORRUPT: they are damaged, which is told to the server. Anything else ends the fetch with that code. A block that
 * does not come is absent, damaged at the server, or of another layout.
 */
typedef vc_status_t (*vc_data_slice_fn)(void *arg, uint32_t slice, uint32_t block, const uint8_t *data);
/* As vc_data_fetch, layer after layer: slice s of every block of [first, first + n), n <= 4096, before slice s + 1. */
vc_status_t vc_data_fetch_layers(vc_data_t *data, const vc_data_lease_t *lease, uint32_t fid, uint32_t first,
                                 uint32_t n, const vc_data_layout_t *layout, vc_data_slice_fn on_slice, void *arg,
                                 uint32_t idle_ms, vc_data_stats_t *stats_p, vc_err_t *err);

/* Next record to send: writes it to buf (cap bytes, 4 KiB aligned, registered), sets *len_p; *len_p = 0: no more.
 * Non-zero ends the put with CANCELLED. */
typedef int (*vc_data_source_fn)(void *arg, void *buf, size_t cap, size_t *len_p);
/* Sends records until the source ends and all are acknowledged: in the server's segment files, not yet committed.
 * A record that the server has already (EXISTS) counts as acknowledged. The first other status ends the put. */
vc_status_t vc_data_put(vc_data_t *data, uint64_t upload_id, const uint8_t token[16], vc_data_source_fn source,
                        void *arg, uint32_t idle_ms, vc_data_stats_t *stats_p, vc_err_t *err);

#endif
