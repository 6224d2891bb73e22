/*
 * Records and exact pages to a body that attention walks over.
 *
 * What a block becomes:
 *   exact page            its own tile in every (layer, head), used in place (the body holds a reference)
 *   quantiser's record    one tile in every (layer, head): of a page of the builder that the method decoded into, or
 *                         coded as kernels/coded.h has it
 *   dropper's record      kept rows, f16 or quantised; neighbouring blocks are packed per (layer, head) into dense
 *                         tiles of NODE_TILE rows in ascending position (pack.h), the last one partly filled
 *
 * A record that fails any check leaves no trace: the block counts as not come, and the builder stays usable. One thread
 * at a time. Nothing here knows positions beyond their order: kept keys already carry their angle.
 */
#include <stdatomic.h>
#include <string.h>

#include "compress/codec_int.h"
#include "compress/pack.h"
#include "compress/rot_int.h"
#include "kernels/huge.h"
#include "vc/mem.h"

typedef struct block_state {
    node_page_t *page; /* exact, or decoded */
    bool coded;        /* its tiles are in the slab of codes */
    bool exact, has_record;
    vc_digest_t hash, parent; /* of the record */
    node_kept_t *heads;       /* droppers: [layer * n_kv_head + head] */
    uint8_t *blob;            /* their rows */
    size_t blob_used, blob_cap;
} block_state_t;

struct node_body_builder {
    node_spec_t spec;
    const node_model_info_t *model;
    node_load_t load;
    node_prerope_t *prerope; /* made when first asked for, as is the next */
    node_rot_quantise_fn quantise;
    vc_kv_shape_t shape;
    node_kv_dims_t dims;
    vc_digest_t keyspace_id;
    uint32_t n_blocks;
    node_coded_form_t form; /* of all coded blocks or rows; bits 0 until the first comes */
    uint8_t *codes; /* [layer * n_kv_head + head][n_blocks] coded tiles: attention reads one run of memory per head.
                       Tiles of exact blocks are never written, so most of their pages never exist. */
    block_state_t *blocks;
};

typedef struct body_impl {
    node_body_t base;
    uint32_t n_heads;    /* n_layer * n_kv_head */
    node_page_t **pages; /* [n_pages] references */
    uint32_t n_pages;
    uint8_t *codes;  /* the builder's, or NULL */
    uint8_t **slabs; /* [n_heads] packed tiles, or NULL */
} body_impl_t;

static uint32_t n_heads_of(const node_kv_dims_t *dims) { return dims->n_layer * dims->n_kv_head; }
static size_t tile_half(const node_kv_dims_t *dims) { return (size_t)dims->head_dim * NODE_TILE; } /* f16 numbers */

static void drop_record(block_state_t *bs)
{
    if (bs->page && !bs->exact) {
        node_page_put(bs->page);
        bs->page = NULL;
    }
    vc_free(bs->heads);
    vc_free(bs->blob);
    bs->coded = false;
    bs->heads = NULL;
    bs->blob = NULL;
    bs->blob_used = bs->blob_cap = 0;
    bs->has_record = false;
}

vc_status_t node_body_begin(const node_spec_t *spec, const node_model_info_t *model, uint32_t n_blocks,
                            node_body_builder_t **b_p, vc_err_t *err)
{
    const vc_kv_shape_t *shape = &model->keyspace.shape;
    if (n_blocks == 0 || n_blocks > UINT32_MAX / NODE_TILE)
        return vc_err_set(err, VC_ERR_INVALID, "a body of %u blocks cannot be built", n_blocks);
    if (shape->block_tokens != NODE_TILE || shape->dtype != VC_DTYPE_F16)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "compressors need blocks of %u tokens in f16", NODE_TILE);
    node_body_builder_t *b = vc_calloc(1, sizeof(*b));
    if (b == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a body builder");
    b->blocks = vc_calloc(n_blocks, sizeof(*b->blocks));
    if (b->blocks == NULL) {
        vc_free(b);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a body of %u blocks", n_blocks);
    }
    b->spec = *spec;
    b->model = model;
    b->shape = *shape;
    b->dims = (node_kv_dims_t){shape->n_layer, shape->n_kv_head, shape->head_dim};
    b->keyspace_id = model->keyspace_id;
    b->n_blocks = n_blocks;
    *b_p = b;
    return VC_OK;
}

