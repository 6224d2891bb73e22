/* Repacking of the file's rows into panels, once at load. */
#include "kernels/matrix.h"

#include <string.h>

#include "kernels/numerics.h"
#include "vc/mem.h"

enum { GROUP = 32, Q4_CODES = 256, Q8_CODES = 512, HALFS = 32 };

bool node_matrix_quantised(uint32_t type) { return type == NODE_W_Q4_0 || type == NODE_W_Q4_1 || type == NODE_W_Q8_0; }

bool node_matrix_type_ok(uint32_t type)
{
    return node_matrix_quantised(type) || type == NODE_W_F16 || type == NODE_W_F32;
}

static size_t block_bytes(uint32_t type) /* of 32 weights in the file */
{
    switch (type) {
    case NODE_W_Q4_0: return 18;
    case NODE_W_Q4_1: return 20;
    case NODE_W_Q8_0: return 34;
    case NODE_W_F16: return 64;
    default: return 128;
    }
}

size_t node_matrix_row_bytes(uint32_t type, uint32_t n_in) { return block_bytes(type) * n_in / GROUP; }

static size_t packed_group_bytes(uint32_t type)
{
    switch (type) {
    case NODE_W_Q4_0: return Q4_CODES + HALFS;
    case NODE_W_Q4_1: return Q4_CODES + 2 * HALFS;
    case NODE_W_Q8_0: return Q8_CODES + HALFS;
    default: return 0;
    }
}

/* Code i of a 4-bit block: the file keeps input i < 16 in the low nibble of byte i, i + 16 in the high one. */
static uint32_t code4(const uint8_t *qs, uint32_t i) { return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4; }

static void pack_q4(uint8_t *group, uint32_t lane, const uint8_t *block, bool has_min)
{
    const uint8_t *qs = block + (has_min ? 4 : 2);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < 4; j++)
            word |= code4(qs, 8 * k + 2 * j) << (4 * j) | code4(qs, 8 * k + 2 * j + 1) << (4 * j + 16);
        memcpy(group + k * 64 + lane * 4, &word, 4);
    }
    memcpy(group + Q4_CODES + lane * 2, block, 2);
    if (has_min)
        memcpy(group + Q4_CODES + HALFS + lane * 2, block + 2, 2);
}

static void pack_q8(uint8_t *group, uint32_t lane, const uint8_t *block)
{
    for (uint32_t k = 0; k < 8; k++) {
        const uint8_t *c = block + 2 + 4 * k;
        uint8_t word[4] = {c[0], c[2], c[1], c[3]};
        memcpy(group + k * 64 + lane * 4, word, 4);
    }
    memcpy(group + Q8_CODES + lane * 2, block, 2);
}

static void pack_row(node_matrix_t *m, uint32_t out, const uint8_t *row)
{
    uint8_t *panel = m->data + (size_t)(out / NODE_PANEL) * m->panel_bytes;
    uint32_t lane = out % NODE_PANEL;
    if (!node_matrix_quantised(m->type)) {
        size_t w = m->type == NODE_W_F16 ? 2 : 4;
        for (uint32_t i = 0; i < m->n_in; i++)
            memcpy(panel + ((size_t)i * NODE_PANEL + lane) * w, row + i * w, w);
        return;
    }
    for (uint32_t g = 0; g < m->n_in / GROUP; g++) {
        const uint8_t *block = row + g * block_bytes(m->type);
        uint8_t *group = panel + g * m->group_bytes;
        if (m->type == NODE_W_Q8_0)
            pack_q8(group, lane, block);
        else
            pack_q4(group, lane, block, m->type == NODE_W_Q4_1);
    }
}

vc_status_t node_matrix_pack(node_matrix_t *m, uint32_t type, uint32_t n_in, uint32_t n_out, const uint8_t *const *rows,
                             node_huge_pool_t *pool)
{
    *m = (node_matrix_t){.type = type, .n_in = n_in, .n_out = n_out, .n_panels = (n_out + NODE_PANEL - 1) / NODE_PANEL};
    m->group_bytes = packed_group_bytes(type);
    m->panel_bytes = node_matrix_quantised(type) ? n_in / GROUP * m->group_bytes
                                                 : (size_t)n_in * NODE_PANEL * (type == NODE_W_F16 ? 2 : 4);
    size_t bytes;
    if (!vc_size_mul(m->panel_bytes, m->n_panels, &bytes) || !vc_size_add(bytes, 64, &bytes))
        return VC_ERR_NOMEM;
    m->data = node_huge_pool_alloc(pool, bytes);
    if (m->data == NULL)
        return VC_ERR_NOMEM;
    if (n_out % NODE_PANEL != 0)
        memset(m->data + (size_t)(m->n_panels - 1) * m->panel_bytes, 0, m->panel_bytes);
    for (uint32_t o = 0; o < n_out; o++)
        pack_row(m, o, rows[o]);
    return VC_OK;
}

