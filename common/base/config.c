/*
 * Options from command line, environment, file and table, in this order of precedence. The command line is read first
 * (it may name the file) and applied last. One thread, at program start; the only state is the caller's vc_config_t.
 */
#include "vc/config.h"

#include <ctype.h>
#include <string.h>

#include "config_int.h"
#include "vc/mem.h"

/* Variables of the build scripts, the tests and vericachectl that share the prefix; a program without such an option
 * passes them over. */
static const char *const foreign_names[] = {"VERICACHE_MODEL", "VERICACHE_CACHE", "VERICACHE_SERVER"};

size_t config_find(const vc_config_t *config, const char *name, size_t name_len)
{
    size_t i = 0;
    while (i < config->n_opts &&
           (strlen(config->table[i].name) != name_len || memcmp(config->table[i].name, name, name_len) != 0))
        i++;
    return i;
}

void config_env_name(const char *name, char *env, size_t cap)
{
    size_t n = 0;
    for (const char *p = CONFIG_ENV_PREFIX; *p != '\0' && n + 1 < cap; p++)
        env[n++] = *p;
    for (; *name != '\0' && n + 1 < cap; name++)
        env[n++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    env[n] = '\0';
}

static const char *default_text(const vc_opt_t *opt)
{
    if (opt->deflt != NULL)
        return opt->deflt;
    return opt->type == VC_OPT_BOOL ? "false" : "0";
}

/* Writes every default. Strings and choices need no parsing when the table gives none. */
static vc_status_t apply_defaults(vc_config_t *config, vc_err_t *err)
{
    for (size_t i = 0; i < config->n_opts; i++) {
        const vc_opt_t *opt = &config->table[i];
        vc_status_t st = VC_OK;
        if (opt->type == VC_OPT_STRING || opt->type == VC_OPT_TEXT)
            *(const char **)opt->value = opt->deflt != NULL ? opt->deflt : "";
        else if (opt->type == VC_OPT_ENUM && opt->deflt == NULL)
            *(int *)opt->value = 0;
        else
            st = config_value_set(opt, default_text(opt), &config->owned[i], err);
        if (st != VC_OK) {
            vc_err_prefix(err, "default of --%s", opt->name);
            return st;
        }
    }
    return VC_OK;
}

static void add_flag(vc_config_t *config, size_t opt, const char *text)
{
    config->flags[config->n_flags++] = (config_flag_t){opt, text};
}

/* The value of "--name=value" or "--name value"; NULL when there is none. Moves *i past a separate value. */
static const char *flag_value(const char *equals, int argc, char **argv, int *i)
{
    if (equals != NULL)
        return equals + 1;
    if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0)
        return NULL;
    return argv[++*i];
}

/* One "--..." argument that is no built-in. */
static vc_status_t read_flag(vc_config_t *config, int argc, char **argv, int *i, vc_err_t *err)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
    size_t opt = config_find(config, name, len);
    if (opt < config->n_opts && config->table[opt].type == VC_OPT_BOOL) {
        add_flag(config, opt, equals != NULL ? equals + 1 : "true");
        return VC_OK;
    }
    if (opt == config->n_opts && equals == NULL && len > 3 && memcmp(name, "no-", 3) == 0) {
        opt = config_find(config, name + 3, len - 3);
        if (opt < config->n_opts && config->table[opt].type == VC_OPT_BOOL) {
            add_flag(config, opt, "false");
            return VC_OK;
        }
        opt = config->n_opts;
    }
    bool is_file = len == 6 && memcmp(name, "config", 6) == 0;
    if (opt == config->n_opts && !is_file)
        return vc_err_set(err, VC_ERR_INVALID, "unknown option --%.*s", (int)VC_MIN(len, (size_t)100), name);
    const char *value = flag_value(equals, argc, argv, i);
    if (value == NULL || (is_file && *value == '\0'))
        return vc_err_set(err, VC_ERR_INVALID, "option --%.*s needs a value", (int)len, name);
    if (opt < config->n_opts)
        add_flag(config, opt, value);
    else
        config->file = value;
    return VC_OK;
}

static vc_status_t read_command_line(vc_config_t *config, int argc, char **argv, vc_err_t *err)
{
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!options || arg[0] != '-' || arg[1] == '\0') {
            config->args[config->n_args++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            options = false;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            config->wants_help = true;
        } else if (strcmp(arg, "--version") == 0) {
            config->wants_version = true;
        } else if (strcmp(arg, "--print-config") == 0) {
            config->wants_print = true;
        } else if (arg[1] != '-') {
            return vc_err_set(err, VC_ERR_INVALID, "unknown option %.100s", arg);
        } else {
            vc_status_t st = read_flag(config, argc, argv, &i, err);
            if (st != VC_OK)
                return st;
        }
        if (config->wants_help || config->wants_version)
            return VC_OK; /* who asks for help gets it, whatever else is wrong */
    }
    return VC_OK;
}

static bool is_foreign(const char *name, size_t len)
{
    for (size_t i = 0; i < VC_ARRAY_LEN(foreign_names); i++)
        if (strlen(foreign_names[i]) == len && memcmp(foreign_names[i], name, len) == 0)
            return true;
    return false;
}

