#!/bin/bash
# up.sh api|node - a real Kubernetes on one machine, for the tests, of what build.sh makes.
#
#   api    etcd and kube-apiserver on 127.0.0.1, as any user: it judges what one would
#          submit ("kubectl create --dry-run=server --validate=strict") and runs nothing
#   node   as root: one real node that runs pods, see node.sh
#
# Safe to run twice; all that is written goes below $KUBE_BASE. Prints the exports that
# any user's shell needs; down.sh ends it. Another one beside it has a $KUBE_BASE of its own,
# and an api a $KUBE_PORT (17901, and two above), a node a $KUBE_NET (10.217.0). In $HPCC_TEST_KUBE lie
#
#   kubeconfig        a researcher's, who has rights in namespaces "restricted" (the default) and "ocp" only
#   token token-ocp   of a service account with the same rights, one in each namespace
#   admin.kubeconfig  the administrator's
#   bin/kubectl       and argo, if build.sh made it
#
# cluster.yaml has what the two namespaces enforce. Custom resources of OpenShift, Argo
# Workflows and Kueue are known with all of their fields.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mode=${1:-}
export LC_ALL=C HPCC_KUBE=${HPCC_KUBE:-/var/tmp/hpcc-kube}
export KUBE_BASE=${KUBE_BASE:-/var/tmp/hpcc-kube-$mode}
die() { echo "kube/up.sh: $*" >&2; exit 1; }
case $mode in
api)
  export KUBE_HOST=127.0.0.1 KUBE_PORT=${KUBE_PORT:-17901}
  "$here/control.sh"
  ;;
node)
  [ "$(id -u)" = 0 ] || die "a node needs root: containers of others are its work"
  "$here/node.sh"
  ;;
*) die "usage: up.sh api|node" ;;
esac
echo "export HPCC_TEST_KUBE=$KUBE_BASE"
[ ! -x "$HPCC_KUBE/bin/argo" ] || echo "export HPCC_TEST_ARGO=$HPCC_KUBE/bin/argo"
