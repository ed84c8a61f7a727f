#!/bin/bash
# measure.sh HPCC IMAGE [SECONDS] - measures the cost of "hpcc run --measure": the start compared
# with a run without it, and the sampling of programs of 1, 64 and 256 sleeping processes, which
# use no processor time themselves. time(1) is the reference. IMAGE needs sh, sleep and true.
set -euo pipefail
hpcc=$(realpath "$1"); image=$2; seconds=${3:-60}
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcc-bench.XXXXXX"); trap 'rm -rf "$work"' EXIT
export HPCC_STORE=${HPCC_STORE:-$HOME/.local/share/hpcc}
python3 - "$hpcc" "$image" "$work" <<'P'
import resource, statistics, subprocess, sys, time
hpcc, image, work = sys.argv[1:]
kinds = {"plain": [hpcc, "run", image, "--", "true"], "measured": [hpcc, "run", f"--measure={work}/r", image, "--", "true"]}
wall, cpu = {k: [] for k in kinds}, {k: [] for k in kinds}
def used(): u = resource.getrusage(resource.RUSAGE_CHILDREN); return u.ru_utime + u.ru_stime
for turn in range(105):
    for k, argv in kinds.items():
        a, b = time.perf_counter(), used()
        subprocess.run(argv, check=True)
        if turn >= 5:
            wall[k].append(time.perf_counter() - a); cpu[k].append(used() - b)
for k in kinds:
    print("start, %-9s median %.1f ms, processor %.1f ms" % (k + ":", statistics.median(wall[k]) * 1e3, statistics.median(cpu[k]) * 1e3))
P
for n in 1 64 256; do
  script="i=1; while [ \$i -lt $n ]; do sleep $seconds & i=\$((i+1)); done; exec sleep $seconds"
  # Starting the program takes the same time without sleeping; it is subtracted.
  /usr/bin/time -f '%U %S' -o "$work/plain" "$hpcc" run "$image" -- sh -c "${script//sleep $seconds/true}"
  /usr/bin/time -f '%U %S' -o "$work/time" "$hpcc" run --measure="$work/r" "$image" -- sh -c "$script"
  python3 - "$work" "$n" <<'P'
import json, sys
work, n = sys.argv[1:]
lines = open(work + "/r").read().splitlines()
foot = json.loads(lines[-1])
total, plain = (sum(map(float, open(f"{work}/{f}").read().split())) for f in ("time", "plain"))
print("%s processes: %d samples in %.0f s, %.2f %% of a processor by its own count, %.2f %% by time(1); record %d bytes" %
      (n, foot["samples"], foot["wall_s"], 100*foot["measuring_s"]/foot["wall_s"], 100*max(0, total-plain)/foot["wall_s"], len("\n".join(lines))))
P
done
