/* Pages and sequence views: layout, sharing, truncation, digest. */
#include <string.h>

#include "kv/pages.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static const node_kv_dims_t dims = {3, 2, 16};

/* A value that names its place. */
static uint16_t mark(uint32_t l, uint32_t kv, uint32_t h, uint32_t t, uint32_t d)
{
    return (uint16_t)(1 + d + 16 * (t + 64 * (h + 2 * (kv + 2 * l))));
}

static node_page_t *marked_page(uint32_t n_rows)
{
    node_page_t *page = node_page_create(&dims);
    cr_assert_not_null(page);
    uint16_t rows[3 * 2 * 2 * 16];
    for (uint32_t t = 0; t < n_rows; t++) {
        for (uint32_t l = 0, i = 0; l < 3; l++)
            for (uint32_t kv = 0; kv < 2; kv++)
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t d = 0; d < 16; d++)
                        rows[i++] = mark(l, kv, h, t, d);
        node_page_load_row(page, t, rows);
    }
    return page;
}

static uint32_t wrong_cells(node_page_t *page, uint32_t n_rows)
{
    uint32_t wrong = 0;
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 0; t < 64; t++)
                for (uint32_t d = 0; d < 16; d++) {
                    bool in = t < n_rows;
                    wrong += node_page_k(page, l, h)[d * NODE_TILE + t] != (in ? mark(l, 0, h, t, d) : 0);
                    wrong += node_page_v(page, l, h)[t * 16 + d] != (in ? mark(l, 1, h, t, d) : 0);
                }
    return wrong;
}

Test(pages, k_is_transposed_and_v_is_not)
{
    node_page_t *page = marked_page(64);
    cr_assert_eq(wrong_cells(page, 64), 0u);
    uint16_t rows[3 * 2 * 2 * 16];
    node_page_store_row(page, 63, rows);
    cr_assert_eq(rows[((2 * 2 + 1) * 2 + 1) * 16 + 5], mark(2, 1, 1, 63, 5));
    cr_assert_eq(rows[3], mark(0, 0, 0, 63, 3));
    node_page_put(page);
}

Test(pages, a_layer_part_comes_back_as_it_went)
{
    node_page_t *page = marked_page(64), *copy = node_page_create(&dims);
    uint16_t part[2 * 2 * 64 * 16];
    for (uint32_t l = 0; l < 3; l++) {
        node_page_store_layer(page, l, part);
        cr_assert_eq(part[(1 * 64 + 9) * 16 + 4], mark(l, 0, 1, 9, 4));           /* k, head 1, token 9, dim 4 */
        cr_assert_eq(part[((2 + 1) * 64 + 63) * 16 + 15], mark(l, 1, 1, 63, 15)); /* v */
        node_page_load_layer(copy, l, part);
    }
    cr_assert_eq(wrong_cells(copy, 64), 0u);
    node_page_put(page);
    node_page_put(copy);
}

Test(pages, a_copy_keeps_the_first_rows_and_zeroes_the_others)
{
    node_page_t *page = marked_page(64);
    node_page_t *copy = node_page_copy(page, 17);
    cr_assert_eq(wrong_cells(copy, 17), 0u);
    cr_assert_eq(wrong_cells(page, 64), 0u);
    node_page_put(page);
    node_page_put(copy);
    node_page_put(NULL);
}

static void kv_with_rows(node_kv_t *kv, uint32_t n)
{
    cr_assert_eq(node_kv_init(kv, &dims, NULL), VC_OK);
    for (uint32_t i = 0; i < n / 64; i++)
        cr_assert_eq(node_kv_append_page(kv, marked_page(64)), VC_OK);
    if (n % 64 != 0) {
        cr_assert_eq(node_kv_reserve(kv, n % 64), VC_OK);
        node_page_put(kv->pages[kv->n_pages - 1]);
        kv->pages[kv->n_pages - 1] = marked_page(n % 64);
        kv->n_tokens = n;
    }
}

Test(pages, reserving_copies_a_shared_last_page_and_leaves_the_shared_one)
{
    node_kv_t kv;
    kv_with_rows(&kv, 64 + 10);
    node_page_t *shared = node_page_get(kv.pages[1]), *first = node_page_get(kv.pages[0]);
    cr_assert_eq(node_kv_reserve(&kv, 100), VC_OK);
    cr_assert_eq(kv.n_pages, 3u);
    cr_assert_neq(kv.pages[1], shared);
    cr_assert_eq(kv.pages[0], first, "full pages stay shared");
    node_page_v(kv.pages[1], 0, 0)[10 * 16] = 7;
    cr_assert_eq(wrong_cells(shared, 10), 0u);
    cr_assert_eq(kv.n_tokens, 74u, "reserving adds no rows");
    node_page_t *mine = kv.pages[1];
    cr_assert_eq(node_kv_reserve(&kv, 100), VC_OK);
    cr_assert_eq(kv.pages[1], mine, "a page of our own is not copied");
    node_page_put(shared);
    node_page_put(first);
    node_kv_fini(&kv);
}

