/* What the parts of bench_store share: an open store, records to put into it, waiting for callbacks. */
#ifndef BENCH_STORE_TARGET_H
#define BENCH_STORE_TARGET_H

#include <pthread.h>

#include "harness.h"
#include "store.h"
#include "vc/mem.h"

enum { BATCH = 16, MAX_PUT = 256, SMALL_CHAIN = 500 };
enum { FULL = 0, COMPRESSED = 1, N_CLASSES = 2 };

typedef struct {
    uint32_t depth, n_put, n_rounds, n_read[N_CLASSES];
} store_bench_t;
extern store_bench_t sb;
extern const char *const class_names[N_CLASSES];

extern vc_err_t err;
#define OK(call) BENCH_OK(call, err)

typedef struct {
    cs_bufpool_t *pool;
    cs_ramtier_t *ram; /* NULL: none */
    cs_workers_t *workers;
    cs_store_t *store;
    vc_keyspace_t ks;
    vc_digest_t ks_id;
    cs_fidelity_t fids[N_CLASSES];
    uint32_t part_bytes[N_CLASSES]; /* of one layer */
} target_t;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_done;
    vc_status_t failed;
} gate_t;

void make_names(target_t *t, vc_kv_shape_t shape, uint32_t compressed_part);
void make_model_names(target_t *t); /* SmolLM2-135M, and 480 KiB compressed */
void open_target(target_t *t, const char *dir, uint32_t n_bufs, uint64_t capacity, uint64_t ram_bytes);
void close_target(target_t *t);
void make_bench_dir(const char *name, char *dir, size_t cap);

void chain_tokens(const target_t *t, uint32_t seed, uint32_t n_blocks, uint32_t *tokens);
/* Block b of a chain, whose hash is written to hash_p. */
uint32_t make_record(const target_t *t, uint32_t class_id, const uint32_t *tokens, uint32_t b,
                     const vc_digest_t *parent, uint8_t *data, size_t cap, vc_digest_t *hash_p);

void gate_init(gate_t *g);
void gate_fini(gate_t *g);
void gate_signal(void *arg, vc_status_t status); /* a cs_io_done_fn */
void gate_wait(gate_t *g, uint32_t n);

typedef struct { /* what a round of puts writes: sb.n_put records in the pool's buffers, in chains of BATCH */
    vc_object_key_t keys[MAX_PUT];
    cs_buf_t *bufs[MAX_PUT];
    uint32_t tokens[MAX_PUT / BATCH][BATCH * 64];
    const uint8_t *data[MAX_PUT];
    uint32_t bytes; /* of one record */
} load_t;
void make_load(target_t *t, load_t *load, uint32_t class_id, uint32_t seed);
/* MB/s */
double put_store(target_t *t, load_t *load, uint32_t class_id);
void shuffle_keys(vc_object_key_t *keys, uint32_t n);

/* The parts. */
void measure_disk(void);                  /* store_disk.c */
void measure_hot(void);                   /* store_hot.c */
void measure_mixed(void);                 /* store_mixed.c */
void measure_redis(void);                 /* store_redis.c */
void measure_restart(uint32_t n_objects); /* store_restart.c */
void child_fill(const char *dir, uint32_t n_objects);
void child_hit(const char *dir, uint32_t seed);

#endif
