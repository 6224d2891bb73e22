/*
 * Every method through the same door: records depend on nothing but their block's KV, the prefix and the spec; whatever
 * is damaged is refused.
 */
#include <math.h>

#include "codec_fixture.h"

static const char *const methods[] = {"none",
                                      "noise:eps=0.01",
                                      "snapkv:keep=0.3",
                                      "kivi:bits=2",
                                      "kivi:bits=8,group=64",
                                      "rot:bits=4",
                                      "rot:bits=3,group=16",
                                      "rot:bits=4,center=no",
                                      "none+rot:bits=8,group=16",
                                      "snapkv:keep=0.3+rot:bits=4",
                                      "kvzap:tau=-4.5",
                                      "kvzap:keep=0.3",
                                      "rotatekv",
                                      "rotatekv:bits=3,group=16,sinks=0",
                                      "kvzip:keep=0.3,budget=head,chunk=2048",
                                      "kvzip:keep=0.3,plus=no,budget=global,chunk=64",
                                      "kvquant:bits=2",
                                      "kvquant:bits=3,levels=nf",
                                      "kvquant:bits=4,outliers=0,levels=nf,sinks=0",
                                      "expected_attention:keep=0.3",
                                      "expected_attention:keep=0.3,stats=offline,budget=layer+rot:bits=4"};
enum { N_METHODS = sizeof(methods) / sizeof(methods[0]) };

Test(codec, equal_kv_gives_equal_records)
{
    for (int i = 0; i < N_METHODS; i++) {
        fx_t a, b;
        fx_open(&a, fx_model(2, 4, 2, 32), 4, 64, 70);
        fx_open(&b, fx_model(2, 4, 2, 32), 4, 64, 70);
        fx_records_t ra = {0}, rb = {0};
        fx_compress(methods[i], &a.in, &ra);
        fx_compress(methods[i], &b.in, &rb);
        cr_assert_eq(ra.n, 4);
        cr_assert(fx_records_equal(&ra, &rb), "%s", methods[i]);
        fx_records_free(&ra);
        fx_records_free(&rb);
        fx_close(&a);
        fx_close(&b);
    }
}

/* Two requests, one after the other and interleaved: nothing of one is in the other's records. */
Test(codec, another_request_in_between_changes_nothing)
{
    for (int i = 0; i < N_METHODS; i++) {
        fx_t a, b;
        fx_open(&a, fx_model(2, 4, 2, 32), 3, 64, 71);
        fx_open(&b, fx_model(2, 4, 2, 32), 5, 64, 72);
        fx_records_t before = {0}, other = {0}, after = {0};
        fx_compress(methods[i], &a.in, &before);
        fx_compress(methods[i], &b.in, &other);
        fx_compress(methods[i], &a.in, &after);
        cr_assert(fx_records_equal(&before, &after), "%s", methods[i]);
        cr_assert_not(fx_records_equal(&before, &other), "%s", methods[i]);
        fx_records_free(&before);
        fx_records_free(&other);
        fx_records_free(&after);
        fx_close(&a);
        fx_close(&b);
    }
}

/* Methods without a selection: one registration or two, the same bytes. */
Test(codec, where_a_registration_was_cut_does_not_show)
{
    for (int i = 0; i < N_METHODS; i++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, 32), 5, 64, 73);
        fx_records_t whole = {0}, parts = {0};
        fx_compress(methods[i], &f.in, &whole);
        node_compress_in_t in = f.in;
        in.n_blocks = 2;
        fx_compress(methods[i], &in, &parts);
        in.first_block = 2;
        in.n_blocks = 5;
        fx_compress(methods[i], &in, &parts);
        if (fx_spec(methods[i]).ops->chooses) { /* a choice is fixed by its registration, which the record names */
            vc_kvrec_head_t head;
            cr_assert_eq(vc_kvrec_check(parts.data[1], parts.bytes[1], &head, NULL), VC_OK);
            cr_assert(head.horizon_first == 0 && head.horizon_tokens == 2 * NODE_TILE);
            cr_assert_eq(vc_kvrec_check(parts.data[2], parts.bytes[2], &head, NULL), VC_OK);
            cr_assert(head.horizon_first == 2 * NODE_TILE && head.horizon_tokens == 5 * NODE_TILE);
            cr_assert_eq(vc_kvrec_check(whole.data[2], whole.bytes[2], &head, NULL), VC_OK);
            cr_assert(head.horizon_first == 0 && head.horizon_tokens == 5 * NODE_TILE);
        } else {
            cr_assert(fx_records_equal(&whole, &parts), "%s", methods[i]);
        }
        fx_records_free(&whole);
        fx_records_free(&parts);
        fx_close(&f);
    }
}

