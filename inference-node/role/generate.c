/* The generate subcommand: options, signals, exit code. The work is in solo.c and draft.c. */
#include "role/generate.h"

#include <errno.h>
#include <string.h>

#include "role/cmd.h"
#include "role/options.h"
#include "speculate/suffix.h"
#include "vc/log.h"
#include "vc/mem.h"

/* Options in the types of the table; turned into node_generate_opts_t by finish_opts. */
typedef struct {
    node_generate_opts_t o;
    uint64_t top_k;
    const char *draft_length, *stop;
    int isa, source, tail, log_level;
    bool chat;
} flags_t;

#define N_OPTS 40
static void make_table(flags_t *f, vc_opt_t table[N_OPTS])
{
    node_generate_opts_t *o = &f->o;
    const vc_opt_t opts[] = {
        NODE_OPT_MODEL(o->model),
        {"prompt", VC_OPT_TEXT, &o->prompt, NULL, 0, 0, NULL, "prompt text; a positional argument does the same"},
        {"prompt-file", VC_OPT_STRING, &o->prompt_file, NULL, 0, 0, NULL, "prompt from a file, - is standard input"},
        {"system", VC_OPT_TEXT, &o->system, NULL, 0, 0, NULL, "system turn in place of the template's own"},
        {"chat", VC_OPT_BOOL, &f->chat, "true", 0, 0, NULL, "wrap the prompt in the model's chat template"},
        {"raw", VC_OPT_BOOL, &o->raw, "false", 0, 0, NULL, "give the prompt to the model as it is"},
        {"max-tokens", VC_OPT_U64, &o->max_tokens, "256", 1, 1u << 24, NULL, "tokens to generate at most"},
        {"stop", VC_OPT_TEXT, &f->stop, NULL, 0, 0, NULL, "end before this text; may be given several times"},
        {"ignore-end", VC_OPT_BOOL, &o->ignore_end, "false", 0, 0, NULL, "go on after an end token"},
        {"json", VC_OPT_BOOL, &o->json, "false", 0, 0, NULL, "print one JSON object in place of the text"},
        {"result-file", VC_OPT_STRING, &o->result_file, NULL, 0, 0, NULL, "write the JSON object to this file as well"},
        {"stats", VC_OPT_BOOL, &o->stats, "false", 0, 0, NULL, "print speed, acceptance and digests to stderr"},
        NODE_OPT_DRAFT_LENGTH(f->draft_length),
        {"compressor", VC_OPT_STRING, &o->compressor, NULL, 0, 0, NULL,
         "what drafts are made from; none given: " NODE_DEFAULT_COMPRESSOR " with a verifier, full KV without"},
        NODE_OPT_SOURCE(f->source),
        NODE_OPT_CALIBRATION(o->calibration),
        {"compress-tokens", VC_OPT_U64, &o->compress_tokens, "4294967295", 0, 4294967295.0, NULL,
         "without a verifier: compress at most this many leading tokens of the prompt"},
        {"temperature", VC_OPT_DOUBLE, &o->sampling.temperature, "0", 0, 100, NULL, "0 is greedy"},
        {"top-p", VC_OPT_DOUBLE, &o->sampling.top_p, "1", 0, 1, NULL, "sample from the likeliest that reach this mass"},
        {"top-k", VC_OPT_U64, &f->top_k, "0", 0, 4294967295.0, NULL, "sample from the k likeliest; 0: all"},
        {"min-p", VC_OPT_DOUBLE, &o->sampling.min_p, "0", 0, 1, NULL,
         "drop what is less likely than this x the likeliest"},
        {"seed", VC_OPT_U64, &o->sampling.seed, "0", 0, 0, NULL, "equal seeds give equal text"},
        {"repeat-penalty", VC_OPT_DOUBLE, &o->sampling.repeat_penalty, "1", 0.01, 100, NULL, "1: none"},
        {"presence-penalty", VC_OPT_DOUBLE, &o->sampling.presence_penalty, "0", -100, 100, NULL, "0: none"},
        {"frequency-penalty", VC_OPT_DOUBLE, &o->sampling.frequency_penalty, "0", -100, 100, NULL, "0: none"},
        NODE_OPT_CONTEXT(o->context),
        NODE_OPT_THREADS(o->threads),
        NODE_OPT_ISA(f->isa),
        {"kv-ram", VC_OPT_BYTES, &o->kv_ram, "0", 0, 0, NULL,
         "without a verifier: full KV in memory at most, the rest is streamed from a file; 0: all of it in memory"},
        {"kv-dir", VC_OPT_STRING, &o->kv_dir, NULL, 0, 0, NULL,
         "with --kv-ram: folder of that file; default $TMPDIR or /var/tmp"},
        {"server", VC_OPT_STRING, &o->server, NULL, 0, 0, NULL, "cache server HOST:PORT"},
        {"verifier", VC_OPT_STRING, &o->verifier, NULL, 0, 0, NULL,
         "verify node HOST:PORT, or several separated by ','"},
        NODE_OPT_DATA_PLANE(o->data_plane),
        {"tail", VC_OPT_ENUM, &f->tail, "verified", 0, 0, "verified|own", "whose K, V rows drafts follow on"},
        NODE_OPT_LOG_LEVEL(f->log_level, "warn"),
    };
    _Static_assert(VC_ARRAY_LEN(opts) < N_OPTS, "room for the end mark");
    memset(table, 0, N_OPTS * sizeof *table);
    memcpy(table, opts, sizeof opts);
}