void node_body_set_load(node_body_builder_t *b, node_load_t load) { b->load = load; }
node_load_t node_body_load(const node_body_builder_t *b) { return b->load; }
const node_model_info_t *node_body_model(const node_body_builder_t *b) { return b->model; }

const node_prerope_t *node_body_prerope(node_body_builder_t *b, uint32_t block)
{
    if (b->prerope == NULL)
        b->prerope = node_prerope_create(b->model);
    if (b->prerope)
        node_prerope_set_block(b->prerope, block);
    return b->prerope;
}

node_rot_quantise_fn node_body_quantiser(node_body_builder_t *b)
{
    if (b->quantise == NULL)
        b->quantise = node_rot_quantise_best();
    return b->quantise;
}

static vc_status_t check_head(const node_body_builder_t *b, const vc_kvrec_head_t *head, vc_err_t *err)
{
    const vc_kv_shape_t *s = &head->shape;
    if (head->fidelity != VC_FIDELITY_COMPRESSED || head->kind != b->spec.ops->kind ||
        memcmp(&head->spec, &b->spec.id, sizeof(head->spec)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u was not compressed with %s", head->block_index, b->spec.text);
    if (s->n_layer != b->shape.n_layer || s->n_kv_head != b->shape.n_kv_head || s->head_dim != b->shape.head_dim ||
        s->block_tokens != b->shape.block_tokens || s->dtype != b->shape.dtype)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u has the KV shape of another model", head->block_index);
    if (memcmp(&head->keyspace, &b->keyspace_id, sizeof(head->keyspace)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "block %u belongs to another keyspace", head->block_index);
    if (head->block_index >= b->n_blocks)
        return vc_err_set(err, VC_ERR_RANGE, "block %u is outside a body of %u blocks", head->block_index, b->n_blocks);
    if (b->blocks[head->block_index].has_record)
        return vc_err_set(err, VC_ERR_EXISTS, "block %u came twice", head->block_index);
    return VC_OK;
}

vc_status_t node_body_add_record(node_body_builder_t *b, const void *record, size_t bytes, vc_err_t *err)
{
    vc_kvrec_head_t head;
    vc_status_t st = vc_kvrec_check(record, bytes, &head, err);
    if (st == VC_OK)
        st = check_head(b, &head, err);
    if (st != VC_OK)
        return st;
    block_state_t *bs = &b->blocks[head.block_index];
    bs->blob_cap = head.payload_bytes;
    for (uint32_t l = 0; st == VC_OK && l < head.shape.n_layer; l++) {
        vc_kvrec_layer_t part;
        vc_kvrec_layer(&head, l, &part);
        st = b->spec.ops->decode(&b->spec, &head, l, (const uint8_t *)record + part.offset, part.length, b, err);
    }
    if (st != VC_OK) {
        drop_record(bs);
        return st;
    }
    bs->has_record = true;
    bs->hash = head.hash;
    bs->parent = head.parent;
    return VC_OK;
}

/* Room for the rows of one head in the block's blob, K first; *at_p NULL where an exact page has taken the place. */
static vc_status_t rows_room(node_body_builder_t *b, uint32_t block, uint32_t i, uint64_t kept, size_t half,
                             uint8_t **at_p, vc_err_t *err)
{
    block_state_t *bs = &b->blocks[block];
    *at_p = NULL;
    if (bs->exact)
        return VC_OK; /* checked, and not needed */
    if (bs->heads == NULL) {
        bs->heads = vc_calloc(n_heads_of(&b->dims), sizeof(*bs->heads));
        bs->blob = vc_alloc(bs->blob_cap ? bs->blob_cap : 1);
        if (bs->heads == NULL || bs->blob == NULL)
            return vc_err_set(err, VC_ERR_NOMEM, "no memory for the rows of block %u", block);
    }
    if (half > (bs->blob_cap - bs->blob_used) / 2)
        return vc_err_set(err, VC_ERR_CORRUPT, "block %u holds more rows than its payload", block);
    *at_p = bs->blob + bs->blob_used;
    bs->heads[i] = (node_kept_t){kept, *at_p, *at_p + half};
    bs->blob_used += 2 * half;
    return VC_OK;
}

vc_status_t node_body_put_rows(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head, uint64_t kept,
                               const uint8_t *k_rows, const uint8_t *v_rows, vc_err_t *err)
{
    const size_t half = (size_t)__builtin_popcountll(kept) * b->dims.head_dim * 2u;
    uint8_t *at;
    vc_status_t st = rows_room(b, block, layer * b->dims.n_kv_head + head, kept, half, &at, err);
    if (at) {
        memcpy(at, k_rows, half);
        memcpy(at + half, v_rows, half);
    }
    return st;
}

static uint8_t *copy_coded_rows(uint8_t *at, const node_coded_form_t *f, uint32_t n, const node_coded_rows_t *rows)
{
    const size_t codes = (size_t)n * f->dim * f->bits / 8, params = (size_t)n * (f->dim / f->group) * 2;
    memcpy(at, rows->codes, codes);
    memcpy(at + codes, rows->scales, params);
    memcpy(at + codes + params, rows->mins, params);
    return at + codes + 2 * params;
}

vc_status_t node_body_put_coded_rows(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head,
                                     uint64_t kept, const node_coded_form_t *form, const node_coded_rows_t *k,
                                     const node_coded_rows_t *v, vc_err_t *err)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(kept);
    uint8_t *at;
    vc_status_t st =
        rows_room(b, block, layer * b->dims.n_kv_head + head, kept, node_pack_coded_bytes(form, n), &at, err);
    if (at) {
        b->form = *form;
        copy_coded_rows(copy_coded_rows(at, form, n, k), form, n, v);
    }
    return st;
}

vc_status_t node_body_own_page(node_body_builder_t *b, uint32_t block, node_page_t **page_p, vc_err_t *err)
{
    block_state_t *bs = &b->blocks[block];
    if (bs->exact) {
        *page_p = NULL;
        return VC_OK;
    }
    if (bs->page == NULL)
        bs->page = node_page_create(&b->dims);
    if (bs->page == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the page of block %u", block);
    *page_p = bs->page;
    return VC_OK;
}

static uint8_t *coded_tile(const node_body_builder_t *b, uint32_t i, uint32_t block)
{
    return b->codes + ((size_t)i * b->n_blocks + block) * b->form.bytes;
}

static bool make_codes(node_body_builder_t *b, const node_coded_form_t *form)
{
    size_t tiles, bytes;
    if (b->codes)
        return true;
    if (!vc_size_mul(b->n_blocks, n_heads_of(&b->dims), &tiles) || !vc_size_mul(tiles, form->bytes, &bytes))
        return false;
    b->codes = node_alloc_huge(bytes);
    b->form = *form;
    return b->codes != NULL;
}

vc_status_t node_body_own_tile(node_body_builder_t *b, uint32_t block, uint32_t layer, uint32_t head,
                               const node_coded_form_t *form, uint8_t **tile_p, vc_err_t *err)
{
    block_state_t *bs = &b->blocks[block];
    *tile_p = NULL;
    if (bs->exact)
        return VC_OK;
    if (!make_codes(b, form))
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the codes of %u blocks", b->n_blocks);
    bs->coded = true;
    *tile_p = coded_tile(b, layer * b->dims.n_kv_head + head, block);
    return VC_OK;
}

vc_status_t node_body_add_page(node_body_builder_t *b, uint32_t block, node_page_t *page)
{
    if (block >= b->n_blocks)
        return VC_ERR_RANGE;
    block_state_t *bs = &b->blocks[block];
    if (bs->exact)
        return VC_ERR_EXISTS;
    node_page_t *own = node_page_own(page);
    if (own == NULL)
        return VC_ERR_NOMEM;
    bool had_record = bs->has_record;
    drop_record(bs);
    bs->has_record = had_record; /* its place in the chain still counts, and a second record is still one too many */
    bs->page = own;
    bs->exact = true;
    return VC_OK;
}

void node_body_abort(node_body_builder_t *b)
{
    if (b == NULL)
        return;
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        drop_record(&b->blocks[i]);
        node_page_put(b->blocks[i].page);
    }
    node_prerope_destroy(b->prerope);
    vc_free(b->codes);
    vc_free(b->blocks);
    vc_free(b);
}

static void destroy_body(node_body_t *base)
{
    body_impl_t *body = (body_impl_t *)base;
    for (uint32_t i = 0; i < body->n_heads; i++) {
        if (body->slabs)
            vc_free(body->slabs[i]);
        if (base->tiles)
            vc_free(base->tiles[i]);
    }
    for (uint32_t i = 0; i < body->n_pages; i++)
        node_page_put(body->pages[i]);
    vc_free(body->codes);
    vc_free(body->pages);
    vc_free(body->slabs);
    vc_free(base->tiles);
    vc_free(base->n_tiles);
    vc_free(body);
}

/* Every block is there, and neighbouring records name each other. */
static vc_status_t check_blocks(const node_body_builder_t *b, vc_err_t *err)
{
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        const block_state_t *bs = &b->blocks[i];
        if (!bs->has_record && !bs->exact)
            return vc_err_set(err, VC_ERR_INVALID, "block %u of %u is missing from the body", i, b->n_blocks);
        const vc_digest_t *parent = i == 0                        ? &b->keyspace_id
                                    : b->blocks[i - 1].has_record ? &b->blocks[i - 1].hash
                                                                  : NULL;
        if (bs->has_record && parent && memcmp(parent, &bs->parent, sizeof(*parent)) != 0)
            return vc_err_set(err, VC_ERR_MISMATCH, "block %u does not continue block %u", i, i - 1);
    }
    return VC_OK;
}

/* Packed tiles and all tiles that head i takes. A run of dropper blocks ends at a page. */
static void count_tiles(const node_body_builder_t *b, uint32_t i, uint32_t *packed_p, uint32_t *total_p)
{
    uint32_t rows = 0, packed = 0, pages = 0;
    for (uint32_t n = 0; n < b->n_blocks; n++) {
        const block_state_t *bs = &b->blocks[n];
        if (bs->page || bs->coded) {
            packed += (rows + NODE_TILE - 1) / NODE_TILE;
            rows = 0;
            pages++;
        } else {
            rows += (uint32_t)__builtin_popcountll(bs->heads[i].rows);
        }
    }
    packed += (rows + NODE_TILE - 1) / NODE_TILE;
    *packed_p = packed;
    *total_p = packed + pages;
}

static vc_status_t fill_head(const node_body_builder_t *b, body_impl_t *body, uint32_t i)
{
    uint8_t codes[2 * NODE_TILE * NODE_HEAD_DIM_MAX];
    uint32_t packed, total;
    count_tiles(b, i, &packed, &total);
    const size_t slab_bytes = packed * node_pack_tile_bytes(&b->form, b->dims.head_dim);
    body->base.tiles[i] = vc_calloc(total ? total : 1, sizeof(node_tile_t));
    if (packed)
        body->slabs[i] = vc_alloc_aligned(64, slab_bytes);
    if (body->base.tiles[i] == NULL || (packed && body->slabs[i] == NULL))
        return VC_ERR_NOMEM;
    if (packed)
        memset(body->slabs[i], 0, slab_bytes);
    body->base.bytes += slab_bytes;
    node_packer_t p = {.tiles = body->base.tiles[i], .slab = body->slabs[i], .dim = b->dims.head_dim, .form = &b->form};
    p.k_codes = codes;
    p.v_codes = codes + NODE_TILE * NODE_HEAD_DIM_MAX;
    uint32_t layer = i / b->dims.n_kv_head, head = i % b->dims.n_kv_head;
    for (uint32_t n = 0; n < b->n_blocks; n++) {
        const block_state_t *bs = &b->blocks[n];
        if (bs->page == NULL && !bs->coded) {
            node_pack_rows(&p, &bs->heads[i]);
            continue;
        }
        node_pack_close(&p);
        if (bs->coded)
            p.tiles[p.n_tiles++] = (node_tile_t){.n_rows = NODE_TILE, .codes = coded_tile(b, i, n)};
        else
            p.tiles[p.n_tiles++] =
                (node_tile_t){node_page_k(bs->page, layer, head), node_page_v(bs->page, layer, head), NODE_TILE, NULL};
    }
    node_pack_close(&p);
    body->base.n_tiles[i] = p.n_tiles;
    return VC_OK;
}

static body_impl_t *alloc_body(const node_body_builder_t *b)
{
    body_impl_t *body = vc_calloc(1, sizeof(*body));
    if (body == NULL)
        return NULL;
    uint32_t n = n_heads_of(&b->dims);
    body->base.n_tokens = b->n_blocks * NODE_TILE;
    body->base.dims = b->dims;
    body->base.destroy = destroy_body;
    atomic_init(&body->base.refs, 1);
    body->n_heads = n;
    body->base.tiles = vc_calloc(n, sizeof(*body->base.tiles));
    body->base.n_tiles = vc_calloc(n, sizeof(*body->base.n_tiles));
    body->slabs = vc_calloc(n, sizeof(*body->slabs));
    body->pages = vc_calloc(b->n_blocks, sizeof(*body->pages));
    body->base.form = b->form;
    if (body->base.tiles == NULL || body->base.n_tiles == NULL || body->slabs == NULL || body->pages == NULL) {
        destroy_body(&body->base);
        return NULL;
    }
    return body;
}

vc_status_t node_body_finish(node_body_builder_t *b, node_body_t **body_p, vc_err_t *err)
{
    vc_status_t st = check_blocks(b, err);
    body_impl_t *body = NULL;
    if (st == VC_OK) {
        body = alloc_body(b);
        if (body == NULL)
            st = vc_err_set(err, VC_ERR_NOMEM, "no memory for a body of %u blocks", b->n_blocks);
    }
    for (uint32_t i = 0; st == VC_OK && i < body->n_heads; i++) {
        st = fill_head(b, body, i);
        if (st != VC_OK)
            vc_err_set(err, st, "no memory for the tiles of %u blocks", b->n_blocks);
    }
    if (st == VC_OK) {
        for (uint32_t n = 0; n < b->n_blocks; n++) {
            block_state_t *bs = &b->blocks[n];
            if (bs->coded)
                body->base.bytes += (uint64_t)n_heads_of(&b->dims) * b->form.bytes;
            if (bs->page == NULL)
                continue;
            if (!bs->exact)
                body->base.bytes += n_heads_of(&b->dims) * 2 * tile_half(&b->dims) * sizeof(uint16_t);
            body->pages[body->n_pages++] = bs->page; /* the reference moves */
            bs->page = NULL;
        }
        body->codes = b->codes; /* its owner moves */
        b->codes = NULL;
        *body_p = &body->base;
    } else if (body) {
        destroy_body(&body->base);
    }
    node_body_abort(b);
    return st;
}

uint32_t node_body_n_dropped(const node_body_t *body, uint32_t layer, uint32_t kv_head)
{
    uint32_t i = layer * body->dims.n_kv_head + kv_head, rows = 0;
    for (uint32_t t = 0; t < body->n_tiles[i]; t++)
        rows += body->tiles[i][t].n_rows;
    return body->n_tokens - rows;
}
