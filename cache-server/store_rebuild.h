/* A start whose catalog cannot be used makes it anew from the segments, and says so. */
#ifndef CS_STORE_REBUILD_H
#define CS_STORE_REBUILD_H

#include "rebuild.h"

/* why: what was wrong with the catalog. The caller holds the directory's lock and has nothing of it open. */
vc_status_t cs_store_rebuild(const char *data_dir, const char *why, cs_rebuild_report_t *report_p, vc_err_t *err);

#endif
