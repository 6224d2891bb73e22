/*
 * Sessions that share one pool of the slow tier: whatever is read ahead, dropped, truncated and spilled, in whatever
 * order the disk answers, every session has the bits of one in memory. What goes wrong: test_slow_pool_faults.
 */
#include <pthread.h>

#include "slow_pool_fixture.h"
#include "vc/config.h"

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* ---- identity ---- */

static void random_pass(pair_t *pairs, uint64_t *rng, uint32_t most)
{
    pair_t *chosen[N_SESSIONS];
    uint32_t n = 0, total = 0, rows[N_SESSIONS], first = draw(rng, N_SESSIONS);
    for (uint32_t i = 0; i < N_SESSIONS && n < most; i++) {
        pair_t *p = &pairs[(first + i) % N_SESSIONS];
        uint32_t want = draw(rng, 8) == 0 ? PASS_ROWS - draw(rng, 40) : 1 + draw(rng, 9);
        if (draw(rng, 2) == 0 || p->slow.n_tokens + want > N_MAX || total + want > ROWS_MAX)
            continue;
        total += want;
        chosen[n] = p;
        rows[n++] = want;
    }
    if (n > 0)
        same_pass(chosen, n, rows);
}

static void random_step(pair_t *pairs, uint64_t *rng, uint32_t n_streams)
{
    pair_t *p = &pairs[draw(rng, N_SESSIONS)];
    uint64_t all = node_slow_pass_bytes(&p->slow);
    switch (draw(rng, 10)) {
    case 0:
    case 1:
    case 2: GEN_OK(node_slow_prefetch(&p->slow, all * (1 + draw(rng, 10)) / 8)); break;
    case 3: node_slow_drop(&p->slow); break;
    case 4: cr_assert_leq(node_slow_arrived(&p->slow), all); break;
    case 5: {
        uint32_t n = p->slow.n_tokens, back = draw(rng, 6) == 0 ? draw(rng, n + 1) : draw(rng, VC_MIN(n, 12u) + 1);
        GEN_OK(node_kv_truncate(&p->slow, n - back));
        GEN_OK(node_kv_truncate(&p->memory, n - back));
        break;
    }
    default: random_pass(pairs, rng, n_streams);
    }
}

static void random_run(const node_slow_pool_opts_t *o, uint64_t seed, uint32_t steps)
{
    pair_t *pairs = vc_calloc(N_SESSIONS, sizeof *pairs);
    node_slow_pool_t *pool = open_pool(o);
    node_slow_pool_stats_t s;
    uint64_t rng = seed;
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        open_pair(&pairs[i], pool, 20 + i);
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        fill(&pairs[i], 1, 600 + 64 * i);
    for (uint32_t i = 0; i < steps; i++) {
        random_step(pairs, &rng, o->n_streams);
        node_slow_pool_stats(pool, &s);
        cr_assert(s.held_bytes <= s.peak_bytes && s.peak_bytes <= s.hold_bytes && s.hold_bytes <= o->hold_bytes);
    }
    cr_assert_gt(s.read_bytes, 0);
    cr_assert_eq(s.n_sessions, N_SESSIONS);
    check_digests(pairs, N_SESSIONS);
    close_pairs(pairs, N_SESSIONS, pool);
}

Test(slow_pool, whatever_is_read_ahead_dropped_truncated_and_spilled_the_bits_are_those_of_memory)
{
    setup();
    static const uint32_t streams[] = {1, 2, N_SESSIONS}, buffers[] = {0, 3, 2 * N_LAYER + 1, N_SESSIONS * N_LAYER};
    const uint64_t first = VT_EVERY > 1 ? 5 : 1; /* one with threads for io, four sessions in a pass, and delays */
    for (uint64_t seed = first; seed <= 6; seed += VT_EVERY) {
        uint32_t n = streams[seed % VC_ARRAY_LEN(streams)];
        node_slow_pool_opts_t o = pool_opts(2 * n + buffers[seed % VC_ARRAY_LEN(buffers)], n);
        o.io = seed % 3 == 2 ? NODE_SLOW_IO_THREADS : NODE_SLOW_IO_AUTO;
        o.delay_seed = seed % 2 == 0 ? 0 : seed * 77;
        random_run(&o, seed, 30);
    }
    teardown();
}

