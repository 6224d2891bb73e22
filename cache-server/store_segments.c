/*
 * Segments in memory: which are there, which are free, and which would be cheapest to empty. Free ones are on a list,
 * sealed ones that nobody writes to in a heap by their live bytes, so that neither is ever searched for.
 */
#include <string.h>

#include "store_int.h"
#include "vc/log.h"
#include "vc/mem.h"

#define NOT_RANKED UINT32_MAX

/* ---- the array (locked) ---- */

static vc_status_t grow_array(cs_store_t *s, uint32_t number)
{
    uint32_t cap = VC_MAX(64u, s->cap_segments);
    while (cap <= number)
        cap *= 2;
    cs_segment_t **segments = vc_realloc(s->segments, cap, sizeof(*segments));
    if (!segments)
        return VC_ERR_NOMEM;
    s->segments = segments;
    cs_segment_t **ranked = vc_realloc(s->ranked, cap, sizeof(*ranked));
    if (!ranked)
        return VC_ERR_NOMEM;
    s->ranked = ranked;
    memset(segments + s->cap_segments, 0, (cap - s->cap_segments) * sizeof(*segments));
    s->cap_segments = cap;
    return VC_OK;
}

vc_status_t cs_segments_put(cs_store_t *s, const cs_segment_t *segment, cs_segment_t **segment_p)
{
    if (segment->number >= CS_MAX_SEGMENTS)
        return VC_ERR_RANGE;
    if (segment->number >= s->cap_segments && grow_array(s, segment->number) != VC_OK)
        return VC_ERR_NOMEM;
    cs_segment_t *copy = vc_memdup(segment, sizeof(*segment));
    if (!copy)
        return VC_ERR_NOMEM;
    copy->rank = NOT_RANKED;
    s->segments[segment->number] = copy;
    s->n_segments++;
    s->segments_total_bytes += segment->bytes;
    if (segment_p)
        *segment_p = copy;
    return VC_OK;
}

void cs_segments_forget(cs_store_t *s, cs_segment_t *segment)
{
    cs_uses_unmark(s, segment);
    s->segments[segment->number] = NULL;
    s->n_segments--;
    s->segments_total_bytes -= segment->bytes;
    s->lowest_unused = VC_MIN(s->lowest_unused, segment->number);
    vc_free(segment);
}

/* ---- the heap: least live bytes first (locked) ---- */

static void place(cs_store_t *s, uint32_t i, cs_segment_t *segment)
{
    s->ranked[i] = segment;
    segment->rank = i;
}

