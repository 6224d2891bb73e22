/* --isa NAME, for benches of the engine. */
#ifndef BENCH_ISA_OPTION_H
#define BENCH_ISA_OPTION_H

#include "harness.h"
#include "model/engine.h"

/* "auto" where it is not given; ends the bench where it is no instruction set. */
static inline node_isa_t bench_isa(void)
{
    const char *name = bench_option("isa", "auto");
    node_isa_t isa;
    if (!node_isa_parse(name, &isa))
        bench_fail("--isa %s: not one of " NODE_ISA_CHOICES, name);
    return isa;
}

#endif
