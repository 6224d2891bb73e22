/*
 * GGUF: opening, closing and the answers. Owns the mapping; every pointer handed out points into it or into tables that
 * live as long as the handle. Immutable after open, so threads need no lock but for the digest, which is computed late.
 * Does not survive a file that is cut short while it is mapped (SIGBUS): so a mapping lives while a model is loaded and
 * no longer, and model files are replaced by rename.
 */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/gguf_int.h"
#include "vc/bytes.h"
#include "vc/mem.h"

static vc_status_t open_bytes(const void *data, size_t bytes, bool mapped, node_gguf_t **gguf_p, vc_err_t *err)
{
    node_gguf_t *g = vc_calloc(1, sizeof(*g));
    if (g == NULL) {
        if (mapped)
            munmap((void *)(uintptr_t)data, bytes);
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory for a GGUF handle");
    }
    g->base = data;
    g->bytes = bytes;
    g->mapped = mapped;
    pthread_mutex_init(&g->digest_lock, NULL);
    vc_status_t status = node_gguf_parse(g, err);
    if (status != VC_OK)
        node_gguf_close(g);
    else
        *gguf_p = g;
    return status;
}

vc_status_t node_gguf_open_memory(const void *data, size_t bytes, node_gguf_t **gguf_p, vc_err_t *err)
{
    return open_bytes(data, bytes, false, gguf_p, err);
}

