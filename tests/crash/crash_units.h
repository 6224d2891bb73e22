/*
 * What the writer and the checker of the kill tests agree on. A unit is one registration: (chain, blocks
 * [first, n_blocks), copies). The writer announces each step of a unit in one line before it takes it, and the commit
 * after it returned OK:
 *
 *   P id chain first n_blocks what   begin and put          A id   it will be aborted
 *   T id                             commit will be called  C id   commit returned OK
 *   E                                all units are done
 */
#ifndef CRASH_UNITS_H
#define CRASH_UNITS_H

#include "cache-server/store_fixture.h"

#define UNIT_LAYERS 3u

static inline uint32_t unit_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline void unit_setup(fx_t *fx, const char *dir, uint64_t capacity_bytes)
{
    fx_init(fx, UNIT_LAYERS);
    rmdir(fx->dir);
    fx->own_dir = false;
    snprintf(fx->dir, sizeof(fx->dir), "%s", dir);
    fx->opts.capacity_bytes = capacity_bytes;
}

#endif
