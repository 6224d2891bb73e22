/* The replay, and the server's policy behind the simulator's interface. */
#include "sim.h"

#include <string.h>

#include "policy.h"
#include "sim_int.h"
#include "vc/mem.h"

static const struct {
    const char *name;
    const cs_sim_ops_t *ops;
} policies[CS_SIM_N] = {
    [CS_SIM_OURS] = {"ours", &cs_sim_ours},       [CS_SIM_LRU] = {"lru", &cs_sim_lru},
    [CS_SIM_FIFO] = {"fifo", &cs_sim_fifo},       [CS_SIM_LFU] = {"lfu", &cs_sim_lfu},
    [CS_SIM_S3FIFO] = {"s3fifo", &cs_sim_s3fifo}, [CS_SIM_ORACLE] = {"oracle", &cs_sim_oracle},
};

const char *cs_sim_name(cs_sim_policy_t policy) { return policies[policy].name; }

/* ---- the server's policy ---- */

static vc_status_t ours_create(uint32_t capacity, uint32_t n_blocks, void **state_p)
{
    (void)n_blocks;
    cs_policy_t *policy;
    vc_status_t status = cs_policy_create((uint64_t)capacity * 4096, &policy);
    if (status != VC_OK)
        return status;
    status = cs_policy_reserve(policy, capacity);
    if (status != VC_OK) {
        cs_policy_destroy(policy);
        return status;
    }
    *state_p = policy;
    return VC_OK;
}

static void ours_destroy(void *state) { cs_policy_destroy(state); }

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void ours_insert(void *state, uint32_t slot, const cs_sim_block_t *block)
{
    cs_policy_item_t item = {.fp = mix(block->number + UINT64_C(0x9e3779b97f4a7c15)),
                             .bytes = 4096,
                             .block_index = block->depth,
                             .is_full_copy = true};
    cs_policy_insert(state, slot, &item, block->time_s);
}

static void ours_touch(void *state, uint32_t slot, const cs_sim_block_t *block)
{
    cs_policy_touch(state, slot, block->time_s);
}

static uint32_t ours_evict(void *state, cs_sim_kept_fn is_kept, void *arg, uint32_t time_s)
{
    uint32_t slot = cs_policy_victim(state, is_kept, arg, time_s);
    cs_policy_remove(state, slot, true);
    return slot;
}

const cs_sim_ops_t cs_sim_ours = {ours_create, ours_destroy, ours_insert, ours_touch, ours_evict, false};

/* ---- the replay ---- */

typedef struct sim {
    const cs_trace_t *trace;
    const cs_sim_ops_t *ops;
    void *state;
    uint32_t capacity, n_free;
    uint32_t *slot_of;   /* by block; CS_TRACE_NONE: not inside */
    uint32_t *block_in;  /* by slot */
    uint32_t *free;      /* slots */
    uint32_t *used_by;   /* by block: the last request that has it, + 1 */
    uint32_t *next_uses; /* by place in the trace */
    uint32_t request;
} sim_t;

static bool is_of_request(void *arg, uint32_t slot)
{
    const sim_t *s = arg;
    return s->used_by[s->block_in[slot]] == s->request + 1;
}

static vc_status_t find_next_uses(sim_t *s)
{
    const cs_trace_t *t = s->trace;
    uint32_t *later = vc_alloc((size_t)t->n_blocks * sizeof(*later));
    s->next_uses = vc_calloc(cs_trace_asked(t), sizeof(*s->next_uses));
    if (!later || !s->next_uses) {
        vc_free(later);
        return VC_ERR_NOMEM;
    }
    memset(later, 0xff, (size_t)t->n_blocks * sizeof(*later));
    for (uint32_t r = t->n_requests; r-- > 0;) {
        for (size_t i = t->starts[r]; i < t->starts[r + 1]; i++) {
            s->next_uses[i] = later[t->blocks[i]];
            later[t->blocks[i]] = r;
        }
    }
    vc_free(later);
    return VC_OK;
}

