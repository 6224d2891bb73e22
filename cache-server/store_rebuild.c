/* See store_rebuild.h. */
#include "store_rebuild.h"

#include "vc/clock.h"
#include "vc/log.h"

vc_status_t cs_store_rebuild(const char *data_dir, const char *why, cs_rebuild_report_t *report_p, vc_err_t *err)
{
    uint64_t start_us = vc_clock_now_us(vc_clock_system());
    vc_log_error("store", "the catalog cannot be used and is made anew from the segments dir=%s reason=\"%s\"",
                 data_dir, why);
    vc_status_t status = cs_rebuild_catalog(data_dir, report_p, err);
    if (status != VC_OK)
        return vc_err_prefix(err, "the catalog of %s is damaged and cannot be made anew", data_dir);
    vc_log_error("store",
                 "catalog made anew records=%u bytes=%llu segments=%u keyspaces=%u prefixes=%u pins=%u old_catalog=%s "
                 "dropped_damaged=%u dropped_unknown_keyspace=%u unreadable_pages=%u ms=%llu",
                 report_p->objects, (unsigned long long)report_p->bytes, report_p->segments, report_p->keyspaces,
                 report_p->prefixes, report_p->pins, report_p->old_read ? "read" : "unreadable", report_p->damaged,
                 report_p->unknown, report_p->unreadable,
                 (unsigned long long)((vc_clock_now_us(vc_clock_system()) - start_us) / 1000));
    return VC_OK;
}
