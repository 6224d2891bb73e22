/*
 * A cache server, a verify node and draft-node runs as processes, on a small model, for the tests of the remote path.
 * Anything that goes wrong while setting up ends the test with a line.
 */
#ifndef TEST_REMOTE_CLUSTER_H
#define TEST_REMOTE_CLUSTER_H

#include <jansson.h>

#include "support/gate.h"
#include "support/proc.h"
#include "support/tmpdir.h"

typedef struct remote_cluster {
    vt_tmpdir_t dir;
    vt_proc_t *server, *verify;
    unsigned server_port, verify_port;
    char server_address[64], verify_address[64];
    vt_gate_t *gate;        /* NULL: none */
    char verify_server[64]; /* what verify nodes take for the server: the gate, where there is one */
} remote_cluster_t;

/* Model, document and both processes. */
void remote_cluster_start(remote_cluster_t *c);
void remote_cluster_stop(remote_cluster_t *c);
/* Models and document alone, for tests that start the rest themselves in a directory of their own making. */
void remote_cluster_write_files(remote_cluster_t *c);
/* The server alone, again on the port it had or (first start) on any. */
void remote_cluster_start_server(remote_cluster_t *c);
void remote_cluster_start_verify(remote_cluster_t *c, const char *model);
/* Verify nodes that are started from now on reach the server through a gate. */
void remote_cluster_start_gate(remote_cluster_t *c);
/* `vericache-node register` of the document in the copies given (';'-separated). */
void remote_cluster_register(remote_cluster_t *c, const char *compressors);

/* `vericache-node generate` about the document with extra flags (NULL-terminated); fails the test when it exits
 * non-zero. The result object, to be freed with json_decref. */
json_t *remote_cluster_generate(remote_cluster_t *c, const char *const *flags);
/* The same, but the verify node does not get at its own KV, and so commits nothing, before the compressed copy has come
 * or failed: the shortest answer is not over sooner. Needs a verify node behind the gate. */
json_t *remote_cluster_generate_after_copy(remote_cluster_t *c, const char *const *flags);
/* The same, started only: for tests that disturb it. The result is in the file "result.json". */
vt_proc_t *remote_cluster_generate_start(remote_cluster_t *c, const char *const *flags);
json_t *remote_cluster_result(remote_cluster_t *c);

/* Same tokens, same logits, same end. */
void remote_cluster_assert_same(const json_t *a, const json_t *b, const char *what);
double remote_cluster_stat(remote_cluster_t *c, const char *name);
long long remote_int(const json_t *result, const char *name);

#endif
