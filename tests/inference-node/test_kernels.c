/*
 * Every table of operations against the scalar one, bit by bit, for sizes that are no multiple of anything; and the
 * scalar one against plain double arithmetic.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/numerics.h"
#include "support/vc_test.h"
#include "vc/mem.h"

static uint32_t seed_state;

static float rnd(void) /* about normal, in (-4, 4) */
{
    float s = 0;
    for (int i = 0; i < 4; i++) {
        seed_state = seed_state * 1664525u + 1013904223u;
        s += (float)(seed_state >> 8) * 0x1p-23f - 1.0f;
    }
    return s;
}

static float *fill(size_t n, float scale)
{
    float *x = vc_alloc_aligned(64, (n + 64) * sizeof *x);
    for (size_t i = 0; i < n + 64; i++)
        x[i] = rnd() * scale;
    return x;
}

/* Equal bits; a NaN equals any NaN, since which payload survives is not ours to say. */
static bool same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (node_bits_from_f32(a[i]) != node_bits_from_f32(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* The tables that this CPU runs, the plain ones too where VNNI hides them. */
enum { TABLES = 5 };
static uint32_t tables(const node_ops_t *list[TABLES])
{
    uint32_t n = 0;
    list[n++] = &node_ops_scalar;
    if (node_ops_get(NODE_OPS_AVX2) != NULL)
        list[n++] = &node_ops_avx2;
    if (node_ops_get(NODE_OPS_AVX2) == &node_ops_avx2vnni)
        list[n++] = &node_ops_avx2vnni;
    if (node_ops_get(NODE_OPS_AVX512) != NULL)
        list[n++] = &node_ops_avx512;
    if (node_ops_get(NODE_OPS_AVX512) == &node_ops_avx512vnni)
        list[n++] = &node_ops_avx512vnni;
    return n;
}

static const uint32_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 100, 576};

typedef void (*compare_fn)(const node_ops_t *ops, uint32_t n, float *x, float *y, float *out);

static void run_rms(const node_ops_t *o, uint32_t n, float *x, float *y, float *out)
{
    o->rms_norm(x, y, n, 1e-5f, out);
}
static void run_swiglu(const node_ops_t *o, uint32_t n, float *x, float *y, float *out) { o->swiglu(x, y, n, out); }
static void run_scale(const node_ops_t *o, uint32_t n, float *x, float *y, float *out) { o->scale(x, y[0], n, out); }
static void run_finish(const node_ops_t *o, uint32_t n, float *x, float *y, float *out)
{
    o->finish(fabsf(y[0]) + 0.1f, x, n / 16 * 16, out);
}
static void run_add(const node_ops_t *o, uint32_t n, float *x, float *y, float *out)
{
    memcpy(out, x, n * sizeof *x);
    o->add(out, y, n);
}
static void run_rope(const node_ops_t *o, uint32_t n, float *x, float *y, float *out)
{
    memcpy(out, x, 2 * n * sizeof *x);
    o->rope(out, y, y + n, n);
}

static void compare(compare_fn fn, float scale)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    for (size_t i = 0; i < VC_ARRAY_LEN(lengths); i++) {
        uint32_t n = lengths[i];
        float *x = fill(2 * n, scale), *y = fill(2 * n, scale), *want = fill(2 * n, 1), *got = fill(2 * n, 1);
        memcpy(got, want, (2 * n + 64) * sizeof *got);
        fn(list[0], n, x, y, want);
        for (uint32_t t = 1; t < n_tables; t++) {
            fn(list[t], n, x, y, got);
            /* up to the end of the slack: nothing may be written past the row */
            cr_assert(same(want, got, 2 * n + 64), "%s, n = %u", list[t]->name, n);
        }
        vc_free(x), vc_free(y), vc_free(want), vc_free(got);
    }
}

