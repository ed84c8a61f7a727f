#!/bin/bash
# test.sh - what needs a real node, with one that it starts and ends: "make test-kube".
#
# The node needs root, the tests an ordinary user. Run it as that user, who may use sudo,
# or as root, who names the user in $KUBE_USER (sudo does). A node that runs already
# (up.sh node) is used, and left. What is missing fails: nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
base=${KUBE_BASE:-/var/tmp/hpcc-kube-node}
. testdata/kube/common.sh
settings=("KUBE_BASE=$base" "HPCC_KUBE=${HPCC_KUBE:-/var/tmp/hpcc-kube}")
if [ "$(id -u)" = 0 ]; then
  user=${KUBE_USER:-${SUDO_USER:-root}}
  [ "$user" != root ] || die "the tests are an ordinary user's: name one in KUBE_USER"
  as_root=(env)
  as_user=(setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --inh-caps=-all env HOME="$(getent passwd "$user" | cut -d: -f6)" USER="$user" LOGNAME="$user" GOFLAGS=-buildvcs=false)
else
  command -v sudo >/dev/null || die "a node needs root, and there is no sudo: run this as root, with KUBE_USER=$(id -un)"
  as_root=(sudo env)
  as_user=(env)
fi
"${as_user[@]}" "${settings[@]}" testdata/kube/build.sh node
if ! first >/dev/null; then
  trap '"${as_root[@]}" "${settings[@]}" testdata/kube/down.sh node' EXIT
fi
exports=$("${as_root[@]}" "${settings[@]}" testdata/kube/up.sh node)
eval "$exports"
"${as_user[@]}" CI=true go test -count=1 -timeout 30m ./job/dispatch ./cmd/hpcc -run 'TestManifests|TestWorkflows|TestScripts/kube_'
