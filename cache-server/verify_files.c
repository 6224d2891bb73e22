/*
 * RocksDB's own files. Opening the catalog and reading every row goes through its sums already, except for two places:
 * a log or manifest whose last record has a damaged length is taken for one that a crash cut short, and the end of a
 * table has unused bytes. Both are looked at here, after the published formats:
 *
 *   log, manifest   blocks of 32 KiB; records of {masked CRC32C of type and data, u16 length, u8 type, data}; less than
 *                   seven bytes at the end of a block are zero
 *   table           the last 53 bytes: u8 kind of sums, two places as four variable-length numbers, zeros up to 41,
 *                   u32 version, u64 magic
 *   CURRENT         the name of the manifest and a line feed
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vc/bytes.h"
#include "vc/crc32c.h"
#include "vc/mem.h"
#include "verify_int.h"

#define LOG_BLOCK 32768u
#define LOG_HEADER 7u
#define LOG_TYPE_MAX 4u /* full, first, middle, last */
#define FOOTER_BYTES 53u
#define FILE_MAX ((uint64_t)1 << 30) /* larger ones are none that we configure */

static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0)
            return false;
    }
    return true;
}

const char *cs_verify_log_bytes(const uint8_t *data, size_t bytes, size_t *at_p)
{
    size_t at = 0;
    bool is_open = false; /* a record in parts has begun */
    while (at < bytes) {
        size_t in_block = LOG_BLOCK - at % LOG_BLOCK;
        *at_p = at;
        if (in_block < LOG_HEADER) {
            size_t n = VC_MIN(in_block, bytes - at);
            if (!is_zero(data + at, n))
                return "the end of a block is not zero";
            at += n;
            continue;
        }
        if (is_zero(data + at, bytes - at)) /* space taken in advance */
            break;
        if (bytes - at < LOG_HEADER)
            return "the file ends inside a record";
        uint32_t length = data[at + 4] | (uint32_t)data[at + 5] << 8, type = data[at + 6];
        if (type == 0 || type > LOG_TYPE_MAX)
            return "a record is of no known type";
        if (LOG_HEADER + length > in_block)
            return "a record does not fit its block";
        if (LOG_HEADER + length > bytes - at)
            return "the file ends inside a record";
        if (masked(vc_crc32c(0, data + at + 6, 1 + (size_t)length)) != vc_le32(data + at))
            return "a record fails its checksum";
        if ((type == 1 || type == 2) == is_open)
            return "a record in parts is not whole";
        is_open = type == 2 || type == 3;
        at += LOG_HEADER + length;
    }
    return is_open ? "the file ends inside a record" : NULL;
}

const char *cs_verify_table_footer(const uint8_t *tail, size_t bytes)
{
    if (bytes < FOOTER_BYTES)
        return "the file is shorter than the end of a table";
    tail += bytes - FOOTER_BYTES;
    if (vc_le64(tail + 45) != 0x88e241b785f4cff7u)
        return "the file does not end as a table does";
    size_t at = 1;
    for (int i = 0; i < 4; i++) {
        size_t n = 1;
        while (at < 41 && (tail[at++] & 0x80) && n < 10)
            n++;
    }
    return is_zero(tail + at, 41 - at) ? NULL : "unused bytes at the end of the table are not zero";
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* All of it, owned; NULL after a finding. */
static uint8_t *read_file(verify_t *v, int dir, const char *name, size_t *n_p)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    uint8_t *data = NULL;
    size_t have = 0;
    if (fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size <= FILE_MAX &&
        (data = vc_alloc((size_t)st.st_size + 1))) {
        ssize_t n = 1;
        while (have < (size_t)st.st_size && (n = read(fd, data + have, (size_t)st.st_size - have)) > 0)
            have += (size_t)n;
        if (n < 0) {
            vc_free(data);
            data = NULL;
        }
    }
    if (!data)
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "catalog/%s: cannot be read: %s", name, strerror(errno));
    if (fd >= 0)
        close(fd);
    *n_p = have;
    return data;
}

