#!/bin/busybox sh
# testdata/clusters/vm/core.sh BASE.tar - tests the main features of hpcc as an ordinary user, with only hpcc and
# busybox: load, build with owners, run with most flags, unpack, submit, measure, stage, oci. It prints a
# line for each step and the digests, and exits with status 1 at the first failure. BASE.tar is a root file
# system with busybox. hpcc is found in PATH. Variables:
#   OWNERS  the digest that the layer with owners must have ("": print it)
#   ROOT    "initramfs": doctor must report an initramfs as root
set -eu
base=$1
exec </dev/null # no program may wait for terminal input
work=$PWD/core.$$
mkdir "$work"
cd "$work"
HPCC_STORE=${HPCC_STORE:-$work/store}
export HPCC_STORE HPCC_NO_CONFIG=1

now() { read -r up _ </proc/uptime; echo "${up%.*}"; }
begun=$(now)
exec 3>&1
: >out
: >err
ended() {
  rc=$?
  [ $rc = 0 ] && return
  echo "FAILED $step"
  cat out err
} >&3 2>&3
trap ended EXIT
fail() {
  echo "$*" >>err
  exit 1
}
# step NAME COMMAND...: runs a command and shows its output if it fails. (Without "if", which would disable "set -e".)
step() {
  step=$1
  shift
  "$@" >out 2>err
  echo "ok $step ($(($(now) - begun)) s)"
}
# gives WANT COMMAND...: checks that the command prints WANT.
gives() {
  want=$1
  shift
  got=$("$@")
  [ "$got" = "$want" ] || fail "$* prints '$got'; want '$want'"
}

load() { hpcc load "$base" bb; }

# Owners, modes, set-id bits, a FIFO, a link, and a directory that is removed and recreated.
build() {
  mkdir c
  cat >c/Dockerfile <<'D'
FROM bb
RUN mkdir -p /old/deep && echo old >/old/deep/f
RUN echo hi >/a && chown 5:6 /a && chmod 4750 /a && mkdir /d && echo x >/d/x && chown -R 7:8 /d && mkfifo /d/pipe && \
    ln -s a /link && rm -r /old && mkdir /old && echo new >/old/f && mv /d /e
D
  hpcc build --reproducible --progress plain -t owners c
}

# digests prints the digest of the image, and that of the contents of its last layer, which is the same on all
# architectures.
digests() {
  hpcc inspect owners >json
  echo "digest of the image: $(sed -n '/"digest"/{s/.*\(sha256:[0-9a-f]*\).*/\1/p;q}' json)"
  last=$(sed -n '/"diff_ids"/,/]/s/.*\(sha256:[0-9a-f]*\).*/\1/p' json | tail -n 1)
  echo "digest of the layer with owners: $last"
  [ -n "$last" ] || { cat json; fail "inspect shows no layer"; }
  [ -n "${OWNERS:-}" ] && [ "$last" != "$OWNERS" ] || return 0
  cat built
  fail "the layer with owners should be $OWNERS"
}

ways() {
  gives "$(id -u)" hpcc run bb id -u
  gives hi hpcc run owners cat /a
  gives "new" hpcc run owners cat /old/f
  gives "$work" hpcc run bb pwd
  mkdir -p shown; echo s >shown/f
  gives s hpcc run -b "$work/shown:/mnt/in:ro" bb cat /mnt/in/f
  gives 1 hpcc run --set-env A=1 bb sh -c 'echo $A'
  gives / hpcc run --cd / bb pwd
  gives 0 hpcc run --uid 0 --gid 0 bb id -u
  gives ok hpcc run --seccomp bb sh -c 'touch /tmp/hpcc-core-$$; chown 5:6 /tmp/hpcc-core-$$; rm /tmp/hpcc-core-$$; echo ok'
  gives 2 hpcc run --pid bb sh -c 'echo $$'
  gives j hpcc run --join --join-ct 1 bb echo j
  gives t hpcc run --private-tmp bb sh -c 'echo t >/tmp/f; cat /tmp/f'
  gives h hpcc run --hostname h bb hostname
  gives lo hpcc run --network none bb sh -c 'ls /sys/class/net >/dev/null; sed -n "s/^ *\(lo\):.*/\1/p" /proc/net/dev'
  # If users cannot mount overlays, -W copies the image. It refuses an image that is too large, with a hint.
  hpcc run -W=1m bb true 2>refused || grep 'hpcc unpack IMAGE DIR; hpcc run --write ./DIR' refused
  gives w hpcc run -W owners sh -c 'echo w >/n; rm -r /e; cat /n; test ! -e /e'
  gives x hpcc run owners cat /e/x # -W discards changes
  rc=0; hpcc run bb sh -c 'exit 7' || rc=$?
  [ $rc = 7 ] || fail "exit status $rc; want 7"
  rc=0; hpcc run bb sh -c 'echo no >/no' 2>/dev/null || rc=$?
  [ $rc != 0 ] || fail "a run without -w can write to the image"
}

