/*
 * `vericache-node calibrate`: reads texts through the model and writes, for each compressor that learns something of a
 * model once, the blob that it needs from then on. One thread beside the engine's own.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node.h"
#include "role/cmd.h"
#include "role/options.h"
#include "role/prompt.h"
#include "vc/clock.h"
#include "vc/log.h"
#include "vc/mem.h"

#define TEXT_MAX_BYTES ((size_t)64 << 20)
#define PIECE_TOKENS 2048u    /* texts are read in pieces that fit every context twice over */
#define PIECE_TOKENS_MIN 128u /* what is left at the end of a text, if shorter, teaches little */
#define TOKENS_MIN 2048u

typedef struct calibrate_opts {
    const char *model, *method, *calibration;
    uint64_t threads, limit_tokens;
    int isa, log_level;
} calibrate_opts_t;

#define CALIBRATE_N_OPTS 8
static void fill_table(calibrate_opts_t *o, vc_opt_t *table)
{
    const vc_opt_t rows[CALIBRATE_N_OPTS] = {
        NODE_OPT_MODEL(o->model),
        {"method", VC_OPT_STRING, &o->method, "all", 0, 0, NULL,
         "compressors to calibrate, separated by ';', or all that take a calibration"},
        NODE_OPT_CALIBRATION(o->calibration),
        {"limit-tokens", VC_OPT_U64, &o->limit_tokens, "16384", 0, 1u << 30, NULL,
         "read at most this many tokens, in equal parts of every text (0: all)"},
        NODE_OPT_THREADS(o->threads),
        NODE_OPT_ISA(o->isa),
        NODE_OPT_LOG_LEVEL(o->log_level, "warn"),
        {0},
    };
    memcpy(table, rows, sizeof(rows));
}

typedef struct calibrate {
    const calibrate_opts_t *o;
    node_t *node;
    uint32_t **ids, *n_ids; /* [n_texts] tokens of each text */
    uint32_t n_texts;
    const uint32_t **pieces;
    uint32_t *piece_tokens, n_pieces;
    node_calib_job_t job;
    const char *method; /* being calibrated */
    bool show;
} calibrate_t;

/* ---- texts to pieces ---- */

