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

struct vcache_client {
    vcache_options_t o; /* its strings point to the next two */
    char *server, *bearer;
    vc_rpc_channel_t *channel;
    const vc_clock_t *clock;
    /* The data plane: one transfer at a time holds the lock, from finding the connection to the end. */
    pthread_mutex_t data_lock;
    vc_data_t *data;
    uint64_t data_retry_us; /* after a failure: not before this moment */
};

struct vcache_lease {
    vcache_client_t *client;
    uint64_t boot_id, lease_id;
    uint8_t token[16];
    char *data_address; /* empty: none */
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

/* The hashes of the lease's blocks are there. Any thread. */
vc_status_t vcache_lease_hashes(vcache_lease_t *lease, vc_err_t *err);

/* Takes data_lock and finds or makes the connection to `address`; on OK the caller ends with vcache_data_end. */
vc_status_t vcache_data_begin(vcache_client_t *c, const char *address, vc_data_t **data_p, vc_err_t *err);
void vcache_data_end(vcache_client_t *c, bool failed);
/* The codes after which gRPC takes over. */
bool vcache_data_steps_down(vc_status_t status);

#define VCACHE_METHOD(name) "/vericache.v1.Cache/" name

#endif
