/* The list of compressors and how it is printed. No state. */
#include "vc/compressors.h"

#include "vc/mem.h"

#define TABLE(a) a, VC_ARRAY_LEN(a)
#define SEED_MAX 18446744073709551615.0
#define FROM_ZERO (-0x1p-1074) /* "above" it is 0, or more */

static const vc_compressor_param_t noise_params[] = {
    {"eps", "0.001", NULL, true, 0, 100, "size of the noise, as a share of each number"},
    {"seed", "1", NULL, false, 0, SEED_MAX, "of the noise"},
};
static const vc_compressor_param_t snapkv_params[] = {
    {"keep", "0.25", NULL, true, 0, 1, "share of the rows that is kept"},
    {"window", "64", NULL, false, 1, 1024, "last tokens, whose queries score the rows"},
    {"kernel", "5", NULL, false, 1, 63, "width of the smoothing, odd"},
    {"pool", "avg", "avg,max", false, 0, 0, "how scores are smoothed"},
};
static const vc_compressor_param_t kivi_params[] = {
    {"bits", "4", "2,4,8", false, 0, 0, "bits per number"},
    {"group", "32", "16,32,64", false, 0, 0, "tokens of a key group, channels of a value group"},
    {"residual", "128", NULL, false, 0, 8192, "last tokens that stay exact, a multiple of group"},
};
static const vc_compressor_param_t rot_params[] = {
    {"bits", "4", "2,3,4,8", false, 0, 0, "bits per number"},
    {"group", "64", "16,32,64,128", false, 0, 0, "channels that share scale and minimum"},
    {"residual", "64", NULL, false, 0, 8192, "last tokens that stay exact"},
    {"fit", "error", "range,error", false, 0, 0, "range of a group: all of it, or of least error"},
    {"center", "yes", "no,yes", false, 0, 0, "keys less the mean of their block"},
};
static const vc_compressor_param_t kvquant_params[] = {
    {"bits", "4", "2,3,4", false, 0, 0, "bits per number"},
    {"outliers", "0.01", NULL, true, FROM_ZERO, 0.1, "share of the numbers that stay exact"},
    {"levels", "calibrated", "calibrated,nf", false, 0, 0, "what codes stand for: learned, or NormalFloat"},
    {"sinks", "1", NULL, false, 0, 64, "first tokens that stay exact"},
};
static const vc_compressor_param_t kvzap_params[] = {
    {"tau", "-4", NULL, true, -100, 100, "least score of a row that is kept"},
    {"keep", NULL, NULL, true, 0, 1, "instead of tau: share of the rows that every head keeps"},
};

static const vc_compressor_param_t expected_attention_params[] = {
    {"keep", "0.5", NULL, true, 0, 1, "share of the rows that is kept"},
    {"sinks", "4", NULL, false, 0, 256, "first tokens, always kept and in no statistics"},
    {"future", "512", NULL, false, 1, 65536, "positions after the text that queries are expected at"},
    {"eps", "0", NULL, true, FROM_ZERO, 1, "added to every attention weight before the value's size"},
    {"vnorm", "1", NULL, false, 0, 1, "1: weights times the size of the value"},
    {"cov", "1", NULL, false, 0, 1, "1: with the covariance of the queries"},
    {"stats", "online", "online,offline", false, 0, 0, "statistics of the text's queries, or calibrated ones"},
    {"budget", "head", "head,layer,global", false, 0, 0, "over what keep is shared out"},
};

static const vc_compressor_param_t kvzip_params[] = {
    {"keep", "0.3", NULL, true, 0, 1, "share of the rows that is kept"},
    {"plus", "yes", "no,yes", false, 0, 0, "attention weights times the size of what the value adds"},
    {"budget", "global", "head,layer,global", false, 0, 0, "over what keep is shared out"},
    {"chunk", "1024", NULL, false, 64, 32768, "tokens that one replay repeats, a multiple of 64"},
};
static const vc_compressor_param_t rotatekv_params[] = {
    {"bits", "4", "2,3,4", false, 0, 0, "bits per number"},
    {"group", "128", "16,32,64,128", false, 0, 0, "channels that share scale and zero point"},
    {"clip", "1", NULL, true, 0, 1, "share of the range that is coded; 0.8 where bits=2 says no other"},
    {"sinks", "20", NULL, false, 0, 256, "largest entries of a layer's input, whose tokens stay exact"},
    {"residual", "64", NULL, false, 0, 8192, "last tokens that stay exact"},
};

