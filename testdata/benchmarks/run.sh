#!/bin/bash
# run.sh HPCC OUT.md - compares hpcc with other tools in one run, as an ordinary
# user, and writes the table to OUT.md. A tool that is missing, or cannot do a
# task as an ordinary user, is left out with the reason.
#
#   BENCH_BASE=FILE   root tarball of a Debian (mmdebstrap makes one); default $HPCC_TEST_DEBIAN
#   BENCH_SCALE=3     size of the image that is unpacked: 1 is 10,000 files, 350 MB; 3 is a GB
#   BENCH_DIR=DIR     working directory; the table names its file system, because that matters
#   BENCH_RUNS=5      number of runs of unpacking
#   BENCH_PARTS=…     startup situations unpacking building copying environments
#   BENCH_STARTS=300  number of starts in each situation
set -euo pipefail
hpcc=$(realpath "$1"); out=$(realpath -m "$2")
base=${BENCH_BASE:-${HPCC_TEST_DEBIAN:-}}; scale=${BENCH_SCALE:-3}
die() { echo "bench: $*" >&2; exit 1; }
say() { echo "bench: $*" >&2; }
for tool in hyperfine python3 go; do command -v "$tool" >/dev/null || die "needs $tool"; done
[ -s "$base" ] || die "BENCH_BASE is not a root tarball; create one with mmdebstrap --variant=minbase bookworm base.tar"
here=$(dirname "$(realpath "$0")")

work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/hpcc-bench.XXXXXX")
cleanup() {
  # podman leaves a process behind that holds its namespace, one for each XDG_RUNTIME_DIR.
  local p; p=$(cat "$work/run/libpod/tmp/pause.pid" 2>/dev/null) || p=
  [ "$(cat "/proc/${p:-none}/comm" 2>/dev/null)" != "podman pause" ] || kill -KILL "$p" || true
  chmod -R u+rwX "$work" 2>/dev/null || true; rm -rf "$work" 2>/dev/null || buildah unshare rm -rf "$work"
}
trap cleanup EXIT
# Use the user's Go caches: with the temporary HOME, go would download and compile everything again.
GOCACHE=$(go env GOCACHE) GOMODCACHE=$(go env GOMODCACHE)
export GOCACHE GOMODCACHE HPCC_STORE=$work/store CH_IMAGE_STORAGE=$work/ch-image XDG_RUNTIME_DIR=$work/run HOME=$work/home
mkdir -p "$work"/{run,home,store}; chmod 700 "$work/run"

# Configures podman and buildah for a user without subordinate IDs: one uid, and
# failing chown calls are ignored.
mkdir -p "$HOME/.config/containers"
cat >"$HOME/.config/containers/storage.conf" <<C
[storage]
driver = "overlay"
runroot = "$work/run/containers"
graphroot = "$work/containers"
[storage.options.overlay]
ignore_chown_errors = "true"
C
# crun refuses hosts with cgroups of both versions; runc does not.
printf '[containers]\nlog_driver = "none"\n[engine]\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\nruntime = "%s"\n' \
  "$(command -v runc >/dev/null && echo runc || echo crun)" >"$HOME/.config/containers/containers.conf"
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$HOME/.config/containers/policy.json"
# ch-image keeps its cache in git, which needs a committer.
printf '[user]\n\tname = bench\n\temail = bench@localhost\n' >"$HOME/.gitconfig"

rows=$work/rows; : >"$rows"
missing=$work/missing; : >"$missing"
situated=$work/situations; : >"$situated"
skip() { say "left out: $*"; grep -qxF "* $*" "$missing" || echo "* $*" >>"$missing"; }
# has NAME COMMAND...: checks that the program NAME is installed and that COMMAND works.
has() {
  local name=$1; shift
  command -v "$name" >/dev/null || { skip "$name: not installed"; return 1; }
  bash -c "$*" >"$work/try" 2>&1 || { skip "$name: this user cannot run \`${*//"$work"/…}\`: $(tail -n 1 "$work/try" | cut -c1-200)"; return 1; }
}
# compare TITLE HYPERFINE-ARGS...: measures commands in sequence and adds rows with ratios to the first one.
compare() {
  local title=$1; shift
  say "$title"
  hyperfine --style none --output "$work/output" --export-json "$work/json" "$@" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; tail -n 5 "$work/output" >&2; die "$title: hyperfine failed"; }
  python3 - "$title" "$work/json" >>"$rows" <<'P'
