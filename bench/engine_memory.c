/*
 * How fast the machine reads memory: all threads, each its part of a buffer as large as what is compared with it, on
 * the same pages as the engine's weights, again and again. How far ahead to ask, how many places to read at a time and
 * into which cache is a matter of the machine, so the fastest of several loops is taken, chosen anew for every buffer.
 */
#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>

#include "engine_parts.h"
#include "kernels/huge.h"
#include "kernels/team.h"
#include "vc/mem.h"

/* Threads' parts and their up to four places are whole steps of the loops. */
enum { STEP_BYTES = 256, MAX_PLACES = 4, TRIALS = 3 };

typedef uint64_t (*read_fn)(const uint8_t *p, size_t n);

/* Eight lines of two registers, or four of one. hint: into which cache. */
#define READ_LOOP(name, isa, vec, load, xor, zero, places, ahead, hint)                     \
    __attribute__((target(isa), noinline)) static uint64_t name(const uint8_t *p, size_t n) \
    {                                                                                       \
        enum { W = sizeof(vec), PLACES = (places), AHEAD = (ahead) };                       \
        vec sum[STEP_BYTES / W];                                                            \
        uint64_t lanes[W / 8], all = 0;                                                     \
        for (int j = 0; j < STEP_BYTES / W; j++)                                            \
            sum[j] = zero;                                                                  \
        for (size_t i = 0; i < n / PLACES; i += STEP_BYTES)                                 \
            for (int place = 0; place < PLACES; place++) {                                  \
                const uint8_t *at = p + (size_t)place * (n / PLACES) + i;                   \
                for (int j = 0; j < STEP_BYTES && AHEAD > 0; j += 64)                       \
                    _mm_prefetch((const char *)at + AHEAD + j, hint);                       \
                for (int j = 0; j < STEP_BYTES / W; j++)                                    \
                    sum[j] = xor(sum[j], load((const vec *)(const void *)(at + j * W)));    \
            }                                                                               \
        for (int j = 1; j < STEP_BYTES / W; j++)                                            \
            sum[0] = xor(sum[0], sum[j]);                                                   \
        memcpy(lanes, &sum[0], sizeof lanes);                                               \
        for (size_t j = 0; j < W / 8; j++)                                                  \
            all ^= lanes[j];                                                                \
        return all;                                                                         \
    }
#define LOOPS(X)             \
    X(1, 0, _MM_HINT_T0)     \
    X(1, 6144, _MM_HINT_T0)  \
    X(1, 12288, _MM_HINT_T0) \
    X(1, 8192, _MM_HINT_NTA) X(2, 4096, _MM_HINT_T0) X(4, 2048, _MM_HINT_T0) X(4, 4096, _MM_HINT_T0)
#define AVX512(places, ahead, hint)                                                               \
    READ_LOOP(avx512_##places##_##ahead, "avx512f", __m512i, _mm512_load_si512, _mm512_xor_si512, \
              _mm512_setzero_si512(), places, ahead, hint)
#define AVX2(places, ahead, hint)                                                                                    \
    READ_LOOP(avx2_##places##_##ahead, "avx2", __m256i, _mm256_load_si256, _mm256_xor_si256, _mm256_setzero_si256(), \
              places, ahead, hint)
LOOPS(AVX512)
LOOPS(AVX2)
#define AVX512_NAME(places, ahead, hint) avx512_##places##_##ahead,
#define AVX2_NAME(places, ahead, hint) avx2_##places##_##ahead,
static const read_fn avx512_loops[] = {LOOPS(AVX512_NAME)}, avx2_loops[] = {LOOPS(AVX2_NAME)};
enum { N_LOOPS = sizeof avx2_loops / sizeof avx2_loops[0] };

struct engine_reader {
    node_team_t *team;
    uint8_t *data;
    size_t part; /* of a thread */
    uint32_t n_threads, times;
    read_fn fn;
    _Atomic uint64_t sum;
};

static void read_part(void *arg, uint32_t thread)
{
    engine_reader_t *r = arg;
    for (uint32_t i = 0; i < r->times; i++)
        atomic_fetch_xor(&r->sum, r->fn(r->data + thread * r->part, r->part));
}

double engine_reader_rate(engine_reader_t *r, uint32_t times)
{
    r->times = times;
    double start = bench_now_s();
    node_team_run(r->team, read_part, r);
    return (double)r->part * r->n_threads * times / (bench_now_s() - start);
}

engine_reader_t *engine_reader_open(const bench_t *b, double bytes)
{
    vc_err_t err = {0};
    const node_isa_t isa = node_engine_isa(b->eng);
    const read_fn *loops = isa >= NODE_ISA_AVX512_PLAIN ? avx512_loops : avx2_loops;
    engine_reader_t *r = isa == NODE_ISA_SCALAR ? NULL : vc_alloc_aligned(64, sizeof *r);
    if (r == NULL)
        return NULL;
    *r = (engine_reader_t){.n_threads = b->threads,
                           .part = (size_t)(bytes / b->threads) / (MAX_PLACES * STEP_BYTES) * MAX_PLACES * STEP_BYTES};
    engine_check(node_team_create(b->threads, &r->team, &err), &err);
    r->data = node_alloc_huge(r->part * b->threads + 4096);
    if (r->data == NULL)
        bench_fail("no memory to read from");
    memset(r->data, 1, r->part * b->threads);
    double best = 0;
    read_fn fastest = loops[0];
    for (int i = 0; i < TRIALS * N_LOOPS; i++) {
        r->fn = loops[i % N_LOOPS];
        double rate = engine_reader_rate(r, 2);
        fastest = rate > best ? r->fn : fastest;
        best = rate > best ? rate : best;
    }
    r->fn = fastest;
    return r;
}

void engine_reader_close(engine_reader_t *r)
{
    if (r == NULL)
        return;
    node_team_destroy(r->team);
    vc_free(r->data);
    vc_free(r);
}