/* ---- steering ---- */

/* Polls until so many bytes of the next pass are there. */
static void await(node_kv_t *kv, uint64_t bytes)
{
    while (node_slow_arrived(kv) < bytes)
        ;
    cr_assert_eq(node_slow_arrived(kv), bytes);
}

Test(slow_pool, a_session_reads_ahead_what_it_was_told_and_the_rest_in_its_pass)
{
    setup();
    node_slow_pool_opts_t o = pool_opts(N_LAYER + 2, 1);
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *p = open_pairs(pool, 1, 5, 700);
    node_slow_pool_stats_t a, b;
    uint32_t one = 1;
    node_slow_pool_stats(pool, &a);
    uint64_t all = node_slow_pass_bytes(&p->slow), layer = all / N_LAYER;
    cr_assert_eq(all, (uint64_t)node_slow_n_spilled(p->slow.slow) * part_bytes() * N_LAYER);
    cr_assert_eq(a.held_bytes, 0, "nothing is read ahead unasked");
    cr_assert_eq(node_slow_arrived(&p->slow), 0);
    GEN_OK(node_slow_prefetch(&p->slow, 1));
    await(&p->slow, layer); /* a layer of this size is one read */
    GEN_OK(node_slow_prefetch(&p->slow, 3 * layer));
    await(&p->slow, 3 * layer);
    node_slow_drop(&p->slow);
    cr_assert_eq(node_slow_arrived(&p->slow), 0);
    GEN_OK(node_slow_prefetch(&p->slow, UINT64_MAX));
    await(&p->slow, all);
    node_slow_pool_stats(pool, &b);
    cr_assert_eq(b.read_bytes - a.read_bytes, 3 * layer + all);
    same_pass(&p, 1, &one);
    node_slow_pool_stats(pool, &a);
    cr_assert_eq(a.read_bytes, b.read_bytes, "all of it was there");
    same_pass(&p, 1, &one);
    node_slow_pool_stats(pool, &b);
    cr_assert_eq(b.read_bytes - a.read_bytes, all, "each layer once");
    cr_assert_eq(b.held_bytes, 0);
    close_pairs(p, 1, pool);
    teardown();
}

Test(slow_pool, what_others_read_ahead_leaves_every_pass_its_two_buffers)
{
    setup();
    enum { STREAMS = 2 };
    node_slow_pool_opts_t o = pool_opts(7, STREAMS);
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *pairs = open_pairs(pool, N_SESSIONS, 30, 700), *p[STREAMS];
    node_slow_pool_stats_t s;
    uint32_t ones[] = {1, 1};
    uint64_t layer = node_slow_pass_bytes(&pairs[0].slow) / N_LAYER;
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        GEN_OK(node_slow_prefetch(&pairs[i].slow, UINT64_MAX));
    await(&pairs[0].slow, 3 * layer); /* first come, first served: 7 buffers less 2 for each of two other sessions */
    node_slow_pool_stats(pool, &s);
    cr_assert_eq(s.held_bytes, 3 * s.hold_bytes / 7);
    cr_assert_eq(node_slow_arrived(&pairs[3].slow), 0);
    p[0] = &pairs[2];
    p[1] = &pairs[3];
    same_pass(p, STREAMS, ones);
    cr_assert_geq(node_slow_arrived(&pairs[0].slow), 3 * layer, "still there");
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        p[0] = &pairs[i];
        p[1] = &pairs[(i + 1) % N_SESSIONS];
        same_pass(p, STREAMS, ones);
    }
    check_digests(pairs, N_SESSIONS);
    close_pairs(pairs, N_SESSIONS, pool);
    teardown();
}