/* The option table keeps the last value of an option; stop strings may be several. */
static vc_status_t collect_stops(flags_t *f, int argc, char **argv, vc_err_t *err)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        const char *value = NULL;
        if (!strncmp(argv[i], "--stop=", 7))
            value = argv[i] + 7;
        else if (!strcmp(argv[i], "--stop") && i + 1 < argc)
            value = argv[++i];
        if (value && f->o.n_stops == NODE_STOPS_MAX)
            return vc_err_set(err, VC_ERR_INVALID, "--stop: at most %u stop strings", NODE_STOPS_MAX);
        if (value)
            f->o.stops[f->o.n_stops++] = value;
    }
    if (!f->o.n_stops && f->stop && f->stop[0]) /* from the environment or a file */
        f->o.stops[f->o.n_stops++] = f->stop;
    return VC_OK;
}

static vc_status_t take_positional(node_generate_opts_t *o, const vc_config_t *config, vc_err_t *err)
{
    int n = vc_config_n_args(config);
    if (n > 1 || (n == 1 && o->prompt[0]))
        return vc_err_set(err, VC_ERR_INVALID, "one prompt, please: '%s' is a further argument (quote the text)",
                          vc_config_arg(config, n - 1));
    if (n == 1)
        o->prompt = vc_config_arg(config, 0);
    if (!o->prompt[0] == !o->prompt_file[0])
        return vc_err_set(err, VC_ERR_INVALID,
                          o->prompt[0] ? "--prompt and --prompt-file exclude each other"
                                       : "no prompt: give it as an argument, with --prompt or with --prompt-file");
    return VC_OK;
}

/* Options that nothing reads in this run. */
static vc_status_t refuse_idle(const flags_t *f, const vc_opt_t *table, const vc_config_t *config, vc_err_t *err)
{
    const node_generate_opts_t *o = &f->o;
    bool server = o->server[0] != '\0', verifier = o->verifier[0] != '\0', solo = !server && !verifier;
    bool copies = solo && o->compressor[0] && o->draft_length;
    const node_idle_opt_t list[] = {
        {"chat", f->chat && o->raw, "without --raw"},
        {"source", !o->draft_length, "with drafts, and --draft-length is 0"},
        {"compressor", server ? !verifier : solo && !o->draft_length,
         server ? "with a --verifier where there is a --server" : "with drafts, and --draft-length is 0"},
        {"draft-length", !solo && !(server && verifier) && o->draft_length && o->draft_length != NODE_DRAFT_AUTO,
         "in one process, or with --server and --verifier"},
        {"calibration", solo ? !o->compressor[0] : !verifier,
         solo ? "with a --compressor" : "with a --verifier where there is a --server"},
        {"compress-tokens", !copies, "with a --compressor and drafts, in one process"},
        {"kv-dir", !o->kv_ram, "with --kv-ram"},
        {"data-plane", o->data_plane && !server, "with a --server"},
        {"tail", !server || !verifier, "with --server and --verifier"},
    };
    return node_opts_refuse_idle(table, config, list, VC_ARRAY_LEN(list), err);
}

