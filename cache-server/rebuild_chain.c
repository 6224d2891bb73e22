/*
 * Prefixes again: a registration was one chain, later ones that go through its tip join it. In ascending order of the
 * block index a row joins the prefix of its parent where it extends that one's tip, or is another copy of a block that
 * is in it, and begins a prefix of its own where neither holds.
 */
#include <stdlib.h>
#include <string.h>

#include "rebuild_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

typedef struct place { /* of one block in any fidelity; open addressing by the first bytes of its hash */
    vc_digest_t hash;
    uint32_t prefix; /* index + 1; 0: unused */
} place_t;

typedef struct places {
    place_t *slots;
    uint32_t mask;
} places_t;

typedef struct order {
    uint32_t block_index, row;
} order_t;

static place_t *find(const places_t *p, const vc_digest_t *hash)
{
    uint32_t i = vc_le32(hash->b) & p->mask;
    while (p->slots[i].prefix && memcmp(&p->slots[i].hash, hash, sizeof(*hash)) != 0)
        i = (i + 1) & p->mask;
    return &p->slots[i];
}

static int by_index(const void *a, const void *b)
{
    const order_t *x = a, *y = b;
    return x->block_index != y->block_index ? (x->block_index < y->block_index ? -1 : 1)
                                            : (x->row < y->row ? -1 : x->row > y->row);
}

static uint32_t add_prefix(rebuild_t *r, const cs_object_row_t *row, const cs_prefix_row_t *parent)
{
    if (!rebuild_grow((void **)&r->prefixes, &r->cap_prefixes, r->n_prefixes, sizeof(*r->prefixes)))
        return 0;
    cs_prefix_row_t *prefix = &r->prefixes[r->n_prefixes++];
    *prefix = (cs_prefix_row_t){.id = r->n_prefixes, .keyspace = row->keyspace};
    if (parent) { /* a branch begins with the same words */
        prefix->n_head_tokens = parent->n_head_tokens;
        memcpy(prefix->head_tokens, parent->head_tokens, sizeof(prefix->head_tokens));
    } else if (row->prefix > 0) {
        prefix->n_head_tokens = r->heads[row->prefix - 1].n;
        memcpy(prefix->head_tokens, r->heads[row->prefix - 1].tokens, sizeof(prefix->head_tokens));
    }
    return r->n_prefixes;
}

static bool place_row(rebuild_t *r, const places_t *places, uint32_t i)
{
    cs_object_row_t *row = &r->rows[i];
    place_t *here = find(places, &row->key.hash);
    if (here->prefix == 0) {
        const place_t *above = find(places, &r->parents[i]);
        uint32_t prefix = above->prefix;
        if (prefix == 0 || memcmp(&r->prefixes[prefix - 1].tip, &r->parents[i], sizeof(r->parents[i])) != 0) {
            cs_prefix_row_t parent; /* a copy: the array may move */
            if (prefix)
                parent = r->prefixes[prefix - 1];
            prefix = add_prefix(r, row, prefix ? &parent : NULL);
        }
        if (prefix == 0)
            return false;
        *here = (place_t){row->key.hash, prefix};
        r->prefixes[prefix - 1].tip = row->key.hash;
        r->prefixes[prefix - 1].n_blocks = row->block_index + 1;
    }
    row->prefix = here->prefix;
    return true;
}

vc_status_t rebuild_chains(rebuild_t *r)
{
    places_t places = {.mask = 63};
    while (places.mask < 2 * (uint64_t)r->n_rows && places.mask < UINT32_MAX / 2)
        places.mask = places.mask * 2 + 1;
    places.slots = vc_calloc((size_t)places.mask + 1, sizeof(*places.slots));
    order_t *order = vc_calloc(r->n_rows ? r->n_rows : 1, sizeof(*order));
    bool is_good = places.slots && order;
    for (uint32_t i = 0; is_good && i < r->n_rows; i++)
        order[i] = (order_t){r->rows[i].block_index, i};
    if (is_good)
        qsort(order, r->n_rows, sizeof(*order), by_index);
    for (uint32_t i = 0; is_good && i < r->n_rows; i++)
        is_good = place_row(r, &places, order[i].row);
    vc_free(places.slots);
    vc_free(order);
    return is_good ? VC_OK : VC_ERR_NOMEM;
}