/* A session alone in the pool reads ahead; the other one of its pass comes afterwards. */
Test(slow_pool, what_was_read_ahead_leaves_two_buffers_for_a_session_that_comes_later)
{
    setup();
    enum { STREAMS = 2 };
    node_slow_pool_opts_t o = pool_opts(5, STREAMS);
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *pairs = vc_calloc(STREAMS, sizeof *pairs), *p[STREAMS] = {&pairs[0], &pairs[1]};
    node_slow_pool_stats_t s;
    uint32_t ones[] = {1, 1};
    open_pair(&pairs[0], pool, 40);
    fill(&pairs[0], 1, 700);
    uint64_t layer = node_slow_pass_bytes(&pairs[0].slow) / N_LAYER;
    GEN_OK(node_slow_prefetch(&pairs[0].slow, UINT64_MAX));
    await(&pairs[0].slow, 3 * layer);
    node_slow_pool_stats(pool, &s);
    cr_assert_eq(s.held_bytes, 3 * s.hold_bytes / 5);
    open_pair(&pairs[1], pool, 41);
    fill(&pairs[1], 1, 700);
    cr_assert_eq(node_slow_arrived(&pairs[0].slow), 3 * layer);
    same_pass(p, STREAMS, ones);
    check_digests(pairs, STREAMS);
    close_pairs(pairs, STREAMS, pool);
    teardown();
}

Test(slow_pool, wishes_are_served_in_the_order_in_which_they_were_made)
{
    setup();
    node_slow_pool_opts_t o = pool_opts(5, 1);
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *pairs = open_pairs(pool, 3, 70, 700), *p = pairs;
    uint32_t one = 1;
    node_kv_t *a = &pairs[0].slow, *b = &pairs[1].slow, *c = &pairs[2].slow;
    uint64_t layer = node_slow_pass_bytes(a) / N_LAYER;
    GEN_OK(node_slow_prefetch(c, UINT64_MAX)); /* takes all that may be taken */
    await(c, 3 * layer);
    GEN_OK(node_slow_prefetch(a, layer)); /* what each has to have, */
    GEN_OK(node_slow_prefetch(b, layer));
    GEN_OK(node_slow_prefetch(a, UINT64_MAX)); /* then what would be good */
    GEN_OK(node_slow_prefetch(b, UINT64_MAX));
    cr_assert_eq(node_slow_arrived(a) + node_slow_arrived(b), 0);
    node_slow_drop(c);
    await(a, 2 * layer);
    await(b, layer);
    GEN_OK(node_slow_prefetch(a, 2 * layer)); /* less than before: the rest is taken back */
    same_pass(&p, 1, &one);
    await(b, 3 * layer);
    cr_assert_eq(node_slow_arrived(a), 0);
    check_digests(pairs, 3);
    close_pairs(pairs, 3, pool);
    teardown();
}

static void count(void *calls) { ++*(uint32_t *)calls; }

Test(slow_pool, the_engine_gives_time_to_others_before_each_layer)
{
    setup();
    static float logits[TINY_N_VOCAB];
    uint32_t calls = 0, tokens[] = {40, 41};
    node_kv_t kv;
    GEN_OK(node_kv_init(&kv, &dims, NULL));
    node_engine_between(engine, count, &calls);
    GEN_OK(node_prefill(engine, &kv, tokens, 2, logits, NULL, &gen_err));
    cr_assert_eq(calls, N_LAYER);
    node_engine_between(engine, NULL, NULL);
    GEN_OK(node_prefill(engine, &kv, tokens, 1, logits, NULL, &gen_err));
    cr_assert_eq(calls, N_LAYER);
    node_kv_fini(&kv);
    teardown();
}

Test(slow_pool, sessions_come_and_go_while_their_reads_are_under_way)
{
    setup();
    node_slow_pool_opts_t o = pool_opts(2 * N_LAYER + 4, 2);
    uint32_t one = 1;
    o.delay_seed = 99;
    node_slow_pool_t *pool = open_pool(&o);
    pair_t *p = open_pairs(pool, 1, 1, 700);
    for (uint32_t round = 0; round < 5; round++) {
        pair_t *guest = open_pairs(pool, 1, 2 + round, 640);
        GEN_OK(node_slow_prefetch(&guest->slow, UINT64_MAX));
        GEN_OK(node_slow_prefetch(&p->slow, UINT64_MAX));
        if (round % 2 == 0)
            node_slow_drop(&p->slow);
        close_pairs(guest, 1, NULL);
        same_pass(&p, 1, &one);
    }
    node_slow_pool_stats_t s;
    node_slow_pool_stats(pool, &s);
    cr_assert_eq(s.n_sessions, 1);
    check_digests(p, 1);
    close_pairs(p, 1, pool);
    teardown();
}