Test(kernels, elementwise_operations_have_the_bits_of_the_scalar_ones)
{
    for (float scale = 1e-3f; scale < 1e5f; scale *= 30) {
        compare(run_rms, scale);
        compare(run_swiglu, scale);
        compare(run_scale, scale);
        compare(run_finish, scale);
        compare(run_add, scale);
        compare(run_rope, scale);
    }
}

Test(kernels, swiglu_handles_every_kind_of_float)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    float x[96], y[96], want[96], got[96];
    const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 87.3f, -87.3f, 88.8f, -88.8f, 3e38f};
    for (int i = 0; i < 96; i++) {
        x[i] = odd[i % 12];
        y[i] = odd[(i / 12 + i) % 12];
    }
    node_ops_scalar.swiglu(x, y, 96, want);
    for (uint32_t t = 1; t < n_tables; t++) {
        list[t]->swiglu(x, y, 96, got);
        cr_assert(same(want, got, 96), "%s", list[t]->name);
    }
    float g[2] = {1.5f, -2.0f}, u[2] = {2.0f, 3.0f}, out[2];
    node_ops_scalar.swiglu(g, u, 2, out);
    cr_assert(fabs((double)out[0] - 3.0 / (1 + exp(-1.5))) < 1e-6);
    cr_assert(fabs((double)out[1] + 6.0 / (1 + exp(2.0))) < 1e-6);
}

Test(kernels, rms_norm_is_the_formula)
{
    float *x = fill(100, 2), *w = fill(100, 1), out[100];
    double ss = 0;
    for (int i = 0; i < 100; i++)
        ss += (double)x[i] * (double)x[i];
    node_ops_scalar.rms_norm(x, w, 100, 1e-5f, out);
    for (int i = 0; i < 100; i++)
        cr_assert(fabs((double)out[i] - (double)x[i] / sqrt(ss / 100 + 1e-5) * (double)w[i]) < 1e-5);
    vc_free(x), vc_free(w);
}

Test(kernels, halves_are_counted_when_they_saturate)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = rnd() * powf(10, (float)(i % 16) - 9);
    x[3] = 65504, x[4] = 65519, x[5] = -65521, x[6] = INFINITY, x[7] = NAN, x[8] = 0x1p-24f, x[9] = -1e9f, x[10] = 0;
    for (uint32_t t = 0; t < n_tables; t++) {
        uint16_t h[64];
        uint32_t over = list[t]->to_f16(x, 64, h), want = 0;
        for (int i = 0; i < 64; i++) {
            want += fabsf(x[i]) > 65504.0f;
            cr_assert_eq(h[i], node_f16_from_f32(x[i]), "%s lane %d", list[t]->name, i);
        }
        cr_assert_eq(over, want);
        cr_assert_geq(over, 4u);
    }
}

/* ---- linear ---- */

static node_acts_t acts_create(uint32_t n_in, uint32_t rows, float scale)
{
    node_acts_t a = {.n_in = n_in, .stride = vc_align_up(n_in, 32), .group_stride = n_in / NODE_GROUP + 1};
    a.x = fill(rows * a.stride, scale);
    a.q = vc_alloc_aligned(64, rows * a.stride * 2 + 64);
    a.scale = fill(rows * a.group_stride, 1);
    a.sum = fill(rows * a.group_stride, 1);
    a.isum = vc_calloc(rows * a.group_stride, 4);
    return a;
}

static void acts_free(node_acts_t *a)
{
    vc_free(a->x), vc_free(a->q), vc_free(a->scale), vc_free(a->sum), vc_free(a->isum);
}

