/* The command: options, a bar on a terminal, the report for people or as JSON. */
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "vc/clock.h"
#include "vc/config.h"
#include "vc/log.h"
#include "vc/mem.h"
#include "verify.h"

#define BAR_CELLS 30
#define BAR_US 100000u

typedef struct options {
    const char *data_dir;
    uint64_t capacity_bytes, n_named;
    bool json;
} options_t;

typedef struct bar {
    FILE *out;
    uint64_t start_us, shown_us;
    bool is_shown;
} bar_t;

static void show_bar(void *arg, uint64_t done, uint64_t total)
{
    bar_t *bar = arg;
    uint64_t now_us = vc_clock_now_us(vc_clock_system());
    if (total == 0 || now_us - bar->shown_us < BAR_US)
        return;
    bar->shown_us = now_us;
    bar->is_shown = true;
    double share = VC_MIN((double)done / (double)total, 1.0), seconds = (double)(now_us - bar->start_us) / 1e6;
    char cells[BAR_CELLS + 1];
    memset(cells, '.', BAR_CELLS);
    memset(cells, '#', (size_t)(share * BAR_CELLS));
    cells[BAR_CELLS] = '\0';
    fprintf(bar->out, "\rverify [%s] %3.0f %%  %.0f MiB/s  %.0f s left  ", cells, share * 100,
            (double)done / seconds / 1048576, share > 0 ? seconds * (1 - share) / share : 0);
    fflush(bar->out);
}

static void clear_bar(const bar_t *bar)
{
    if (bar->is_shown)
        fprintf(bar->out, "\r%*s\r", BAR_CELLS + 50, "");
}

static void print_kinds(const cs_verify_report_t *r, int first, int end, FILE *out)
{
    for (int kind = first; kind < end; kind++) {
        if (r->n[kind] == 0)
            continue;
        fprintf(out, "  %s: %s, %llu\n", cs_verify_kind_name((cs_verify_kind_t)kind),
                cs_verify_kind_text((cs_verify_kind_t)kind), (unsigned long long)r->n[kind]);
        uint64_t n = 0;
        for (uint32_t i = 0; i < r->n_findings; i++) {
            if ((int)r->findings[i].kind != kind)
                continue;
            fprintf(out, "    %s\n", r->findings[i].text);
            n++;
        }
        if (n < r->n[kind])
            fprintf(out, "    and %llu more\n", (unsigned long long)(r->n[kind] - n));
    }
}

static void print_text(const options_t *o, const cs_verify_report_t *r, double seconds, FILE *out)
{
    uint64_t n_damage = cs_verify_n_damage(r), n_notes = 0;
    for (int kind = CS_VERIFY_N_DAMAGE; kind < CS_VERIFY_N; kind++)
        n_notes += r->n[kind];
    fprintf(out, "%s: format %u, generation %llu, %llu bytes on disk\n", o->data_dir, r->format,
            (unsigned long long)r->generation, (unsigned long long)r->disk_bytes);
    fprintf(out, "%llu objects in %llu segments, %llu keyspaces, %llu prefixes; %llu objects are sound\n",
            (unsigned long long)r->objects, (unsigned long long)r->segments, (unsigned long long)r->keyspaces,
            (unsigned long long)r->prefixes, (unsigned long long)r->sound_objects);
    fprintf(out, "%llu bytes of records read in %.2f s\n", (unsigned long long)r->bytes_read, seconds);
    if (n_notes > 0) {
        fprintf(out, "worth knowing, no damage:\n");
        print_kinds(r, CS_VERIFY_N_DAMAGE, CS_VERIFY_N, out);
    }
    if (n_damage == 0) {
        fprintf(out, "no damage\n");
        return;
    }
    fprintf(out, "damage, %llu findings:\n", (unsigned long long)n_damage);
    print_kinds(r, 0, CS_VERIFY_N_DAMAGE, out);
    if (r->n[CS_VERIFY_CATALOG] + r->n[CS_VERIFY_CATALOG_FILE] > 0)
        fprintf(out, "a server that cannot use its catalog makes it anew from the segments when it starts\n");
    if (r->n[CS_VERIFY_RECORD] + r->n[CS_VERIFY_MISMATCH] > 0)
        fprintf(out, "damaged records are never served: a reader or the scrubber that meets one drops it\n");
}

static json_t *list_findings(const cs_verify_report_t *r, bool damage)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n_findings; i++) {
        if ((r->findings[i].kind < CS_VERIFY_N_DAMAGE) != damage)
            continue;
        json_t *o = json_object();
        json_object_set_new(o, "kind", json_string(cs_verify_kind_name(r->findings[i].kind)));
        /* Names of files are bytes; what is no UTF-8 is left out. */
        json_object_set_new(o, "text", json_string(r->findings[i].text));
        json_array_append_new(list, o);
    }
    return list;
}

