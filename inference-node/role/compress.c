/*
 * `vericache-node compress`: runs beside a cache server and makes the compressed copies that its full prefixes lack.
 * For methods that read the text again (KVzip) and would cost a registration too much; any compressor will do.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "role/cmd.h"
#include "role/compress_job.h"
#include "role/options.h"
#include "role/store_chain.h"
#include "vc/config.h"
#include "vc/log.h"
#include "vc/mem.h"

typedef struct compress_opts {
    const char *model, *server, *compressor, *calibration;
    uint64_t threads, duty, interval_ms;
    int isa, log_level;
    bool once, json, data_plane;
} compress_opts_t;

#define COMPRESS_N_OPTS 13
static void fill_table(compress_opts_t *o, vc_opt_t *table)
{
    const vc_opt_t rows[COMPRESS_N_OPTS] = {
        NODE_OPT_MODEL(o->model),
        {"server", VC_OPT_STRING, &o->server, "127.0.0.1:7070", 0, 0, NULL, "cache server HOST:PORT"},
        {"compressor", VC_OPT_STRING, &o->compressor, NODE_DEFAULT_OFFLINE_COMPRESSOR, 0, 0, NULL,
         "copies to make, several separated by ';'"},
        NODE_OPT_CALIBRATION(o->calibration),
        {"once", VC_OPT_BOOL, &o->once, "false", 0, 0, NULL, "one pass over what is stored, then the end"},
        {"interval-ms", VC_OPT_U64, &o->interval_ms, "60000", 100, 86400000, NULL,
         "from the end of a pass to the next"},
        {"duty", VC_OPT_U64, &o->duty, "100", 1, 100, NULL, "percent of the time that is worked, the rest is waited"},
        NODE_OPT_DATA_PLANE(o->data_plane),
        NODE_OPT_THREADS(o->threads),
        NODE_OPT_ISA(o->isa),
        {"json", VC_OPT_BOOL, &o->json, "false", 0, 0, NULL, "one JSON object a copy instead of text"},
        NODE_OPT_LOG_LEVEL(o->log_level, "warn"),
        {0},
    };
    memcpy(table, rows, sizeof(rows));
}

static volatile sig_atomic_t stop_flag;
static void on_signal(int sig)
{
    (void)sig;
    stop_flag = 1;
}

/* Once: a second signal ends the program at once, which loses no more than the copy that is being made. */
static void watch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

/* In slices: the signal may reach another thread. */
static void wait_us(void *arg, uint64_t us)
{
    const uint64_t slice_us = 50000;
    (void)arg;
    while (us > 0 && !stop_flag) {
        uint64_t now = VC_MIN(us, slice_us);
        nanosleep(&(struct timespec){0, (long)now * 1000}, NULL);
        us -= now;
    }
}

typedef struct {
    const compress_opts_t *o;
    bool terminal;
} view_t;

static void tip_text(const uint8_t *tip, char out[13])
{
    for (int i = 0; i < 6; i++)
        snprintf(out + 2 * i, 3, "%02x", tip[i]);
}

static void unit_begins(void *arg, const node_job_unit_t *u)
{
    const view_t *view = arg;
    char tip[13];
    tip_text(u->tip, tip);
    if (view->terminal)
        fprintf(stderr, "\r\033[K[%u/%u] %s, %u blocks: %s ...", u->prefix, u->n_prefixes, tip, u->n_blocks,
                u->spec->text);
}

static void unit_failed(const node_job_unit_t *u, const char *tip)
{
    fflush(stdout);
    fprintf(stderr, "vericache-node compress: prefix %s, %s: %s\n", tip, u->spec ? u->spec->text : "full copy",
            u->reason[0] != '\0' ? u->reason : vc_status_name(u->status));
}

static void unit_ended(void *arg, const node_job_unit_t *u)
{
    const view_t *view = arg;
    char tip[13];
    tip_text(u->tip, tip);
    if (view->terminal)
        fputs("\r\033[K", stderr);
    if (u->status != VC_OK)
        unit_failed(u, tip);
    else if (view->o->json)
        printf("{\"tip\":\"%s\",\"blocks\":%u,\"compressor\":\"%s\",\"stored\":%u,\"bytes\":%" PRIu64 ",\"ms\":%" PRIu64
               "}\n",
               tip, u->n_blocks, u->spec->text, u->stored, u->bytes, u->us / 1000);
    else
        printf("prefix %s, %u blocks: %s, %u records, %.1f MB, %.1f s\n", tip, u->n_blocks, u->spec->text, u->stored,
               (double)u->bytes / 1e6, (double)u->us / 1e6);
    fflush(stdout); /* whoever watches a pipe sees each copy when it is there */
}

