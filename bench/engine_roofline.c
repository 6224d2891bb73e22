/*
 * What the machine can do at most, with which the engine's speed is compared: a loop that reads memory far larger than
 * the caches, and loops of independent multiply-adds in registers, f32 and pairs of int16, of the widest instructions
 * that the engine uses at its level. All threads at once; the best of several rounds.
 */
#include <immintrin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine_parts.h"
#include "kernels/backend.h"
#include "kernels/huge.h"
#include "kernels/team.h"
#include "vc/mem.h"

enum { ROUNDS = 9, CHAINS = 12, LOOPS = 2000000 };
#define READ_BYTES ((size_t)512 << 20)

#define TARGET(isa) __attribute__((target(isa), noinline))
#define TARGET_INLINE(isa) __attribute__((target(isa), always_inline)) static inline

TARGET("avx512f") static uint64_t read_avx512(const uint8_t *p, size_t n)
{
    __m512i s[4] = {_mm512_setzero_si512()};
    for (size_t i = 0; i < n; i += 256)
        for (int j = 0; j < 4; j++)
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + 64 * j));
    s[0] = _mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3]));
    return (uint64_t)_mm512_reduce_add_epi64(s[0]);
}

TARGET("avx2") static uint64_t read_avx2(const uint8_t *p, size_t n)
{
    __m256i s[4] = {_mm256_setzero_si256()};
    for (size_t i = 0; i < n; i += 128)
        for (int j = 0; j < 4; j++)
            s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const void *)(p + i + 32 * j)));
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    return (uint64_t)(_mm256_extract_epi64(s[0], 0) ^ _mm256_extract_epi64(s[0], 1) ^ _mm256_extract_epi64(s[0], 2) ^
                      _mm256_extract_epi64(s[0], 3));
}

/* Twelve registers by name, each waiting for itself only; the empty statement keeps the compiler from changing the
 * sums.
 */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define PEAK_STEP(i)   \
    a##i = STEP(a##i); \
    __asm__ volatile("" : "+x"(a##i));
#define PEAK_LOOP(name, isa, type, zero, per_step)                                                               \
    TARGET(isa) static double name(void)                                                                         \
    {                                                                                                            \
        type x = zero, y = zero, a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x; \
        type a10 = x, a11 = x;                                                                                   \
        __asm__ volatile("" : "+x"(x), "+x"(y));                                                                 \
        for (int n = 0; n < LOOPS; n++) {                                                                        \
            EACH(PEAK_STEP)                                                                                      \
        }                                                                                                        \
        return (double)LOOPS * CHAINS * (per_step);                                                              \
    }
#define STEP(a) _mm512_fmadd_ps(x, y, a)
PEAK_LOOP(fma_avx512, "avx512f", __m512, _mm512_setzero_ps(), 16)
#undef STEP
#define STEP(a) _mm256_fmadd_ps(x, y, a)
PEAK_LOOP(fma_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), 8)
#undef STEP
#define STEP(a) _mm512_dpwssd_epi32(a, x, y)
PEAK_LOOP(dot_avx512vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), 32)
#undef STEP
#define STEP(a) dot512(a, x, y)
TARGET_INLINE("avx512f,avx512bw") __m512i dot512(__m512i a, __m512i x, __m512i y)
{
    __asm__("" : "+x"(x)); /* the product is made anew every time */
    return _mm512_add_epi32(a, _mm512_madd_epi16(x, y));
}
PEAK_LOOP(dot_avx512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), 32)
#undef STEP
#define STEP(a) _mm256_dpwssd_avx_epi32(a, x, y)
PEAK_LOOP(dot_avx2vnni, "avx2,avxvnni", __m256i, _mm256_setzero_si256(), 16)
#undef STEP
#define STEP(a) dot256(a, x, y)
TARGET_INLINE("avx2") __m256i dot256(__m256i a, __m256i x, __m256i y)
{
    __asm__("" : "+x"(x));
    return _mm256_add_epi32(a, _mm256_madd_epi16(x, y));
}
PEAK_LOOP(dot_avx2, "avx2", __m256i, _mm256_setzero_si256(), 16)
#undef STEP

typedef struct {
    uint64_t (*read)(const uint8_t *p, size_t n);
    double (*fma)(void);
    double (*dot)(void); /* these two return the multiply-adds that they did */
} loops_t;

static bool loops_of(node_isa_t isa, loops_t *l)
{
    if (isa >= NODE_ISA_AVX512_PLAIN) {
        const bool vnni = isa == NODE_ISA_AVX512 && node_ops_get(NODE_OPS_AVX512) == &node_ops_avx512vnni;
        *l = (loops_t){read_avx512, fma_avx512, vnni ? dot_avx512vnni : dot_avx512};
    } else if (isa >= NODE_ISA_AVX2_PLAIN) {
        const bool vnni = isa == NODE_ISA_AVX2 && node_ops_get(NODE_OPS_AVX2) == &node_ops_avx2vnni;
        *l = (loops_t){read_avx2, fma_avx2, vnni ? dot_avx2vnni : dot_avx2};
    } else {
        return false;
    }
    return true;
}

typedef struct {
    uint64_t (*read)(const uint8_t *p, size_t n); /* or NULL: compute */
    double (*compute)(void);
    const uint8_t *data;
    size_t bytes; /* of a thread's part */
    _Atomic uint64_t sum;
    _Atomic uint64_t done; /* multiply-adds */
} job_t;

static void run_job(void *arg, uint32_t thread)
{
    job_t *j = arg;
    if (j->read != NULL)
        atomic_fetch_add(&j->sum, j->read(j->data + thread * j->bytes, j->bytes));
    else
        atomic_fetch_add(&j->done, (uint64_t)j->compute());
}

/* Of the best round; what a round does is counted by the caller for reading, by the loops for arithmetic. */
static double best_rate(node_team_t *team, job_t *j, double amount)
{
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        atomic_store(&j->done, 0);
        double start = bench_now_s();
        node_team_run(team, run_job, j);
        double took = bench_now_s() - start, rate = (j->read != NULL ? amount : (double)atomic_load(&j->done)) / took;
        best = rate > best ? rate : best;
    }
    return best;
}

roofline_t engine_roofline(const bench_t *b)
{
    vc_err_t err = {0};
    loops_t loops;
    roofline_t r = {0};
    if (!loops_of(node_engine_isa(b->eng), &loops)) {
        bench_note("no roofline for scalar code");
        return r;
    }
    node_team_t *team;
    engine_check(node_team_create(b->threads, &team, &err), &err);
    const size_t all = bench_quick() ? READ_BYTES / 16 : READ_BYTES;
    uint8_t *data = node_alloc_huge(all);
    if (data == NULL)
        bench_fail("no memory to read from");
    memset(data, 1, all);
    job_t j = {.read = loops.read, .data = data, .bytes = all / b->threads / 4096 * 4096};
    r.bytes_per_s = best_rate(team, &j, (double)j.bytes * b->threads);
    j.read = NULL;
    j.compute = loops.fma;
    r.fma_per_s = best_rate(team, &j, 0);
    j.compute = loops.dot;
    r.dot_per_s = best_rate(team, &j, 0);
    bench_note("roofline: memory %.1f GB/s, f32 %.0f and int16 %.0f G multiply-adds/s, %u threads", r.bytes_per_s / 1e9,
               r.fma_per_s / 1e9, r.dot_per_s / 1e9, b->threads);
    vc_free(data);
    node_team_destroy(team);
    return r;
}
