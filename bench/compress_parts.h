/*
 * The parts of bench_compress.c: texts and acceptance (compress_accept.c), attention over bodies
 * (compress_attention.c).
 */
#ifndef COMPRESS_PARTS_H
#define COMPRESS_PARTS_H

#include "harness.h"
#include "vc/status.h"

extern vc_err_t compress_err;
/* For a bench whose calls must all succeed: else it ends with the sentence. */
#define OK(call)                                                         \
    do {                                                                 \
        vc_status_t st_ = (call);                                        \
        if (st_ != VC_OK)                                                \
            bench_fail("%s: %s", vc_status_name(st_), compress_err.msg); \
    } while (0)

/* Acceptance and size of every compressor on forced true text; needs the model. */
void compress_acceptance(void);
/* One decoding step's attention over n_tokens: full f16 pages against bodies, interleaved. */
void compress_attention(uint32_t n_tokens);

#endif
