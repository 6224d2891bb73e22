/*
 * Compressor specs as text: method[:name=value[,name=value]*], or DROPPER+rot[:bits=..,group=..] where the rows that a
 * dropper keeps are quantised.
 *
 * Two texts that mean the same compressor have one canonical text: every parameter, in the order of the method's table,
 * numbers in their shortest form that reads back as the same double. The spec id is a hash of it, so this file decides
 * which stored copies are found again: changing how a number is printed loses all of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/select.h"
#include "vc/mem.h"

static const node_codec_ops_t *const codecs[] = {
    &node_codec_none,    &node_codec_noise, &node_codec_snapkv, &node_codec_kivi,     &node_codec_rot,
    &node_codec_kvquant, &node_codec_kvzap, &node_codec_kvzip,  &node_codec_rotatekv, &node_codec_expected_attention};

const node_codec_ops_t *const *node_codecs(uint32_t *n_p)
{
    *n_p = (uint32_t)VC_ARRAY_LEN(codecs);
    return codecs;
}

/* Shortest digits that read back as value: plain notation from 1e-4 to below 1e15, else d.ddde-N without padding. */
static void print_real(double value, char *out, size_t cap)
{
    char digits[40];
    int precision = 0;
    do
        snprintf(digits, sizeof(digits), "%.*e", precision, value);
    while (strtod(digits, NULL) != value && ++precision < 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 15) {
        snprintf(out, cap, "%.*f", precision > exponent ? precision - exponent : 0, value);
        return;
    }
    *e = '\0';
    snprintf(out, cap, "%se%d", digits, exponent);
}

/* Appends; the text stays terminated. False when it is full. */
static bool append(char *text, const char *add)
{
    size_t used = strlen(text), n = strlen(add);
    if (used + n >= VC_SPEC_TEXT_MAX)
        return false;
    memcpy(text + used, add, n + 1);
    return true;
}

static void *field_of(node_spec_t *spec, const node_param_t *p) { return (char *)spec + p->offset; }

static void store(node_spec_t *spec, const node_param_t *p, double real, uint64_t whole)
{
    if (p->kind == NODE_PARAM_REAL)
        memcpy(field_of(spec, p), &real, sizeof(real));
    else if (p->kind == NODE_PARAM_UINT64)
        memcpy(field_of(spec, p), &whole, sizeof(whole));
    else
        memcpy(field_of(spec, p), &(uint32_t){(uint32_t)whole}, sizeof(uint32_t));
}

static bool parse_whole(const char *text, uint64_t *value_p)
{
    uint64_t v = 0;
    if (*text == '\0')
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*text - '0'), &v))
            return false;
    }
    *value_p = v;
    return true;
}

/* Digits, one point, one exponent: strtod alone would also take hexadecimal, "inf", "nan" and leading blanks. */
static bool parse_real(const char *text, double *value_p)
{
    if (*text == '\0' || strspn(text, "0123456789.eE+-") != strlen(text))
        return false;
    char *end;
    *value_p = strtod(text, &end);
    return *end == '\0' && isfinite(*value_p);
}

/* Index of the word in "a,b,c", or -1. */
static int word_index(const char *list, const char *word)
{
    size_t n = strlen(word);
    int index = 0;
    for (const char *at = list; n > 0; index++) {
        size_t len = strcspn(at, ",");
        if (len == n && memcmp(at, word, n) == 0)
            return index;
        if (at[len] == '\0')
            break;
        at += len + 1;
    }
    return -1;
}

static bool in_list(const char *list, uint64_t value)
{
    char word[24];
    snprintf(word, sizeof(word), "%llu", (unsigned long long)value);
    return word_index(list, word) >= 0;
}

static vc_status_t set_value(node_spec_t *spec, const char *method, const node_param_t *p, const char *text,
                             vc_err_t *err)
{
    double real = 0;
    uint64_t whole = 0;
    switch (p->kind) {
    case NODE_PARAM_REAL:
        if (!parse_real(text, &real) || !(real > p->lo && real <= p->hi))
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s=%s is not a number %s %g and at most %g", method,
                              p->name, text, p->lo == NODE_PARAM_FROM_ZERO ? "from" : "above",
                              p->lo == NODE_PARAM_FROM_ZERO ? 0.0 : p->lo, p->hi);
        real += 0.0; /* never -0, which has another text */
        break;
    case NODE_PARAM_UINT64:
        if (!parse_whole(text, &whole))
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s=%s is not a whole number below 2^64", method,
                              p->name, text);
        break;
    case NODE_PARAM_UINT:
        if (!parse_whole(text, &whole) ||
            (p->list ? !in_list(p->list, whole) : (double)whole < p->lo || (double)whole > p->hi)) {
            if (p->list)
                return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s=%s is not one of %s", method, p->name, text,
                                  p->list);
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s=%s is not a whole number from %g to %g", method,
                              p->name, text, p->lo, p->hi);
        }
        break;
    case NODE_PARAM_CHOICE: {
        int index = word_index(p->list, text);
        if (index < 0)
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s=%s is not one of %s", method, p->name, text,
                              p->list);
        whole = (uint64_t)index;
        break;
    }
    }
    store(spec, p, real, whole);
    return VC_OK;
}

