/*
 * Which compressors are measured, and what makes a copy of each. Blobs of methods that are calibrated are made once, of
 * texts that every Debian has and that are not measured, and kept in the build folder.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compress/kvzip_int.h"
#include "compress_parts.h"
#include "role/prompt.h"
#include "vc/mem.h"

/* brief: part of --quick. */
static const struct {
    const char *series, *label, *text;
    bool brief;
} wanted[] = {
    {"SnapKV", ".5", "snapkv:keep=0.5", false},
    {"SnapKV", ".25", "snapkv:keep=0.25", true},
    {"SnapKV", ".125", "snapkv:keep=0.125", false},
    {"ExpectedAttention", ".5", "expected_attention:keep=0.5", false},
    {"ExpectedAttention", ".25", "expected_attention:keep=0.25", true},
    {"ExpectedAttention", ".125", "expected_attention:keep=0.125", false},
    {"KVzip", ".5", "kvzip:keep=0.5,plus=no,budget=head", false},
    {"KVzip", ".25", "kvzip:keep=0.25,plus=no,budget=head", true},
    {"KVzip", ".125", "kvzip:keep=0.125,plus=no,budget=head", false},
    {"KVzip+", ".5", "kvzip:keep=0.5,plus=yes,budget=head", false},
    {"KVzip+", ".25", "kvzip:keep=0.25,plus=yes,budget=head", false},
    {"KVzip+", ".125", "kvzip:keep=0.125,plus=yes,budget=head", false},
    {"KVzip+ layers", ".5", "kvzip:keep=0.5,plus=yes,budget=layer", false},
    {"KVzip+ layers", ".25", "kvzip:keep=0.25,plus=yes,budget=layer", true},
    {"KVzip+ layers", ".125", "kvzip:keep=0.125,plus=yes,budget=layer", false},
    {"KVzip+ all", ".5", "kvzip:keep=0.5,plus=yes,budget=global", false},
    {"KVzip+ all", ".25", "kvzip:keep=0.25,plus=yes,budget=global", false},
    {"KVzip+ all", ".125", "kvzip:keep=0.125,plus=yes,budget=global", false},
    {"KVzap", ".5", "kvzap:keep=0.5", false},
    {"KVzap", ".25", "kvzap:keep=0.25", true},
    {"KVzap", ".125", "kvzap:keep=0.125", false},
    {"KVzap tau", "-4.74", "kvzap:tau=-4.74", false}, /* about a half, a quarter, an eighth */
    {"KVzap tau", "-3.34", "kvzap:tau=-3.34", false},
    {"KVzap tau", "-1.91", "kvzap:tau=-1.91", false},
    {"KIVI", "8", "kivi:bits=8", false},
    {"KIVI", "4", "kivi:bits=4", true},
    {"KIVI", "2", "kivi:bits=2", false},
    {"KVQuant", "4", "kvquant:bits=4", true},
    {"KVQuant", "3", "kvquant:bits=3", false},
    {"KVQuant", "2", "kvquant:bits=2", false},
    {"RotateKV", "4", "rotatekv:bits=4", true},
    {"RotateKV, groups of 32", "4", "rotatekv:bits=4,group=32", false},
    {"RotateKV", "3", "rotatekv:bits=3", false},
    {"RotateKV", "2", "rotatekv:bits=2", false},
    {"RotateKV, f16 body", "4", "rotatekv:bits=4", false},
    {"KVQuant, f16 body", "4", "kvquant:bits=4", false},
    {"rot", "8", "rot:bits=8", false},
    {"rot", "4", "rot:bits=4", true},
    {"rot", "3", "rot:bits=3", false},
    {"rot", "2", "rot:bits=2", true},
    {"KVzip+ and rot", ".75 4b", "kvzip:keep=0.75+rot:bits=4", false},
    {"KVzip+ and rot", ".5 4b", "kvzip:keep=0.5+rot:bits=4", true},
    {"KVzip+ and rot", ".25 4b", "kvzip:keep=0.25+rot:bits=4", false},
    {"KVzip+ and rot", ".5 3b", "kvzip:keep=0.5+rot:bits=3", false},
    {"SnapKV and rot", ".5 4b", "snapkv:keep=0.5+rot:bits=4", false},
    {"KVzap and rot", ".5 4b", "kvzap:tau=-4.74+rot:bits=4", false},
    {"KVzap and rot", ".25 4b", "kvzap:tau=-3.34+rot:bits=4", false},
};

/* ---- KVzip: one replay serves every share and budget of a text ---- */

static struct {
    const node_kv_t *kv; /* that the scores are of */
    uint32_t n_blocks, plus, chunk;
    float *scores;
    double seconds;
} replays[2];

void compress_forget_replays(void)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(replays); i++) {
        vc_free(replays[i].scores);
        memset(&replays[i], 0, sizeof replays[i]);
    }
}

