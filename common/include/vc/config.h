/*
 * One option table per program. Precedence: flag, environment VERICACHE_<NAME>, file (--config), default.
 * Unknown names, missing values and numbers out of bounds are errors that name the option.
 */
#ifndef VC_CONFIG_H
#define VC_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "vc/status.h"

typedef enum {
    VC_OPT_BOOL,   /* bool *;   --name, --name=true|false, --no-name */
    VC_OPT_U64,    /* uint64_t *; decimal, bounds in min/max */
    VC_OPT_BYTES,  /* uint64_t *; 4096, 64KiB, 1.5GiB, 10GB (SI or IEC suffix) */
    VC_OPT_RATE,   /* uint64_t * bits per second; 0 = unlimited; 100mbit, 1gbit, 2.5gbit */
    VC_OPT_DOUBLE, /* double * */
    VC_OPT_STRING, /* const char **; points into the config, valid until vc_config_free */
    VC_OPT_TEXT,   /* the same, and may have line ends and tabs: \n and \t in double quotes in a file */
    VC_OPT_ENUM    /* int *; choices "a|b|c" -> 0, 1, 2 */
} vc_opt_type_t;

/* A table ends with an entry whose name is NULL. "config", "print-config", "help" and "version" are built in. */
typedef struct vc_opt {
    const char *name; /* "data-dir": flag --data-dir, environment VERICACHE_DATA_DIR */
    vc_opt_type_t type;
    void *value;       /* written with the default first */
    const char *deflt; /* text form of the default; NULL: empty string or zero */
    double min, max;   /* for numbers; max 0 with min >= 0: no upper bound */
    const char *choices;
    const char *help; /* one line */
} vc_opt_t;

typedef struct vc_config vc_config_t;

/*
 * Parses argv[1..] over environment and file. Positional arguments are collected in order and may stand anywhere; "--"
 * ends the options. --name VALUE and --name=VALUE are the same; a value that starts with "--" needs the second form;
 * the last of several wins. --config FILE, or VERICACHE_CONFIG, names the file. --help (-h) and --version are left to
 * the caller, who sees them as vc_config_wants_help() and _wants_version() with every value at its default;
 * --print-config likewise, with the effective values. environ_list: NULL-terminated "K=V" (pass environ), or NULL for
 * none; VERICACHE_MODEL and VERICACHE_CACHE are passed over where they are no options. argv must outlive the config.
 * *config_p is written only on success; on failure err says which option of which source is wrong.
 */
vc_status_t vc_config_parse(const vc_opt_t *table, int argc, char **argv, char **environ_list, vc_config_t **config_p,
                            vc_err_t *err);
bool vc_config_wants_help(const vc_config_t *config);
bool vc_config_wants_version(const vc_config_t *config);
bool vc_config_wants_print(const vc_config_t *config);
int vc_config_n_args(const vc_config_t *config);
const char *vc_config_arg(const vc_config_t *config, int i); /* NULL when there is none */
void vc_config_print_help(const vc_opt_t *table, FILE *out);
void vc_config_print_values(const vc_opt_t *table, const vc_config_t *config, FILE *out); /* name = value  # source */
/* The same for programs: every option in the order of the table; source is "flag", "environment", "file" or "default".
 */
typedef void (*vc_config_fn)(void *arg, const char *name, const char *value, const char *source);
void vc_config_each(const vc_opt_t *table, const vc_config_t *config, vc_config_fn fn, void *arg);
/* String options that were set point at their defaults again. NULL is fine. */
void vc_config_free(vc_config_t *config);

/* The parsers behind BYTES and RATE, for specs and tests. INVALID for other text, RANGE when the unit takes it beyond
 * 64 bits. At most six digits follow the point; what is less than one byte or bit is dropped. */
vc_status_t vc_parse_bytes(const char *text, uint64_t *bytes_p);
vc_status_t vc_parse_rate(const char *text, uint64_t *bits_per_s_p);

/* Sizes in sentences about options, as BYTES reads them. */
typedef struct vc_bytes_text {
    char text[32];
} vc_bytes_text_t;
vc_bytes_text_t vc_bytes_text(uint64_t bytes);          /* "1.25MiB": to four digits */
vc_bytes_text_t vc_bytes_text_at_least(uint64_t bytes); /* "42MiB": whole MiB, or KiB below one MiB, rounded up */

#endif
