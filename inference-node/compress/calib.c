/* Calibration blobs: file to payload and back. The format is in calib.h; what a payload holds is its method's. */
#include "compress/calib.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vc/bytes.h"
#include "vc/mem.h"

#define CALIB_VERSION 1u
#define CALIB_HEAD_BYTES 88u /* up to the payload */
#define CALIB_MAX_BYTES ((size_t)1 << 30)
#define CALIB_SUFFIX ".vcal"

static const char calib_magic[8] = {'V', 'C', 'C', 'A', 'L', 'I', 'B', '1'};

/* The numbers of the model that a method learns from, in the order of the file. */
typedef struct shape_field {
    const char *name;
    size_t offset;
} shape_field_t;
static const shape_field_t shape_fields[] = {
    {"layers", offsetof(node_model_info_t, n_layer)},
    {"query heads", offsetof(node_model_info_t, n_head)},
    {"KV heads", offsetof(node_model_info_t, n_kv_head)},
    {"channels a head", offsetof(node_model_info_t, head_dim)},
    {"channels of width", offsetof(node_model_info_t, d_model)},
};

static uint32_t shape_value(const node_model_info_t *model, size_t i)
{
    uint32_t v;
    memcpy(&v, (const char *)model + shape_fields[i].offset, sizeof(v));
    return v;
}

/* As the file has it: the first 16 bytes of the name, zero padded. */
static void short_name(const char *method, char name[16])
{
    memset(name, 0, 16);
    memcpy(name, method, VC_MIN(strlen(method), 16));
}

static void put_head(uint8_t head[CALIB_HEAD_BYTES], const char *method, const node_model_info_t *model, size_t bytes)
{
    vc_writer_t w = vc_writer(head, CALIB_HEAD_BYTES);
    char name[16];
    short_name(method, name);
    vc_write_bytes(&w, calib_magic, sizeof(calib_magic));
    vc_write_bytes(&w, name, sizeof(name));
    vc_write_u32(&w, CALIB_VERSION);
    for (size_t i = 0; i < VC_ARRAY_LEN(shape_fields); i++)
        vc_write_u32(&w, shape_value(model, i));
    vc_write_bytes(&w, model->keyspace.model.b, VC_DIGEST_BYTES);
    vc_write_u64(&w, bytes);
}

static void digest_of(const void *a, size_t a_bytes, const void *b, size_t b_bytes, vc_digest_t *digest_p)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, VC_DIGEST_BYTES);
    crypto_generichash_update(&state, a, a_bytes);
    crypto_generichash_update(&state, b, b_bytes);
    crypto_generichash_final(&state, digest_p->b, VC_DIGEST_BYTES);
}

/* What a damaged file fails: its beginning, its length, its digest. */
static vc_status_t check_bytes(const uint8_t *data, size_t bytes, vc_digest_t *digest_p, vc_err_t *err)
{
    if (bytes < CALIB_HEAD_BYTES + VC_DIGEST_BYTES || memcmp(data, calib_magic, sizeof(calib_magic)) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "not a calibration blob, or only the beginning of one");
    uint32_t version = vc_le32(data + 24);
    if (version != CALIB_VERSION)
        return vc_err_set(err, VC_ERR_MISMATCH, "a calibration blob of version %u; this program reads version %u",
                          version, CALIB_VERSION);
    uint64_t payload = vc_le64(data + CALIB_HEAD_BYTES - 8);
    if (payload != bytes - CALIB_HEAD_BYTES - VC_DIGEST_BYTES)
        return vc_err_set(err, VC_ERR_CORRUPT, "the calibration blob has %zu bytes where its head promises %llu", bytes,
                          (unsigned long long)payload + CALIB_HEAD_BYTES + VC_DIGEST_BYTES);
    digest_of(data, CALIB_HEAD_BYTES, data + CALIB_HEAD_BYTES, (size_t)payload, digest_p);
    if (memcmp(digest_p->b, data + CALIB_HEAD_BYTES + payload, VC_DIGEST_BYTES) != 0)
        return vc_err_set(err, VC_ERR_CORRUPT, "the calibration blob is damaged: its digest does not hold");
    return VC_OK;
}