Test(pages, truncating_zeroes_dropped_rows_and_frees_pages)
{
    node_kv_t kv;
    kv_with_rows(&kv, 3 * 64 + 5);
    cr_assert_eq(node_kv_truncate(&kv, 200), VC_ERR_RANGE);
    cr_assert_eq(node_kv_truncate(&kv, 64 + 30), VC_OK);
    cr_assert_eq(kv.n_pages, 2u);
    cr_assert_eq(wrong_cells(kv.pages[1], 30), 0u);
    node_page_t *shared = node_page_get(kv.pages[1]);
    cr_assert_eq(node_kv_truncate(&kv, 64 + 3), VC_OK);
    cr_assert_eq(wrong_cells(shared, 30), 0u, "a shared page is not touched");
    cr_assert_eq(wrong_cells(kv.pages[1], 3), 0u);
    cr_assert_eq(node_kv_truncate(&kv, 64), VC_OK);
    cr_assert_eq(kv.n_pages, 1u);
    cr_assert_eq(node_kv_truncate(&kv, 0), VC_OK);
    cr_assert_eq(kv.n_pages, 0u);
    node_page_put(shared);
    node_kv_fini(&kv);
}

Test(pages, a_page_is_appended_at_a_block_boundary_only)
{
    node_kv_t kv;
    kv_with_rows(&kv, 10);
    node_page_t *page = marked_page(64);
    cr_assert_eq(node_kv_append_page(&kv, page), VC_ERR_INVALID);
    cr_assert_eq(node_kv_truncate(&kv, 0), VC_OK);
    cr_assert_eq(node_kv_reserve(&kv, 70), VC_OK); /* reserved, unwritten pages make room */
    cr_assert_eq(node_kv_append_page(&kv, page), VC_OK);
    cr_assert_eq(kv.n_pages, 1u);
    cr_assert_eq(kv.n_tokens, 64u);
    cr_assert_eq(node_kv_page_at(&kv, 0), page);
    cr_assert_null(node_kv_page_at(&kv, 1));
    node_kv_fini(&kv);
}

Test(pages, the_digest_is_that_of_the_rows_in_record_order)
{
    node_kv_t kv;
    kv_with_rows(&kv, 64 + 10);
    uint16_t *rows = vc_calloc(3 * 2 * 2 * 16 * 74, 2);
    size_t n = 0;
    for (uint32_t block = 0; block < 2; block++)
        for (uint32_t l = 0; l < 3; l++)
            for (uint32_t k = 0; k < 2; k++)
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t t = 0; t < (block == 0 ? 64u : 10u); t++)
                        for (uint32_t d = 0; d < 16; d++)
                            rows[n++] = mark(l, k, h, t, d);
    vc_digest_t got, want;
    vc_blake2b(rows, n * 2, &want);
    node_kv_digest(&kv, 74, &got);
    cr_assert_eq(memcmp(&got, &want, sizeof got), 0);
    node_kv_digest(&kv, 73, &got);
    cr_assert_neq(memcmp(&got, &want, sizeof got), 0);
    vc_free(rows);
    node_kv_fini(&kv);
}

static int bodies_destroyed;
static void count_destroy(node_body_t *body)
{
    (void)body;
    bodies_destroyed++;
}

Test(pages, pages_after_a_body_start_at_its_block)
{
    node_body_t body = {.n_tokens = 128, .dims = dims, .refs = 1, .destroy = count_destroy};
    node_kv_t kv;
    cr_assert_eq(node_kv_init(&kv, &dims, &body), VC_OK);
    cr_assert_eq(kv.n_tokens, 128u);
    cr_assert_eq(node_kv_reserve(&kv, 1), VC_OK);
    cr_assert_null(node_kv_page_at(&kv, 1));
    cr_assert_eq(node_kv_page_at(&kv, 2), kv.pages[0]);
    cr_assert_eq(node_kv_truncate(&kv, 127), VC_ERR_RANGE);
    cr_assert_eq(node_kv_truncate(&kv, 128), VC_OK);
    node_kv_fini(&kv);
    cr_assert_eq(bodies_destroyed, 0);
    node_body_put(&body);
    cr_assert_eq(bodies_destroyed, 1);
    node_body_t odd = {.n_tokens = 100, .dims = dims, .refs = 1, .destroy = count_destroy};
    cr_assert_eq(node_kv_init(&kv, &dims, &odd), VC_ERR_INVALID);
}