import json, sys
title, results = sys.argv[1], json.load(open(sys.argv[2]))["results"]
first = results[0]
unit, f = ("ms", 1e3) if first["median"] < 1 else ("s", 1)
for r in results:
    cpu = r["user"] + r["system"]
    ratio = "" if r is first else f'{r["median"] / first["median"]:.2f} ×'
    print(f'| {title} | {r["command"]} | {r["median"]*f:.1f} | {r["mean"]*f:.1f} ± {(r["stddev"] or 0)*f:.1f} {unit} | {cpu*f:.1f} {unit} | {ratio} |')
P
}

# interleave TITLE ROUNDS WARMUPS [NAME PREPARE COMMAND]...: each round runs every command once, in a
# random order, so that other load on the machine affects all equally. PREPARE ("" for none)
# runs before each command and is not measured. With MEMORY=1, rows show the peak memory.
interleave() {
  say "$1"
  python3 - "$work/output" "$@" >>"$rows" <<'P' || { tail -n 5 "$work/output" >&2; die "$1"; }
import os, random, statistics, sys, time
output, title, rounds, warmups, rest = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
commands = {n: (p.split(), c.split()) for n, p, c in zip(rest[::3], rest[1::3], rest[2::3])}
log = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND, 0o644)
def run(args):
    t = time.perf_counter()
    pid = os.posix_spawnp(args[0], args, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)])
    _, status, used = os.wait4(pid, 0)
    t = time.perf_counter() - t
    if status: sys.exit(f"{args}: status {status}")
    return t, used.ru_utime + used.ru_stime, used.ru_maxrss
took = {n: [] for n in commands}
for i in range(warmups + rounds):
    for n in random.sample(list(commands), len(commands)):
        prepare, command = commands[n]
        if prepare: run(prepare)
        both = run(command)
        if i >= warmups: took[n].append(both)
median = lambda n, k: statistics.median(v[k] for v in took[n])
first = median(rest[0], 0)
unit, f, digits = ("ms", 1e3, 2) if first < 1 else ("s", 1, 1)
for n in commands:
    wall = [v[0] * f for v in took[n]]
    ratio = "" if n == rest[0] else f"{median(n, 0) / first:.2f} ×"
    memory = f", {max(v[2] for v in took[n]) / 1024:.0f} MB of memory" if os.environ.get("MEMORY") else ""
    print(f"| {title} | {n}{memory} | {statistics.median(wall):.{digits}f} | {statistics.mean(wall):.{digits}f} ± {statistics.stdev(wall):.{digits}f} {unit} | {median(n, 1)*f:.{digits}f} {unit} | {ratio} |")
P
}

# together N NAME COMMAND: N simultaneous starts. Compares the time until the last one has ended
# with the total processor time divided by the number of processors.
together() {
  say "$1 simultaneous starts"
  python3 - "$@" >>"$rows" <<'P'
import os, resource, sys, time
n, name, command = int(sys.argv[1]), sys.argv[2], sys.argv[3].split()
t, failed = time.perf_counter(), 0
for _ in range(n):
    os.posix_spawnp(command[0], command, os.environ)
for _ in range(n):
    failed += os.wait()[1] != 0
t = time.perf_counter() - t
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = used.ru_utime + used.ru_stime
print(f"| {n} simultaneous starts, {failed} failed | {name}, until the last ended | {t*1e3:.0f} | fair share: {cpu/os.cpu_count()*1e3:.0f} ms | {cpu*1e3:.0f} ms | |")
P
}

