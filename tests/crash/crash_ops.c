/* What writers and readers do, one operation at a time, and what they tell the model about it. */
#include "crash.h"

#define LEASES_KEPT 2u /* per thread and life: a lease keeps what it names from eviction */

static uint32_t below(crash_worker_t *w, uint32_t n) { return crash_random(&w->state) % n; }

/* ---- what the model is told ---- */

static void flag(crash_model_t *model, const crash_unit_t *unit, uint8_t set, uint8_t clear)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = unit->first; (unit->what & (1u << f)) && b < unit->n_blocks; b++) {
            _Atomic uint8_t *flags = &model->objects[f][unit->chain][b];
            atomic_fetch_or(flags, set);
            atomic_fetch_and(flags, (uint8_t)~clear);
        }
    }
    model->touched[unit->chain] = model->life;
}

/* Without an injected failure only a tight store may refuse, and only for room. */
static bool is_fine(crash_worker_t *w, vc_status_t status, const char *what)
{
    if (status == VC_OK)
        return true;
    bool is_refusal = status == VC_ERR_NOSPACE || status == VC_ERR_BUSY;
    if (w->model->tolerates_errors || (w->scenario->is_tight && is_refusal))
        w->model->counts.refused++;
    else
        crash_fail(w->model, "%s: %s", what, vc_status_name(status));
    return false;
}

/* ---- writers ---- */

typedef uint8_t flags_t[2][CRASH_BLOCKS];

static void copy_flags(const crash_model_t *model, uint32_t chain, flags_t flags)
{
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < CRASH_BLOCKS; b++)
            flags[f][b] = model->objects[f][chain][b];
    }
}

/* What was acknowledged before begin is found by it; what it finds had been announced when it returned. */
static void check_missing(crash_worker_t *w, const crash_unit_t *unit, flags_t before, const uint8_t *missing)
{
    uint32_t n = unit->n_blocks - unit->first;
    for (uint32_t f = 0; f < 2; f++) {
        uint32_t row = unit->what == FX_BOTH ? f : 0;
        for (uint32_t b = unit->first; (unit->what & (1u << f)) && b < unit->n_blocks; b++) {
            uint8_t after = w->model->objects[f][unit->chain][b];
            bool is_missing = missing[row * n + b - unit->first];
            if (!is_missing && !(after & CRASH_MAY))
                crash_fail(w->model, "begin finds chain %u block %u copy %u, which was never committed", unit->chain, b,
                           f);
            if (is_missing && (before[f][b] & CRASH_MUST) && !w->scenario->is_tight)
                crash_fail(w->model, "begin misses chain %u block %u copy %u, which was acknowledged", unit->chain, b,
                           f);
        }
    }
}

static void commit_unit(crash_worker_t *w, crash_unit_t *unit, const cs_upload_info_t *info)
{
    flag(w->model, unit, CRASH_MAY, 0);
    unit->step = CRASH_COMMITTING;
    vc_status_t status = fx_commit(w->fx, info);
    if (is_fine(w, status, "commit")) {
        flag(w->model, unit, CRASH_MUST, 0);
        w->model->counts.commits++;
    } else {
        (void)cs_store_abort(w->fx->store, info->upload_id, &info->token);
    }
    w->model->uploads[w->number].is_set = false;
}

static void end_unit(crash_worker_t *w, const cs_upload_info_t *info)
{
    uint32_t choice = below(w, 12);
    if (choice == 0) {
        w->model->uploads[w->number].is_set = false;
        (void)is_fine(w, cs_store_abort(w->fx->store, info->upload_id, &info->token), "abort");
        w->model->counts.aborts++;
    } else if (choice == 1) { /* its client is gone; nobody ends it but the next start */
        w->model->counts.abandoned++;
    } else {
        commit_unit(w, &w->model->units[w->number], info);
    }
}