static vc_status_t read_texts(calibrate_t *c, const vc_config_t *config, vc_err_t *err)
{
    c->n_texts = (uint32_t)vc_config_n_args(config);
    c->ids = vc_calloc(c->n_texts, sizeof(*c->ids));
    c->n_ids = vc_calloc(c->n_texts, sizeof(*c->n_ids));
    if (c->ids == NULL || c->n_ids == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for %u texts", c->n_texts);
    vc_status_t status = VC_OK;
    for (uint32_t i = 0; status == VC_OK && i < c->n_texts; i++) {
        char *text = NULL;
        size_t bytes = 0;
        status = node_prompt_read_file(vc_config_arg(config, (int)i), TEXT_MAX_BYTES, &text, &bytes, err);
        if (status == VC_OK)
            status = node_tokenizer_encode(c->node->tok, text, bytes, false, &c->ids[i], &c->n_ids[i], err);
        vc_free(text);
    }
    return status;
}

static uint32_t piece_tokens(const calibrate_t *c)
{
    uint32_t context = node_engine_info(c->node->engine)->context;
    return VC_MIN(PIECE_TOKENS, context / 2 - VC_MIN(context / 2, 64u));
}

/* The first piece of every text, then the second of every one, until the limit: no text crowds out the others. */
static vc_status_t cut_texts(calibrate_t *c, vc_err_t *err)
{
    const uint32_t piece = piece_tokens(c);
    const uint64_t limit = c->o->limit_tokens ? c->o->limit_tokens : UINT64_MAX;
    uint64_t total = 0;
    uint32_t longest = 0, cap = 0;
    if (piece < PIECE_TOKENS_MIN)
        return vc_err_set(err, VC_ERR_UNSUPPORTED, "the model's context is too short to be calibrated");
    for (uint32_t i = 0; i < c->n_texts; i++) {
        longest = VC_MAX(longest, c->n_ids[i]);
        cap += c->n_ids[i] / piece + 1;
    }
    c->pieces = vc_calloc(cap, sizeof(*c->pieces));
    c->piece_tokens = vc_calloc(cap, sizeof(*c->piece_tokens));
    if (c->pieces == NULL || c->piece_tokens == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "no memory for the texts");
    for (uint32_t at = 0; at < longest && total < limit; at += piece)
        for (uint32_t i = 0; i < c->n_texts && total < limit; i++) {
            if (c->n_ids[i] < at + PIECE_TOKENS_MIN)
                continue;
            uint32_t n = (uint32_t)VC_MIN(VC_MIN(c->n_ids[i] - at, piece), limit - total);
            c->pieces[c->n_pieces] = c->ids[i] + at;
            c->piece_tokens[c->n_pieces++] = n;
            total += n;
        }
    if (total < TOKENS_MIN)
        return vc_err_set(err, VC_ERR_INVALID,
                          "calibration needs at least %u tokens of text in pieces of %u or more, these have %llu",
                          TOKENS_MIN, PIECE_TOKENS_MIN, (unsigned long long)total);
    return VC_OK;
}

/* ---- the job ---- */

static void on_progress(void *arg, uint32_t done, uint32_t total)
{
    const calibrate_t *c = arg;
    if (c->show && total > 0)
        fprintf(stderr, "\rcalibrating %s %u %%", c->method, (uint32_t)(100ull * done / total));
}

static void end_line(const calibrate_t *c)
{
    if (c->show)
        fputs("\r\033[K", stderr);
}

static void on_note(void *arg, const char *line)
{
    const calibrate_t *c = arg;
    end_line(c);
    printf("%s: %s\n", c->method, line);
    fflush(stdout);
}

static void make_job(calibrate_t *c)
{
    c->job.replay = node_replay_of(&c->node->replay_ids, c->node->engine); /* nobody else runs passes here */
    c->job.replay.progress = on_progress;
    c->job.replay.arg = c;
    c->job.texts = c->pieces;
    c->job.n_tokens = c->piece_tokens;
    c->job.n_texts = c->n_pieces;
    c->job.note = on_note;
    c->job.note_arg = c;
}

/* ---- one method ---- */

/* The folder of a blob, made where it is missing. */
static vc_status_t prepare_folder(const char *path, vc_err_t *err)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path + 1), slash == NULL ? "." : path);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return vc_err_set(err, VC_ERR_INVALID, "cannot make the directory %s: %s", folder, strerror(errno));
    if (access(folder, W_OK | X_OK) != 0)
        return vc_err_set(err, VC_ERR_INVALID, "cannot write to %s: %s", folder, strerror(errno));
    return VC_OK;
}

static vc_status_t calibrate_one(calibrate_t *c, const char *text, vc_err_t *err)
{
    node_spec_t spec;
    char path[4096];
    void *payload = NULL;
    size_t bytes = 0;
    const node_model_info_t *model = node_engine_info(c->node->engine);
    const uint64_t start = vc_clock_now_us(vc_clock_system());
    vc_status_t status = node_spec_parse(text, &spec, err);
    if (status == VC_OK && spec.ops->calibrate == NULL)
        status = vc_err_set(err, VC_ERR_INVALID, "compressor %s takes no calibration", spec.ops->name);
    if (status == VC_OK)
        status = node_calib_file(c->node, spec.ops->name, path, sizeof(path), err);
    if (status != VC_OK)
        return status;
    c->method = spec.ops->name;
    status = spec.ops->calibrate(&spec, &c->job, &payload, &bytes, err);
    end_line(c);
    if (status == VC_OK) /* what could not be loaded is not written */
        status = spec.ops->calib_check(model, payload, bytes, err);
    if (status == VC_OK)
        status = node_calib_save(path, spec.ops->name, model, payload, bytes, err);
    if (status == VC_OK)
        printf("%s: %s, %zu bytes, %.1f s\n", c->method, path, bytes,
               (double)(vc_clock_now_us(vc_clock_system()) - start) / 1e6);
    vc_free(payload);
    return status;
}

