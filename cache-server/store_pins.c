/*
 * Pins that last, and deletes: chosen under the lock, in parts, so that nobody waits for a long chain; written by the
 * commit thread with its next batch, which the caller waits for.
 */
#include <string.h>

#include "store_int.h"
#include "vc/mem.h"

#define STEP_BLOCKS 1024u /* looked up under one hold of the lock */

/* ---- state (locked) ---- */

void cs_pin_set(cs_store_t *s, uint32_t id, bool is_kept)
{
    cs_entry_t *entry = cs_index_entry(s->index, id);
    if (entry->is_kept == is_kept)
        return;
    uint64_t bytes = (uint64_t)entry->pages * 4096;
    entry->is_kept = is_kept;
    s->stats.kept_objects += is_kept ? 1 : -1ull;
    s->stats.kept_bytes += is_kept ? bytes : -bytes;
}

void cs_pin_queue(cs_store_t *s, const vc_object_key_t *key, bool is_kept)
{
    if (s->n_pin_ops == s->cap_pin_ops) {
        uint32_t cap = s->cap_pin_ops ? s->cap_pin_ops * 2 : 64;
        cs_pin_op_t *ops = vc_realloc(s->pin_ops, cap, sizeof(*ops));
        if (!ops)
            return; /* reserved for by callers to whom it matters; a stale row goes at the next start */
        s->pin_ops = ops;
        s->cap_pin_ops = cap;
    }
    s->pin_ops[s->n_pin_ops++] = (cs_pin_op_t){*key, is_kept};
}

uint32_t cs_pins_stage(cs_store_t *s)
{
    uint32_t now_s = (uint32_t)(vc_clock_wall_us(s->opts.clock) / 1000000u);
    for (uint32_t i = 0; i < s->n_pin_ops; i++) {
        if (s->pin_ops[i].is_pinned)
            cs_catalog_put_pin(s->catalog, &s->pin_ops[i].key, now_s);
        else
            cs_catalog_delete_pin(s->catalog, &s->pin_ops[i].key);
    }
    return s->n_pin_ops;
}

void cs_pins_forget(cs_store_t *s, uint32_t n)
{
    if (n > 0)
        memmove(s->pin_ops, s->pin_ops + n, (s->n_pin_ops - n) * sizeof(*s->pin_ops));
    s->n_pin_ops -= n;
}

void cs_rows_settle(cs_store_t *s, uint64_t ticket, bool is_durable)
{
    if (is_durable)
        s->rows_durable = VC_MAX(s->rows_durable, ticket);
    else
        s->rows_failed++;
    pthread_cond_broadcast(&s->rows_written);
}

/* Waits until everything queued up to now is in the catalog. */
static vc_status_t wait_durable(cs_store_t *s, vc_err_t *err)
{
    uint64_t ticket = ++s->rows_ticket, failed = s->rows_failed;
    s->drops_due = true;
    pthread_cond_signal(&s->commit_work);
    while (s->rows_durable < ticket && s->rows_failed == failed && !s->stopping)
        pthread_cond_wait(&s->rows_written, &s->mu);
    if (s->rows_durable >= ticket)
        return VC_OK;
    vc_status_t status = cs_writable(s, err);
    return status != VC_OK ? status : vc_err_set(err, VC_ERR_IO, "the catalog of %s could not be written", s->data_dir);
}

/* ---- which objects ---- */

typedef struct chosen { /* their entries are held, so that the numbers stay valid between two holds of the lock */
    uint32_t *ids;
    uint32_t n, cap;
} chosen_t;

static bool choose(cs_store_t *s, chosen_t *chosen, uint32_t id)
{
    if (chosen->n == chosen->cap) {
        uint32_t cap = chosen->cap ? chosen->cap * 2 : 256;
        uint32_t *ids = vc_realloc(chosen->ids, cap, sizeof(*ids));
        if (!ids)
            return false;
        chosen->ids = ids;
        chosen->cap = cap;
    }
    cs_index_hold(s->index, id);
    chosen->ids[chosen->n++] = id;
    return true;
}

static void let_go(cs_store_t *s, chosen_t *chosen)
{
    for (uint32_t i = 0; i < chosen->n; i++)
        cs_index_unhold(s->index, chosen->ids[i]);
    vc_free(chosen->ids);
}

static bool is_in(const cs_store_t *s, uint32_t id, const vc_digest_t *keyspace)
{
    return id != CS_INDEX_NONE &&
           memcmp(&s->keyspaces[cs_index_entry(s->index, id)->keyspace].id, keyspace, sizeof(*keyspace)) == 0;
}

