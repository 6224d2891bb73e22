/*
 * Dropping and quantising together: kept rows have the bytes that rot gives them, the choice is the plain dropper's,
 * and a part that could not have been written is refused before any of its rows is used.
 */
#include "compress/dropper.h"
#include "rot_fixture.h"

/* ---- records ---- */

/* One head of a coded dropper's part. */
typedef struct coded_head {
    uint64_t kept;
    uint32_t n;
    const uint8_t *k, *v, *end;
} coded_head_t;

static coded_head_t coded_head(const uint8_t *part, const node_dropper_rows_t *rows, uint32_t head)
{
    for (;; head--) {
        coded_head_t c = {.kept = vc_le64(part)};
        c.n = (uint32_t)__builtin_popcountll(c.kept);
        c.k = part + NODE_BITMAP_BYTES;
        c.v = c.k + node_rot_rows_bytes(&rows->coded, c.n);
        c.end = c.v + node_rot_rows_bytes(&rows->coded, c.n);
        if (head == 0)
            return c;
        part = c.end;
    }
}

static node_dropper_rows_t rows_of(const char *text, uint32_t dim)
{
    node_spec_t spec = fx_spec(text);
    node_dropper_rows_t rows;
    cr_assert_eq(node_dropper_rows_init(&rows, &spec, dim, false, NULL), VC_OK);
    return rows;
}

/* Row i of the kept ones is row t of all: codes, scales and minima. */
static void expect_same_row(const node_rot_rows_t *s, const uint8_t *kept, uint32_t n, uint32_t i, const uint8_t *all,
                            uint32_t t)
{
    const node_coded_rows_t a = node_rot_rows_at(s, kept, n), b = node_rot_rows_at(s, all, NODE_TILE);
    cr_assert(memcmp(a.codes + i * s->row_bytes, b.codes + t * s->row_bytes, s->row_bytes) == 0);
    cr_assert(memcmp(a.scales + 2 * i * s->n_groups, b.scales + 2 * t * s->n_groups, 2 * s->n_groups) == 0);
    cr_assert(memcmp(a.mins + 2 * i * s->n_groups, b.mins + 2 * t * s->n_groups, 2 * s->n_groups) == 0);
}

static void expect_rows_of_rot(const fx_t *f, const char *dropper, uint32_t bits, uint32_t group)
{
    char text[VC_SPEC_TEXT_MAX], plain[64];
    fx_records_t coded = {0}, all = {0}, chosen = {0};
    snprintf(plain, sizeof(plain), "rot:bits=%u,group=%u,center=no", bits, group); /* kept rows have no mean */
    snprintf(text, sizeof(text), "%s+rot:bits=%u,group=%u", dropper, bits, group);
    fx_compress(text, &f->in, &coded);
    fx_compress(plain, &f->in, &all);
    fx_compress(dropper, &f->in, &chosen);
    const node_dropper_rows_t rows = rows_of(text, f->model.head_dim);
    const uint32_t matrix = node_rot_rows_bytes(&rows.coded, NODE_TILE);
    for (uint32_t b = 0; b < coded.n; b++)
        for (uint32_t l = 0; l < f->model.n_layer; l++) {
            uint32_t length, rot_length;
            const uint8_t *part = part_of(&coded, b, l, &length), *rot = part_of(&all, b, l, &rot_length);
            for (uint32_t h = 0; h < f->model.n_kv_head; h++) {
                const coded_head_t c = coded_head(part, &rows, h);
                uint32_t i = 0;
                cr_assert_eq(c.kept, fx_kept(&chosen, b, l, h), "coding rows changed the choice of them");
                for (uint64_t left = c.kept; left; left &= left - 1, i++) {
                    const uint32_t t = (uint32_t)__builtin_ctzll(left);
                    expect_same_row(&rows.coded, c.k, c.n, i, rot + 2 * h * matrix, t);
                    expect_same_row(&rows.coded, c.v, c.n, i, rot + (2 * h + 1) * matrix, t);
                }
                if (h + 1 == f->model.n_kv_head)
                    cr_assert_eq(c.end, part + length);
            }
        }
    fx_records_free(&coded);
    fx_records_free(&all);
    fx_records_free(&chosen);
}

Test(combine, kept_rows_are_the_bytes_that_rot_writes_for_them)
{
    static const uint32_t dims[] = {16, 64, 96};
    for (int d = 0; d < 3; d++) {
        fx_t f;
        fx_open(&f, fx_model(2, 4, 2, dims[d]), 3, 64, 50);
        for (int b = 0; b < N_BITS; b++)
            for (uint32_t group = 16; group <= 32; group *= 2) {
                expect_rows_of_rot(&f, "snapkv:keep=0.3", all_bits[b], group);
                expect_rows_of_rot(&f, "none", all_bits[b], group);
            }
        fx_close(&f);
    }
}

