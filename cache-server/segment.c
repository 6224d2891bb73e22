/* Segment files. See segment.h for the format and who may call what. */
#include "segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault_file.h"
#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/log.h"
#include "vc/mem.h"

struct cs_segdir {
    int fd;
    bool readonly;
    _Atomic bool no_direct; /* the file system refused O_DIRECT; logged once */
};

_Static_assert(CS_SEGMENT_MAX_NUMBER == 99999999u, "eight digits in the file name");

uint64_t cs_segment_file_bytes(uint64_t capacity_bytes, uint64_t max_record_bytes)
{
    uint64_t bytes = capacity_bytes / 64;
    bytes = VC_MIN(VC_MAX(bytes, CS_SEGMENT_MIN_BYTES), CS_SEGMENT_MAX_BYTES);
    bytes = VC_MAX(bytes, max_record_bytes + CS_SEGMENT_HEADER_BYTES);
    return vc_align_up(bytes, 4096);
}

vc_status_t cs_segdir_open(const char *data_dir, bool readonly, cs_segdir_t **dir_p, vc_err_t *err)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/segments", data_dir) >= (int)sizeof(path))
        return vc_err_set(err, VC_ERR_RANGE, "the path of the data directory is too long");
    if (!readonly && mkdir(path, 0700) != 0 && errno != EEXIST)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot make %s: %s", path, strerror(errno));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot open %s: %s", path, strerror(errno));
    cs_segdir_t *dir = vc_calloc(1, sizeof(*dir));
    if (!dir) {
        close(fd);
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the segment directory");
    }
    dir->fd = fd;
    dir->readonly = readonly;
    *dir_p = dir;
    return VC_OK;
}

void cs_segdir_close(cs_segdir_t *dir)
{
    if (!dir)
        return;
    close(dir->fd);
    vc_free(dir);
}

int cs_segdir_fd(const cs_segdir_t *dir) { return dir->fd; }

void cs_segdir_set_writable(cs_segdir_t *dir) { dir->readonly = false; }

static void name_of(uint32_t number, char name[16])
{
    snprintf(name, 16, "%08u.seg", number % (CS_SEGMENT_MAX_NUMBER + 1));
}

static bool parse_name(const char *name, uint32_t *number_p)
{
    uint32_t number = 0;
    for (int i = 0; i < 8; i++) {
        if (name[i] < '0' || name[i] > '9')
            return false;
        number = number * 10 + (uint32_t)(name[i] - '0');
    }
    *number_p = number;
    return strcmp(name + 8, ".seg") == 0;
}