static bool belongs(const cs_store_t *s, uint32_t id, uint16_t column, uint32_t prefix)
{
    const cs_entry_t *entry = cs_index_entry(s->index, id);
    return entry->pages > 0 && entry->column == column && entry->prefix == prefix;
}

/* The deepest block left of the chain that ends in the tip: chains lose their last blocks first, and what is listed
 * under its tip can be named by it as long as anything of it is there. Locked on entry and exit, not between two steps.
 */
static uint32_t deepest(cs_store_t *s, const cs_chain_ref_t *ref, uint16_t column)
{
    uint32_t found = cs_index_find(s->index, column, ref->tip), prefix = 0;
    for (uint32_t i = 0; i < s->n_prefixes && found == CS_INDEX_NONE && prefix == 0; i++)
        prefix = memcmp(&s->prefixes[i].tip, ref->tip, sizeof(*ref->tip)) == 0 ? s->prefixes[i].id : 0;
    for (uint32_t id = 0; prefix != 0 && id < cs_index_limit(s->index); id++) {
        if (belongs(s, id, column, prefix) &&
            (found == CS_INDEX_NONE || !belongs(s, found, column, prefix) ||
             cs_index_entry(s->index, id)->block_index > cs_index_entry(s->index, found)->block_index))
            found = id;
        if (id % STEP_BLOCKS == STEP_BLOCKS - 1) {
            cs_unlock(s);
            cs_lock(s);
        }
    }
    return found == CS_INDEX_NONE || prefix == 0 || belongs(s, found, column, prefix) ? found : CS_INDEX_NONE;
}

/* Locked on entry and exit, not between two steps. */
static vc_status_t choose_in_column(cs_store_t *s, const cs_chain_ref_t *ref, uint16_t column, chosen_t *chosen)
{
    for (uint32_t b = 0; !ref->tip && b < ref->n_hashes; b++) {
        uint32_t id = cs_index_find(s->index, column, &ref->hashes[b]);
        if (is_in(s, id, &ref->keyspace) && !choose(s, chosen, id))
            return VC_ERR_NOMEM;
        if (b % STEP_BLOCKS == STEP_BLOCKS - 1) {
            cs_unlock(s);
            cs_lock(s);
        }
    }
    for (uint32_t id = ref->tip ? deepest(s, ref, column) : CS_INDEX_NONE; is_in(s, id, &ref->keyspace);
         id = cs_index_parent(s->index, id)) {
        if (!choose(s, chosen, id))
            return VC_ERR_NOMEM;
    }
    return VC_OK;
}

static vc_status_t choose_all(cs_store_t *s, const cs_chain_ref_t *ref, chosen_t *chosen)
{
    vc_status_t status = VC_OK;
    for (uint32_t c = 0; c < s->n_columns && status == VC_OK; c++) {
        const cs_column_slot_t *column = &s->columns[c];
        bool is_wanted = column->is_used && column->objects > 0 &&
                         (!ref->fid || (column->fid.fidelity == ref->fid->fidelity &&
                                        memcmp(&column->fid.spec, &ref->fid->spec, sizeof(ref->fid->spec)) == 0));
        if (is_wanted)
            status = choose_in_column(s, ref, (uint16_t)c, chosen);
    }
    return status;
}

static vc_status_t begin(cs_store_t *s, const cs_chain_ref_t *ref, chosen_t *chosen, vc_err_t *err)
{
    if (ref->n_hashes > CS_INDEX_MAX_BLOCKS)
        return vc_err_set(err, VC_ERR_RANGE, "a chain has at most %u blocks, not %u", CS_INDEX_MAX_BLOCKS,
                          ref->n_hashes);
    vc_status_t status = s->closing ? vc_err_set(err, VC_ERR_CANCELLED, "the store is closing") : cs_writable(s, err);
    if (status == VC_OK && choose_all(s, ref, chosen) != VC_OK)
        status = vc_err_set(err, VC_ERR_NOMEM, "no memory for the blocks of a chain");
    if (status == VC_OK && chosen->n == 0)
        status = vc_err_set(err, VC_ERR_NOT_FOUND, "nothing of this chain is stored");
    return status;
}

/* ---- pins ---- */

/* Sets what is not so yet; the others leave the list, so that an undo touches only what was done. */
static void set_all(cs_store_t *s, chosen_t *chosen, bool is_kept, cs_chain_sum_t *sum)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < chosen->n; i++) {
        uint32_t id = chosen->ids[i];
        const cs_entry_t *entry = cs_index_entry(s->index, id);
        vc_object_key_t key;
        bool is_there = entry->pages > 0;
        sum->n_objects += is_there;
        sum->n_bytes += (uint64_t)entry->pages * 4096;
        if (!is_there || entry->is_kept == is_kept) {
            cs_index_unhold(s->index, id);
            continue;
        }
        cs_entry_key(s, entry, &key);
        cs_pin_set(s, id, is_kept);
        cs_pin_queue(s, &key, is_kept);
        chosen->ids[n++] = id;
    }
    chosen->n = n;
}

