/* Option values from text and back. No state; any thread. Numbers are exact: no rounding, no silent wrap. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config_int.h"
#include "vc/mem.h"

typedef struct {
    const char *suffix;
    uint64_t factor;
} unit_t;

static const unit_t byte_units[] = {
    {"", 1},      {"B", 1},        {"KiB", 1ull << 10}, {"MiB", 1ull << 20},   {"GiB", 1ull << 30}, {"TiB", 1ull << 40},
    {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},  {"TB", 1000000000000},
};
static const unit_t rate_units[] = {
    {"", 1}, {"bit", 1}, {"kbit", 1000}, {"mbit", 1000000}, {"gbit", 1000000000}, {"tbit", 1000000000000},
};

/* Decimal digits only; *text_p is left after them. False when there is none or the value does not fit. */
static bool scan_u64(const char **text_p, uint64_t *value_p)
{
    const char *s = *text_p;
    uint64_t value = 0;
    if (*s < '0' || *s > '9')
        return false;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value))
            return false;
    *text_p = s;
    *value_p = value;
    return true;
}

/* Number, optional fraction of at most six digits, unit in any case. The fraction is cut to a whole number. */
static vc_status_t parse_with_unit(const char *text, const unit_t *units, size_t n_units, uint64_t *value_p)
{
    uint64_t whole, fraction = 0, scale = 1;
    if (!scan_u64(&text, &whole))
        return VC_ERR_INVALID;
    if (*text == '.') {
        const char *digits = ++text;
        if (!scan_u64(&text, &fraction) || text - digits > 6)
            return VC_ERR_INVALID;
        for (; digits < text; digits++)
            scale *= 10;
    }
    for (size_t i = 0; i < n_units; i++) {
        uint64_t value;
        if (strcasecmp(text, units[i].suffix) != 0)
            continue;
        /* fraction < 10^6 and factor <= 2^40: the second product cannot overflow */
        if (__builtin_mul_overflow(whole, units[i].factor, &value) ||
            __builtin_add_overflow(value, fraction * units[i].factor / scale, &value))
            return VC_ERR_RANGE;
        *value_p = value;
        return VC_OK;
    }
    return VC_ERR_INVALID;
}

vc_status_t vc_parse_bytes(const char *text, uint64_t *bytes_p)
{
    return parse_with_unit(text, byte_units, VC_ARRAY_LEN(byte_units), bytes_p);
}

vc_status_t vc_parse_rate(const char *text, uint64_t *bits_per_s_p)
{
    return parse_with_unit(text, rate_units, VC_ARRAY_LEN(rate_units), bits_per_s_p);
}

vc_bytes_text_t vc_bytes_text(uint64_t bytes)
{
    vc_bytes_text_t t;
    size_t unit = 2; /* KiB */
    while (unit < 5 && bytes >= byte_units[unit + 1].factor)
        unit++;
    if (bytes < byte_units[unit].factor)
        snprintf(t.text, sizeof t.text, "%llu", (unsigned long long)bytes);
    else
        snprintf(t.text, sizeof t.text, "%.*g%s", bytes / byte_units[unit].factor < 1000 ? 4 : 6,
                 (double)bytes / (double)byte_units[unit].factor, byte_units[unit].suffix);
    return t;
}

vc_bytes_text_t vc_bytes_text_at_least(uint64_t bytes)
{
    vc_bytes_text_t t;
    const unit_t *unit = &byte_units[bytes < byte_units[3].factor ? 2 : 3];
    snprintf(t.text, sizeof t.text, "%llu%s", (unsigned long long)(bytes / unit->factor + (bytes % unit->factor != 0)),
             unit->suffix);
    return t;
}

static vc_status_t check_bounds(const vc_opt_t *opt, double value, const char *text, vc_err_t *err)
{
    bool no_limit = opt->max == 0 && opt->min >= 0;
    if (no_limit && value < opt->min)
        return vc_err_set(err, VC_ERR_RANGE, "'%s' is below %.15g", text, opt->min);
    if (!no_limit && (value < opt->min || value > opt->max))
        return vc_err_set(err, VC_ERR_RANGE, "'%s' is outside %.15g to %.15g", text, opt->min, opt->max);
    return VC_OK;
}

static vc_status_t set_number(const vc_opt_t *opt, const char *text, vc_err_t *err)
{
    uint64_t value = 0;
    vc_status_t st;
    const char *what, *end = text;
    if (opt->type == VC_OPT_BYTES) {
        st = vc_parse_bytes(text, &value);
        what = "a size such as 4096, 64KiB or 10GB";
    } else if (opt->type == VC_OPT_RATE) {
        st = vc_parse_rate(text, &value);
        what = "a rate such as 100mbit or 2.5gbit";
    } else {
        st = scan_u64(&end, &value) && *end == '\0' ? VC_OK : VC_ERR_INVALID;
        what = "a whole number";
    }
    if (st != VC_OK)
        return vc_err_set(err, st, "'%s' is not %s", text, what);
    st = check_bounds(opt, (double)value, text, err);
    if (st == VC_OK)
        *(uint64_t *)opt->value = value;
    return st;
}

