/*
 * What does a compressed body cost in acceptance, and how long does attention over it take?
 *
 * Acceptance: the true text behind a prefix is forced, and the next token that the drafter would choose is compared
 * with the choice of full KV at every position. From the runs of equal choices follows how many of x drafts are
 * accepted. A position inside a loop of greedy decoding does not occur, since the text is real. Several texts, every
 * compressor in the same run, prefill and compression outside of any clock.
 * Attention: one decoding step of SmolLM2's shape on one thread, all layers, full f16 pages against coded tiles of the
 * same numbers, interleaved.
 *   --model FILE (else VERICACHE_MODEL), --compressors LIST separated by ';', --texts LIST of files separated by ';'
 *   --part attention|acceptance|all
 *   --prefix N tokens, --forced N tokens, --threads N
 */
#include <string.h>

#include "compress_parts.h"
#include "vc/log.h"

vc_err_t compress_err;

int main(int argc, char **argv)
{
    bench_init("compress", argc, argv);
    vc_log_set_level(VC_LOG_WARN);
    const char *part = bench_option("part", "all");
    if (strcmp(part, "acceptance") != 0) {
        compress_attention(bench_quick() ? 256 : 4096);
        if (!bench_quick())
            compress_attention(8192);
    }
    if (strcmp(part, "attention") != 0)
        compress_acceptance();
    return 0;
}
