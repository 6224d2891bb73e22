"""SVG plots of results: bars of figures over their floors, lines over context length. Plain SVG 1.1, no script, the
viewer's font; the same input gives the same bytes."""
import math
from xml.sax.saxutils import escape

INK, PALE, GRID = "#222222", "#666666", "#e2e2e2"
MET, AIM, BELOW = "#7fb3d5", "#1b6ca8", "#d1495b"
COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#e08e0b", "#8e44ad", "#008b8b", "#7a5230", "#556b2f"]


class Canvas:
    def __init__(self, width, height):
        self.parts = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
                      f"viewBox='0 0 {width} {height}' font-family='sans-serif'>",
                      "<rect width='100%' height='100%' fill='white'/>"]

    def text(self, x, y, words, anchor="start", size=12, colour=INK, turn=None):
        turned = f" transform='rotate({turn} {x:.1f} {y:.1f})'" if turn else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' fill='{colour}'"
                          f"{turned}>{escape(words)}</text>")

    def line(self, x1, y1, x2, y2, colour=GRID, width=1.0, dash=None):
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
                          f"stroke-width='{width:g}'{dashed}/>")

    def rect(self, x, y, w, h, colour):
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{w:.1f}' height='{h:.1f}' fill='{colour}'/>")

    def path(self, points, colour):
        self.parts.append("<polyline fill='none' stroke-width='2' stroke='%s' points='%s'/>" %
                          (colour, " ".join(f"{x:.1f},{y:.1f}" for x, y in points)))

    def dot(self, x, y, colour):
        self.parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>")

    def done(self):
        return "\n".join(self.parts + ["</svg>", ""])


def bars(title, rows):
    """rows: (label, text of the value, value over floor, aim over floor or None), more is better in both. One line a
    row on a log axis; the floor is the line at 1, a mark is the aim."""
    left, right, top, step = 260, 150, 62, 26
    width, height = 860, top + step * len(rows) + 52
    ratios = [r for _, _, v, a in rows for r in (v, a) if r]
    low, high = min(ratios + [0.8]) / 1.08, max(ratios + [1.25]) * 1.08
    c = Canvas(width, height)

    def x_of(ratio):
        return left + (width - left - right) * math.log(ratio / low) / math.log(high / low)

    c.text(16, 26, title, size=16)
    c.text(16, 45, "bar: measured over its floor (log axis), line at 1: the floor, mark: the aim", colour=PALE)
    for tick in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50):
        if low <= tick <= high:
            c.line(x_of(tick), top - 6, x_of(tick), height - 42)
            c.text(x_of(tick), height - 26, f"{tick:g}", "middle", colour=PALE)
    c.text(left + (width - left - right) / 2, height - 8, "measured / floor", "middle", 13)
    for i, (label, words, ratio, aim) in enumerate(rows):
        y = top + step * i
        colour = BELOW if ratio < 1 else AIM if aim and ratio >= aim else MET
        a, b = sorted((x_of(1), x_of(ratio)))
        c.text(left - 10, y + 14, label, "end", 12)
        c.rect(a, y + 3, max(b - a, 1.5), 15, colour)
        if aim:
            c.line(x_of(aim), y, x_of(aim), y + 21, INK, 2)
        c.text(max(b, x_of(aim) if aim else 0) + 7, y + 15, words, colour=INK)
    c.line(x_of(1), top - 6, x_of(1), height - 42, INK, 1.5)
    return c.done()


def ticks_of(most):
    step = 10 ** math.floor(math.log10(most))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if most / s <= 7)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def lines(title, x_label, y_label, series, marks=(), rule=None):
    """series: {name: {x: y}}; x on a log axis with a tick at each, y from 0. marks: (x, y, words): short bars, for
    floors and aims. rule: a dashed line at this y."""
    left, right, top, bottom, width, height = 76, 210, 56, 62, 860, 420
    xs = sorted({x for points in series.values() for x in points})
    most = 1.08 * max([y for points in series.values() for y in points.values()] + [m[1] for m in marks] + [rule or 0])
    c = Canvas(width, height)
    spread = math.log(xs[-1] / xs[0]) or 1

    def x_of(x):
        return left + 24 + (width - left - right - 48) * (math.log(x / xs[0]) / spread if len(xs) > 1 else 0.5)

    def y_of(y):
        return height - bottom - (height - top - bottom) * y / most

    c.text(16, 26, title, size=16)
    for y in ticks_of(most):
        c.line(left, y_of(y), width - right, y_of(y))
        c.text(left - 8, y_of(y) + 4, f"{y:g}", "end", colour=PALE)
    for x in xs:
        c.line(x_of(x), height - bottom, x_of(x), height - bottom + 5, INK)
        c.text(x_of(x), height - bottom + 20, f"{x:g}", "middle", colour=PALE)
    c.line(left, top, left, height - bottom, INK)
    c.line(left, height - bottom, width - right, height - bottom, INK)
    c.text((left + width - right) / 2, height - 14, x_label, "middle", 13)
    c.text(20, (top + height - bottom) / 2, y_label, "middle", 13, turn=-90)
    if rule:
        c.line(left, y_of(rule), width - right, y_of(rule), PALE, 1.2, "5 4")
    for x, y, words in marks:
        c.line(x_of(x) - 14, y_of(y), x_of(x) + 14, y_of(y), INK, 2)
        c.text(x_of(x) + 17, y_of(y) + 4, words, size=10, colour=PALE)
    for i, (name, points) in enumerate(series.items()):
        colour, y = COLOURS[i % len(COLOURS)], top + 10 + 22 * i
        c.path([(x_of(px), y_of(py)) for px, py in sorted(points.items())], colour)
        for px, py in points.items():
            c.dot(x_of(px), y_of(py), colour)
        c.dot(width - right + 24, y, colour)
        c.text(width - right + 36, y + 4, name)
    return c.done()