/* As the streams of a verify node do: passes one at a time, everything else side by side. */
typedef struct {
    pthread_mutex_t *engine_lock;
    pair_t *pair;
    uint32_t seed;
    vc_status_t status;
    bool differs;
} stream_t;

static void *stream_main(void *arg)
{
    stream_t *s = arg;
    pair_t *p = s->pair;
    float a[TINY_N_VOCAB], b[TINY_N_VOCAB];
    uint64_t rng = s->seed;
    while (s->status == VC_OK && p->memory.n_tokens < N_MAX - PASS_ROWS) {
        uint32_t rows = p->memory.n_tokens < 600 ? PASS_ROWS : 10, back = draw(&rng, 8);
        pthread_mutex_lock(s->engine_lock);
        s->status = pass(&p, 1, &rows, true, a, NULL);
        if (s->status == VC_OK)
            s->status = pass(&p, 1, &rows, false, b, NULL);
        pthread_mutex_unlock(s->engine_lock);
        s->differs = s->differs || memcmp(a, b, sizeof a) != 0;
        if (s->status == VC_OK)
            s->status = node_kv_truncate(&p->slow, p->slow.n_tokens - back);
        if (s->status == VC_OK)
            s->status = node_kv_truncate(&p->memory, p->memory.n_tokens - back);
        if (s->status == VC_OK)
            s->status = node_slow_prefetch(&p->slow, draw(&rng, 2) ? UINT64_MAX : 1);
        if (draw(&rng, 4) == 0)
            node_slow_drop(&p->slow);
        (void)node_slow_arrived(&p->slow);
    }
    return NULL;
}

Test(slow_pool, sessions_of_one_pool_may_have_threads_of_their_own)
{
    setup();
    enum { N = 3 };
    pair_t *pairs = vc_calloc(N, sizeof *pairs);
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[N];
    stream_t streams[N];
    node_slow_pool_opts_t o = pool_opts(2 * N_LAYER, 1);
    node_slow_pool_t *pool = open_pool(&o);
    for (uint32_t i = 0; i < N; i++) {
        open_pair(&pairs[i], pool, 80 + i);
        streams[i] = (stream_t){.engine_lock = &lock, .pair = &pairs[i], .seed = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, stream_main, &streams[i]), 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_assert_eq(streams[i].status, VC_OK);
        cr_assert_not(streams[i].differs);
        cr_assert_gt(node_slow_n_spilled(pairs[i].slow.slow), 2);
    }
    check_digests(pairs, N);
    close_pairs(pairs, N, pool);
    teardown();
}

static node_slow_pool_t *clocked_pool(vc_fake_clock_t *clock)
{
    node_slow_pool_opts_t o = pool_opts(N_LAYER + 2, 1);
    vc_fake_clock_init(clock, 1000);
    o.clock = &clock->clock;
    return open_pool(&o);
}

Test(slow_pool, the_link_is_busy_while_a_read_is_under_way)
{
    setup();
    vc_fake_clock_t clock;
    node_slow_pool_t *pool = clocked_pool(&clock);
    pair_t *p = open_pairs(pool, 1, 5, 700);
    node_slow_pool_stats_t s;
    node_slow_pool_stats(pool, &s);
    cr_assert_eq(s.busy_us, 0);
    vc_fake_clock_advance(&clock, 500);
    GEN_OK(node_slow_prefetch(&p->slow, node_slow_pass_bytes(&p->slow)));
    vc_fake_clock_advance(&clock, 70);
    await(&p->slow, node_slow_pass_bytes(&p->slow));
    vc_fake_clock_advance(&clock, 300);
    node_slow_pool_stats(pool, &s);
    cr_assert_eq(s.busy_us, 70);
    cr_assert_eq(s.wait_us, 0);
    close_pairs(p, 1, pool);
    teardown();
}