static vc_status_t check_limit(const cs_store_t *s, const chosen_t *chosen, vc_err_t *err)
{
    uint64_t bytes = s->stats.kept_bytes, limit = cs_segments_budget(s) / 2;
    for (uint32_t i = 0; i < chosen->n; i++) {
        const cs_entry_t *entry = cs_index_entry(s->index, chosen->ids[i]);
        bytes += entry->is_kept ? 0 : (uint64_t)entry->pages * 4096;
    }
    if (bytes <= limit)
        return VC_OK;
    return vc_err_set(err, VC_ERR_NOSPACE, "pinned objects would take %llu bytes, half of the room is %llu",
                      (unsigned long long)bytes, (unsigned long long)limit);
}

static bool reserve_ops(cs_store_t *s, uint32_t n)
{
    while (s->cap_pin_ops - s->n_pin_ops < n) {
        uint32_t cap = VC_MAX(64u, s->cap_pin_ops * 2);
        cs_pin_op_t *ops = vc_realloc(s->pin_ops, cap, sizeof(*ops));
        if (!ops)
            return false;
        s->pin_ops = ops;
        s->cap_pin_ops = cap;
    }
    return true;
}

static vc_status_t pin_or_unpin(cs_store_t *s, const cs_chain_ref_t *ref, bool is_kept, cs_chain_sum_t *sum_p,
                                vc_err_t *err)
{
    chosen_t chosen = {0};
    cs_chain_sum_t sum = {0};
    cs_lock(s);
    s->ops_running++; /* the store waits for us before it ends */
    vc_status_t status = begin(s, ref, &chosen, err);
    if (status == VC_OK && is_kept)
        status = check_limit(s, &chosen, err);
    if (status == VC_OK && !reserve_ops(s, 2 * chosen.n)) /* the undo, too */
        status = vc_err_set(err, VC_ERR_NOMEM, "no memory to pin a chain");
    if (status == VC_OK) {
        set_all(s, &chosen, is_kept, &sum);
        status = chosen.n > 0 ? wait_durable(s, err) : VC_OK;
        cs_chain_sum_t unused = {0};
        if (status != VC_OK)
            set_all(s, &chosen, !is_kept, &unused);
    }
    let_go(s, &chosen);
    if (--s->ops_running == 0)
        pthread_cond_broadcast(&s->idle);
    cs_unlock(s);
    if (status == VC_OK)
        *sum_p = sum;
    return status;
}

vc_status_t cs_store_pin_prefix(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    return pin_or_unpin(s, ref, true, sum_p, err);
}

vc_status_t cs_store_unpin_prefix(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    return pin_or_unpin(s, ref, false, sum_p, err);
}

/* ---- deletes ---- */

vc_status_t cs_store_delete(cs_store_t *s, const cs_chain_ref_t *ref, cs_chain_sum_t *sum_p, vc_err_t *err)
{
    chosen_t chosen = {0};
    cs_chain_sum_t sum = {0};
    cs_lock(s);
    s->ops_running++;
    vc_status_t status = begin(s, ref, &chosen, err);
    for (uint32_t i = 0; status == VC_OK && i < chosen.n; i++) {
        const cs_entry_t *entry = cs_index_entry(s->index, chosen.ids[i]);
        vc_object_key_t key;
        if (entry->pages == 0)
            continue;
        sum.n_objects++;
        sum.n_bytes += (uint64_t)entry->pages * 4096;
        cs_entry_key(s, entry, &key);
        cs_drop_later(s, &key);
        cs_entry_drop(s, chosen.ids[i], CS_MISS_ABSENT);
    }
    /* Whatever comes of it, they are not found any more; after a failure they may be back at the next start. Where
     * nothing was found it may have been evicted just now, with its row still there: that is waited for, too. */
    if (status == VC_OK || (status == VC_ERR_NOT_FOUND && s->n_drops > 0)) {
        vc_status_t durable = wait_durable(s, err);
        status = durable == VC_OK ? status : durable;
    }
    let_go(s, &chosen);
    if (--s->ops_running == 0)
        pthread_cond_broadcast(&s->idle);
    cs_unlock(s);
    if (status == VC_OK)
        *sum_p = sum;
    return status;
}