static const vc_compressor_t compressors[] = {
    {"none", "all rows, f16", VC_COMPRESSOR_TEST, VC_CALIBRATED_NOT, false, NULL, 0},
    {"noise", "all rows, with noise added", VC_COMPRESSOR_TEST, VC_CALIBRATED_NOT, false, TABLE(noise_params)},
    {"snapkv", "rows that the last queries attend to", VC_COMPRESSOR_DROPS, VC_CALIBRATED_NOT, false,
     TABLE(snapkv_params)},
    {"kivi", "keys by channel and values by token in groups", VC_COMPRESSOR_QUANTISES, VC_CALIBRATED_NOT, false,
     TABLE(kivi_params)},
    {"rot",
     "rotated after RoPE, groups of each token; the default of register, of batch and of generate with a verifier",
     VC_COMPRESSOR_QUANTISES, VC_CALIBRATED_NOT, false, TABLE(rot_params)},
    {"kvquant", "before RoPE, learned levels and thresholds, outliers apart", VC_COMPRESSOR_QUANTISES,
     VC_CALIBRATED_ALWAYS, false, TABLE(kvquant_params)},
    {"kvzap", "rows that a learned map expects to be attended to", VC_COMPRESSOR_DROPS, VC_CALIBRATED_ALWAYS, false,
     TABLE(kvzap_params)},
    {"kvzip", "rows that a replay of the text attends to", VC_COMPRESSOR_DROPS, VC_CALIBRATED_NOT, true,
     TABLE(kvzip_params)},
    {"rotatekv", "keys before RoPE rotated and reordered, groups of each token", VC_COMPRESSOR_QUANTISES,
     VC_CALIBRATED_ALWAYS, false, TABLE(rotatekv_params)},
    {"expected_attention", "rows that queries to come are expected to attend to", VC_COMPRESSOR_DROPS,
     VC_CALIBRATED_OPTIONAL, false, TABLE(expected_attention_params)},
};

const vc_compressor_t *vc_compressors(uint32_t *n_p)
{
    *n_p = (uint32_t)VC_ARRAY_LEN(compressors);
    return compressors;
}

static const char *const kind_names[] = {"drops", "quantises", "test"};
static const char *const calib_names[] = {"no", "optional", "yes"};

static void print_range(FILE *out, const vc_compressor_param_t *p)
{
    char text[80];
    if (p->values != NULL)
        snprintf(text, sizeof(text), "%s", p->values);
    else if (p->is_real && p->lo == FROM_ZERO)
        snprintf(text, sizeof(text), "0 to %g", p->hi);
    else if (p->is_real)
        snprintf(text, sizeof(text), "above %g, up to %g", p->lo, p->hi);
    else if (p->hi >= SEED_MAX)
        snprintf(text, sizeof(text), "from %g", p->lo);
    else
        snprintf(text, sizeof(text), "%g to %g", p->lo, p->hi);
    fprintf(out, "%-22s", text);
}

static void print_text(FILE *out)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(compressors); i++) {
        const vc_compressor_t *c = &compressors[i];
        fprintf(out, "%s: %s (%s%s%s)\n", c->name, c->summary, kind_names[c->kind],
                c->calibrated == VC_CALIBRATED_ALWAYS     ? ", calibrated"
                : c->calibrated == VC_CALIBRATED_OPTIONAL ? ", calibration optional"
                                                          : "",
                c->is_offline ? ", offline" : "");
        for (uint32_t k = 0; k < c->n_params; k++) {
            fprintf(out, "  %-10s %-12s ", c->params[k].name, c->params[k].preset != NULL ? c->params[k].preset : "-");
            print_range(out, &c->params[k]);
            fprintf(out, " %s\n", c->params[k].help);
        }
    }
    fputs(
        "\nA spec is METHOD[:NAME=VALUE[,NAME=VALUE]...]; a method that drops rows may be followed by +rot:..., which "
        "codes\nthe rows that are kept.\n",
        out);
}

/* No name, value or sentence of the tables has a character that JSON escapes. */
static void print_json_param(FILE *out, const vc_compressor_param_t *p)
{
    fprintf(out, "{\"name\":\"%s\"", p->name);
    if (p->preset != NULL)
        fprintf(out, ",\"default\":\"%s\"", p->preset);
    if (p->values != NULL)
        fprintf(out, ",\"values\":\"%s\"", p->values);
    else if (p->is_real && p->lo == FROM_ZERO)
        fputs(",\"from\":0", out);
    else
        fprintf(out, ",\"%s\":%.17g", p->is_real ? "above" : "from", p->lo);
    if (p->values == NULL && p->hi < SEED_MAX)
        fprintf(out, ",\"to\":%.17g", p->hi);
    fprintf(out, ",\"help\":\"%s\"}", p->help);
}

static void print_json(FILE *out)
{
    fputs("{\"compressors\":[", out);
    for (size_t i = 0; i < VC_ARRAY_LEN(compressors); i++) {
        const vc_compressor_t *c = &compressors[i];
        fprintf(out,
                "%s\n {\"name\":\"%s\",\"kind\":\"%s\",\"calibrated\":\"%s\",\"offline\":%s,\"summary\":\"%s\","
                "\"parameters\":[",
                i == 0 ? "" : ",", c->name, kind_names[c->kind], calib_names[c->calibrated],
                c->is_offline ? "true" : "false", c->summary);
        for (uint32_t k = 0; k < c->n_params; k++) {
            fputs(k == 0 ? "" : ",", out);
            print_json_param(out, &c->params[k]);
        }
        fputs("]}", out);
    }
    fputs("\n]}\n", out);
}

void vc_compressors_print(FILE *out, bool json)
{
    if (json)
        print_json(out);
    else
        print_text(out);
}