Test(kernels, quantised_activations_are_equal_and_within_half_a_step)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    node_acts_t a = acts_create(576, 2, 3.0f), b = acts_create(576, 2, 1.0f);
    memset(a.x, 0, 32 * sizeof(float)); /* a group without signal */
    a.x[40] = 1e-42f, memset(a.x + 41, 0, 23 * sizeof(float)), memset(a.x + 32, 0, 8 * sizeof(float)); /* a denormal */
    a.x[70] = NAN, a.x[71] = INFINITY, a.x[100] = 1e38f;
    memcpy(b.x, a.x, 2 * a.stride * sizeof(float));
    for (uint32_t t = 0; t < n_tables; t++)
        for (uint32_t r = 0; r < 2; r++) {
            node_ops_scalar.quantise(&a, r);
            list[t]->quantise(&b, r);
            size_t at = r * a.group_stride;
            cr_assert(memcmp(a.q + r * a.stride, b.q + r * a.stride, 576 * 2) == 0, "%s codes", list[t]->name);
            cr_assert(same(a.scale + at, b.scale + at, 18) && same(a.sum + at, b.sum + at, 18), "%s", list[t]->name);
            cr_assert(memcmp(a.isum + at, b.isum + at, 18 * 4) == 0);
        }
    cr_assert(a.scale[0] == 0 && a.scale[1] == 0 && a.q[0] == 0 && a.q[40] == 0);
    for (uint32_t i = 0; i < 576; i++) {
        size_t at = a.stride + i;
        float s = a.scale[a.group_stride + i / 32];
        /* half a step, and the rounding of a code up to 2^15 in f32 */
        cr_assert(fabs((double)a.x[at] - (double)s * a.q[at]) <= 0.505 * (double)s);
    }
    acts_free(&a), acts_free(&b);
}

static const uint32_t types[] = {NODE_W_Q4_0, NODE_W_Q4_1, NODE_W_Q8_0, NODE_W_F16, NODE_W_F32};

/* A file row of random bytes whose scales are sane. */
static void random_row(uint32_t type, uint32_t n_in, uint8_t *row)
{
    if (!node_matrix_quantised(type)) {
        for (uint32_t i = 0; i < n_in; i++) {
            float v = rnd();
            uint16_t h = node_f16_from_f32(v);
            memcpy(row + i * (type == NODE_W_F16 ? 2 : 4), type == NODE_W_F16 ? (void *)&h : (void *)&v,
                   type == NODE_W_F16 ? 2 : 4);
        }
        return;
    }
    size_t block = node_matrix_row_bytes(type, 32);
    for (uint32_t g = 0; g < n_in / 32; g++, row += block) {
        for (size_t i = 0; i < block; i++) {
            seed_state = seed_state * 1664525u + 1013904223u;
            row[i] = (uint8_t)(seed_state >> 24);
        }
        uint16_t d = node_f16_from_f32(rnd() * 0.01f), m = node_f16_from_f32(rnd() * 0.1f);
        memcpy(row, &d, 2);
        if (type == NODE_W_Q4_1)
            memcpy(row + 2, &m, 2);
    }
}

typedef struct {
    node_matrix_t m;
    node_huge_pool_t pool;
    uint8_t *file;
    float *plain; /* [n_out][n_in] */
    float *bias;
} matrix_t;

static matrix_t matrix_create(uint32_t type, uint32_t n_in, uint32_t n_out)
{
    matrix_t x = {0};
    size_t bytes = node_matrix_row_bytes(type, n_in);
    if (!node_matrix_quantised(type))
        bytes = (size_t)n_in * (type == NODE_W_F16 ? 2 : 4);
    x.file = vc_calloc(n_out, bytes);
    x.plain = vc_calloc((size_t)n_out * n_in, sizeof(float));
    const uint8_t *rows[256];
    for (uint32_t o = 0; o < n_out; o++) {
        random_row(type, n_in, x.file + o * bytes);
        rows[o] = x.file + o * bytes;
        node_matrix_unpack_row(type, rows[o], n_in, x.plain + (size_t)o * n_in);
    }
    cr_assert_eq(node_matrix_pack(&x.m, type, n_in, n_out, rows, &x.pool), VC_OK);
    x.bias = fill(n_out + 16, 1);
    x.m.bias = n_out % 2 ? x.bias : NULL;
    return x;
}

static void matrix_free(matrix_t *x)
{
    node_huge_pool_free(&x->pool);
    vc_free(x->file), vc_free(x->plain), vc_free(x->bias);
}

