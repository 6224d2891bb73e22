/* The token bucket and the order of the streams at it. Amounts are in bytes; time in microseconds. */
#include "pace.h"

#include <pthread.h>

#include "vc/mem.h"

#define BURST_US 10000 /* what may gather while nobody sends */
#define STEP_BACK_US 1000000

struct cs_pace_stream {
    cs_pace_t *pace;
    cs_pace_stream_t *next;
    bool waiting;
    uint32_t bytes;
    uint64_t start, finish; /* virtual time, in bytes of service */
};

struct cs_pace {
    pthread_mutex_t lock;
    uint64_t bytes_per_s;
    double level, burst; /* bytes; negative = debt */
    uint64_t filled_us;
    uint64_t virtual_time; /* start tag of the last request granted */
    cs_pace_stream_t *streams;
};

vc_status_t cs_pace_create(uint64_t bits_per_s, uint64_t now_us, cs_pace_t **pace_p)
{
    cs_pace_t *p = vc_calloc(1, sizeof(*p));
    if (p == NULL)
        return VC_ERR_NOMEM;
    pthread_mutex_init(&p->lock, NULL);
    p->bytes_per_s = bits_per_s / 8;
    if (bits_per_s != 0 && p->bytes_per_s == 0)
        p->bytes_per_s = 1;
    p->burst = (double)p->bytes_per_s * BURST_US / 1e6;
    p->level = p->burst;
    p->filled_us = now_us;
    *pace_p = p;
    return VC_OK;
}

void cs_pace_destroy(cs_pace_t *pace)
{
    if (pace == NULL)
        return;
    pthread_mutex_destroy(&pace->lock);
    vc_free(pace);
}

uint32_t cs_pace_quantum(const cs_pace_t *pace)
{
    uint64_t q = pace->bytes_per_s / 50;
    if (pace->bytes_per_s == 0 || q > 1u << 20)
        return 1u << 20;
    return q < 16384 ? 16384 : (uint32_t)(q & ~4095ull);
}

vc_status_t cs_pace_open(cs_pace_t *pace, cs_pace_stream_t **stream_p)
{
    cs_pace_stream_t *s = vc_calloc(1, sizeof(*s));
    if (s == NULL)
        return VC_ERR_NOMEM;
    s->pace = pace;
    pthread_mutex_lock(&pace->lock);
    s->next = pace->streams;
    pace->streams = s;
    pthread_mutex_unlock(&pace->lock);
    *stream_p = s;
    return VC_OK;
}

void cs_pace_close(cs_pace_stream_t *stream)
{
    if (stream == NULL)
        return;
    cs_pace_t *p = stream->pace;
    pthread_mutex_lock(&p->lock);
    cs_pace_stream_t **at = &p->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&p->lock);
    vc_free(stream);
}

void cs_pace_request(cs_pace_stream_t *stream, uint32_t bytes)
{
    cs_pace_t *p = stream->pace;
    pthread_mutex_lock(&p->lock);
    stream->waiting = true;
    stream->bytes = bytes;
    stream->start = VC_MAX(stream->finish, p->virtual_time);
    pthread_mutex_unlock(&p->lock);
}

/* A clock that steps back fills nothing, and counts from there: a stream must not stand still until the clock is where
 * it was. Callers that read the clock and came here in another order are no step back. */
static void fill(cs_pace_t *p, uint64_t now_us)
{
    if (p->filled_us > now_us && p->filled_us - now_us > STEP_BACK_US)
        p->filled_us = now_us;
    if (now_us <= p->filled_us)
        return;
    p->level += (double)p->bytes_per_s * (double)(now_us - p->filled_us) / 1e6;
    if (p->level > p->burst)
        p->level = p->burst;
    p->filled_us = now_us;
}

/* Bytes that go first: of waiting streams with a smaller tag (equal tags: the lower address, any fixed order does). */
static uint64_t bytes_ahead(const cs_pace_t *p, const cs_pace_stream_t *self)
{
    uint64_t sum = 0;
    for (const cs_pace_stream_t *s = p->streams; s != NULL; s = s->next)
        if (s->waiting && s != self && (s->start < self->start || (s->start == self->start && s < self)))
            sum += s->bytes;
    return sum;
}

bool cs_pace_poll(cs_pace_stream_t *stream, uint64_t now_us, uint64_t *wait_us_p)
{
    cs_pace_t *p = stream->pace;
    pthread_mutex_lock(&p->lock);
    bool granted = true;
    if (p->bytes_per_s != 0) {
        fill(p, now_us);
        uint64_t ahead = bytes_ahead(p, stream);
        double lacking = (double)ahead - p->level;
        granted = ahead == 0 && lacking <= 0;
        *wait_us_p = granted ? 0 : (uint64_t)(VC_MAX(lacking, 0.0) * 1e6 / (double)p->bytes_per_s) + 1;
    }
    if (granted) {
        p->level -= (double)stream->bytes;
        p->virtual_time = stream->start;
        stream->finish = stream->start + stream->bytes;
        stream->waiting = false;
    }
    pthread_mutex_unlock(&p->lock);
    return granted;
}