/* A compressor that changed the KV would change what the verifier reads. */
Test(codec, compressing_leaves_the_full_kv_as_it_is)
{
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 3, 64, 74);
    vc_digest_t before, after;
    node_kv_digest(&f.kv, 3 * NODE_TILE, &before);
    for (int i = 0; i < N_METHODS; i++) {
        fx_records_t r = {0};
        fx_compress(methods[i], &f.in, &r);
        node_body_put(fx_body(methods[i], &f.model, &r, 3));
        fx_records_free(&r);
        node_kv_digest(&f.kv, 3 * NODE_TILE, &after);
        cr_assert(memcmp(&before, &after, sizeof(before)) == 0, "%s", methods[i]);
    }
    fx_close(&f);
}

/* Stored copies outlive programs: these digests must never change without a new record version or another spec text. */
Test(codec, records_have_the_bytes_they_always_had)
{
    static const char *const want[N_METHODS] = {"7265dcd5e783e278024f126ae6ea7cd1123fce5946bcde8ebdc877886fd6a320",
                                                "e5fe86007b67f3a2aaaa27bd5e1ed6af64cd3afa399bf74c70ff377164ca6430",
                                                "837b9d2cdd6ec3bfb4895aa282d267c58a0c7555ac34fd12202a7fd74fe1fc01",
                                                "3ee1e6b659093518ec910990c2955358f05af527b39b6ec8afd8090dd0dc0787",
                                                "954bb42cd1c66e0bbd0c5d37438e7053e9dc1703b976cda82300c638be9c4a4a",
                                                "c92f9a91f66f18bb4900f1b72d5bfcb0fdcdf64bec7fdb04ad3d3e513b56cd4c",
                                                "cdd66e7e3a34def33752da4e04fdceb8c437acccd96dadf36c10e4a7ab9440ed",
                                                "3f6a5bc5e2d96a5f019ddfada13c2fe7228cd0a4dfe3b4236f1d3c8ad9c81506",
                                                "fc5d79276feddcdf788d0f784f299e69ad59f6b98cad6289429e1abf6381f426",
                                                "bf4424ee3e6935693461f47c48134ba53b8358b0ee17ea87b9f55d6326ffb820",
                                                "e3de7a49d033b57584a145d44b08d43dd039c71c4e7780ad8e3ca597ed037889",
                                                "9eff39d8d171203ca961f71d2636baa2241f4e5c338e82ab05e9515f62b74271",
                                                "812099382226c6aea53776b5df07a448068e087088ad56694d2da177a17d6b76",
                                                "aed005f89c2f4e63d62181ee99aef75c845002eced68e539e9bcc4b2354bdbde",
                                                "0f6fd447de75c064c29b0e287856bb0b57af790fe9e05523f2427a09b24d0a60",
                                                "99e410d28f5cfa7a20dcb7ba6063b0dd537fb81a65cd0992186b0c2d44245441",
                                                "dcd4897bb1e0a034616ff23a14a3d31806be3485974fa4adf6aac9b2168de06d",
                                                "019866ec99a4e154007758a0537177a489f52c64be1efc5369bd7c28ec0a221b",
                                                "9eb10c768668ebd488814519833822cc63f724f72fd0262995b433efb0ae8383",
                                                "b2cbd714a7375091a5f7d4912d0122b15958abdd15246d581938b6b2eeb9b794",
                                                "eb1ff0d460e78ebce772dcfc0f2637cfcbda1016966277cd54fdf28d668f31d9"};
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 32), 5, 64, 100);
    f.in.first_block = 1;
    for (int i = 0; i < N_METHODS; i++) {
        fx_records_t r = {0};
        fx_compress(methods[i], &f.in, &r);
        vc_digest_t chain = {{0}};
        for (uint32_t b = 1; b < 5; b++) { /* digest over the digests */
            vc_digest_t pair[2] = {chain};
            vc_blake2b(r.data[b], r.bytes[b], &pair[1]);
            vc_blake2b(pair, sizeof(pair), &chain);
        }
        char hex[2 * VC_DIGEST_BYTES + 1];
        vc_hex(&chain, sizeof(chain), hex);
        cr_expect_str_eq(hex, want[i], "%s gives %s", methods[i], hex);
        fx_records_free(&r);
    }
    fx_close(&f);
}

