/*
 * Status codes and the optional sentence for humans.
 *
 * Every fallible function returns vc_status_t: VC_OK (0) or a negative code. Codes are grouped by what
 * the caller has to give up: this call (the argument was wrong), this object (gone, stale or damaged), this
 * peer (the connection), or the whole service (no space, read-only, out of memory).
 * NOT_FOUND, BUSY, STALE and AGAIN are outcomes rather than errors and are never logged by who returns them.
 */
#ifndef VC_STATUS_H
#define VC_STATUS_H

#include <stdarg.h>
#include <stddef.h>

typedef enum {
    VC_OK = 0,
    /* this call: repeat it with other arguments, or later */
    VC_ERR_INVALID = -1,     /* malformed argument, message or file */
    VC_ERR_UNSUPPORTED = -2, /* well-formed, but this build or model cannot do it */
    VC_ERR_RANGE = -3,       /* number outside its bounds, or arithmetic overflow */
    VC_ERR_AGAIN = -4,       /* nothing there yet; poll or wait again */
    VC_ERR_BUSY = -5,        /* limit reached; try later */
    VC_ERR_TIMEOUT = -6,     /* deadline passed */
    VC_ERR_CANCELLED = -7,
    /* this object */
    VC_ERR_NOT_FOUND = -20,
    VC_ERR_EXISTS = -21,
    VC_ERR_STALE = -22,    /* lease or generation from before a restart, or expired */
    VC_ERR_CORRUPT = -23,  /* checksum or structure does not hold */
    VC_ERR_MISMATCH = -24, /* keyspace, shape or digest of another model */
    VC_ERR_PERM = -25,     /* token or tenant not allowed */
    /* this peer */
    VC_ERR_UNREACHABLE = -40, /* connect failed or the peer is gone */
    VC_ERR_PROTOCOL = -41,    /* the peer broke the protocol */
    /* this service */
    VC_ERR_NOMEM = -60,
    VC_ERR_NOSPACE = -61, /* disk or capacity full */
    VC_ERR_READONLY = -62,
    VC_ERR_IO = -63,
    VC_ERR_INTERNAL = -64
} vc_status_t;

/* Caller-owned; fixed size so that it never allocates. Every function that takes one accepts NULL. */
typedef struct vc_err {
    vc_status_t status;
    char msg[500];
} vc_err_t;

/* Short lower-case name, e.g. "not_found". Never NULL, static storage. */
const char *vc_status_name(vc_status_t status);

/* Words for a sentence to people where nothing closer to the cause is known, e.g. "the disk or the capacity is full";
 * the name where there is nothing to add. Never NULL, static storage. */
const char *vc_status_text(vc_status_t status);

/* Fills *err (when not NULL) and returns status, so that `return vc_err_set(err, VC_ERR_INVALID, "...")` works.
 * The sentence names the object and the cause, without a trailing dot or newline. */
vc_status_t vc_err_set(vc_err_t *err, vc_status_t status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the sentence that is there. Returns err->status (VC_ERR_INTERNAL when err is NULL). */
vc_status_t vc_err_prefix(vc_err_t *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Maps errno to a code: ENOENT NOT_FOUND, ENOSPC/EDQUOT NOSPACE, EROFS READONLY, EACCES/EPERM PERM, ENOMEM NOMEM, else
 * IO. */
vc_status_t vc_status_from_errno(int errnum);
/* The same for a path that the user named: one that leads nowhere (ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG) is
 * VC_ERR_INVALID, a wrong argument, rather than an object or a peer that is gone. */
vc_status_t vc_status_from_path_errno(int errnum);

/* Exit codes of all programs (sysexits): 0 good, 64 wrong flag or argument, 65 bad data, 69 peer unavailable,
 * 70 internal, 73 cannot create, 74 I/O, 75 temporary, 77 permission. */
int vc_status_exit_code(vc_status_t status);

#endif
