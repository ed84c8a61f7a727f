#!/bin/bash
# pack.sh HPCC [TASKS [SLOTS [ROUNDS]]] - runs tasks of 10 ms with hpcc submit --pack, GNU parallel and
# xargs in turn, as an ordinary user, and prints a table of tasks per second and of processor time per
# task. The first three rows start an image for each task or, with keep, once; the others start none.
set -euo pipefail
hpcc=$(realpath "$1"); tasks=${2:-3000}; slots=${3:-32}; rounds=${4:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcc-bench.XXXXXX"); trap 'rm -rf "$work"' EXIT
export HPCC_STORE=$work/store HOME=$work
cd "$work"
for tool in parallel xargs; do command -v $tool >/dev/null || { echo "pack.sh: needs $tool" >&2; exit 1; }; done
mkdir -p "$HOME/.parallel"; touch "$HOME/.parallel/will-cite"
python3 - "$hpcc" "$tasks" "$slots" "$rounds" <<'P'
import resource, shutil, statistics, subprocess, sys, time
hpcc, tasks, slots, rounds = sys.argv[1], *map(int, sys.argv[2:])
def submit(*flags):
    return [hpcc, "submit", "--to", "local", "--wait", *flags, "--tasks-per-node", str(slots), "--array", f"1-{tasks}", "/", "--", "sleep", "0.01"]
def shell(line): return ["sh", "-c", f"seq {tasks} | {line}"]
programs = {
    "hpcc submit --pack=keep": submit("--pack=keep"),
    "hpcc submit --pack": submit("--pack"),
    "xargs and hpcc run": shell(f"xargs -P {slots} -I+ {hpcc} run / -- sleep 0.01"),
    "xargs": shell(f"xargs -P {slots} -I+ sleep 0.01"),
    "GNU parallel": shell(f"parallel -j {slots} sleep 0.01 '#' {{}}"),
    "GNU parallel --joblog --results": shell(f"parallel -j {slots} --joblog log --results out sleep 0.01 '#' {{}}"),
}
rate, cpu = {k: [] for k in programs}, {k: [] for k in programs}
def used():
    with open("/proc/stat") as f: u = list(map(int, f.readline().split()[1:]))
    return (u[0] + u[1] + u[2] + u[5] + u[6]) / 100
for _ in range(rounds):
    for name, argv in programs.items():
        a, b = time.perf_counter(), used()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rate[name].append(tasks / (time.perf_counter() - a)); cpu[name].append((used() - b) / tasks * 1e3)
        shutil.rmtree("out", ignore_errors=True)
print("| program | tasks per second | processor time of the machine per task |\n| --- | --- | --- |")
for name in programs:
    print("| `%s` | %.0f | %.2f ms |" % (name, statistics.median(rate[name]), statistics.median(cpu[name])))
P