static void check_formula(const matrix_t *x, const node_acts_t *a, const float *out, size_t stride, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < x->m.n_out; o++) {
            double want = x->m.bias != NULL ? (double)x->bias[o] : 0, size = fabs(want) + 1e-6;
            for (uint32_t i = 0; i < x->m.n_in; i++) {
                double t = (double)x->plain[(size_t)o * x->m.n_in + i] * (double)a->x[r * a->stride + i];
                want += t;
                size += fabs(t);
            }
            /* an activation moves by at most half of amax / 32767; the rest is float summation */
            cr_assert(fabs((double)out[r * stride + o] - want) < 5e-5 * size, "type %u row %u output %u: %g, not %g",
                      x->m.type, r, o, (double)out[r * stride + o], want);
        }
}

static void compare_linear(uint32_t type, uint32_t n_in, uint32_t n_out, uint32_t rows)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    matrix_t x = matrix_create(type, n_in, n_out);
    node_acts_t a = acts_create(n_in, rows, 1.0f);
    size_t stride = n_out + 3;
    for (uint32_t r = 0; n_in % 32 == 0 && r < rows; r++)
        node_ops_scalar.quantise(&a, r);
    float *want = fill(rows * stride, 1), *got = fill(rows * stride, 1);
    for (uint32_t t = 0; t < n_tables; t++) {
        memcpy(got, want, rows * stride * sizeof *got);
        list[t]->linear(&x.m, 0, x.m.n_panels, t % 2 ? x.m.data : NULL, &a, 0, rows, t == 0 ? want : got, stride);
        cr_assert(t == 0 || same(want, got, rows * stride), "%s type %u [%u, %u] rows %u", list[t]->name, type, n_in,
                  n_out, rows);
        /* one row and one panel at a time gives the same bits */
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t p = 0; p < x.m.n_panels; p++)
                list[t]->linear(&x.m, p, p + 1, NULL, &a, r, 1, got, stride);
        cr_assert(same(want, got, rows * stride), "%s type %u: rows alone differ", list[t]->name, type);
    }
    check_formula(&x, &a, want, stride, rows);
    vc_free(want), vc_free(got);
    acts_free(&a);
    matrix_free(&x);
}

Test(kernels, pieces_of_a_pool_do_not_overlap_whatever_their_size)
{
    static const size_t sizes[] = {1, 64, 65, 3u << 20, 40u << 20, 100, 31u << 20, 0, 5};
    node_huge_pool_t pool = {0};
    uint8_t *at[VC_ARRAY_LEN(sizes)];
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++) {
        at[i] = node_huge_pool_alloc(&pool, sizes[i]);
        cr_assert(at[i] != NULL && (uintptr_t)at[i] % 64 == 0);
        for (size_t j = 0; j < sizes[i]; j += sizes[i] < 4096 ? 1 : 4096)
            at[i][j] = (uint8_t)(i + 1);
    }
    for (size_t i = 0; i < VC_ARRAY_LEN(sizes); i++)
        for (size_t j = 0; j < sizes[i]; j += sizes[i] < 4096 ? 1 : 4096)
            cr_assert_eq(at[i][j], i + 1);
    cr_assert_null(node_huge_pool_alloc(&pool, SIZE_MAX - 8));
    node_huge_pool_free(&pool);
    cr_assert_null(pool.slabs);
}

Test(kernels, an_unpacked_panel_is_the_rows_of_the_file)
{
    for (size_t t = 0; t < VC_ARRAY_LEN(types); t++) {
        matrix_t x = matrix_create(types[t], 96, 37);
        float out[NODE_PANEL * 96];
        for (uint32_t o = 0; o < x.m.n_panels * NODE_PANEL; o++) {
            node_matrix_unpack_panel(&x.m, o / NODE_PANEL, out);
            const float *row = out + o % NODE_PANEL * 96;
            for (uint32_t i = 0; i < 96; i++)
                cr_assert(row[i] == (o < 37 ? x.plain[o * 96 + i] : 0.0f), "type %u output %u input %u", types[t], o,
                          i);
        }
        matrix_free(&x);
    }
}