static vc_status_t map_file(const char *path, void **map_p, size_t *bytes_p, vc_err_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot open model '%s': %s", path, strerror(errno));
    struct stat st;
    vc_status_t status = VC_OK;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) != 0)
        status = vc_err_set(err, vc_status_from_errno(errno), "cannot read model '%s': %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size == 0)
        status = vc_err_set(err, VC_ERR_CORRUPT, "model '%s' is empty or not a regular file", path);
    else if ((map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        status = vc_err_set(err, vc_status_from_errno(errno), "cannot map model '%s': %s", path, strerror(errno));
    close(fd);
    if (status != VC_OK)
        return status;
    *map_p = map;
    *bytes_p = (size_t)st.st_size;
    return VC_OK;
}

vc_status_t node_gguf_open(const char *path, node_gguf_t **gguf_p, vc_err_t *err)
{
    void *map = NULL;
    size_t bytes = 0;
    vc_status_t status = map_file(path, &map, &bytes, err);
    if (status != VC_OK)
        return status;
    status = open_bytes(map, bytes, true, gguf_p, err);
    if (status != VC_OK)
        vc_err_prefix(err, "model '%s'", path);
    return status;
}

void node_gguf_close(node_gguf_t *g)
{
    if (g == NULL)
        return;
    for (uint64_t i = 0; i < g->n_kvs; i++)
        vc_free(g->kvs[i].strs);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        vc_free((void *)(uintptr_t)g->tensors[i].name);
    vc_free(g->kvs);
    vc_free(g->tensors);
    vc_free(g->tensor_order);
    if (g->mapped)
        munmap((void *)(uintptr_t)g->base, g->bytes);
    pthread_mutex_destroy(&g->digest_lock);
    vc_free(g);
}

uint64_t node_gguf_n_tensors(const node_gguf_t *g) { return g->n_tensors; }

const node_gguf_tensor_t *node_gguf_tensor_at(const node_gguf_t *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const node_gguf_tensor_t *node_gguf_tensor(const node_gguf_t *g, const char *name)
{
    uint64_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const node_gguf_tensor_t *t = &g->tensors[g->tensor_order[mid]];
        int c = strcmp(name, t->name);
        if (c == 0)
            return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const gguf_kv_t *node_gguf_find(const node_gguf_t *g, const char *key)
{
    uint64_t lo = 0, hi = g->n_kvs;
    size_t len = strlen(key);
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const gguf_kv_t *kv = &g->kvs[mid];
        int c = node_gguf_name_compare(key, len, kv->key.data, (size_t)kv->key.len);
        if (c == 0)
            return kv;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* One element of an integer type. Unsigned 64-bit values above INT64_MAX do not fit and are refused. */
static vc_status_t read_int(uint32_t type, const uint8_t *p, int64_t *v_p)
{
    switch (type) {
    case GGUF_U8: *v_p = p[0]; return VC_OK;
    case GGUF_BOOL: *v_p = p[0] != 0; return VC_OK;
    case GGUF_I8: *v_p = (int8_t)p[0]; return VC_OK;
    case GGUF_U16: *v_p = vc_le16(p); return VC_OK;
    case GGUF_I16: *v_p = (int16_t)vc_le16(p); return VC_OK;
    case GGUF_U32: *v_p = vc_le32(p); return VC_OK;
    case GGUF_I32: *v_p = (int32_t)vc_le32(p); return VC_OK;
    case GGUF_I64: *v_p = (int64_t)vc_le64(p); return VC_OK;
    case GGUF_U64:
        if (vc_le64(p) > INT64_MAX)
            return VC_ERR_INVALID;
        *v_p = (int64_t)vc_le64(p);
        return VC_OK;
    default: return VC_ERR_INVALID;
    }
}

static vc_status_t read_real(uint32_t type, const uint8_t *p, double *v_p)
{
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof(f));
        *v_p = (double)f;
        return VC_OK;
    }
    if (type == GGUF_F64) {
        memcpy(v_p, p, sizeof(*v_p));
        return VC_OK;
    }
    int64_t i;
    if (type == GGUF_BOOL || read_int(type, p, &i) != VC_OK)
        return VC_ERR_INVALID;
    *v_p = (double)i;
    return VC_OK;
}

vc_status_t node_gguf_u64(const node_gguf_t *g, const char *key, uint64_t *v_p)
{
    const gguf_kv_t *kv = node_gguf_find(g, key);
    if (kv == NULL)
        return VC_ERR_NOT_FOUND;
    if (kv->type == GGUF_U64) {
        *v_p = vc_le64(kv->data);
        return VC_OK;
    }
    int64_t v;
    if (kv->type == GGUF_BOOL || read_int(kv->type, kv->data, &v) != VC_OK || v < 0)
        return VC_ERR_INVALID;
    *v_p = (uint64_t)v;
    return VC_OK;
}

vc_status_t node_gguf_f64(const node_gguf_t *g, const char *key, double *v_p)
{
    const gguf_kv_t *kv = node_gguf_find(g, key);
    return kv == NULL ? VC_ERR_NOT_FOUND : read_real(kv->type, kv->data, v_p);
}

vc_status_t node_gguf_bool(const node_gguf_t *g, const char *key, bool *v_p)
{
    const gguf_kv_t *kv = node_gguf_find(g, key);
    if (kv == NULL)
        return VC_ERR_NOT_FOUND;
    if (kv->type != GGUF_BOOL)
        return VC_ERR_INVALID;
    *v_p = kv->data[0] != 0;
    return VC_OK;
}

vc_status_t node_gguf_str(const node_gguf_t *g, const char *key, node_gguf_str_t *v_p)
{
    const gguf_kv_t *kv = node_gguf_find(g, key);
    if (kv == NULL)
        return VC_ERR_NOT_FOUND;
    if (kv->type != GGUF_STRING)
        return VC_ERR_INVALID;
    *v_p = kv->str;
    return VC_OK;
}

static vc_status_t find_array(const node_gguf_t *g, const char *key, const gguf_kv_t **kv_p)
{
    *kv_p = node_gguf_find(g, key);
    if (*kv_p == NULL)
        return VC_ERR_NOT_FOUND;
    return (*kv_p)->type == GGUF_ARRAY ? VC_OK : VC_ERR_INVALID;
}

vc_status_t node_gguf_arr_len(const node_gguf_t *g, const char *key, uint64_t *n_p)
{
    const gguf_kv_t *kv;
    vc_status_t status = find_array(g, key, &kv);
    if (status == VC_OK)
        *n_p = kv->n;
    return status;
}

vc_status_t node_gguf_arr_str(const node_gguf_t *g, const char *key, uint64_t i, node_gguf_str_t *v_p)
{
    const gguf_kv_t *kv;
    vc_status_t status = find_array(g, key, &kv);
    if (status != VC_OK)
        return status;
    if (kv->elem_type != GGUF_STRING)
        return VC_ERR_INVALID;
    if (i >= kv->n)
        return VC_ERR_RANGE;
    *v_p = kv->strs[i];
    return VC_OK;
}

static vc_status_t find_element(const node_gguf_t *g, const char *key, uint64_t i, const gguf_kv_t **kv_p,
                                const uint8_t **p_p)
{
    vc_status_t status = find_array(g, key, kv_p);
    if (status != VC_OK)
        return status;
    if ((*kv_p)->elem_type == GGUF_STRING)
        return VC_ERR_INVALID;
    if (i >= (*kv_p)->n)
        return VC_ERR_RANGE;
    *p_p = (*kv_p)->data + i * node_gguf_type_size((*kv_p)->elem_type);
    return VC_OK;
}

vc_status_t node_gguf_arr_i64(const node_gguf_t *g, const char *key, uint64_t i, int64_t *v_p)
{
    const gguf_kv_t *kv;
    const uint8_t *p;
    vc_status_t status = find_element(g, key, i, &kv, &p);
    return status == VC_OK ? read_int(kv->elem_type, p, v_p) : status;
}

vc_status_t node_gguf_arr_f64(const node_gguf_t *g, const char *key, uint64_t i, double *v_p)
{
    const gguf_kv_t *kv;
    const uint8_t *p;
    vc_status_t status = find_element(g, key, i, &kv, &p);
    return status == VC_OK ? read_real(kv->elem_type, p, v_p) : status;
}

void node_gguf_digest(node_gguf_t *g, vc_digest_t *digest_p)
{
    pthread_mutex_lock(&g->digest_lock);
    if (!g->has_digest) {
        vc_blake2b(g->base, g->bytes, &g->digest);
        g->has_digest = true;
    }
    *digest_p = g->digest;
    pthread_mutex_unlock(&g->digest_lock);
}
