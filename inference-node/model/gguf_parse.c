/*
 * The GGUF parser. A file is: magic, version, counts, metadata pairs, tensor descriptions, padding to the alignment,
 * tensor data. Nothing in it is trusted: each count is held against the bytes that are left before anything is
 * allocated for it, so memory is bounded by a small multiple of the file, and every tensor lies inside it.
 */
#include <stdlib.h>
#include <string.h>

#include "model/gguf_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

#define GGUF_MAGIC 0x46554747u /* "GGUF" */
#define GGUF_NAME_MAX 1024u
#define GGUF_COUNT_MAX (1u << 20)
#define GGUF_ALIGN_DEFAULT 32u
#define GGUF_ALIGN_MAX (1u << 16)
#define GGUF_KV_MIN_BYTES 13u     /* u64 length, u32 type, one byte of value */
#define GGUF_TENSOR_MIN_BYTES 32u /* u64 length, u32 n_dims, one u64, u32 type, u64 offset */

size_t node_gguf_type_size(uint32_t type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 0;
    }
}

int node_gguf_name_compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, VC_MIN(a_len, b_len));
    return c != 0 ? c : (a_len > b_len) - (a_len < b_len);
}

/* A name for an error sentence: short, and without bytes that would disturb a terminal. */
typedef struct {
    char text[68];
} shown_t;
static shown_t shown(const char *name, uint64_t len)
{
    shown_t s;
    size_t n = len < 64 ? (size_t)len : 64;
    for (size_t i = 0; i < n; i++)
        s.text[i] = (unsigned char)name[i] < 0x20 || (unsigned char)name[i] >= 0x7f ? '?' : name[i];
    memcpy(s.text + n, len > 64 ? ".." : "", len > 64 ? 3 : 1);
    return s;
}

static vc_status_t ends_early(vc_err_t *err, const char *where)
{
    return vc_err_set(err, VC_ERR_CORRUPT, "the file ends inside %s", where);
}

static bool read_str(vc_reader_t *r, node_gguf_str_t *str)
{
    str->len = vc_read_u64(r);
    if (r->failed || str->len > vc_reader_left(r)) {
        r->failed = true;
        return false;
    }
    str->data = (const char *)vc_read_bytes(r, (size_t)str->len);
    return true;
}

/* A key or tensor name: 1 to GGUF_NAME_MAX bytes without NUL. */
static vc_status_t read_name(vc_reader_t *r, const char *what, node_gguf_str_t *name, vc_err_t *err)
{
    if (!read_str(r, name))
        return ends_early(err, what);
    if (name->len == 0 || name->len > GGUF_NAME_MAX || memchr(name->data, 0, (size_t)name->len) != NULL)
        return vc_err_set(err, VC_ERR_CORRUPT, "%s '%s' is empty, too long or holds a zero byte", what,
                          shown(name->data, name->len).text);
    return VC_OK;
}

static vc_status_t read_array(vc_reader_t *r, gguf_kv_t *kv, vc_err_t *err)
{
    const shown_t key = shown(kv->key.data, kv->key.len);
    kv->elem_type = vc_read_u32(r);
    kv->n = vc_read_u64(r);
    if (r->failed)
        return ends_early(err, "the metadata");
    size_t size = node_gguf_type_size(kv->elem_type);
    if (kv->elem_type == GGUF_ARRAY)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "metadata '%s' is an array of arrays", key.text);
    if (size == 0 && kv->elem_type != GGUF_STRING)
        return vc_err_set(err, VC_ERR_CORRUPT, "metadata '%s' is an array of unknown type %u", key.text, kv->elem_type);
    if (kv->n > vc_reader_left(r) / (size != 0 ? size : 8))
        return vc_err_set(err, VC_ERR_CORRUPT, "metadata '%s' claims %llu elements, more than the file holds", key.text,
                          (unsigned long long)kv->n);
    if (size != 0) {
        kv->data = vc_read_bytes(r, (size_t)kv->n * size);
        return VC_OK;
    }
    kv->strs = vc_calloc((size_t)kv->n, sizeof(*kv->strs));
    if (kv->strs == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for metadata '%s'", key.text);
    for (uint64_t i = 0; i < kv->n; i++)
        if (!read_str(r, &kv->strs[i]))
            return vc_err_set(err, VC_ERR_CORRUPT, "string %llu of metadata '%s' runs past the end of the file",
                              (unsigned long long)i, key.text);
    return VC_OK;
}

static vc_status_t read_kv(vc_reader_t *r, gguf_kv_t *kv, vc_err_t *err)
{
    vc_status_t status = read_name(r, "a metadata key", &kv->key, err);
    if (status != VC_OK)
        return status;
    kv->type = vc_read_u32(r);
    if (r->failed)
        return ends_early(err, "the metadata");
    if (kv->type == GGUF_ARRAY)
        return read_array(r, kv, err);
    if (kv->type == GGUF_STRING) {
        if (!read_str(r, &kv->str))
            return vc_err_set(err, VC_ERR_CORRUPT, "the string of metadata '%s' runs past the end of the file",
                              shown(kv->key.data, kv->key.len).text);
        return VC_OK;
    }
    size_t size = node_gguf_type_size(kv->type);
    if (size == 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "metadata '%s' has unknown type %u",
                          shown(kv->key.data, kv->key.len).text, kv->type);
    kv->data = vc_read_bytes(r, size);
    return kv->data == NULL ? ends_early(err, "the metadata") : VC_OK;
}