/* Layer parts start on cache lines: the room for a record counts the gaps, however they add up. */
Test(codec, records_of_any_number_of_layers_fit_their_buffer)
{
    for (uint32_t n_layer = 1; n_layer <= 96; n_layer++) {
        fx_t f;
        fx_open(&f, fx_model(n_layer, 1, 1, 16), 1, 64, n_layer);
        fx_records_t r = {0};
        fx_compress("none", &f.in, &r); /* parts of 4104 bytes */
        vc_kvrec_head_t head;
        cr_assert_eq(vc_kvrec_check(r.data[0], r.bytes[0], &head, NULL), VC_OK);
        fx_records_free(&r);
        fx_close(&f);
    }
}

Test(codec, records_name_their_place_in_the_chain)
{
    fx_t f;
    fx_open(&f, fx_model(1, 2, 2, 32), 3, 64, 75);
    vc_digest_t chain[3];
    cr_assert_eq(vc_block_chain(&f.model.keyspace_id, f.tokens, 3 * NODE_TILE, NODE_TILE, chain), 3);
    for (int i = 0; i < N_METHODS; i++) {
        node_spec_t spec = fx_spec(methods[i]);
        fx_records_t r = {0};
        fx_compress(methods[i], &f.in, &r);
        for (uint32_t b = 0; b < 3; b++) {
            vc_kvrec_head_t head;
            cr_assert_eq(vc_kvrec_check(r.data[b], r.bytes[b], &head, NULL), VC_OK);
            cr_assert_eq(head.fidelity, VC_FIDELITY_COMPRESSED);
            cr_assert_eq(head.kind, spec.ops->kind);
            cr_assert_eq(head.block_index, b);
            cr_assert_eq(head.numerics_id, NODE_NUMERICS_ID);
            cr_assert(memcmp(&head.spec, &spec.id, sizeof(spec.id)) == 0);
            cr_assert(memcmp(&head.hash, &chain[b], sizeof(chain[b])) == 0);
            cr_assert(memcmp(&head.parent, b ? &chain[b - 1] : &f.model.keyspace_id, sizeof(head.parent)) == 0);
        }
        fx_records_free(&r);
    }
    fx_close(&f);
}

