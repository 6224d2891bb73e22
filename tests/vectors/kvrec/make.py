#!/usr/bin/env python3
"""Builds the record fixtures and the seed corpus from the format table in common/include/vc/kvrec.h alone.

It shares no code with the C implementation, so that both agreeing means both follow the table.
Usage: make.py OUT_DIR   (writes *.bin and, under corpus/, damaged variants)
"""
import hashlib
import os
import struct
import sys

POLY = 0x82F63B78


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLY if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def blake(data):
    return hashlib.blake2b(data, digest_size=32).digest()


def up(n, a):
    return (n + a - 1) // a * a


def spec_id(text, calib=b""):
    return blake(struct.pack("<I", len(text)) + text + calib)[:16]


def noise(seed, n):
    x, out = seed, bytearray()
    for _ in range(n):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(x >> 24)
    return bytes(out)


def record(kind, spec, parts, block_index, tokens, keyspace, parent, horizon=(0, 0), numerics=1, dtype=1,
           heads=1, dim=4):
    n_layer, block = len(parts), len(tokens)
    align = 4096 if kind == 1 else 64
    header_bytes = up(192 + 4 * block + 16 * n_layer, 4096)
    token_bytes = struct.pack("<%dI" % block, *tokens)
    block_hash = blake(parent + struct.pack("<I", block) + token_bytes)
    table, body, end = b"", b"", header_bytes
    for part in parts:
        at = up(end, align)
        body += b"\0" * (at - end) + part
        table += struct.pack("<QII", at, len(part), crc32c(part))
        end = at + len(part)
    head = b"VCKV" + struct.pack("<III", 1, header_bytes, 0)
    head += struct.pack("<BBBB", 1 if kind == 1 else 2, dtype, kind, 0)
    head += struct.pack("<IIIIIQIIII", block_index, n_layer, heads, dim, block, end - header_bytes, numerics,
                        horizon[1], horizon[0], 0)
    head += spec + keyspace + block_hash + parent + b"\0" * 16 + token_bytes + table
    head += b"\0" * (header_bytes - len(head))
    head = head[:12] + struct.pack("<I", crc32c(head)) + head[16:]
    out = head + body
    return out + b"\0" * (up(len(out), 4096) - len(out))


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def main():
    out = sys.argv[1]
    os.makedirs(os.path.join(out, "corpus"), exist_ok=True)
    keyspace = bytes(range(32))
    parent = blake(b"parent")
    tokens = [7, 0, 4294967295, 49151]
    full = record(1, spec_id(b"full@1"), [noise(1, 64), noise(2, 64)], 0, tokens, keyspace, keyspace)
    later = record(1, spec_id(b"full@3"), [noise(3, 64)], 9, tokens, keyspace, parent, numerics=3, dtype=2)
    dropper = record(2, spec_id(b"snapkv:keep=0.25,window=64,kernel=5"),
                     [b"\x05" + noise(4, 33), b"\x00", noise(5, 65)], 2, tokens, keyspace, parent, (8, 16))
    quant = record(3, spec_id(b"rot:bits=4", blake(b"calib")), [noise(6, 40), noise(7, 41)], 1, tokens, keyspace,
                   parent)
    files = {"full": full, "later": later, "dropper": dropper, "quantiser": quant}
    for name, data in files.items():
        write(os.path.join(out, name + ".bin"), data)
        write(os.path.join(out, "corpus", name), data)
    corpus = os.path.join(out, "corpus")
    write(os.path.join(corpus, "empty"), b"")
    write(os.path.join(corpus, "magic_only"), b"VCKV")
    write(os.path.join(corpus, "header_only"), dropper[:4096])
    write(os.path.join(corpus, "cut_payload"), dropper[:4200])
    bad = bytearray(quant)
    bad[40:48] = b"\xff" * 8  # payload size
    write(os.path.join(corpus, "huge_payload"), bytes(bad))
    bad = bytearray(full)
    bad[24:28] = b"\xff" * 4  # layers
    write(os.path.join(corpus, "huge_layers"), bytes(bad))


main()
