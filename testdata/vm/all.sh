#!/bin/bash
# testdata/vm/all.sh USER DIR - runs core.sh on this host as USER, as if under Linux 4.18, and in emulated machines with other kernels,
# processors, roots and stores, two at a time. The layer with owners must have the digest that it has here. DIR is a
# checkout that USER can read, with bin/hpcc and, made by go build or make, for ppc64le and arm64 dist/hpcc-linux-ARCH; in dist also
# escape-ARCH (testdata/vm/escape) for these and amd64, and linux418. Run as root; see machine.sh and nfs.sh for what they need.
set -euo pipefail
user=$1 dir=$(cd "$2" && pwd)
vm=$dir/testdata/vm dist=$dir/dist
work=$(mktemp -d /tmp/hpcc-vm.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cp "$dir/bin/hpcc" "$dist/linux418" "$work/bin"
cp "$dist/escape-amd64" "$work/bin/escape"
"$vm/base.sh" "$(command -v busybox)" "$work/base.tar"
chmod 755 "$work" # NFS is used by another user
chown -R "$user" "$work"
here() { # here COMMAND...: runs core.sh with a command before it
  (cd "$work" && setpriv --reuid="$user" --regid="$user" --clear-groups --inh-caps=-all \
    env -i HOME="$work" USER="$user" LOGNAME="$user" OWNERS="${OWNERS:-}" PATH="$work/bin:/usr/bin:/bin" "$@" busybox sh "$vm/core.sh" "$work/base.tar")
}
echo "== this host"
here env | tee "$work/log"
OWNERS=$(sed -n 's/^digest of the layer with owners: //p' "$work/log")
export OWNERS
echo "== as if Linux 4.18"
here linux418
failed=0
machine() { # machine NAME COMMAND...: prints its output in one piece
  local name=$1 rc=0
  shift
  "$@" >"$work/$name.log" 2>&1 || rc=$?
  echo "== $name: status $rc"
  cat "$work/$name.log"
  return $rc
}
first() {
  machine "Linux 5.10 amd64, store on tmpfs" "$vm/machine.sh" --store tmpfs amd64 bullseye "$dir/bin/hpcc" "$dist/escape-amd64" &&
    machine "Linux 6.1 arm64" "$vm/machine.sh" arm64 bookworm "$dist/hpcc-linux-arm64" "$dist/escape-arm64"
}
second() {
  machine "Linux 6.1 ppc64le on an initramfs" "$vm/machine.sh" --root initramfs ppc64el bookworm "$dist/hpcc-linux-ppc64le" "$dist/escape-ppc64le" &&
    machine "Linux 6.1 amd64, store on NFS" "$vm/run.sh" "$vm/nfs.sh" "$dir/bin/hpcc" "$work/base.tar"
}
# Fetching is not for two at a time.
# shellcheck source=kernel.sh
(. "$vm/kernel.sh" && kernel amd64 bullseye && kernel amd64 bookworm && kernel arm64 bookworm && kernel ppc64el bookworm)
first & one=$!
second & two=$!
wait $one || failed=1
wait $two || failed=1
exit $failed
