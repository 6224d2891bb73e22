/* CPU detection; no other file decides by feature bits. */
#include "kernels/backend.h"

#include <cpuid.h>
#include <xmmintrin.h>

enum { CPUID_1_ECX_F16C = 1 << 29, CPUID_7_1_EAX_AVX_VNNI = 1 << 4, MXCSR_DEFAULT = 0x1f80 };

static bool has_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & CPUID_1_ECX_F16C) != 0;
}

static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & CPUID_7_1_EAX_AVX_VNNI) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const node_ops_t *node_ops_plain(node_ops_level_t level)
{
    switch (level) {
    case NODE_OPS_SCALAR: return &node_ops_scalar;
    case NODE_OPS_AVX2: return has_avx2() ? &node_ops_avx2 : NULL;
    case NODE_OPS_AVX512: return has_avx512() ? &node_ops_avx512 : NULL;
    }
    return NULL;
}

const node_ops_t *node_ops_get(node_ops_level_t level)
{
    const node_ops_t *plain = node_ops_plain(level);
    if (plain == &node_ops_avx2 && has_avx_vnni())
        return &node_ops_avx2vnni;
    if (plain == &node_ops_avx512 && __builtin_cpu_supports("avx512vnni"))
        return &node_ops_avx512vnni;
    return plain;
}

node_ops_level_t node_ops_best_level(void)
{
    return has_avx512() ? NODE_OPS_AVX512 : has_avx2() ? NODE_OPS_AVX2 : NODE_OPS_SCALAR;
}

uint32_t node_fp_mode_set_default(void)
{
    uint32_t before = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return before;
}

void node_fp_mode_restore(uint32_t mode) { _mm_setcsr(mode); }
