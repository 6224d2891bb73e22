/* Shared by the files of the option table: config.c (sources), config_value.c (text and values), config_print.c. */
#ifndef CONFIG_INT_H
#define CONFIG_INT_H

#include "vc/config.h"

typedef enum { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENV, CONFIG_FLAG } config_source_t;

/* A flag as it stood on the command line; applied after file and environment. */
typedef struct config_flag {
    size_t opt;
    const char *text; /* points into argv, or "true" / "false" */
} config_flag_t;

struct vc_config {
    const vc_opt_t *table;
    size_t n_opts;
    config_source_t *sources; /* per option: who had the last word */
    char **owned;             /* per option: the copy behind a string value, or NULL */
    config_flag_t *flags;
    int n_flags;
    const char **args;
    int n_args;
    const char *file; /* --config or VERICACHE_CONFIG, or NULL */
    bool wants_help, wants_version, wants_print;
};

/* Longest value of any option. */
#define CONFIG_TEXT_MAX 4096
#define CONFIG_ENV_PREFIX "VERICACHE_"

/* Parses text into *opt->value; a string is copied into *owned (its old copy is freed). The sentence names no source:
 * the caller puts "--name" or "file:3" before it. Nothing changes on failure. */
vc_status_t config_value_set(const vc_opt_t *opt, const char *text, char **owned, vc_err_t *err);
/* The text form of the value there is, such that config_value_set gives the same value. */
void config_value_text(const vc_opt_t *opt, char *text, size_t cap);
/* "data-dir" -> "VERICACHE_DATA_DIR". */
void config_env_name(const char *name, char *env, size_t cap);
/* Applies every "name = value" line of the file. */
vc_status_t config_file_apply(vc_config_t *config, const char *path, vc_err_t *err);
/* Index of the option, or n_opts. */
size_t config_find(const vc_config_t *config, const char *name, size_t name_len);

#endif
