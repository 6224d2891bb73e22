/* Whole files in memory. */
#include "support/file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vc/mem.h"

void vt_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("test support: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

uint8_t *vt_file_read(const char *path, size_t *n_p)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        vt_die("cannot open %s: %s", path, strerror(errno));
    size_t n = 0, cap = 4096;
    uint8_t *data = vc_alloc(cap);
    for (;;) {
        if (data == NULL)
            vt_die("out of memory reading %s", path);
        n += fread(data + n, 1, cap - n - 1, f);
        if (n < cap - 1)
            break;
        cap *= 2;
        data = vc_realloc(data, cap, 1);
    }
    if (ferror(f))
        vt_die("cannot read %s", path);
    fclose(f);
    data[n] = 0;
    if (n_p != NULL)
        *n_p = n;
    return data;
}

uint8_t *vt_vector_read(const char *name, size_t *n_p)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", VC_TEST_VECTORS, name);
    return vt_file_read(path, n_p);
}

void vt_file_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        vt_die("cannot create %s: %s", path, strerror(errno));
    if (fwrite(data, 1, n, f) != n || fclose(f) != 0)
        vt_die("cannot write %s: %s", path, strerror(errno));
}