/* A lane of a run of words of `size` bytes, 16 lanes each. */
static void copy_lane(uint8_t *to, uint32_t to_lane, const uint8_t *from, uint32_t from_lane, size_t size, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + ((size_t)i * NODE_PANEL + to_lane) * size, from + ((size_t)i * NODE_PANEL + from_lane) * size,
               size);
}

void node_matrix_copy_row(node_matrix_t *m, uint32_t to, const node_matrix_t *source, uint32_t from)
{
    uint8_t *out = m->data + (size_t)(to / NODE_PANEL) * m->panel_bytes;
    const uint8_t *in = source->data + (size_t)(from / NODE_PANEL) * source->panel_bytes;
    uint32_t o = to % NODE_PANEL, i = from % NODE_PANEL;
    if (!node_matrix_quantised(m->type)) {
        copy_lane(out, o, in, i, m->type == NODE_W_F16 ? 2 : 4, m->n_in);
        return;
    }
    uint32_t codes = m->type == NODE_W_Q8_0 ? Q8_CODES : Q4_CODES;
    for (uint32_t g = 0; g < m->n_in / GROUP; g++, out += m->group_bytes, in += m->group_bytes) {
        copy_lane(out, o, in, i, 4, codes / (4 * NODE_PANEL));
        copy_lane(out + codes, o, in + codes, i, 2, m->type == NODE_W_Q4_1 ? 2 : 1); /* scales, minima */
    }
}

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return node_f32_from_f16(h);
}

static void unpack_block(uint32_t type, const uint8_t *block, float *out)
{
    float d = half_at(block);
    for (uint32_t i = 0; i < GROUP; i++) {
        if (type == NODE_W_Q8_0)
            out[i] = d * (float)(int8_t)block[2 + i];
        else if (type == NODE_W_Q4_0)
            out[i] = d * (float)((int32_t)code4(block + 2, i) - 8);
        else
            out[i] = node_fma(d, (float)code4(block + 4, i), half_at(block + 2));
    }
}

void node_matrix_unpack_row(uint32_t type, const uint8_t *row, uint32_t n_in, float *out)
{
    if (type == NODE_W_F32) {
        memcpy(out, row, (size_t)n_in * 4);
    } else if (type == NODE_W_F16) {
        for (uint32_t i = 0; i < n_in; i++)
            out[i] = half_at(row + 2 * (size_t)i);
    } else {
        for (uint32_t g = 0; g < n_in / GROUP; g++)
            unpack_block(type, row + g * block_bytes(type), out + (size_t)g * GROUP);
    }
}

/* Code of input i of a group, as pack_q4 and pack_q8 have laid it. */
static float packed_code(uint32_t type, const uint8_t *group, uint32_t lane, uint32_t i)
{
    if (type == NODE_W_Q8_0) {
        static const uint8_t place[4] = {0, 2, 1, 3};
        return (float)(int8_t)group[i / 4 * 64 + lane * 4 + place[i % 4]];
    }
    uint32_t word, nibble = i % 8 / 2 + i % 2 * 4;
    memcpy(&word, group + i / 8 * 64 + lane * 4, 4);
    int32_t code = (int32_t)(word >> 4 * nibble & 15u);
    return (float)(type == NODE_W_Q4_0 ? code - 8 : code);
}

static void unpack_group(uint32_t type, const uint8_t *group, uint32_t lane, float *out)
{
    const uint8_t *scales = group + (type == NODE_W_Q8_0 ? Q8_CODES : Q4_CODES);
    float d = half_at(scales + lane * 2), min = type == NODE_W_Q4_1 ? half_at(scales + HALFS + lane * 2) : 0.0f;
    for (uint32_t i = 0; i < GROUP; i++) {
        float code = packed_code(type, group, lane, i);
        out[i] = type == NODE_W_Q4_1 ? node_fma(d, code, min) : d * code;
    }
}

void node_matrix_unpack_panel(const node_matrix_t *m, uint32_t panel, float *out)
{
    const uint8_t *data = m->data + (size_t)panel * m->panel_bytes;
    for (uint32_t lane = 0; lane < NODE_PANEL; lane++, out += m->n_in) {
        if (node_matrix_quantised(m->type)) {
            for (uint32_t g = 0; g < m->n_in / GROUP; g++)
                unpack_group(m->type, data + g * m->group_bytes, lane, out + (size_t)g * GROUP);
            continue;
        }
        for (uint32_t i = 0; i < m->n_in; i++) {
            size_t at = (size_t)i * NODE_PANEL + lane;
            if (m->type == NODE_W_F16)
                out[i] = half_at(data + 2 * at);
            else
                memcpy(&out[i], data + 4 * at, 4);
        }
    }
}
