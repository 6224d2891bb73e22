/*
 * KV in memory. A page holds one block of NODE_TILE tokens in every layer, f16, in the layout that attention reads:
 *   K of (layer, kv_head): [head_dim][NODE_TILE]  (transposed: vector lanes are tokens)
 *   V of (layer, kv_head): [NODE_TILE][head_dim]
 * A record's full payload is [layer][k,v][kv_head][token][dim]; pages are converted at load and store (one transpose of
 * K). Rows that were never written are zero. Pages are reference counted and immutable once shared.
 *
 * A node_kv_t is one sequence's view: an optional compressed body for positions [0, body_tokens), then pages for
 * absolute blocks from body_tokens / NODE_TILE on. Without a body the pages start at block 0 and this is full KV.
 * One thread at a time per node_kv_t.
 */
#ifndef NODE_KV_PAGES_H
#define NODE_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/coded.h"
#include "vc/kvrec.h"

#define NODE_TILE 64u       /* tokens per tile = tokens per block */
#define NODE_SPLIT_TILES 4u /* tiles per attention split: 256 positions */

typedef struct node_kv_dims {
    uint32_t n_layer, n_kv_head, head_dim;
} node_kv_dims_t;

typedef struct node_page node_page_t;

node_page_t *node_page_create(const node_kv_dims_t *dims); /* zeroed, one reference; NULL when out of memory */
node_page_t *node_page_get(node_page_t *page);             /* another reference; atomic */
void node_page_put(node_page_t *page);                     /* NULL is fine */
uint16_t *node_page_k(node_page_t *page, uint32_t layer, uint32_t head); /* [head_dim][NODE_TILE] */
uint16_t *node_page_v(node_page_t *page, uint32_t layer, uint32_t head); /* [NODE_TILE][head_dim] */
node_page_t *node_page_copy(const node_page_t *page, uint32_t n_rows);   /* first n_rows rows, the others zero */
/* A read-only page over memory of others, whose layers lie layer_bytes apart; release(arg) when it goes. NULL when out
 * of memory. */
node_page_t *node_page_wrap(const node_kv_dims_t *dims, uint16_t *data, size_t layer_bytes, void (*release)(void *arg),
                            void *arg);
/* For whoever keeps a page: another reference, or a copy of a wrapped one. NULL when out of memory. */
node_page_t *node_page_own(node_page_t *page);
bool node_page_is_shared(const node_page_t *page); /* others hold it too, or it is wrapped: not to be written to */
/* Payload of a full record's layer part ([k,v][kv_head][token][dim] f16) to and from a page. */
void node_page_load_layer(node_page_t *page, uint32_t layer, const uint16_t *part);
void node_page_store_layer(const node_page_t *page, uint32_t layer, uint16_t *part);
/* One token's rows, all layers: [layer][k,v][kv_head][dim] f16 (what a Verdict carries for the drafter's tail). */
void node_page_load_row(node_page_t *page, uint32_t row, const uint16_t *rows);
void node_page_store_row(const node_page_t *page, uint32_t row, uint16_t *rows);

/* What attention walks over: n_rows valid rows of a tile, the others zero, in page layout; or, where codes is not NULL,
 * as the body's coded form says, and k and v are NULL. */
typedef struct node_tile {
    const uint16_t *k, *v;
    uint32_t n_rows;
    const uint8_t *codes;
} node_tile_t;

/* A compressed body ready to be attended: per (layer, kv_head) a list of tiles in ascending position. Immutable once
 * built; counted. */
typedef struct node_body node_body_t;
struct node_body {
    uint32_t n_tokens; /* positions covered: a multiple of NODE_TILE */
    node_kv_dims_t dims;
    node_tile_t **tiles;    /* [layer * n_kv_head + head] -> array */
    uint32_t *n_tiles;      /* [layer * n_kv_head + head] */
    node_coded_form_t form; /* of coded tiles; bits 0: there are none */
    uint64_t bytes;         /* memory of the compressed form */
    _Atomic uint32_t refs;
    void (*destroy)(node_body_t *body); /* frees everything */
};
node_body_t *node_body_get(node_body_t *body);
void node_body_put(node_body_t *body);

typedef struct node_kv {
    node_kv_dims_t dims;
    node_body_t *body;    /* or NULL; one reference */
    node_page_t **pages;  /* pages[i] is absolute block first_block + i */
    uint32_t first_block; /* body ? body->n_tokens / NODE_TILE : 0 */
    uint32_t n_pages, cap_pages;
    uint32_t n_tokens; /* absolute positions with rows, body included */
    /* kv/slow.h: NULL, or where the oldest blocks are, whose pages are NULL then. In a pass: the spilled blocks of the
     * layer at hand, [block][kv_head]{K, V}. */
    struct node_slow *slow;
    const struct node_vocab_part *part; /* model/vocab_part.h: rows want logits of these tokens only; NULL: of all */
    const uint16_t *stream;
} node_kv_t;

vc_status_t node_kv_init(node_kv_t *kv, const node_kv_dims_t *dims,
                         node_body_t *body /* takes a reference, may be NULL */);
void node_kv_fini(node_kv_t *kv);
/* Makes room for rows [n_tokens, n_tokens + n): creates pages, and copies a last page that is shared. */
vc_status_t node_kv_reserve(node_kv_t *kv, uint32_t n);
/* Drops rows at and after n_tokens and zeroes them (unwritten rows are zero): never below the body. A shared last page
 * is copied first. */
vc_status_t node_kv_truncate(node_kv_t *kv, uint32_t n_tokens);
/* Appends a whole block as a page (takes over the reference, on success only); n_tokens must be at a block boundary. */
vc_status_t node_kv_append_page(node_kv_t *kv, node_page_t *page);
/* absolute block; NULL inside the body, in the slow tier or past the end */
node_page_t *node_kv_page_at(const node_kv_t *kv, uint32_t block);
/* BLAKE2b over the rows [first, n) of all pages in record order: the full-KV digest of tests. Body must be NULL, and
 * nothing in the slow tier (node_slow_view). */
void node_kv_digest(const node_kv_t *kv, uint32_t n_tokens, vc_digest_t *digest_p);

#endif
