/*
 * Accepted drafts of 30 against bytes a token on the wire, as an SVG file: one colour and mark a method, points of a
 * method joined, a grey line through those that no other beats. Plain SVG 1.1, no script, no font but the viewer's.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compress_parts.h"
#include "vc/mem.h"

enum { WIDTH = 980, HEIGHT = 620, LEFT = 70, RIGHT = 210, TOP = 50, BOTTOM = 60, MOST_SERIES = 20 };

static const char *const colours[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8e44ad", "#e08e0b", "#008b8b",
                                      "#7a5230", "#c2185b", "#556b2f", "#34495e", "#999900", "#4b0082"};

typedef struct {
    FILE *f;
    double least, most; /* bytes, on a log axis */
    const char *series[MOST_SERIES];
    uint32_t n_series;
} plot_t;

static double x_of(const plot_t *p, double bytes)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (log(bytes) - log(p->least)) / (log(p->most) - log(p->least));
}
static double y_of(double accepted) { return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * accepted / COMPRESS_LONGEST; }

static const compress_tally_t *of(const compress_run_t *run, uint32_t i)
{
    return &run->specs[i].sum[run->n_prefixes - 1];
}
static double px(const plot_t *p, const compress_run_t *run, uint32_t i) { return x_of(p, compress_wire(of(run, i))); }
static double py(const compress_run_t *run, uint32_t i)
{
    return y_of(compress_accepted(of(run, i), COMPRESS_LENGTHS - 1));
}

/* Powers of two in KiB around the data. */
static void take_range(plot_t *p, const compress_run_t *run)
{
    p->least = 1e300;
    p->most = 0;
    for (uint32_t i = 0; i < run->n_specs; i++) {
        double wire = compress_wire(of(run, i));
        p->least = fmin(p->least, wire);
        p->most = fmax(p->most, wire);
        uint32_t s = 0;
        while (s < p->n_series && strcmp(p->series[s], run->specs[i].series) != 0)
            s++;
        if (s == p->n_series && s < MOST_SERIES)
            p->series[p->n_series++] = run->specs[i].series;
    }
    p->least *= 0.85;
    p->most *= 1.18;
}

static void text(const plot_t *p, double x, double y, const char *anchor, int size, const char *colour,
                 const char *words)
{
    fprintf(p->f, "<text x='%.1f' y='%.1f' text-anchor='%s' font-size='%d' fill='%s'>%s</text>\n", x, y, anchor, size,
            colour, words);
}

