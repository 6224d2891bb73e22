#!/usr/bin/env python3
"""Makes what is told about measurements from the files that benches left in bench/results: a plot of each bench, lines
over context length, bench/results/README.md with every row, and the headline figures in the root README.

  ./run results                what is in bench/results
  ./run results --take NAME... first merges build/results/NAME.csv into it (all: every file there)
  ./run results --check        writes nothing; exit code 1 where something committed is not what this would make
Floors, aims, one line of meaning and what is a headline: bench/figures.csv. A figure with * in its name stands for
all that match; what they have there goes into its meaning.
"""
import argparse
import copy
import csv
import pathlib
import re
import sys

import results_file
import results_plot

BENCH = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


class Figure:
    def __init__(self, row):
        self.bench, self.name, self.meaning, self.unit = row["bench"], row["figure"], row["meaning"], row["unit"]
        self.less = {"more": False, "less": True}[row["better"]]
        self.floor = float(row["floor"]) if row["floor"] else None
        self.aim = float(row["aim"]) if row["aim"] else None
        self.floor_text, self.aim_text = row["floor"], row["aim"]
        self.head = {"yes": True, "": False, None: False}[row["head"]]
        self.pattern = re.compile("([^_]+)".join(map(re.escape, self.name.split("*")))) if "*" in self.name else None
        if self.pattern and (self.head or self.floor_text or self.meaning.count("*") != self.name.count("*")):
            raise ValueError(f"figures.csv: {self.name} needs as many * in its meaning, no bounds, and is no headline")

    def named(self, name):
        """This pattern for one of the figures that it stands for, or None."""
        match = self.pattern.fullmatch(name) if self.pattern else None
        if match is None:
            return None
        one, parts = copy.copy(self), self.meaning.split("*")
        one.name, one.pattern = name, None
        one.meaning = parts[0] + "".join(value + part for value, part in zip(match.groups(), parts[1:]))
        return one

    def reaches(self, value, bound):
        return value <= bound if self.less else value >= bound

    def verdict(self, value):
        if self.floor is None:
            return ""
        if not self.reaches(value, self.floor):
            return "**below**"
        return "aim" if self.aim is not None and self.reaches(value, self.aim) else "floor"

    def show(self, value):
        """As short as the verdict survives, and longer beside a bound."""
        unit = "" if self.unit in ("", "x") else " " + self.unit
        close = any(bound and value != bound and abs(value / bound - 1) < 0.008 for bound in (self.floor, self.aim))
        for digits in (3 if close else 2, 3, 4):
            text = short(value, digits)
            if self.verdict(float(text)) == self.verdict(value):
                break
        return text + unit

    def bounds(self):
        if self.floor is None:
            return ""
        return self.floor_text + (f" / {self.aim_text}" if self.aim is not None else "")

    def ratio(self, value):
        """Over the floor, more is better; None where that says nothing."""
        if not self.floor or not value:
            return None
        return self.floor / value if self.less else value / self.floor


def short(value, digits=2):
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.{digits}f}" if abs(value) >= 0.1 else f"{value:.{digits + 1}f}"


class Lines:
    """Rows or figures whose names match, as lines over the x in their name ("2k": 2048)."""

    def __init__(self, bench, file, title, y_label, pattern, rule=None, mark=None):
        self.bench, self.file, self.title, self.y_label = bench, file, title, y_label
        self.pattern, self.rule, self.mark = re.compile(pattern), rule, mark

    def draw(self, results):
        series = {}
        for (_, name), row in results.rows.items():
            match = self.pattern.fullmatch(name)
            if match:
                series.setdefault(match["series"], {})[tokens(match["x"])] = float(row["median"])
        if not any(len(points) > 1 for points in series.values()):
            return None
        return results_plot.lines(self.title, "tokens of context (log axis)", self.y_label, series, rule=self.rule)


def tokens(text):
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


LINES = [  # the root README shows the first two
    Lines("engine", "engine-depth.svg", "Decoding with full KV against llama.cpp, 2 threads", "tokens/s",
          r"decode_(?P<x>\d+k?) (?P<series>ours|llama\.cpp)"),
    Lines("speculate", "speculate-depth.svg", "Draft/verify against plain decoding, rot:bits=4, automatic draft length",
          "times as fast", r"(?P<series>prose|chat|code|retrieval) (?P<x>\d+k) rot:bits=4 gain, automatic", rule=1),
    Lines("speculate", "speculate-depth-snapkv.svg", "The same with snapkv:keep=0.25", "times as fast",
          r"(?P<series>prose|chat|code|retrieval) (?P<x>\d+k) snapkv:keep=0.25 gain, automatic", rule=1),
]


# ---- input ----

def load_figures():
    with open(BENCH / "figures.csv", newline="") as f:
        return [Figure(row) for row in csv.DictReader(f, strict=True)]


def load_results(figures):
    """By bench, in the order of figures.csv; other tables in the folder are their benches' own affair."""
    benches = {figure.bench for figure in figures}
    found = {}
    for path in sorted((BENCH / "results").glob("*.csv")):
        if path.stem in benches or path.read_bytes().startswith(b"# bench "):
            found[path.stem] = results_file.read(path)
            if any(" --quick" in about for about in found[path.stem].runs):
                raise ValueError(f"{path}: a run with --quick says nothing")
    return found


def in_order(figures, results):
    order = list(dict.fromkeys([f.bench for f in figures] + sorted(results)))
    groups = [(bench, of_bench(bench, figures, results.get(bench)), results.get(bench)) for bench in order]
    return [(bench, of, found) for bench, of, found in groups if of or found]