vc_status_t cs_segdir_list(cs_segdir_t *dir, void (*fn)(void *arg, uint32_t number, uint64_t bytes), void *arg,
                           vc_err_t *err)
{
    int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (!list) {
        vc_status_t status = vc_status_from_errno(errno);
        if (fd >= 0)
            close(fd);
        return vc_err_set(err, status, "cannot list the segment directory: %s", strerror(errno));
    }
    struct dirent *item;
    while ((item = readdir(list))) {
        uint32_t number;
        struct stat st;
        if (parse_name(item->d_name, &number) && fstatat(dir->fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            fn(arg, number, (uint64_t)st.st_size);
    }
    closedir(list);
    return VC_OK;
}

static int open_file(cs_segdir_t *dir, const char *name, int flags)
{
    int fd = -1;
    flags |= O_CLOEXEC | O_NOFOLLOW;
    if (!atomic_load_explicit(&dir->no_direct, memory_order_relaxed)) {
        fd = openat(dir->fd, name, flags | O_DIRECT, 0600);
        if (fd >= 0 || errno != EINVAL)
            return fd;
        /* Relaxed: two threads that both learn it cost a second log line, no more. */
        atomic_store_explicit(&dir->no_direct, true, memory_order_relaxed);
        vc_log_warn("segment", "the file system refuses O_DIRECT, going through the page cache file=%s", name);
        flags &= ~O_EXCL; /* some file systems leave the file behind when they refuse */
    }
    return openat(dir->fd, name, flags, 0600);
}

static vc_status_t write_header(int fd, uint32_t number, uint32_t version, uint64_t bytes, vc_err_t *err)
{
    uint8_t *page = vc_alloc_aligned(4096, CS_SEGMENT_HEADER_BYTES);
    if (!page)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a segment header");
    memset(page, 0, CS_SEGMENT_HEADER_BYTES);
    memcpy(page, "VCSG", 4);
    vc_put_le32(page + 4, CS_SEGMENT_FORMAT);
    vc_put_le32(page + 12, number);
    vc_put_le32(page + 16, version);
    vc_put_le64(page + 24, bytes);
    vc_put_le32(page + 8, vc_crc32c(0, page, CS_SEGMENT_HEADER_BYTES));
    ssize_t n = cs_file_pwrite("segment.header", fd, page, CS_SEGMENT_HEADER_BYTES, 0);
    int errnum = n < 0 ? errno : EIO;
    vc_free(page);
    if (n != (ssize_t)CS_SEGMENT_HEADER_BYTES)
        return vc_err_set(err, vc_status_from_errno(errnum), "cannot write the header of segment %u: %s", number,
                          strerror(errnum));
    return VC_OK;
}

static int preallocate(int fd, uint64_t bytes)
{
    if (cs_file_may("segment.create") != 0)
        return errno;
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0)
        return 0;
    /* File systems without fallocate: the C library writes one byte a block, so the space is really there. */
    return errno == EOPNOTSUPP ? posix_fallocate(fd, 0, (off_t)bytes) : errno;
}

static vc_status_t sync_dir(cs_segdir_t *dir, vc_err_t *err)
{
    if (cs_file_fsync("segment.dirsync", dir->fd) != 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot sync the segment directory: %s", strerror(errno));
    return VC_OK;
}

vc_status_t cs_segment_create(cs_segdir_t *dir, uint32_t number, uint32_t version, uint64_t bytes,
                              cs_segment_t *segment_p, vc_err_t *err)
{
    char name[16];
    if (number > CS_SEGMENT_MAX_NUMBER)
        return vc_err_set(err, VC_ERR_RANGE, "segment number %u is too large", number);
    name_of(number, name);
    int fd = open_file(dir, name, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0)
        return vc_err_set(err, errno == EEXIST ? VC_ERR_BUSY : vc_status_from_errno(errno),
                          "cannot create segment %s: %s", name, strerror(errno));
    int rc = preallocate(fd, bytes);
    vc_status_t status = rc == 0
                             ? write_header(fd, number, version, bytes, err)
                             : vc_err_set(err, vc_status_from_errno(rc), "cannot allocate segment %s of %llu bytes: %s",
                                          name, (unsigned long long)bytes, strerror(rc));
    if (status == VC_OK)
        status = sync_dir(dir, err);
    if (status != VC_OK) {
        close(fd);
        unlinkat(dir->fd, name, 0);
        return status;
    }
    *segment_p = (cs_segment_t){.number = number,
                                .version = version,
                                .bytes = bytes,
                                .fd = fd,
                                .state = CS_SEGMENT_FREE,
                                .is_dirty = true,
                                .tail = CS_SEGMENT_HEADER_BYTES,
                                .first_entry = UINT32_MAX};
    return VC_OK;
}

vc_status_t cs_segment_open(cs_segdir_t *dir, uint32_t number, cs_segment_t *segment_p, vc_err_t *err)
{
    char name[16];
    struct stat st;
    name_of(number, name);
    int fd = cs_file_may("segment.open") != 0 ? -1 : open_file(dir, name, dir->readonly ? O_RDONLY : O_RDWR);
    if (fd < 0)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot open segment %s: %s", name, strerror(errno));
    if (fstat(fd, &st) != 0) {
        vc_status_t status = vc_status_from_errno(errno);
        close(fd);
        return vc_err_set(err, status, "cannot stat segment %s", name);
    }
    *segment_p = (cs_segment_t){.number = number,
                                .bytes = (uint64_t)st.st_size,
                                .fd = fd,
                                .state = CS_SEGMENT_FREE,
                                .tail = CS_SEGMENT_HEADER_BYTES,
                                .first_entry = UINT32_MAX};
    return VC_OK;
}

vc_status_t cs_segment_reopen(cs_segdir_t *dir, cs_segment_t *segment, vc_err_t *err)
{
    char name[16];
    int flags = fcntl(segment->fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDWR)
        return VC_OK;
    name_of(segment->number, name);
    int fd = open_file(dir, name, O_RDWR);
    if (fd < 0 || dup3(fd, segment->fd, O_CLOEXEC) < 0) {
        vc_status_t status = vc_status_from_errno(errno);
        vc_err_set(err, status, "cannot open segment %s for writing: %s", name, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    close(fd);
    return VC_OK;
}

void cs_segment_close(cs_segment_t *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

vc_status_t cs_segment_remove(cs_segdir_t *dir, cs_segment_t *segment, vc_err_t *err)
{
    char name[16];
    name_of(segment->number, name);
    cs_segment_close(segment);
    if ((cs_file_may("segment.unlink") != 0 || unlinkat(dir->fd, name, 0) != 0) && errno != ENOENT)
        return vc_err_set(err, vc_status_from_errno(errno), "cannot remove segment %s: %s", name, strerror(errno));
    return sync_dir(dir, err);
}

vc_status_t cs_segment_recycle(cs_segment_t *segment, uint32_t version, vc_err_t *err)
{
    vc_status_t status = write_header(segment->fd, segment->number, version, segment->bytes, err);
    if (status != VC_OK)
        return status;
    segment->version = version;
    segment->tail = CS_SEGMENT_HEADER_BYTES;
    segment->is_bad = segment->sync_failed = false;
    return VC_OK;
}

bool cs_segment_parse_header(const uint8_t page[CS_SEGMENT_HEADER_BYTES], uint32_t number, uint64_t bytes,
                             uint32_t *version_p)
{
    static const uint8_t zero[4];
    uint32_t crc = vc_crc32c(0, page, 8);
    crc = vc_crc32c(crc, zero, 4);
    crc = vc_crc32c(crc, page + 12, CS_SEGMENT_HEADER_BYTES - 12);
    if (memcmp(page, "VCSG", 4) != 0 || vc_le32(page + 4) != CS_SEGMENT_FORMAT || vc_le32(page + 8) != crc ||
        vc_le32(page + 12) != number || vc_le64(page + 24) != bytes)
        return false;
    *version_p = vc_le32(page + 16);
    return true;
}

vc_status_t cs_segment_read_header(const cs_segment_t *segment, uint32_t *version_p, vc_err_t *err)
{
    uint8_t *page = vc_alloc_aligned(4096, CS_SEGMENT_HEADER_BYTES);
    if (!page)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for a segment header");
    ssize_t n = cs_file_pread("segment.read_header", segment->fd, page, CS_SEGMENT_HEADER_BYTES, 0);
    vc_status_t status = VC_OK;
    if (n < 0)
        status =
            vc_err_set(err, VC_ERR_IO, "cannot read the header of segment %u: %s", segment->number, strerror(errno));
    else if (n != (ssize_t)CS_SEGMENT_HEADER_BYTES ||
             !cs_segment_parse_header(page, segment->number, segment->bytes, version_p))
        status = vc_err_set(err, VC_ERR_CORRUPT, "the header of segment %u does not hold", segment->number);
    vc_free(page);
    return status;
}

bool cs_segment_append(cs_segment_t *segment, uint32_t bytes, uint64_t *offset_p)
{
    if (segment->state != CS_SEGMENT_OPEN || segment->is_bad || segment->bytes - segment->tail < bytes)
        return false;
    *offset_p = segment->tail;
    segment->tail += bytes;
    segment->writers++;
    return true;
}

void cs_segment_unappend(cs_segment_t *segment, uint64_t offset, uint32_t bytes)
{
    segment->writers--;
    if (segment->state == CS_SEGMENT_OPEN && segment->tail == offset + bytes)
        segment->tail = offset;
}
