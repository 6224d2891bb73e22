/* What is leased, for the report of a drain; what was refused, and why. */
#include "store_int.h"
#include "vc/mem.h"

static const uint32_t age_limits_s[CS_LEASE_AGES] = {1, 10, 60, 600, 3600, 0};

static void add_lease(cs_lease_report_t *r, const cs_lease_t *lease, uint64_t now_us)
{
    uint64_t bytes = 0, age_us = now_us > lease->created_us ? now_us - lease->created_us : 0;
    uint32_t a = 0;
    for (uint32_t i = 0; i < lease->n_holds; i++)
        bytes += (uint64_t)lease->holds[i].pages * 4096;
    while (age_limits_s[a] != 0 && age_us >= (uint64_t)age_limits_s[a] * 1000000)
        a++;
    r->n_leases++;
    r->n_bytes += bytes;
    r->oldest_ms = VC_MAX(r->oldest_ms, age_us / 1000);
    r->ages[a].n_leases++;
    r->ages[a].n_bytes += bytes;
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
