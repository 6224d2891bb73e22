/*
 * Request traces: what was asked for, when. A request is a chain of blocks; equal numbers are equal blocks with equal
 * chains before them. Read once, never changed.
 */
#ifndef CS_SIM_TRACE_H
#define CS_SIM_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "vc/status.h"

#define CS_TRACE_MAX_CHAIN 65535u /* blocks in a request */
#define CS_TRACE_NONE UINT32_MAX

typedef struct cs_trace {
    uint32_t n_requests, cap_requests;
    uint32_t n_blocks; /* different ones: numbers are below */
    uint32_t *times_s; /* per request, since the first; never falling */
    size_t *starts;    /* n_requests + 1 positions in blocks */
    uint32_t *blocks;
    size_t cap_asked;
    uint32_t *parents; /* per block: the one before it in its chain, or CS_TRACE_NONE */
    uint16_t *depths;  /* per block: its position in the chain */
    uint32_t cap_blocks;
} cs_trace_t;

/*
 * Two formats, told apart by the first byte:
 *   {"timestamp": MS, "hash_ids": [N, N, ...], ...}   JSON, one request a line; N are any integers
 *   vericache-trace 1                                 compact: after this line one request a line, "MS RUN RUN ...",
 *                                                     MS since the request before; a RUN is "+K" (K blocks never seen
 *                                                     before), "A" or "A-B" (blocks A to B by order of appearance)
 * INVALID with the line's number and the cause; a block that has two different parents is no trace.
 */
vc_status_t cs_trace_parse(const char *text, size_t len, cs_trace_t **trace_p, vc_err_t *err);
vc_status_t cs_trace_load(const char *path, cs_trace_t **trace_p, vc_err_t *err);
void cs_trace_destroy(cs_trace_t *trace);

/* For makers of traces: one request; parents are checked and new numbers must come in order. NOMEM, INVALID. */
vc_status_t cs_trace_create(cs_trace_t **trace_p);
vc_status_t cs_trace_add(cs_trace_t *trace, uint32_t time_s, const uint32_t *blocks, uint32_t n, vc_err_t *err);

static inline size_t cs_trace_asked(const cs_trace_t *trace) { return trace->starts[trace->n_requests]; }

/* Made-up loads, the same for equal arguments on every machine. */
typedef enum {
    CS_LOAD_ZIPF,     /* documents asked for by rank */
    CS_LOAD_SCAN,     /* the same, between documents that are asked for once */
    CS_LOAD_LOOP,     /* documents in turn, again and again */
    CS_LOAD_SESSIONS, /* conversations that grow by turns, over a few common beginnings */
    CS_LOAD_SHIFT,    /* documents by rank, but the ranks change */
    CS_LOAD_MIXTURE,  /* all of these at once */
    CS_LOAD_N
} cs_load_t;
const char *cs_load_name(cs_load_t load);
vc_status_t cs_load_make(cs_load_t load, uint64_t seed, uint32_t n_requests, cs_trace_t **trace_p);

#endif
