/*
 * Use counts that outlive a restart. A lookup only marks the segment of what it used; now and then, and at the end, the
 * commit thread writes one row a marked segment with the policy's number for each object inside. What was counted
 * since is lost with a crash: a little order among objects, nothing else.
 */
#include <stdlib.h>

#include "catalog_rows.h"
#include "store_int.h"
#include "vc/mem.h"

#define MIN_PERIOD_US 60000000u  /* not more often than once a minute */
#define MAX_PERIOD_US 300000000u /* and once in five when anything was used */
#define STAGE_BYTES (256u << 10) /* in one batch */

void cs_uses_mark(cs_store_t *s, cs_segment_t *segment)
{
    if (segment->n_uses++ == 0) {
        segment->next_used = s->used;
        s->used = segment;
    }
    s->n_uses++;
}

void cs_uses_unmark(cs_store_t *s, cs_segment_t *segment)
{
    cs_segment_t **at = &s->used;
    if (segment->n_uses == 0)
        return;
    while (*at != segment)
        at = &(*at)->next_used;
    *at = segment->next_used;
    s->n_uses -= segment->n_uses;
    segment->n_uses = 0;
    segment->next_used = NULL;
}

void cs_use(cs_store_t *s, uint32_t id, uint32_t now_s)
{
    cs_policy_touch(s->policy, id, now_s);
    cs_uses_mark(s, s->segments[cs_index_entry(s->index, id)->segment]);
}

bool cs_uses_due(const cs_store_t *s)
{
    if (!s->used)
        return false;
    uint64_t age_us = cs_now_us(s) - s->uses_us;
    uint64_t many = cs_index_count(s->index) / 100;
    return s->stopping || age_us >= MAX_PERIOD_US || (age_us >= MIN_PERIOD_US && s->n_uses > many);
}

static int by_page(const void *a, const void *b)
{
    const cs_use_t *x = a, *y = b;
    return x->page < y->page ? -1 : x->page > y->page;
}

static void stage_segment(cs_store_t *s, const cs_segment_t *segment)
{
    uint32_t n = 0;
    cs_use_t *uses = vc_calloc(VC_MAX(segment->live_objects, 1u), sizeof(*uses));
    if (!uses)
        return; /* the counts of the last time stay */
    for (uint32_t id = segment->first_entry; id != CS_INDEX_NONE; id = cs_index_entry(s->index, id)->seg_next)
        uses[n++] = (cs_use_t){.page = (uint32_t)cs_index_entry(s->index, id)->page,
                               .state = cs_policy_state(s->policy, id, cs_now_s(s))};
    qsort(uses, n, sizeof(*uses), by_page);
    (void)cs_catalog_put_uses(s->catalog, segment->number, segment->version, uses, n);
    vc_free(uses);
}

/* Written or not, they are not tried again before the next use: order among objects is not worth a retry. */
void cs_uses_stage(cs_store_t *s)
{
    uint64_t bytes = 0;
    while (s->used && bytes < STAGE_BYTES) {
        cs_segment_t *segment = s->used;
        stage_segment(s, segment);
        bytes += (uint64_t)segment->live_objects * CS_ROW_USE_BYTES;
        cs_uses_unmark(s, segment);
    }
    if (!s->used)
        s->uses_us = cs_now_us(s);
}

static bool find_use(const cs_uses_row_t *row, uint32_t page, cs_use_t *use_p)
{
    uint32_t low = 0, high = row->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        *use_p = cs_uses_at(row, mid);
        if (use_p->page == page)
            return true;
        if (use_p->page < page)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

void cs_uses_restore(cs_store_t *s, const cs_segment_t *segment, const cs_uses_row_t *row)
{
    for (uint32_t id = segment->first_entry; id != CS_INDEX_NONE; id = cs_index_entry(s->index, id)->seg_next) {
        cs_use_t use;
        if (find_use(row, (uint32_t)cs_index_entry(s->index, id)->page, &use))
            cs_policy_restore(s->policy, id, use.state, cs_now_s(s));
    }
}
