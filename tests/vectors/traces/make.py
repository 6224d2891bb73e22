#!/usr/bin/env python3
"""Writes a trace of JSON lines {"timestamp": MS, "hash_ids": [...]} in the compact format of cache-server/sim/trace.h."""
import json
import sys


def runs(ids, seen):
    i = 0
    while i < len(ids):
        j = i
        if ids[i] == seen:
            while j + 1 < len(ids) and ids[j + 1] == ids[j] + 1:
                j += 1
            seen = ids[j] + 1
            yield "+%d" % (j - i + 1)
        else:
            while j + 1 < len(ids) and ids[j + 1] == ids[j] + 1 < seen:
                j += 1
            yield "%d" % ids[i] if i == j else "%d-%d" % (ids[i], ids[j])
        i = j + 1


def main():
    number = {}
    last = None
    print("vericache-trace 1")
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in f:
            request = json.loads(line)
            seen = len(number)
            ids = [number.setdefault(i, len(number)) for i in request["hash_ids"]]
            time = request["timestamp"]
            print(" ".join([str(time - (time if last is None else last))] + list(runs(ids, seen))))
            last = time


main()
