/* One direction of an emulated link; see relay_link.h. */
#include "relay_link.h"

#include <string.h>

#include "vc/mem.h"

/* Parcels of one connection that come within this time travel as one, which bounds the queue for tiny writes. */
#define MERGE_NS 50000u
#define MERGE_BYTES (64u << 10)

void relay_link_init(relay_link_t *link, uint64_t delay_ns, uint64_t rate_bits_per_s)
{
    *link = (relay_link_t){.delay_ns = delay_ns, .rate_bits_per_s = rate_bits_per_s};
}

void relay_link_fini(relay_link_t *link)
{
    vc_free(link->queue);
    *link = (relay_link_t){0};
}

static bool grow(relay_link_t *link)
{
    const size_t cap = link->cap != 0 ? link->cap * 2 : 256;
    relay_parcel_t *queue = vc_calloc(cap, sizeof(*queue));
    if (queue == NULL)
        return false;
    for (size_t i = 0; i < link->count; i++)
        queue[i] = link->queue[(link->head + i) % link->cap];
    vc_free(link->queue);
    link->queue = queue;
    link->head = 0;
    link->cap = cap;
    return true;
}

static uint64_t send_time(const relay_link_t *link, uint32_t bytes)
{
    if (link->rate_bits_per_s == 0)
        return 0;
    return (uint64_t)((unsigned __int128)bytes * 8000000000u / link->rate_bits_per_s);
}

bool relay_link_push(relay_link_t *link, void *owner, uint32_t bytes, bool end, uint64_t now_ns)
{
    if (link->count == link->cap && !grow(link))
        return false;
    link->free_ns = VC_MAX(link->free_ns, now_ns) + send_time(link, bytes);
    const uint64_t due = link->free_ns + link->delay_ns;
    if (link->count != 0) {
        relay_parcel_t *last = &link->queue[(link->head + link->count - 1) % link->cap];
        if (last->owner == owner && !last->end && due - last->due_ns < MERGE_NS && last->bytes + bytes <= MERGE_BYTES) {
            last->bytes += bytes;
            last->end = end;
            last->due_ns = due;
            return true;
        }
    }
    link->queue[(link->head + link->count++) % link->cap] = (relay_parcel_t){owner, due, bytes, end};
    return true;
}

bool relay_link_pop(relay_link_t *link, uint64_t now_ns, relay_parcel_t *parcel_p)
{
    if (link->count == 0 || link->queue[link->head].due_ns > now_ns)
        return false;
    *parcel_p = link->queue[link->head];
    link->head = (link->head + 1) % link->cap;
    link->count--;
    return true;
}

uint64_t relay_link_next(const relay_link_t *link)
{
    return link->count != 0 ? link->queue[link->head].due_ns : UINT64_MAX;
}

uint64_t relay_link_open(const relay_link_t *link)
{
    return link->free_ns > RELAY_BACKLOG_NS ? link->free_ns - RELAY_BACKLOG_NS : 0;
}