startup() {
  "$hpcc" unpack base "$work/tree"
  cp -a "$work/tree" "$work/full-tree"; touch "$work/full-tree/etc/hosts" "$work/full-tree/etc/resolv.conf"
  local a=("hpcc run" "" "$hpcc run $work/tree -- /bin/true" "hpcc run, all mount points in the image" "" "$hpcc run $work/full-tree -- /bin/true" "hpcc run NAME" "" "$hpcc run base -- /bin/true")
  has ch-run "ch-run $work/tree -- /bin/true" && a+=(ch-run "" "ch-run $work/tree -- /bin/true")
  has bwrap "bwrap --bind $work/tree / --proc /proc --dev /dev /bin/true" && a+=(bwrap "" "bwrap --bind $work/tree / --proc /proc --dev /dev /bin/true")
  interleave "start /bin/true" 500 10 "${a[@]}" "no container" "" /bin/true
  together 1000 "hpcc run NAME" "$hpcc run base -- /bin/true"
  if has podman "podman load -q -i $work/base.tar && podman tag \$(podman images -q | head -n 1) localhost/base && podman run --rm --network=host localhost/base /bin/true"; then
    interleave "start /bin/true, slow peers" 20 10 "hpcc run" "" "$hpcc run $work/tree -- /bin/true" "podman run --rm" "" "podman run --rm --network=host localhost/base /bin/true"
  fi
}

