/*
 * S3-FIFO as published: a small queue of a tenth of the room, a main queue, and a ghost queue of block numbers as long
 * as the main one. Out of the small queue, what was used more than once meanwhile goes to the main one, the rest
 * becomes a ghost; what comes back as a ghost goes to the main one at once; there, used blocks go round again with one
 * use less.
 */
#include <string.h>

#include "sim_int.h"
#include "vc/mem.h"

#define NONE UINT32_MAX
#define MAX_USES 3

typedef struct queue {
    uint32_t head, tail, n; /* the head is the oldest */
} queue_t;

typedef struct s3 {
    uint32_t capacity, small_max, ghosts_max;
    queue_t queues[2]; /* small, main */
    uint32_t *next;    /* by slot */
    uint32_t *number;  /* by slot */
    uint8_t *uses;     /* by slot */
    uint32_t *ghosts;  /* ring of numbers */
    uint32_t ghost_at, n_ghosts;
    uint32_t *ghost_place; /* by number: its place in the ring; NONE: no ghost */
} s3_t;

static void s3_destroy(void *state)
{
    s3_t *s = state;
    vc_free(s->next);
    vc_free(s->number);
    vc_free(s->uses);
    vc_free(s->ghosts);
    vc_free(s->ghost_place);
    vc_free(s);
}

static vc_status_t s3_create(uint32_t capacity, uint32_t n_blocks, void **state_p)
{
    s3_t *s = vc_calloc(1, sizeof(*s));
    if (!s)
        return VC_ERR_NOMEM;
    s->capacity = capacity;
    s->small_max = VC_MAX(capacity / 10, 1);
    s->ghosts_max = VC_MAX(capacity - capacity / 10, 1);
    s->queues[0] = s->queues[1] = (queue_t){NONE, NONE, 0};
    s->next = vc_calloc(capacity, sizeof(*s->next));
    s->number = vc_calloc(capacity, sizeof(*s->number));
    s->uses = vc_calloc(capacity, 1);
    s->ghosts = vc_calloc(s->ghosts_max, sizeof(*s->ghosts));
    s->ghost_place = vc_calloc(n_blocks, sizeof(*s->ghost_place));
    if (!s->next || !s->number || !s->uses || !s->ghosts || !s->ghost_place) {
        s3_destroy(s);
        return VC_ERR_NOMEM;
    }
    memset(s->ghost_place, 0xff, (size_t)n_blocks * sizeof(*s->ghost_place));
    *state_p = s;
    return VC_OK;
}

static void push(s3_t *s, queue_t *q, uint32_t slot)
{
    s->next[slot] = NONE;
    if (q->n++ == 0)
        q->head = slot;
    else
        s->next[q->tail] = slot;
    q->tail = slot;
}

static uint32_t pop(s3_t *s, queue_t *q)
{
    uint32_t slot = q->head;
    q->head = s->next[slot];
    q->n--;
    return slot;
}

static void add_ghost(s3_t *s, uint32_t number)
{
    uint32_t old = s->ghosts[s->ghost_at];
    if (s->n_ghosts == s->ghosts_max && s->ghost_place[old] == s->ghost_at)
        s->ghost_place[old] = NONE;
    s->n_ghosts = VC_MIN(s->n_ghosts + 1, s->ghosts_max);
    s->ghosts[s->ghost_at] = number;
    s->ghost_place[number] = s->ghost_at;
    s->ghost_at = (s->ghost_at + 1) % s->ghosts_max;
}

static void s3_insert(void *state, uint32_t slot, const cs_sim_block_t *block)
{
    s3_t *s = state;
    bool was_ghost = s->ghost_place[block->number] != NONE;
    s->ghost_place[block->number] = NONE;
    s->number[slot] = block->number;
    s->uses[slot] = 0;
    push(s, &s->queues[was_ghost], slot);
}

static void s3_touch(void *state, uint32_t slot, const cs_sim_block_t *block)
{
    s3_t *s = state;
    (void)block;
    if (s->uses[slot] < MAX_USES)
        s->uses[slot]++;
}

static uint32_t s3_evict(void *state, cs_sim_kept_fn is_kept, void *arg, uint32_t time_s)
{
    s3_t *s = state;
    (void)time_s;
    for (;;) {
        bool main = s->queues[0].n < s->small_max && s->queues[1].n > 0;
        if (!main && s->queues[0].n == 0)
            main = true;
        queue_t *q = &s->queues[main];
        uint32_t slot = pop(s, q);
        if (is_kept(arg, slot)) {
            push(s, &s->queues[1], slot);
        } else if (!main && s->uses[slot] > 1) {
            s->uses[slot] = 0;
            push(s, &s->queues[1], slot);
        } else if (main && s->uses[slot] > 0) {
            s->uses[slot]--;
            push(s, q, slot);
        } else {
            if (!main)
                add_ghost(s, s->number[slot]);
            return slot;
        }
    }
}

const cs_sim_ops_t cs_sim_s3fifo = {s3_create, s3_destroy, s3_insert, s3_touch, s3_evict, true};
