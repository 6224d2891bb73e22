#!/usr/bin/env python3
"""Remote prefix cache against fetching the full KV over the same slow link.

One server, one verify node, one draft node behind a shaped link whose rate is the measured fast rate / 33 (a 100 Gbit/s fabric
beside 3 Gbit/s), or --rate. Requests of both kinds are interleaved; medians. Every answer of one question must be the same in
both, else the bench fails.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "demo"))
import cluster  # noqa: E402
import demo  # noqa: E402
import slowlink  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import results_file  # noqa: E402

RATIO = 33


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--quick", action="store_true", help="toy size: a smoke test, figures mean nothing")
    p.add_argument("--build", default=str(cluster.ROOT / "build" / "release"))
    p.add_argument("--document", default=None)
    p.add_argument("--document-tokens", type=int, default=4000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--rate", default=None, help="rate of the slow link (default: measured fast rate / 33)")
    p.add_argument("--delay-ms", type=float, default=1)
    p.add_argument("--compressor", default="rot:bits=4")
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--long-tokens", type=int, default=192, help="tokens of the long answers, whose end tokens are ignored (0: none)")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tail", default="verified", choices=["verified", "own"])
    p.add_argument("--csv", default=None, help="file of results to merge into (default: build/results/remote.csv, not with --quick)")
    p.add_argument("--keep", action="store_true", help="the file of results is bench/results/remote.csv")
    args = p.parse_args()
    if args.csv is None and (args.keep or not args.quick):
        args.csv = str(cluster.ROOT / ("bench" if args.keep else "build") / "results" / "remote.csv")
    if args.quick:
        args.document_tokens, args.rounds, args.max_tokens, args.long_tokens = 600, 1, 16, 24
    return args


def generate(args, programs, model, workdir, prompt, far, flags):
    result = workdir / "result.json"
    command = [programs.node, "generate", "--model", str(model), "--prompt-file", str(prompt), "--threads",
               str(args.threads), "--result-file", str(result), *flags]
    subprocess.run(far(command), check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def ours(args, server, verify):
    return ["--server", server, "--verifier", verify, "--compressor", args.compressor, "--no-data-plane", "--tail",
            args.tail]


def fast_rate(args, programs, model, workdir, prompt, nodes):
    """Bytes a second of full KV into the verify node over UCX, median of three requests on loopback."""
    rates = []
    for _ in range(1 if args.quick else 3):
        run = generate(args, programs, model, workdir, prompt, list,
                       ours(args, nodes.server_address, f"127.0.0.1:{nodes.verify.port}") +
                       ["--max-tokens", str(args.max_tokens)])
        if run["fast_bytes"] == 0:
            raise RuntimeError("the verify node fetched nothing")
        rates.append(run["fast_bytes"] * 1e6 / run["verify_fetch_us"])
    return statistics.median(rates)


def compare(args, programs, model, workdir, prompt, nodes, rate):
    with slowlink.SlowLink(rate, args.delay_ms, programs.relay, workdir) as link:
        host = link.near
        with cluster.Cluster(programs, model, workdir, args.threads, host) as far_nodes:
            nodes.close()
            server, verify = link.connect(far_nodes.server.port), link.connect(far_nodes.verify.port)
            ways = {"full": ["--server", server, "--draft-length", "0", "--no-data-plane"],
                    "ours": ours(args, server, verify)}
            lengths = {"": ["--max-tokens", str(args.max_tokens)]}
            if args.long_tokens:
                lengths["long"] = ["--max-tokens", str(args.long_tokens), "--ignore-end"]
            runs = {(way, length): [] for length in lengths for way in ways}
            for _ in range(args.rounds):
                for way, length in runs:
                    runs[way, length].append(generate(args, programs, model, workdir, prompt, link.far,
                                                      ways[way] + lengths[length]))
            return runs, link.kind


def check_answers(runs):
    for length in {length for _, length in runs}:
        if len({(tuple(r["tokens"]), r["logits_digest"]) for way in ("full", "ours") for r in runs[way, length]}) != 1:
            sys.exit("bench_remote: the answers differ")


def report(out, args, runs, rate):
    def median(way, length, key):
        return statistics.median(r[key] for r in runs[way, length])

    check_answers(runs)
    for (way, length), samples in runs.items():
        title = {"full": "full KV fetched", "ours": "VeriCache"}[way] + (", long" if length else "")
        out.row(f"{title}: first verified token", "s", [r["first_us"] / 1e6 for r in samples])
        out.row(f"{title}: answer", "s", [r["total_us"] / 1e6 for r in samples])
        out.row(f"{title}: tokens of it", "", [len(r["tokens"]) for r in samples])
        out.row(f"{title}: over the slow link", "MB", [r["slow_bytes"] / 1e6 for r in samples])
        rounds = sum(r["rounds"] for r in samples)
        if rounds:
            print(f"# {title}: {rounds / len(samples):.1f} rounds an answer, "
                  f"{sum(r['accepted'] for r in samples) / rounds:.2f} drafts accepted in each")
    bits = float(rate[:-4]) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[rate[-4:]]
    out.figure("remote_ttft_vs_full_fetch", median("full", "", "first_us") / median("ours", "", "first_us"))
    out.figure("remote_requests_vs_full_fetch", median("full", "", "total_us") / median("ours", "", "total_us"))
    if args.long_tokens:
        out.figure("remote_long_requests_vs_full_fetch",
                   median("full", "long", "total_us") / median("ours", "long", "total_us"))
    out.figure("slow_link_use", statistics.median(
        r["slow_bytes"] * 8e6 / r["fetch_us"] / bits for (way, _), v in runs.items() for r in v if way == "full"))


def main():
    slowlink.reexec_in_user_namespace()
    args = parse()
    out = results_file.Run("remote", sys.argv[1:])
    programs, model = cluster.Programs(pathlib.Path(args.build)), cluster.model_path()
    with tempfile.TemporaryDirectory(prefix="vericache-bench-") as tmp:
        workdir = pathlib.Path(tmp)
        _, document = demo.cut_document(args, workdir)
        prompt = workdir / "prompt.txt"
        prompt.write_text(document.read_text() + demo.QUESTIONS[0])
        nodes = cluster.Cluster(programs, model, workdir, args.threads)
        try:
            nodes.register(document, args.compressor)
            fast = fast_rate(args, programs, model, workdir, prompt, nodes)
            nodes.close()
            rate = args.rate or f"{max(1, round(fast * 8 / RATIO / 1e6))}mbit"
            runs, kind = compare(args, programs, model, workdir, prompt, nodes, rate)
        finally:
            nodes.close()
    print(f"# fast link {fast * 8 / 1e9:.2f} Gbit/s (UCX, into the verify node), slow link {rate} by {kind}, "
          f"{2 * args.delay_ms:g} ms round trip; {args.rounds} requests of each kind")
    report(out, args, runs, rate)
    if args.csv:
        out.keep(args.csv)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench_remote: {error}")