Test(kernels, linear_is_equal_on_every_table_for_every_type_and_odd_shape)
{
    static const uint32_t ins[] = {32, 64, 96, 576}, outs[] = {1, 15, 16, 17, 33, 100},
                          rows[] = {1, 2, 3, 4, 7, 8, 9, 13};
    for (size_t t = 0; t < VC_ARRAY_LEN(types); t++)
        for (size_t i = 0; i < VC_ARRAY_LEN(ins); i++)
            for (size_t o = 0; o < VC_ARRAY_LEN(outs); o++)
                compare_linear(types[t], ins[i], outs[o], rows[(t + 3 * i + o) % VC_ARRAY_LEN(rows)]);
    for (size_t r = 0; r < VC_ARRAY_LEN(rows); r++)
        for (size_t t = 0; t < VC_ARRAY_LEN(types); t++)
            compare_linear(types[t], 64, 40, rows[r]);
    compare_linear(NODE_W_F32, 19, 21, 5);
    compare_linear(NODE_W_F16, 33, 70, 3);
}

Test(kernels, the_largest_codes_and_activations_do_not_overflow)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    for (size_t k = 0; k < 3; k++) {
        uint8_t file[34];
        memset(file, types[k] == NODE_W_Q8_0 ? 0x80 : 0xff, sizeof file); /* codes -128, 15 */
        uint16_t one = node_f16_from_f32(1.0f);
        memcpy(file, &one, 2);
        if (types[k] == NODE_W_Q4_1)
            memset(file + 2, 0, 2);
        const uint8_t *rows[1] = {file};
        node_matrix_t m;
        node_huge_pool_t pool = {0};
        cr_assert_eq(node_matrix_pack(&m, types[k], 32, 1, rows, &pool), VC_OK);
        node_acts_t a = acts_create(32, 1, 1);
        for (int i = 0; i < 32; i++)
            a.x[i] = 32767.0f;
        node_ops_scalar.quantise(&a, 0);
        double code = types[k] == NODE_W_Q8_0 ? -128 : types[k] == NODE_W_Q4_0 ? 7 : 15;
        for (uint32_t t = 0; t < n_tables; t++) {
            float out;
            list[t]->linear(&m, 0, 1, NULL, &a, 0, 1, &out, 16);
            cr_assert(fabs((double)out / (32 * 32767.0 * code) - 1) < 1e-6, "%s: %g", list[t]->name, (double)out);
        }
        acts_free(&a);
        node_huge_pool_free(&pool);
    }
}

/* ---- attention ---- */

typedef struct {
    uint32_t n_q, d;
    float *q, *m, *l, *o, *p;
    uint16_t *k, *v;
    uint32_t valid[NODE_QUERY_MAX];
} attn_t;

static attn_t attn_create(uint32_t n_q, uint32_t d)
{
    attn_t a = {.n_q = n_q, .d = d};
    a.q = fill((size_t)n_q * d, 0.3f);
    a.m = fill(n_q, 1), a.l = fill(n_q, 1), a.o = fill((size_t)n_q * d, 1);
    a.p = fill((size_t)n_q * NODE_ATTN_TILE, 1);
    a.k = vc_calloc(2 * NODE_ATTN_TILE * d, 2), a.v = vc_calloc(2 * NODE_ATTN_TILE * d, 2);
    for (uint32_t i = 0; i < 2 * NODE_ATTN_TILE * d; i++) {
        a.k[i] = node_f16_from_f32(rnd());
        a.v[i] = node_f16_from_f32(rnd());
    }
    for (uint32_t i = 0; i < n_q; i++)
        a.valid[i] = 1 + (i * 23 + n_q) % NODE_ATTN_TILE;
    return a;
}

static void attn_free(attn_t *a)
{
    vc_free(a->q), vc_free(a->m), vc_free(a->l), vc_free(a->o), vc_free(a->p), vc_free(a->k), vc_free(a->v);
}

