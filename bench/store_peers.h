/* The peers of bench_store: fio, and RocksDB with blob files. Rates are MB/s; errors end the program. */
#ifndef BENCH_STORE_PEERS_H
#define BENCH_STORE_PEERS_H

#include <rocksdb/c.h>
#include <stdbool.h>
#include <stdint.h>

#include "vc/keyspace.h"

#define PEER_MAX_DEPTH 64

typedef struct fio_job {
    const char *dir, *rw, *engine;
    uint32_t bytes, n, depth; /* block size, blocks, in flight */
    uint32_t sync;            /* fdatasync after so many writes; 0: none */
    bool keep;                /* the file stays; later jobs of the same block size use it */
} fio_job_t;
/* O_DIRECT, registered buffers where the engine has them. By fio's own clock: its start and the making of the file are
 * outside, the last sync is inside. */
double fio_run(const fio_job_t *job);
void fio_remove(const fio_job_t *job);

typedef struct blob {
    rocksdb_t *db;
    rocksdb_options_t *options;
    char path[4200];
} blob_t;
void blob_open(blob_t *b, const char *dir, const char *name);
void blob_close(blob_t *b, bool destroy);
/* Everything in blob files, one sorted run over them. */
void blob_settle(blob_t *b);
/* with_wal: synced batches, one flush at the end. Without: a flush makes each batch durable, and is written once. */
double put_blob(blob_t *b, const vc_object_key_t *keys, const uint8_t *const *data, uint32_t bytes, uint32_t n,
                uint32_t batch_n, bool with_wal);
/* The C interface reads synchronously: as many threads as the others have requests in flight. */
double read_blob(blob_t *b, const vc_object_key_t *keys, uint32_t n, uint32_t bytes, uint32_t depth);

#endif
