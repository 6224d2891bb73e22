/*
 * Is the data directory still ours, and does it take writes? Asked by the commit thread at the start of every turn and
 * after every catalog write, so that nothing is acknowledged that went to files nobody will find again; and the way
 * back from read-only without a restart.
 */
#ifndef CS_STORE_HEALTH_H
#define CS_STORE_HEALTH_H

#include "store.h"

/* Makes the directory where it is missing and takes its lock, unless lock_fd holds it already. Sets readonly when the
 * directory takes no new file. BUSY: another process has it. */
vc_status_t cs_dir_lock(cs_store_t *s, vc_err_t *err);
vc_status_t cs_dir_sync(const cs_store_t *s, vc_err_t *err);

/* Commit thread, unlocked. OK; READONLY: writes are refused now (gone, replaced, or a file system that is read-only or
 * was full at the start). Comes back to OK by itself. */
vc_status_t cs_health_check(cs_store_t *s);
/* The files that we hold are the ones that a restart would find. No lock. */
bool cs_health_is_ours(const cs_store_t *s);
/* fdatasync of a segment's file; an unlinked one is an error, since its bytes end with us. 0, or -1 with errno. */
int cs_health_sync(int fd);

#endif
