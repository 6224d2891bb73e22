/* The batch subcommand: options, signals, exit code. The work is in batch_run.c. */
#include "role/batch.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "role/cmd.h"
#include "role/options.h"
#include "speculate/session.h"
#include "vc/log.h"
#include "vc/mem.h"

typedef struct {
    node_batch_cmd_t c;
    const char *out, *draft_length;
    int isa, schedule, source, log_level;
} flags_t;

#define N_OPTS 24
static void make_table(flags_t *f, vc_opt_t table[N_OPTS])
{
    node_batch_cmd_t *c = &f->c;
    const vc_opt_t opts[] = {
        NODE_OPT_MODEL(c->model),
        {"requests", VC_OPT_STRING, &c->requests, "-", 0, 0, NULL,
         "file of requests, - is standard input; on each line a JSON object: prompt, and if wanted id, system, raw, "
         "max_tokens, stop, ignore_end, source, temperature, top_k, top_p, min_p, seed, repeat_penalty, "
         "presence_penalty, frequency_penalty"},
        {"out", VC_OPT_STRING, &f->out, "-", 0, 0, NULL,
         "file of results, a JSON object on each line in the order in which they end; - is standard output"},
        {"max-running", VC_OPT_U64, &c->max_running, "4", 1, 64, NULL, "requests at once"},
        {"max-tokens", VC_OPT_U64, &c->max_tokens, "256", 1, 1u << 24, NULL,
         "tokens to generate at most, for requests that do not say max_tokens themselves"},
        {"raw", VC_OPT_BOOL, &c->raw, "false", 0, 0, NULL,
         "no chat template, for requests that do not say raw themselves"},
        NODE_OPT_DRAFT_LENGTH(f->draft_length),
        {"compressor", VC_OPT_STRING, &c->compressor, NODE_DEFAULT_COMPRESSOR, 0, 0, NULL, "what drafts are made from"},
        NODE_OPT_CALIBRATION(c->calibration),
        NODE_OPT_SOURCE(f->source),
        {"schedule", VC_OPT_ENUM, &f->schedule, "stagger", 0, 0, "stagger|lockstep",
         "verify requests one after the other, or all of them in the same pass"},
        {"prompt-rows", VC_OPT_U64, &c->prompt_rows, "32", 1, 4096, NULL,
         "tokens of a new prompt that are computed in a pass while others run"},
        {"kv-ram", VC_OPT_BYTES, &c->kv_ram, "0", 0, 0, NULL,
         "full KV in memory at most, an equal share for each of --max-running, the rest is streamed from files; 0: all "
         "of it in memory"},
        {"kv-dir", VC_OPT_STRING, &c->kv_dir, NULL, 0, 0, NULL,
         "with --kv-ram: folder of those files; default $TMPDIR or /var/tmp"},
        {"hold", VC_OPT_BYTES, &c->hold, "0", 0, 0, NULL,
         "with --kv-ram: memory for full KV that is on its way to a verification; 0: enough for one request"},
        NODE_OPT_CONTEXT(c->context),
        NODE_OPT_THREADS(c->threads),
        NODE_OPT_ISA(f->isa),
        {"stats", VC_OPT_BOOL, &c->stats, "false", 0, 0, NULL, "print what the batch came to on stderr"},
        NODE_OPT_LOG_LEVEL(f->log_level, "warn"),
    };
    _Static_assert(VC_ARRAY_LEN(opts) < N_OPTS, "room for the end mark");
    memset(table, 0, N_OPTS * sizeof *table);
    memcpy(table, opts, sizeof opts);
}

/* Options that nothing reads in this run. */
static vc_status_t refuse_idle(const flags_t *f, const vc_opt_t *table, const vc_config_t *config, vc_err_t *err)
{
    const char *drafts = "with drafts, and --draft-length is 0";
    bool none = f->c.draft_length == 0;
    const node_idle_opt_t list[] = {
        {"compressor", none, drafts},
        {"source", none, drafts},
        {"calibration", none || !f->c.compressor[0], none ? drafts : "with a --compressor"},
        {"kv-dir", !f->c.kv_ram, "with --kv-ram"},
        {"hold", !f->c.kv_ram, "with --kv-ram"},
    };
    return node_opts_refuse_idle(table, config, list, VC_ARRAY_LEN(list), err);
}