Test(combine, a_head_that_groups_do_not_divide_is_refused)
{
    static const char *const texts[] = {"snapkv+rot:group=32", "none+rot:group=32"};
    for (int i = 0; i < 2; i++) {
        fx_t f;
        fx_open(&f, fx_model(1, 2, 2, 80), 2, 64, 51);
        node_spec_t spec = fx_spec(texts[i]);
        fx_records_t r = {0};
        vc_err_t err = {0};
        cr_assert_eq(fx_try_compress(&spec, &f.in, fx_keep, &r, &err), VC_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(err.msg, "80"), "%s", err.msg);
        cr_assert_eq(r.n, 0);
        vc_kvrec_head_t head = {.shape = f.model.keyspace.shape};
        node_body_builder_t *b;
        uint8_t part[16] = {0};
        cr_assert_eq(node_body_begin(&spec, &f.model, 1, &b, NULL), VC_OK);
        cr_assert_eq(spec.ops->decode(&spec, &head, 0, part, sizeof(part), b, NULL), VC_ERR_UNSUPPORTED);
        node_body_abort(b);
        fx_close(&f);
    }
}

/* ---- bodies ---- */

Test(combine, keeping_everything_gives_the_tiles_of_rot)
{
    static const char *const droppers[] = {"none", "snapkv:keep=1"};
    fx_t f;
    fx_open(&f, fx_model(2, 4, 2, 64), 4, 64, 52);
    for (int d = 0; d < 2; d++)
        for (int b = 0; b < N_BITS; b++) {
            char text[VC_SPEC_TEXT_MAX], rot[64];
            fx_records_t coded = {0}, all = {0};
            snprintf(rot, sizeof(rot), "rot:bits=%u,group=32,center=no", all_bits[b]);
            snprintf(text, sizeof(text), "%s+rot:bits=%u,group=32", droppers[d], all_bits[b]);
            fx_compress(text, &f.in, &coded);
            fx_compress(rot, &f.in, &all);
            node_body_t *x = fx_body(text, &f.model, &coded, 4), *y = fx_body(rot, &f.model, &all, 4);
            cr_assert(memcmp(&x->form, &y->form, sizeof(x->form)) == 0);
            for (uint32_t i = 0; i < 4; i++) {
                cr_assert(x->n_tiles[i] == 4 && y->n_tiles[i] == 4);
                for (uint32_t t = 0; t < 4; t++) {
                    cr_assert_eq(x->tiles[i][t].n_rows, NODE_TILE);
                    cr_assert(memcmp(x->tiles[i][t].codes, y->tiles[i][t].codes, x->form.bytes) == 0, "%s", text);
                }
                cr_assert_eq(node_body_n_dropped(x, i / 2, i % 2), 0);
            }
            node_body_put(x);
            node_body_put(y);
            fx_records_free(&coded);
            fx_records_free(&all);
        }
    fx_close(&f);
}

/* The rows of blocks [from, to) of one head, packed by hand; returns the number of rows. */
static uint32_t pack_by_hand(const fx_records_t *r, const node_dropper_rows_t *rows, const node_coded_form_t *f,
                             uint32_t from, uint32_t to, uint32_t head, uint8_t *tiles)
{
    static uint8_t k[NODE_TILE * 64], v[NODE_TILE * 64];
    const node_rot_rows_t *s = &rows->coded;
    uint32_t total = 0;
    memset(k, 0, sizeof(k));
    memset(v, 0, sizeof(v));
    for (uint32_t b = from; b < to; b++) {
        uint32_t length;
        const coded_head_t c = coded_head(part_of(r, b, 0, &length), rows, head);
        const node_coded_rows_t kr = node_rot_rows_at(s, c.k, c.n), vr = node_rot_rows_at(s, c.v, c.n);
        for (uint32_t i = 0; i < c.n; i++, total++) {
            const uint32_t at = total % NODE_TILE;
            uint8_t *tile = tiles + (size_t)(total / NODE_TILE) * f->bytes;
            if (at == 0) {
                memset(k, 0, sizeof(k));
                memset(v, 0, sizeof(v));
            }
            node_rot_unpack(k + at * s->dim, kr.codes + i * s->row_bytes, s->dim, s->bits);
            node_rot_unpack(v + at * s->dim, vr.codes + i * s->row_bytes, s->dim, s->bits);
            for (uint32_t g = 0; g < s->n_groups; g++) {
                const size_t to_at = 2 * ((size_t)g * NODE_TILE + at), from_at = 2 * ((size_t)i * s->n_groups + g);
                memcpy(tile + f->k_scale + to_at, kr.scales + from_at, 2);
                memcpy(tile + f->k_min + to_at, kr.mins + from_at, 2);
                memcpy(tile + f->v_scale + to_at, vr.scales + from_at, 2);
                memcpy(tile + f->v_min + to_at, vr.mins + from_at, 2);
            }
            node_coded_put_k(f, tile, k); /* again with every row: the last one counts */
            node_coded_put_v(f, tile, v);
        }
    }
    return total;
}

