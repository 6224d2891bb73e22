"""Closing table of the demo. Reads what the runs wrote into a folder; tells whether any answer differs.

q<N>.<mode>.json   result of `vericache-node generate --result-file` for question N; mode: recompute, full, vericache
stats.json         `vericachectl stats --json`
link.<mode>.txt    bytes that crossed the slow link in all runs of a mode, as the network interface or the relay counted them
"""
import json
import pathlib
import statistics
import sys

MODES = ["recompute", "full", "vericache"]
TITLES = {"recompute": "(a) recompute", "full": "(b) fetch full KV", "vericache": "(c) VeriCache"}


def load(folder):
    runs = {}
    for path in sorted(folder.glob("q*.json")):
        question, mode, _ = path.name.split(".")
        runs[(question, mode)] = json.loads(path.read_text())
    return runs


def check(runs, questions):
    """Every mode must have committed the same tokens with the same logits; says where not."""
    good = True
    for question in questions:
        base = runs[(question, "recompute")]
        for mode in MODES[1:]:
            run = runs[(question, mode)]
            for key in ("tokens", "logits_digest", "finish"):
                if run[key] != base[key]:
                    print(f"{question}: {key} of {mode} differs from recompute", file=sys.stderr)
                    good = False
    return good


def row(title, values):
    print(f"  {title:<34}" + "".join(f"{v:>20}" for v in values))


def show(folder):
    """Prints the table; 0 when every answer is the same in all modes, else 1."""
    runs = load(folder)
    questions = sorted({q for q, _ in runs})
    if len(questions) != 3 or len(runs) != 9:
        raise RuntimeError(f"{len(runs)} results instead of 9")
    by = {m: [runs[(q, m)] for q in questions] for m in MODES}

    def median(mode, key, scale=1.0):
        return statistics.median(r[key] for r in by[mode]) * scale

    def link(mode):
        path = folder / f"link.{mode}.txt"
        return f"{int(path.read_text()) / 1e6:.1f} MB" if path.exists() else "-"

    print()
    row("", [TITLES[m] for m in MODES])
    row("time to first verified token", [f"{median(m, 'first_us', 1e-6):.2f} s" for m in MODES])
    row("tokens/s after it", [f"{median(m, 'tokens_per_s'):.1f}" for m in MODES])
    row("whole answer", [f"{median(m, 'total_us', 1e-6):.2f} s" for m in MODES])
    row("slow link, three answers", [link(m) for m in MODES])
    row("  as the node counted it", [f"{sum(r['slow_bytes'] for r in by[m]) / 1e6:.1f} MB" for m in MODES])
    row("fast link, three answers", [f"{sum(r['fast_bytes'] for r in by[m]) / 1e6:.1f} MB" for m in MODES])
    rounds = sum(r["rounds"] for r in by["vericache"])
    accepted = sum(r["accepted"] for r in by["vericache"])
    drafted = sum(r["drafted"] for r in by["vericache"])
    per_round = f"{accepted / rounds:.2f}" if rounds else "no round"
    share = f"{100 * accepted / drafted:.0f} %" if drafted else "-"
    row("drafts accepted per round", ["-", "-", per_round])
    row("  share of the drafts", ["-", "-", share])
    stats = json.loads((folder / "stats.json").read_text())
    for name, title in (("hit_rate_blocks_full", "full"), ("hit_rate_blocks_compressed", "compressed")):
        if name in stats:
            print(f"  hit rate over gRPC, {title} blocks: {100 * stats[name]:.1f} %")
    for q in questions:
        for note in runs[(q, "vericache")]["notes"]:
            print(f"  note ({q}): {note}")
    same = check(runs, questions)
    print(f"  identical: {'yes' if same else 'NO'}")
    return 0 if same else 1
