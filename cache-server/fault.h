/*
 * Fault points: named places where a test may kill the process or make an operation fail. Compiled in by VC_FAULTS
 * only; without it every point is a constant and costs nothing.
 *
 * Armed through the environment, VERICACHE_FAULT="name:count:action[=N][,...]": the count-th pass of the point (1 = the
 * first) does the action; "count+" means that one and all later ones.
 *
 *   kill        SIGKILL to ourselves: what was written stays written
 *   crash[=N]   the power goes: what no sync covered is undone, all of it, or (N > 0) a random half of its sectors with
 *               N as the seed; then SIGKILL. Covers segment files; the catalog's own files keep what they have
 *   eio, enospc, erofs   the operation fails with that errno
 *   short       half of the bytes
 *   flip        one bit of the data read
 *   torn[=N]    the first N sectors of 512 bytes of a write reach the disk, and it reports success
 *   lostsync    a sync that does nothing and reports success; a crash afterwards shows it
 *   hold[=N]    a transfer's completion is held back: until N later ones of its ring were delivered, or
 * cs_fault_release reorder     hold=1: the next completion overtakes this one
 *
 * fault_file.h has the file calls with their points, uring.h the transfers ("io.read", "io.write").
 */
#ifndef CS_FAULT_H
#define CS_FAULT_H

#include "vc/status.h"

typedef enum {
    CS_FAULT_NONE = 0,
    CS_FAULT_KILL,
    CS_FAULT_EIO,
    CS_FAULT_ENOSPC,
    CS_FAULT_SHORT,
    CS_FAULT_FLIP,
    CS_FAULT_EROFS,
    CS_FAULT_TORN,
    CS_FAULT_LOSTSYNC,
    CS_FAULT_HOLD,
    CS_FAULT_REORDER,
    CS_FAULT_CRASH
} cs_fault_t;

#ifdef VC_FAULTS
/* Counts a pass. KILL and CRASH never return. Any thread. */
cs_fault_t cs_fault_hit(const char *name);
/* The same, with the number behind the action; 0 where there is none. */
cs_fault_t cs_fault_hit_arg(const char *name, unsigned long *arg_p);
/* Replaces what is armed; NULL or "" disarms. INVALID when the text is malformed; nothing is armed then. */
vc_status_t cs_fault_arm(const char *spec);

#define CS_FAULT_POINTS_MAX 128u
typedef struct cs_fault_passes {
    unsigned n; /* points seen so far; more than fit are not counted */
    struct {
        char name[48];
        unsigned long passes;
    } points[CS_FAULT_POINTS_MAX];
} cs_fault_passes_t;
/* From now on counts the passes of every point, armed or not, into *passes; NULL ends it. The memory may be shared with
 * a process that reads it after this one was killed: that is how a test learns which points there are. */
void cs_fault_count(cs_fault_passes_t *passes);
#else
#define cs_fault_hit(name) (CS_FAULT_NONE)
#endif

/* The status an operation reports for an injected failure; OK for those that are not failures by themselves. */
static inline vc_status_t cs_fault_status(cs_fault_t fault)
{
    return fault == CS_FAULT_EIO      ? VC_ERR_IO
           : fault == CS_FAULT_ENOSPC ? VC_ERR_NOSPACE
           : fault == CS_FAULT_EROFS  ? VC_ERR_READONLY
                                      : VC_OK;
}

#endif