/* Every name of the list before the first pass: a wrong one is told at once. */
static vc_status_t check_methods(const char *list, vc_err_t *err)
{
    node_spec_t spec;
    char one[VC_SPEC_TEXT_MAX];
    if (list[0] == '\0')
        return vc_err_set(err, VC_ERR_INVALID, "no method given: --method all or SPEC[;SPEC]...");
    for (const char *at = list; *at; at += strspn(at, ";")) {
        size_t len = strcspn(at, ";");
        if (len >= sizeof(one))
            return vc_err_set(err, VC_ERR_INVALID, "a compressor spec has at most %zu bytes", sizeof(one) - 1);
        snprintf(one, sizeof(one), "%.*s", (int)len, at);
        vc_status_t status = node_spec_parse(one, &spec, err);
        if (status != VC_OK)
            return status;
        if (spec.ops->calibrate == NULL)
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s takes no calibration", spec.ops->name);
        at += len;
    }
    return VC_OK;
}

/* Where the blob of a method is to lie can be written: said before the passes, which take minutes. */
static vc_status_t check_target(calibrate_t *c, const char *text, vc_err_t *err)
{
    node_spec_t spec;
    char path[4096];
    vc_status_t status = node_spec_parse(text, &spec, err);
    if (status == VC_OK)
        status = node_calib_file(c->node, spec.ops->name, path, sizeof(path), err);
    if (status == VC_OK)
        status = prepare_folder(path, err);
    return status == VC_OK ? node_calib_can_save(path, err) : status;
}

typedef vc_status_t (*method_fn)(calibrate_t *c, const char *text, vc_err_t *err);

static vc_status_t for_methods(calibrate_t *c, method_fn fn, vc_err_t *err)
{
    vc_status_t status = VC_OK;
    if (strcmp(c->o->method, "all") == 0) {
        uint32_t n;
        const node_codec_ops_t *const *codecs = node_codecs(&n);
        for (uint32_t i = 0; status == VC_OK && i < n; i++)
            if (codecs[i]->calibrate != NULL)
                status = fn(c, codecs[i]->name, err);
        return status;
    }
    char one[VC_SPEC_TEXT_MAX];
    for (const char *at = c->o->method; status == VC_OK && *at; at += strspn(at, ";")) {
        size_t len = strcspn(at, ";");
        snprintf(one, sizeof(one), "%.*s", (int)VC_MIN(len, sizeof(one) - 1), at);
        status = fn(c, one, err);
        at += len;
    }
    return status;
}

static void release(calibrate_t *c)
{
    for (uint32_t i = 0; c->ids != NULL && i < c->n_texts; i++)
        vc_free(c->ids[i]);
    vc_free(c->ids);
    vc_free(c->n_ids);
    vc_free(c->pieces);
    vc_free(c->piece_tokens);
    node_close(c->node);
}

static vc_status_t run_calibrate(const calibrate_opts_t *o, const vc_config_t *config, vc_err_t *err)
{
    calibrate_t c = {.o = o, .show = isatty(STDERR_FILENO) == 1};
    node_opts_t nopts;
    node_opts_default(&nopts);
    nopts.model_path = o->model;
    nopts.calib_dir = o->calibration;
    nopts.engine.n_threads = (uint32_t)o->threads;
    nopts.engine.isa = (node_isa_t)o->isa;
    if (vc_config_n_args(config) == 0)
        return vc_err_set(err, VC_ERR_INVALID, "calibrate takes texts: file names, or '-' for standard input");
    vc_status_t status = strcmp(o->method, "all") == 0 ? VC_OK : check_methods(o->method, err);
    if (status == VC_OK)
        status = node_open(&nopts, &c.node, err);
    if (status == VC_OK)
        status = for_methods(&c, check_target, err);
    if (status == VC_OK)
        status = read_texts(&c, config, err);
    if (status == VC_OK)
        status = cut_texts(&c, err);
    if (status == VC_OK) {
        make_job(&c);
        status = for_methods(&c, calibrate_one, err);
    }
    release(&c);
    return status;
}

int node_cmd_calibrate(int argc, char **argv)
{
    calibrate_opts_t o = {0};
    vc_opt_t table[CALIBRATE_N_OPTS];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    int rc = 0;
    fill_table(&o, table);
    if (!node_cmd_begin(table, "TEXT...", false, argc, argv, &config, &rc))
        return rc;
    vc_log_set_level((vc_log_level_t)o.log_level);
    vc_status_t status = run_calibrate(&o, config, &err);
    vc_config_free(config);
    return status == VC_OK ? 0 : node_cmd_fail("calibrate", status, &err);
}
