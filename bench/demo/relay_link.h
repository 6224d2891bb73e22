/*
 * One direction of an emulated link: a shared rate, then a fixed delay. Pure: time is a parameter, nothing is sent
 * here. Parcels of all connections share the link in order of arrival, so due times never decrease and one queue holds
 * them all.
 */
#ifndef RELAY_LINK_H
#define RELAY_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct relay_parcel {
    void *owner;
    uint64_t due_ns;
    uint32_t bytes;
    bool end; /* end of the stream after these bytes */
} relay_parcel_t;

typedef struct relay_link {
    uint64_t delay_ns;
    uint64_t rate_bits_per_s; /* 0: unlimited */
    uint64_t free_ns;         /* when the last parcel accepted has left the sender */
    relay_parcel_t *queue;    /* ring */
    size_t head, count, cap;
} relay_link_t;

/* How much the sender may queue ahead of the rate before the relay stops reading: a router's buffer. */
#define RELAY_BACKLOG_NS 10000000u

void relay_link_init(relay_link_t *link, uint64_t delay_ns, uint64_t rate_bits_per_s);
void relay_link_fini(relay_link_t *link);
/* False: out of memory, nothing was accepted. */
bool relay_link_push(relay_link_t *link, void *owner, uint32_t bytes, bool end, uint64_t now_ns);
/* The next parcel that is due; false: none. */
bool relay_link_pop(relay_link_t *link, uint64_t now_ns, relay_parcel_t *parcel_p);
/* When the next parcel is due; UINT64_MAX: nothing is under way. */
uint64_t relay_link_next(const relay_link_t *link);
/* When the backlog is small enough to read on: now or earlier means at once. */
uint64_t relay_link_open(const relay_link_t *link);

#endif