Test(slow_pool, a_limited_link_is_asked_for_no_more_than_its_rate)
{
    setup();
    vc_fake_clock_t clock;
    node_slow_pool_t *pool = clocked_pool(&clock);
    pair_t *p = open_pairs(pool, 1, 5, 700);
    uint64_t layer = node_slow_pass_bytes(&p->slow) / N_LAYER;
    node_slow_pool_limit(pool, layer);
    GEN_OK(node_slow_prefetch(&p->slow, UINT64_MAX));
    await(&p->slow, layer); /* one read to begin with */
    for (uint32_t seconds = 1; seconds <= 3; seconds++) {
        vc_fake_clock_advance(&clock, 1000000);
        await(&p->slow, (1 + seconds) * layer);
    }
    node_slow_pool_limit(pool, 0);
    await(&p->slow, N_LAYER * layer);
    close_pairs(p, 1, pool);
    teardown();
}

/* ---- what is refused ---- */

Test(slow_pool, what_does_not_fit_is_refused_by_name)
{
    setup();
    vc_err_t err = {0};
    node_slow_pool_t *pool = NULL;
    node_slow_t *slow = NULL;
    node_slow_pool_opts_t o = pool_opts(5, 3);
    cr_assert_eq(node_slow_pool_create(&dims, &o, &pool, &err), VC_ERR_RANGE);
    char number[32];
    const char *advice = strstr(err.msg, "one pass: --hold ");
    cr_assert(advice && strstr(err.msg, "3 requests"), "%s", err.msg);
    cr_assert_eq(sscanf(advice, "one pass: --hold %31s", number), 1);
    cr_assert_eq(vc_parse_bytes(number, &o.hold_bytes), VC_OK, "%s", err.msg);
    cr_assert_geq(o.hold_bytes, node_slow_pool_least(&dims, &o));
    node_slow_pool_destroy(open_pool(&o));
    o.hold_bytes = node_slow_pool_least(&dims, &o);
    o.n_streams = 0;
    cr_assert_eq(node_slow_pool_create(&dims, &o, &pool, &err), VC_ERR_INVALID);

    o = pool_opts(2, 1);
    pool = open_pool(&o);
    node_slow_opts_t so = session_opts(pool);
    so.max_tokens += NODE_TILE;
    cr_assert_eq(node_slow_create(&dims, &so, &slow, &err), VC_ERR_RANGE);
    cr_assert(strstr(err.msg, "buffers hold"), "%s", err.msg);
    so = session_opts(pool);
    so.ram_bytes /= 3;
    cr_assert_eq(node_slow_create(&dims, &so, &slow, &err), VC_ERR_RANGE);
    cr_assert(strstr(err.msg, "B would do"), "%s", err.msg);
    node_kv_dims_t other = dims;
    other.n_layer++;
    so = session_opts(pool);
    cr_assert_eq(node_slow_create(&other, &so, &slow, &err), VC_ERR_MISMATCH);

    static float logits[2][TINY_N_VOCAB];
    pair_t *pairs = open_pairs(pool, 2, 60, 650), *p[2] = {&pairs[0], &pairs[1]};
    uint32_t ones[2] = {1, 1};
    cr_assert_eq(pass(p, 2, ones, true, logits[0], &err), VC_ERR_RANGE, "one session a pass");
    cr_assert(strstr(err.msg, "1 sessions that stream"), "%s", err.msg);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(node_slow_failed(&p[i]->slow, NULL), VC_OK);
        same_pass(&p[i], 1, ones);
    }
    close_pairs(pairs, 2, pool);
    teardown();
}

Test(slow_pool, a_session_with_buffers_of_its_own_or_none_takes_no_wishes)
{
    setup();
    node_kv_t kv;
    node_slow_t *slow = NULL;
    GEN_OK(node_kv_init(&kv, &dims, NULL));
    GEN_OK(node_slow_prefetch(&kv, 1));
    cr_assert_eq(node_slow_arrived(&kv), 0);
    cr_assert_eq(node_slow_pass_bytes(&kv), 0);
    cr_assert_eq(node_slow_failed(&kv, NULL), VC_OK);
    node_slow_drop(&kv);
    node_slow_opts_t o = session_opts(NULL);
    o.dir = dir.path;
    o.ram_bytes *= 2;
    GEN_OK(node_slow_create(&dims, &o, &slow, &gen_err));
    GEN_OK(node_kv_set_slow(&kv, slow));
    cr_assert_eq(node_slow_prefetch(&kv, 1), VC_ERR_INVALID);
    node_slow_drop(&kv);
    node_kv_fini(&kv);
    teardown();
}
