/* What the files of libvericache share; nobody else includes it. */
#ifndef VCACHE_CLIENT_INT_H
#define VCACHE_CLIENT_INT_H

#include <pthread.h>
#include <stdbool.h>

#include "data.h"
#include "vc/clock.h"
#include "vc/keyspace.h"
#include "vc/kvrec.h"
#include "vc/rpc.h"
#include "vericache.pb-c.h"
#include "vericache/vericache.h"

#define VCACHE_MAX_FIDELITIES 8

/* The ways of the data plane, the better one first. */
enum { VCACHE_PLANE_SHM, VCACHE_PLANE_NET, VCACHE_N_PLANES };
typedef struct vcache_plane {
    vc_data_t *data;
    char *address;     /* that the rest is about */
    uint64_t retry_us; /* after a failure: not before this moment */
    uint32_t failures; /* in a row; each doubles the wait */
    bool elsewhere;    /* the name does not exist on this machine, which is no failure */
} vcache_plane_t;

/* Where a server's data plane is; NULL or empty: not offered. */
typedef struct vcache_addresses {
    char *of[VCACHE_N_PLANES];
} vcache_addresses_t;

struct vcache_client {
    vcache_options_t o; /* its strings point to the next two */
    char *server, *bearer;
    vc_rpc_channel_t *channel;
    const vc_clock_t *clock;
    /* The data plane: one transfer at a time holds the lock, from finding the connection to the end. */
    pthread_mutex_t data_lock;
    vcache_plane_t planes[VCACHE_N_PLANES];
};

struct vcache_lease {
    vcache_client_t *client;
    uint64_t boot_id, lease_id;
    uint8_t token[16];
    vcache_addresses_t at;
    vc_digest_t keyspace;
    vc_kv_shape_t shape;
    uint32_t n_fid;
    vc_object_key_t keys[VCACHE_MAX_FIDELITIES]; /* hash left empty */
    uint32_t n_blocks[VCACHE_MAX_FIDELITIES];
    /* The chain of the longest column. Made of the tokens by the first fetch: most of a lookup's time would go there.
     */
    pthread_mutex_t lock;
    vc_digest_t *hashes; /* NULL: not yet */
    uint32_t *tokens;
};

/* Copies status and sentence out; a status without a sentence gets its name. Returns status. */
vcache_status_t vcache_give(vc_status_t status, const vc_err_t *from, vcache_error_t *to);

/* One small call: packs, sends with the client's deadline, returns the reply's bytes. */
vc_status_t vcache_call(vcache_client_t *c, const char *method, const ProtobufCMessage *request, uint32_t deadline_ms,
                        vc_bytes_t *reply_p, vc_err_t *err);
/* The reply could not be read. */
vc_status_t vcache_bad_reply(const vcache_client_t *c, const char *what, vc_err_t *err);

/* Fidelities of a request: messages in m/list (VCACHE_MAX_FIDELITIES each), and their keys. */
vc_status_t vcache_fidelities(const vcache_fidelity_t *fids, uint32_t n_fid, Vericache__V1__Fidelity *m,
                              Vericache__V1__Fidelity **list, vc_object_key_t *keys, vc_err_t *err);
/* Largest record that a server may send for this shape. */
uint64_t vcache_record_limit(const vc_kv_shape_t *shape, bool compressed);

void vcache_take_stat(const Vericache__V1__GetStatsReply__Stat *from, vcache_stat_t *to);

/* The hashes of the lease's blocks are there. Any thread. */
vc_status_t vcache_lease_hashes(vcache_lease_t *lease, vc_err_t *err);

void vcache_planes_close(vcache_client_t *c);
/* False: out of memory. */
bool vcache_addresses_set(vcache_addresses_t *at, const char *shm, const char *net);
void vcache_addresses_free(vcache_addresses_t *at);

/* The header of the record of this block of this column: key, keyspace, place in the chain. Hashes are there. */
bool vcache_is_wanted(const vcache_lease_t *lease, uint32_t fid, uint32_t block, const vc_kvrec_head_t *head);
void vcache_lease_ref(const vcache_lease_t *lease, Vericache__V1__LeaseRef *ref);
/* Opens a Fetch stream for the request, whose lease is filled in here; ended with vc_rpc_stream_destroy. */
vc_status_t vcache_fetch_stream(vcache_lease_t *lease, Vericache__V1__FetchRequest *req, vc_rpc_stream_t **stream_p,
                                vc_err_t *err);
/* Its next message; TIMEOUT after stream_idle_ms. NOT_FOUND without a sentence: the end. */
vc_status_t vcache_fetch_next(vcache_client_t *c, vc_rpc_stream_t *s, vc_bytes_t *message_p, vc_err_t *err);

/* Takes data_lock and finds or makes the connection over the best way from *plane_p on that is offered, wanted and not
 * known to be broken; *plane_p says which it is, *steps_p grows by one for each that failed. On OK the caller ends with
 * vcache_data_end; UNREACHABLE: none is left, which is gRPC's turn. */
vc_status_t vcache_data_begin(vcache_client_t *c, const vcache_addresses_t *at, unsigned *plane_p, uint32_t *steps_p,
                              vc_data_t **data_p, vc_err_t *err);
/* failed: the way is not tried again for a while, which doubles from 1 s to 64 s with every failure in a row. */
void vcache_data_end(vcache_client_t *c, unsigned plane, bool failed);
vcache_path_t vcache_plane_path(unsigned plane);
/* The codes after which the next way takes over. */
bool vcache_data_steps_down(vc_status_t status);

#define VCACHE_METHOD(name) "/vericache.v1.Cache/" name

#endif