static void sim_fini(sim_t *s)
{
    if (s->state)
        s->ops->destroy(s->state);
    vc_free(s->slot_of);
    vc_free(s->block_in);
    vc_free(s->free);
    vc_free(s->used_by);
    vc_free(s->next_uses);
}

static vc_status_t sim_init(sim_t *s)
{
    uint32_t n = s->trace->n_blocks;
    s->slot_of = vc_calloc(n, sizeof(*s->slot_of));
    s->used_by = vc_calloc(n, sizeof(*s->used_by));
    s->block_in = vc_calloc(s->capacity, sizeof(*s->block_in));
    s->free = vc_calloc(s->capacity, sizeof(*s->free));
    if (!s->slot_of || !s->used_by || !s->block_in || !s->free)
        return VC_ERR_NOMEM;
    memset(s->slot_of, 0xff, (size_t)n * sizeof(*s->slot_of));
    while (s->n_free < s->capacity) {
        s->free[s->n_free] = s->capacity - 1 - s->n_free;
        s->n_free++;
    }
    if (s->ops == &cs_sim_oracle && find_next_uses(s) != VC_OK)
        return VC_ERR_NOMEM;
    return s->ops->create(s->capacity, n, &s->state);
}

static cs_sim_block_t block_at(const sim_t *s, size_t place)
{
    uint32_t number = s->trace->blocks[place];
    return (cs_sim_block_t){.number = number,
                            .depth = s->trace->depths[number],
                            .request = s->request,
                            .next = s->next_uses ? s->next_uses[place] : CS_TRACE_NONE,
                            .time_s = s->trace->times_s[s->request]};
}

static void store(sim_t *s, size_t place)
{
    cs_sim_block_t block = block_at(s, place);
    uint32_t slot = s->free[--s->n_free];
    s->slot_of[block.number] = slot;
    s->block_in[slot] = block.number;
    s->ops->insert(s->state, slot, &block);
}

static void run_request(sim_t *s, cs_sim_result_t *r)
{
    const cs_trace_t *t = s->trace;
    size_t first = t->starts[s->request], end = t->starts[s->request + 1], place = first;
    uint32_t missing = 0;
    r->requests++;
    r->asked += end - first;
    while (place < end && s->slot_of[t->blocks[place]] != CS_TRACE_NONE)
        place++;
    r->hits += place - first;
    end = VC_MIN(end, first + s->capacity);
    for (place = first; place < end; place++) {
        cs_sim_block_t block = block_at(s, place);
        s->used_by[block.number] = s->request + 1;
        missing += s->slot_of[block.number] == CS_TRACE_NONE;
        if (s->slot_of[block.number] != CS_TRACE_NONE)
            s->ops->touch(s->state, s->slot_of[block.number], &block);
    }
    for (; s->n_free < missing; r->evicted++) {
        uint32_t slot = s->ops->evict(s->state, is_of_request, s, t->times_s[s->request]);
        s->slot_of[s->block_in[slot]] = CS_TRACE_NONE;
        s->free[s->n_free++] = slot;
    }
    r->stored += missing;
    for (place = first; place < end; place++) {
        size_t at = s->ops->deepest_first ? end - 1 - (place - first) : place;
        if (s->slot_of[t->blocks[at]] == CS_TRACE_NONE)
            store(s, at);
    }
}

vc_status_t cs_sim_run(const cs_trace_t *trace, cs_sim_policy_t policy, uint32_t capacity_blocks,
                       cs_sim_result_t *result_p)
{
    sim_t s = {.trace = trace, .ops = policies[policy].ops, .capacity = capacity_blocks};
    cs_sim_result_t result = {0};
    if (capacity_blocks == 0)
        return VC_ERR_INVALID;
    vc_status_t status = sim_init(&s);
    if (status == VC_OK) {
        for (; s.request < trace->n_requests; s.request++)
            run_request(&s, &result);
        *result_p = result;
    }
    sim_fini(&s);
    return status;
}