static vc_status_t set_double(const vc_opt_t *opt, const char *text, vc_err_t *err)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !isfinite(value))
        return vc_err_set(err, VC_ERR_INVALID, "'%s' is not a number", text);
    vc_status_t st = check_bounds(opt, value, text, err);
    if (st == VC_OK)
        *(double *)opt->value = value;
    return st;
}

static vc_status_t set_bool(const vc_opt_t *opt, const char *text, vc_err_t *err)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (size_t i = 0; i < VC_ARRAY_LEN(words); i++)
        if (strcasecmp(text, words[i]) == 0) {
            *(bool *)opt->value = i % 2;
            return VC_OK;
        }
    return vc_err_set(err, VC_ERR_INVALID, "'%s' is neither true nor false", text);
}

/* The nth choice of "a|b|c"; *len_p 0 when there is none. */
static const char *choice_at(const char *choices, int n, size_t *len_p)
{
    const char *at = choices;
    for (; n > 0 && at != NULL; n--) {
        at = strchr(at, '|');
        at = at == NULL ? NULL : at + 1;
    }
    *len_p = at == NULL ? 0 : strcspn(at, "|");
    return at;
}

static vc_status_t set_enum(const vc_opt_t *opt, const char *text, vc_err_t *err)
{
    size_t len;
    for (int i = 0;; i++) {
        const char *choice = choice_at(opt->choices, i, &len);
        if (choice == NULL)
            return vc_err_set(err, VC_ERR_INVALID, "'%s' is none of %s", text, opt->choices);
        if (strlen(text) == len && memcmp(choice, text, len) == 0) {
            *(int *)opt->value = i;
            return VC_OK;
        }
    }
}

static vc_status_t set_string(const vc_opt_t *opt, const char *text, char **owned, vc_err_t *err)
{
    for (const char *c = text; *c != '\0'; c++) /* one line in the config file and in the log */
        if ((unsigned char)*c < 0x20 && !(opt->type == VC_OPT_TEXT && (*c == '\n' || *c == '\t')))
            return vc_err_set(err, VC_ERR_INVALID, "the value holds a control character");
    char *copy = vc_strdup(text);
    if (copy == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory");
    vc_free(*owned);
    *owned = copy;
    *(const char **)opt->value = copy;
    return VC_OK;
}

vc_status_t config_value_set(const vc_opt_t *opt, const char *text, char **owned, vc_err_t *err)
{
    if (strnlen(text, CONFIG_TEXT_MAX) == CONFIG_TEXT_MAX)
        return vc_err_set(err, VC_ERR_RANGE, "the value is longer than %d bytes", CONFIG_TEXT_MAX - 1);
    switch (opt->type) {
    case VC_OPT_BOOL: return set_bool(opt, text, err);
    case VC_OPT_U64:
    case VC_OPT_BYTES:
    case VC_OPT_RATE: return set_number(opt, text, err);
    case VC_OPT_DOUBLE: return set_double(opt, text, err);
    case VC_OPT_STRING:
    case VC_OPT_TEXT: return set_string(opt, text, owned, err);
    case VC_OPT_ENUM: return set_enum(opt, text, err);
    }
    return vc_err_set(err, VC_ERR_INTERNAL, "option %s has an unknown type", opt->name);
}

/* In the largest unit that divides the value, units from first to last. */
static void unit_text(uint64_t value, const unit_t *units, size_t first, size_t last, char *text, size_t cap)
{
    for (size_t i = last; value != 0 && i >= first; i--)
        if (value % units[i].factor == 0) {
            snprintf(text, cap, "%llu%s", (unsigned long long)(value / units[i].factor), units[i].suffix);
            return;
        }
    snprintf(text, cap, "%llu", (unsigned long long)value);
}

void config_value_text(const vc_opt_t *opt, char *text, size_t cap)
{
    size_t len;
    const char *choice;
    switch (opt->type) {
    case VC_OPT_BOOL: snprintf(text, cap, "%s", *(const bool *)opt->value ? "true" : "false"); return;
    case VC_OPT_U64: snprintf(text, cap, "%llu", (unsigned long long)*(const uint64_t *)opt->value); return;
    case VC_OPT_BYTES: unit_text(*(const uint64_t *)opt->value, byte_units, 2, 5, text, cap); return;
    case VC_OPT_RATE: unit_text(*(const uint64_t *)opt->value, rate_units, 2, 5, text, cap); return;
    case VC_OPT_DOUBLE: snprintf(text, cap, "%.17g", *(const double *)opt->value); return;
    case VC_OPT_STRING:
    case VC_OPT_TEXT: snprintf(text, cap, "%s", *(const char *const *)opt->value); return;
    case VC_OPT_ENUM:
        choice = choice_at(opt->choices, *(const int *)opt->value, &len);
        snprintf(text, cap, "%.*s", (int)len, choice != NULL ? choice : "");
        return;
    }
}