Test(codec, bits_per_element_is_what_the_payload_takes)
{
    static const char *const texts[] = {"none",
                                        "noise",
                                        "snapkv:keep=0.25",
                                        "snapkv:keep=0.5",
                                        "kvzap:keep=0.25",
                                        "expected_attention:keep=0.25",
                                        "expected_attention:budget=global",
                                        "kivi:bits=2",
                                        "kivi:bits=4",
                                        "kivi:bits=8",
                                        "kivi:group=64",
                                        "rot:bits=2",
                                        "rot:bits=3",
                                        "rot:bits=4",
                                        "rot:bits=8,group=64",
                                        "rot:bits=4,center=no",
                                        "rotatekv:sinks=0",
                                        "rotatekv:bits=3,sinks=0",
                                        "rotatekv:bits=2,group=32,sinks=0",
                                        "kvzip:keep=0.25",
                                        "kvzip:keep=0.5,budget=global",
                                        "kvquant:bits=2,levels=nf,sinks=0",
                                        "kvquant:bits=3,levels=nf,outliers=0.05",
                                        "kvquant:bits=4,outliers=0,levels=nf"};
    fx_t f;
    fx_open(&f, fx_model(2, 8, 4, 64), 8, 64, 76);
    for (size_t i = 0; i < VC_ARRAY_LEN(texts); i++) {
        node_spec_t spec = fx_spec(texts[i]);
        fx_records_t r = {0};
        fx_compress(texts[i], &f.in, &r);
        double bits = 0;
        for (uint32_t b = 0; b < 8; b++) {
            vc_kvrec_head_t head;
            cr_assert_eq(vc_kvrec_check(r.data[b], r.bytes[b], &head, NULL), VC_OK);
            for (uint32_t l = 0; l < 2; l++) {
                vc_kvrec_layer_t part;
                vc_kvrec_layer(&head, l, &part);
                bits += 8.0 * part.length;
            }
        }
        bits /= 8.0 * NODE_TILE * 2 * 4 * 64 * 2;
        double said = node_spec_bits_per_element(&spec, &f.model);
        cr_assert(fabs(bits - said) <= 0.01 * bits, "%s: %g bits, said %g", texts[i], bits, said);
        fx_records_free(&r);
    }
    fx_close(&f);
}

Test(codec, kv_that_is_not_finite_is_refused_by_every_method)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e01};
    for (int i = 0; i < N_METHODS; i++)
        for (int v = 0; v < 6; v++) {
            fx_t f;
            fx_open(&f, fx_model(2, 4, 2, 32), 2, 64, 77);
            node_page_t *page = node_kv_page_at(&f.kv, 1);
            (v < 3 ? node_page_k : node_page_v)(page, 1, 1)[77] = bad[v % 3];
            node_spec_t spec = fx_spec(methods[i]);
            fx_records_t r = {0};
            vc_err_t err = {0};
            cr_assert_eq(fx_try_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_INVALID, "%s", methods[i]);
            cr_assert_not_null(strstr(err.msg, "block 1, layer 1, head 1"), "%s", err.msg);
            cr_assert_eq(r.n, 0);
            fx_close(&f);
        }
}

static int stop_at_second(void *arg, uint32_t block, const void *record, size_t bytes)
{
    (void)record, (void)bytes;
    ++*(uint32_t *)arg;
    return block == 1;
}

Test(codec, a_receiver_can_stop)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 32), 4, 64, 78);
    node_spec_t spec = fx_spec("kivi");
    uint32_t calls = 0;
    cr_assert_eq(node_compress(&spec, &f.in, stop_at_second, &calls, NULL), VC_ERR_CANCELLED);
    cr_assert_eq(calls, 2);
    fx_close(&f);
}

Test(codec, input_that_does_not_cover_the_blocks_is_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 32), 2, 64, 79);
    node_spec_t spec = fx_spec("none");
    fx_records_t r = {0};
    node_compress_in_t in = f.in;
    in.n_blocks = 3;
    cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, NULL), VC_ERR_INVALID);
    in = f.in;
    in.first_block = 2;
    cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, NULL), VC_ERR_INVALID);
    node_model_info_t other = fx_model(1, 1, 1, 16);
    in = f.in;
    in.model = &other;
    cr_assert_eq(node_compress(&spec, &in, fx_keep, &r, NULL), VC_ERR_INVALID);
    cr_assert_eq(r.n, 0);
    fx_close(&f);
}

