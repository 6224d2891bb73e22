/*
 * The config file: one "name = value" a line. '#' at the start of a line or after a blank begins a comment; a value in
 * double quotes is taken as it is, with \" and \\ inside, and \n and \t where the option is a text. A name may stand
 * once only. What --print-config prints is a config file.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config_int.h"

#define MAX_LINES 10000

static char *skip_blanks(char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n')
        s++;
    return s;
}

static void cut_trailing_blanks(char *s, size_t len)
{
    while (len > 0 && strchr(" \t\r\n", s[len - 1]) != NULL)
        len--;
    s[len] = '\0';
}

/* In place; *end_p is what follows the closing quote. False when it is missing. */
static bool unquote(char *s, bool is_text, char **end_p)
{
    char *out = s;
    for (char *in = s + 1; *in != '\0'; in++) {
        if (*in == '"') {
            *out = '\0';
            *end_p = in + 1;
            return true;
        }
        if (*in == '\\' && (in[1] == '"' || in[1] == '\\'))
            in++;
        else if (is_text && *in == '\\' && (in[1] == 'n' || in[1] == 't')) {
            *out++ = *++in == 'n' ? '\n' : '\t';
            continue;
        }
        *out++ = *in;
    }
    return false;
}

/* Cuts the value out of the rest of a line. */
static vc_status_t clean_value(char *value, bool is_text, vc_err_t *err)
{
    if (*value == '"') {
        char *rest;
        if (!unquote(value, is_text, &rest))
            return vc_err_set(err, VC_ERR_INVALID, "the closing quote is missing");
        rest = skip_blanks(rest);
        if (*rest != '\0' && *rest != '#')
            return vc_err_set(err, VC_ERR_INVALID, "there is text after the closing quote");
        return VC_OK;
    }
    for (char *c = value; *c != '\0'; c++)
        if (*c == '#' && (c == value || c[-1] == ' ' || c[-1] == '\t')) {
            *c = '\0';
            break;
        }
    cut_trailing_blanks(value, strlen(value));
    return VC_OK;
}

static vc_status_t apply_line(vc_config_t *config, char *line, vc_err_t *err)
{
    char *name = skip_blanks(line);
    if (*name == '\0' || *name == '#')
        return VC_OK;
    char *equals = strchr(name, '=');
    if (equals == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "a line is 'name = value'");
    char *value = skip_blanks(equals + 1);
    cut_trailing_blanks(name, (size_t)(equals - name));
    size_t i = config_find(config, name, strlen(name));
    if (i == config->n_opts)
        return vc_err_set(err, VC_ERR_INVALID, "unknown option '%s'", name);
    if (config->sources[i] == CONFIG_FILE)
        return vc_err_set(err, VC_ERR_INVALID, "option '%s' stands there twice", name);
    vc_status_t st = clean_value(value, config->table[i].type == VC_OPT_TEXT, err);
    if (st == VC_OK)
        st = config_value_set(&config->table[i], value, &config->owned[i], err);
    if (st != VC_OK) {
        vc_err_prefix(err, "%s", config->table[i].name);
        return st;
    }
    config->sources[i] = CONFIG_FILE;
    return VC_OK;
}

vc_status_t config_file_apply(vc_config_t *config, const char *path, vc_err_t *err)
{
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return vc_err_set(err, VC_ERR_INVALID, "config file %s: %s", path, strerror(errno));
    char line[2 * CONFIG_TEXT_MAX];
    vc_status_t st = VC_OK;
    int number = 0;
    /* Filled with line ends, so that what fgets left alone tells how much it read, zero bytes included. */
    while (st == VC_OK && fgets(memset(line, '\n', sizeof(line)), sizeof(line), f) != NULL) {
        number++;
        const char *end = memchr(line, '\n', sizeof(line));
        size_t len = strlen(line);
        if (end != line + len - 1 && !(feof(f) && (end == NULL || end == line + len + 1)))
            st = vc_err_set(err, VC_ERR_RANGE, "the line is longer than %zu bytes, or holds a zero byte", sizeof(line));
        else if (number > MAX_LINES)
            st = vc_err_set(err, VC_ERR_RANGE, "the file has more than %d lines", MAX_LINES);
        else
            st = apply_line(config, line, err);
        if (st != VC_OK)
            vc_err_prefix(err, "%s:%d", path, number);
    }
    if (st == VC_OK && ferror(f))
        st = vc_err_set(err, VC_ERR_IO, "config file %s: %s", path, strerror(errno));
    fclose(f);
    return st;
}
