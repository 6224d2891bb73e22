/*
 * Options from a command line and a file: lines up to one that is "--" alone are flags, the rest is the file. What is
 * accepted prints as a file that means the same.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vc/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_ARGS 16

typedef struct values {
    bool flag;
    uint64_t count, bytes, rate;
    double ratio;
    const char *name;
    int mode;
} values_t;

static void must(int ok)
{
    if (!ok)
        abort();
}

static void fill_table(vc_opt_t table[8], values_t *v)
{
    const vc_opt_t all[] = {{"flag", VC_OPT_BOOL, &v->flag, "true", 0, 0, NULL, "a switch"},
                            {"count", VC_OPT_U64, &v->count, "7", 1, 1000, NULL, "a number"},
                            {"bytes", VC_OPT_BYTES, &v->bytes, "4KiB", 0, 1e15, NULL, "a size"},
                            {"rate", VC_OPT_RATE, &v->rate, "0", 0, 1e15, NULL, "a rate"},
                            {"ratio", VC_OPT_DOUBLE, &v->ratio, "0.5", 0, 1, NULL, "a share"},
                            {"name", VC_OPT_STRING, &v->name, "", 0, 0, NULL, "a text"},
                            {"mode", VC_OPT_ENUM, &v->mode, "auto", 0, 0, "auto|fixed|ring", "a choice"},
                            {NULL, VC_OPT_BOOL, NULL, NULL, 0, 0, NULL, NULL}};
    memcpy(table, all, sizeof(all));
}

/* A file in memory; path has room for 32 bytes. */
static int memory_file(const char *text, size_t len, char *path)
{
    int fd = memfd_create("config", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_printed(const vc_opt_t *table, const vc_config_t *config, const values_t *v)
{
    char *text = NULL, path[32];
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    must(out != NULL);
    vc_config_print_values(table, config, out);
    fclose(out);
    int fd = memory_file(text, len, path);
    values_t again = {0};
    vc_opt_t other[8];
    vc_config_t *parsed = NULL;
    vc_err_t err = {0};
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t) "--config", path, NULL};
    fill_table(other, &again);
    must(vc_config_parse(other, 3, argv, NULL, &parsed, &err) == VC_OK);
    must(again.flag == v->flag && again.count == v->count && again.bytes == v->bytes && again.rate == v->rate &&
         again.mode == v->mode && strcmp(again.name, v->name) == 0);
    must(again.ratio >= 0 && again.ratio <= 1);
    vc_config_free(parsed);
    close(fd);
    free(text);
}

/* Flags of the input, but for --config, which would open whatever it names. */
static int split(char *text, char **argv, char **rest_p)
{
    int n = 1;
    char *line = text;
    *rest_p = text + strlen(text);
    while (line && *line) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : line + strlen(line);
        if (end)
            *end = '\0';
        if (strcmp(line, "--") == 0) {
            *rest_p = next;
            break;
        }
        if (n < MAX_ARGS && strncmp(line, "--config", 8) != 0)
            argv[n++] = line;
        line = next;
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *rest, path[32];
    char *argv[MAX_ARGS + 3] = {(char *)(uintptr_t) "x"};
    values_t v = {0};
    vc_opt_t table[8];
    vc_config_t *config = NULL;
    vc_err_t err = {0};
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    if (strlen(text) != size) { /* a zero byte belongs into the file only */
        text[strlen(text)] = '\n';
    }
    int n = split(text, argv, &rest);
    int fd = memory_file(rest, (size_t)(text + size - rest), path);
    argv[n++] = (char *)(uintptr_t) "--config";
    argv[n++] = path;
    fill_table(table, &v);
    if (vc_config_parse(table, n, argv, NULL, &config, &err) == VC_OK) {
        must(v.count >= 1 && v.count <= 1000 && v.mode >= 0 && v.mode <= 2 && v.name != NULL);
        if (!vc_config_wants_help(config) && !vc_config_wants_version(config))
            check_printed(table, config, &v);
        vc_config_free(config);
    } else {
        must(err.msg[0] != '\0');
    }
    close(fd);
    free(text);
    return 0;
}
