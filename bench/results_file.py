"""The file of results that a bench leaves: read, merge, write. The form is that of results_file.h."""
import csv
import datetime
import io
import math
import os
import pathlib
import platform
import subprocess

HEAD = ["kind", "name", "unit", "median", "p10", "p90", "p99", "n", "run"]
RUN_MARK = "# run "
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Results:
    """rows: {(kind, name): {"unit", "median", ..., "run"}} in the file's order; runs: about each, by number - 1."""

    def __init__(self, bench):
        self.bench, self.runs, self.rows = bench, [], {}

    def value(self, name):
        row = self.rows.get(("figure", name))
        return None if row is None else float(row["median"])

    def about(self, row):
        """date, commit, machine, command of the run that a row is of."""
        return self.runs[row["run"] - 1].split(" | ", 3)


def read(path):
    """Damage of whatever kind is a ValueError that names the file."""
    path = pathlib.Path(path)
    try:
        return parse(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def parse(path):
    results, lines = Results(path.stem), path.read_text().splitlines()
    data = [line for line in lines if not line.startswith("#")]
    for line in lines:
        if line.startswith(RUN_MARK):
            number, about = line[len(RUN_MARK):].split(" | ", 1)
            results.runs.append(about)
            if int(number) != len(results.runs) or about.count(" | ") < 3:
                raise ValueError(f"{path}: run {number} is out of order or not described")
    reader = csv.DictReader(data, strict=True)
    if reader.fieldnames != HEAD:
        raise ValueError(f"{path} is no file of results")
    for row in reader:
        if None in row or None in row.values() or as_number(row["run"]) not in range(1, len(results.runs) + 1):
            raise ValueError(f"{path}: the row {row.get('name')} is damaged")
        if not math.isfinite(as_number(row["median"])):
            raise ValueError(f"{path}: the row {row['name']} has no number, but '{row['median']}'")
        row["run"] = int(float(row["run"]))
        results.rows[row["kind"], row["name"]] = row
    return results


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def merge(old, new):
    """new's rows replace old's of the same name; runs without rows go."""
    merged = Results(new.bench)
    runs = old.runs + new.runs if old else list(new.runs)
    rows = {key: dict(row) for key, row in old.rows.items()} if old else {}
    for key, row in new.rows.items():
        rows[key] = dict(row, run=row["run"] + (len(old.runs) if old else 0))
    used = sorted({row["run"] for row in rows.values()})
    merged.runs = [runs[i - 1] for i in used]
    merged.rows = {key: dict(row, run=used.index(row["run"]) + 1) for key, row in rows.items()}
    return merged


def write(path, results):
    out = io.StringIO()
    out.write(f"# bench {results.bench}\n")
    for i, about in enumerate(results.runs):
        out.write(f"{RUN_MARK}{i + 1} | {about}\n")
    writer = csv.DictWriter(out, HEAD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results.rows.values())
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(out.getvalue())
    aside.replace(path)


def commit():
    """"-dirty": what is measured is not the commit; results and pages do not count."""
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    done = git("rev-parse", "--short=12", "HEAD")
    if done.returncode:
        return "unknown"
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)bench/results", ":(exclude)*.md").returncode
    return done.stdout.strip() + ("-dirty" if changed else "")


def machine():
    def field(path, key):
        with open(path) as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith(key)), "unknown")
    memory = int(field("/proc/meminfo", "MemTotal").split()[0]) / 1048576
    return (f"{field('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cpus, {memory:.1f} GiB, "
            f"Linux {platform.release()}")


class Run:
    """What a bench written in Python prints and keeps: the head, rows, figures."""

    def __init__(self, bench, arguments):
        self.results = Results(bench)
        self.command = " ".join([f"bench {bench}", *arguments])
        self.commit, self.machine = commit(), machine()
        print(f"# command: {self.command}\n# commit: {self.commit}\n# machine: {self.machine}", flush=True)

    def row(self, name, unit, samples):
        s = sorted(samples)
        at = [s[max(0, -(-p * len(s) // 100) - 1)] for p in (10, 90, 99)]
        middle = (s[(len(s) - 1) // 2] + s[len(s) // 2]) / 2
        self._add("row", name, unit, [middle, *at], len(s))
        print(f"{name:<44} {unit:<8} {middle:12.4g} {at[0]:12.4g} {at[1]:12.4g} {at[2]:12.4g} {len(s):6}", flush=True)

    def figure(self, name, value):
        self._add("figure", name, "", [value], None)
        print(f"figure {name} {value:.4g}", flush=True)

    def _add(self, kind, name, unit, values, n):
        texts = [f"{v:.9g}" for v in values] + [""] * (4 - len(values))
        self.results.rows[kind, name] = dict(zip(HEAD, [kind, name, unit, *texts, "" if n is None else n, 1]))

    def keep(self, path):
        now = datetime.datetime.now(datetime.timezone.utc)
        self.results.runs = [" | ".join([now.strftime("%Y-%m-%dT%H:%M:%SZ"), self.commit, self.machine, self.command])]
        path = pathlib.Path(path)
        write(path, merge(read(path) if path.exists() else None, self.results))
