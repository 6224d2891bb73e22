/*
 * LRU, FIFO, LFU and the oracle: each block has a key that only a use changes, and the least key goes first. One heap
 * for all four; they differ in the key. The deeper of two blocks of one request has the lesser key.
 */
#include "sim_int.h"
#include "vc/mem.h"

typedef struct keyed {
    uint32_t n;
    uint32_t *heap; /* slots */
    uint32_t *pos;  /* by slot */
    uint64_t *keys; /* by slot */
    uint32_t *uses; /* by slot, for LFU */
} keyed_t;

static void keyed_destroy(void *state)
{
    keyed_t *k = state;
    vc_free(k->heap);
    vc_free(k->pos);
    vc_free(k->keys);
    vc_free(k->uses);
    vc_free(k);
}

static vc_status_t keyed_create(uint32_t capacity, uint32_t n_blocks, void **state_p)
{
    (void)n_blocks;
    keyed_t *k = vc_calloc(1, sizeof(*k));
    if (!k)
        return VC_ERR_NOMEM;
    k->heap = vc_calloc(capacity, sizeof(*k->heap));
    k->pos = vc_calloc(capacity, sizeof(*k->pos));
    k->keys = vc_calloc(capacity, sizeof(*k->keys));
    k->uses = vc_calloc(capacity, sizeof(*k->uses));
    if (!k->heap || !k->pos || !k->keys || !k->uses) {
        keyed_destroy(k);
        return VC_ERR_NOMEM;
    }
    *state_p = k;
    return VC_OK;
}

static void place(keyed_t *k, uint32_t i, uint32_t slot)
{
    k->heap[i] = slot;
    k->pos[slot] = i;
}

static void sift(keyed_t *k, uint32_t i, uint32_t slot)
{
    uint64_t key = k->keys[slot];
    for (; i > 0 && key < k->keys[k->heap[(i - 1) / 2]]; i = (i - 1) / 2)
        place(k, i, k->heap[(i - 1) / 2]);
    for (uint32_t child; (child = 2 * i + 1) < k->n; i = child) {
        if (child + 1 < k->n && k->keys[k->heap[child + 1]] < k->keys[k->heap[child]])
            child++;
        if (k->keys[k->heap[child]] >= key)
            break;
        place(k, i, k->heap[child]);
    }
    place(k, i, slot);
}

static void add(keyed_t *k, uint32_t slot, uint64_t key)
{
    k->keys[slot] = key;
    k->n++;
    sift(k, k->n - 1, slot);
}

static void set(keyed_t *k, uint32_t slot, uint64_t key)
{
    k->keys[slot] = key;
    sift(k, k->pos[slot], slot);
}

static void take(keyed_t *k, uint32_t slot)
{
    uint32_t i = k->pos[slot], last = k->heap[--k->n];
    if (last != slot)
        sift(k, i, last);
}

/* Those that are kept wait behind the heap, in the places that it gave up, and come back at once: a request keeps few.
 */
static uint32_t keyed_evict(void *state, cs_sim_kept_fn is_kept, void *arg, uint32_t time_s)
{
    keyed_t *k = state;
    uint32_t end = k->n, kept = end, slot;
    (void)time_s;
    for (;;) {
        slot = k->heap[0];
        take(k, slot);
        if (!is_kept(arg, slot))
            break;
        k->heap[--kept] = slot;
    }
    for (; kept < end; kept++)
        add(k, k->heap[kept], k->keys[k->heap[kept]]);
    return slot;
}

/* Later requests have the greater key, and so have lesser depths within one. */
static uint64_t recency(const cs_sim_block_t *b) { return (uint64_t)b->request << 16 | (UINT16_MAX - b->depth); }

static void lru_insert(void *state, uint32_t slot, const cs_sim_block_t *b) { add(state, slot, recency(b)); }
static void lru_touch(void *state, uint32_t slot, const cs_sim_block_t *b) { set(state, slot, recency(b)); }
static void fifo_touch(void *state, uint32_t slot, const cs_sim_block_t *b)
{
    (void)state;
    (void)slot;
    (void)b;
}

/* 24 bits of uses above 24 of requests and 16 of depth. */
static uint64_t lfu_key(keyed_t *k, uint32_t slot, const cs_sim_block_t *b, uint32_t uses)
{
    k->uses[slot] = VC_MIN(uses, (1u << 24) - 1);
    return (uint64_t)k->uses[slot] << 40 | (recency(b) & ((UINT64_C(1) << 40) - 1));
}

static void lfu_insert(void *state, uint32_t slot, const cs_sim_block_t *b)
{
    add(state, slot, lfu_key(state, slot, b, 1));
}
static void lfu_touch(void *state, uint32_t slot, const cs_sim_block_t *b)
{
    keyed_t *k = state;
    set(k, slot, lfu_key(k, slot, b, k->uses[slot] + 1));
}

static uint64_t nearness(const cs_sim_block_t *b)
{
    return (uint64_t)(UINT32_MAX - b->next) << 16 | (UINT16_MAX - b->depth);
}
static void oracle_insert(void *state, uint32_t slot, const cs_sim_block_t *b) { add(state, slot, nearness(b)); }
static void oracle_touch(void *state, uint32_t slot, const cs_sim_block_t *b) { set(state, slot, nearness(b)); }

const cs_sim_ops_t cs_sim_lru = {keyed_create, keyed_destroy, lru_insert, lru_touch, keyed_evict, false};
const cs_sim_ops_t cs_sim_fifo = {keyed_create, keyed_destroy, lru_insert, fifo_touch, keyed_evict, false};
const cs_sim_ops_t cs_sim_lfu = {keyed_create, keyed_destroy, lfu_insert, lfu_touch, keyed_evict, false};
const cs_sim_ops_t cs_sim_oracle = {keyed_create, keyed_destroy, oracle_insert, oracle_touch, keyed_evict, false};