static void report(const compress_opts_t *o, const node_job_sum_t *s)
{
    if (o->json)
        printf("{\"prefixes\":%u,\"made\":%u,\"present\":%u,\"without_full\":%u,\"failed\":%u}\n", s->prefixes, s->made,
               s->present, s->without_full, s->failed);
    else
        printf("%u prefixes: %u copies made, %u there already, %u without a full copy, %u failed\n", s->prefixes,
               s->made, s->present, s->without_full, s->failed);
    fflush(stdout);
}

/* A server that is away for a while is no reason to end, once there has been a good pass or not. */
static vc_status_t run_passes(const compress_opts_t *o, node_job_t *job, vc_err_t *err)
{
    for (;;) {
        node_job_sum_t sum;
        vc_status_t status = node_job_pass(job, &sum, err);
        if (status == VC_ERR_CANCELLED || stop_flag) /* a pass that failed too: nothing waits once the flag is set */
            return VC_OK;
        if (o->once && status == VC_OK) {
            report(o, &sum);
            return sum.failed == 0 ? VC_OK
                                   : vc_err_set(err, VC_ERR_INTERNAL, "%u copies could not be made", sum.failed);
        }
        if (o->once)
            return status;
        if (status != VC_OK)
            vc_log_warn("compress", "pass ended early, going on later reason=\"%s\"", err->msg);
        else if (sum.made + sum.failed > 0)
            report(o, &sum);
        wait_us(NULL, o->interval_ms * 1000);
        if (stop_flag)
            return VC_OK;
    }
}

static void pass_ended(void *arg) { node_duty_rest(arg); }

static vc_status_t run_job(const compress_opts_t *o, vc_err_t *err)
{
    node_opts_t nopts;
    node_opts_default(&nopts);
    nopts.model_path = o->model;
    nopts.calib_dir = o->calibration;
    nopts.engine.n_threads = (uint32_t)o->threads;
    nopts.engine.isa = (node_isa_t)o->isa;
    node_cache_opts_t copts;
    node_cache_opts_default(&copts);
    copts.server = o->server;
    copts.use_data_plane = o->data_plane;
    node_spec_t specs[NODE_JOB_SPECS];
    uint32_t n_specs = 0;
    node_t *node = NULL;
    node_cache_t *cache = NULL;
    vc_status_t status = node_chain_parse_specs(o->compressor, specs, NODE_JOB_SPECS, &n_specs, err);
    if (status == VC_OK && n_specs == 0)
        status = vc_err_set(err, VC_ERR_INVALID, "no compressor given: --compressor SPEC[;SPEC]...");
    if (status == VC_OK)
        status = node_open(&nopts, &node, err);
    for (uint32_t i = 0; i < n_specs && status == VC_OK; i++)
        status = node_bind_spec(node, &specs[i], err);
    if (status == VC_OK)
        status = node_cache_open(&copts, node_engine_info(node->engine), &cache, err);
    if (status == VC_OK) {
        node_duty_t duty = {.clock = vc_clock_system(), .wait = wait_us, .percent = (uint32_t)o->duty};
        view_t view = {o, isatty(STDERR_FILENO) != 0};
        node_job_t job = {.node = node,
                          .cache = cache,
                          .specs = specs,
                          .n_specs = n_specs,
                          .duty = &duty,
                          .stop = &stop_flag,
                          .begins = unit_begins,
                          .ended = unit_ended,
                          .arg = &view};
        node_pass_watch(node, pass_ended, &duty);
        watch_signals();
        status = run_passes(o, &job, err);
    }
    node_cache_close(cache);
    node_close(node);
    return status;
}

int node_cmd_compress(int argc, char **argv)
{
    compress_opts_t o = {0};
    vc_opt_t table[COMPRESS_N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    int rc = 0;
    fill_table(&o, table);
    if (!node_cmd_begin(table, "", false, argc, argv, &config, &rc))
        return rc;
    vc_log_set_level((vc_log_level_t)o.log_level);
    const node_idle_opt_t idle = {"interval-ms", o.once, "without --once"};
    vc_status_t status = node_opts_refuse_idle(table, config, &idle, 1, &err);
    if (status == VC_OK && vc_config_n_args(config) > 0)
        status = vc_err_set(&err, VC_ERR_INVALID, "unexpected argument \"%.100s\"", vc_config_arg(config, 0));
    if (status == VC_OK)
        status = run_job(&o, &err);
    vc_config_free(config);
    return status == VC_OK ? 0 : node_cmd_fail("compress", status, &err);
}
