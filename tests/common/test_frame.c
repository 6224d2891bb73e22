/* Data-plane headers: what is encoded decodes to the same, and every field that may not be is refused by name. */
#include <stdio.h>
#include <string.h>

#include "support/vc_test.h"
#include "vc/bytes.h"
#include "vc/frame.h"
#include "vc/mem.h"

static const vc_frame_t samples[] = {
    {.type = VC_FRAME_HELLO, .max_record_bytes = 1478656},
    {.type = VC_FRAME_WELCOME, .boot_id = 0x1122334455667788u, .max_record_bytes = 2 << 20, .put_window = 4},
    {.type = VC_FRAME_FETCH,
     .request = 9,
     .boot_id = 7,
     .lease_id = 0xfffffffffffffffeu,
     .token = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
     .fid = 7,
     .first = 3,
     .n = VC_FRAME_MAX_BLOCKS,
     .credits = 8},
    {.type = VC_FRAME_FETCH_DATA, .request = 9, .block = 5, .payload_bytes = 1478656},
    {.type = VC_FRAME_FETCH_DATA, .request = 9, .block = 5, .status = VC_ERR_CORRUPT},
    {.type = VC_FRAME_FETCH_END, .request = 9, .status = VC_ERR_STALE, .n_sent = 64},
    {.type = VC_FRAME_CREDIT, .request = 9, .credits = VC_FRAME_MAX_CREDITS},
    {.type = VC_FRAME_CANCEL, .request = 9},
    {.type = VC_FRAME_DAMAGED,
     .request = 10,
     .boot_id = 7,
     .lease_id = 8,
     .token = {255},
     .fid = 1,
     .first = 2,
     .n = 1},
    {.type = VC_FRAME_PUT_DATA, .request = 11, .upload_id = 77, .token = {9}, .payload_bytes = 8192},
    {.type = VC_FRAME_PUT_ACK, .request = 11, .status = VC_ERR_NOSPACE, .text = "no room"},
    {.type = VC_FRAME_ERROR, .status = VC_ERR_PERM, .text = "lease 8: wrong token"},
    {.type = VC_FRAME_FETCH,
     .request = 12,
     .boot_id = 7,
     .lease_id = 8,
     .fid = 1,
     .first = 2,
     .n = VC_FRAME_MAX_LAYERED,
     .stepped_down = true,
     .head_bytes = 4096,
     .part_bytes = 49152,
     .n_layer = 30,
     .credits = 8},
    {.type = VC_FRAME_PIECE, .request = 12, .first = 64, .mask = 0x80000005u, .slice = 30, .payload_bytes = 147456},
    {.type = VC_FRAME_PIECE, .request = 12, .first = 96},
};

Test(frame, every_type_decodes_to_what_was_encoded)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(samples); i++) {
        uint8_t buf[VC_FRAME_MAX];
        vc_frame_t got;
        vc_err_t err = {0};
        memset(&got, 0xaa, sizeof(got));
        size_t len = vc_frame_encode(&samples[i], buf);
        cr_assert(len <= VC_FRAME_MAX);
        cr_assert(vc_frame_decode(buf, len, samples[i].payload_bytes, &got, &err) == VC_OK, "%s", err.msg);
        uint8_t again[VC_FRAME_MAX];
        cr_assert(vc_frame_encode(&got, again) == len);
        cr_assert(memcmp(buf, again, len) == 0, "sample %zu", i);
        cr_assert(got.type == samples[i].type && got.request == samples[i].request);
        cr_assert(got.status == samples[i].status && got.credits == samples[i].credits);
        cr_assert(memcmp(got.token, samples[i].token, 16) == 0);
        cr_assert(got.stepped_down == samples[i].stepped_down && got.n_layer == samples[i].n_layer);
        cr_assert(got.mask == samples[i].mask && got.slice == samples[i].slice);
        cr_assert_str_eq(got.text, samples[i].text);
    }
}

Test(frame, the_layout_is_pinned_byte_by_byte)
{
    static const uint8_t want[] = {
        'V',  'C',  'D',  'P',  1,    3,    64,   0,    9, 0,  0,  0,  0,  0,  0,  0, /* FETCH, request 9 */
        7,    0,    0,    0,    0,    0,    0,    0,                                  /* boot id */
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,                               /* lease id */
        1,    2,    3,    4,    5,    6,    7,    8,    9, 10, 11, 12, 13, 14, 15, 16,
        7,    0,    0,    0,    3,    0,    0,    0,    0, 0,  1,  0,  8,  0,  0,  0};
    uint8_t buf[VC_FRAME_MAX];
    cr_assert(vc_frame_encode(&samples[2], buf) == sizeof(want));
    cr_assert(memcmp(buf, want, sizeof(want)) == 0);
}

Test(frame, every_truncation_and_extension_is_refused)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(samples); i++) {
        uint8_t buf[VC_FRAME_MAX + 8] = {0};
        vc_frame_t got;
        size_t len = vc_frame_encode(&samples[i], buf);
        for (size_t cut = 0; cut < len + 8; cut++) {
            if (cut == len)
                continue;
            cr_assert(vc_frame_decode(buf, cut, samples[i].payload_bytes, &got, NULL) == VC_ERR_INVALID);
            if (cut < 8)
                continue;
            uint8_t lying[VC_FRAME_MAX + 8]; /* with a length field that agrees */
            memcpy(lying, buf, sizeof(lying));
            vc_put_le16(lying + 6, (uint16_t)cut);
            cr_assert(vc_frame_decode(lying, cut, samples[i].payload_bytes, &got, NULL) == VC_ERR_INVALID);
        }
    }
}

