/* See keyspace_file.h. */
#include "keyspace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fault_file.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/mem.h"

#define HEAD_BYTES 12u

size_t cs_keyspace_file_encode(const vc_keyspace_t *ks, uint8_t *out)
{
    size_t len;
    if (vc_keyspace_encode(ks, out + HEAD_BYTES, &len, NULL) != VC_OK)
        return 0;
    memcpy(out, "VCKS", 4);
    vc_put_le32(out + 4, (uint32_t)len);
    vc_put_le32(out + 8, vc_crc32c(0, out + HEAD_BYTES, len));
    return HEAD_BYTES + len;
}

/* Length of the sound record at data, or 0. */
static size_t parse_one(const uint8_t *data, size_t bytes, vc_keyspace_t *ks)
{
    if (bytes < HEAD_BYTES || memcmp(data, "VCKS", 4) != 0)
        return 0;
    size_t len = vc_le32(data + 4);
    if (len > VC_KEYSPACE_ENC_MAX || len > bytes - HEAD_BYTES ||
        vc_crc32c(0, data + HEAD_BYTES, len) != vc_le32(data + 8) ||
        vc_keyspace_decode(data + HEAD_BYTES, len, ks, NULL) != VC_OK)
        return 0;
    return HEAD_BYTES + len;
}

uint32_t cs_keyspace_file_parse(const uint8_t *data, size_t bytes,
                                void (*fn)(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks), void *arg)
{
    uint32_t n_damaged = 0;
    bool was_sound = true;
    for (size_t at = 0; at < bytes;) {
        vc_keyspace_t ks;
        vc_digest_t id;
        size_t n = parse_one(data + at, bytes - at, &ks);
        if (n > 0 && vc_keyspace_id(&ks, &id, NULL) == VC_OK)
            fn(arg, &id, &ks);
        else
            n_damaged += was_sound; /* the next record is looked for byte by byte */
        was_sound = n > 0;
        at += n > 0 ? n : 1;
    }
    return n_damaged;
}

static vc_status_t path_of(const char *data_dir, const char *suffix, char path[4096], vc_err_t *err)
{
    if (snprintf(path, 4096, "%s/keyspaces%s", data_dir, suffix) >= 4096)
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    return VC_OK;
}

/* All of the file; *data_p is NULL for a missing one. */
static vc_status_t read_all(const char *path, uint8_t **data_p, size_t *bytes_p, vc_err_t *err)
{
    /* NONBLOCK: a pipe in its place is an error and no reason to wait */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *data_p = NULL;
    *bytes_p = 0;
    if (fd < 0 && errno == ENOENT)
        return VC_OK;
    uint8_t *data = fd >= 0 ? vc_alloc(CS_KEYSPACE_FILE_MAX) : NULL;
    ssize_t n = data ? cs_file_pread("keyspaces.read", fd, data, CS_KEYSPACE_FILE_MAX, 0) : -1;
    vc_status_t status = n >= 0 ? VC_OK
                                : vc_err_set(err, fd >= 0 && !data ? VC_ERR_NOMEM : vc_status_from_errno(errno),
                                             "cannot read %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (status != VC_OK) {
        vc_free(data);
        return status;
    }
    *data_p = data;
    *bytes_p = (size_t)n;
    return VC_OK;
}

vc_status_t cs_keyspace_file_load(const char *data_dir,
                                  void (*fn)(void *arg, const vc_digest_t *id, const vc_keyspace_t *ks), void *arg,
                                  uint32_t *n_damaged_p, vc_err_t *err)
{
    char path[4096];
    uint8_t *data;
    size_t bytes;
    *n_damaged_p = 0;
    vc_status_t status = path_of(data_dir, "", path, err);
    if (status == VC_OK)
        status = read_all(path, &data, &bytes, err);
    if (status != VC_OK)
        return status;
    *n_damaged_p = cs_keyspace_file_parse(data, bytes, fn, arg);
    vc_free(data);
    return VC_OK;
}

static int write_aside(const char *path, const uint8_t *records, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -1;
    ssize_t n = cs_file_pwrite("keyspaces.write", fd, records, bytes, 0);
    if (n >= 0 && (size_t)n < bytes)
        errno = ENOSPC;
    int rc = n == (ssize_t)bytes ? cs_file_fdatasync("keyspaces.sync", fd) : -1;
    int errnum = errno;
    close(fd);
    errno = errnum;
    return rc;
}

static int sync_parent(const char *data_dir)
{
    int fd = open(data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd >= 0 ? cs_file_fsync("keyspaces.dirsync", fd) : -1;
    int errnum = errno;
    if (fd >= 0)
        close(fd);
    errno = errnum;
    return rc;
}

vc_status_t cs_keyspace_file_save(const char *data_dir, const uint8_t *records, size_t bytes, vc_err_t *err)
{
    char path[4096], aside[4096];
    uint8_t *old = NULL;
    size_t n_old;
    vc_status_t status = path_of(data_dir, "", path, err);
    if (status == VC_OK)
        status = path_of(data_dir, ".new", aside, err);
    if (status != VC_OK)
        return status;
    bool is_same =
        read_all(path, &old, &n_old, NULL) == VC_OK && old && n_old == bytes && memcmp(old, records, bytes) == 0;
    vc_free(old);
    if (is_same)
        return VC_OK;
    if (write_aside(aside, records, bytes) == 0 && rename(aside, path) == 0 && sync_parent(data_dir) == 0)
        return VC_OK;
    status = vc_err_set(err, vc_status_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
    unlink(aside);
    return status;
}
