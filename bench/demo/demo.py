#!/usr/bin/env python3
"""The main job, end to end: one cache server, a verify node beside it, a draft node behind a slow link; three questions about one
long document, each answered three ways. Exits 0 only when every way gave the same tokens and the same logits.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import cluster
import slowlink
import table

QUESTIONS = [
    "In one sentence: what is this document?",
    "What does the document say about conveying modified source versions?",
    "List three things that a licensee must do.",
]
CALIBRATION_TEXTS = ["/usr/share/common-licenses/" + name for name in ("Apache-2.0", "GFDL-1.3", "MPL-2.0")]
DOCUMENTS = ["/usr/share/common-licenses/GPL-3", str(cluster.ROOT / "README.md")]


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", default=str(cluster.ROOT / "build" / "release"), help="folder of the programs")
    p.add_argument("--document", help="text file; default: the first that exists of " + ", ".join(DOCUMENTS))
    p.add_argument("--document-tokens", type=int, default=4000, help="about how much of it")
    p.add_argument("--rate", default="500mbit", help="rate of the slow link")
    p.add_argument("--delay-ms", type=float, default=5, help="one-way delay of the slow link")
    p.add_argument("--compressor", default="rot:bits=4", help="what drafts are made from (default %(default)s);"
                   " 'vericachectl compressors' lists the methods; what needs a calibration gets one first")
    p.add_argument("--max-tokens", type=int, default=160, help="of each answer")
    p.add_argument("--threads", type=int, default=1, help="per node: every node stands for a machine of its own")
    p.add_argument("--keep", help="folder for the results (default: a temporary one)")
    p.add_argument("--no-namespace", action="store_true", help="pacing by the relay, no network namespace")
    return p.parse_args()


def cut_document(args, workdir):
    """About so many tokens of English text, whole lines; 4.3 bytes a token is this tokenizer's average on prose."""
    path = args.document or next(d for d in DOCUMENTS if pathlib.Path(d).exists())
    text = pathlib.Path(path).read_text(errors="replace")[: int(args.document_tokens * 4.3)]
    document = workdir / "document.txt"
    document.write_text(text[: text.rfind("\n\n") + 2] if "\n\n" in text else text)
    return path, document


def ask(args, programs, model, link, workdir, document, number, mode, addresses, flags):
    """One answer. The text of (c) streams to the terminal."""
    prompt = workdir / f"q{number}.txt"
    prompt.write_text(document.read_text() + QUESTIONS[number - 1])
    result = workdir / f"q{number}.{mode}.json"
    command = [programs.node, "generate", "--model", str(model), "--prompt-file", str(prompt), "--max-tokens",
               str(args.max_tokens), "--threads", str(args.threads), "--result-file", str(result)]
    if mode == "recompute":
        command += ["--draft-length", "0"]
    elif mode == "full":
        command += ["--draft-length", "0", "--server", addresses["server"], "--no-data-plane"]
    else:
        command += ["--compressor", args.compressor, "--server", addresses["server"], "--verifier", addresses["verify"],
                    "--no-data-plane", *flags]
    show = mode == "vericache"
    subprocess.run(link.far(command), check=True, stdout=None if show else subprocess.DEVNULL)


def link_bytes(link):
    return link.bytes() or 0


def main():
    args = parse()
    if not args.no_namespace:
        slowlink.reexec_in_user_namespace()
    programs, model = cluster.Programs(pathlib.Path(args.build)), cluster.model_path()
    with tempfile.TemporaryDirectory(prefix="vericache-demo-") as tmp:
        workdir = pathlib.Path(args.keep or tmp)
        workdir.mkdir(parents=True, exist_ok=True)
        path, document = cut_document(args, workdir)
        texts = [t for t in CALIBRATION_TEXTS if pathlib.Path(t).exists()]
        flags = cluster.calibration_flags(programs, model, workdir, args.compressor, texts)
        with slowlink.SlowLink(args.rate, args.delay_ms, programs.relay, workdir, not args.no_namespace) as link, \
                cluster.Cluster(programs, model, workdir, args.threads, link.near, verify_flags=flags) as nodes:
            addresses = {"server": link.connect(nodes.server.port), "verify": link.connect(nodes.verify.port)}
            print(f"slow link: {args.rate}, {2 * args.delay_ms:g} ms round trip, by {link.kind}; "
                  f"{args.threads} thread(s) a node; model {model.name}")
            print(f"registering {path} ({document.stat().st_size} bytes) ...", flush=True)
            nodes.register(document, args.compressor, flags=flags)
            for mode in table.MODES:
                before = link_bytes(link)
                for number in range(1, len(QUESTIONS) + 1):
                    print(f"\n[{table.TITLES[mode]}] {QUESTIONS[number - 1]}", flush=True)
                    ask(args, programs, model, link, workdir, document, number, mode, addresses, flags)
                if link.kind == "namespace":
                    (workdir / f"link.{mode}.txt").write_text(str(link_bytes(link) - before))
            (workdir / "stats.json").write_text(json.dumps(nodes.stats()))
        return table.show(workdir)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"demo: {error}")