/* What excludes what, beyond single values. */
static vc_status_t check_together(const node_generate_opts_t *o, vc_err_t *err)
{
    if (o->raw && o->system[0])
        return vc_err_set(err, VC_ERR_INVALID, "--system needs the chat template, --raw has none");
    if (o->kv_ram && (o->server[0] || o->verifier[0]))
        return vc_err_set(err, VC_ERR_INVALID,
                          "--kv-ram is for generation in one process, without --server, --verifier");
    if (o->kv_ram && !o->compressor[0] && o->draft_length && o->draft_length != NODE_DRAFT_AUTO)
        return vc_err_set(err, VC_ERR_INVALID, "--kv-ram with --draft-length needs a --compressor to draft from");
    return node_sampling_check(&o->sampling, err);
}

static vc_status_t finish_opts(flags_t *f, const vc_opt_t *table, const vc_config_t *config, int argc, char **argv,
                               vc_err_t *err)
{
    node_generate_opts_t *o = &f->o;
    vc_status_t st = take_positional(o, config, err);
    if (st == VC_OK && !o->model[0])
        st = vc_err_set(err, VC_ERR_INVALID, "no model: give its file with --model");
    if (st == VC_OK)
        st = node_opts_draft_length(f->draft_length, &o->draft_length, err);
    if (st == VC_OK)
        st = collect_stops(f, argc, argv, err);
    if (st == VC_OK)
        st = refuse_idle(f, table, config, err);
    if (st != VC_OK)
        return st;
    o->raw = o->raw || !f->chat;
    o->tail_verified = f->tail == 0;
    o->source = f->source != 0;
    o->isa = (node_isa_t)f->isa;
    o->sampling.top_k = (uint32_t)f->top_k;
    st = check_together(o, err);
    if (st == VC_OK && o->result_file[0])
        st = node_opts_out_file(o->result_file, err);
    return st == VC_OK && o->kv_ram ? node_opts_kv_dir(&o->kv_dir, err) : st;
}

vc_status_t node_generate_source(const node_generate_opts_t *opts, node_source_t **source_p, vc_err_t *err)
{
    node_suffix_opts_t so;
    node_suffix_opts_default(&so);
    *source_p = NULL;
    return opts->source && opts->draft_length ? node_suffix_create(&so, source_p, err) : VC_OK;
}

vc_status_t node_generate_report(const node_generate_opts_t *opts, const node_outcome_t *outcome,
                                 const node_text_t *text, FILE *out, vc_err_t *err)
{
    size_t len;
    const char *all = node_text_all(text, &len);
    vc_status_t st = VC_OK;
    if (opts->stats)
        node_outcome_print_stats(outcome, stderr);
    if (opts->json)
        st = node_outcome_print_json(outcome, all, len, out);
    if (st != VC_OK)
        return vc_err_set(err, st, "cannot write the result");
    if (!opts->result_file[0])
        return VC_OK;
    FILE *f = fopen(opts->result_file, "w");
    if (f == NULL)
        return vc_err_set(err, vc_status_from_path_errno(errno), "cannot write %s: %s", opts->result_file,
                          strerror(errno));
    st = node_outcome_print_json(outcome, all, len, f);
    if (fclose(f) != 0 || st != VC_OK)
        return vc_err_set(err, VC_ERR_IO, "cannot write %s", opts->result_file);
    return VC_OK;
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
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of the file, told as one */
}

int node_cmd_generate(int argc, char **argv)
{
    flags_t f = {0};
    vc_opt_t table[N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    int rc = 0;
    make_table(&f, table);
    if (!node_cmd_begin(table, "[PROMPT]", false, argc, argv, &config, &rc))
        return rc;
    vc_status_t st = finish_opts(&f, table, config, argc, argv, &err);
    if (st == VC_OK) {
        vc_log_set_level((vc_log_level_t)f.log_level);
        catch_signals();
        bool remote = f.o.server[0] || f.o.verifier[0];
        st = remote ? node_generate_remote(&f.o, stdout, &stop_flag, &err)
                    : node_generate_solo(&f.o, stdout, &stop_flag, &err);
    }
    vc_config_free(config);
    if (st == VC_ERR_CANCELLED) {
        fprintf(stderr, "vericache-node generate: interrupted\n");
        return 130; /* as a shell reports SIGINT */
    }
    return st == VC_OK ? 0 : node_cmd_fail("generate", st, &err);
}