# situations compares a start in typical situations of jobs with an equivalent start of ch-run.
# ch-run does not provide the home and the current directory.
situations() {
  has ch-run "ch-run --version" || return 0
  say situations
  local tree=$work/situated
  "$hpcc" unpack base "$tree"
  rmdir "$tree/opt" # exists on every host; stands for /scratch, which images lack
  mkdir -p "$tree/mnt/0" "$work/at/dir" "$work/at/data"
  printf 'OMP_NUM_THREADS=4\nPATH=/opt/env/bin:$PATH\nDATA=$HOME/data\n' >"$work/at/config.env"
  python3 - "$hpcc" "$(command -v ch-run)" "$tree" "$work/at" >"$work/cases.json" <<'P'
import json, os, sys
hpcc, peer, tree, at = sys.argv[1:]
cases = []
def case(name, directory=os.environ["HOME"], flags=(), peer_flags=None, image=tree, env=(), status=0):
    cases.append({"Name": name, "Dir": directory, "Env": list(env), "Status": status, "Hpcc": [hpcc, "run", *flags, image, "--", "/bin/true"],
        "Peer": [peer, *(flags if peer_flags is None else peer_flags), tree, "--", "/bin/true"]})
data, file = at + "/data", at + "/config.env"
case("in the home directory")
case("in `/tmp`", "/tmp")
case("in `/`", "/")
case("by name", image="base")
case("by directory, relative", os.path.dirname(tree), image="./" + os.path.basename(tree))
case("in `/opt`, which the image lacks, as `/scratch/$USER`", "/opt")
case("`$PWD` of another directory", env=["PWD=/etc"])
case("`$PWD` that does not exist", env=["PWD=/nowhere"])
case("`--cd /etc`", flags=["--cd", "/etc"])
case("`-b DIR:/mnt/0`, which the image has", flags=["-b", data + ":/mnt/0"])
case("`-b DIR:/mnt/x/y`, which it lacks", flags=["-b", data + ":/mnt/x/y"], peer_flags=["-b", data + ":/mnt/0"])
case("`-b /opt`", flags=["-b", "/opt"], peer_flags=["-b", "/opt:/mnt/0"])
case("`-b DIR:/mnt/0:ro`", flags=["-b", data + ":/mnt/0:ro"], peer_flags=["-b", data + ":/mnt/0"])
case("`--set-env FILE`", flags=["--set-env", file], peer_flags=["--set-env=" + file])
case("`--set-env=NAME=VALUE`", flags=["--set-env=A=1"])
case("`--unset-env 'A*'`", flags=["--unset-env", "A*"], peer_flags=["--unset-env=A*"])
case("`-t`", flags=["-t"])
case("`-W`, against ch-run without", flags=["-W"], peer_flags=[])
case("`--set-env config.env --cd DIR`, by name", at, ["--set-env", "config.env", "--cd", at + "/dir"], ["--set-env=config.env", "--cd=/etc"], "base")
case("the same with `-b` and `-t`, in `/opt`", "/opt", ["--set-env", file, "--cd", "/etc", "-b", data + ":/mnt/0", "-t"], ["--set-env=" + file, "--cd=/etc", "-b", data + ":/mnt/0", "-t"])
if not any(os.path.exists(p) for p in ("/etc/cdi", "/var/run/cdi", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/dri")):
    case("`--gpu` without a GPU: refused", flags=["--gpu"], peer_flags=[], status=125)
case("`--hostname`, by the full program", flags=["--hostname", "h"], peer_flags=[])
json.dump(cases, sys.stdout)
P
  go build -o "$work/start" "$here/start/main.go"
  "$work/start" "${BENCH_STARTS:-300}" "$work/cases.json" >"$situated"
}

# untar PROGRAM LAYOUT DIR prints a script that extracts each layer with tar. tar does not
# know whiteouts, does not verify digests and creates no device nodes for this user. It is not
# a competitor: it shows the time of decompressing and writing.
untar() {
  printf '#!/bin/sh\nset -e\nmkdir %s\n' "$3"
  python3 -c 'import json, sys
program, layout, to = sys.argv[1:]
blob = lambda d: layout + "/blobs/" + d["digest"].replace(":", "/")
index = json.load(open(layout + "/index.json"))
for l in json.load(open(blob(index["manifests"][0])))["layers"]:
    print(f"tar -I {program} --exclude=./dev/* -xf {blob(l)} -C {to}")' "$@"
}

# newUmoci builds the version of umoci in go.mod, because Debian's version may not support zstd.
newUmoci() {
  local version
  version=$(cd "$here/../.." && go list -m -f '{{.Version}}' github.com/opencontainers/umoci) && mkdir -p "$work/module" &&
    (cd "$work/module" && rm -f go.mod && go mod init umoci && go get github.com/opencontainers/umoci/cmd/umoci@"$version" &&
      go build -o "$work/umoci" github.com/opencontainers/umoci/cmd/umoci) >"$work/try" 2>&1 ||
    { skip "umoci: $(tail -n 1 "$work/try" | cut -c1-200)"; return 1; }
}

# newFresh writes the program "fresh DIR", which clears DIR for the next run. On tmpfs it removes
# DIR. On a disk it moves DIR aside, truncates its files and calls sync(1): ext4 without a
# journal skips recently removed inodes for each new file (recently_deleted,
# fs/ext4/ialloc.c), which took longer than unpacking.
newFresh() {
  if [ "$(stat -f -c %T "$work")" = tmpfs ]; then
    printf '#!/bin/sh\nchmod -R u+rwX "$1" 2>/dev/null\nrm -rf "$1"\n' >"$work/fresh"
  else
    cat >"$work/fresh" <<F
#!/bin/sh
if [ -e "\$1" ]; then
  old=\$(mktemp -d '$work/old.XXXXXX')
  mv "\$1" "\$old"
  find "\$old" -type f -exec truncate -s 0 {} + 2>/dev/null
fi
sync
F
  fi
  chmod +x "$work/fresh"
}

unpacking() {
  (cd "$here/../.." && go run ./testdata/benchmarks/image "$base" "$scale" "$work/gz" "$work/zst")
  newFresh
  local kind z a umoci='' version='' pod="podman --root $work/pull --storage-driver overlay --storage-opt overlay.ignore_chown_errors=true"
  if newUmoci; then umoci=$work/umoci version=$("$work/umoci" --version | sed 's/.* //;q'); fi
  skip "ch-convert: does not read OCI layouts"
  for kind in gz zst; do
    a=("hpcc unpack" "$work/fresh $work/x" "$hpcc unpack $work/$kind $work/x")
    [ -z "$umoci" ] || a+=("umoci $version unpack --rootless" "$work/fresh $work/x" "$umoci unpack --rootless --image $work/$kind:bench $work/x")
    # podman stores layers and creates no tree. It derives the image's name from the path,
    # which must be lower-case: hence the relative path. --root ignores storage.conf.
    has podman "cd $work; $pod pull -q oci:$kind:bench" && a+=("podman pull" "$work/fresh $work/pull" "$pod pull -q oci:$kind:bench")
    for z in $([ "$kind" = gz ] && echo gzip pigz igzip || echo zstd); do
      untar "$z" "$work/$kind" "$work/x" >"$work/tar-$z"
      has "$z" "$work/fresh $work/x; sh $work/tar-$z" && a+=("tar -I $z, each layer" "$work/fresh $work/x" "sh $work/tar-$z")
    done
    (cd "$work" && interleave "unpack $(du -sm "$work/$kind" | cut -f1) MB ($kind)" "${BENCH_RUNS:-5}" 1 "${a[@]}")
    "$work/fresh" "$work/x"
  done
}

# No step changes owners, because buildah cannot do that for a user without subordinate IDs.
building() {
  local ctx=$work/ctx
  mkdir -p "$ctx/files"
  for i in $(seq 200); do echo "file $i" >"$ctx/files/$i"; done
  cat >"$ctx/Dockerfile" <<'D'
FROM localhost/base
ARG VERSION=1
ENV LEVEL=3
WORKDIR /app
COPY files /app/files
RUN for i in $(seq 1 500); do echo $i >n$i; done
RUN cp -r /usr/lib/x86_64-linux-gnu/perl-base /app/perl
RUN rm -r /app/perl && touch /app/done
RUN chmod -R a+rX /app/files
CMD ["/bin/true"]
D
  sed 's|localhost/base|base|' "$ctx/Dockerfile" >"$work/Dockerfile.hpcc"
  local cold=(-N --warmup 1 --runs 5 -n "hpcc build" "$hpcc build --no-cache -f $work/Dockerfile.hpcc -t b $ctx")
  local cached=(-N --warmup 2 --runs 10 -n "hpcc build" "$hpcc build -f $work/Dockerfile.hpcc -t b $ctx")
  local bud="buildah bud -q --layers --isolation=rootless --network=host -t b"
  if has buildah "buildah pull -q oci-archive:$work/base.tar && buildah tag \$(buildah images -q | head -n 1) localhost/base && $bud $ctx"; then
    cold+=(-n "buildah bud" "$bud --no-cache $ctx"); cached+=(-n "buildah bud" "$bud $ctx")
  fi
  # ch-image warns that it does not support CMD; --rebuild builds without the cache.
  if has ch-image "ch-image import $base base && ch-image build -t b -f $work/Dockerfile.hpcc $ctx"; then
    cold+=(-n "ch-image build" "ch-image build --rebuild -t b -f $work/Dockerfile.hpcc $ctx"); cached+=(-n "ch-image build" "ch-image build -t b -f $work/Dockerfile.hpcc $ctx")
  fi
  compare "build of 10 steps, cold" "${cold[@]}"
  compare "build of 10 steps, cached" "${cached[@]}"
}

# One COPY of 20,000 files of 4 kB on average. In addition to the COPY step, hpcc build writes
# the image's tree, which contains the files again.
copying() {
  local ctx=$work/many
  python3 - "$ctx" <<'P'
import os, random, sys
random.seed(1)
for i in range(20000):
    d = f"{sys.argv[1]}/src/m{i%200//10}/n{i%200}"
    os.makedirs(d, exist_ok=True)
    with open(f"{d}/f{i}.py", "w") as f:
        f.write("\n".join(f"def f{n}(x): return {random.random()} * x" for n in range(int(random.expovariate(1/100)))))
P
  printf 'FROM scratch\nCOPY src /src\n' >"$ctx/Dockerfile"
  local a=(-N --warmup 1 --runs 5 -n "hpcc build" "$hpcc build --no-cache -t many $ctx" --prepare "true" --prepare "rm -rf $work/cp" -n "cp -a" "cp -a $ctx/src $work/cp")
  local bud="buildah bud -q --layers --isolation=rootless -t many"
  has buildah "$bud $ctx" && a+=(--prepare true -n "buildah bud" "$bud --no-cache $ctx")
  # In a new store, including the tree for runs.
  a+=(--prepare "sh -c 'chmod -R u+rwX $work/new 2>/dev/null; rm -rf $work/new'" -n "hpcc build, new store" "env HPCC_STORE=$work/new $hpcc build -t many $ctx")
  compare "COPY of 20,000 files, cold" "${a[@]}"
  a=(-N --warmup 2 --runs 10 -n "hpcc build" "$hpcc build -t many $ctx")
  has buildah "$bud $ctx" && a+=(-n "buildah bud" "$bud $ctx")
  compare "COPY of 20,000 files, cached" "${a[@]}"
  mkdir -p "$work/top"
  printf 'FROM many\nCOPY file /file\n' >"$work/top/Dockerfile"
  local change="sh -c 'date +%s%N >$work/top/file'"
  a=(-N --warmup 1 --runs 10 --prepare "$change" -n "hpcc build" "$hpcc build -t top $work/top")
  has buildah "$change; ${bud/-t many/-t top} $work/top" && a+=(--prepare "$change" -n "buildah bud" "${bud/-t many/-t top} $work/top")
  compare "COPY of a changed file on 20,000 others" "${a[@]}"
  # The COPY step alone, from the progress of the build.
  for _ in 1 2 3 4 5; do "$hpcc" build --no-cache --progress json -t many "$ctx" 2>&1 >/dev/null; done |
    python3 -c 'import json, statistics, sys
took = [e["seconds"] for e in map(json.loads, sys.stdin) if e.get("step") == 2 and e.get("done")]
print(f"| COPY of 20,000 files, cold | hpcc, the step alone | {statistics.median(took)*1e3:.1f} | {statistics.mean(took)*1e3:.1f} ± {statistics.stdev(took)*1e3:.1f} ms | | |")' >>"$rows"
}

# An environment of 68 packages in a new store, and with one package changed; a large index;
# and the bytes that a push sends when one package of a large environment changes.
environments() {
  local ch=$work/channel t a
  newFresh
  (cd "$here/../.." && go run ./testdata/benchmarks/environment -out "$ch")
  t="$hpcc build --from scratch --channel file://$ch -t env --conda"
  printf '#!/bin/sh\nset -e\n%s\n%s\n' "$work/fresh $work/env" "$t $ch/env.txt" >"$work/built"
  printf '#!/bin/sh\nset -e\nmkdir %s\nfor f in %s/*/*.conda; do unzip -p "$f" "pkg-*" | zstd -dq | tar xf - -C %s; done\n' "$work/x" "$ch" "$work/x" >"$work/programs"
  printf 'import glob, os\nfrom conda_package_streaming.extract import extract\nfor f in glob.glob("%s/*/*.conda"): extract(f, "%s/" + os.path.basename(f))\n' "$ch" "$work/x" >"$work/streaming"
  chmod +x "$work/built" "$work/programs"
  a=("hpcc build, the image and its tree" "$work/fresh $work/env" "env HPCC_STORE=$work/env $t $ch/env.txt")
  has unzip "$work/fresh $work/x; $work/programs" && a+=("unzip, zstd, tar: the files alone" "$work/fresh $work/x" "$work/programs")
  has python3 "$work/fresh $work/x; /usr/bin/python3 $work/streaming" && a+=("conda_package_streaming: the files alone" "$work/fresh $work/x" "/usr/bin/python3 $work/streaming")
  MEMORY=1 interleave "environment of 68 packages, 313 MB, cold" "${BENCH_RUNS:-5}" 1 "${a[@]}"
  MEMORY=1 interleave "the same, one small package changed" "${BENCH_RUNS:-5}" 1 "hpcc build" "env HPCC_STORE=$work/env $work/built" "env HPCC_STORE=$work/env $t $ch/changed.txt"
  interleave "the tree of it, which a build makes too" "${BENCH_RUNS:-5}" 1 "hpcc unpack" "$work/fresh $work/x" "env HPCC_STORE=$work/env $hpcc unpack env $work/x"
  "$work/fresh" "$work/env"; "$work/fresh" "$work/x"; rm -rf "$ch"
  scanning; pushing
}

# Solves for a package that needs 159 others in indexes of 200 MB with 400,000 records: in a new
# store, and in one that has tables of the indexes.
scanning() {
  local kind a t sub text=$work/index/plain
  mkdir -p "$work"/index/{plain,zst}/{linux-64,noarch}
  for sub in linux-64 noarch; do
    (cd "$here/../.." && go run ./testdata/benchmarks/repodata $sub $([ $sub = noarch ] && echo 100000 || echo 300000)) >"$text/$sub/repodata.json"
    zstd -q "$text/$sub/repodata.json" -o "$work/index/zst/$sub/repodata.json.zst"
  done
  printf 'dependencies: [lib0]\n' >"$work/closure.yml"
  printf 'import json, sys\nfor f in sys.argv[1:]: json.load(open(f))\n' >"$work/load"
  for kind in plain zst; do
    t="$hpcc build --dry-run --from scratch --conda $work/closure.yml --channel file://$work/index/$kind"
    a=("hpcc build --dry-run, first run" "$work/fresh $work/first" "env HPCC_STORE=$work/first $t" "hpcc build --dry-run, next run" "" "env HPCC_STORE=$work/next-$kind $t")
    if [ "$kind" = plain ]; then
      a+=("python3, json.load alone" "" "python3 $work/load $text/linux-64/repodata.json $text/noarch/repodata.json")
      has jq "jq --version" && a+=("jq .info" "" "jq .info $text/linux-64/repodata.json $text/noarch/repodata.json")
    fi
    MEMORY=1 interleave "160 packages of repodata.json, 199 MB ($kind)" "${BENCH_RUNS:-5}" 1 "${a[@]}"
  done
  rm -rf "$work"/{index,first,next-plain,next-zst}
}

# Pushes an environment of 1 GB to a new registry, then the same with one small package changed,
# then with one additional package. Also measures the growth of the registry's directory.
pushing() {
  local port pid i to before after ch=$work/channel
  command -v docker-registry >/dev/null || { skip "docker-registry: not installed"; return; }
  (cd "$here/../.." && go run ./testdata/benchmarks/environment -out "$ch" -packages 150 -files 20000 -bytes 1100000000 -random 1)
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  mkdir "$work/registry"
  printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: "%s"}}\nhttp: {addr: "127.0.0.1:%s"}\n' "$work/registry" "$port" >"$work/registry.yml"
  docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 & pid=$!
  for i in $(seq 100); do ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break; sleep 0.1; done
  for to in env changed added; do
    before=$(du -sb "$work/registry" | cut -f1)
    if ! { "$hpcc" build --from scratch --channel "file://$ch" -t env --conda "$ch/$to.txt" && "$hpcc" push env "127.0.0.1:$port/env:$to"; } >"$work/output" 2>&1; then
      kill "$pid"; tail -n 5 "$work/output" >&2; die "pushing $to.txt"
    fi
    after=$(du -sb "$work/registry" | cut -f1)
    echo "| push of 150 packages, 1.1 GB: $to.txt | hpcc push | $(sed -n 's/^hpcc: \(sent .*\)/\1/p' "$work/output") | the registry's directory grew by $(((after - before) / 1000)) kB | | |" >>"$rows"
  done
  kill "$pid"; wait "$pid" 2>/dev/null || true
  rm -rf "$work/registry" "$ch"
}

