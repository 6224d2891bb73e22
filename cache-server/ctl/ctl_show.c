/* What is asked: statistics, prefixes, health, configuration. A table for people or JSON for programs. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "ctl_int.h"
#include "vc/compressors.h"
#include "vc/keyspace.h"
#include "vc/mem.h"

#define STATS_MAX 512

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
    static const char *const suffixes[] = {"_full", "_compressed"};
    static const char *const prefixes[] = {"miss_", "rpc_", "data_", "ram_", "scrub_", "refused_", "time_"};
    size_t len = strlen(name);
    for (int i = 0; i < (int)VC_ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return 3 + i;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(suffixes[i]);
        if (len > n && strcmp(name + len - n, suffixes[i]) == 0)
            return 1 + i;
    }
    return 0;
}

static void print_stats(FILE *out, const vcache_stat_t *stats, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && group_of(stats[i - 1].name) != group_of(stats[i].name))
            fputc('\n', out);
        fprintf(out, "%-32s", stats[i].name);
        ctl_print_number(out, stats[i].value);
        fputc('\n', out);
    }
}

typedef struct {
    ctl_t *c;
    uint64_t seen;
} watch_t;

static int watch_stats(void *arg, const vcache_stat_t *stats, uint32_t n)
{
    watch_t *w = arg;
    if (w->c->json) {
        json_t *o = stats_json(stats, n);
        json_object_set_new(o, "unix_s", json_integer((json_int_t)time(NULL)));
        ctl_print_json_line(w->c, o);
    } else {
        char at[32];
        time_t now = time(NULL);
        struct tm tm;
        strftime(at, sizeof(at), "%H:%M:%S", localtime_r(&now, &tm));
        fprintf(w->c->out, "%s== %s\n", w->seen > 0 ? "\n" : "", at);
        print_stats(w->c->out, stats, n);
    }
    /* Each is out before the next is waited for; a reader that is gone ends it. */
    bool is_gone = fflush(w->c->out) != 0;
    return ++w->seen == w->c->count || is_gone;
}

vcache_status_t ctl_stats(ctl_t *c)
{
    uint32_t n = 0;
    if (c->watch)
        return vcache_watch_stats(c->client, (uint32_t)c->interval_ms, watch_stats, &(watch_t){.c = c}, &c->error);
    vcache_stat_t *stats = vc_calloc(STATS_MAX, sizeof(*stats));
    if (stats == NULL)
        return ctl_fail(c, VC_ERR_NOMEM, "out of memory");
    vcache_status_t st = vcache_stats(c->client, stats, STATS_MAX, &n, &c->error);
    if (st == VC_OK && c->json)
        ctl_print_json(c, stats_json(stats, n));
    else if (st == VC_OK)
        print_stats(c->out, stats, n);
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

vcache_status_t ctl_prefixes(ctl_t *c)
{
    uint32_t n = 0;
    vcache_prefix_t *list = vc_calloc((size_t)c->limit, sizeof(*list));
    if (list == NULL)
        return ctl_fail(c, VC_ERR_NOMEM, "out of memory");
    vcache_status_t st = vcache_prefixes(c->client, c->by == 1, (uint32_t)c->limit, list, &n, &c->error);
    if (st == VC_OK && c->json) {
        json_t *all = json_array();
        for (uint32_t i = 0; i < n; i++)
            json_array_append_new(all, prefix_json(&list[i]));
        ctl_print_json(c, all);
    } else if (st == VC_OK) {
        fprintf(c->out, "%12s %8s %15s  %-16s  %s\n", "hits", "blocks", "bytes", "tip", "first tokens");
        for (uint32_t i = 0; i < n; i++)
            print_prefix(c->out, &list[i]);
    }
    vc_free(list);
    return st;
}

/* ---- health ---- */

vcache_status_t ctl_health(ctl_t *c)
{
    vcache_status_t st = vcache_health(c->client, &c->error);
    if (st == VC_OK)
        fputs(c->json ? "{\"status\": \"serving\"}\n" : "serving\n", c->out);
    return st;
}

/* ---- configuration ---- */

typedef struct {
    ctl_t *c;
    json_t *all;
} options_t;

static void take_option(void *arg, const char *name, const char *value, const char *source)
{
    options_t *o = arg;
    if (o->all != NULL)
        json_object_set_new(o->all, name, json_pack("{s:s, s:s}", "value", value, "source", source));
    else
        fprintf(o->c->out, "%-20s %-28s %s\n", name, value[0] != '\0' ? value : "\"\"", source);
}

vcache_status_t ctl_options(ctl_t *c)
{
    options_t o = {c, c->json ? json_object() : NULL};
    vcache_status_t st = vcache_config(c->client, take_option, &o, &c->error);
    if (st == VC_OK && c->json)
        ctl_print_json(c, o.all);
    else
        json_decref(o.all);
    return st;
}

/* Asks no server: which methods there are is a matter of this build. */
vcache_status_t ctl_compressors(ctl_t *c)
{
    vc_compressors_print(c->out, c->json);
    return VC_OK;
}
