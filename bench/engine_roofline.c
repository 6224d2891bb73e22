/*
 * What the machine can do at most, with which the engine's speed is compared: loops of independent multiply-adds in
 * registers, f32 and pairs of int16, of the widest instructions that the engine uses at its level. All threads at once;
 * the best of several rounds. How fast memory far larger than the caches is read is told beside them.
 */
#include <immintrin.h>
#include <stdatomic.h>

#include "engine_parts.h"
#include "kernels/backend.h"
#include "kernels/team.h"
#include "vc/mem.h"

enum { ROUNDS = 9, CHAINS = 12, LOOPS = 2000000 };
#define READ_BYTES (512.0 * (1 << 20))

#define TARGET(isa) __attribute__((target(isa), noinline))
#define TARGET_INLINE(isa) __attribute__((target(isa), always_inline)) static inline

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
    double (*fma)(void);
    double (*dot)(void); /* these two return the multiply-adds that they did */
} loops_t;

static bool loops_of(node_isa_t isa, loops_t *l)
{
    if (isa >= NODE_ISA_AVX512_PLAIN) {
        const bool vnni = isa == NODE_ISA_AVX512 && node_ops_get(NODE_OPS_AVX512) == &node_ops_avx512vnni;
        *l = (loops_t){fma_avx512, vnni ? dot_avx512vnni : dot_avx512};
    } else if (isa >= NODE_ISA_AVX2_PLAIN) {
        const bool vnni = isa == NODE_ISA_AVX2 && node_ops_get(NODE_OPS_AVX2) == &node_ops_avx2vnni;
        *l = (loops_t){fma_avx2, vnni ? dot_avx2vnni : dot_avx2};
    } else {
        return false;
    }
    return true;
}

typedef struct {
    double (*compute)(void);
    _Atomic uint64_t done; /* multiply-adds */
} job_t;

static void run_job(void *arg, uint32_t thread)
{
    job_t *j = arg;
    (void)thread;
    atomic_fetch_add(&j->done, (uint64_t)j->compute());
}

/* Of the best round. */
static double best_rate(node_team_t *team, double (*compute)(void))
{
    job_t j = {.compute = compute};
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        atomic_store(&j.done, 0);
        double start = bench_now_s();
        node_team_run(team, run_job, &j);
        double rate = (double)atomic_load(&j.done) / (bench_now_s() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static double read_rate(const bench_t *b)
{
    engine_reader_t *reader = engine_reader_open(b, bench_quick() ? READ_BYTES / 16 : READ_BYTES);
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        double rate = engine_reader_rate(reader, 1);
        best = VC_MAX(rate, best);
    }
    engine_reader_close(reader);
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
    r.fma_per_s = best_rate(team, loops.fma);
    r.dot_per_s = best_rate(team, loops.dot);
    bench_note("roofline: memory %.1f GB/s, f32 %.0f and int16 %.0f G multiply-adds/s, %u threads", read_rate(b) / 1e9,
               r.fma_per_s / 1e9, r.dot_per_s / 1e9, b->threads);
    node_team_destroy(team);
    return r;
}
