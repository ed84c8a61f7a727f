#!/bin/bash
# test.sh - runs the tests that need a real node or an API server with set states, which it starts and
# stops: "make test-kube".
#
# The node needs root, and the tests an ordinary user. Run it as a user who can use sudo, or
# as root with the user in $KUBE_USER (default: $SUDO_USER). If a node already runs
# (up.sh node), it is used and left running. Missing programs are failures, not skips.
set -euo pipefail
cd "$(dirname "$0")/../../.."
base=${KUBE_BASE:-/var/tmp/hpcc-kube-node}
. testdata/clusters/kube/common.sh
settings=("KUBE_BASE=$base" "HPCC_KUBE=${HPCC_KUBE:-/var/tmp/hpcc-kube}")
if [ "$(id -u)" = 0 ]; then
  user=${KUBE_USER:-${SUDO_USER:-root}}
  [ "$user" != root ] || die "the tests need an ordinary user; name one in KUBE_USER"
  as_root=(env)
  as_user=(setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --inh-caps=-all env HOME="$(getent passwd "$user" | cut -d: -f6)" USER="$user" LOGNAME="$user" GOFLAGS=-buildvcs=false)
else
  command -v sudo >/dev/null || die "a node needs root, and sudo is not installed; run this as root with KUBE_USER=$(id -un)"
  as_root=(sudo env)
  as_user=(env)
fi
"${as_user[@]}" "${settings[@]}" testdata/clusters/kube/build.sh node
if ! first >/dev/null; then
  started=1
  trap '"${as_root[@]}" "${settings[@]}" testdata/clusters/kube/down.sh node' EXIT
fi
exports=$("${as_root[@]}" "${settings[@]}" testdata/clusters/kube/up.sh node)
eval "$exports"
api=("KUBE_BASE=$base-api" "HPCC_KUBE=${HPCC_KUBE:-/var/tmp/hpcc-kube}")
trap '"${as_user[@]}" "${api[@]}" testdata/clusters/kube/down.sh api; [ -z "${started:-}" ] || "${as_root[@]}" "${settings[@]}" testdata/clusters/kube/down.sh node' EXIT
"${as_user[@]}" "${api[@]}" testdata/clusters/kube/up.sh api >/dev/null
"${as_user[@]}" CI=true HPCC_TEST_KUBE_API="$base-api" go test -count=1 -timeout 30m ./job/dispatch ./job/translate ./cmd/hpcc -run 'TestManifests|TestWorkflows|TestScripts/kube(api)?_|TestEffects/pod' -skip 'TestScripts/kube_(several|report)' # they need a Slurm, too
