/*
 * Room ahead of need. The space thread keeps a few segments free before writers ask for them: it makes files while the
 * capacity allows, else evicts and cleans. Puts that found no room wait in a queue, are served first come, first
 * served, and hear why when there is none. The commit thread never waits for any of it.
 *
 *   free segments kept:  1 for survivors (where cleaning copies) + 1 to 4 for writers, one in 64 of all, where a spare
 * is a small part of the whole; more when puts wait
 */
#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define SPARE_MIN_SEGMENTS 16u
#define PATIENCE_US 1000000u /* for an upload that was refused to end, before another is */

/* ---- puts that wait ---- */

static cs_op_t *pop_waiting(cs_store_t *s)
{
    cs_op_t *op = s->waiting;
    s->waiting = op->next;
    if (!s->waiting)
        s->waiting_end = &s->waiting;
    return op;
}

static void start_or_fail(cs_store_t *s, cs_op_t *op)
{
    if (cs_op_start(op) == VC_OK)
        return;
    cs_lock(s);
    cs_put_undo(s, op);
    cs_unlock(s);
    cs_op_fail(op, VC_ERR_BUSY);
}

/* The first of the queue hears why. Only the space thread takes from the queue. */
static void refuse_first(cs_store_t *s, vc_status_t status, bool is_quota)
{
    cs_lock(s);
    s->stats.quota_rejected += is_quota;
    cs_op_t *op = pop_waiting(s);
    s->refused_upload = op->upload->id;
    s->refused_us = cs_now_us(s);
    cs_put_undo(s, op);
    s->stats.put_rejected++;
    cs_unlock(s);
    cs_op_fail(op, status);
}

bool cs_waiting_serve(cs_store_t *s)
{
    for (;;) {
        cs_lock(s);
        cs_op_t *op = s->waiting;
        if (!op) {
            cs_unlock(s);
            return true;
        }
        vc_status_t refused =
            s->closing || op->upload->state == CS_UPLOAD_DEAD ? VC_ERR_CANCELLED : cs_writable(s, NULL);
        uint16_t keyspace = op->upload->keyspace;
        bool is_over = cs_tenant_is_over(s, keyspace);
        vc_status_t status = refused != VC_OK ? refused : is_over ? VC_ERR_AGAIN : cs_put_allocate(s, op);
        if (status == VC_OK)
            pop_waiting(s);
        cs_unlock(s);
        if (status == VC_OK)
            start_or_fail(s, op);
        else if (refused != VC_OK)
            refuse_first(s, refused, false);
        else if (!is_over)
            return false;
        else if (!cs_tenant_evict(s, keyspace))
            refuse_first(s, VC_ERR_NOSPACE, true);
    }
}

/* ---- making room ---- */

void cs_room_wanted(cs_store_t *s)
{
    s->room_due = true;
    pthread_cond_signal(&s->space_work);
}

static uint32_t free_target(const cs_store_t *s)
{
    uint32_t allowed = cs_segments_allowed(s), spare = 0;
    if (allowed >= SPARE_MIN_SEGMENTS)
        spare = VC_MIN(1 + allowed / 64, 4u);
    return cs_segments_reserve(s) + spare;
}

typedef enum { ROOM_ENOUGH, ROOM_WAIT, ROOM_SHORT, ROOM_OVER } room_t;

static room_t look(cs_store_t *s)
{
    cs_lock(s);
    uint32_t reserve = cs_segments_reserve(s), have = s->n_free_segments;
    room_t room = ROOM_ENOUGH;
    if (cs_writable(s, NULL) != VC_OK || s->closing)
        room = ROOM_ENOUGH; /* whoever waits is refused */
    else if (s->segments_total_bytes > cs_segments_budget(s))
        room = ROOM_OVER;
    else if (s->waiting ? have <= reserve : have < free_target(s))
        /* What readers still hold comes back by itself. */
        room = s->n_retired > VC_MAX(1u, s->n_segments / 8) ? ROOM_WAIT : ROOM_SHORT;
    cs_unlock(s);
    return room;
}

static vc_status_t clean_one(cs_store_t *s, bool remove)
{
    cs_segment_t *victim;
    vc_status_t status = cs_evict_for_victim(s, &victim);
    if (status != VC_OK)
        return status;
    status = cs_clean_segment(s, victim, remove);
    if (status != VC_OK) { /* the disk took no copies, or there was no room for them: without any, then */
        cs_lock(s);
        bool is_new = !s->no_copies;
        s->no_copies = true;
        cs_unlock(s);
        return is_new ? VC_OK : status;
    }
    return VC_OK;
}

static vc_status_t make_one(cs_store_t *s)
{
    cs_lock(s);
    bool fits = s->segments_total_bytes + s->segment_bytes <= cs_segments_budget(s);
    cs_unlock(s);
    if (fits && cs_disk_free(s) >= s->segment_bytes + 2 * CS_LOW_WATER_BYTES && cs_segment_make_file(s) == VC_OK)
        return VC_OK;
    return clean_one(s, false);
}

static vc_status_t remove_one(cs_store_t *s)
{
    cs_lock(s);
    cs_segment_t *segment = cs_segment_pop_free(s);
    if (segment)
        segment->state = CS_SEGMENT_FILLING;
    cs_unlock(s);
    if (!segment)
        return clean_one(s, true);
    cs_segment_remove_file(s, segment);
    return VC_OK;
}

void cs_space_shrink(cs_store_t *s)
{
    pthread_mutex_lock(&s->files);
    while (look(s) == ROOM_OVER && remove_one(s) == VC_OK)
        cs_retired_recycle(s);
    pthread_mutex_unlock(&s->files);
}

/* Everything is held or being uploaded. One upload hears of it, and when it ends there is room for the others: were
 * all told at once, all would start again and meet here. Locked. */
static bool is_to_be_refused(cs_store_t *s)
{
    if (!s->waiting || s->n_retired > 0)
        return false;
    const cs_upload_t *told = cs_table_get(&s->uploads, s->refused_upload);
    return !told || told == s->waiting->upload || cs_now_us(s) - s->refused_us >= PATIENCE_US;
}

static void turn(cs_store_t *s)
{
    vc_status_t status = VC_OK;
    cs_lock(s);
    s->no_copies = false;
    cs_policy_set_capacity(s->policy, cs_segments_budget(s));
    cs_unlock(s);
    while (status == VC_OK) {
        cs_retired_recycle(s);
        (void)cs_waiting_serve(s);
        room_t room = look(s);
        if (room == ROOM_ENOUGH || room == ROOM_WAIT)
            return;
        status = room == ROOM_OVER ? remove_one(s) : make_one(s);
        cs_lock(s);
        bool is_refused = status != VC_OK && is_to_be_refused(s);
        cs_unlock(s);
        if (is_refused) {
            refuse_first(s, VC_ERR_NOSPACE, false);
            status = VC_OK;
        }
    }
}

/* ---- the thread ---- */

void *cs_space_main(void *arg)
{
    cs_store_t *s = arg;
    cs_lock(s);
    while (!s->stopping) {
        if (!s->room_due) {
            pthread_cond_wait(&s->space_work, &s->mu);
            continue;
        }
        s->room_due = false;
        cs_unlock(s);
        pthread_mutex_lock(&s->files);
        turn(s);
        pthread_mutex_unlock(&s->files);
        cs_lock(s);
    }
    cs_unlock(s);
    return NULL;
}
