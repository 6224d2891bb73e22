/* The ring: step number i lies at i % CS_HITS_STEPS; steps that time has passed over are cleared on the way. */
#include "hits.h"

#include "vc/mem.h"

void cs_hits_init(cs_hits_t *hits, uint64_t now_us)
{
    *hits = (cs_hits_t){.newest = now_us / CS_HITS_STEP_US};
    pthread_mutex_init(&hits->lock, NULL);
}

void cs_hits_fini(cs_hits_t *hits) { pthread_mutex_destroy(&hits->lock); }

static void advance(cs_hits_t *hits, uint64_t now_us)
{
    uint64_t step = now_us / CS_HITS_STEP_US;
    uint64_t n = step > hits->newest ? VC_MIN(step - hits->newest, CS_HITS_STEPS) : 0;
    for (uint64_t i = 0; i < n; i++)
        hits->steps[(step - i) % CS_HITS_STEPS] = (cs_hits_sum_t){0};
    hits->newest = VC_MAX(hits->newest, step);
}

static void add(cs_hits_sum_t *to, const cs_hits_sum_t *from)
{
    to->asked_blocks += from->asked_blocks;
    to->hit_blocks += from->hit_blocks;
    to->asked_tokens += from->asked_tokens;
    to->hit_tokens += from->hit_tokens;
}

void cs_hits_add(cs_hits_t *hits, uint64_t now_us, const cs_hits_sum_t *sum)
{
    pthread_mutex_lock(&hits->lock);
    advance(hits, now_us);
    add(&hits->steps[hits->newest % CS_HITS_STEPS], sum);
    pthread_mutex_unlock(&hits->lock);
}

void cs_hits_read(cs_hits_t *hits, uint64_t now_us, uint32_t n_steps, cs_hits_sum_t *sum_p)
{
    *sum_p = (cs_hits_sum_t){0};
    pthread_mutex_lock(&hits->lock);
    advance(hits, now_us);
    for (uint32_t i = 0; i < VC_MIN(n_steps, CS_HITS_STEPS) && i <= hits->newest; i++)
        add(sum_p, &hits->steps[(hits->newest - i) % CS_HITS_STEPS]);
    pthread_mutex_unlock(&hits->lock);
}
