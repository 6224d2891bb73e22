/* Traces of vericachectl replay: any text is a trace or an error with a sentence, and a trace can be replayed. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "sim/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cs_trace_t *trace = NULL;
    vc_err_t err = {0};
    cs_sim_result_t r;
    if (cs_trace_parse((const char *)data, size, &trace, &err) != VC_OK) {
        if (err.msg[0] == '\0' || trace != NULL)
            abort();
        return 0;
    }
    if (cs_sim_run(trace, CS_SIM_OURS, 1 + (uint32_t)size % 7, &r) != VC_OK || r.hits > r.asked ||
        r.asked != cs_trace_asked(trace))
        abort();
    cs_trace_destroy(trace);
    return 0;
}
