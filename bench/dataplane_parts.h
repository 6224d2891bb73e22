/* The server and the fetches of bench_dataplane: a store with 64 MiB of records, its data plane on CPU 0, the client on
 * CPU 1. */
#ifndef BENCH_DATAPLANE_PARTS_H
#define BENCH_DATAPLANE_PARTS_H

#include <sys/types.h>

#include "client/data.h"
#include "dataplane.h"
#include "harness.h"

#define OUTSTANDING 8u

typedef struct server {
    cs_bufpool_t *pool;
    cs_ramtier_t *ram; /* for the hot record; too small to keep much of 64 MiB */
    cs_workers_t *workers;
    cs_store_t *store;
    cs_dataplane_t *dp;
    vc_keyspace_t ks;
    vc_digest_t ks_id, *hashes;
    vc_spec_id_t spec;
    uint32_t *tokens, n_blocks;
    size_t record_bytes;
    uint8_t *hot; /* the record of block 0 */
} server_t;

void must(vc_status_t st, const vc_err_t *err, const char *what); /* ends the bench where st is not OK */

/* dataplane_server.c */
void start_server(server_t *s);
void stop_server(server_t *s);
vc_data_lease_t take_lease(server_t *s);
void drop_lease(const server_t *s, const vc_data_lease_t *lease);
/* MB/s of reading all records n times from the disk, without looking at them. */
double run_disk(server_t *s, uint32_t n);

/* dataplane_client.c: the client's process, to be started before the server. */
void client_start(void);
void client_stop(void);
/* MB/s of n fetches of all records by vc_data_fetch. shm: over shared memory. */
double run_cold(server_t *s, bool shm, uint32_t n);
/* MB/s of n fetches of one record into one buffer, eight at a time. */
double run_hot(server_t *s, bool shm, uint64_t n);

typedef struct job { /* what the client's process is to do */
    bool hot, shm;
    uint64_t n;
    uint32_t n_blocks;
    size_t record_bytes;
    vc_data_lease_t lease;
    char address[160];
} job_t;

/* dataplane_hot.c, in the client: seconds of job->n fetches after some to warm up; the checksum of what is in the
 * buffer then. */
double hot_seconds(const job_t *job, uint32_t *crc_p);

/* dataplane_hostile.c: a process of peers that idle, read nothing or misbehave, until it is stopped. */
pid_t hostile_start(const server_t *s, const vc_data_lease_t *lease);
void hostile_stop(pid_t pid);
void hostile_main(void); /* what that process runs: --hostile ADDRESS and so on; does not return */

#endif
