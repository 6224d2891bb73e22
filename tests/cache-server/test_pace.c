/* Proves the pace with a clock that the test steps: exact long-run rate, fair shares, bounded bursts. */
#include "pace.h"
#include "support/vc_test.h"

/* Steps time to the earliest moment at which one of the streams is granted; returns its number. */
static int next_granted(cs_pace_stream_t **s, int n, uint64_t *now_us)
{
    for (int rounds = 0; rounds < 1000000; rounds++) {
        uint64_t least = UINT64_MAX, wait;
        for (int i = 0; i < n; i++) {
            if (cs_pace_poll(s[i], *now_us, &wait))
                return i;
            least = wait < least ? wait : least;
        }
        *now_us += least;
    }
    return -1;
}

Test(pace, no_limit_grants_at_once)
{
    cs_pace_t *p;
    cs_pace_stream_t *s;
    uint64_t wait = 7;
    cr_assert_eq(cs_pace_create(0, 0, &p), VC_OK);
    cr_assert_eq(cs_pace_open(p, &s), VC_OK);
    cr_assert_eq(cs_pace_quantum(p), 1u << 20);
    for (int i = 0; i < 100; i++) {
        cs_pace_request(s, 1u << 20);
        cr_assert(cs_pace_poll(s, 0, &wait));
    }
    cs_pace_close(s);
    cs_pace_destroy(p);
}

Test(pace, long_run_rate_is_exact_for_any_frame_size)
{
    const uint32_t sizes[] = {1000, 16384, 1u << 20};
    for (int k = 0; k < 3; k++) {
        cs_pace_t *p;
        cs_pace_stream_t *s;
        uint64_t now = 5, sent = 0;
        cr_assert_eq(cs_pace_create(80000000, now, &p), VC_OK); /* 10 MB/s */
        cr_assert_eq(cs_pace_open(p, &s), VC_OK);
        while (sent < 50000000) {
            cs_pace_request(s, sizes[k]);
            cr_assert_eq(next_granted(&s, 1, &now), 0);
            sent += sizes[k];
        }
        double rate = (double)sent / ((double)(now - 5) / 1e6);
        cr_assert_geq(rate, 9.9e6, "%f", rate);
        cr_assert_leq(rate, 10.4e6, "%f", rate); /* the burst and one frame of debt at the end */
        cs_pace_close(s);
        cs_pace_destroy(p);
    }
}

Test(pace, idle_time_earns_one_burst_only)
{
    cs_pace_t *p;
    cs_pace_stream_t *s;
    uint64_t now = 0, wait, sent = 0;
    cr_assert_eq(cs_pace_create(8000000, now, &p), VC_OK); /* 1 MB/s: a burst of 10,000 bytes */
    cr_assert_eq(cs_pace_open(p, &s), VC_OK);
    now = 3600u * 1000000u;
    for (;;) {
        cs_pace_request(s, 1000);
        if (!cs_pace_poll(s, now, &wait))
            break;
        sent += 1000;
    }
    cr_assert_leq(sent, 11000);
    cr_assert_geq(sent, 10000);
    cr_assert(cs_pace_poll(s, now + wait, &wait)); /* the wait it was told is enough */
    cs_pace_close(s);
    cs_pace_destroy(p);
}

Test(pace, streams_get_equal_bytes_whatever_their_frames)
{
    cs_pace_t *p;
    cs_pace_stream_t *s[3];
    const uint32_t size[3] = {1u << 20, 4096, 60000};
    uint64_t now = 0, sent[3] = {0}, total = 0;
    cr_assert_eq(cs_pace_create(800000000, now, &p), VC_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(cs_pace_open(p, &s[i]), VC_OK);
        cs_pace_request(s[i], size[i]);
    }
    while (total < 90u << 20) {
        int i = next_granted(s, 3, &now);
        cr_assert_geq(i, 0);
        sent[i] += size[i];
        total += size[i];
        cs_pace_request(s[i], size[i]);
    }
    for (int i = 0; i < 3; i++) {
        cr_assert_geq(sent[i], 28u << 20, "stream %d: %lu", i, (unsigned long)sent[i]);
        cr_assert_leq(sent[i], 32u << 20, "stream %d: %lu", i, (unsigned long)sent[i]);
        cs_pace_close(s[i]);
    }
    cs_pace_destroy(p);
}

Test(pace, newcomer_neither_starves_nor_catches_up)
{
    cs_pace_t *p;
    cs_pace_stream_t *s[2];
    uint64_t now = 0, sent[2] = {0};
    cr_assert_eq(cs_pace_create(80000000, now, &p), VC_OK);
    cr_assert_eq(cs_pace_open(p, &s[0]), VC_OK);
    for (int i = 0; i < 100; i++) {
        cs_pace_request(s[0], 100000);
        cr_assert_eq(next_granted(s, 1, &now), 0);
    }
    cr_assert_eq(cs_pace_open(p, &s[1]), VC_OK); /* 10 MB behind, and must not get them at once */
    cs_pace_request(s[0], 100000);
    cs_pace_request(s[1], 100000);
    for (int n = 0; n < 40; n++) {
        int i = next_granted(s, 2, &now);
        sent[i] += 100000;
        cs_pace_request(s[i], 100000);
    }
    cr_assert_geq(sent[0], 1900000);
    cr_assert_geq(sent[1], 1900000);
    cs_pace_close(s[0]); /* closing while waiting is fine, and lets the other go on */
    cr_assert_eq(next_granted(&s[1], 1, &now), 0);
    cs_pace_close(s[1]);
    cs_pace_destroy(p);
}

Test(pace, quantum_follows_the_rate)
{
    const uint64_t rates[] = {1000, 8000000, 100000000, 1000000000, 100000000000};
    uint32_t last = 0;
    for (int i = 0; i < 5; i++) {
        cs_pace_t *p;
        cr_assert_eq(cs_pace_create(rates[i], 0, &p), VC_OK);
        uint32_t q = cs_pace_quantum(p);
        cr_assert_geq(q, 16384);
        cr_assert_leq(q, 1u << 20);
        cr_assert_geq(q, last);
        last = q;
        cs_pace_destroy(p);
    }
    cr_assert_eq(last, 1u << 20);
}

Test(pace, a_clock_that_steps_back_stops_no_stream)
{
    cs_pace_t *pace;
    cs_pace_stream_t *stream;
    uint64_t now_us = 3600000000u, wait_us = 0;
    cr_assert_eq(cs_pace_create(8000000, now_us, &pace), VC_OK); /* a byte a microsecond */
    cr_assert_eq(cs_pace_open(pace, &stream), VC_OK);
    cs_pace_request(stream, 100000);
    cr_assert(cs_pace_poll(stream, now_us, &wait_us));
    now_us = 5; /* an hour back */
    cs_pace_request(stream, 1000);
    cr_assert_not(cs_pace_poll(stream, now_us, &wait_us));
    cr_assert_lt(wait_us, 200000);
    now_us += wait_us;
    cr_assert(cs_pace_poll(stream, now_us, &wait_us));
    cs_pace_close(stream);
    cs_pace_destroy(pace);
}
