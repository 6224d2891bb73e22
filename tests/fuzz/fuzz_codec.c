/*
 * Compressed payloads on hostile bytes. The first byte chooses the method (bits 0-2, 4-6) and the head size (bit 3),
 * the rest is one layer part of a record that is otherwise whole: a fuzzer cannot guess its sums, so they are made
 * here. Whatever is accepted must be a body of finite numbers within its bounds.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compress/calib.h"
#include "kernels/backend.h"
#include "vc/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const specs[] = {"none",
                                    "noise",
                                    "snapkv",
                                    "kivi:bits=2,group=32",
                                    "kivi:bits=4,group=32",
                                    "kivi:bits=8,group=64",
                                    "kivi:bits=2,group=16",
                                    "kivi:bits=4,group=64",
                                    "rot:bits=2,center=no",
                                    "rot:bits=3,center=no",
                                    "rot:bits=4,center=no",
                                    "rot:bits=8,center=no",
                                    "rot:bits=2,group=16,center=no",
                                    "rot:bits=3,group=16,center=no",
                                    "rot:bits=4,group=32,center=no",
                                    "rot:bits=8,group=128,center=no",
                                    "snapkv+rot:bits=4",
                                    "snapkv+rot:bits=3,group=16",
                                    "snapkv+rot:bits=2",
                                    "none+rot:bits=8,group=32",
                                    "kvquant:bits=4,levels=nf",
                                    "kvquant:bits=3,levels=nf,sinks=0",
                                    "kvquant:bits=2,levels=nf,outliers=0",
                                    "rotatekv:bits=4",
                                    "rotatekv:bits=3,group=16,sinks=0",
                                    "rotatekv:bits=2,group=64",
                                    "rot:bits=4",
                                    "rot:bits=3,group=16",
                                    "rot:bits=2"};
static const uint32_t dims[] = {16, 64};
enum { N_HEAD = 2 };

static void must(int ok)
{
    if (!ok)
        abort();
}

static void make_model(uint32_t dim, node_model_info_t *m)
{
    static const float freq[32] = {1.0f, 0.5f, 0.25f, 0.125f}; /* keys of some methods are turned at load */
    memset(m, 0, sizeof(*m));
    m->n_layer = 1;
    m->n_head = m->n_kv_head = N_HEAD;
    m->head_dim = m->rope_dims = dim;
    m->rope_inv_freq = freq;
    m->rope_mscale = 1.0f;
    m->keyspace.shape = (vc_kv_shape_t){1, N_HEAD, dim, NODE_TILE, VC_DTYPE_F16};
    m->keyspace_id.b[0] = 1;
}

static void check_numbers(const uint16_t *x, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (x[i] & 0x7c00u) == 0x7c00u;
    must(!bad);
}

/* Attention over whatever was accepted is a number, the same one from the plain reference and from the best table. */
static void check_codes(const node_coded_form_t *form, const uint8_t *tile, uint32_t n_rows)
{
    static _Alignas(64) float q[64], o[2][64], p[NODE_TILE];
    const node_ops_t *list[2] = {&node_ops_scalar, node_ops_get(NODE_OPS_AVX512)};
    if (list[1] == NULL)
        list[1] = node_ops_get(NODE_OPS_AVX2);
    float m[2], l[2];
    for (int i = 0; i < 2 && list[i]; i++) {
        node_coded_query_t coded;
        node_attn_t a = {.n_q = 1, .head_dim = form->dim, .q = q, .m = &m[i], .l = &l[i], .o = o[i], .p = p};
        a.n_valid[0] = n_rows;
        m[i] = -__builtin_inff();
        l[i] = 0;
        memset(o[i], 0, sizeof o[i]);
        for (uint32_t c = 0; c < form->dim; c++)
            q[c] = (float)(c % 7) * 0.25f - 0.75f;
        list[i]->code_query(form, q, &coded);
        list[i]->attend_coded(&a, form, &coded, tile);
        for (uint32_t c = 0; c < form->dim; c++)
            must(o[i][c] - o[i][c] == 0.0f);
        must(memcmp(o[i], o[0], sizeof o[0]) == 0 && m[i] == m[0] && l[i] == l[0]);
    }
}

