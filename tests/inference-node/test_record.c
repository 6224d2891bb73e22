/* Full records: a page to the stored format and back, and what is refused of one. */
#include "codec_fixture.h"

Test(record, a_full_record_is_the_page_and_back)
{
    fx_t f;
    fx_open(&f, fx_model(3, 6, 3, 64), 3, 64, 86);
    size_t cap = vc_kvrec_full_bytes(&f.model.keyspace.shape);
    uint8_t *buf = vc_alloc_aligned(4096, cap);
    for (uint32_t b = 0; b < 3; b++) {
        size_t bytes;
        vc_err_t err = {0};
        cr_assert_eq(node_full_record(&f.model, &f.kv, f.tokens, b, buf, cap, &bytes, &err), VC_OK, "%s", err.msg);
        cr_assert_eq(bytes, cap);
        node_page_t *page;
        cr_assert_eq(node_page_from_record(&f.model, buf, bytes, &page, &err), VC_OK, "%s", err.msg);
        for (uint32_t i = 0; i < 9; i++) {
            node_page_t *want = node_kv_page_at(&f.kv, b);
            cr_assert(memcmp(node_page_k(page, i / 3, i % 3), node_page_k(want, i / 3, i % 3), 64 * 64 * 2) == 0);
            cr_assert(memcmp(node_page_v(page, i / 3, i % 3), node_page_v(want, i / 3, i % 3), 64 * 64 * 2) == 0);
        }
        node_page_put(page);
    }
    vc_free(buf);
    fx_close(&f);
}

Test(record, a_page_of_another_model_numerics_or_fidelity_is_refused)
{
    fx_t f;
    fx_open(&f, fx_model(2, 2, 2, 32), 2, 64, 87);
    size_t cap = vc_kvrec_full_bytes(&f.model.keyspace.shape), bytes;
    uint8_t *buf = vc_alloc_aligned(4096, cap);
    cr_assert_eq(node_full_record(&f.model, &f.kv, f.tokens, 1, buf, cap, &bytes, NULL), VC_OK);
    node_page_t *page = NULL;
    node_model_info_t other = f.model;
    other.keyspace_id.b[3] ^= 1;
    cr_assert_eq(node_page_from_record(&other, buf, bytes, &page, NULL), VC_ERR_MISMATCH);
    other = fx_model(2, 2, 1, 64); /* as many bytes, another shape */
    cr_assert_eq(node_page_from_record(&other, buf, bytes, &page, NULL), VC_ERR_MISMATCH);
    buf[bytes / 2] ^= 1;
    cr_assert_eq(node_page_from_record(&f.model, buf, bytes, &page, NULL), VC_ERR_CORRUPT);
    cr_assert_neq(node_page_from_record(&f.model, buf, 100, &page, NULL), VC_OK);
    fx_records_t r = {0};
    fx_compress("none", &f.in, &r);
    cr_assert_eq(node_page_from_record(&f.model, r.data[1], r.bytes[1], &page, NULL), VC_ERR_MISMATCH);
    cr_assert_null(page);
    fx_records_free(&r);
    vc_free(buf);
    fx_close(&f);
}

Test(record, a_full_record_of_an_unfinished_block_is_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 32), 2, 64, 88);
    size_t cap = vc_kvrec_full_bytes(&f.model.keyspace.shape), bytes;
    uint8_t *buf = vc_alloc_aligned(4096, cap);
    cr_assert_eq(node_kv_truncate(&f.kv, 100), VC_OK);
    cr_assert_eq(node_full_record(&f.model, &f.kv, f.tokens, 1, buf, cap, &bytes, NULL), VC_ERR_INVALID);
    cr_assert_eq(node_full_record(&f.model, &f.kv, f.tokens, 0, buf, cap, &bytes, NULL), VC_OK);
    cr_assert_neq(node_full_record(&f.model, &f.kv, f.tokens, 0, buf, cap - 1, &bytes, NULL), VC_OK);
    vc_free(buf);
    fx_close(&f);
}
