/*
 * What does a compressed copy cost in acceptance, bytes and time, and how long does attention over it take?
 *
 * Acceptance, bytes, time: every compressor on real texts of several kinds, forced behind prefixes of two lengths; the
 * prefill of a text serves all compressors. Attention: one decoding step of SmolLM2's shape, full f16 pages against
 * bodies, interleaved, without a model.
 *   --part attention|acceptance|all
 *   --model FILE (else VERICACHE_MODEL), --threads N, --calibration DIR (blobs, made where missing)
 *   --compressors LIST separated by ';' (else all), --texts NAMES, --text-dir DIR
 *   --load pages: keys stored before RoPE become f16 pages instead of 8-bit codes
 *   --times no (on a busy machine: acceptance and bytes do not depend on it)
 *   --prefix N or N;M tokens, ascending; --forced N tokens
 *   --out DIR for compress-methods.csv and compress-methods.svg (bench/results; a temporary one with --quick)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "compress_parts.h"
#include "vc/log.h"
#include "vc/mem.h"

vc_err_t compress_err;

static void open_node(compress_run_t *run)
{
    node_opts_t o;
    node_opts_default(&o);
    o.model_path = bench_model();
    o.engine.n_threads = (uint32_t)atoi(bench_option("threads", "2"));
    o.calib_dir = bench_option("calibration", "build/calibration");
    (void)mkdir("build", 0777); /* whoever needs it will say that it is not there */
    (void)mkdir(o.calib_dir, 0777);
    OK(node_open(&o, &run->node, &compress_err));
}

static void take_lengths(compress_run_t *run)
{
    const char *list = bench_option("prefix", bench_quick() ? "256" : "2048;4096");
    run->n_forced = (uint32_t)atoi(bench_option("forced", bench_quick() ? "60" : "240"));
    while (*list && run->n_prefixes < COMPRESS_PREFIXES) {
        char *end;
        uint32_t n = (uint32_t)strtoul(list, &end, 10) / NODE_TILE * NODE_TILE;
        if (n == 0 || end == list || (run->n_prefixes && n <= run->prefixes[run->n_prefixes - 1]))
            bench_fail("--prefix takes one or two ascending numbers of tokens, not %s", list);
        run->prefixes[run->n_prefixes++] = n;
        list = end + (*end == ';');
    }
    uint32_t context = node_engine_info(run->node->engine)->context;
    if (run->n_forced < COMPRESS_LONGEST || run->prefixes[run->n_prefixes - 1] + run->n_forced > context)
        bench_fail("at least %d forced tokens, and with the prefix no more than the context of %u", COMPRESS_LONGEST,
                   context);
}

static void figures(const compress_run_t *run)
{
    double online = 0, offline = 0;
    for (uint32_t i = 0; i < run->n_specs && run->prefill_s > 0; i++) {
        const compress_spec_t *s = &run->specs[i];
        double ratio = (s->compress_s + s->watch_s) / run->prefill_s;
        double *worst = s->spec.ops->needs(&s->spec) & NODE_NEED_REPLAY ? &offline : &online;
        *worst = VC_MAX(*worst, ratio);
    }
    if (online > 0)
        bench_figure("online_compress_vs_prefill", online);
    if (offline > 0)
        bench_figure("kvzip_replay_vs_prefill", offline);
}

static void acceptance(void)
{
    static compress_run_t run;
    char path[512];
    double t0 = bench_now_s();
    open_node(&run);
    take_lengths(&run);
    compress_texts_load(&run);
    compress_specs_load(&run);
    if (strcmp(bench_option("times", "yes"), "no") != 0)
        compress_times(&run);
    compress_acceptance(&run);
    compress_print(&run);
    compress_compare(&run);
    figures(&run);
    const char *out = bench_option("out", bench_quick() ? bench_tmpdir() : "bench/results");
    (void)mkdir(out, 0777);
    snprintf(path, sizeof path, "%s/compress-methods.csv", out);
    compress_write_csv(&run, path);
    snprintf(path, sizeof path, "%s/compress-methods.svg", out);
    compress_write_plot(&run, path);
    bench_note("%.0f s", bench_now_s() - t0);
    compress_texts_free(&run);
    node_close(run.node);
}

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
        acceptance();
    return 0;
}