/* Two tiles, the second one seen only as far as valid[] says. */
static void attn_run(const node_ops_t *ops, attn_t *a, uint32_t first, uint32_t n)
{
    node_attn_t x = {.n_q = n, .head_dim = a->d, .q = a->q + (size_t)first * a->d, .p = a->p};
    x.m = a->m + first, x.l = a->l + first, x.o = a->o + (size_t)first * a->d;
    for (uint32_t i = 0; i < n; i++) {
        x.m[i] = -INFINITY;
        x.l[i] = 0;
        x.n_valid[i] = NODE_ATTN_TILE;
    }
    memset(x.o, 0, (size_t)n * a->d * sizeof(float));
    ops->attend(&x, a->k, a->v);
    memcpy(x.n_valid, a->valid + first, n * sizeof *a->valid);
    ops->attend(&x, a->k + NODE_ATTN_TILE * a->d, a->v + NODE_ATTN_TILE * a->d);
}

static void attn_check(const attn_t *a)
{
    for (uint32_t i = 0; i < a->n_q; i++) {
        double l = 0, o[NODE_HEAD_DIM_MAX] = {0};
        for (uint32_t t = 0; t < NODE_ATTN_TILE + a->valid[i]; t++) {
            uint32_t tile = t / NODE_ATTN_TILE, slot = t % NODE_ATTN_TILE;
            const uint16_t *k = a->k + tile * NODE_ATTN_TILE * a->d, *v = a->v + tile * NODE_ATTN_TILE * a->d;
            double s = 0;
            for (uint32_t c = 0; c < a->d; c++)
                s += (double)a->q[i * a->d + c] * (double)node_f32_from_f16(k[c * NODE_ATTN_TILE + slot]);
            l += exp2(s);
            for (uint32_t c = 0; c < a->d; c++)
                o[c] += exp2(s) * (double)node_f32_from_f16(v[slot * a->d + c]);
        }
        for (uint32_t c = 0; c < a->d; c++)
            cr_assert(fabs((double)(a->o[i * a->d + c] / a->l[i]) - o[c] / l) < 2e-5, "query %u dim %u", i, c);
    }
}

Test(kernels, attention_is_equal_on_every_table_and_for_queries_alone)
{
    static const uint32_t dims[] = {16, 32, 48, 64, 80, 128};
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    for (size_t k = 0; k < VC_ARRAY_LEN(dims); k++)
        for (uint32_t n_q = 1; n_q <= 25; n_q += 1 + (uint32_t)k) {
            attn_t a = attn_create(n_q, dims[k]);
            float *m = fill(n_q, 1), *l = fill(n_q, 1), *o = fill((size_t)n_q * a.d, 1);
            attn_run(list[0], &a, 0, n_q);
            attn_check(&a);
            memcpy(m, a.m, n_q * 4), memcpy(l, a.l, n_q * 4), memcpy(o, a.o, (size_t)n_q * a.d * 4);
            for (uint32_t t = 0; t < n_tables; t++) {
                attn_run(list[t], &a, 0, n_q);
                cr_assert(same(m, a.m, n_q) && same(l, a.l, n_q) && same(o, a.o, (size_t)n_q * a.d), "%s d %u n_q %u",
                          list[t]->name, a.d, n_q);
                for (uint32_t i = 0; i < n_q; i++)
                    attn_run(list[t], &a, i, 1);
                cr_assert(same(m, a.m, n_q) && same(l, a.l, n_q) && same(o, a.o, (size_t)n_q * a.d), "%s alone",
                          list[t]->name);
            }
            vc_free(m), vc_free(l), vc_free(o);
            attn_free(&a);
        }
}

