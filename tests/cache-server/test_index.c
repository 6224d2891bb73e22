/* The index finds what is in it and nothing else, through growth, removals and reuse of ids, in a bounded number of
 * bytes. */
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
    cs_entry_t entry = {.hash = hash_of(i)};
    cs_entry_set_place(&entry, i, 1, 1);
    cs_entry_set_names(&entry, column, 0);
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

Test(index, an_object_costs_at_most_what_is_promised)
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
            cr_assert_leq(cs_index_memory_bytes(index), (size_t)(n + 1000) * (sizeof(cs_entry_t) + 16));
    }
    cs_index_destroy(index);
}

static uint32_t add_block(cs_index_t *index, uint32_t i, uint32_t parent, uint16_t block_index)
{
    cs_entry_t entry = entry_of(i, 0);
    vc_digest_t hash = hash_of(parent);
    memcpy(entry.link, hash.b, 8);
    entry.block_index = block_index;
    cr_assert_eq(cs_index_reserve(index, 1), VC_OK);
    return cs_index_insert(index, &entry);
}

static uint32_t n_children(const cs_index_t *index, uint32_t id)
{
    uint32_t n = 0;
    for (uint32_t child = cs_index_entry(index, id)->child; child != CS_INDEX_NONE;
         child = cs_index_entry(index, child)->link[0])
        n++;
    return n;
}

static bool names_parent(const cs_index_t *index, uint32_t id, uint32_t parent)
{
    vc_digest_t hash = hash_of(parent);
    uint8_t fp[8];
    cs_index_parent_fp(index, id, fp);
    return memcmp(fp, hash.b, sizeof(fp)) == 0;
}

Test(index, children_find_their_parent_whichever_came_first)
{
    cs_index_t *index = make();
    uint32_t ids[10];
    for (uint32_t b = 10; b-- > 5;) /* from the tip down */
        ids[b] = add_block(index, 100 + b, 99 + b, (uint16_t)b);
    for (uint32_t b = 0; b < 5; b++)
        ids[b] = add_block(index, 100 + b, 99 + b, (uint16_t)b);
    cr_assert_eq(cs_index_parent(index, ids[0]), CS_INDEX_NONE);
    for (uint32_t b = 1; b < 10; b++) {
        cr_assert_eq(cs_index_parent(index, ids[b]), ids[b - 1]);
        cr_assert(names_parent(index, ids[b], 99 + b));
    }
    cs_index_remove(index, ids[4]);
    cr_assert_eq(cs_index_parent(index, ids[5]), CS_INDEX_NONE);
    cr_assert(names_parent(index, ids[5], 104)); /* the name outlives the parent */
    ids[4] = add_block(index, 104, 103, 4);
    cr_assert_eq(cs_index_parent(index, ids[5]), ids[4]);
    cs_index_destroy(index);
}

Test(index, siblings_leave_in_any_order)
{
    cs_index_t *index = make();
    uint32_t parent = add_block(index, 1, 0, 0), ids[5];
    for (uint32_t i = 0; i < 5; i++)
        ids[i] = add_block(index, 10 + i, 1, 1);
    cr_assert_eq(n_children(index, parent), 5);
    cs_index_remove(index, ids[2]);
    cs_index_remove(index, ids[4]); /* the first */
    cs_index_remove(index, ids[0]); /* the last */
    cr_assert_eq(n_children(index, parent), 2);
    cs_index_remove(index, parent);
    cr_assert_eq(cs_index_entry(index, ids[1])->parent, CS_INDEX_NONE);
    cr_assert_eq(cs_index_entry(index, ids[3])->parent, CS_INDEX_NONE);
    cr_assert(names_parent(index, ids[1], 1));
    cs_index_destroy(index);
}

Test(index, blocks_that_name_each_other_as_parent_are_not_linked)
{
    cs_index_t *index = make();
    uint32_t a = add_block(index, 1, 2, 5), b = add_block(index, 2, 1, 6);
    cr_assert_eq(cs_index_parent(index, a), CS_INDEX_NONE);
    cr_assert_eq(cs_index_parent(index, b), a);
    cs_index_destroy(index);
}

Test(index, a_held_entry_keeps_its_number_until_the_last_hold_is_gone)
{
    cs_index_t *index = make();
    vc_digest_t hash = hash_of(1);
    uint32_t id = add_block(index, 1, 0, 0);
    cs_index_hold(index, id);
    cs_index_hold(index, id);
    cs_index_remove(index, id);
    cr_assert_eq(cs_index_find(index, 0, &hash), CS_INDEX_NONE);
    cr_assert_eq(cs_index_count(index), 0);
    cr_assert_eq(cs_index_entry(index, id)->pages, 0);
    uint32_t again = add_block(index, 1, 0, 0); /* the same key, somewhere else */
    cr_assert_neq(again, id);
    cs_index_unhold(index, id);
    cr_assert_neq(add_block(index, 2, 0, 0), id);
    cs_index_unhold(index, id);
    cr_assert_eq(add_block(index, 3, 0, 0), id);
    cr_assert_eq(cs_index_find(index, 0, &hash), again);
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
