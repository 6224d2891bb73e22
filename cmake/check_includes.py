#!/usr/bin/env python3
"""Fails when an include points up or sideways. Run from the root of the tree; prints one line per offence.

Ranks are the architecture in one table: a file may include headers of its own unit and of units of a lower rank.
  common          base < data < wire < net < client; the server and the node see only include/
  cache-server    a unit is a module: NAME.c, NAME_*.c and their headers
  inference-node  a unit is a folder, or a module among the files above them
Private headers (*_int.h) stay in their folder, third-party and generated headers stay out of public ones.
A new module of a program takes a place in its table here.
"""
import os
import re
import sys

COMMON = ["base", "data", "wire", "net", "client"]

# Lowest first; units on one line never include each other. "io" is one unit of three modules, see ALIASES.
SERVER = [
    ["bufpool", "fault", "pageruns", "acceptguard", "hist", "hits", "steady"],
    ["ramtier"],
    ["io"],
    ["index", "segment", "catalog", "evict", "policy", "pace", "record", "keyspace_file"],
    ["compact", "verify", "sim", "rebuild"],
    ["store"],
    ["service", "dataplane", "rpc"],
    ["opshttp"],
    ["config"],
    ["server"],
    ["main"],
]
NODE = [
    ["kernels"],
    ["kv"],
    ["model"],
    ["compress"],
    ["cache", "speculate"],
    ["schedule"],
    ["batch"],
    ["node"],
    ["role"],
    ["config"],
    ["main"],
]

# A data worker is a thread around one ring: worker.h names the io modes, and the ring's loop runs in the worker.
ALIASES = {"worker": "io", "uring": "io", "iothreads": "io", "uring_buffers": "io", "uring_hold": "io"}

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
PRIVATE = ("_int.h",)
C_HEADERS = {
    "assert", "ctype", "errno", "inttypes", "limits", "math", "stdalign", "stdarg", "stdatomic", "stdbool", "stddef",
    "stdint", "stdio", "stdlib", "string", "time",
}
offences = []


def offend(path, number, text):
    offences.append("%s:%d: %s" % (path, number, text))


def sources(folder):
    for root, dirs, files in os.walk(folder):
        dirs.sort()
        for name in sorted(files):
            if name.endswith((".c", ".h", ".cu")):
                yield os.path.join(root, name)


def includes(path):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            found = INCLUDE.match(line)
            if found:
                yield number, found.group(1) == '"', found.group(2)


def header_layers():
    """Layer of each public header of common: that of the source which implements it."""
    layers = {"bytes": "base", "vericache": "client"}
    for layer in COMMON:
        folder = os.path.join("common", layer)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            stem = name.rsplit(".", 1)[0]
            layers.setdefault(stem, layer)
    return layers


LAYERS = header_layers()


def layer_of_header(name):
    stem = os.path.basename(name)[:-2]
    while stem not in LAYERS and "_" in stem:
        stem = stem.rsplit("_", 1)[0]
    if stem in LAYERS:
        return LAYERS[stem]
    for known, layer in sorted(LAYERS.items()):  # "rpc.h" of rpc_call.c
        if known.startswith(stem + "_"):
            return layer
    return None


def check_private(path, number, name):
    """A header given with a folder must be of the file's own folder when it is private."""
    folder = os.path.dirname(name)
    if name.endswith(PRIVATE) and folder and not os.path.dirname(path).endswith(folder):
        offend(path, number, "%s is private to %s/" % (name, folder))


def check_common():
    for path in sources("common"):
        parts = path.split(os.sep)
        public = parts[1] == "include"
        own = layer_of_header(path) if public else parts[1]
        if own is None:
            offend(path, 1, "no source of common implements this header")
            continue
        for number, quoted, name in includes(path):
            if public and not quoted and name[:-2] not in C_HEADERS:
                offend(path, number, "public header includes <%s>" % name)
            if not quoted:
                continue
            check_private(path, number, name)
            if public and name.endswith(".pb-c.h"):
                offend(path, number, "public header includes generated code")
            if not name.startswith(("vc/", "vericache/")):
                continue
            layer = layer_of_header(name)
            if layer is None:
                offend(path, number, "unknown header %s" % name)
            elif COMMON.index(layer) > COMMON.index(own):
                offend(path, number, "%s (%s) is above %s" % (name, layer, own))


def unit_in(table, stem):
    """Rank and name of the unit that a file stem belongs to: NAME or NAME_something, the longest NAME wins."""
    stem = ALIASES.get(stem, stem)
    best = (None, None)
    for rank, units in enumerate(table):
        for unit in units:
            if (stem == unit or stem.startswith(unit + "_")) and (best[1] is None or len(unit) > len(best[1])):
                best = (rank, unit)
    return best


def unit_of(table, folder, path):
    """path is relative to the program's folder."""
    parts = path.split("/")
    return unit_in(table, parts[0] if len(parts) > 1 else os.path.splitext(parts[0])[0])


def check_program(program, other, table, skip=()):
    for path in sources(program):
        inside = os.path.relpath(path, program)
        if inside.split(os.sep)[0] in skip:
            continue
        rank, unit = unit_of(table, program, inside)
        if unit is None:
            offend(path, 1, "module has no rank in cmake/check_includes.py")
            continue
        for number, quoted, name in includes(path):
            if not quoted or name.startswith(("vc/", "vericache/", "gpu/")) or name.endswith(".pb-c.h"):
                continue
            check_private(path, number, name)
            beside = os.path.join(os.path.dirname(inside), name)
            target = beside if os.path.exists(os.path.join(program, beside)) else name
            if not os.path.exists(os.path.join(program, target)):
                offend(path, number, "%s is not of this program%s" % (
                    name, ", but of the other" if os.path.exists(os.path.join(other, name)) else ""))
                continue
            to_rank, to_unit = unit_of(table, program, os.path.normpath(target))
            if to_unit is None or to_unit == unit:
                continue
            if to_rank >= rank:
                offend(path, number, "%s (%s) is not below %s" % (name, to_unit, unit))


def check_ctl():
    """The operator tool stands on libvericache, the base and the policy simulator, which is as pure."""
    for path in sources("cache-server/ctl"):
        for number, quoted, name in includes(path):
            if not quoted:
                continue
            local = os.path.exists(os.path.join(os.path.dirname(path), name)) or name.startswith(("ctl/", "sim/"))
            if not (local or name.startswith(("vc/", "vericache/"))):
                offend(path, number, "%s: the operator tool uses libvericache only" % name)


def check_gpu():
    for path in sources("gpu"):
        for number, quoted, name in includes(path):
            if quoted and name.startswith("vc/") and layer_of_header(name) != "base":
                offend(path, number, "%s is above base" % name)


def main():
    check_common()
    check_program("cache-server", "inference-node", SERVER, skip=("ctl",))
    check_program("inference-node", "cache-server", NODE)
    check_ctl()
    check_gpu()
    for line in offences:
        print(line)
    return 1 if offences else 0


sys.exit(main())