static bool print_value(node_spec_t *spec, const node_param_t *p, bool first)
{
    char value[48];
    uint32_t u32 = 0;
    if (p->kind == NODE_PARAM_REAL) {
        double real;
        memcpy(&real, field_of(spec, p), sizeof(real));
        print_real(real, value, sizeof(value));
    } else if (p->kind == NODE_PARAM_UINT64) {
        uint64_t u64;
        memcpy(&u64, field_of(spec, p), sizeof(u64));
        snprintf(value, sizeof(value), "%llu", (unsigned long long)u64);
    } else if (p->kind == NODE_PARAM_UINT) {
        memcpy(&u32, field_of(spec, p), sizeof(u32));
        snprintf(value, sizeof(value), "%u", u32);
    } else {
        memcpy(&u32, field_of(spec, p), sizeof(u32));
        const char *at = p->list;
        for (uint32_t i = 0; i < u32; i++)
            at += strcspn(at, ",") + 1;
        snprintf(value, sizeof(value), "%.*s", (int)strcspn(at, ","), at);
    }
    return append(spec->text, first ? ":" : ",") && append(spec->text, p->name) && append(spec->text, "=") &&
           append(spec->text, value);
}

static vc_status_t unknown_param(const char *method, const char *name, const node_param_t *table, uint32_t n_table,
                                 vc_err_t *err)
{
    char list[200] = "";
    for (uint32_t i = 0; i < n_table; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", table[i].name);
    }
    if (n_table == 0)
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s takes no parameters, not %s", method, name);
    return vc_err_set(err, VC_ERR_INVALID, "compressor %s has no parameter %s; there are: %s", method, name, list);
}

/* One "name=value" of the text; seen has one bit per table entry. */
static vc_status_t parse_pair(node_spec_t *spec, const char *method, char *pair, const node_param_t *table,
                              uint32_t n_table, uint32_t *seen, vc_err_t *err)
{
    char *eq = strchr(pair, '=');
    if (eq == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s: \"%s\" is not name=value", method, pair);
    *eq = '\0';
    for (uint32_t i = 0; i < n_table; i++) {
        if (strcmp(table[i].name, pair) != 0)
            continue;
        if (*seen & 1u << i)
            return vc_err_set(err, VC_ERR_INVALID, "compressor %s: %s is given twice", method, pair);
        *seen |= 1u << i;
        return set_value(spec, method, &table[i], eq + 1, err);
    }
    return unknown_param(method, pair, table, n_table, err);
}

vc_status_t node_params_parse(node_spec_t *spec, const char *method, const char *params, const node_param_t *table,
                              uint32_t n_table, vc_err_t *err)
{
    for (uint32_t i = 0; i < n_table; i++)
        store(spec, &table[i], table[i].preset, table[i].preset > 0 ? (uint64_t)table[i].preset : 0);
    char buf[VC_SPEC_TEXT_MAX] = "";
    if (params)
        snprintf(buf, sizeof(buf), "%s", params); /* node_spec_parse has bounded the whole text */
    uint32_t seen = 0;
    for (char *at = params ? buf : NULL; at != NULL;) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = '\0';
        vc_status_t st = parse_pair(spec, method, at, table, n_table, &seen, err);
        if (st != VC_OK)
            return st;
        at = comma ? comma + 1 : NULL;
    }
    spec->text[0] = '\0';
    bool fits = append(spec->text, method);
    for (uint32_t i = 0; i < n_table && fits; i++)
        fits = print_value(spec, &table[i], i == 0);
    if (!fits)
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s: the canonical text is longer than %d bytes", method,
                          VC_SPEC_TEXT_MAX - 1);
    return VC_OK;
}

static vc_status_t unknown_method(const char *name, size_t n, vc_err_t *err)
{
    char list[200] = "";
    for (size_t i = 0; i < VC_ARRAY_LEN(codecs); i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", codecs[i]->name);
    }
    return vc_err_set(err, VC_ERR_INVALID, "unknown compressor \"%.*s\"; there are: %s", (int)n, name, list);
}

static const node_codec_ops_t *find_method(const char *name, size_t n)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(codecs); i++)
        if (strlen(codecs[i]->name) == n && memcmp(codecs[i]->name, name, n) == 0)
            return codecs[i];
    return NULL;
}

/* One method of the text, params NULL where it has none. */
static vc_status_t parse_method(const char *text, node_spec_t *spec, vc_err_t *err)
{
    const size_t n = strcspn(text, ":");
    spec->ops = find_method(text, n);
    if (spec->ops == NULL)
        return unknown_method(text, n, err);
    return spec->ops->parse(spec, text[n] == ':' ? text + n + 1 : NULL, err);
}