static void check_log(verify_t *v, int dir, const char *name)
{
    size_t n, at = 0;
    uint8_t *data = read_file(v, dir, name, &n);
    const char *why = data ? cs_verify_log_bytes(data, n, &at) : NULL;
    if (why)
        cs_verify_found(v, CS_VERIFY_CATALOG_FILE, "catalog/%s at %zu: %s", name, at, why);
    vc_free(data);
}

static void check_table(verify_t *v, int dir, const char *name)
{
    uint8_t tail[FOOTER_BYTES];
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const char *why = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "catalog/%s: cannot be read: %s", name, strerror(errno));
    else if (st.st_size < (off_t)FOOTER_BYTES)
        why = cs_verify_table_footer(tail, 0);
    else if (pread(fd, tail, sizeof(tail), st.st_size - (off_t)sizeof(tail)) == (ssize_t)sizeof(tail))
        why = cs_verify_table_footer(tail, sizeof(tail));
    else
        cs_verify_found(v, CS_VERIFY_UNREADABLE, "catalog/%s: its end cannot be read", name);
    if (why)
        cs_verify_found(v, CS_VERIFY_CATALOG_FILE, "catalog/%s: %s", name, why);
    if (fd >= 0)
        close(fd);
}

/* The manifest that CURRENT names; others may be left over and do not matter. */
static void check_current(verify_t *v, int dir)
{
    size_t n;
    uint8_t *text = read_file(v, dir, "CURRENT", &n);
    if (!text)
        return;
    text[n] = '\0';
    if (n < 10 || n > 40 || strlen((char *)text) != n || text[n - 1] != '\n' ||
        strncmp((char *)text, "MANIFEST-", 9) != 0 || strspn((char *)text + 9, "0123456789") != n - 10) {
        cs_verify_found(v, CS_VERIFY_CATALOG_FILE, "catalog/CURRENT: does not name a manifest");
    } else {
        text[n - 1] = '\0';
        check_log(v, dir, (char *)text);
    }
    vc_free(text);
}

typedef struct {
    char name[64]; /* a number and ".sst" */
} table_t;

typedef struct {
    verify_t *v;
    verify_list_t list; /* table_t, by name */
} tables_t;

static void add_table(void *arg, const char *name)
{
    tables_t *t = arg;
    table_t table;
    snprintf(table.name, sizeof(table.name), "%s", name);
    (void)cs_verify_add(t->v, &t->list, &table, sizeof(table)); /* no memory: that ends the check */
}

/* A table_t begins with its name, so that either may be the text alone. */
static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static bool has_table(const tables_t *t, const char *name)
{
    return t->list.n > 0 && bsearch(name, t->list.items, t->list.n, sizeof(table_t), by_name) != NULL;
}

/* A table that the catalog does not read is what a kill left of one that was being written: the next start drops it. */
void cs_verify_catalog_files(verify_t *v, const cs_catalog_t *catalog)
{
    char path[4096];
    struct dirent *item;
    tables_t read = {.v = v};
    snprintf(path, sizeof(path), "%s/catalog", v->opts->data_dir);
    DIR *list = opendir(path);
    if (!list) {
        cs_verify_found(v, CS_VERIFY_CATALOG, "catalog: %s", strerror(errno));
        return;
    }
    if (catalog)
        cs_catalog_each_table(catalog, add_table, &read);
    if (read.list.n > 1)
        qsort(read.list.items, read.list.n, sizeof(table_t), by_name);
    check_current(v, dirfd(list));
    while ((item = readdir(list))) {
        if (ends_with(item->d_name, ".log"))
            check_log(v, dirfd(list), item->d_name);
        else if (ends_with(item->d_name, ".sst") && (!catalog || has_table(&read, item->d_name)))
            check_table(v, dirfd(list), item->d_name);
    }
    closedir(list);
    vc_free(read.list.items);
}