def of_bench(bench, figures, results):
    """The bench's figures, then those that its patterns stand for. One that was measured and has no meaning is an error."""
    own = [f for f in figures if f.bench == bench]
    told = [f for f in own if not f.pattern]
    names = {f.name for f in told}
    for kind, name in results.rows if results else ():
        if kind == "figure" and name not in names:
            one = next(filter(None, (f.named(name) for f in own)), None)
            if one is None:
                raise ValueError(f"bench/results/{bench}.csv: {name} has no line in bench/figures.csv")
            told.append(one)
    return told


# ---- output ----

def command(bench):
    """What is measured again with other instructions has a file of its own: --csv build/results/NAME-avx2.csv."""
    return bench.replace("-avx2", " --isa avx2")


class Runs:
    """Numbers for runs of one commit, day and machine."""

    def __init__(self):
        self.numbers = {}

    def number(self, results, row):
        date, commit, machine, _ = results.about(row)
        return self.numbers.setdefault((date[:10], commit, machine), len(self.numbers) + 1)

    def told(self):
        """A sentence for each machine."""
        by_machine = {}
        for (date, commit, machine), n in self.numbers.items():
            by_machine.setdefault(machine, []).append(f"{n}: `{commit}`, {date}")
        return " ".join(f"Runs on {machine}: {'; '.join(runs)}." for machine, runs in by_machine.items())


def figure_cells(figure, results, runs):
    row = results.rows.get(("figure", figure.name)) if results else None
    if row is None:
        return [figure.meaning, "not measured", figure.bounds(), "", ""]
    value = float(row["median"])
    return [figure.meaning, figure.show(value), figure.bounds(), figure.verdict(value), str(runs.number(results, row))]


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows]


def plots_of(bench, figures, results):
    """{file name: SVG}"""
    plots, rows = {}, []
    for figure in figures:
        value = results.value(figure.name) if results else None
        ratio = figure.ratio(value) if value is not None else None
        if ratio:
            aim = figure.ratio(figure.aim) if figure.aim else None
            rows.append((figure.name, f"{figure.show(value)} ({figure.bounds()})", ratio, aim))
    if rows:
        plots[f"{bench}.svg"] = results_plot.bars(f"bench {bench}", rows)
    for spec in LINES:
        drawn = spec.draw(results) if spec.bench == bench and results else None
        if drawn:
            plots[spec.file] = drawn
    return plots


def section(groups, plots):
    """The part of the root README: headlines."""
    runs, rows = Runs(), []
    for bench, figures, results in groups:
        for i, figure in enumerate(f for f in figures if f.head):
            rows.append([f"`bench {command(bench)}`" if i == 0 else ""] + figure_cells(figure, results, runs))
    text = table(["`./run`", "figure", "measured", "floor / aim", "reached", "run"], rows)
    text += ["", runs.told(), ""]
    text += [f"![{spec.title}](bench/results/{spec.file})" for spec in LINES[:2] if spec.file in plots]
    return "\n".join(text + ["", "All other figures, every row and a plot for each bench: [bench/results](bench/results/README.md)."])


def bench_page(groups, plots_by_bench):
    """bench/results/README.md"""
    text = ["# Results", "", "Made by `./run results` from the files in this folder, in which benches leave what they "
            "measured; floors and aims: [figures.csv](../figures.csv). Written by benches themselves: `compress-*`, "
            "`sim-*`."]
    for bench, figures, results in groups:
        runs = Runs()
        text += ["", f"## {bench}", ""]
        rows = [[f"`{f.name}`"] + figure_cells(f, results, runs) for f in figures]
        text += table(["figure", "what it is", "measured", "floor / aim", "reached", "run"], rows)
        samples = [[name, row["unit"]] + [f"{float(row[p]):.4g}" for p in ("median", "p10", "p90", "p99")] +
                   [row["n"], str(runs.number(results, row))]
                   for (kind, name), row in (results.rows.items() if results else ()) if kind == "row"]
        if samples:
            text += [""] + table(["row", "unit", "median", "p10", "p90", "p99", "n", "run"], samples)
        if runs.numbers:
            text += ["", runs.told()]
        text += [""] + [f"![{name}]({name})" for name in plots_by_bench[bench]]
        while not text[-1]:
            text.pop()
    return "\n".join(text) + "\n"


def replace_section(readme, text):
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"README.md does not have {BEGIN} and {END}, in this order and once each")
    return readme[:readme.index(BEGIN)] + BEGIN + "\n" + text + "\n" + readme[readme.index(END):]


def make():
    """{path: text} of everything that is generated."""
    figures = load_figures()
    groups = in_order(figures, load_results(figures))
    plots = {bench: plots_of(bench, figures, results) for bench, figures, results in groups}
    made = {BENCH / "results" / name: svg for of in plots.values() for name, svg in of.items()}
    readme = BENCH.parent / "README.md"
    made[readme] = replace_section(readme.read_text(), section(groups, {n for of in plots.values() for n in of}))
    made[BENCH / "results" / "README.md"] = bench_page(groups, plots)
    return made


def take(names):
    built = BENCH.parent / "build" / "results"
    if names == ["all"]:
        names = sorted(path.stem for path in built.glob("*.csv"))
    for name in names:
        new, kept = results_file.read(built / f"{name}.csv"), BENCH / "results" / f"{name}.csv"
        results_file.write(kept, results_file.merge(results_file.read(kept) if kept.exists() else None, new))
        print(f"taken: {name}, {len(new.rows)} rows")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--take", nargs="+", metavar="NAME", default=[])
    args = p.parse_args()
    if args.check and args.take:
        p.error("--check changes nothing, --take does")
    take(args.take)
    made = make()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if args.check:
            print(f"{path.relative_to(BENCH.parent)} is not what ./run results makes")
        else:
            path.write_text(made[path])
            print(f"written: {path.relative_to(BENCH.parent)}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, KeyError, csv.Error) as error:
        sys.exit(f"results: {error}")