/* ---- "+rot": how the rows that a dropper keeps are written ---- */

static const node_param_t row_params[] = {
    {"bits", NODE_PARAM_UINT, offsetof(node_spec_t, row_bits), 0, 0, 4, "2,3,4,8"},
    {"group", NODE_PARAM_UINT, offsetof(node_spec_t, row_group), 0, 0, 64, "16,32,64,128"},
    {"fit", NODE_PARAM_CHOICE, offsetof(node_spec_t, row_fit), 0, 0, 1, "range,error"},
};

/* What may follow "+", said before anything is parsed: only rot codes each row by itself. */
static vc_status_t check_rows(const node_spec_t *spec, const char *rows, vc_err_t *err)
{
    const size_t n = strcspn(rows, ":+");
    const node_codec_ops_t *ops = find_method(rows, n);
    const char *first = spec->ops->name;
    if (ops == NULL)
        return unknown_method(rows, n, err);
    if (rows[n] == '+' || strchr(rows + n, '+'))
        return vc_err_set(err, VC_ERR_INVALID, "a compressor is one dropper and one \"+rot\" at most");
    if (spec->ops->encode != node_selection_encode)
        return vc_err_set(err, VC_ERR_INVALID,
                          "compressor %s chooses no rows: \"+%s\" belongs behind a method that drops tokens", first,
                          ops->name);
    if (ops->kind == VC_KVREC_DROPPER)
        return vc_err_set(err, VC_ERR_INVALID,
                          "%s+%s: two methods that drop tokens do not combine; only rot may follow", first, ops->name);
    if (strcmp(ops->name, "kivi") == 0)
        return vc_err_set(err, VC_ERR_INVALID,
                          "%s+kivi: the key groups of kivi run along the tokens and need all of them; use +rot", first);
    if (strcmp(ops->name, "rot") != 0)
        return vc_err_set(err, VC_ERR_INVALID, "%s+%s: only rot codes each row by itself without calibration; use +rot",
                          first, ops->name);
    return VC_OK;
}

static vc_status_t parse_rows(node_spec_t *spec, const char *rows, vc_err_t *err)
{
    vc_status_t st = check_rows(spec, rows, err);
    if (st != VC_OK)
        return st;
    char dropper[VC_SPEC_TEXT_MAX], coded[VC_SPEC_TEXT_MAX];
    memcpy(dropper, spec->text, sizeof(dropper));
    const char *params = strchr(rows, ':');
    if (params && (strstr(params, ":residual=") || strstr(params, ",residual=")))
        return vc_err_set(err, VC_ERR_INVALID,
                          "%s+rot has no parameter residual: the window of %s says which blocks stay exact",
                          spec->ops->name, spec->ops->name);
    if (params && (strstr(params, ":center=") || strstr(params, ",center=")))
        return vc_err_set(err, VC_ERR_INVALID,
                          "%s+rot has no parameter center: a mean belongs to a whole block, and the rows that %s keeps "
                          "are packed across blocks",
                          spec->ops->name, spec->ops->name);
    st = node_params_parse(spec, "rot", params ? params + 1 : NULL, row_params, VC_ARRAY_LEN(row_params), err);
    if (st != VC_OK)
        return st;
    memcpy(coded, spec->text, sizeof(coded));
    memcpy(spec->text, dropper, sizeof(dropper));
    if (!append(spec->text, "+") || !append(spec->text, coded))
        return vc_err_set(err, VC_ERR_INVALID, "compressor %s+rot: the canonical text is longer than %d bytes",
                          spec->ops->name, VC_SPEC_TEXT_MAX - 1);
    return VC_OK;
}

vc_status_t node_spec_parse(const char *text, node_spec_t *spec_p, vc_err_t *err)
{
    if (text == NULL || strlen(text) >= VC_SPEC_TEXT_MAX)
        return vc_err_set(err, VC_ERR_INVALID, "a compressor spec has at most %d bytes", VC_SPEC_TEXT_MAX - 1);
    node_spec_t spec;
    char first[VC_SPEC_TEXT_MAX];
    memset(&spec, 0, sizeof(spec)); /* padding too: specs are compared and copied whole */
    snprintf(first, sizeof(first), "%s", text);
    char *plus = strchr(first, '+');
    while (plus && plus[1] >= '0' && plus[1] <= '9') /* a number's sign */
        plus = strchr(plus + 1, '+');
    if (plus)
        *plus++ = '\0';
    vc_status_t st = parse_method(first, &spec, err);
    if (st == VC_OK && plus)
        st = parse_rows(&spec, plus, err);
    if (st != VC_OK)
        return st;
    vc_spec_id(spec.text, NULL, &spec.id);
    *spec_p = spec;
    return VC_OK;
}

double node_spec_bits_per_element(const node_spec_t *spec, const node_model_info_t *model)
{
    return spec->ops->model_bits ? spec->ops->model_bits(spec, model) : spec->ops->bits(spec, model->head_dim);
}
