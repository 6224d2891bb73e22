/* Status names, the error sentence, and the mapping from errno and to exit codes. No state. */
#include "vc/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vc/mem.h"

const char *vc_status_name(vc_status_t status)
{
    switch (status) {
    case VC_OK: return "ok";
    case VC_ERR_INVALID: return "invalid";
    case VC_ERR_UNSUPPORTED: return "unsupported";
    case VC_ERR_RANGE: return "range";
    case VC_ERR_AGAIN: return "again";
    case VC_ERR_BUSY: return "busy";
    case VC_ERR_TIMEOUT: return "timeout";
    case VC_ERR_CANCELLED: return "cancelled";
    case VC_ERR_NOT_FOUND: return "not_found";
    case VC_ERR_EXISTS: return "exists";
    case VC_ERR_STALE: return "stale";
    case VC_ERR_CORRUPT: return "corrupt";
    case VC_ERR_MISMATCH: return "mismatch";
    case VC_ERR_PERM: return "permission";
    case VC_ERR_UNREACHABLE: return "unreachable";
    case VC_ERR_PROTOCOL: return "protocol";
    case VC_ERR_NOMEM: return "no_memory";
    case VC_ERR_NOSPACE: return "no_space";
    case VC_ERR_READONLY: return "read_only";
    case VC_ERR_IO: return "io";
    case VC_ERR_INTERNAL: return "internal";
    }
    return "unknown";
}

vc_status_t vc_err_set(vc_err_t *err, vc_status_t status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
        va_end(ap);
        err->status = status;
    }
    return status;
}

vc_status_t vc_err_prefix(vc_err_t *err, const char *fmt, ...)
{
    if (err == NULL)
        return VC_ERR_INTERNAL;
    char old[sizeof(err->msg)];
    memcpy(old, err->msg, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : VC_MIN((size_t)n, sizeof(err->msg) - 1);
    for (const char *part = ": "; *part != '\0' && at < sizeof(err->msg) - 1; part++)
        err->msg[at++] = *part;
    size_t left = VC_MIN(strnlen(old, sizeof(old)), sizeof(err->msg) - 1 - at);
    memcpy(err->msg + at, old, left);
    err->msg[at + left] = '\0';
    return err->status;
}

vc_status_t vc_status_from_errno(int errnum)
{
    switch (errnum) {
    case 0: return VC_OK;
    case ENOENT: return VC_ERR_NOT_FOUND;
    case ENOSPC:
    case EDQUOT: return VC_ERR_NOSPACE;
    case EROFS: return VC_ERR_READONLY;
    case EACCES:
    case EPERM: return VC_ERR_PERM;
    case ENOMEM: return VC_ERR_NOMEM;
    case EINVAL: return VC_ERR_INVALID;
    case ECONNREFUSED:
    case ECONNRESET:
    case EADDRINUSE:
    case EADDRNOTAVAIL: return VC_ERR_UNREACHABLE;
    case ETIMEDOUT: return VC_ERR_TIMEOUT;
    default: return VC_ERR_IO;
    }
}

const char *vc_status_text(vc_status_t status)
{
    switch (status) {
    case VC_ERR_BUSY: return "too much is going on, try again later";
    case VC_ERR_TIMEOUT: return "it took too long";
    case VC_ERR_NOT_FOUND: return "it is not there";
    case VC_ERR_STALE: return "it has expired";
    case VC_ERR_CORRUPT: return "its checksum or structure does not hold";
    case VC_ERR_PERM: return "it is not allowed";
    case VC_ERR_NOMEM: return "out of memory";
    case VC_ERR_NOSPACE: return "the disk or the capacity is full";
    case VC_ERR_READONLY: return "the store is read-only";
    case VC_ERR_IO: return "input or output failed";
    default: return vc_status_name(status);
    }
}

vc_status_t vc_status_from_path_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: return VC_ERR_INVALID;
    default: return vc_status_from_errno(errnum);
    }
}

int vc_status_exit_code(vc_status_t status)
{
    switch (status) {
    case VC_OK: return 0;
    case VC_ERR_INVALID:
    case VC_ERR_RANGE:
    case VC_ERR_UNSUPPORTED: return 64;
    case VC_ERR_CORRUPT:
    case VC_ERR_MISMATCH: return 65;
    case VC_ERR_UNREACHABLE:
    case VC_ERR_PROTOCOL:
    case VC_ERR_NOT_FOUND: return 69;
    case VC_ERR_NOSPACE:
    case VC_ERR_READONLY: return 73;
    case VC_ERR_IO: return 74;
    case VC_ERR_AGAIN:
    case VC_ERR_BUSY:
    case VC_ERR_EXISTS: /* done or under way already */
    case VC_ERR_STALE:
    case VC_ERR_TIMEOUT:
    case VC_ERR_CANCELLED: return 75;
    case VC_ERR_PERM: return 77;
    default: return 70;
    }
}
