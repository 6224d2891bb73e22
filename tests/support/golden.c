/* Loader of golden vectors; see golden.h. All arithmetic of generated tensors is in double with one rounding at the
 * end, in the order that the vectors were made with. */
#include "support/golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct golden {
    char dir[512];
    json_t *root, *cases;
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("golden: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

static void *need(void *ptr)
{
    if (ptr == NULL)
        die("out of memory");
    return ptr;
}

golden_t *golden_open(const char *folder)
{
    golden_t *g = need(calloc(1, sizeof(*g)));
    char path[640];
    json_error_t error;
    snprintf(g->dir, sizeof(g->dir), "%s/%s", VC_TEST_VECTORS, folder);
    snprintf(path, sizeof(path), "%s/index.json", g->dir);
    g->root = json_load_file(path, 0, &error);
    if (g->root == NULL)
        die("%s:%d: %s", path, error.line, error.text);
    g->cases = json_object_get(g->root, "cases");
    if (!json_is_array(g->cases))
        die("%s: no cases", path);
    return g;
}

void golden_close(golden_t *g)
{
    if (g == NULL)
        return;
    json_decref(g->root);
    free(g);
}

size_t golden_n_cases(const golden_t *g) { return json_array_size(g->cases); }

golden_case_t golden_case_at(const golden_t *g, size_t i)
{
    json_t *j = json_array_get(g->cases, i);
    golden_case_t c = {.golden = g,
                       .name = json_string_value(json_object_get(j, "name")),
                       .params = json_object_get(j, "params"),
                       .inputs = json_object_get(j, "inputs"),
                       .outputs = json_object_get(j, "outputs"),
                       .tolerance = json_object_get(j, "tolerance"),
                       .scalars = json_object_get(j, "scalars")};
    if (c.name == NULL || !json_is_object(c.params) || !json_is_object(c.inputs) || !json_is_object(c.outputs))
        die("%s: case %zu is not complete", g->dir, i);
    return c;
}

golden_case_t golden_case(const golden_t *g, const char *name)
{
    for (size_t i = 0; i < golden_n_cases(g); i++) {
        golden_case_t c = golden_case_at(g, i);
        if (strcmp(c.name, name) == 0)
            return c;
    }
    die("%s: no case '%s'", g->dir, name);
}

static const json_t *param(const golden_case_t *c, const char *name)
{
    const json_t *j = json_object_get(c->params, name);
    if (j == NULL)
        die("%s: case '%s' has no param '%s'", c->golden->dir, c->name, name);
    return j;
}

double golden_num(const golden_case_t *c, const char *name)
{
    const json_t *j = param(c, name);
    if (!json_is_number(j))
        die("%s: case '%s': param '%s' is not a number", c->golden->dir, c->name, name);
    return json_number_value(j);
}

int64_t golden_int(const golden_case_t *c, const char *name)
{
    const json_t *j = param(c, name);
    if (!json_is_integer(j) && !json_is_boolean(j))
        die("%s: case '%s': param '%s' is not an integer", c->golden->dir, c->name, name);
    return json_is_boolean(j) ? json_is_true(j) : json_integer_value(j);
}

const char *golden_str(const golden_case_t *c, const char *name)
{
    const json_t *j = param(c, name);
    if (!json_is_string(j))
        die("%s: case '%s': param '%s' is not a string", c->golden->dir, c->name, name);
    return json_string_value(j);
}

bool golden_has(const golden_case_t *c, const char *name) { return json_object_get(c->params, name) != NULL; }

double golden_u(uint32_t seed, uint64_t i)
{
    uint64_t s = ((uint64_t)seed << 32) + i + 0x9E3779B97F4A7C15u;
    s = (s ^ (s >> 30)) * 0xBF58476D1CE4E5B9u;
    s = (s ^ (s >> 27)) * 0x94D049BB133111EBu;
    s ^= s >> 31;
    return (double)(s >> 40) * 0x1p-23 - 1.0;
}

void golden_fill(uint32_t seed, double scale, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(golden_u(seed, i) * scale);
}

/* Operations that change whole columns of x [rows, cols]. False: not one of them. */
static bool column_op(const char *op, const double *a, double *x, size_t rows, size_t cols)
{
    const size_t first = (size_t)a[0], second = (size_t)a[1];
    enum { MUL_LIN, ADD_LIN, ADD_GEN, MUL_EVERY, SET } kind;
    if (strcmp(op, "chan_mul_lin") == 0)
        kind = MUL_LIN;
    else if (strcmp(op, "chan_add_lin") == 0)
        kind = ADD_LIN;
    else if (strcmp(op, "chan_add_gen") == 0)
        kind = ADD_GEN;
    else if (strcmp(op, "chan_mul_every") == 0)
        kind = MUL_EVERY;
    else if (strcmp(op, "set_chans") == 0)
        kind = SET;
    else
        return false;
    for (size_t i = 0; i < rows * cols; i++) {
        const size_t c = i % cols;
        const double t = cols > 1 ? (double)c / (double)(cols - 1) : 0.0;
        switch (kind) {
        case MUL_LIN: x[i] *= a[0] + (a[1] - a[0]) * t; break;
        case ADD_LIN: x[i] += a[0] + (a[1] - a[0]) * t; break;
        case ADD_GEN: x[i] += a[1] * golden_u((uint32_t)first, c); break;
        case MUL_EVERY: x[i] *= c >= first && (c - first) % second == 0 ? a[2] : 1.0; break;
        case SET: x[i] = c >= first && c < second ? a[2] : x[i]; break;
        }
    }
    return true;
}

static bool row_op(const char *op, const double *a, double *x, size_t rows, size_t cols)
{
    if (strcmp(op, "set") == 0) {
        if (a[0] < 0 || a[0] >= (double)(rows * cols))
            return false;
        x[(size_t)a[0]] = a[1];
        return true;
    }
    const bool set = strcmp(op, "set_rows") == 0, mul = strcmp(op, "mul_rows") == 0, add = strcmp(op, "add_rows") == 0;
    if (!(set || mul || add) || a[0] < 0 || a[1] > (double)rows)
        return false;
    for (size_t i = (size_t)a[0] * cols; i < (size_t)a[1] * cols; i++)
        x[i] = set ? a[2] : mul ? x[i] * a[2] : x[i] + a[2];
    return true;
}

static void apply_op(const json_t *op, double *x, size_t rows, size_t cols, const char *where)
{
    const char *name = json_string_value(json_array_get(op, 0));
    double a[3] = {0};
    for (size_t i = 0; i < 3; i++)
        a[i] = json_number_value(json_array_get(op, i + 1));
    if (name == NULL || !(column_op(name, a, x, rows, cols) || row_op(name, a, x, rows, cols)))
        die("%s: operation '%s' is not known or out of bounds", where, name != NULL ? name : "?");
}

static void check_sums(const golden_tensor_t *t, const json_t *check, const char *where)
{
    double sum = 0, sumabs = 0;
    for (size_t i = 0; i < t->n; i++) {
        sum += (double)t->f32[i];
        sumabs += fabs((double)t->f32[i]);
    }
    const json_t *first = json_object_get(check, "first");
    for (size_t i = 0; i < json_array_size(first); i++)
        if (t->f32[i] != (float)json_number_value(json_array_get(first, i)))
            die("%s: generated element %zu is %.9g", where, i, (double)t->f32[i]);
    const double want_abs = json_number_value(json_object_get(check, "sumabs"));
    if (fabs(sum - json_number_value(json_object_get(check, "sum"))) > 1e-9 * (1 + want_abs) ||
        fabs(sumabs - want_abs) > 1e-9 * (1 + want_abs))
        die("%s: generated sums %.17g, %.17g differ from the check", where, sum, sumabs);
}

static void generate(golden_tensor_t *t, const json_t *gen, const json_t *check, const char *where)
{
    if (strcmp(t->dtype, "f32") != 0)
        die("%s: a generated tensor is not f32", where);
    double *x = need(malloc((t->n + 1) * sizeof(*x)));
    const uint32_t seed = (uint32_t)json_integer_value(json_object_get(gen, "seed"));
    const double scale = json_number_value(json_object_get(gen, "scale"));
    for (size_t i = 0; i < t->n; i++)
        x[i] = golden_u(seed, i) * scale;
    const json_t *ops = json_object_get(gen, "ops");
    const size_t rows = t->shape[0], cols = rows != 0 ? t->n / rows : 0;
    for (size_t i = 0; i < json_array_size(ops); i++)
        apply_op(json_array_get(ops, i), x, rows, cols, where);
    for (size_t i = 0; i < t->n; i++)
        t->f32[i] = (float)x[i];
    free(x);
    if (check == NULL)
        die("%s: a generated tensor has no check", where);
    check_sums(t, check, where);
}

static void load(const golden_t *g, golden_tensor_t *t, const json_t *j, const char *where)
{
    const char *file = json_string_value(json_object_get(j, "file"));
    const json_int_t offset = json_integer_value(json_object_get(j, "offset"));
    char path[1024];
    if (file == NULL || strchr(file, '/') != NULL || offset < 0)
        die("%s: neither stored nor generated", where);
    snprintf(path, sizeof(path), "%s/%s", g->dir, file);
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, (long)offset, SEEK_SET) != 0 || fread(t->data, 4, t->n, f) != t->n)
        die("%s: cannot read %zu elements of %s", where, t->n, path);
    fclose(f);
}

