#!/usr/bin/env python3
"""Makes the test's index and its recorded answers of an index of Anaconda's channel "main" of September 2021.

    main2021.py DIRECTORY VECTORS

DIRECTORY holds SUBDIR/repodata.json. Of its records what a solver reads is kept. VECTORS holds what conda 23.9, mamba 2.8.1 and rattler
answered to the same wishes; of each package its name, version and build are kept, and of failures that they were ones.
"""
import json
import subprocess
import sys

KEEP = ["name", "version", "build", "build_number", "depends", "constrains", "track_features", "timestamp", "noarch"]


def pack(name, data):
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    subprocess.run(["zstd", "-19", "--ultra", "-q", "-f", "-o", name], input=text.encode(), check=True)


for subdir in ["linux-64", "linux-ppc64le", "noarch"]:
    index = json.load(open(f"{sys.argv[1]}/{subdir}/repodata.json"))
    out = {}
    for kind in ["packages", "packages.conda"]:
        out[kind] = {fn: {k: r[k] for k in KEEP if r.get(k)} for fn, r in index[kind].items()}
    pack(f"main2021-{subdir}.json.zst", out)

cases = []
for case in json.load(open(sys.argv[2])):
    row = {"subdir": case["subdir"], "specs": case["specs"]}
    for tool in ["conda", "mamba", "rattler"]:
        row[tool] = None if isinstance(case[tool], dict) else [p.split("::")[1] for p in case[tool]]
    cases.append(row)
pack("main2021-answers.json.zst", cases)