Test(codec, noise_is_bounded_and_follows_its_seed)
{
    fx_t f;
    fx_open(&f, fx_model(2, 2, 2, 32), 3, 64, 80);
    fx_records_t r = {0}, again = {0}, other = {0};
    fx_compress("noise:eps=0.01,seed=7", &f.in, &r);
    fx_compress("noise:eps=0.01,seed=7", &f.in, &again);
    fx_compress("noise:eps=0.01,seed=8", &f.in, &other);
    cr_assert(fx_records_equal(&r, &again));
    node_body_t *body = fx_body("noise:eps=0.01,seed=7", &f.model, &r, 3);
    node_body_t *body8 = fx_body("noise:eps=0.01,seed=8", &f.model, &other, 3);
    uint32_t changed = 0, differ = 0, n = 0;
    for (uint32_t h = 0; h < 4; h++)
        for (uint32_t t = 0; t < 3; t++)
            for (uint32_t i = 0; i < 32 * NODE_TILE; i++, n++) {
                uint16_t exact = node_page_k(node_kv_page_at(&f.kv, t), h / 2, h % 2)[i];
                uint16_t got = body->tiles[h][t].k[i];
                float x = node_f32_from_f16(exact), y = node_f32_from_f16(got);
                cr_assert(fabsf(y - x) <= 0.01f * fabsf(x) + fabsf(x) * 0x1p-11f + 0x1p-24f);
                changed += exact != got;
                differ += got != body8->tiles[h][t].k[i];
            }
    cr_assert_gt(changed, n / 2);
    cr_assert_gt(differ, n / 2);
    node_body_put(body);
    node_body_put(body8);
    fx_records_free(&r);
    fx_records_free(&again);
    fx_records_free(&other);
    fx_close(&f);
}

/* Noise of a billionth moves nothing that f16 can show, noise of 100 % must not make infinities. */
Test(codec, the_extremes_of_noise_stay_numbers)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 16), 1, 64, 81);
    uint16_t *v = node_page_v(node_kv_page_at(&f.kv, 0), 0, 0);
    for (uint32_t i = 0; i < 16 * NODE_TILE; i++)
        v[i] = (i & 1) ? 0x7bff : 0x0001;
    fx_records_t tiny = {0}, huge = {0};
    fx_compress("noise:eps=1e-9", &f.in, &tiny);
    fx_compress("noise:eps=100", &f.in, &huge);
    node_body_t *a = fx_body("noise:eps=1e-9", &f.model, &tiny, 1), *b = fx_body("noise:eps=100", &f.model, &huge, 1);
    cr_assert(memcmp(a->tiles[0][0].v, v, 16 * NODE_TILE * 2) == 0);
    for (uint32_t i = 0; i < 16 * NODE_TILE; i++)
        cr_assert_neq(b->tiles[0][0].v[i] & 0x7c00, 0x7c00);
    node_body_put(a);
    node_body_put(b);
    fx_records_free(&tiny);
    fx_records_free(&huge);
    fx_close(&f);
}

/* ---- damage ---- */

/* The layer part of a record, in memory of exactly its size so that a sanitizer sees any byte too far. */
static uint8_t *exact_part(const fx_records_t *r, uint32_t block, uint32_t layer, vc_kvrec_head_t *head,
                           uint32_t *length_p)
{
    vc_kvrec_layer_t part;
    cr_assert_eq(vc_kvrec_check(r->data[block], r->bytes[block], head, NULL), VC_OK);
    vc_kvrec_layer(head, layer, &part);
    *length_p = part.length;
    uint8_t *copy = malloc(part.length);
    memcpy(copy, r->data[block] + part.offset, part.length);
    return copy;
}

static vc_status_t decode_part(const node_spec_t *spec, const node_model_info_t *m, const vc_kvrec_head_t *head,
                               const uint8_t *part, uint32_t length)
{
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(spec, m, 1, &b, NULL), VC_OK);
    /* An exact page in place: the decoder validates and the rows go nowhere. */
    const node_kv_dims_t dims = {m->n_layer, m->n_kv_head, m->head_dim};
    node_page_t *page = node_page_create(&dims);
    cr_assert_eq(node_body_add_page(b, 0, page), VC_OK);
    node_page_put(page);
    vc_status_t st = spec->ops->decode(spec, head, 0, part, length, b, NULL);
    node_body_abort(b);
    return st;
}