static golden_tensor_t tensor(const golden_case_t *c, const json_t *section, const char *name)
{
    char where[256];
    snprintf(where, sizeof(where), "case '%s', tensor '%s'", c->name, name);
    const json_t *j = json_object_get(section, name);
    const char *dtype = json_string_value(json_object_get(j, "dtype"));
    const json_t *shape = json_object_get(j, "shape");
    golden_tensor_t t = {.n = 1, .shape = {1, 1, 1, 1}, .n_dims = (uint32_t)json_array_size(shape)};
    if (j == NULL || dtype == NULL || strlen(dtype) != 3 || strstr("f32 u32 i32", dtype) == NULL || t.n_dims > 4)
        die("%s: absent, or of a type or rank that is not known", where);
    memcpy(t.dtype, dtype, 4);
    for (uint32_t d = 0; d < t.n_dims; d++) {
        t.shape[d] = (size_t)json_integer_value(json_array_get(shape, d));
        t.n *= t.shape[d];
    }
    t.data = need(malloc((t.n + 1) * 4));
    const json_t *gen = json_object_get(j, "gen");
    if (gen != NULL)
        generate(&t, gen, json_object_get(j, "check"), where);
    else
        load(c->golden, &t, j, where);
    return t;
}

golden_tensor_t golden_in(const golden_case_t *c, const char *name) { return tensor(c, c->inputs, name); }
golden_tensor_t golden_out(const golden_case_t *c, const char *name) { return tensor(c, c->outputs, name); }
bool golden_in_has(const golden_case_t *c, const char *name) { return json_object_get(c->inputs, name) != NULL; }
bool golden_out_has(const golden_case_t *c, const char *name) { return json_object_get(c->outputs, name) != NULL; }

