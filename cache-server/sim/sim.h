/*
 * The policy simulator: a cache of blocks of one size, without bytes, under a trace. The very policy of the server
 * (policy.h), and others to compare it with. Pure and deterministic.
 *
 * A request asks for a chain. Its hits are the leading blocks that are present: a block behind a hole is of no use.
 * Then all its missing blocks are stored, whatever has to go for them; its own blocks do not go meanwhile. Where the
 * chain is longer than the cache, its first blocks are stored.
 */
#ifndef CS_SIM_SIM_H
#define CS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "trace.h"
#include "vc/status.h"

typedef enum {
    CS_SIM_OURS,
    CS_SIM_LRU,
    CS_SIM_FIFO,
    CS_SIM_LFU,    /* uses since it was stored; of equals the least recently used */
    CS_SIM_S3FIFO, /* a tenth is probation, two bits of use, a ghost list as long as the main queue */
    /* Knows the future: the block whose next use is farthest away goes first (Belady). A parent's next use is never
     * after its child's, so its hits are leading blocks all, and no policy that stores every block has more of them. */
    CS_SIM_ORACLE,
    CS_SIM_N
} cs_sim_policy_t;

const char *cs_sim_name(cs_sim_policy_t policy);

typedef struct cs_sim_result {
    uint64_t requests, asked, hits; /* in blocks but the first */
    uint64_t stored, evicted;
} cs_sim_result_t;
static inline double cs_sim_hit_rate(const cs_sim_result_t *r)
{
    return r->asked ? (double)r->hits / (double)r->asked : 0;
}

/* In all of them the deepest block of a request goes first. capacity_blocks: at least 1. NOMEM, INVALID. */
vc_status_t cs_sim_run(const cs_trace_t *trace, cs_sim_policy_t policy, uint32_t capacity_blocks,
                       cs_sim_result_t *result_p);

#endif
