/*
 * The scrubber. One step picks the next entry under the lock, pins its record, reads and judges it outside, unpins.
 * The cursor is an entry id: ids are stable while their object lives, and what is evicted, deleted or moved meanwhile
 * leaves only holes or entries behind the cursor, both harmless. Steps are run by one thread of its own, so that a disk
 * that hangs delays no lease; where there are no threads (tests), by the tick.
 */
#include "store_scrub.h"

#include <time.h>

#include "fault.h"
#include "record.h"
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define YIELD_US 100000u
#define YIELDS_MAX 10u  /* in a row: under constant load a record a second is read */
#define LOOK_MAX 65536u /* unused ids passed over under one hold of the lock */
#define WAIT_US_MAX 1000000u
#define LOG_MAX 8u /* read errors told of in a pass; all are counted */
#define NEVER UINT64_MAX

/* ---- passes (locked) ---- */

static uint64_t rate_of(const cs_store_t *s, uint64_t wanted)
{
    return wanted ? wanted : s->opts.scrub_bytes ? s->opts.scrub_bytes : CS_SCRUB_DEFAULT_BYTES;
}

static void begin_pass(cs_store_t *s, uint64_t rate)
{
    cs_scrub_t *sc = &s->scrub;
    sc->started_us = sc->filled_us = cs_now_us(s);
    sc->next_us = sc->started_us + (uint64_t)VC_MAX(s->opts.scrub_interval_s, 1u) * 1000000u;
    sc->cursor = sc->yields = 0;
    sc->level = 1; /* the first record is free, the rest is debt to be waited for */
    sc->info.rate_bytes = rate;
    sc->info.pass_objects = sc->info.pass_bytes = sc->info.pass_corrupt = sc->info.pass_errors = 0;
    sc->info.running = true;
}

static void end_pass(cs_store_t *s)
{
    cs_scrub_t *sc = &s->scrub;
    sc->info.running = false;
    sc->info.rate_bytes = s->opts.scrub_bytes;
    sc->info.passes++;
    sc->info.last_pass_s = vc_clock_wall_us(s->opts.clock) / 1000000u;
    sc->info.last_pass_ms = (cs_now_us(s) - sc->started_us) / 1000u;
    if (sc->info.pass_objects > 0)
        vc_log_info("store", "scrub pass done objects=%llu bytes=%llu corrupt=%llu errors=%llu ms=%llu",
                    (unsigned long long)sc->info.pass_objects, (unsigned long long)sc->info.pass_bytes,
                    (unsigned long long)sc->info.pass_corrupt, (unsigned long long)sc->info.pass_errors,
                    (unsigned long long)sc->info.last_pass_ms);
}

/* Microseconds until the rate allows one more record; 0: now. At most a second's worth is saved up. */
static uint64_t fill(cs_scrub_t *sc, uint64_t now_us)
{
    double rate = (double)sc->info.rate_bytes;
    if (now_us > sc->filled_us)
        sc->level = VC_MIN(sc->level + rate * (double)(now_us - sc->filled_us) / 1e6, rate);
    sc->filled_us = now_us; /* a clock that steps back fills nothing, and counts from there */
    return sc->level > 0 ? 0 : (uint64_t)(-sc->level * 1e6 / rate) + 1;
}

static bool next_entry(cs_store_t *s, uint32_t *id_p)
{
    uint32_t limit = cs_index_limit(s->index);
    for (uint32_t n = 0; n < LOOK_MAX && s->scrub.cursor < limit; n++) {
        uint32_t id = s->scrub.cursor++;
        if (cs_index_entry(s->index, id)->pages > 0) {
            *id_p = id;
            return true;
        }
    }
    return false;
}

/* True: a record is pinned. False: *wait_us_p says when to ask again. */
static bool next_record(cs_store_t *s, cs_pin_t *pin_p, int *fd_p, uint64_t *wait_us_p)
{
    cs_scrub_t *sc = &s->scrub;
    uint64_t now_us = cs_now_us(s);
    uint32_t id;
    *wait_us_p = NEVER;
    if (s->closing)
        return false;
    if (!sc->info.running && s->opts.scrub_bytes > 0) {
        if (now_us >= sc->next_us)
            begin_pass(s, s->opts.scrub_bytes);
        else
            *wait_us_p = sc->next_us - now_us;
    }
    if (!sc->info.running)
        return false;
    *wait_us_p = fill(sc, now_us);
    if (*wait_us_p > 0)
        return false;
    if (s->ops_running > 0 && sc->yields < YIELDS_MAX) {
        sc->yields++;
        *wait_us_p = YIELD_US;
        return false;
    }
    sc->yields = 0;
    if (!next_entry(s, &id)) {
        if (sc->cursor >= cs_index_limit(s->index))
            end_pass(s);
        return false;
    }
    cs_pin_entry(s, id, pin_p);
    *fd_p = s->segments[pin_p->segment]->fd;
    return true;
}

/* ---- one record (unlocked) ---- */

