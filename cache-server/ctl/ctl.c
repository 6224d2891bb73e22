/* The arguments of vericachectl and its table of commands. */
#include "ctl_int.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "vc/mem.h"

int ctl_print_json(ctl_t *c, json_t *value)
{
    int rc = value == NULL ? -1 : json_dumpf(value, c->out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    fputc('\n', c->out);
    json_decref(value);
    return rc;
}

int ctl_print_json_line(ctl_t *c, json_t *value)
{
    int rc = value == NULL ? -1 : json_dumpf(value, c->out, JSON_COMPACT | JSON_REAL_PRECISION(12));
    fputc('\n', c->out);
    json_decref(value);
    return rc;
}

void ctl_print_number(FILE *out, double v)
{
    if (v == floor(v) && fabs(v) < 9e15)
        fprintf(out, "%20.0f", v);
    else
        fprintf(out, "%20.4f", v);
}

vcache_status_t ctl_fail(ctl_t *c, vc_status_t status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    c->error.status = (vcache_status_t)status;
    vsnprintf(c->error.msg, sizeof(c->error.msg), fmt, args);
    va_end(args);
    return (vcache_status_t)status;
}

typedef struct {
    const char *name, *args, *help;
    vcache_status_t (*run)(ctl_t *c);
    int n_args;
} command_t;

static const command_t commands[] = {
    {"stats", "", "hit rates, times, counters and gauges (--watch: again and again)", ctl_stats, 0},
    {"prefixes", "", "the most used prefixes (--by bytes: the largest)", ctl_prefixes, 0},
    {"health", "", "whether the server serves; exit code 0 if so", ctl_health, 0},
    {"config", "", "every option of the server in force, and where it comes from", ctl_options, 0},
    {"leases", "", "what is out now: leases by age, uploads, transfers", ctl_leases, 0},
    {"pin", "TIP", "keeps a prefix from eviction (TIP: leading hex digits, as prefixes shows)", ctl_pin, 1},
    {"unpin", "TIP", "takes a pin back", ctl_unpin, 1},
    {"delete", "TIP", "removes a prefix, pinned or not", ctl_delete, 1},
    {"drain", "", "takes the server out of use (--wait, --query, --resume)", ctl_drain, 0},
    {"scrub", "", "reads every record again in the background (--wait, --query, --stop)", ctl_scrub, 0},
    {"replay", "", "plays a trace against the server, or through the policy alone", ctl_replay, 0},
    {"compressors", "", "methods of compression, their parameters and defaults", ctl_compressors, 0},
};

static void usage(const vc_opt_t *table, FILE *out)
{
    fputs("vericachectl: asks a VeriCache server.\nusage: vericachectl [options] COMMAND\n\n", out);
    for (size_t i = 0; i < VC_ARRAY_LEN(commands); i++)
        fprintf(out, "  %-11s %-4s  %s\n", commands[i].name, commands[i].args, commands[i].help);
    fputc('\n', out);
    vc_config_print_help(table, out);
}

static int run_command(ctl_t *c, const command_t *command, FILE *err)
{
    vcache_options_t o;
    vcache_options_default(&o);
    o.server = c->server;
    o.call_ms = (uint32_t)c->timeout_ms;
    o.connect_ms = (uint32_t)c->timeout_ms;
    o.use_data_plane = 0;
    vcache_status_t st = vcache_connect(&o, &c->client, &c->error);
    if (st == VC_OK)
        st = command->run(c);
    if (st != VC_OK)
        fprintf(err, "vericachectl: %s: %s\n", command->name,
                c->error.msg[0] != '\0' ? c->error.msg : vcache_status_name(st));
    vcache_disconnect(c->client);
    return vc_status_exit_code((vc_status_t)st);
}

static const command_t *find_command(const vc_config_t *config, vc_err_t *err)
{
    int n = vc_config_n_args(config) - 1;
    const char *name = vc_config_arg(config, 0);
    if (name == NULL) {
        vc_err_set(err, VC_ERR_INVALID, "no command; see vericachectl --help");
        return NULL;
    }
    for (size_t i = 0; i < VC_ARRAY_LEN(commands); i++) {
        const command_t *c = &commands[i];
        if (strcmp(c->name, name) != 0)
            continue;
        if (n == c->n_args)
            return c;
        if (n > c->n_args)
            vc_err_set(err, VC_ERR_INVALID, "unexpected argument \"%.100s\"", vc_config_arg(config, c->n_args + 1));
        else
            vc_err_set(err, VC_ERR_INVALID, "%s needs %s; see vericachectl --help", name, c->args);
        return NULL;
    }
    vc_err_set(err, VC_ERR_INVALID, "unknown command \"%.100s\"; see vericachectl --help", name);
    return NULL;
}

/* Only our own variable: the environment may well hold those of the server. */
static char *own_variable(char **environ_list)
{
    for (; environ_list != NULL && *environ_list != NULL; environ_list++)
        if (strncmp(*environ_list, "VERICACHE_SERVER=", 17) == 0)
            return *environ_list;
    return NULL;
}

static int run(ctl_t *c, const vc_opt_t *table, FILE *err)
{
    vc_err_t e = {0};
    const command_t *command;
    if (vc_config_wants_version(c->config)) {
        fprintf(c->out, "vericachectl %s\n", VC_VERSION);
    } else if (vc_config_wants_help(c->config)) {
        usage(table, c->out);
    } else if (vc_config_wants_print(c->config)) {
        vc_config_print_values(table, c->config, c->out);
    } else if ((command = find_command(c->config, &e)) == NULL) {
        fprintf(err, "vericachectl: %s\n", e.msg);
        return vc_status_exit_code(VC_ERR_INVALID);
    } else {
        return run_command(c, command, err);
    }
    return 0;
}

int ctl_run(int argc, char **argv, char **environ_list, FILE *out, FILE *err)
{
    ctl_t c = {.out = out};
    const vc_opt_t table[] = {
        {"server", VC_OPT_STRING, &c.server, "127.0.0.1:7070", 0, 0, NULL, "HOST:PORT of the server"},
        {"json", VC_OPT_BOOL, &c.json, "false", 0, 0, NULL, "print JSON"},
        {"timeout-ms", VC_OPT_U64, &c.timeout_ms, "5000", 1, 3600000, NULL, "longest wait for one answer"},
        {"by", VC_OPT_ENUM, &c.by, "hits", 0, 0, "hits|bytes", "prefixes: their order"},
        {"limit", VC_OPT_U64, &c.limit, "20", 1, 1000, NULL, "prefixes: how many"},
        {"watch", VC_OPT_BOOL, &c.watch, "false", 0, 0, NULL, "stats: again and again; with --json one object a line"},
        {"interval-ms", VC_OPT_U64, &c.interval_ms, "1000", 100, 3600000, NULL, "stats --watch: how often"},
        {"count", VC_OPT_U64, &c.count, "0", 0, 0, NULL, "stats --watch: how many times; 0 = until interrupted"},
        {"keyspace", VC_OPT_STRING, &c.keyspace, "", 0, 0, NULL,
         "pin, unpin, delete: id of the keyspace, for a tip that is not listed"},
        {"fidelity", VC_OPT_STRING, &c.fidelity, "", 0, 0, NULL,
         "pin, unpin, delete: only full@N, or a compressor's spec with all its parameters, as register prints it"},
        {"wait", VC_OPT_BOOL, &c.wait, "false", 0, 0, NULL, "drain, scrub: until it is over"},
        {"wait-ms", VC_OPT_U64, &c.wait_ms, "0", 0, 0, NULL, "--wait: give up after this, exit code 75; 0 = never"},
        {"query", VC_OPT_BOOL, &c.query, "false", 0, 0, NULL, "drain, scrub: only say how it stands"},
        {"resume", VC_OPT_BOOL, &c.resume, "false", 0, 0, NULL, "drain: back into use"},
        {"stop", VC_OPT_BOOL, &c.stop, "false", 0, 0, NULL, "scrub: end the running pass"},
        {"rate", VC_OPT_BYTES, &c.rate_bytes, "0", 0, 1e12, NULL, "scrub: bytes per second; 0 = as the server has it"},
        {"trace", VC_OPT_STRING, &c.trace, "", 0, 0, NULL, "replay: the file"},
        {"capacity-blocks", VC_OPT_U64, &c.capacity_blocks, "0", 0, 100000000, NULL,
         "replay: size of a cache to simulate, without a server; 0 = play against the server"},
        {"policy", VC_OPT_ENUM, &c.policy, "ours", 0, 0, "ours|lru|fifo|lfu|s3fifo|oracle",
         "replay --capacity-blocks: what decides who goes"},
        {"block-bytes", VC_OPT_BYTES, &c.block_bytes, "8KiB", 8192, 4194304, NULL,
         "replay: size of a record that stands for a block"},
        {NULL, VC_OPT_BOOL, NULL, NULL, 0, 0, NULL, NULL},
    };
    char *own_env[] = {own_variable(environ_list), NULL};
    vc_config_t *config = NULL;
    vc_err_t e = {0};
    vc_status_t st = vc_config_parse(table, argc, argv, own_env, &config, &e);
    if (st != VC_OK) {
        fprintf(err, "vericachectl: %s\n", e.msg);
        return vc_status_exit_code(st);
    }
    c.config = config;
    int rc = run(&c, table, err);
    vc_config_free(config);
    /* What is still buffered counts as written only once it is. */
    if ((fflush(out) != 0 || ferror(out) != 0) && rc == 0) {
        fprintf(err, "vericachectl: cannot write the output: %s\n", strerror(errno));
        rc = vc_status_exit_code(VC_ERR_IO);
    }
    return rc;
}