void golden_tensor_free(golden_tensor_t *t)
{
    free(t->data);
    t->data = NULL;
}

/* "<number> <word>" terms joined by '+'. */
static bool parse_terms(const char *text, double scale, golden_tol_t *tol)
{
    bool any = false;
    for (const char *p = text; *p != '\0';) {
        char *end;
        const double v = strtod(p, &end);
        if (end == p)
            break;
        p = end + strspn(end, " ");
        if (strncmp(p, "absolute", 8) == 0)
            tol->abs += v;
        else if (strncmp(p, "relative", 8) == 0)
            tol->rel += v;
        else if (strncmp(p, "of ", 3) == 0 || strncmp(p, "* ", 2) == 0)
            tol->abs += v * scale;
        else
            break;
        any = true;
        p = strchr(p, '+');
        if (p == NULL)
            break;
        p++;
    }
    return any;
}

bool golden_tol(const golden_case_t *c, const char *name, double scale, golden_tol_t *tol_p)
{
    const json_t *j = json_object_get(c->tolerance, name);
    if (j == NULL)
        j = json_object_get(c->tolerance, "all");
    golden_tol_t tol = {0, 0};
    if (json_is_object(j)) {
        tol.abs = json_number_value(json_object_get(j, "abs"));
        tol.rel = json_number_value(json_object_get(j, "rel"));
    } else if (!json_is_string(j)) {
        return false;
    } else if (strncmp(json_string_value(j), "exact", 5) != 0 && !parse_terms(json_string_value(j), scale, &tol)) {
        return false;
    }
    *tol_p = tol;
    return true;
}

size_t golden_first_off(const float *got, const float *want, size_t n, golden_tol_t tol)
{
    for (size_t i = 0; i < n; i++) {
        if (got[i] == want[i]) /* also equal infinities */
            continue;
        const double delta = fabs((double)got[i] - (double)want[i]);
        if (!(delta <= tol.abs + tol.rel * fabs((double)want[i])))
            return i;
    }
    return n;
}
