#!/bin/bash
# up.sh api|node - starts a real Kubernetes on one machine for the tests, from the programs of build.sh.
#
#   api    etcd and kube-apiserver on 127.0.0.1, as any user: validates manifests
#          ("kubectl create --dry-run=server --validate=strict"), but runs nothing
#   node   one real node that runs pods, as root; see node.sh
#
# It is safe to run twice, and writes only below $KUBE_BASE. It prints the exports that
# users' shells need; down.sh stops it. A second instance needs its own $KUBE_BASE, and its own
# $KUBE_PORT (api: 17901 and the next two) or $KUBE_NET (node: 10.217.0). $HPCC_TEST_KUBE contains
#
#   kubeconfig        of a researcher with rights only in the namespaces "restricted" (the default) and "ocp"
#   token token-ocp   of a service account with the same rights, one in each namespace
#   admin.kubeconfig  of the administrator
#   bin/kubectl       and argo, if build.sh made it
#
# cluster.yaml defines the restrictions of the two namespaces. The cluster knows the custom resources
# of OpenShift, Argo Workflows and Kueue with all their fields.
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
  [ "$(id -u)" = 0 ] || die "a node needs root"
  "$here/node.sh"
  ;;
*) die "usage: up.sh api|node" ;;
esac
echo "export HPCC_TEST_KUBE=$KUBE_BASE"
[ ! -x "$HPCC_KUBE/bin/argo" ] || echo "export HPCC_TEST_ARGO=$HPCC_KUBE/bin/argo"
