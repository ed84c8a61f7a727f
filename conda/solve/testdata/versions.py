#!/usr/bin/env python3
"""Makes versions.txt.gz of the versions that rattler's repository has with conda's parse of each.

    versions.py parsed_versions.txt | gzip -9n > versions.txt.gz

Each line of the input is VERSION=PARSE, as conda 23 prints VersionOrder(VERSION).version. The output has the versions in
conda's order, one on a line; "=" before one says that conda holds it equal to the one above. The order is made of conda's parse, by
the rules of conda's comparison (CEP 33), and of nothing that hpcc has.
"""
import functools
import re
import sys


def local(version):
    """conda leaves the part behind "+" out of what it prints."""
    parts = version.lower().split("+")[1:]
    out = []
    for part in re.split("[._]", parts[0]) if parts else []:
        runs = [int(r) if r.isdigit() else {"post": float("inf"), "dev": "DEV"}.get(r, r) for r in re.findall("[0-9]+|[*]+|[^0-9*]+", part)]
        out.append(runs if part[0].isdigit() else [0] + runs)
    return out


def runs(a, b):
    for i in range(max(len(a), len(b))):
        x, y = a[i] if i < len(a) else 0, b[i] if i < len(b) else 0
        if isinstance(x, str) != isinstance(y, str):
            return -1 if isinstance(x, str) else 1
        if x != y:
            return -1 if x < y else 1
    return 0


def parts(a, b):
    for i in range(max(len(a), len(b))):
        c = runs(a[i] if i < len(a) else [], b[i] if i < len(b) else [])
        if c:
            return c
    return 0


def compare(a, b):
    return parts(a[1], b[1]) or parts(a[2], b[2])


versions = []
for line in open(sys.argv[1]):
    if "=[" in line and not line.startswith("#"):
        text, parse = line.rstrip("\n").split("=", 1)
        versions.append((text, eval(parse, {"__builtins__": {}, "inf": float("inf")}), local(text)))
versions.sort(key=functools.cmp_to_key(lambda a, b: compare(a, b) or (a[0] > b[0]) - (a[0] < b[0])))
for i, v in enumerate(versions):
    print(("=" if i and not compare(versions[i - 1], v) else "") + v[0])