Test(frame, a_payload_of_another_length_is_refused)
{
    static const size_t wrong[] = {0, 4096, 4095, 1478655, 1478657, 1u << 30};
    uint8_t buf[VC_FRAME_MAX];
    vc_frame_t got;
    vc_err_t err = {0};
    size_t len = vc_frame_encode(&samples[3], buf);
    for (size_t i = 0; i < VC_ARRAY_LEN(wrong); i++) {
        cr_assert(vc_frame_decode(buf, len, wrong[i], &got, &err) == VC_ERR_INVALID);
        cr_assert(strstr(err.msg, "payload length") != NULL, "%s", err.msg);
    }
    len = vc_frame_encode(&samples[7], buf);
    cr_assert(vc_frame_decode(buf, len, 4096, &got, &err) == VC_ERR_INVALID); /* CANCEL carries none */
}

typedef struct {
    int sample;
    size_t offset, width;
    uint64_t value;
    const char *field;
} damage_t;

Test(frame, a_field_out_of_its_bounds_is_refused_by_name)
{
    static const damage_t cases[] = {
        {0, 0, 1, 'X', "magic"},
        {0, 4, 1, 2, "version"},
        {0, 5, 1, 0, "type"},
        {0, 5, 1, 12, "type"},
        {0, 5, 1, 255, "type"},
        {0, 6, 2, 25, "header length"},
        {0, 16, 4, 0, "largest record"},
        {0, 16, 4, 1u << 29, "largest"},
        {0, 20, 4, 1, "zero field"},
        {1, 28, 4, 0, "put window"},
        {1, 28, 4, 4096, "put window"},
        {2, 8, 8, 0, "request id"},
        {2, 48, 4, 8, "column"},
        {2, 56, 4, 0, "block range"},
        {2, 56, 4, 65537, "block range"},
        {2, 52, 4, 0xffffffffu, "block range"},
        {2, 60, 4, 0, "credits"},
        {2, 60, 4, 1025, "credits"},
        {3, 20, 4, 1, "status"},
        {3, 20, 4, (uint64_t)-9, "status"},
        {3, 20, 4, (uint64_t)-23, "payload"},
        {3, 24, 4, 1478657, "payload"},
        {3, 28, 4, 1, "zero field"},
        {4, 20, 4, 0, "payload"},
        {5, 16, 4, (uint64_t)-65, "status"},
        {5, 20, 4, 65537, "number of blocks"},
        {6, 16, 4, 0, "credits"},
        {6, 20, 4, 1, "zero field"},
        {8, 56, 4, 2, "block range"},
        {8, 60, 4, 1, "block range"},
        {9, 40, 4, 0, "payload length"},
        {9, 44, 4, 1, "zero field"},
        {10, 20, 2, 161, "text length"},
        {10, 22, 2, 1, "zero field"},
        {10, 24, 1, '\n', "text"},
        {11, 24, 1, 0x7f, "text"},
    };
    for (size_t i = 0; i < VC_ARRAY_LEN(cases); i++) {
        const damage_t *c = &cases[i];
        uint8_t buf[VC_FRAME_MAX];
        vc_frame_t got;
        vc_err_t err = {0};
        size_t len = vc_frame_encode(&samples[c->sample], buf);
        memcpy(buf + c->offset, &c->value, c->width);
        cr_assert(vc_frame_decode(buf, len, samples[c->sample].payload_bytes, &got, &err) == VC_ERR_INVALID, "case %zu",
                  i);
        cr_assert(strstr(err.msg, c->field) != NULL, "case %zu: %s", i, err.msg);
    }
}

Test(frame, a_long_text_is_cut)
{
    vc_frame_t f = {.type = VC_FRAME_ERROR, .status = VC_ERR_IO}, got;
    memset(f.text, 'a', VC_FRAME_TEXT_MAX);
    uint8_t buf[VC_FRAME_MAX];
    size_t len = vc_frame_encode(&f, buf);
    cr_assert(len == VC_FRAME_MAX);
    cr_assert(vc_frame_decode(buf, len, 0, &got, NULL) == VC_OK);
    cr_assert(strlen(got.text) == VC_FRAME_TEXT_MAX);
}

Test(frame, directions_and_names_are_fixed)
{
    cr_assert(vc_frame_is_from_client(VC_FRAME_FETCH) && vc_frame_is_from_client(VC_FRAME_PUT_DATA));
    cr_assert_not(vc_frame_is_from_client(VC_FRAME_WELCOME) || vc_frame_is_from_client(VC_FRAME_FETCH_DATA));
    cr_assert_not(vc_frame_is_from_client((vc_frame_type_t)200));
    cr_assert_str_eq(vc_frame_type_name(VC_FRAME_PUT_ACK), "put_ack");
    cr_assert_str_eq(vc_frame_type_name((vc_frame_type_t)0), "unknown");
}