# joined runs two tasks of a node in one pair of namespaces.
joined() {
  hpcc run --join --join-ct 2 --join-tag core bb sh -c 'readlink /proc/self/ns/mnt >one; while [ ! -e two ]; do sleep 1; done' &
  while [ ! -s one ]; do sleep 1; done
  hpcc run --join --join-ct 2 --join-tag core bb sh -c 'readlink /proc/self/ns/mnt >two.new; mv two.new two'
  wait $!
  gives "$(cat one)" cat two
}

unpacked() {
  hpcc unpack owners tree
  gives hi cat tree/a
  hpcc run --write ./tree sh -c 'echo more >/more'
  gives more cat tree/more
  hpcc save owners image.sqfs
  gives hi hpcc run image.sqfs cat /a
}

submitted() {
  hpcc submit --to local --wait --array 1-2 --name core bb -- sh -c 'echo task {task}' >id
  gives "task 1
task 2" sh -c 'cat core-*_1.out core-*_2.out'
  hpcc status "$(cat id)"
}

measured() {
  hpcc run --measure=m.jsonl bb sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'
  [ -s m.jsonl ] || fail "no record"
  hpcc report m.jsonl >report
  grep -q . report
}

staged() {
  mkdir local
  gives s env HPCC_STAGE="$work/local" hpcc run --stage bb echo s
}

oci() {
  hpcc unpack --bundle owners bundle
  sed -i 's|"/bin/sh"|"/bin/cat","/a"|' bundle/config.json
  gives hi hpcc oci --root "$work/oci" run --bundle bundle core
  hpcc oci --root "$work/oci" create --bundle bundle two >out2
  hpcc oci --root "$work/oci" start two
  until hpcc oci --root "$work/oci" state two | grep -q '"stopped"'; do sleep 1; done
  hpcc oci --root "$work/oci" delete two
  gives hi cat out2
}

doctor() {
  hpcc doctor >doctor
  [ "${ROOT:-}" != initramfs ] || grep initramfs doctor
}

escapes() {
  printf 'FROM bb\nCOPY escape /\nRUN /escape\n' >c/Dockerfile
  cp "$(cat where)" c/
  hpcc build --progress plain -t escape c
  for flag in --pid=false --uid=0 --seccomp --pid; do
    hpcc run $flag escape /escape
  done
}

step=uname
echo "kernel $(uname -rm), user $(id -u), store on $(df -T "$work" | sed -n '$s/^[^ ]* *\([^ ]*\).*/\1/p')"
step "load" load
step "build with owners" build
cat out err >built
grep -i warning built || true
step=digests
digests
step "run with most flags" ways
step "run --join of two" joined
step "unpack, run --write, SquashFS" unpacked
step "submit --to local" submitted
step "run --measure, report" measured
step "run --stage" staged
step "oci run, create, start, delete" oci
step "doctor" doctor
! command -v escape >where || step "escapes" escapes
cd /
chmod -R u+rwX "$work"
rm -rf "$work"
echo "core: all ok ($(($(now) - begun)) s)"
