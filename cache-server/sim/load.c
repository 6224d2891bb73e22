/* Made-up loads: documents (chains of 4 to 19 blocks, all different), and conversations that grow. */
#include <string.h>

#include "trace.h"
#include "vc/mem.h"

#define ZIPF_DOCS 3000u
#define HOT_DOCS 300u
#define LOOP_DOCS 250u
#define SESSIONS 300u
#define BEGINNINGS 4u
#define MAX_CHAIN 128u
#define SCAN_BLOCKS 20u
#define REQUESTS_PER_S 4u

typedef struct session {
    uint32_t n;
    uint32_t chain[MAX_CHAIN];
} session_t;

typedef struct maker {
    cs_trace_t *trace;
    uint64_t seed;
    uint32_t request, n_requests, loop_at;
    uint32_t docs[ZIPF_DOCS + LOOP_DOCS]; /* first block; CS_TRACE_NONE: not yet asked for */
    double zipf[ZIPF_DOCS];               /* cumulated weights */
    uint32_t beginnings[BEGINNINGS];      /* first block of eight */
    session_t sessions[SESSIONS];
} maker_t;

const char *cs_load_name(cs_load_t load)
{
    static const char *const names[CS_LOAD_N] = {"zipf", "scan", "loop", "sessions", "shift", "mixture"};
    return names[load];
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t draw(maker_t *m, uint32_t n) { return (uint32_t)(mix(m->seed += UINT64_C(0x9e3779b97f4a7c15)) % n); }

static vc_status_t ask(maker_t *m, const uint32_t *blocks, uint32_t n)
{
    return cs_trace_add(m->trace, m->request / REQUESTS_PER_S, blocks, n, NULL);
}

static vc_status_t ask_run(maker_t *m, uint32_t first, uint32_t n)
{
    uint32_t blocks[MAX_CHAIN];
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = first + i;
    return ask(m, blocks, n);
}

static vc_status_t ask_doc(maker_t *m, uint32_t doc)
{
    if (m->docs[doc] == CS_TRACE_NONE)
        m->docs[doc] = m->trace->n_blocks;
    return ask_run(m, m->docs[doc], 4 + (uint32_t)(mix(doc) % 16));
}

/* One of the first n documents, the r-th with weight 1 / r. */
static uint32_t by_rank(maker_t *m, uint32_t n)
{
    double at = draw(m, UINT32_MAX) / (double)UINT32_MAX * m->zipf[n - 1];
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (m->zipf[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static vc_status_t ask_session(maker_t *m)
{
    session_t *s = &m->sessions[draw(m, SESSIONS)];
    uint32_t fresh = m->trace->n_blocks, more = 1 + draw(m, 6);
    if (s->n + more > MAX_CHAIN || draw(m, 8) == 0) {
        uint32_t b = draw(m, BEGINNINGS);
        if (m->beginnings[b] == CS_TRACE_NONE) {
            m->beginnings[b] = fresh;
            fresh += 8;
        }
        for (s->n = 0; s->n < 8; s->n++)
            s->chain[s->n] = m->beginnings[b] + s->n;
    }
    if (s->n == 0) /* no common beginning */
        more += 4;
    for (uint32_t i = 0; i < more; i++)
        s->chain[s->n++] = fresh++;
    return ask(m, s->chain, s->n);
}

static vc_status_t ask_loop(maker_t *m) { return ask_doc(m, ZIPF_DOCS + m->loop_at++ % LOOP_DOCS); }
static vc_status_t ask_once(maker_t *m) { return ask_run(m, m->trace->n_blocks, SCAN_BLOCKS); }

static vc_status_t next(maker_t *m, cs_load_t load)
{
    switch (load) {
    case CS_LOAD_ZIPF: return ask_doc(m, by_rank(m, ZIPF_DOCS));
    case CS_LOAD_SCAN: return draw(m, 2) ? ask_doc(m, by_rank(m, HOT_DOCS)) : ask_once(m);
    case CS_LOAD_LOOP: return ask_loop(m);
    case CS_LOAD_SESSIONS: return ask_session(m);
    case CS_LOAD_SHIFT: {
        uint32_t phase = (uint32_t)((uint64_t)m->request * 8 / m->n_requests);
        return ask_doc(m, (by_rank(m, HOT_DOCS) + phase * HOT_DOCS) % ZIPF_DOCS);
    }
    default: return next(m, (cs_load_t)draw(m, CS_LOAD_SHIFT));
    }
}

vc_status_t cs_load_make(cs_load_t load, uint64_t seed, uint32_t n_requests, cs_trace_t **trace_p)
{
    maker_t *m = vc_calloc(1, sizeof(*m));
    if (!m || cs_trace_create(&m->trace) != VC_OK) {
        vc_free(m);
        return VC_ERR_NOMEM;
    }
    m->seed = mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    m->n_requests = n_requests;
    memset(m->docs, 0xff, sizeof(m->docs));
    memset(m->beginnings, 0xff, sizeof(m->beginnings));
    for (uint32_t i = 0; i < ZIPF_DOCS; i++)
        m->zipf[i] = (i ? m->zipf[i - 1] : 0) + 1.0 / (i + 1);
    vc_status_t status = VC_OK;
    for (; status == VC_OK && m->request < n_requests; m->request++)
        status = next(m, load);
    if (status == VC_OK)
        *trace_p = m->trace;
    else
        cs_trace_destroy(m->trace);
    vc_free(m);
    return status;
}