static int print_json(const options_t *o, const cs_verify_report_t *r, double seconds, FILE *out)
{
    json_t *root = json_object(), *counts = json_object();
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"format", r->format},         {"generation", r->generation},     {"disk_bytes", r->disk_bytes},
        {"objects", r->objects},       {"object_bytes", r->object_bytes}, {"sound_objects", r->sound_objects},
        {"segments", r->segments},     {"keyspaces", r->keyspaces},       {"prefixes", r->prefixes},
        {"bytes_read", r->bytes_read}, {"damage", cs_verify_n_damage(r)}};
    json_object_set_new(root, "data_dir", json_string(o->data_dir));
    for (size_t i = 0; i < VC_ARRAY_LEN(numbers); i++)
        json_object_set_new(root, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    json_object_set_new(root, "seconds", json_real(seconds));
    for (int kind = 0; kind < CS_VERIFY_N; kind++)
        json_object_set_new(counts, cs_verify_kind_name((cs_verify_kind_t)kind), json_integer((json_int_t)r->n[kind]));
    json_object_set_new(root, "counts", counts);
    json_object_set_new(root, "findings", list_findings(r, true));
    json_object_set_new(root, "notes", list_findings(r, false));
    int rc = json_dumpf(root, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    fputc('\n', out);
    json_decref(root);
    return rc;
}

static vc_status_t run(const options_t *o, bool *is_damaged_p, FILE *out, FILE *errors, vc_err_t *err)
{
    bar_t bar = {.out = errors, .start_us = vc_clock_now_us(vc_clock_system())};
    bool show = isatty(fileno(errors)) == 1;
    cs_verify_opts_t opts = {.data_dir = o->data_dir,
                             .capacity_bytes = o->capacity_bytes,
                             .max_findings = (uint32_t)o->n_named,
                             .progress = show ? show_bar : NULL,
                             .arg = &bar};
    cs_verify_report_t *report = NULL;
    vc_status_t st = cs_verify(&opts, &report, err);
    clear_bar(&bar);
    if (st != VC_OK)
        return st;
    double seconds = (double)(vc_clock_now_us(vc_clock_system()) - bar.start_us) / 1e6;
    *is_damaged_p = cs_verify_n_damage(report) > 0;
    if (!o->json)
        print_text(o, report, seconds, out);
    bool is_written = (!o->json || print_json(o, report, seconds, out) == 0) && fflush(out) == 0;
    cs_verify_free(report);
    return is_written ? VC_OK : vc_err_set(err, VC_ERR_IO, "the report cannot be written");
}

int cs_verify_main(int argc, char **argv, FILE *out, FILE *errors)
{
    options_t o = {0};
    const vc_opt_t table[] = {
        {"data-dir", VC_OPT_STRING, &o.data_dir, NULL, 0, 0, NULL, "directory of the store; required"},
        {"capacity", VC_OPT_BYTES, &o.capacity_bytes, "0", 0, 1e18, NULL,
         "more bytes on disk than this are damage; 0 = not checked"},
        {"names", VC_OPT_U64, &o.n_named, "20", 0, 1000000, NULL, "findings of each kind that are named"},
        {"json", VC_OPT_BOOL, &o.json, "false", 0, 0, NULL, "the report as one JSON object"},
        {NULL, VC_OPT_BOOL, NULL, NULL, 0, 0, NULL, NULL},
    };
    vc_config_t *parsed = NULL;
    vc_err_t err = {0};
    bool is_damaged = false;
    vc_log_set_level(VC_LOG_ERROR);
    vc_status_t st =
        vc_config_parse(table, argc, argv, NULL /* the server's variables need not suit a check */, &parsed, &err);
    if (st == VC_OK && vc_config_wants_help(parsed)) {
        fprintf(out, "vericache-server verify: checks a whole data directory, changes nothing.\n"
                     "usage: vericache-server verify --data-dir DIR [--capacity SIZE] [--json]\n\n");
        vc_config_print_help(table, out);
    } else if (st == VC_OK && vc_config_n_args(parsed) != 0) {
        st = vc_err_set(&err, VC_ERR_INVALID, "unexpected argument \"%.100s\"", vc_config_arg(parsed, 0));
    } else if (st == VC_OK && o.data_dir[0] == '\0') {
        st = vc_err_set(&err, VC_ERR_INVALID, "--data-dir is required");
    } else if (st == VC_OK) {
        st = run(&o, &is_damaged, out, errors, &err);
    }
    if (st != VC_OK)
        fprintf(errors, "vericache-server verify: %s\n", err.msg);
    vc_config_free(parsed);
    return is_damaged ? 65 : vc_status_exit_code(st);
}
