/*
 * Where a stream of the verify node has its full KV: in memory within the node's budget, or with --kv-dir, where every
 * stream has the same share of that budget, beyond its share in a file (kv/slow.h). The stream's slot thread.
 */
#ifndef NODE_VERIFY_KV_H
#define NODE_VERIFY_KV_H

#include "role/verify_session.h"
#include "speculate/verifier.h"

typedef struct node_verify_kv {
    uint64_t bytes;      /* taken out of the budget */
    node_page_t *loaded; /* the block that was read back last */
    uint32_t block;
} node_verify_kv_t;

/* Takes memory for so many tokens. Without a file to go on in: BUSY, too little is left; NOSPACE, there never is
 * enough.
 */
vc_status_t node_verify_kv_reserve(node_verify_service_t *service, uint64_t tokens, node_verify_kv_t *kv,
                                   vc_err_t *err);
/* Gives the verifier, which is empty still, its file where `tokens` positions need one; pass_rows: rows of its passes.
 * NOSPACE: a share is too little; BUSY: the disk is full. Another verify node may do better. */
vc_status_t node_verify_kv_attach(const node_verify_service_t *service, node_verifier_t *v, uint64_t tokens,
                                  uint32_t pass_rows, vc_err_t *err);
/* The block's page, read back where it is in the file: stays until the next call. */
vc_status_t node_verify_kv_page(node_verify_kv_t *kv, node_kv_t *full, uint32_t block, node_page_t **page_p,
                                vc_err_t *err);
uint32_t node_verify_kv_spilled(const node_kv_t *full); /* blocks in the file */
/* A pass that the file made fail: IO or CORRUPT, which another verify node makes up for; any other status as it is. */
vc_status_t node_verify_kv_status(const node_kv_t *full, vc_status_t status);
void node_verify_kv_release(node_verify_service_t *service, node_verify_kv_t *kv);

#endif
