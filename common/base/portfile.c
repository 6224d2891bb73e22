/* Written aside and renamed, so that no reader finds half a number. */
#include "vc/portfile.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(const char *path, const char *listen, int port, const char *more)
{
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return false;
    const char *colon = strrchr(listen, ':');
    int host_len = colon != NULL ? (int)(colon - listen) : (int)strlen(listen);
    bool good = fprintf(f, "%d\nlisten=%.*s:%d\n%s", port, host_len, listen, port, more) > 0;
    return fclose(f) == 0 && good;
}

vc_status_t vc_portfile_write(const char *path, const char *listen, int port, const char *more, vc_err_t *err)
{
    char aside[4096];
    if (snprintf(aside, sizeof(aside), "%s.new", path) >= (int)sizeof(aside))
        return vc_err_set(err, VC_ERR_INVALID, "the path of the port file is too long");
    struct stat there; /* the rename would put a plain file in the place of a device */
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return vc_err_set(err, VC_ERR_INVALID, "cannot write the port file %s: it is there and no regular file", path);
    if (write_all(aside, listen, port, more) && rename(aside, path) == 0)
        return VC_OK;
    int cause = errno;
    unlink(aside);
    return vc_err_set(err, vc_status_from_path_errno(cause), "cannot write the port file %s: %s", path,
                      strerror(cause));
}
