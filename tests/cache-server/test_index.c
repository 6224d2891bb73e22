/* The index finds what is in it and nothing else, through growth, removals and reuse of ids, in 96 bytes an object. */
#include "support/vc_test.h"

#include <stdlib.h>
#include <string.h>

#include "index.h"

static vc_digest_t hash_of(uint32_t i)
{
    vc_digest_t hash;
    vc_blake2b(&i, sizeof(i), &hash);
    return hash;
}

static cs_entry_t entry_of(uint32_t i, uint16_t column)
{
    cs_entry_t entry = {.hash = hash_of(i), .segment = i, .pages = 1, .column = column};
    return entry;
}

static cs_index_t *make(void)
{
    cs_index_t *index;
    cr_assert_eq(cs_index_create(&index), VC_OK);
    return index;
}

Test(index, columns_keep_equal_hashes_apart)
{
    cs_index_t *index = make();
    cr_assert_eq(cs_index_reserve(index, 2), VC_OK);
    cs_entry_t a = entry_of(1, 0), b = entry_of(1, 1);
    uint32_t ia = cs_index_insert(index, &a), ib = cs_index_insert(index, &b);
    vc_digest_t hash = hash_of(1);
    cr_assert_neq(ia, ib);
    cr_assert_eq(cs_index_find(index, 0, &hash), ia);
    cr_assert_eq(cs_index_find(index, 1, &hash), ib);
    cr_assert_eq(cs_index_find(index, 2, &hash), CS_INDEX_NONE);
    cs_index_remove(index, ia);
    cr_assert_eq(cs_index_find(index, 0, &hash), CS_INDEX_NONE);
    cr_assert_eq(cs_index_find(index, 1, &hash), ib);
    cs_index_destroy(index);
}

/* Against a plain array as the model; a fixed seed makes it repeatable. */
Test(index, random_inserts_and_removals_agree_with_a_model)
{
    enum { N = 6000 };
    static uint32_t id_of[N];
    cs_index_t *index = make();
    uint32_t state = 12345, count = 0;
    memset(id_of, 0xff, sizeof(id_of));
    for (int step = 0; step < 60000; step++) {
        state = state * 1664525u + 1013904223u;
        uint32_t i = (state >> 8) % N;
        if (id_of[i] == CS_INDEX_NONE) {
            cs_entry_t entry = entry_of(i, 3);
            cr_assert_eq(cs_index_reserve(index, 1), VC_OK);
            id_of[i] = cs_index_insert(index, &entry);
            count++;
        } else {
            cs_index_remove(index, id_of[i]);
            id_of[i] = CS_INDEX_NONE;
            count--;
        }
    }
    cr_assert_eq(cs_index_count(index), count);
    for (uint32_t i = 0; i < N; i++) {
        vc_digest_t hash = hash_of(i);
        cr_assert_eq(cs_index_find(index, 3, &hash), id_of[i]);
    }
    cs_index_clear(index);
    cr_assert_eq(cs_index_count(index), 0);
    vc_digest_t hash = hash_of(1);
    cr_assert_eq(cs_index_find(index, 3, &hash), CS_INDEX_NONE);
    cs_index_destroy(index);
}

Test(index, an_object_costs_at_most_96_bytes)
{
    cs_index_t *index = make();
    /* Right after the table doubled is the worst moment. */
    for (uint32_t n = 0; n < 200000; n += 1000) {
        cr_assert_eq(cs_index_reserve(index, 1000), VC_OK);
        for (uint32_t i = 0; i < 1000; i++) {
            cs_entry_t entry = entry_of(n + i, 0);
            cs_index_insert(index, &entry);
        }
        if (n >= 20000)
            cr_assert_leq(cs_index_memory_bytes(index), (size_t)(n + 1000) * 96);
    }
    cs_index_destroy(index);
}

static uint32_t add_block(cs_index_t *index, uint32_t i, uint32_t parent, uint16_t block_index)
{
    cs_entry_t entry = entry_of(i, 0);
    vc_digest_t hash = hash_of(parent);
    memcpy(entry.parent_fp, hash.b, 8);
    entry.block_index = block_index;
    cr_assert_eq(cs_index_reserve(index, 1), VC_OK);
    return cs_index_insert(index, &entry);
}

Test(index, blocks_above_a_hole_are_orphans)
{
    cs_index_t *index = make();
    uint32_t ids[10];
    uint8_t orphan[16];
    /* Inserted from the tip down, so that the walk goes up through blocks it has not seen. */
    for (uint32_t b = 10; b-- > 0;)
        ids[b] = add_block(index, 100 + b, 99 + b, (uint16_t)b);
    cs_index_mark_orphans(index, orphan);
    for (int b = 0; b < 10; b++)
        cr_assert_eq(orphan[ids[b]], 0);
    cs_index_remove(index, ids[4]);
    cs_index_mark_orphans(index, orphan);
    for (int b = 0; b < 10; b++) {
        if (b != 4)
            cr_assert_eq(orphan[ids[b]], b > 4, "block %d", b);
    }
    cs_index_destroy(index);
}

Test(index, a_loop_of_parents_ends_and_counts_as_a_hole)
{
    cs_index_t *index = make();
    uint8_t orphan[4];
    uint32_t a = add_block(index, 1, 2, 5), b = add_block(index, 2, 1, 6);
    cs_index_mark_orphans(index, orphan);
    cr_assert_eq(orphan[a], 1);
    cr_assert_eq(orphan[b], 1);
    cs_index_destroy(index);
}

Test(index, lists_of_a_segment_lose_no_member)
{
    cs_index_t *index = make();
    uint32_t head = CS_INDEX_NONE, ids[5];
    for (uint32_t i = 0; i < 5; i++) {
        ids[i] = add_block(index, i, 0, 0);
        cs_index_link(index, ids[i], &head);
    }
    cs_index_unlink(index, ids[2], &head);
    cs_index_unlink(index, ids[4], &head); /* the first */
    cs_index_unlink(index, ids[0], &head); /* the last */
    cr_assert_eq(head, ids[3]);
    cr_assert_eq(cs_index_entry(index, head)->seg_next, ids[1]);
    cr_assert_eq(cs_index_entry(index, ids[1])->seg_next, CS_INDEX_NONE);
    cs_index_unlink(index, ids[3], &head);
    cs_index_unlink(index, ids[1], &head);
    cr_assert_eq(head, CS_INDEX_NONE);
    cs_index_destroy(index);
    cs_index_destroy(NULL);
}