static int kv_order(const void *a, const void *b)
{
    const gguf_kv_t *x = a, *y = b;
    return node_gguf_name_compare(x->key.data, (size_t)x->key.len, y->key.data, (size_t)y->key.len);
}

static vc_status_t read_kvs(node_gguf_t *g, vc_reader_t *r, uint64_t n, vc_err_t *err)
{
    if (n > GGUF_COUNT_MAX || n > vc_reader_left(r) / GGUF_KV_MIN_BYTES)
        return vc_err_set(err, VC_ERR_CORRUPT, "the file claims %llu metadata pairs, more than it holds",
                          (unsigned long long)n);
    g->kvs = vc_calloc((size_t)n, sizeof(*g->kvs));
    if (g->kvs == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for %llu metadata pairs", (unsigned long long)n);
    for (; g->n_kvs < n; g->n_kvs++) {
        vc_status_t status = read_kv(r, &g->kvs[g->n_kvs], err);
        if (status != VC_OK) {
            g->n_kvs++; /* the half-read pair may own memory */
            return status;
        }
    }
    qsort(g->kvs, (size_t)n, sizeof(*g->kvs), kv_order);
    for (uint64_t i = 1; i < n; i++)
        if (kv_order(&g->kvs[i - 1], &g->kvs[i]) == 0)
            return vc_err_set(err, VC_ERR_CORRUPT, "metadata '%s' appears twice",
                              shown(g->kvs[i].key.data, g->kvs[i].key.len).text);
    return VC_OK;
}

static vc_status_t read_alignment(node_gguf_t *g, vc_err_t *err)
{
    uint64_t align = GGUF_ALIGN_DEFAULT;
    vc_status_t status = node_gguf_u64(g, "general.alignment", &align);
    if (status != VC_OK && status != VC_ERR_NOT_FOUND)
        return vc_err_set(err, VC_ERR_CORRUPT, "metadata 'general.alignment' is not a whole number");
    if (align < 8 || align > GGUF_ALIGN_MAX || (align & (align - 1)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "alignment %llu is not a power of two from 8 to %u",
                          (unsigned long long)align, GGUF_ALIGN_MAX);
    g->alignment = align;
    return VC_OK;
}

/* Elements and bytes of one storage block; false for a type that we do not know. */
static bool type_block(uint32_t type, uint64_t *elems, uint64_t *bytes)
{
    switch (type) {
    case NODE_GGML_F32: *elems = 1, *bytes = 4; return true;
    case NODE_GGML_F16: *elems = 1, *bytes = 2; return true;
    case NODE_GGML_Q4_0: *elems = 32, *bytes = 18; return true;
    case NODE_GGML_Q4_1: *elems = 32, *bytes = 20; return true;
    case NODE_GGML_Q8_0: *elems = 32, *bytes = 34; return true;
    default: return false;
    }
}

/* Sizes of a tensor; an unknown type leaves bytes at 0, and whoever needs the tensor names the type. */
static vc_status_t size_tensor(node_gguf_tensor_t *t, const char *name, vc_err_t *err)
{
    uint64_t n = 1, elems, bytes;
    for (uint32_t d = 0; d < t->n_dims; d++)
        if (t->ne[d] == 0 || t->ne[d] > INT64_MAX || __builtin_mul_overflow(n, t->ne[d], &n))
            return vc_err_set(err, VC_ERR_CORRUPT, "dimension %u of tensor '%s' is 0 or too large", d, name);
    if (!type_block(t->type, &elems, &bytes))
        return VC_OK;
    if (t->ne[0] % elems != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "the rows of tensor '%s' hold %llu elements, not a multiple of %llu",
                          name, (unsigned long long)t->ne[0], (unsigned long long)elems);
    if (__builtin_mul_overflow(n / elems, bytes, &t->bytes))
        return vc_err_set(err, VC_ERR_CORRUPT, "tensor '%s' is too large", name);
    return VC_OK;
}

/* *offset is relative to the start of the data, which is known after the last description. */
static vc_status_t read_tensor(vc_reader_t *r, node_gguf_tensor_t *t, uint64_t *offset, vc_err_t *err)
{
    node_gguf_str_t name;
    vc_status_t status = read_name(r, "a tensor name", &name, err);
    if (status != VC_OK)
        return status;
    const shown_t show = shown(name.data, name.len);
    t->n_dims = vc_read_u32(r);
    if (!r->failed && (t->n_dims < 1 || t->n_dims > 4))
        return vc_err_set(err, VC_ERR_CORRUPT, "tensor '%s' has %u dimensions", show.text, t->n_dims);
    for (uint32_t d = 0; d < 4; d++)
        t->ne[d] = d < t->n_dims ? vc_read_u64(r) : 1;
    t->type = vc_read_u32(r);
    *offset = vc_read_u64(r);
    if (r->failed)
        return ends_early(err, "the tensor descriptions");
    status = size_tensor(t, show.text, err);
    if (status != VC_OK)
        return status;
    char *copy = vc_alloc((size_t)name.len + 1);
    if (copy == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for the name of tensor '%s'", show.text);
    memcpy(copy, name.data, (size_t)name.len);
    copy[name.len] = '\0';
    t->name = copy;
    return VC_OK;
}

static vc_status_t place_tensors(node_gguf_t *g, const uint64_t *offsets, size_t head_bytes, vc_err_t *err)
{
    if (g->n_tensors == 0)
        return VC_OK;
    size_t start = vc_align_up(head_bytes, (size_t)g->alignment);
    if (start > g->bytes)
        return ends_early(err, "the tensor descriptions");
    uint64_t room = g->bytes - start;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        node_gguf_tensor_t *t = &g->tensors[i];
        const shown_t show = shown(t->name, strlen(t->name));
        if (offsets[i] % g->alignment != 0)
            return vc_err_set(err, VC_ERR_CORRUPT, "tensor '%s' starts at offset %llu, not a multiple of %llu",
                              show.text, (unsigned long long)offsets[i], (unsigned long long)g->alignment);
        if (offsets[i] > room || t->bytes > room - offsets[i])
            return vc_err_set(err, VC_ERR_CORRUPT, "tensor '%s' needs %llu bytes at offset %llu, past the end of %zu",
                              show.text, (unsigned long long)t->bytes, (unsigned long long)offsets[i], g->bytes);
        t->data = g->base + start + offsets[i];
    }
    return VC_OK;
}

static int tensor_order(const void *a, const void *b, void *arg)
{
    const node_gguf_tensor_t *tensors = arg;
    return strcmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

static vc_status_t order_tensors(node_gguf_t *g, vc_err_t *err)
{
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->tensor_order[i] = i;
    qsort_r(g->tensor_order, (size_t)g->n_tensors, sizeof(*g->tensor_order), tensor_order, g->tensors);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const char *name = g->tensors[g->tensor_order[i]].name;
        if (strcmp(g->tensors[g->tensor_order[i - 1]].name, name) == 0)
            return vc_err_set(err, VC_ERR_CORRUPT, "tensor '%s' appears twice", shown(name, strlen(name)).text);
    }
    return VC_OK;
}

static vc_status_t read_tensors(node_gguf_t *g, vc_reader_t *r, uint64_t n, vc_err_t *err)
{
    if (n > GGUF_COUNT_MAX || n > vc_reader_left(r) / GGUF_TENSOR_MIN_BYTES)
        return vc_err_set(err, VC_ERR_CORRUPT, "the file claims %llu tensors, more than it holds",
                          (unsigned long long)n);
    uint64_t *offsets = vc_calloc((size_t)n, sizeof(*offsets));
    g->tensors = vc_calloc((size_t)n, sizeof(*g->tensors));
    g->tensor_order = vc_calloc((size_t)n, sizeof(*g->tensor_order));
    vc_status_t status = VC_OK;
    if (offsets == NULL || g->tensors == NULL || g->tensor_order == NULL)
        status = vc_err_set(err, VC_ERR_NOMEM, "out of memory for %llu tensors", (unsigned long long)n);
    while (status == VC_OK && g->n_tensors < n) {
        status = read_tensor(r, &g->tensors[g->n_tensors], &offsets[g->n_tensors], err);
        if (status == VC_OK)
            g->n_tensors++;
    }
    if (status == VC_OK)
        status = order_tensors(g, err);
    if (status == VC_OK)
        status = place_tensors(g, offsets, (size_t)(r->p - g->base), err);
    vc_free(offsets);
    return status;
}

vc_status_t node_gguf_parse(node_gguf_t *g, vc_err_t *err)
{
    vc_reader_t r = vc_reader(g->base, g->bytes);
    uint32_t magic = vc_read_u32(&r), version = vc_read_u32(&r);
    if (r.failed || magic != GGUF_MAGIC)
        return vc_err_set(err, VC_ERR_CORRUPT, "this is not a GGUF file (no GGUF magic)");
    if (version != 0 && (version & 0xffffu) == 0)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "big-endian GGUF files are not supported");
    if (version != 2 && version != 3)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "GGUF version %u is not supported (2 and 3 are)", version);
    uint64_t n_tensors = vc_read_u64(&r), n_kvs = vc_read_u64(&r);
    if (r.failed)
        return ends_early(err, "the header");
    vc_status_t status = read_kvs(g, &r, n_kvs, err);
    if (status == VC_OK)
        status = read_alignment(g, err);
    if (status == VC_OK)
        status = read_tensors(g, &r, n_tensors, err);
    return status;
}
