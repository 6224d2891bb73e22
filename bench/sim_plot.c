/* Predicted and published speed-ups side by side, as an SVG file: plain SVG 1.1, no script, the viewer's font. */
#include <stdio.h>

#include "harness.h"
#include "sim_parts.h"

enum { LEFT = 210, SCALE = 150, ROW = 44, TOP = 60, MOST = 4 };

static double x_of(double speed_up) { return LEFT + SCALE * speed_up; }

static void text(FILE *f, double x, double y, const char *anchor, const char *words)
{
    fprintf(f, "<text x='%.1f' y='%.1f' text-anchor='%s' font-size='13' fill='#333333'>%s</text>\n", x, y, anchor,
            words);
}

static void bar(FILE *f, double from, double to, double y, const char *colour)
{
    fprintf(f, "<rect x='%.1f' y='%.1f' width='%.1f' height='14' fill='%s'/>\n", x_of(from), y, x_of(to) - x_of(from),
            colour);
}

static void row(FILE *f, const sim_bar_t *b, double y)
{
    char words[64];
    text(f, LEFT - 10, y + 19, "end", b->label);
    bar(f, 0, b->low, y, "#1b6ca8");
    bar(f, b->low, b->high, y, "#8fbfe0");
    bar(f, 0, b->published, y + 15, "#e08e0b");
    if (b->high > b->low * 1.005)
        snprintf(words, sizeof words, "%.2f to %.2f", b->low, b->high);
    else
        snprintf(words, sizeof words, "%.2f", b->high);
    text(f, x_of(b->high) + 5, y + 12, "start", words);
    snprintf(words, sizeof words, "%.2f", b->published);
    text(f, x_of(b->published) + 5, y + 27, "start", words);
}

void sim_plot(const char *path, const sim_bar_t *bars, uint32_t n_bars)
{
    double bottom = TOP + ROW * (double)n_bars;
    char words[16];
    FILE *f = fopen(path, "w");
    if (f == NULL)
        bench_fail("cannot write %s", path);
    fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' font-family='sans-serif'>\n",
            x_of(MOST) + 60, bottom + 30);
    fprintf(f, "<rect width='100%%' height='100%%' fill='white'/>\n");
    text(f, LEFT, 22, "start",
         "Speed-up over full KV: simulated (blue; pale: from one request to 64) and published (orange)");
    for (int i = 0; i <= MOST; i++) {
        fprintf(f, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%.1f' stroke='#dddddd'/>\n", x_of(i), TOP - 10, x_of(i),
                bottom);
        snprintf(words, sizeof words, "%dx", i);
        text(f, x_of(i), bottom + 18, "middle", words);
    }
    for (uint32_t i = 0; i < n_bars; i++)
        row(f, &bars[i], TOP + ROW * (double)i);
    fprintf(f, "</svg>\n");
    if (fclose(f) != 0)
        bench_fail("%s was not written", path);
}