static vc_status_t shared_plan(const node_spec_t *spec, const node_compress_in_t *in, void **plan_p, vc_err_t *err)
{
    size_t i = spec->plus ? 1 : 0;
    if (replays[i].kv != in->kv || replays[i].n_blocks != in->n_blocks || replays[i].chunk != spec->chunk) {
        vc_free(replays[i].scores);
        replays[i].scores = NULL;
        double t0 = bench_now_s();
        vc_status_t st = node_kvzip_replay(spec, in, &replays[i].scores, err);
        if (st != VC_OK)
            return st;
        replays[i].seconds = bench_now_s() - t0;
        replays[i].kv = in->kv;
        replays[i].n_blocks = in->n_blocks;
        replays[i].chunk = spec->chunk;
    }
    node_selection_t *s = node_selection_create(spec, in, err);
    if (!s)
        return VC_ERR_NOMEM;
    vc_status_t st =
        node_selection_fill(s, replays[i].scores, NODE_KVZIP_SINK, node_keep_count(spec->keep, s->n_new * NODE_TILE),
                            (node_budget_t)spec->budget, err);
    if (st == VC_OK)
        *plan_p = s;
    else
        node_selection_free(s);
    return st;
}

double compress_replay_s(const node_spec_t *spec) { return replays[spec->plus ? 1 : 0].seconds; }

/* The method's table with the plan above; plans of KVzip are all that differ. */
static void share_replay(node_spec_t *spec)
{
    static node_codec_ops_t shared;
    if (strcmp(spec->ops->name, "kvzip") != 0)
        return;
    shared = *spec->ops;
    shared.plan = shared_plan;
    spec->ops = &shared;
}

/* ---- calibration ---- */

static const char *const calibration_texts[] = {
    "/usr/share/common-licenses/Apache-2.0",
    "/usr/share/common-licenses/GFDL-1.3",
    "/usr/share/common-licenses/MPL-2.0",
    "/usr/share/common-licenses/Artistic",
    "/usr/lib/python3.11/argparse.py",
    "/usr/lib/python3.11/textwrap.py",
    "/usr/include/stdlib.h",
    "/usr/lib/python3.11/statistics.py",
};

/* By the program that ships, which lies beside this one's folder. */
static void calibrate(const char *method, const char *dir)
{
    static char out[16384];
    char self[512], program[600], model[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        bench_fail("cannot find this program's folder");
    self[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(self, '/') = '\0';
    snprintf(program, sizeof program, "%s/inference-node/vericache-node", self);
    snprintf(model, sizeof model, "%s", bench_model());
    char *argv[12 + VC_ARRAY_LEN(calibration_texts)] = {program,
                                                        (char[]){"calibrate"},
                                                        (char[]){"--model"},
                                                        model,
                                                        (char[]){"--method"},
                                                        (char *)(uintptr_t)method,
                                                        (char[]){"--calibration"},
                                                        (char *)(uintptr_t)dir};
    int argc = 8;
    for (size_t i = 0; i < VC_ARRAY_LEN(calibration_texts); i++)
        if (access(calibration_texts[i], R_OK) == 0)
            argv[argc++] = (char *)(uintptr_t)calibration_texts[i];
    bench_note("calibrating %s on %d texts", method, argc - 8);
    if (bench_run(argv, out, sizeof out) != 0)
        bench_fail("%s calibrate --method %s failed: %s", program, method, out);
}

static void bind(compress_run_t *run, node_spec_t *spec)
{
    vc_status_t st = node_bind_spec(run->node, spec, &compress_err);
    if (st != VC_OK) { /* there is none, or it is of another version or model */
        calibrate(spec->ops->name, bench_option("calibration", "build/calibration"));
        OK(node_bind_spec(run->node, spec, &compress_err));
    }
}

/* ---- the list ---- */

static void add(compress_run_t *run, const char *series, const char *label, const char *text)
{
    compress_spec_t *s = &run->specs[run->n_specs];
    if (run->n_specs == COMPRESS_SPECS)
        bench_fail("at most %d compressors", COMPRESS_SPECS);
    if (node_spec_parse(text, &s->spec, &compress_err) != VC_OK) {
        bench_note("left out: %s", compress_err.msg);
        return;
    }
    bind(run, &s->spec);
    share_replay(&s->spec);
    s->series = series;
    s->label = label;
    bool as_f16 = strstr(series, "f16") != NULL || strcmp(bench_option("load", "codes"), "pages") == 0;
    s->load = as_f16 ? NODE_LOAD_PAGES : NODE_LOAD_CODES;
    snprintf(s->asked, sizeof s->asked, "%s%s", text, as_f16 ? " (f16 body)" : "");
    run->n_specs++;
}

void compress_specs_load(compress_run_t *run)
{
    static char names[COMPRESS_SPECS][VC_SPEC_TEXT_MAX];
    const char *list = bench_option("compressors", "");
    uint32_t n = 0;
    for (; *list; list += *list == ';') {
        size_t length = strcspn(list, ";");
        if (length >= VC_SPEC_TEXT_MAX || n == COMPRESS_SPECS)
            bench_fail("--compressors takes at most %d specs of %d bytes", COMPRESS_SPECS, VC_SPEC_TEXT_MAX - 1);
        if (length) {
            snprintf(names[n], VC_SPEC_TEXT_MAX, "%.*s", (int)length, list);
            add(run, "asked for", names[n], names[n]);
            n++;
        }
        list += length;
    }
    for (size_t i = 0; i < VC_ARRAY_LEN(wanted) && n == 0; i++)
        if (wanted[i].brief || !bench_quick())
            add(run, wanted[i].series, wanted[i].label, wanted[i].text);
    if (!run->n_specs)
        bench_fail("no compressor to measure");
}