/* Blocks run together into dense tiles, the last one partly filled; a prefix cut anywhere is a body of its own. */
Test(combine, any_cut_of_a_stored_copy_is_a_body_of_its_kept_rows)
{
    enum { N = 9 };
    for (int b = 0; b < N_BITS; b++) {
        char text[VC_SPEC_TEXT_MAX];
        fx_t f;
        fx_records_t r = {0};
        fx_open(&f, fx_model(1, 4, 2, 32), N, 64, 53);
        snprintf(text, sizeof(text), "snapkv:keep=0.35+rot:bits=%u,group=16", all_bits[b]);
        fx_compress(text, &f.in, &r);
        const node_dropper_rows_t rows = rows_of(text, 32);
        for (uint32_t n = 1; n <= N; n++) {
            node_body_t *body = fx_body(text, &f.model, &r, n);
            uint8_t *tiles = vc_alloc_aligned(64, N * body->form.bytes);
            for (uint32_t h = 0; h < 2; h++) {
                memset(tiles, 0, N * body->form.bytes);
                const uint32_t total = pack_by_hand(&r, &rows, &body->form, 0, n, h, tiles);
                cr_assert_eq(body->n_tiles[h], (total + NODE_TILE - 1) / NODE_TILE);
                cr_assert_eq(node_body_n_dropped(body, 0, h), n * NODE_TILE - total);
                for (uint32_t t = 0; t < body->n_tiles[h]; t++) {
                    cr_assert_eq(body->tiles[h][t].n_rows, VC_MIN(NODE_TILE, total - t * NODE_TILE));
                    cr_assert(memcmp(body->tiles[h][t].codes, tiles + t * body->form.bytes, body->form.bytes) == 0,
                              "%s: %u blocks, head %u, tile %u", text, n, h, t);
                }
            }
            vc_free(tiles);
            node_body_put(body);
        }
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* Records of one registration and of two are both good, and mix: blocks registered later join those that were there. */
Test(combine, a_prefix_grows_by_another_registration)
{
    static const char text[] = "snapkv:keep=0.5+rot:bits=4,group=16";
    fx_t f;
    fx_records_t r = {0};
    fx_open(&f, fx_model(1, 4, 2, 32), 5, 64, 54);
    node_compress_in_t in = f.in;
    in.n_blocks = 2;
    fx_compress(text, &in, &r);
    in.first_block = 2;
    in.n_blocks = 5;
    fx_compress(text, &in, &r);
    node_body_t *body = fx_body(text, &f.model, &r, 5);
    const node_dropper_rows_t rows = rows_of(text, 32);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t total = 0, length;
        for (uint32_t b = 0; b < 5; b++)
            total += coded_head(part_of(&r, b, 0, &length), &rows, h).n;
        cr_assert_eq(node_body_n_dropped(body, 0, h), 5 * NODE_TILE - total);
    }
    node_body_put(body);
    fx_records_free(&r);
    fx_close(&f);
}

/* ---- what is refused ---- */

static vc_status_t decode(const node_spec_t *spec, const node_model_info_t *m, const uint8_t *part, uint32_t length,
                          vc_err_t *err)
{
    vc_kvrec_head_t head = {.kind = VC_KVREC_DROPPER, .shape = m->keyspace.shape};
    node_body_builder_t *b;
    cr_assert_eq(node_body_begin(spec, m, 1, &b, NULL), VC_OK);
    /* An exact page is in place: the part is checked, and no row goes anywhere. */
    const node_kv_dims_t dims = {m->n_layer, m->n_kv_head, m->head_dim};
    node_page_t *page = node_page_create(&dims);
    cr_assert_eq(node_body_add_page(b, 0, page), VC_OK);
    node_page_put(page);
    vc_status_t st = spec->ops->decode(spec, &head, 0, part, length, b, err);
    node_body_abort(b);
    return st;
}

static void expect_bad(const node_spec_t *spec, const node_model_info_t *m, const uint8_t *part, uint32_t length,
                       const char *what)
{
    vc_err_t err = {0};
    cr_assert_eq(decode(spec, m, part, length, &err), VC_ERR_CORRUPT, "%s: %s was taken", spec->text, what);
    cr_assert(strstr(err.msg, "snapkv block 0 layer 0") != NULL && strstr(err.msg, "head") != NULL, "%s", err.msg);
}

Test(combine, parameters_that_cannot_be_are_refused_wherever_they_stand)
{
    static const uint16_t bad_scale[] = {0x8001, 0xbc00, 0x7c00, 0x7e00}, bad_min[] = {0x7c00, 0xfc00, 0x7e01};
    for (int b = 0; b < N_BITS; b++) {
        char text[VC_SPEC_TEXT_MAX];
        fx_t f;
        fx_records_t r = {0};
        uint32_t length;
        snprintf(text, sizeof(text), "snapkv:keep=0.3+rot:bits=%u,group=16", all_bits[b]);
        fx_open(&f, fx_model(1, 2, 2, 32), 2, 64, 55);
        fx_compress(text, &f.in, &r);
        const node_spec_t spec = fx_spec(text);
        const node_dropper_rows_t rows = rows_of(text, 32);
        const uint8_t *whole = part_of(&r, 0, 0, &length);
        uint8_t *part = vc_memdup(whole, length);
        cr_assert_eq(decode(&spec, &f.model, part, length, NULL), VC_OK);
        for (uint32_t i = 0; i < 4; i++) { /* K and V of both heads */
            const coded_head_t c = coded_head(part, &rows, i / 2);
            const node_coded_rows_t m = node_rot_rows_at(&rows.coded, i % 2 ? c.v : c.k, c.n);
            for (uint32_t g = 0; g < 2 * c.n; g++) {
                uint8_t *scale = part + (m.scales - part) + 2 * g, *min = part + (m.mins - part) + 2 * g;
                const uint16_t was[2] = {vc_le16(scale), vc_le16(min)};
                for (int k = 0; k < 4; k++) {
                    vc_put_le16(scale, bad_scale[k]);
                    expect_bad(&spec, &f.model, part, length, "a scale");
                }
                vc_put_le16(scale, 0); /* with codes that are not zero */
                expect_bad(&spec, &f.model, part, length, "a zero scale");
                vc_put_le16(scale, was[0]);
                for (int k = 0; k < 3; k++) {
                    vc_put_le16(min, bad_min[k]);
                    expect_bad(&spec, &f.model, part, length, "a minimum");
                }
                vc_put_le16(min, was[1]);
            }
        }
        cr_assert(memcmp(part, whole, length) == 0);
        vc_free(part);
        fx_records_free(&r);
        fx_close(&f);
    }
}

/* A bitmap says how long everything behind it is: one bit more or less never fits. */
Test(combine, a_bitmap_that_does_not_match_its_rows_is_refused)
{
    static const char text[] = "snapkv:keep=0.5+rot:bits=4,group=16";
    fx_t f;
    fx_records_t r = {0};
    uint32_t length;
    fx_open(&f, fx_model(1, 1, 1, 32), 2, 64, 56);
    fx_compress(text, &f.in, &r);
    const node_spec_t spec = fx_spec(text);
    const uint8_t *whole = part_of(&r, 0, 0, &length);
    uint8_t *part = vc_memdup(whole, length);
    for (uint32_t i = 0; i < 64; i++) {
        part[i / 8] ^= (uint8_t)(1u << i % 8);
        cr_assert_eq(decode(&spec, &f.model, part, length, NULL), VC_ERR_CORRUPT, "bit %u", i);
        part[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    uint8_t empty[NODE_BITMAP_BYTES] = {0};
    cr_assert_eq(decode(&spec, &f.model, empty, sizeof(empty), NULL), VC_OK, "a head may keep nothing");
    vc_free(part);
    fx_records_free(&r);
    fx_close(&f);
}

/* Defect: coded and plain rows are one byte string to a reader that looks at lengths only. */
Test(combine, coded_records_are_not_read_as_plain_ones)
{
    fx_t f;
    fx_records_t r = {0};
    fx_open(&f, fx_model(1, 2, 2, 32), 2, 64, 57);
    fx_compress("snapkv:keep=0.5+rot:bits=4,group=16", &f.in, &r);
    static const char *const others[] = {"snapkv:keep=0.5", "snapkv:keep=0.5+rot:bits=3,group=16",
                                         "snapkv:keep=0.5+rot:bits=4,group=32", "rot:bits=4,group=16"};
    for (int i = 0; i < 4; i++) {
        node_spec_t spec = fx_spec(others[i]);
        node_body_builder_t *b;
        cr_assert_eq(node_body_begin(&spec, &f.model, 2, &b, NULL), VC_OK);
        cr_assert_eq(node_body_add_record(b, r.data[0], r.bytes[0], NULL), VC_ERR_MISMATCH, "%s", others[i]);
        node_body_abort(b);
    }
    fx_records_free(&r);
    fx_close(&f);
}
