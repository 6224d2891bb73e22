/* See results_file.h. One thread. */
#include "results_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { LINE_BYTES = 4096 };
static const char run_mark[] = "# run ";

typedef struct {
    char *key;  /* kind and name as they are written */
    char *rest; /* from the unit to n */
    long run;   /* of the file that was read; 0: added by this process */
} entry_t;

typedef struct {
    entry_t *rows;
    size_t n_rows;
    char **runs; /* [n_runs] about run i + 1 */
    long n_runs;
} results_t;

static results_t added;

static char *copy(const char *text, size_t n)
{
    char *s = malloc(n + 1);
    if (s == NULL)
        bench_fail("out of memory");
    memcpy(s, text, n);
    s[n] = '\0';
    return s;
}

static void grow(void *list_p, size_t n, size_t each)
{
    void **list = list_p;
    void *more = realloc(*list, (n + 1) * each);
    if (more == NULL)
        bench_fail("out of memory");
    *list = more;
}

/* Takes key and rest over. A later row of the same key replaces the earlier one in its place. */
static void put(results_t *r, entry_t e)
{
    for (size_t i = 0; i < r->n_rows; i++)
        if (strcmp(r->rows[i].key, e.key) == 0) {
            free(r->rows[i].key);
            free(r->rows[i].rest);
            r->rows[i] = e;
            return;
        }
    grow(&r->rows, r->n_rows, sizeof *r->rows);
    r->rows[r->n_rows++] = e;
}

static void forget(results_t *r)
{
    for (size_t i = 0; i < r->n_rows; i++) {
        free(r->rows[i].key);
        free(r->rows[i].rest);
    }
    for (long i = 0; i < r->n_runs; i++)
        free(r->runs[i]);
    free(r->rows);
    free(r->runs);
    *r = (results_t){0};
}

/* ---- reading ---- */

/* Behind a field, at its comma; NULL where there is none. */
static const char *field_end(const char *s)
{
    bool quoted = false;
    for (; *s != '\0'; s++) {
        if (*s == '"')
            quoted = !quoted;
        else if (*s == ',' && !quoted)
            return s;
    }
    return NULL;
}

static bool take_run(results_t *r, const char *line)
{
    char *end;
    long number = strtol(line + sizeof run_mark - 1, &end, 10);
    if (number != r->n_runs + 1 || strncmp(end, " | ", 3) != 0)
        return false;
    grow(&r->runs, (size_t)r->n_runs, sizeof *r->runs);
    r->runs[r->n_runs++] = copy(end + 3, strlen(end + 3));
    return true;
}

static bool take_row(results_t *r, const char *line)
{
    const char *name = field_end(line), *unit = name ? field_end(name + 1) : NULL, *last = strrchr(line, ',');
    char *end;
    if (unit == NULL || last <= unit)
        return false;
    long run = strtol(last + 1, &end, 10);
    if (*end != '\0' || run < 1 || run > r->n_runs)
        return false;
    put(r, (entry_t){copy(line, (size_t)(unit - line)), copy(unit + 1, (size_t)(last - unit - 1)), run});
    return true;
}

static void read_file(const char *path, results_t *r)
{
    char line[LINE_BYTES];
    bool has_head = false;
    FILE *f = fopen(path, "r");
    if (f == NULL && errno == ENOENT)
        return;
    if (f == NULL)
        bench_fail("cannot read %s: %s", path, strerror(errno));
    for (int number = 1; fgets(line, sizeof line, f) != NULL; number++) {
        bool is_whole = strchr(line, '\n') != NULL, good = is_whole;
        line[strcspn(line, "\r\n")] = '\0';
        if (strncmp(line, run_mark, sizeof run_mark - 1) == 0)
            good = good && take_run(r, line);
        else if (line[0] != '#' && !has_head)
            good = good && (has_head = strcmp(line, BENCH_RESULTS_HEAD) == 0);
        else if (line[0] != '#')
            good = good && take_row(r, line);
        if (!good)
            bench_fail("%s:%d is not a line of a results file; move the file away", path, number);
    }
    fclose(f);
}

void bench_results_check(const char *path)
{
    results_t r = {0};
    read_file(path, &r);
    forget(&r);
}

/* ---- writing ---- */

void bench_results_add(const char *kind, const char *name, const char *rest)
{
    char key[LINE_BYTES / 2];
    size_t n = (size_t)snprintf(key, sizeof key, "%s,", kind);
    bool quoted = strpbrk(name, ",\"") != NULL;
    if (quoted)
        key[n++] = '"';
    for (; *name != '\0' && n + 4 < sizeof key; name++) {
        if (*name == '"')
            key[n++] = '"';
        key[n++] = *name == '\n' ? ' ' : *name;
    }
    if (quoted)
        key[n++] = '"';
    put(&added, (entry_t){copy(key, n), copy(rest, strlen(rest)), 0});
}

static void print(FILE *f, const results_t *r, const char *bench)
{
    long *number = calloc((size_t)r->n_runs + 1, sizeof *number), next = 0; /* runs that still have a row */
    if (number == NULL)
        bench_fail("out of memory");
    fprintf(f, "# bench %s\n", bench);
    for (long i = 1; i <= r->n_runs; i++) {
        for (size_t k = 0; k < r->n_rows && number[i] == 0; k++)
            number[i] = r->rows[k].run == i ? ++next : 0;
        if (number[i] != 0)
            fprintf(f, "%s%ld | %s\n", run_mark, number[i], r->runs[i - 1]);
    }
    fprintf(f, "%s\n", BENCH_RESULTS_HEAD);
    for (size_t k = 0; k < r->n_rows; k++)
        fprintf(f, "%s,%s,%ld\n", r->rows[k].key, r->rows[k].rest, number[r->rows[k].run]);
    free(number);
}

void bench_results_write(const char *path, const char *bench, const char *about)
{
    char aside[LINE_BYTES];
    results_t r = {0};
    if (added.n_rows == 0)
        return;
    read_file(path, &r);
    grow(&r.runs, (size_t)r.n_runs, sizeof *r.runs);
    r.runs[r.n_runs++] = copy(about, strlen(about));
    for (size_t i = 0; i < added.n_rows; i++)
        put(&r, (entry_t){added.rows[i].key, added.rows[i].rest, r.n_runs});
    added.n_rows = 0; /* the rows are r's now */
    forget(&added);
    snprintf(aside, sizeof aside, "%s.new", path);
    FILE *f = fopen(aside, "w");
    if (f == NULL)
        bench_fail("cannot write %s: %s", aside, strerror(errno));
    print(f, &r, bench);
    bool failed = ferror(f) != 0;
    if ((fclose(f) != 0) | failed || rename(aside, path) != 0)
        bench_fail("cannot write %s: %s", path, strerror(errno));
    forget(&r);
}
