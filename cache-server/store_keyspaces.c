/* Keeps DIR/keyspaces in step with the names in memory: before the first object of a keyspace is committed. */
#include <string.h>

#include "keyspace_file.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

static bool is_wanted(const cs_keyspace_slot_t *slot)
{
    return slot->is_used && (slot->objects || slot->uploads || slot->is_stored);
}

/* Locked. Length of the records of all that are wanted and fit; *n_left_p do not. */
static size_t encode_all(cs_store_t *s, uint8_t *out, uint32_t *n_left_p)
{
    size_t used = 0;
    *n_left_p = 0;
    for (uint32_t i = 0; i < s->n_keyspaces; i++) {
        cs_keyspace_slot_t *slot = &s->keyspaces[i];
        uint8_t record[CS_KEYSPACE_RECORD_MAX];
        if (!is_wanted(slot))
            continue;
        size_t n = cs_keyspace_file_encode(&slot->ks, record);
        slot->is_saved = true;
        if (n > CS_KEYSPACE_FILE_MAX - used) {
            (*n_left_p)++;
            continue;
        }
        memcpy(out + used, record, n);
        used += n;
    }
    return used;
}

void cs_keyspaces_save(cs_store_t *s)
{
    vc_err_t err;
    uint32_t n_left = 0;
    bool is_due = false;
    cs_lock(s);
    for (uint32_t i = 0; i < s->n_keyspaces && !is_due; i++)
        is_due = is_wanted(&s->keyspaces[i]) && !s->keyspaces[i].is_saved;
    cs_unlock(s);
    uint8_t *records = is_due ? vc_alloc(CS_KEYSPACE_FILE_MAX) : NULL;
    if (!records)
        return;
    cs_lock(s);
    size_t bytes = encode_all(s, records, &n_left);
    cs_unlock(s);
    vc_status_t status = cs_keyspace_file_save(s->data_dir, records, bytes, &err);
    vc_free(records);
    if (n_left > 0)
        vc_log_warn("store", "too many keyspaces for the file of them, a rebuild would lose the rest n=%u", n_left);
    if (status == VC_OK)
        return;
    /* The commit goes on: the catalog has them too. The next one tries again. */
    vc_log_warn("store", "keyspaces not saved outside the catalog reason=\"%s\"", err.msg);
    cs_lock(s);
    for (uint32_t i = 0; i < s->n_keyspaces; i++)
        s->keyspaces[i].is_saved = false;
    cs_unlock(s);
}