static vc_status_t finish_opts(flags_t *f, const vc_opt_t *table, const vc_config_t *config, vc_err_t *err)
{
    if (vc_config_n_args(config) > 0)
        return vc_err_set(err, VC_ERR_INVALID, "'%s' is no option; requests come from --requests",
                          vc_config_arg(config, 0));
    if (!f->c.model[0])
        return vc_err_set(err, VC_ERR_INVALID, "no model: give its file with --model");
    f->c.isa = (node_isa_t)f->isa;
    f->c.lock_step = f->schedule == 1;
    f->c.source = f->source != 0;
    vc_status_t st = node_opts_draft_length(f->draft_length, &f->c.draft_length, err);
    if (st == VC_OK)
        st = refuse_idle(f, table, config, err);
    return st == VC_OK && f->c.kv_ram ? node_opts_kv_dir(&f->c.kv_dir, err) : st;
}

/* Opening the requests for writing would empty them. */
static bool is_requests(const flags_t *f)
{
    struct stat in, out;
    return strcmp(f->out, "-") != 0 && stat(f->out, &out) == 0 && S_ISREG(out.st_mode) &&
           (strcmp(f->c.requests, "-") == 0 ? fstat(STDIN_FILENO, &in) : stat(f->c.requests, &in)) == 0 &&
           in.st_dev == out.st_dev && in.st_ino == out.st_ino;
}

static vc_status_t open_out(flags_t *f, vc_err_t *err)
{
    if (is_requests(f))
        return vc_err_set(err, VC_ERR_INVALID, "--out %s is the file of requests", f->out);
    f->c.out = strcmp(f->out, "-") == 0 ? stdout : fopen(f->out, "w");
    return f->c.out != NULL
               ? VC_OK
               : vc_err_set(err, vc_status_from_path_errno(errno), "cannot write %s: %s", f->out, strerror(errno));
}

static volatile sig_atomic_t stop_flag;

static void on_signal(int sig)
{
    (void)sig;
    stop_flag = 1;
}

/* The first signal asks for an end between two passes; a second one ends the process as usual. */
static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit and a closed pipe are errors of the file, told as such */
    signal(SIGPIPE, SIG_IGN);
}

int node_cmd_batch(int argc, char **argv)
{
    flags_t f = {0};
    vc_opt_t table[N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    uint64_t n_failed = 0;
    int rc = 0;
    make_table(&f, table);
    if (!node_cmd_begin(table, "", false, argc, argv, &config, &rc))
        return rc;
    vc_status_t st = finish_opts(&f, table, config, &err);
    if (st == VC_OK)
        st = open_out(&f, &err);
    if (st == VC_OK) {
        vc_log_set_level((vc_log_level_t)f.log_level);
        catch_signals();
        st = node_batch_cmd_run(&f.c, &stop_flag, &n_failed, &err);
    }
    if (f.c.out != NULL && f.c.out != stdout && fclose(f.c.out) != 0 && st == VC_OK)
        st = vc_err_set(&err, VC_ERR_IO, "cannot write %s", f.out);
    vc_config_free(config);
    if (st == VC_ERR_CANCELLED) {
        fprintf(stderr, "vericache-node batch: interrupted\n");
        return 130; /* as a shell reports SIGINT */
    }
    if (st != VC_OK)
        return node_cmd_fail("batch", st, &err);
    if (n_failed > 0)
        fprintf(stderr, "vericache-node batch: %llu request%s failed, see %s\n", (unsigned long long)n_failed,
                node_plural(n_failed, "s"), n_failed == 1 ? "its line" : "their lines");
    return n_failed > 0 ? vc_status_exit_code(VC_ERR_CORRUPT) : 0; /* 65: bad data */
}