static void axes(const plot_t *p, const compress_run_t *run)
{
    char words[200];
    for (int a = 0; a <= COMPRESS_LONGEST; a += 5) {
        fprintf(p->f, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#dddddd'/>\n", LEFT, y_of(a), WIDTH - RIGHT,
                y_of(a));
        snprintf(words, sizeof words, "%d", a);
        text(p, LEFT - 8, y_of(a) + 4, "end", 12, "#333333", words);
    }
    static const double ticks[] = {500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10000, 12000, 16000, 23040};
    for (size_t i = 0; i < VC_ARRAY_LEN(ticks); i++) {
        if (ticks[i] < p->least || ticks[i] > p->most)
            continue;
        double x = x_of(p, ticks[i]);
        fprintf(p->f, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' stroke='#eeeeee'/>\n", x, TOP, x, HEIGHT - BOTTOM);
        snprintf(words, sizeof words, "%g", ticks[i]);
        text(p, x, HEIGHT - BOTTOM + 18, "middle", 12, "#333333", words);
    }
    fprintf(p->f, "<rect x='%d' y='%d' width='%d' height='%d' fill='none' stroke='#333333'/>\n", LEFT, TOP,
            WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    text(p, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16, "middle", 14, "#111111",
         "bytes a token on the wire (log axis), exact records of first and last blocks counted");
    fprintf(p->f,
            "<text transform='translate(20 %.1f) rotate(-90)' text-anchor='middle' font-size='14' fill='#111111'>"
            "drafts accepted of 30</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2.0);
    snprintf(words, sizeof words, "Accepted drafts against bytes: %u texts, prefix of %u tokens, true text forced",
             run->n_texts, run->prefixes[run->n_prefixes - 1]);
    text(p, LEFT, 30, "start", 16, "#111111", words);
}

/* The specs of a series from few bytes to many, as the line goes. */
static uint32_t members(const compress_run_t *run, const char *series, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < run->n_specs; i++) {
        if (series ? strcmp(run->specs[i].series, series) != 0 : !compress_on_front(run, i))
            continue;
        uint32_t at = n++;
        for (; at > 0 && compress_wire(of(run, out[at - 1])) > compress_wire(of(run, i)); at--)
            out[at] = out[at - 1];
        out[at] = i;
    }
    return n;
}

static void line(const plot_t *p, const compress_run_t *run, const uint32_t *list, uint32_t n, const char *style)
{
    fputs("<polyline fill='none' points='", p->f);
    for (uint32_t k = 0; k < n; k++)
        fprintf(p->f, "%.1f,%.1f ", px(p, run, list[k]), py(run, list[k]));
    fprintf(p->f, "' %s/>\n", style);
}

/* Circles, squares, diamonds, in turn, and in another order once all colours were used. */
static void mark(const plot_t *p, double x, double y, uint32_t s)
{
    const char *c = colours[s % VC_ARRAY_LEN(colours)];
    const uint32_t shape = (s + s / (uint32_t)VC_ARRAY_LEN(colours)) % 3;
    if (shape == 0)
        fprintf(p->f, "<circle cx='%.1f' cy='%.1f' r='4.5' fill='%s'/>\n", x, y, c);
    else
        fprintf(p->f, "<rect x='%.1f' y='%.1f' width='8' height='8' fill='%s' transform='rotate(%d %.1f %.1f)'/>\n",
                x - 4, y - 4, c, shape == 1 ? 0 : 45, x, y);
}

/* Beside its point, on the side where no earlier one is. */
static void label(const plot_t *p, const compress_run_t *run, uint32_t i, const char *colour)
{
    double x = px(p, run, i), y = py(run, i);
    bool crowded = false;
    for (uint32_t k = 0; k < i; k++)
        crowded |= fabs(px(p, run, k) - x) < 26 && fabs(py(run, k) - y) < 14;
    text(p, crowded ? x - 7 : x + 7, crowded ? y + 13 : y - 5, crowded ? "end" : "start", 11, colour,
         run->specs[i].label);
}

void compress_write_plot(const compress_run_t *run, const char *path)
{
    plot_t p = {.f = fopen(path, "w")};
    uint32_t list[COMPRESS_SPECS];
    if (!p.f)
        bench_fail("cannot write %s", path);
    take_range(&p, run);
    fprintf(p.f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' "
            "font-family='sans-serif'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    axes(&p, run);
    uint32_t n = members(run, NULL, list);
    line(&p, run, list, n, "stroke='#bbbbbb' stroke-width='6' stroke-linejoin='round' opacity='0.6'");
    for (uint32_t s = 0; s < p.n_series; s++) {
        char style[80];
        const char *colour = colours[s % VC_ARRAY_LEN(colours)];
        n = members(run, p.series[s], list);
        snprintf(style, sizeof style, "stroke='%s' stroke-width='1.3' opacity='0.8'", colour);
        line(&p, run, list, n, style);
        for (uint32_t k = 0; k < n; k++) {
            mark(&p, px(&p, run, list[k]), py(run, list[k]), s);
            label(&p, run, list[k], colour);
        }
        double y = TOP + 12 + 22.0 * s;
        mark(&p, WIDTH - RIGHT + 22, y, s);
        text(&p, WIDTH - RIGHT + 36, y + 4, "start", 13, "#111111", p.series[s]);
    }
    double y = TOP + 12 + 22.0 * p.n_series;
    fprintf(p.f, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#bbbbbb' stroke-width='6'/>\n", WIDTH - RIGHT + 12,
            y, WIDTH - RIGHT + 32, y);
    text(&p, WIDTH - RIGHT + 36, y + 4, "start", 13, "#111111", "most for the bytes");
    fputs("</svg>\n", p.f);
    if (ferror(p.f) || fclose(p.f) != 0)
        bench_fail("cannot write %s", path);
    bench_note("written: %s", path);
}
