/* Proves that the hand-written RecordFrame is protobuf's: packed by one side, read by the other, in both directions. */
#include "vc/recframe.h"

#include <string.h>

#include "support/vc_test.h"
#include "vericache.pb-c.h"

static uint8_t token[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

Test(recframe, hand_written_bytes_equal_those_of_protobuf)
{
    static uint8_t data[70000], packed[80000], ours[80000];
    memset(data, 0x5a, sizeof(data));
    const uint64_t values[] = {0, 1, 127, 128, 300, 65535, 1u << 20, (1ull << 32) - 1, 1ull << 40};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        vc_recframe_t f = {.block = (uint32_t)values[i], .offset = values[i], .record_bytes = values[i] + 90000};
        f.status = (uint32_t)i;
        f.upload_id = values[i];
        f.token = i % 2 ? token : NULL;
        f.data = data;
        f.data_len = i * 8000;
        Vericache__V1__RecordFrame m = VERICACHE__V1__RECORD_FRAME__INIT;
        m.block = f.block;
        m.offset = f.offset;
        m.record_bytes = f.record_bytes;
        m.status = f.status;
        m.upload_id = f.upload_id;
        m.token = (ProtobufCBinaryData){f.token ? 16 : 0, token};
        m.data = (ProtobufCBinaryData){f.data_len, data};
        size_t want = vericache__v1__record_frame__pack(&m, packed);
        size_t n = vc_recframe_encode_head(&f, ours);
        memcpy(ours + n, data, f.data_len);
        cr_assert_eq(n + f.data_len, want);
        cr_assert_eq(memcmp(ours, packed, want), 0);
        vc_recframe_t back;
        cr_assert_eq(vc_recframe_decode(packed, want, &back), VC_OK);
        cr_assert_eq(back.block, f.block);
        cr_assert_eq(back.offset, f.offset);
        cr_assert_eq(back.record_bytes, f.record_bytes);
        cr_assert_eq(back.status, f.status);
        cr_assert_eq(back.upload_id, f.upload_id);
        cr_assert_eq(back.data_len, f.data_len);
        cr_assert_eq(back.token != NULL, f.token != NULL);
    }
}

Test(recframe, unknown_fields_are_skipped)
{
    const uint8_t m[] = {0x08, 5, 0x78, 1, 0x82, 1, 2, 'x', 'y', 0x8d, 1, 1, 2, 3, 4, 0x91, 1, 1, 2, 3, 4, 5, 6, 7, 8};
    vc_recframe_t f;
    cr_assert_eq(vc_recframe_decode(m, sizeof(m), &f), VC_OK);
    cr_assert_eq(f.block, 5);
}

Test(recframe, malformed_messages_are_refused)
{
    const struct {
        uint8_t b[16];
        size_t n;
    } bad[] = {
        {{0x08}, 1},                                                                    /* value missing */
        {{0x0b, 0}, 2},                                                                 /* group */
        {{0x00, 0}, 2},                                                                 /* field 0 */
        {{0x0d, 1, 2, 3, 4}, 5},                                                        /* block as fixed32 */
        {{0x32, 2, 1, 2}, 4},                                                           /* token of 2 bytes */
        {{0x18, 4, 0x3a, 5, 1, 2, 3, 4, 5}, 9},                                         /* data past the record */
        {{0x10, 9, 0x18, 4}, 4},                                                        /* offset past it */
        {{0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 11},          /* length of 2^64 - 1 */
        {{0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 12}, /* varint too long */
        {{0x08, 0xff, 0xff, 0xff, 0xff, 0x7f}, 6},                                      /* block above 2^32 */
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        vc_recframe_t f;
        cr_assert_eq(vc_recframe_decode(bad[i].b, bad[i].n, &f), VC_ERR_INVALID, "case %zu", i);
    }
}

Test(recframe, every_truncation_of_a_good_frame_is_safe)
{
    uint8_t m[VC_RECFRAME_HEAD_MAX + 8] = {0};
    vc_recframe_t f = {.block = 3, .offset = 4096, .record_bytes = 8192, .upload_id = 9, .token = token, .data_len = 8};
    size_t n = vc_recframe_encode_head(&f, m) + 8;
    vc_recframe_t back;
    cr_assert_eq(vc_recframe_decode(m, n, &back), VC_OK);
    for (size_t cut = 1; cut < 9; cut++)
        cr_assert_eq(vc_recframe_decode(m, n - cut, &back), VC_ERR_INVALID);
    for (size_t len = 0; len < n; len++)
        vc_recframe_decode(m, len, &back);
}