Test(codec, a_payload_cut_or_extended_at_any_byte_is_refused)
{
    for (int i = 0; i < N_METHODS; i++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, 16), 2, 64, 82);
        node_spec_t spec = fx_spec(methods[i]);
        fx_records_t r = {0};
        fx_compress(methods[i], &f.in, &r);
        vc_kvrec_head_t head;
        uint32_t length;
        uint8_t *part = exact_part(&r, 0, 0, &head, &length);
        cr_assert_eq(decode_part(&spec, &f.model, &head, part, length), VC_OK, "%s", methods[i]);
        for (uint32_t n = 0; n < length; n++) {
            uint8_t *cut = malloc(n ? n : 1);
            memcpy(cut, part, n);
            cr_assert_eq(decode_part(&spec, &f.model, &head, cut, n), VC_ERR_CORRUPT, "%s cut at %u", methods[i], n);
            free(cut);
        }
        uint8_t *longer = calloc(1, length + 64);
        memcpy(longer, part, length);
        for (uint32_t n = 1; n <= 64; n++)
            cr_assert_eq(decode_part(&spec, &f.model, &head, longer, length + n), VC_ERR_CORRUPT, "%s + %u bytes",
                         methods[i], n);
        free(longer);
        free(part);
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Whether a body made of the part, one head of 16 channels, holds finite numbers only. */
static bool loads_finite(const node_spec_t *spec, const fx_t *f, vc_kvrec_head_t head, const uint8_t *part,
                         uint32_t length)
{
    vc_kvrec_writer_t w;
    void *at;
    size_t cap = vc_kvrec_header_bytes(&head.shape) + length + VC_KVREC_ALIGN, bytes;
    uint8_t *record = vc_alloc_aligned(VC_KVREC_ALIGN, cap);
    cr_assert_eq(vc_kvrec_write_begin(&w, record, cap, &head, f->tokens, NULL), VC_OK);
    cr_assert_eq(vc_kvrec_write_layer(&w, length, &at, NULL), VC_OK);
    memcpy(at, part, length);
    cr_assert_eq(vc_kvrec_write_end(&w, &bytes, NULL), VC_OK);
    node_body_builder_t *b;
    node_body_t *body;
    cr_assert_eq(node_body_begin(spec, &f->model, 1, &b, NULL), VC_OK);
    node_body_set_load(b, NODE_LOAD_PAGES);
    cr_assert_eq(node_body_add_record(b, record, bytes, NULL), VC_OK);
    cr_assert_eq(node_body_finish(b, &body, NULL), VC_OK);
    bool finite = true;
    for (const node_tile_t *t = body->tiles[0]; t < body->tiles[0] + body->n_tiles[0]; t++) {
        const node_coded_form_t *form = &body->form;
        finite = t->codes ? node_f16_finite(t->codes + form->k_scale, (form->v_codes - form->k_scale) / 2) &&
                                node_f16_finite(t->codes + form->v_scale, (form->bytes - form->v_scale) / 2)
                          : node_f16_finite(t->k, 64 * 16) && node_f16_finite(t->v, 64 * 16);
    }
    node_body_put(body);
    vc_free(record);
    return finite;
}

