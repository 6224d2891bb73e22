/*
 * Kept rows of one head, block after block, into dense tiles: f16 tiles in page layout, or coded tiles. The last tile
 * of a run is partly filled and zero beyond its rows. Used by body.c alone; nothing is allocated here.
 */
#ifndef NODE_PACK_H
#define NODE_PACK_H

#include "compress/codec_int.h"
#include "kernels/ops.h"

/* Rows of one head of one block. k and v: [n][dim] f16; coded: {codes, scales, minima} of n rows, one after the other.
 */
typedef struct node_kept {
    uint64_t rows; /* bit = row of the block */
    const uint8_t *k, *v;
} node_kept_t;

typedef struct node_packer {
    node_tile_t *tiles; /* room for all */
    uint32_t n_tiles;
    uint8_t *slab;           /* where the next tile starts; zeroed, so that rows that are not there read as zero */
    uint32_t dim, open_rows; /* rows in the open tile; 0 = none open */
    const node_coded_form_t *form; /* bits 0: f16 rows */
    uint8_t *k_codes, *v_codes;    /* [NODE_TILE][dim] scratch, one code a byte; coded rows only */
} node_packer_t;

size_t node_pack_tile_bytes(const node_coded_form_t *form, uint32_t dim);
/* Bytes that n coded rows of K, or of V, take. */
size_t node_pack_coded_bytes(const node_coded_form_t *form, uint32_t n);
void node_pack_rows(node_packer_t *p, const node_kept_t *kept);
/* The run ends: what comes next starts a tile of its own. */
void node_pack_close(node_packer_t *p);

#endif
