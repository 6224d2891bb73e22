/* What the catalog says: every row is read, decoded and compared with the rows that it names. */
#include <stdlib.h>
#include <string.h>

#include "index.h"
#include "vc/mem.h"
#include "verify_int.h"

static const verify_keyspace_t *find_keyspace(const verify_t *v, const vc_digest_t *id)
{
    const verify_keyspace_t *all = v->keyspaces.items;
    size_t low = 0, high = v->keyspaces.n; /* the catalog hands them out in order */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = memcmp(&all[mid].id, id, sizeof(*id));
        if (order == 0)
            return &all[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void on_segment(void *arg, const cs_segment_row_t *row)
{
    verify_t *v = arg;
    (void)cs_verify_add(v, &v->segments, row, sizeof(*row));
    if (row->bytes < CS_SEGMENT_HEADER_BYTES || row->bytes % 4096 != 0 || row->number > CS_SEGMENT_MAX_NUMBER ||
        row->version == 0)
        cs_verify_found(v, CS_VERIFY_ROW, "segment %u: a size of %llu bytes and version %u are none that are written",
                        row->number, (unsigned long long)row->bytes, row->version);
}

static void on_keyspace(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks)
{
    verify_t *v = arg;
    verify_keyspace_t keyspace = {*id, ks->shape};
    (void)cs_verify_add(v, &v->keyspaces, &keyspace, sizeof(keyspace));
}

/* Where the head holds the whole chain, its tip can be computed. */
static bool tip_holds(const cs_prefix_row_t *row, const verify_keyspace_t *ks)
{
    vc_digest_t hashes[CS_HEAD_TOKENS];
    if ((uint64_t)row->n_blocks * ks->shape.block_tokens != row->n_head_tokens)
        return row->n_head_tokens < (uint64_t)row->n_blocks * ks->shape.block_tokens;
    vc_block_chain(&row->keyspace, row->head_tokens, row->n_head_tokens, ks->shape.block_tokens, hashes);
    return memcmp(&hashes[row->n_blocks - 1], &row->tip, sizeof(row->tip)) == 0;
}

static void on_prefix(void *arg, const cs_prefix_row_t *row)
{
    verify_t *v = arg;
    const verify_keyspace_t *ks = find_keyspace(v, &row->keyspace);
    (void)cs_verify_add(v, &v->prefixes, row, sizeof(*row));
    if (!ks)
        cs_verify_found(v, CS_VERIFY_REFERENCE, "prefix %u: its keyspace is not there", row->id);
    else if (row->id == 0 || row->n_blocks == 0 || row->n_blocks > CS_INDEX_MAX_BLOCKS || !tip_holds(row, ks))
        cs_verify_found(v, CS_VERIFY_ROW, "prefix %u: %u blocks and %u tokens do not make its tip", row->id,
                        row->n_blocks, row->n_head_tokens);
}

static void on_object(void *arg, const cs_object_row_t *row)
{
    verify_t *v = arg;
    (void)cs_verify_add(v, &v->objects, row, sizeof(*row));
    v->report->objects++;
    v->report->object_bytes += row->bytes;
}

static void on_pin(void *arg, const vc_object_key_t *key)
{
    verify_t *v = arg;
    (void)cs_verify_add(v, &v->pins, key, sizeof(*key));
}

/* Counts of another life of the segment say nothing; those of this one are about pages inside of it. */
static void on_uses(void *arg, const cs_uses_row_t *row)
{
    verify_t *v = arg;
    const cs_segment_row_t *segments = v->segments.items;
    for (size_t i = 0; i < v->segments.n; i++) {
        if (segments[i].number != row->number || segments[i].version != row->version || row->n == 0)
            continue;
        /* Pages rise: the first and the last stand for all. */
        if (cs_uses_at(row, 0).page == 0 || cs_uses_at(row, row->n - 1).page >= segments[i].bytes / 4096)
            cs_verify_found(v, CS_VERIFY_ROW, "uses of segment %u: pages that it does not have", row->number);
    }
}

static void on_bad(void *arg, const char *kind)
{
    verify_t *v = arg;
    cs_verify_found(v, CS_VERIFY_ROW, "catalog/%s: a row does not decode", kind);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int by_place(const void *a, const void *b)
{
    const cs_object_row_t *x = a, *y = b;
    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : memcmp(&x->key, &y->key, sizeof(x->key));
}

static void sort(verify_list_t *list, size_t bytes, int (*order)(const void *, const void *))
{
    if (list->n > 1)
        qsort(list->items, list->n, bytes, order);
}

/* All objects of a prefix lie on the one chain that leads to its tip. NULL: this one may. */
static const char *contradicts(const verify_t *v, const cs_object_row_t *row, const cs_prefix_row_t *prefix)
{
    const verify_keyspace_t *ks = find_keyspace(v, &prefix->keyspace);
    if (memcmp(&prefix->keyspace, &row->keyspace, sizeof(row->keyspace)) != 0)
        return "its prefix is of another keyspace";
    if (row->block_index >= prefix->n_blocks)
        return "its prefix ends before it";
    bool is_last = row->block_index == prefix->n_blocks - 1;
    if (is_last != (memcmp(&row->key.hash, &prefix->tip, sizeof(prefix->tip)) == 0))
        return "its prefix has another tip";
    uint64_t n_tokens = ks ? ((uint64_t)row->block_index + 1) * ks->shape.block_tokens : UINT64_MAX;
    if (n_tokens > prefix->n_head_tokens)
        return NULL;
    vc_digest_t hashes[CS_HEAD_TOKENS];
    vc_block_chain(&prefix->keyspace, prefix->head_tokens, (uint32_t)n_tokens, ks->shape.block_tokens, hashes);
    return memcmp(&hashes[row->block_index], &row->key.hash, sizeof(row->key.hash)) == 0
               ? NULL
               : "the first tokens of its prefix do not lead to it";
}

static void check_names(verify_t *v, const cs_object_row_t *row)
{
    char hex[2 * VC_DIGEST_BYTES + 1];
    const cs_prefix_row_t *prefix = NULL;
    const char *what = NULL;
    if (v->prefixes.n > 0)
        prefix = bsearch(&row->prefix, v->prefixes.items, v->prefixes.n, sizeof(*prefix), by_number);
    if (!find_keyspace(v, &row->keyspace))
        what = "its keyspace is not there";
    else if (row->prefix != 0 && !prefix)
        what = "its prefix is not there";
    else if (prefix)
        what = contradicts(v, row, prefix);
    if (!what)
        return;
    vc_hex(row->key.hash.b, VC_DIGEST_BYTES, hex);
    cs_verify_found(v, CS_VERIFY_REFERENCE, "block %.16s in segment %u at %llu: %s", hex, row->segment,
                    (unsigned long long)row->offset, what);
}

static int by_key(const void *a, const void *b) { return memcmp(a, b, sizeof(vc_object_key_t)); }

static void check_pins(verify_t *v)
{
    verify_list_t keys = {0};
    const cs_object_row_t *rows = v->objects.items;
    const vc_object_key_t *pins = v->pins.items;
    for (size_t i = 0; i < v->objects.n && v->pins.n > 0; i++)
        (void)cs_verify_add(v, &keys, &rows[i].key, sizeof(rows[i].key));
    sort(&keys, sizeof(vc_object_key_t), by_key);
    for (size_t i = 0; i < v->pins.n; i++) {
        char hex[2 * VC_DIGEST_BYTES + 1];
        if (keys.n > 0 && bsearch(&pins[i], keys.items, keys.n, sizeof(pins[i]), by_key))
            continue;
        vc_hex(pins[i].hash.b, VC_DIGEST_BYTES, hex);
        cs_verify_found(v, CS_VERIFY_STALE_ROW, "pin of block %.16s, which is not there", hex);
    }
    vc_free(keys.items);
}

void cs_verify_rows(verify_t *v, cs_catalog_t *catalog)
{
    cs_catalog_visitor_t visitor = {.object = on_object,
                                    .segment = on_segment,
                                    .keyspace = on_keyspace,
                                    .prefix = on_prefix,
                                    .bad = on_bad,
                                    .pin = on_pin,
                                    .uses = on_uses,
                                    .arg = v};
    vc_err_t err;
    v->report->generation = cs_catalog_generation(catalog);
    v->has_rows = cs_catalog_scan(catalog, &visitor, &err) == VC_OK;
    if (!v->has_rows)
        cs_verify_found(v, CS_VERIFY_CATALOG, "%s", err.msg);
    v->report->segments = v->segments.n;
    v->report->keyspaces = v->keyspaces.n;
    v->report->prefixes = v->prefixes.n;
    sort(&v->segments, sizeof(cs_segment_row_t), by_number); /* the number is the first field */
    sort(&v->prefixes, sizeof(cs_prefix_row_t), by_number);  /* likewise */
    sort(&v->objects, sizeof(cs_object_row_t), by_place);
    const cs_object_row_t *rows = v->objects.items;
    for (size_t i = 0; i < v->objects.n; i++)
        check_names(v, &rows[i]);
    check_pins(v);
    v->total_bytes = v->report->object_bytes;
}
