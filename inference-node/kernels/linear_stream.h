/*
 * One row times a run of panels: the weights are read once, from one end to the other, so what counts is that memory
 * never waits. They are asked for a fixed distance before their use, and at the end of the run what comes next is.
 * Included by linear_<isa>.h.
 */
#ifndef NODE_LINEAR_STREAM_H
#define NODE_LINEAR_STREAM_H

#include "kernels/huge.h"

/* Less, and memory is waited for; more, and they leave L1 before their use. */
enum { STREAM_BYTES = 6144 };

typedef struct {
    const uint8_t *ask, *turn, *ahead;
} stream_t;

/* ahead: what is read after [data, data + bytes); NULL where that is not known. */
static inline stream_t stream_begin(const uint8_t *data, size_t bytes, const uint8_t *ahead)
{
    return (stream_t){data + STREAM_BYTES, data + (bytes > STREAM_BYTES ? bytes - STREAM_BYTES : 0), ahead};
}

/* Before the work on [at, at + bytes): asks for as much. */
static inline __attribute__((always_inline)) void stream_ask(stream_t *s, const uint8_t *at, size_t bytes)
{
    if (at >= s->turn) {
        if (s->ahead == NULL)
            return;
        s->ask = s->ahead + (at - s->turn);
        s->turn = (const uint8_t *)UINTPTR_MAX;
    }
    for (size_t i = 0; i < bytes; i += 64)
        node_ask(s->ask + i, true);
    s->ask += bytes;
}

#endif
