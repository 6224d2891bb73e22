/* What people see of the option table: --help and --print-config. */
#include <stdio.h>
#include <string.h>

#include "config_int.h"

static const char *value_word(const vc_opt_t *opt)
{
    switch (opt->type) {
    case VC_OPT_BOOL: return "";
    case VC_OPT_U64: return " N";
    case VC_OPT_BYTES: return " SIZE";
    case VC_OPT_RATE: return " RATE";
    case VC_OPT_DOUBLE: return " NUMBER";
    case VC_OPT_STRING:
    case VC_OPT_TEXT: return " TEXT";
    case VC_OPT_ENUM: return " WORD";
    }
    return "";
}

static void help_line(FILE *out, const char *left, const char *help)
{
    fprintf(out, strlen(left) <= 28 ? "  %-28s  %s" : "  %s\n                                %s", left, help);
}

void vc_config_print_help(const vc_opt_t *table, FILE *out)
{
    for (const vc_opt_t *opt = table; opt->name != NULL; opt++) {
        char left[128];
        snprintf(left, sizeof(left), "%s%s%s", opt->type == VC_OPT_BOOL ? "--[no-]" : "--", opt->name, value_word(opt));
        help_line(out, left, opt->help != NULL ? opt->help : "");
        if (opt->type == VC_OPT_ENUM)
            fprintf(out, ": %s", opt->choices);
        if (opt->deflt != NULL && opt->deflt[0] != '\0')
            fprintf(out, " (default %s)", opt->deflt);
        fputc('\n', out);
    }
    help_line(out, "--config FILE", "lines of 'name = value', as --print-config writes them\n");
    help_line(out, "--print-config", "print every value and where it comes from\n");
    help_line(out, "--help, --version", "print this, or the version\n");
    fputs("Each option may also be given as VERICACHE_<NAME> in the environment. Order: flag, environment, file, "
          "default.\n",
          out);
}

/* Quoted where the file reader would take the bare text apart. */
static void print_string(const char *text, FILE *out)
{
    size_t len = strlen(text);
    bool bare = len > 0 && text[0] != '"' && text[0] != ' ' && text[len - 1] != ' ' && strpbrk(text, "#\n\t") == NULL;
    if (bare) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if (*text == '\n' || *text == '\t') /* of options that may have them */
            fputs(*text == '\n' ? "\\n" : "\\t", out);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static const char *const source_names[] = {"default", "file", "environment", "flag"};

void vc_config_print_values(const vc_opt_t *table, const vc_config_t *config, FILE *out)
{
    for (size_t i = 0; table[i].name != NULL; i++) {
        char text[CONFIG_TEXT_MAX];
        config_value_text(&table[i], text, sizeof(text));
        fprintf(out, "%s = ", table[i].name);
        if (table[i].type == VC_OPT_STRING || table[i].type == VC_OPT_TEXT)
            print_string(text, out);
        else
            fputs(text, out);
        fprintf(out, "  # %s\n", source_names[config->sources[i]]);
    }
}

void vc_config_each(const vc_opt_t *table, const vc_config_t *config, vc_config_fn fn, void *arg)
{
    for (size_t i = 0; table[i].name != NULL; i++) {
        char text[CONFIG_TEXT_MAX];
        config_value_text(&table[i], text, sizeof(text));
        fn(arg, table[i].name, text, source_names[config->sources[i]]);
    }
}
