/*
 * Egress pacing: one token bucket for the server, shared fairly between the streams that want to send.
 *
 * A stream asks for the right to send some bytes, then polls until it is granted. The bucket may go into debt by one
 * request, so the long-run rate is exact whatever the sizes; after idling it holds at most `burst` bytes. Among waiting
 * streams the one with the smallest start tag is next (start-time fair queueing: the tag grows by the bytes sent, and a
 * stream that comes back starts at the current virtual time), so equal demand gets equal bytes, whatever the frame
 * sizes.
 *
 * Pure: time is a parameter. Thread-safe by a mutex that is held for a few instructions.
 */
#ifndef CS_PACE_H
#define CS_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vc/status.h"

typedef struct cs_pace cs_pace_t;
typedef struct cs_pace_stream cs_pace_stream_t;

/* bits_per_s 0: no limit, every request is granted at once. */
vc_status_t cs_pace_create(uint64_t bits_per_s, uint64_t now_us, cs_pace_t **pace_p);
void cs_pace_destroy(cs_pace_t *pace); /* every stream has been closed */
/* Bytes to ask for at a time: about 20 ms of the rate, 16 KiB to 1 MiB. */
uint32_t cs_pace_quantum(const cs_pace_t *pace);

vc_status_t cs_pace_open(cs_pace_t *pace, cs_pace_stream_t **stream_p);
void cs_pace_close(cs_pace_stream_t *stream); /* also while waiting; NULL is fine */
/* Starts waiting for `bytes`. One request at a time per stream. */
void cs_pace_request(cs_pace_stream_t *stream, uint32_t bytes);
/* True: granted, the request is over. False: *wait_us_p says how long until it may be granted at the earliest. */
bool cs_pace_poll(cs_pace_stream_t *stream, uint64_t now_us, uint64_t *wait_us_p);

#endif