"$hpcc" load "$base" base >/dev/null
"$hpcc" save base "$work/base.tar" >/dev/null
for part in ${BENCH_PARTS:-startup situations unpacking building copying environments}; do "$part"; done
versions() { # prints the versions of the installed programs
  local p
  printf '%s, %s' "$("$hpcc" --version)" "$(go version | cut -d' ' -f1,3)"
  for p in hyperfine ch-run bwrap podman runc crun buildah tar gzip pigz igzip zstd jq docker-registry; do
    ! command -v "$p" >/dev/null || printf ', %s %s' "$p" "$("$p" --version 2>&1 | head -n 1 | sed 's/^[^0-9]*//; s/ (.*//')"
  done
}
{
  cat <<T
# Benchmarks

Written by \`make bench\`: hpcc and other tools in one run, by an ordinary user without subordinate IDs. The ratio is the other
tool's median divided by hpcc's: above 1, hpcc is faster. Times are wall clock; processor time is the sum of user and system time.

$(date -u +%Y-%m-%d), $(awk -F': ' '/model name|^cpu\t/ {print $2; exit}' /proc/cpuinfo), $(nproc) processors, $(awk '/MemTotal/ {printf "%.0f GB", $2/1e6}' /proc/meminfo), Linux $(uname -r), working directory on $(stat -f -c %T "$work").

| what | program | median | mean | processor time | ratio |
| --- | --- | --- | --- | --- | --- |
T
  cat "$rows"
  echo
  if [ -s "$situated" ]; then
    cat <<T
## Situations

\`hpcc run\` and \`ch-run\` start /bin/true, ${BENCH_STARTS:-300} times each in random order. Medians in milliseconds,
hpcc first. The ratio is hpcc's median divided by ch-run's: below 1, hpcc is faster.

| situation | wall clock | ratio | processor time | ratio |
| --- | --- | --- | --- | --- |
T
    cat "$situated"
    echo
  fi
  if [ -s "$missing" ]; then printf 'Left out in this run:\n\n'; cat "$missing"; echo; fi
  echo "Versions: $(versions)."
} >"$out.new"
mv "$out.new" "$out"
cat "$out"
