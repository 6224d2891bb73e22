/* What the simulator asks of a policy. Blocks lie in slots [0, capacity); each has a number while it is inside. */
#ifndef CS_SIM_INT_H
#define CS_SIM_INT_H

#include "sim.h"

typedef bool (*cs_sim_kept_fn)(void *arg, uint32_t slot);

typedef struct cs_sim_block {
    uint32_t number; /* in the trace */
    uint32_t depth;
    uint32_t request; /* the one that uses it now */
    uint32_t next;    /* request that will use it next, UINT32_MAX: none; for the oracle */
    uint32_t time_s;
} cs_sim_block_t;

typedef struct cs_sim_ops {
    vc_status_t (*create)(uint32_t capacity, uint32_t n_blocks, void **state_p);
    void (*destroy)(void *state);
    void (*insert)(void *state, uint32_t slot, const cs_sim_block_t *block);
    void (*touch)(void *state, uint32_t slot, const cs_sim_block_t *block);
    uint32_t (*evict)(void *state, cs_sim_kept_fn is_kept, void *arg, uint32_t time_s); /* the slot that went */
    bool deepest_first; /* insert gets the blocks of a request from the deepest to the first */
} cs_sim_ops_t;

extern const cs_sim_ops_t cs_sim_ours, cs_sim_lru, cs_sim_fifo, cs_sim_lfu, cs_sim_s3fifo, cs_sim_oracle;

#endif
