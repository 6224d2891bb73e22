/* What the subcommands share in reading their options; see role/cmd.h. Runs once, on the main thread. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "role/cmd.h"
#include "vc/mem.h"

static const char env_prefix[] = "VERICACHE_";

/* Whether "VERICACHE_SOME_NAME=..." names an option of the table, or the option file. */
static bool env_is_known(const vc_opt_t *table, const char *entry)
{
    const char *name = entry + sizeof(env_prefix) - 1;
    if (strncmp(name, "CONFIG=", 7) == 0)
        return true;
    for (; table->name != NULL; table++) {
        size_t i = 0;
        while (table->name[i] != '\0' &&
               name[i] == (table->name[i] == '-' ? '_' : (char)toupper((unsigned char)table->name[i])))
            i++;
        if (table->name[i] == '\0' && name[i] == '=')
            return true;
    }
    return false;
}

/* The environment without the variables of other subcommands. NULL: out of memory. */
static char **env_for(const vc_opt_t *table, bool strict)
{
    size_t n = 0, k = 0;
    while (environ != NULL && environ[n] != NULL)
        n++;
    char **list = vc_calloc(n + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < n; i++)
        if (strict || strncmp(environ[i], env_prefix, sizeof(env_prefix) - 1) != 0 || env_is_known(table, environ[i]))
            list[k++] = environ[i];
    return list;
}

int node_cmd_fail(const char *name, vc_status_t status, const vc_err_t *err)
{
    fflush(stdout);
    fprintf(stderr, "vericache-node %s: %s\n", name, err->msg[0] != '\0' ? err->msg : vc_status_name(status));
    return vc_status_exit_code(status);
}

bool node_cmd_begin(const vc_opt_t *table, const char *usage, bool strict, int argc, char **argv,
                    vc_config_t **config_p, int *rc_p)
{
    vc_err_t err = {0};
    vc_config_t *config;
    char **env = env_for(table, strict);
    vc_status_t status = env == NULL ? vc_err_set(&err, VC_ERR_NOMEM, "out of memory")
                                     : vc_config_parse(table, argc, argv, env, &config, &err);
    vc_free(env);
    if (status != VC_OK) {
        *rc_p = node_cmd_fail(argv[0], status, &err);
        return false;
    }
    const bool stop = vc_config_wants_help(config) || vc_config_wants_version(config) || vc_config_wants_print(config);
    if (vc_config_wants_help(config)) {
        printf("usage: vericache-node %s [options]%s%s\n\n", argv[0], usage[0] ? " " : "", usage);
        vc_config_print_help(table, stdout);
    } else if (vc_config_wants_version(config)) {
        printf("vericache-node %s\n", VC_VERSION);
    } else if (vc_config_wants_print(config)) {
        vc_config_print_values(table, config, stdout);
    }
    *rc_p = 0;
    if (stop)
        vc_config_free(config);
    else
        *config_p = config;
    return !stop;
}
