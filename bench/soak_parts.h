/*
 * What the processes of the soak share. The bench process samples and judges; good clients, and clients that behave
 * badly, are processes of their own, which count into one piece of shared memory.
 */
#ifndef SOAK_PARTS_H
#define SOAK_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "vc/kvrec.h"
#include "vericache/vericache.h"

enum { SOAK_BLOCKS = 12, SOAK_STATUSES = 40 };

/* All relaxed: counters, and flags that may be seen late. */
typedef struct soak_shared {
    char address[64];
    uint16_t control_port;
    _Atomic bool stop, hostile;  /* hostile: the bad ones are at work, else they are gone */
    _Atomic uint64_t good_bytes; /* fetched and stored by the good ones */
    _Atomic uint64_t fetches, records, registrations, aborts, pins, deletes, misses;
    _Atomic uint64_t wrong;                  /* records that were handed out and are not what was registered */
    _Atomic uint64_t refused[SOAK_STATUSES]; /* calls of good clients by -status */
    _Atomic uint64_t killed, stuck, garbage; /* what the bad ones did */
    _Atomic uint32_t bad_present;            /* bad connections that are open now */
} soak_shared_t;

typedef struct soak_chain { /* one prompt */
    uint32_t seed, n_blocks;
    uint32_t tokens[SOAK_BLOCKS * 64];
    vc_digest_t hashes[SOAK_BLOCKS];
} soak_chain_t;

extern const vcache_fidelity_t soak_fids[2]; /* full, compressed */
void soak_space_init(void);
const uint8_t *soak_keyspace(size_t *len_p);
void soak_chain_make(soak_chain_t *c, uint32_t seed);
/* vcache_source_fn over a soak_chain_t. */
int soak_record(void *arg, uint32_t fid, uint32_t block, void *buf, size_t cap, size_t *len_p);
/* True when these are the bytes that soak_record makes. */
bool soak_record_is_right(const soak_chain_t *c, uint32_t fid, uint32_t block, const void *record, size_t bytes);
vcache_client_t *soak_connect(const soak_shared_t *s, bool data_plane); /* NULL: out of memory */

/* Bodies of processes; they return when s->stop is set. */
void soak_good_client(soak_shared_t *s, uint32_t number, bool data_plane);
void soak_killer(soak_shared_t *s);                        /* clients that die by SIGKILL inside a transfer */
void soak_stuck_client(soak_shared_t *s, bool data_plane); /* never takes what it asked for */
void soak_idlers(soak_shared_t *s, uint32_t n);            /* connections that never send, and now and then garbage */

#endif
