#!/bin/bash
# testdata/clusters/vm/all.sh USER DIR - runs core.sh on this host as USER, without the system calls after Linux 4.18, and in emulated
# machines with other kernels, architectures, clocks, root file systems and stores, two at a time. The layer with owners must
# have the same digest everywhere. DIR is a checkout that USER can read. It contains bin/hpcc, dist/hpcc-linux-ARCH for ppc64le and arm64,
# dist/escape-ARCH (testdata/clusters/vm/escape) for these and amd64, and dist/linux418. Run it as root; machine.sh and nfs.sh list their
# requirements.
set -euo pipefail
user=$1 dir=$(cd "$2" && pwd)
vm=$dir/testdata/clusters/vm dist=$dir/dist
work=$(mktemp -d /tmp/hpcc-vm.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cp "$dir/bin/hpcc" "$dist/linux418" "$work/bin"
cp "$dist/escape-amd64" "$work/bin/escape"
"$vm/base.sh" "$(command -v busybox)" "$work/base.tar"
chmod 755 "$work" # another user reads it in the test of NFS
chown -R "$user" "$work"
on_host() { # on_host COMMAND...: runs core.sh on this host through COMMAND
  (cd "$work" && setpriv --reuid="$user" --regid="$user" --clear-groups --inh-caps=-all \
    env -i HOME="$work" USER="$user" LOGNAME="$user" OWNERS="${OWNERS:-}" PATH="$work/bin:/usr/bin:/bin" "$@" busybox sh "$vm/core.sh" "$work/base.tar")
}
echo "== this host"
on_host env | tee "$work/log"
OWNERS=$(sed -n 's/^digest of the layer with owners: //p' "$work/log")
export OWNERS
echo "== system calls of Linux 4.18"
on_host linux418
failed=0
machine() { # machine NAME COMMAND...: runs COMMAND and then prints its output without interruption
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
# Kernels must not be downloaded by two processes simultaneously.
# shellcheck source=kernel.sh
(. "$vm/kernel.sh" && kernel amd64 bullseye && kernel amd64 bookworm && kernel arm64 bookworm && kernel ppc64el bookworm)
first & one=$!
second & two=$!
wait $one || failed=1
wait $two || failed=1
exit $failed