/* Any byte may come as anything: the answer is OK or CORRUPT, and what was accepted holds finite numbers only. */
Test(codec, a_payload_with_any_byte_changed_is_refused_or_finite)
{
    for (int i = 0; i < N_METHODS; i++) {
        fx_t f;
        fx_open(&f, fx_model(1, 1, 1, 16), 1, 64, 83);
        node_spec_t spec = fx_spec(methods[i]);
        fx_records_t r = {0};
        fx_compress(methods[i], &f.in, &r);
        vc_kvrec_head_t head;
        uint32_t length, refused = 0;
        uint8_t *part = exact_part(&r, 0, 0, &head, &length);
        for (uint32_t at = 0; at < length; at++)
            for (int v = 0; v < 3; v++) {
                const uint8_t was = part[at]; /* then half of an infinity, another sign, all bits others */
                part[at] = (uint8_t)(v == 0 ? 0x7c : v == 1 ? was ^ 0x80 : ~was);
                vc_status_t st = decode_part(&spec, &f.model, &head, part, length);
                cr_assert(st == VC_OK || st == VC_ERR_CORRUPT, "%s byte %u: %s", methods[i], at, vc_status_name(st));
                if (st == VC_OK && (at + (uint32_t)v) % 3 == 0) /* some: each is a whole record and a body */
                    cr_assert(loads_finite(&spec, &f, head, part, length), "%s byte %u", methods[i], at);
                refused += st != VC_OK;
                part[at] = was;
            }
        cr_assert_gt(refused, 0, "%s", methods[i]);
        free(part);
        fx_records_free(&r);
        fx_close(&f);
    }
}

static void expect_kivi_refused(const fx_t *f, const vc_kvrec_head_t *head, uint8_t *part, uint32_t length, uint32_t at,
                                uint16_t value, const char *what)
{
    (void)what; /* the plain runner drops messages */
    node_spec_t spec = fx_spec("kivi:bits=4,group=32");
    uint8_t before[2] = {part[at], part[at + 1]};
    part[at] = (uint8_t)value;
    part[at + 1] = (uint8_t)(value >> 8);
    cr_assert_eq(decode_part(&spec, &f->model, head, part, length), VC_ERR_CORRUPT, "%s", what);
    part[at] = before[0];
    part[at + 1] = before[1];
}

Test(codec, parameters_that_cannot_be_are_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 32), 1, 64, 84);
    fx_records_t r = {0};
    fx_compress("kivi:bits=4,group=32", &f.in, &r);
    vc_kvrec_head_t head;
    uint32_t length;
    uint8_t *part = exact_part(&r, 0, 0, &head, &length);
    const uint32_t k_codes = 32 * 64 / 2, k_groups = 32 * 2, v_at = k_codes + 4 * k_groups, v_codes = 64 * 32 / 2;
    cr_assert_eq(length, v_at + v_codes + 4 * 64 + 4);
    expect_kivi_refused(&f, &head, part, length, k_codes, 0x7c00, "infinite scale");
    expect_kivi_refused(&f, &head, part, length, k_codes + 2, 0x7e00, "scale not a number");
    expect_kivi_refused(&f, &head, part, length, k_codes, 0xbc00, "negative scale");
    expect_kivi_refused(&f, &head, part, length, k_codes, 0x0000, "zero scale with codes");
    expect_kivi_refused(&f, &head, part, length, k_codes + 2 * k_groups, 0xfc00, "infinite minimum");
    expect_kivi_refused(&f, &head, part, length, v_at + v_codes, 0x7c00, "infinite scale of V");
    expect_kivi_refused(&f, &head, part, length, v_at + v_codes + 2 * 64, 0x7fff, "minimum of V not a number");
    expect_kivi_refused(&f, &head, part, length, length - 4, 1, "exact rows that are not there");
    free(part);
    fx_records_free(&r);
    fx_close(&f);
}

Test(codec, a_kept_row_that_is_not_finite_is_refused)
{
    fx_t f;
    fx_open(&f, fx_model(1, 1, 1, 16), 3, 64, 85);
    fx_records_t r = {0};
    fx_compress("snapkv:keep=0.5", &f.in, &r);
    node_spec_t spec = fx_spec("snapkv:keep=0.5");
    vc_kvrec_head_t head;
    uint32_t length;
    uint8_t *part = exact_part(&r, 0, 0, &head, &length);
    part[length - 1] = 0x7c; /* the last V number becomes infinite or not a number */
    cr_assert_eq(decode_part(&spec, &f.model, &head, part, length), VC_ERR_CORRUPT);
    free(part);
    fx_records_free(&r);
    fx_close(&f);
}