static void check_body(const node_body_t *body, uint32_t dim)
{
    must(body->n_tokens == NODE_TILE);
    for (uint32_t h = 0; h < N_HEAD; h++) {
        must(body->n_tiles[h] <= 1 && node_body_n_dropped(body, 0, h) <= NODE_TILE);
        if (body->n_tiles[h] == 0)
            continue;
        must(body->tiles[h][0].n_rows >= 1 && body->tiles[h][0].n_rows <= NODE_TILE);
        if (body->tiles[h][0].codes) {
            check_codes(&body->form, body->tiles[h][0].codes, body->tiles[h][0].n_rows);
            continue;
        }
        check_numbers(body->tiles[h][0].k, (size_t)dim * NODE_TILE);
        check_numbers(body->tiles[h][0].v, (size_t)dim * NODE_TILE);
    }
}

/* A whole record around the part; NULL when the writer refuses its length. */
static uint8_t *wrap(const node_model_info_t *m, const node_spec_t *spec, const uint8_t *part, size_t length,
                     size_t *bytes_p)
{
    static const uint32_t tokens[NODE_TILE];
    vc_kvrec_head_t head;
    memset(&head, 0, sizeof(head));
    head.fidelity = VC_FIDELITY_COMPRESSED;
    head.kind = spec->ops->kind;
    head.shape = m->keyspace.shape;
    head.numerics_id = NODE_NUMERICS_ID;
    head.spec = spec->id;
    head.keyspace = head.parent = m->keyspace_id;
    size_t cap = vc_kvrec_header_bytes(&head.shape) + length + VC_KVREC_ALIGN;
    uint8_t *buf = vc_alloc(cap);
    must(buf != NULL);
    vc_kvrec_writer_t w;
    void *at;
    if (vc_kvrec_write_begin(&w, buf, cap, &head, tokens, NULL) != VC_OK ||
        vc_kvrec_write_layer(&w, (uint32_t)length, &at, NULL) != VC_OK) {
        vc_free(buf);
        return NULL;
    }
    if (length)
        memcpy(at, part, length);
    if (vc_kvrec_write_end(&w, bytes_p, NULL) != VC_OK) {
        vc_free(buf);
        return NULL;
    }
    return buf;
}

/* RotateKV's blob: channels in their own order. */
static void bind(node_spec_t *spec, uint32_t dim)
{
    static uint8_t payload[N_HEAD * 64 * 2];
    static node_calib_t calib = {.method = "rotatekv", .payload = payload};
    for (uint32_t i = 0; i < N_HEAD * dim; i++)
        payload[2 * i] = (uint8_t)i;
    calib.bytes = (size_t)N_HEAD * dim * 2;
    node_spec_bind(spec, &calib);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 20)
        return 0;
    node_model_info_t model;
    make_model(dims[data[0] >> 3 & 1], &model);
    node_spec_t spec;
    must(node_spec_parse(specs[((data[0] & 7u) + (data[0] >> 1 & 0x38u)) % (sizeof(specs) / sizeof(specs[0]))], &spec,
                         NULL) == VC_OK);
    if (spec.ops->needs(&spec) & NODE_NEED_CALIB)
        bind(&spec, model.head_dim);
    size_t bytes;
    uint8_t *record = wrap(&model, &spec, data + 1, size - 1, &bytes);
    if (record == NULL)
        return 0;
    node_body_builder_t *b;
    must(node_body_begin(&spec, &model, 1, &b, NULL) == VC_OK);
    vc_err_t err = {0};
    vc_status_t st = node_body_add_record(b, record, bytes, &err);
    if (st != VC_OK) {
        must(err.status == st && err.msg[0] != '\0');
        node_body_abort(b);
    } else {
        node_body_t *body;
        must(node_body_finish(b, &body, NULL) == VC_OK);
        check_body(body, model.head_dim);
        node_body_put(body);
    }
    vc_free(record);
    return 0;
}