/* One "K=V" of the environment. Only names with our prefix are looked at; all of those must be options. */
static vc_status_t apply_env_entry(vc_config_t *config, const char *entry, vc_err_t *err)
{
    const char *equals = strchr(entry, '=');
    if (equals == NULL || strncmp(entry, CONFIG_ENV_PREFIX, strlen(CONFIG_ENV_PREFIX)) != 0)
        return VC_OK;
    size_t len = (size_t)(equals - entry);
    if (len == strlen("VERICACHE_CONFIG") && memcmp(entry, "VERICACHE_CONFIG", len) == 0)
        return VC_OK; /* read before the file */
    for (size_t i = 0; i < config->n_opts; i++) {
        char env[256];
        config_env_name(config->table[i].name, env, sizeof(env));
        if (strlen(env) != len || memcmp(env, entry, len) != 0)
            continue;
        vc_status_t st = config_value_set(&config->table[i], equals + 1, &config->owned[i], err);
        if (st != VC_OK) {
            vc_err_prefix(err, "%s", env);
            return st;
        }
        config->sources[i] = CONFIG_ENV;
        return VC_OK;
    }
    if (is_foreign(entry, len))
        return VC_OK;
    return vc_err_set(err, VC_ERR_INVALID, "unknown option %.*s in the environment", (int)VC_MIN(len, (size_t)100),
                      entry);
}

static const char *env_file(char **environ_list)
{
    static const char key[] = "VERICACHE_CONFIG=";
    for (; environ_list != NULL && *environ_list != NULL; environ_list++)
        if (strncmp(*environ_list, key, sizeof(key) - 1) == 0 && (*environ_list)[sizeof(key) - 1] != '\0')
            return *environ_list + sizeof(key) - 1;
    return NULL;
}

static vc_status_t apply_flags(vc_config_t *config, vc_err_t *err)
{
    for (int i = 0; i < config->n_flags; i++) {
        size_t opt = config->flags[i].opt;
        vc_status_t st = config_value_set(&config->table[opt], config->flags[i].text, &config->owned[opt], err);
        if (st != VC_OK) {
            vc_err_prefix(err, "--%s", config->table[opt].name);
            return st;
        }
        config->sources[opt] = CONFIG_FLAG;
    }
    return VC_OK;
}

static vc_status_t apply_sources(vc_config_t *config, int argc, char **argv, char **environ_list, vc_err_t *err)
{
    vc_status_t st = apply_defaults(config, err);
    if (st == VC_OK)
        st = read_command_line(config, argc, argv, err);
    if (st != VC_OK || config->wants_help || config->wants_version)
        return st;
    if (config->file == NULL)
        config->file = env_file(environ_list);
    if (config->file != NULL)
        st = config_file_apply(config, config->file, err);
    for (char **e = environ_list; st == VC_OK && e != NULL && *e != NULL; e++)
        st = apply_env_entry(config, *e, err);
    return st == VC_OK ? apply_flags(config, err) : st;
}

static vc_config_t *config_alloc(const vc_opt_t *table, int argc)
{
    vc_config_t *config = vc_calloc(1, sizeof(*config));
    if (config == NULL)
        return NULL;
    config->table = table;
    while (table[config->n_opts].name != NULL)
        config->n_opts++;
    size_t n_args = argc > 0 ? (size_t)argc : 0;
    config->sources = vc_calloc(config->n_opts, sizeof(*config->sources));
    config->owned = vc_calloc(config->n_opts, sizeof(*config->owned));
    config->flags = vc_calloc(n_args, sizeof(*config->flags));
    config->args = vc_calloc(n_args, sizeof(*config->args));
    if (config->sources == NULL || config->owned == NULL || config->flags == NULL || config->args == NULL) {
        vc_config_free(config);
        return NULL;
    }
    return config;
}

vc_status_t vc_config_parse(const vc_opt_t *table, int argc, char **argv, char **environ_list, vc_config_t **config_p,
                            vc_err_t *err)
{
    vc_config_t *config = config_alloc(table, argc);
    if (config == NULL)
        return vc_err_set(err, VC_ERR_NOMEM, "out of memory reading the options");
    vc_status_t st = apply_sources(config, argc, argv, environ_list, err);
    if (st == VC_OK)
        *config_p = config;
    else
        vc_config_free(config);
    return st;
}

bool vc_config_wants_help(const vc_config_t *config) { return config->wants_help; }
bool vc_config_wants_version(const vc_config_t *config) { return config->wants_version; }
bool vc_config_wants_print(const vc_config_t *config) { return config->wants_print; }
int vc_config_n_args(const vc_config_t *config) { return config->n_args; }

const char *vc_config_arg(const vc_config_t *config, int i)
{
    return i >= 0 && i < config->n_args ? config->args[i] : NULL;
}

void vc_config_free(vc_config_t *config)
{
    if (config == NULL)
        return;
    for (size_t i = 0; config->owned != NULL && i < config->n_opts; i++) {
        /* No string option is left pointing at freed memory. */
        if (config->owned[i] != NULL)
            *(const char **)config->table[i].value = config->table[i].deflt != NULL ? config->table[i].deflt : "";
        vc_free(config->owned[i]);
    }
    vc_free(config->owned);
    vc_free(config->sources);
    vc_free(config->flags);
    vc_free(config->args);
    vc_free(config);
}
