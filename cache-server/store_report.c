/* What people ask of a store: the most used prefixes, what is leased, what was refused and why. */
#include <string.h>

#include "store_int.h"
#include "vc/mem.h"

/* ---- prefixes ---- */

typedef struct { /* the best so far, the worst of them at the root */
    const cs_store_t *store;
    bool by_bytes;
    uint32_t n, limit;
    uint32_t *heap; /* positions in the store's array */
} best_t;

/* True when a comes behind b: less of it, or the larger tip. */
static bool is_behind(const best_t *best, uint32_t a, uint32_t b)
{
    const cs_prefix_t *x = &best->store->prefixes[a], *y = &best->store->prefixes[b];
    uint64_t vx = best->by_bytes ? x->bytes : x->hits, vy = best->by_bytes ? y->bytes : y->hits;
    return vx != vy ? vx < vy : memcmp(&x->tip, &y->tip, sizeof(x->tip)) > 0;
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t t = *a;
    *a = *b;
    *b = t;
}

static void sink(best_t *best)
{
    for (uint32_t at = 0, next; (next = 2 * at + 1) < best->n; at = next) {
        if (next + 1 < best->n && is_behind(best, best->heap[next + 1], best->heap[next]))
            next++;
        if (!is_behind(best, best->heap[next], best->heap[at]))
            return;
        swap(&best->heap[at], &best->heap[next]);
    }
}

static void offer(best_t *best, uint32_t prefix)
{
    if (best->n == best->limit) {
        if (is_behind(best, best->heap[0], prefix)) {
            best->heap[0] = prefix;
            sink(best);
        }
        return;
    }
    uint32_t at = best->n++;
    best->heap[at] = prefix;
    for (; at > 0 && is_behind(best, best->heap[at], best->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(&best->heap[at], &best->heap[(at - 1) / 2]);
}

static void describe(const cs_store_t *s, const cs_prefix_t *prefix, cs_prefix_info_t *info)
{
    *info = (cs_prefix_info_t){.tip = prefix->tip,
                               .keyspace = s->keyspaces[prefix->keyspace].id,
                               .n_blocks = prefix->n_blocks,
                               .hits = prefix->hits,
                               .bytes = prefix->bytes,
                               .n_head_tokens = prefix->n_head_tokens};
    memcpy(info->head_tokens, prefix->head_tokens, sizeof(info->head_tokens));
}

/* One pass over all of them under the lock, and copies of those that are wanted only. */
vc_status_t cs_store_list_prefixes(cs_store_t *s, bool by_bytes, uint32_t limit, cs_prefix_info_t *out, uint32_t *n_p)
{
    best_t best = {.store = s, .by_bytes = by_bytes, .limit = limit, .heap = vc_calloc(limit, sizeof(uint32_t))};
    if (!best.heap)
        return VC_ERR_NOMEM;
    cs_lock(s);
    for (uint32_t i = 0; limit > 0 && i < s->n_prefixes; i++)
        offer(&best, i);
    *n_p = best.n;
    while (best.n > 0) { /* the worst comes out first */
        describe(s, &s->prefixes[best.heap[0]], &out[best.n - 1]);
        best.heap[0] = best.heap[--best.n];
        sink(&best);
    }
    cs_unlock(s);
    vc_free(best.heap);
    return VC_OK;
}

/* ---- leases ---- */

static const uint32_t age_limits_s[CS_LEASE_AGES] = {1, 10, 60, 600, 3600, 0};

static void add_lease(cs_lease_report_t *r, const cs_lease_t *lease, uint64_t now_us)
{
    uint64_t age_us = now_us > lease->created_us ? now_us - lease->created_us : 0;
    uint32_t a = 0;
    while (age_limits_s[a] != 0 && age_us >= (uint64_t)age_limits_s[a] * 1000000)
        a++;
    r->n_leases++;
    r->n_bytes += lease->bytes;
    r->oldest_ms = VC_MAX(r->oldest_ms, age_us / 1000);
    r->ages[a].n_leases++;
    r->ages[a].n_bytes += lease->bytes;
}

void cs_store_lease_report(cs_store_t *s, cs_lease_report_t *report_p)
{
    *report_p = (cs_lease_report_t){0};
    for (uint32_t a = 0; a < CS_LEASE_AGES; a++)
        report_p->ages[a].below_s = age_limits_s[a];
    cs_lock(s);
    uint64_t now_us = cs_now_us(s);
    for (uint32_t i = 0; i < s->leases.n; i++) {
        const cs_lease_t *lease = s->leases.slots[i];
        if (lease && now_us < lease->expires_us)
            add_lease(report_p, lease, now_us);
    }
    cs_unlock(s);
}

/* ---- refusals ---- */

void cs_store_count_refusal(cs_store_t *s, vc_status_t status)
{
    uint64_t *counter = &s->refusals.invalid;
    switch (status) {
    case VC_OK:
    case VC_ERR_EXISTS:
    case VC_ERR_CANCELLED: return; /* the store is closing */
    case VC_ERR_NOSPACE: counter = &s->refusals.space; break;
    case VC_ERR_READONLY: counter = &s->refusals.readonly; break;
    case VC_ERR_BUSY: counter = &s->refusals.limit; break;
    case VC_ERR_STALE:
    case VC_ERR_PERM:
    case VC_ERR_NOT_FOUND: counter = &s->refusals.expired; break;
    case VC_ERR_IO:
    case VC_ERR_NOMEM:
    case VC_ERR_INTERNAL: counter = &s->refusals.disk; break;
    default: break;
    }
    cs_lock(s);
    ++*counter;
    cs_unlock(s);
}

void cs_store_get_refusals(cs_store_t *s, cs_refusals_t *refusals_p)
{
    cs_lock(s);
    *refusals_p = s->refusals;
    cs_unlock(s);
}