static vc_status_t read_and_check(cs_scrub_t *sc, const cs_pin_t *pin, int fd, vc_err_t *why)
{
    if (sc->cap < pin->bytes) {
        vc_free(sc->data);
        sc->data = vc_alloc_aligned(4096, pin->bytes);
        sc->cap = sc->data ? pin->bytes : 0;
    }
    if (!sc->data)
        return vc_err_set(why, VC_ERR_NOMEM, "no memory for a record");
    cs_fault_t fault = cs_fault_hit("scrub.read");
    vc_status_t status = cs_fault_status(fault);
    if (status != VC_OK)
        return vc_err_set(why, status, "injected failure");
    status = cs_record_read(fd, pin->offset, pin->bytes, sc->data, why);
    if (fault == CS_FAULT_FLIP)
        sc->data[pin->bytes / 2] ^= 1;
    return status == VC_OK ? cs_record_check(sc->data, pin->bytes, &pin->key, pin->header_crc, why) : status;
}

static void scrub_one(cs_store_t *s, const cs_pin_t *pin, int fd)
{
    vc_err_t why = {0};
    cs_scrub_t *sc = &s->scrub;
    vc_status_t status = read_and_check(sc, pin, fd, &why);
    bool is_dropped = false;
    cs_lock(s);
    bool is_told = sc->info.pass_errors < LOG_MAX;
    cs_unlock(s);
    if (status == VC_ERR_CORRUPT) {
        cs_log_corrupt(pin, why.msg);
        is_dropped = cs_drop_corrupt(s, pin);
    } else if (status != VC_OK && is_told) {
        vc_log_warn("store", "scrub cannot read segment=%u offset=%llu bytes=%u reason=\"%s\"", pin->segment,
                    (unsigned long long)pin->offset, pin->bytes, why.msg);
    }
    cs_store_unpin(s, pin);
    cs_lock(s);
    sc->level -= (double)pin->bytes;
    sc->info.pass_objects++;
    sc->info.pass_bytes += pin->bytes;
    sc->info.bytes += pin->bytes;
    sc->info.pass_corrupt += is_dropped;
    sc->info.corrupt += is_dropped;
    if (status != VC_OK && status != VC_ERR_CORRUPT) {
        sc->info.pass_errors++;
        sc->info.errors++;
    }
    cs_unlock(s);
}

/* Reads what may be read now; returns how long to wait then. */
static uint64_t run_steps(cs_store_t *s)
{
    for (;;) {
        cs_pin_t pin;
        int fd;
        uint64_t wait_us;
        cs_lock(s);
        bool has_record = next_record(s, &pin, &fd, &wait_us);
        cs_unlock(s);
        if (has_record)
            scrub_one(s, &pin, fd);
        else if (wait_us > 0)
            return wait_us;
    }
}

void cs_scrub_tick(cs_store_t *s) { (void)run_steps(s); }

void *cs_scrub_main(void *arg)
{
    cs_store_t *s = arg;
    for (;;) {
        uint64_t wait_us = VC_MIN(run_steps(s), WAIT_US_MAX); /* the store's clock need not be the kernel's */
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + wait_us * 1000u;
        until.tv_sec += (time_t)(ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
        cs_lock(s);
        if (!s->stopping)
            pthread_cond_timedwait(&s->scrub_work, &s->mu, &until);
        bool stop = s->stopping;
        cs_unlock(s);
        if (stop)
            return NULL;
    }
}

/* ---- requests ---- */

vc_status_t cs_store_scrub_start(cs_store_t *s, uint64_t rate_bytes, vc_err_t *err)
{
    vc_status_t status = VC_OK;
    cs_lock(s);
    if (s->closing) {
        status = vc_err_set(err, VC_ERR_BUSY, "the store is closing");
    } else if (s->scrub.info.running) {
        if (rate_bytes)
            s->scrub.info.rate_bytes = rate_bytes;
        status = vc_err_set(err, VC_ERR_EXISTS, "a scrub is running already");
    } else {
        begin_pass(s, rate_of(s, rate_bytes));
    }
    pthread_cond_signal(&s->scrub_work);
    cs_unlock(s);
    return status;
}

vc_status_t cs_store_scrub_stop(cs_store_t *s, vc_err_t *err)
{
    cs_lock(s);
    bool was = s->scrub.info.running;
    s->scrub.info.running = false;
    s->scrub.info.rate_bytes = s->opts.scrub_bytes;
    cs_unlock(s);
    return was ? VC_OK : vc_err_set(err, VC_ERR_NOT_FOUND, "no scrub is running");
}

void cs_store_scrub_info(cs_store_t *s, cs_scrub_info_t *info_p)
{
    cs_lock(s);
    *info_p = s->scrub.info;
    if (!info_p->running)
        info_p->rate_bytes = s->opts.scrub_bytes;
    info_p->pass_objects_total = s->stats.full.objects + s->stats.compressed.objects;
    info_p->pass_bytes_total = s->stats.full.bytes + s->stats.compressed.bytes;
    cs_unlock(s);
}