static void sift_up(cs_store_t *s, uint32_t i)
{
    cs_segment_t *segment = s->ranked[i];
    while (i > 0 && s->ranked[(i - 1) / 2]->live_bytes > segment->live_bytes) {
        place(s, i, s->ranked[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    place(s, i, segment);
}

static void sift_down(cs_store_t *s, uint32_t i)
{
    cs_segment_t *segment = s->ranked[i];
    for (uint32_t child; (child = 2 * i + 1) < s->n_ranked; i = child) {
        if (child + 1 < s->n_ranked && s->ranked[child + 1]->live_bytes < s->ranked[child]->live_bytes)
            child++;
        if (s->ranked[child]->live_bytes >= segment->live_bytes)
            break;
        place(s, i, s->ranked[child]);
    }
    place(s, i, segment);
}

static void unrank(cs_store_t *s, cs_segment_t *segment)
{
    uint32_t i = segment->rank;
    cs_segment_t *last = s->ranked[--s->n_ranked];
    segment->rank = NOT_RANKED;
    s->ranked_bytes -= segment->bytes;
    s->ranked_live -= segment->ranked_live;
    if (last == segment)
        return;
    place(s, i, last);
    sift_up(s, i);
    sift_down(s, last->rank);
}

void cs_segment_rank(cs_store_t *s, cs_segment_t *segment)
{
    bool can_go = segment->state == CS_SEGMENT_SEALED && segment->writers == 0 &&
                  (!segment->is_stuck || segment->live_objects == 0);
    if (!can_go) {
        if (segment->rank != NOT_RANKED)
            unrank(s, segment);
        return;
    }
    if (segment->rank == NOT_RANKED) {
        place(s, s->n_ranked++, segment);
        segment->ranked_live = 0;
        s->ranked_bytes += segment->bytes;
    }
    s->ranked_live += segment->live_bytes - segment->ranked_live;
    segment->ranked_live = segment->live_bytes;
    sift_up(s, segment->rank);
    sift_down(s, segment->rank);
}

void cs_segment_writer_gone(cs_store_t *s, cs_segment_t *segment)
{
    segment->writers--;
    cs_segment_rank(s, segment);
}

/* ---- free and open ones (locked) ---- */

void cs_segment_set_free(cs_store_t *s, cs_segment_t *segment)
{
    segment->state = CS_SEGMENT_FREE;
    segment->next = s->free_segments;
    s->free_segments = segment;
    s->n_free_segments++;
}

cs_segment_t *cs_segment_pop_free(cs_store_t *s)
{
    cs_segment_t *segment = s->free_segments;
    if (segment) {
        s->free_segments = segment->next;
        s->n_free_segments--;
        segment->next = NULL;
    }
    return segment;
}

void cs_segment_seal(cs_store_t *s, cs_class_t class_id)
{
    cs_segment_t *segment = s->open[class_id];
    if (!segment)
        return;
    s->open[class_id] = NULL;
    segment->state = CS_SEGMENT_SEALED;
    cs_segment_rank(s, segment);
}

uint32_t cs_segments_allowed(const cs_store_t *s)
{
    uint64_t n = cs_segments_budget(s) / s->segment_bytes;
    return (uint32_t)VC_MIN(n, (uint64_t)CS_MAX_SEGMENTS);
}

bool cs_segments_can_compact(const cs_store_t *s) { return cs_segments_allowed(s) >= CS_COMPACT_MIN_SEGMENTS; }

uint32_t cs_segments_reserve(const cs_store_t *s) { return cs_segments_can_compact(s) ? 1 : 0; }

bool cs_segment_take(cs_store_t *s, cs_class_t class_id)
{
    uint32_t reserve = class_id == CS_CLASS_SURVIVOR ? 0 : cs_segments_reserve(s);
    cs_segment_t *segment = s->n_free_segments > reserve ? cs_segment_pop_free(s) : NULL;
    cs_room_wanted(s);
    if (!segment)
        return false;
    cs_segment_seal(s, class_id);
    segment->state = CS_SEGMENT_OPEN;
    segment->class_id = (uint8_t)class_id;
    s->open[class_id] = segment;
    return true;
}

/* ---- files (unlocked; the segment is nobody else's) ---- */

void cs_segment_remove_file(cs_store_t *s, cs_segment_t *segment)
{
    vc_err_t err;
    vc_status_t status = cs_segment_remove(s->segdir, segment, &err);
    if (status != VC_OK)
        vc_log_warn("store", "segment not removed reason=\"%s\"", err.msg);
    cs_lock(s);
    cs_segments_forget(s, segment);
    cs_unlock(s);
}

vc_status_t cs_segment_make_file(cs_store_t *s)
{
    vc_err_t err;
    cs_segment_t segment, *made;
    vc_status_t status;
    bool in_the_way;
    do {
        cs_lock(s);
        uint32_t number = s->lowest_unused; /* below it all are used: a walk that each number pays for once */
        while (number < s->cap_segments && s->segments[number])
            number++;
        s->lowest_unused = number;
        cs_unlock(s);
        status = cs_segment_create(s->segdir, number, 1, s->segment_bytes, &segment, &err);
        in_the_way = status == VC_ERR_BUSY && number < CS_MAX_SEGMENTS - 1;
        if (in_the_way) { /* not ours to remove; the number counts as used, or no file would ever be made again */
            vc_log_warn("store", "segment number passed over reason=\"%s\"", err.msg);
            cs_lock(s);
            s->lowest_unused = number + 1;
            cs_unlock(s);
        }
    } while (in_the_way);
    if (status != VC_OK) {
        vc_log_warn("store", "no new segment status=%s reason=\"%s\"", vc_status_name(status), err.msg);
        return status;
    }
    cs_lock(s);
    status = cs_segments_put(s, &segment, &made);
    if (status == VC_OK)
        cs_segment_set_free(s, made);
    cs_unlock(s);
    if (status != VC_OK)
        (void)cs_segment_remove(s->segdir, &segment, &err);
    return status;
}