static void run_unit(crash_worker_t *w, uint32_t chain, uint32_t first, uint32_t n_blocks, uint32_t what)
{
    cs_upload_info_t info;
    uint8_t missing[2 * CRASH_BLOCKS];
    flags_t before;
    crash_unit_t *unit = &w->model->units[w->number];
    crash_ticket_t *ticket = &w->model->uploads[w->number];
    unit->chain = chain;
    unit->first = first;
    unit->n_blocks = n_blocks;
    unit->what = what;
    unit->step = CRASH_PUTTING;
    copy_flags(w->model, chain, before);
    vc_status_t status = fx_begin(w->fx, crash_seed(chain), first, n_blocks, what, &info, missing);
    if (!is_fine(w, status, "begin")) {
        unit->step = CRASH_IDLE;
        return;
    }
    ticket->id = info.upload_id;
    ticket->token = info.token;
    ticket->is_set = true;
    check_missing(w, unit, before, missing);
    w->model->bytes_written += (uint64_t)info.n_missing * (w->scenario->n_layer + 1) * 4096;
    flag(w->model, unit, CRASH_WRITTEN, 0);
    status = fx_put_missing(w->fx, &info, crash_seed(chain), first, n_blocks, what, missing);
    if (is_fine(w, status, "put")) {
        end_unit(w, &info);
    } else {
        ticket->is_set = false;
        (void)cs_store_abort(w->fx->store, info.upload_id, &info.token);
    }
    unit->step = CRASH_IDLE;
}

/* A new chain, one of ours again, or one that all writers register at the same time. */
void crash_write_something(crash_worker_t *w)
{
    uint32_t chain, kind = below(w, 10), *next = &w->model->next_chain[w->number];
    uint32_t first = below(w, 3) == 0 ? below(w, CRASH_BLOCKS) : 0;
    uint32_t n_blocks = first + 1 + below(w, CRASH_BLOCKS - first);
    if (kind < 2) {
        chain = below(w, CRASH_SHARED);
    } else if (kind < 5) {
        chain = CRASH_SHARED + below(w, *next - CRASH_SHARED + 1);
        chain = chain - chain % CRASH_WRITERS + w->number;
        chain = chain >= CRASH_SHARED && chain < CRASH_CHAINS ? chain : *next;
    } else {
        chain = *next;
        *next += CRASH_WRITERS;
        if (*next >= CRASH_CHAINS)
            *next = CRASH_SHARED + (w->number + CRASH_WRITERS - CRASH_SHARED % CRASH_WRITERS) % CRASH_WRITERS;
    }
    run_unit(w, chain, first, n_blocks, 1 + below(w, 3));
}

/* ---- readers ---- */

/* A delete has come between then and now, or may have: one that began before then and had not ended takes its effect at
 * any time after. n_ended: how many had ended then. */
static bool was_deleted_since(const crash_model_t *model, uint32_t chain, uint32_t n_ended)
{
    return model->deletes_begun[chain] != n_ended;
}

static void read_leased(crash_worker_t *w, uint32_t chain, uint32_t f, uint32_t b, const cs_lookup_result_t *r,
                        uint32_t n_ended)
{
    cs_pin_t pin;
    vc_status_t status =
        cs_store_pin_leased(w->fx->store, cs_store_boot_id(w->fx->store), r->lease_id, &r->token, f, b, &pin);
    if (status != VC_OK) {
        bool is_deleted = status == VC_ERR_NOT_FOUND && was_deleted_since(w->model, chain, n_ended);
        if (!w->model->tolerates_errors && !is_deleted)
            crash_fail(w->model, "chain %u block %u copy %u was leased and cannot be pinned: %s", chain, b, f,
                       vc_status_name(status));
        return;
    }
    cs_buf_t *buf = cs_bufpool_wait(w->fx->pool, 60000);
    memset(buf->data, 0xee, buf->cap);
    status = fx_read_pin(w->fx, &pin, buf);
    if (status == VC_OK) {
        uint8_t *want = vc_alloc_aligned(4096, buf->cap);
        uint32_t bytes = fx_record(w->fx, crash_seed(chain), b, f, want, buf->cap);
        if (bytes != pin.bytes || memcmp(want, buf->data, bytes) != 0)
            crash_fail(w->model, "chain %u block %u copy %u was read as good and is not", chain, b, f);
        vc_free(want);
        w->model->counts.reads++;
    } else if (!w->model->tolerates_errors) {
        crash_fail(w->model, "chain %u block %u copy %u was leased and reads as %s", chain, b, f,
                   vc_status_name(status));
    }
    cs_bufpool_put(w->fx->pool, buf);
    cs_store_unpin(w->fx->store, &pin);
}

