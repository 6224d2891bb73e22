/* Commands of vericachectl: stats, prefixes, health. One call each, a table for people or JSON for programs. */
#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "vc/config.h"
#include "vc/keyspace.h"
#include "vc/mem.h"
#include "vericache/vericache.h"

#define STATS_MAX 512

typedef struct {
    const char *server;
    bool json;
    int by;
    uint64_t limit, timeout_ms;
    FILE *out;
    vcache_client_t *client;
    vcache_error_t error;
} ctl_t;

static void print_number(FILE *out, double v)
{
    if (v == floor(v) && fabs(v) < 9e15)
        fprintf(out, "%20.0f", v);
    else
        fprintf(out, "%20.4f", v);
}

static int print_json(ctl_t *c, json_t *value)
{
    int rc = value == NULL ? -1 : json_dumpf(value, c->out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    fputc('\n', c->out);
    json_decref(value);
    return rc;
}

/* ---- stats ---- */

static json_t *stats_json(const vcache_stat_t *stats, uint32_t n)
{
    json_t *o = json_object();
    for (uint32_t i = 0; i < n; i++) {
        double v = stats[i].value;
        bool whole = v == floor(v) && fabs(v) < 9e15;
        json_object_set_new(o, stats[i].name, whole ? json_integer((json_int_t)v) : json_real(v));
    }
    return o;
}

/* "hit_blocks_full" and "hit_bytes_full" belong together, and so do "rpc_puts" and "rpc_fetches". */
static int group_of(const char *name)
{
    static const char *const suffixes[] = {"_full", "_compressed"}, *const prefixes[] = {"miss_", "rpc_", "data_"};
    size_t len = strlen(name);
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(suffixes[i]);
        if (len > n && strcmp(name + len - n, suffixes[i]) == 0)
            return 1 + i;
    }
    for (int i = 0; i < 3; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return 3 + i;
    return 0;
}

static vcache_status_t cmd_stats(ctl_t *c)
{
    uint32_t n = 0;
    vcache_stat_t *stats = vc_calloc(STATS_MAX, sizeof(*stats));
    if (stats == NULL)
        return VC_ERR_NOMEM;
    vcache_status_t st = vcache_stats(c->client, stats, STATS_MAX, &n, &c->error);
    if (st == VC_OK && c->json) {
        print_json(c, stats_json(stats, n));
    } else if (st == VC_OK) {
        for (uint32_t i = 0; i < n; i++) {
            if (i > 0 && group_of(stats[i - 1].name) != group_of(stats[i].name))
                fputc('\n', c->out);
            fprintf(c->out, "%-32s", stats[i].name);
            print_number(c->out, stats[i].value);
            fputc('\n', c->out);
        }
    }
    vc_free(stats);
    return st;
}

/* ---- prefixes ---- */

static json_t *prefix_json(const vcache_prefix_t *p)
{
    char tip[2 * 32 + 1], keyspace[2 * 32 + 1];
    vc_hex(p->tip, sizeof(p->tip), tip);
    vc_hex(p->keyspace, sizeof(p->keyspace), keyspace);
    json_t *tokens = json_array();
    for (uint32_t i = 0; i < p->n_head_tokens; i++)
        json_array_append_new(tokens, json_integer(p->head_tokens[i]));
    return json_pack("{s:s, s:s, s:i, s:I, s:I, s:o}", "tip", tip, "keyspace", keyspace, "blocks", (int)p->n_blocks,
                     "hits", (json_int_t)p->hits, "bytes", (json_int_t)p->bytes, "head_tokens", tokens);
}

static void print_prefix(FILE *out, const vcache_prefix_t *p)
{
    char tip[2 * 32 + 1];
    vc_hex(p->tip, sizeof(p->tip), tip);
    fprintf(out, "%12" PRIu64 " %8" PRIu32 " %15" PRIu64 "  %.16s ", p->hits, p->n_blocks, p->bytes, tip);
    for (uint32_t i = 0; i < p->n_head_tokens && i < 8; i++)
        fprintf(out, " %" PRIu32, p->head_tokens[i]);
    fputs(p->n_head_tokens > 8 ? " ...\n" : "\n", out);
}

static vcache_status_t cmd_prefixes(ctl_t *c)
{
    uint32_t n = 0;
    vcache_prefix_t *list = vc_calloc((size_t)c->limit, sizeof(*list));
    if (list == NULL)
        return VC_ERR_NOMEM;
    vcache_status_t st = vcache_prefixes(c->client, c->by == 1, (uint32_t)c->limit, list, &n, &c->error);
    if (st == VC_OK && c->json) {
        json_t *all = json_array();
        for (uint32_t i = 0; i < n; i++)
            json_array_append_new(all, prefix_json(&list[i]));
        print_json(c, all);
    } else if (st == VC_OK) {
        fprintf(c->out, "%12s %8s %15s  %-16s  %s\n", "hits", "blocks", "bytes", "tip", "first tokens");
        for (uint32_t i = 0; i < n; i++)
            print_prefix(c->out, &list[i]);
    }
    vc_free(list);
    return st;
}

/* ---- health ---- */

static vcache_status_t cmd_health(ctl_t *c)
{
    vcache_status_t st = vcache_health(c->client, &c->error);
    if (st == VC_OK)
        fputs(c->json ? "{\"status\": \"serving\"}\n" : "serving\n", c->out);
    return st;
}

/* ---- the program ---- */

typedef struct {
    const char *name, *help;
    vcache_status_t (*run)(ctl_t *c);
} command_t;

static const command_t commands[] = {
    {"stats", "hit rates, counters and gauges of the server", cmd_stats},
    {"prefixes", "the most used prefixes (--by bytes: the largest)", cmd_prefixes},
    {"health", "whether the server serves; exit code 0 if so", cmd_health},
};

static void usage(const vc_opt_t *table, FILE *out)
{
    fputs("vericachectl: asks a VeriCache server.\nusage: vericachectl [options] COMMAND\n\n", out);
    for (size_t i = 0; i < VC_ARRAY_LEN(commands); i++)
        fprintf(out, "  %-10s  %s\n", commands[i].name, commands[i].help);
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
    int n = vc_config_n_args(config);
    if (n == 0)
        vc_err_set(err, VC_ERR_INVALID, "no command; see vericachectl --help");
    else if (n > 1)
        vc_err_set(err, VC_ERR_INVALID, "unexpected argument \"%.100s\"", vc_config_arg(config, 1));
    else
        vc_err_set(err, VC_ERR_INVALID, "unknown command \"%.100s\"; see vericachectl --help",
                   vc_config_arg(config, 0));
    for (size_t i = 0; n == 1 && i < VC_ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, vc_config_arg(config, 0)) == 0)
            return &commands[i];
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

int ctl_run(int argc, char **argv, char **environ_list, FILE *out, FILE *err)
{
    ctl_t c = {.out = out};
    const vc_opt_t table[] = {
        {"server", VC_OPT_STRING, &c.server, "127.0.0.1:7070", 0, 0, NULL, "HOST:PORT of the server"},
        {"json", VC_OPT_BOOL, &c.json, "false", 0, 0, NULL, "print JSON"},
        {"by", VC_OPT_ENUM, &c.by, "hits", 0, 0, "hits|bytes", "order of prefixes"},
        {"limit", VC_OPT_U64, &c.limit, "20", 1, 1000, NULL, "how many prefixes"},
        {"timeout-ms", VC_OPT_U64, &c.timeout_ms, "5000", 1, 3600000, NULL, "longest wait for the server"},
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
    int rc = 0;
    const command_t *command = NULL;
    if (vc_config_wants_version(config)) {
        fprintf(out, "vericachectl %s\n", VC_VERSION);
    } else if (vc_config_wants_help(config)) {
        usage(table, out);
    } else if (vc_config_wants_print(config)) {
        vc_config_print_values(table, config, out);
    } else if ((command = find_command(config, &e)) == NULL) {
        fprintf(err, "vericachectl: %s\n", e.msg);
        rc = vc_status_exit_code(VC_ERR_INVALID);
    } else {
        rc = run_command(&c, command, err);
    }
    vc_config_free(config);
    /* What is still buffered counts as written only once it is. */
    if ((fflush(out) != 0 || ferror(out) != 0) && rc == 0) {
        fprintf(err, "vericachectl: cannot write the output: %s\n", strerror(errno));
        rc = vc_status_exit_code(VC_ERR_IO);
    }
    return rc;
}