Test(kernels, asking_for_the_next_tile_changes_no_bit)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    for (uint32_t t = 0; t < n_tables; t++) {
        attn_t a = attn_create(7, 80);
        float o[2][7 * 80];
        for (int ask = 0; ask < 2; ask++) {
            node_attn_t x = {.n_q = 7, .head_dim = 80, .q = a.q, .m = a.m, .l = a.l, .o = o[ask], .p = a.p};
            if (ask) {
                x.next_k = a.k + NODE_ATTN_TILE * a.d;
                x.next_v = a.v + NODE_ATTN_TILE * a.d;
            }
            for (uint32_t i = 0; i < 7; i++) {
                a.m[i] = -INFINITY;
                a.l[i] = 0;
                x.n_valid[i] = 1 + 9 * i;
            }
            memset(o[ask], 0, sizeof o[ask]);
            list[t]->attend(&x, a.k, a.v);
        }
        cr_assert(same(o[0], o[1], 7 * 80), "%s", list[t]->name);
        attn_free(&a);
    }
}

Test(kernels, tokens_that_a_query_does_not_see_cannot_reach_it)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    attn_t a = attn_create(7, 64);
    a.valid[2] = 0; /* skips the tile */
    attn_run(list[0], &a, 0, 7);
    float *o = fill(7 * 64, 1), *l = fill(7, 1);
    memcpy(o, a.o, 7 * 64 * 4), memcpy(l, a.l, 7 * 4);
    for (uint32_t i = 0, most = 0; i < 7; i++) {
        most = VC_MAX(most, a.valid[i]);
        for (uint32_t t = most; i == 6 && t < NODE_ATTN_TILE; t++) /* nobody sees these: NaN and infinity in them */
            for (uint32_t c = 0; c < 64; c++) {
                a.k[NODE_ATTN_TILE * 64 + c * NODE_ATTN_TILE + t] = 0x7e00;
                a.v[NODE_ATTN_TILE * 64 + t * 64 + c] = 0x7c00;
            }
    }
    for (uint32_t t = 0; t < n_tables; t++) {
        attn_run(list[t], &a, 0, 7);
        cr_assert(same(o, a.o, 7 * 64) && same(l, a.l, 7), "%s", list[t]->name);
    }
    vc_free(o), vc_free(l);
    attn_free(&a);
}

Test(kernels, folding_two_splits_equals_attention_over_both)
{
    const node_ops_t *list[TABLES];
    uint32_t n_tables = tables(list);
    attn_t a = attn_create(5, 64), b = attn_create(5, 64);
    attn_run(list[0], &a, 0, 5);
    attn_run(list[0], &b, 0, 5);
    float *m = fill(5, 1), *l = fill(5, 1), *o = fill(5 * 64, 1);
    float *m2 = fill(5, 1), *l2 = fill(5, 1), *o2 = fill(5 * 64, 1);
    b.l[4] = 0; /* an empty split changes nothing */
    for (uint32_t t = 0; t < n_tables; t++) {
        memcpy(m, a.m, 20), memcpy(l, a.l, 20), memcpy(o, a.o, 5 * 64 * 4);
        list[t]->fold(5, 64, m, l, o, b.m, b.l, b.o);
        if (t == 0)
            memcpy(m2, m, 20), memcpy(l2, l, 20), memcpy(o2, o, 5 * 64 * 4);
        cr_assert(same(m, m2, 5) && same(l, l2, 5) && same(o, o2, 5 * 64), "%s", list[t]->name);
    }
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t c = 0; c < 64; c++) {
            double wa = exp2((double)a.m[i]), wb = exp2((double)b.m[i]);
            double want = ((double)a.o[i * 64 + c] * wa + (double)b.o[i * 64 + c] * wb) /
                          ((double)a.l[i] * wa + (double)b.l[i] * wb);
            cr_assert(fabs((double)(o[i * 64 + c] / l[i]) - want) < 1e-5);
        }
    cr_assert(same(o + 4 * 64, a.o + 4 * 64, 64) && l[4] == a.l[4]);
    vc_free(m), vc_free(l), vc_free(o), vc_free(m2), vc_free(l2), vc_free(o2);
    attn_free(&a), attn_free(&b);
}