/* Whole, but perhaps somebody else's. */
static vc_status_t check_owner(const uint8_t *data, const node_codec_ops_t *ops, const node_model_info_t *model,
                               vc_err_t *err)
{
    char name[17] = {0}, want[16];
    memcpy(name, data + 8, 16);
    short_name(ops->name, want);
    for (char *at = name; *at; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at; /* it goes to a terminal */
    if (memcmp(data + 8, want, sizeof(want)) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH, "the calibration blob is of method %s, not of %s", name, ops->name);
    for (size_t i = 0; i < VC_ARRAY_LEN(shape_fields); i++) {
        uint32_t has = vc_le32(data + 28 + 4 * i), wants = shape_value(model, i);
        if (has != wants)
            return vc_err_set(err, VC_ERR_MISMATCH,
                              "the calibration blob is of another model: it has %u %s, this one %u", has,
                              shape_fields[i].name, wants);
    }
    if (memcmp(data + 48, model->keyspace.model.b, VC_DIGEST_BYTES) != 0)
        return vc_err_set(err, VC_ERR_MISMATCH,
                          "the calibration blob is of other weights of the same shape: make it again for this file");
    return VC_OK;
}

vc_status_t node_calib_parse(const void *data, size_t bytes, const node_codec_ops_t *ops,
                             const node_model_info_t *model, node_calib_t **calib_p, vc_err_t *err)
{
    vc_digest_t digest;
    vc_status_t st = check_bytes(data, bytes, &digest, err);
    if (st == VC_OK)
        st = check_owner(data, ops, model, err);
    if (st == VC_OK && ops->calib_check == NULL)
        st = vc_err_set(err, VC_ERR_INVALID, "compressor %s takes no calibration", ops->name);
    if (st != VC_OK)
        return st;
    node_calib_t *calib = vc_calloc(1, sizeof(*calib));
    const size_t n = bytes - CALIB_HEAD_BYTES - VC_DIGEST_BYTES;
    if (calib != NULL)
        calib->payload = vc_alloc_aligned(64, vc_align_up(n + 1, 64));
    if (calib == NULL || calib->payload == NULL) {
        vc_free(calib);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a calibration blob of %zu bytes", bytes);
    }
    memcpy(calib->method, (const uint8_t *)data + 8, sizeof(calib->method));
    memcpy(calib->payload, (const uint8_t *)data + CALIB_HEAD_BYTES, n);
    calib->bytes = n;
    calib->digest = digest;
    st = ops->calib_check(model, calib->payload, n, err);
    if (st != VC_OK) {
        node_calib_free(calib);
        return st;
    }
    *calib_p = calib;
    return VC_OK;
}

/* Whole file; the length is taken once, and a file that changes meanwhile fails its digest. */
static vc_status_t read_file(const char *path, uint8_t **data_p, size_t *bytes_p, vc_err_t *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would wait for one */
    struct stat st;
    if (fd < 0)
        return vc_err_set(err, errno == ENOENT ? VC_ERR_NOT_FOUND : vc_status_from_path_errno(errno), "%s",
                          strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > CALIB_MAX_BYTES) {
        close(fd);
        return vc_err_set(err, VC_ERR_INVALID, "not a regular file of at most %zu bytes", CALIB_MAX_BYTES);
    }
    size_t size = (size_t)st.st_size, got = 0;
    uint8_t *data = vc_alloc(size + 1);
    if (data == NULL) {
        close(fd);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %zu bytes", size);
    }
    ssize_t n = 1;
    while (got < size && n != 0) {
        n = read(fd, data + got, size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        got += (size_t)n;
    }
    int cause = errno;
    close(fd);
    if (n < 0) {
        vc_free(data);
        return vc_err_set(err, vc_status_from_errno(cause), "%s", strerror(cause));
    }
    *data_p = data;
    *bytes_p = got;
    return VC_OK;
}

vc_status_t node_calib_load(const char *path, const node_codec_ops_t *ops, const node_model_info_t *model,
                            node_calib_t **calib_p, vc_err_t *err)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    vc_status_t st = read_file(path, &data, &bytes, err);
    if (st == VC_OK)
        st = node_calib_parse(data, bytes, ops, model, calib_p, err);
    vc_free(data);
    return st == VC_OK ? VC_OK : vc_err_prefix(err, "%s", path);
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* The rename is durable once the directory is. */
static bool sync_dir(const char *path)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(dir, sizeof(dir), ".");
    else
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

static bool write_aside(const char *aside, const uint8_t *head, const void *payload, size_t bytes,
                        const vc_digest_t *digest)
{
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool good = write_all(fd, head, CALIB_HEAD_BYTES) && write_all(fd, payload, bytes) &&
                write_all(fd, digest->b, VC_DIGEST_BYTES) && fsync(fd) == 0;
    int cause = errno;
    if (close(fd) != 0 && good)
        return false;
    errno = cause;
    return good;
}

static vc_status_t name_aside(const char *path, char *aside, size_t cap, vc_err_t *err)
{
    if (snprintf(aside, cap, "%s.%ld.new", path, (long)getpid()) >= (int)cap)
        return vc_err_set(err, VC_ERR_INVALID, "the path of the calibration blob is too long");
    return VC_OK;
}

static vc_status_t cannot_write(const char *path, int cause, vc_err_t *err)
{
    return vc_err_set(err, vc_status_from_path_errno(cause), "cannot write the calibration blob %s: %s", path,
                      strerror(cause));
}

vc_status_t node_calib_can_save(const char *path, vc_err_t *err)
{
    char aside[4096];
    struct stat st;
    vc_status_t status = name_aside(path, aside, sizeof(aside), err);
    if (status != VC_OK)
        return status;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) /* rename would refuse */
        return cannot_write(path, EISDIR, err);
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return cannot_write(path, errno, err);
    close(fd);
    unlink(aside);
    return VC_OK;
}

vc_status_t node_calib_save(const char *path, const char *method, const node_model_info_t *model, const void *payload,
                            size_t bytes, vc_err_t *err)
{
    uint8_t head[CALIB_HEAD_BYTES];
    char aside[4096];
    vc_digest_t digest;
    if (bytes > CALIB_MAX_BYTES - CALIB_HEAD_BYTES - VC_DIGEST_BYTES)
        return vc_err_set(err, VC_ERR_INVALID, "a calibration blob of method %s with %zu bytes cannot be", method,
                          bytes);
    vc_status_t status = name_aside(path, aside, sizeof(aside), err);
    if (status != VC_OK)
        return status;
    put_head(head, method, model, bytes);
    digest_of(head, sizeof(head), payload, bytes, &digest);
    if (write_aside(aside, head, payload, bytes, &digest) && rename(aside, path) == 0 && sync_dir(path))
        return VC_OK;
    int cause = errno;
    unlink(aside);
    return cannot_write(path, cause, err);
}

void node_calib_free(node_calib_t *calib)
{
    if (calib == NULL)
        return;
    vc_free(calib->payload);
    vc_free(calib);
}

vc_status_t node_calib_path(const char *dir, const char *model_path, const char *method, char *out, size_t cap,
                            vc_err_t *err)
{
    const char *slash = strrchr(model_path, '/');
    const char *name = slash ? slash + 1 : model_path;
    size_t n = strlen(name);
    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0)
        n -= 5;
    int len = dir != NULL && dir[0] != '\0' ? snprintf(out, cap, "%s/%.*s.%s" CALIB_SUFFIX, dir, (int)n, name, method)
                                            : snprintf(out, cap, "%.*s%.*s.%s" CALIB_SUFFIX, (int)(name - model_path),
                                                       model_path, (int)n, name, method);
    if (len < 0 || (size_t)len >= cap)
        return vc_err_set(err, VC_ERR_INVALID, "the path of the %s calibration of this model is too long", method);
    return VC_OK;
}

void node_spec_bind(node_spec_t *spec, const node_calib_t *calib)
{
    spec->calib = calib;
    vc_spec_id(spec->text, &calib->digest, &spec->id);
}