/* The flags are looked at after the lookup: who may be visible then was announced before it became so. */
void crash_read_something(crash_worker_t *w)
{
    cs_lookup_result_t r;
    uint32_t most = 0;
    for (uint32_t i = 0; i < CRASH_WRITERS; i++)
        most = VC_MAX(most, w->model->next_chain[i]);
    uint32_t chain = below(w, VC_MIN(most + 1, CRASH_CHAINS));
    uint32_t n_ended = w->model->deletes_ended[chain];
    vc_status_t status = cs_store_lookup(w->fx->store, &w->fx->ks_id, w->model->hashes[chain], CRASH_BLOCKS,
                                         w->fx->fids, 2, true, &r, NULL);
    if (!is_fine(w, status, "lookup"))
        return;
    w->model->counts.lookups++;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < r.n_blocks[f]; b++) {
            if (!(w->model->objects[f][chain][b] & CRASH_MAY) && !was_deleted_since(w->model, chain, n_ended))
                crash_fail(w->model, "a lookup finds chain %u block %u copy %u, which was never committed", chain, b,
                           f);
            read_leased(w, chain, f, b, &r, n_ended);
        }
    }
    if (r.lease_id == 0)
        return;
    if (w->n_leases < LEASES_KEPT && below(w, 4) == 0) {
        crash_ticket_t *ticket = &w->model->leases[w->number];
        ticket->is_set = false;
        ticket->boot_id = cs_store_boot_id(w->fx->store);
        ticket->id = r.lease_id;
        ticket->token = r.token;
        ticket->is_set = true;
        w->n_leases++;
        return;
    }
    (void)is_fine(w, cs_store_lease_release(w->fx->store, cs_store_boot_id(w->fx->store), r.lease_id, &r.token),
                  "release");
}

/* ---- deletes and lasting pins, of a writer's own chains ---- */

static uint32_t own_chain(crash_worker_t *w)
{
    uint32_t n = (w->model->next_chain[w->number] - CRASH_SHARED) / CRASH_WRITERS + 1;
    uint32_t first = CRASH_SHARED + (w->number + CRASH_WRITERS - CRASH_SHARED % CRASH_WRITERS) % CRASH_WRITERS;
    uint32_t chain = first + below(w, n) * CRASH_WRITERS;
    return chain < CRASH_CHAINS ? chain : first;
}

static void delete_chain(crash_worker_t *w, const crash_unit_t *all, const cs_chain_ref_t *ref)
{
    cs_chain_sum_t sum;
    w->model->deletes_begun[all->chain]++;
    flag(w->model, all, 0, CRASH_MUST | CRASH_PINNED);
    vc_status_t status = cs_store_delete(w->fx->store, ref, &sum, NULL);
    if (status == VC_ERR_NOT_FOUND || is_fine(w, status, "delete")) {
        flag(w->model, all, 0, CRASH_MAY);
        w->model->counts.deletes++;
    }
    w->model->deletes_ended[all->chain]++;
}

static void pin_chain(crash_worker_t *w, const crash_unit_t *all, const cs_chain_ref_t *ref)
{
    cs_chain_sum_t sum;
    vc_status_t status = cs_store_pin_prefix(w->fx->store, ref, &sum, NULL);
    if (status == VC_ERR_NOT_FOUND || status == VC_ERR_NOSPACE || !is_fine(w, status, "pin"))
        return;
    /* Whatever of it is there now was there then, since nobody else writes this chain: it is pinned and stays. */
    uint32_t n = 0;
    for (uint32_t f = 0; f < 2; f++) {
        for (uint32_t b = 0; b < CRASH_BLOCKS; b++) {
            if (crash_is_visible(w->model, w->fx, all->chain, b, f)) {
                atomic_fetch_or(&w->model->objects[f][all->chain][b], CRASH_MUST | CRASH_PINNED);
                n++;
            }
        }
    }
    if (n != sum.n_objects && !w->model->tolerates_errors)
        crash_fail(w->model, "of chain %u %u objects were pinned and %u are there", all->chain, sum.n_objects, n);
    w->model->counts.pins++;
}

static void unpin_chain(crash_worker_t *w, const crash_unit_t *all, const cs_chain_ref_t *ref)
{
    cs_chain_sum_t sum;
    flag(w->model, all, 0, CRASH_PINNED);
    vc_status_t status = cs_store_unpin_prefix(w->fx->store, ref, &sum, NULL);
    if (status != VC_ERR_NOT_FOUND)
        (void)is_fine(w, status, "unpin");
}

void crash_rule_something(crash_worker_t *w)
{
    uint32_t kind = below(w, 4);
    crash_unit_t all = {.chain = own_chain(w), .first = 0, .n_blocks = CRASH_BLOCKS, .what = FX_BOTH};
    cs_chain_ref_t ref = {.keyspace = w->fx->ks_id, .hashes = w->model->hashes[all.chain], .n_hashes = CRASH_BLOCKS};
    if (kind == 0)
        pin_chain(w, &all, &ref);
    else if (kind == 1)
        unpin_chain(w, &all, &ref);
    else
        delete_chain(w, &all, &ref);
}
