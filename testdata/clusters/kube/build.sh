#!/bin/bash
# build.sh WHAT... - builds the programs of a real Kubernetes for the tests from their Go modules.
#
# WHAT is a program or a group of them:
#   api    etcd kube-apiserver kubectl, and definitions: the schemas of custom resources
#   argo   the command line and server of Argo Workflows
#   node   all of these, kube-scheduler kube-controller-manager kubelet coredns,
#          workflow-controller argoexec, minio
# Needs Go, but not root. The results are below $HPCC_KUBE (/var/tmp/hpcc-kube): bin/,
# definitions.json, and src/ with generated go.mod files. made/ has the built versions; a program
# is built again only if its version changes. Without Go's caches, all take 20 CPU minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${HPCC_KUBE:-/var/tmp/hpcc-kube}
kubernetes=v1.34.4 etcd=v3.6.4 argo=v3.7.4 coredns=v1.12.4 minio=v0.0.0-20260212201848-7aac2a2c5b7c
openshift=v0.0.0-20260105191300-d1c4dc4fd37b kueue=v0.10.0 queues=(localqueues workloads)
bin=$root/bin src=$root/src
export CGO_ENABLED=0 GOWORK=off
umask 022
mkdir -p "$bin" "$src" "$root/made"
die() { echo "kube/build.sh: $*" >&2; exit 1; }

module() { # module PATH@VERSION: downloads a module and prints its directory
  local info; info=$(cd "$src" && go mod download -json "$1") || die "cannot download $1: $info"
  sed -n 's/^[[:space:]]*"Dir": "\(.*\)".*/\1/p' <<<"$info"
}
copied() { # copied NAME PATH@VERSION: copies a module to src/NAME, where it can be changed
  [ ! -e "$src/$1" ] || return 0
  local dir; dir=$(module "$2")
  rm -rf "$src/$1.new"
  cp -R "$dir" "$src/$1.new" && chmod -R u+w "$src/$1.new" && mv "$src/$1.new" "$src/$1"
}
required() { # required NAME PATH@VERSION: creates a module in src/NAME that requires only this one
  [ ! -e "$src/$1/go.mod" ] || return 0
  local dir path=${2%@*} version=${2#*@}; dir=$(module "$2")
  mkdir -p "$src/$1"
  { # Modules that are released together replace each other by directories, which releases do not contain.
    echo "module parts"
    grep -E '^(go|godebug) ' "$dir/go.mod"
    echo "require $path $version"
    sed -nE "s#^[[:space:]]*(replace )?(k8s.io/[a-z0-9.-]+) => \./staging/.*#replace \2 => \2 v0.${version#v1.}#p" "$dir/go.mod"
  } >"$src/$1/go.mod"
}
compile() { # compile NAME DIR PACKAGE [LDFLAGS]: builds bin/NAME
  echo "kube/build.sh: $1" >&2
  (cd "$src/$2" && go build -mod=mod -buildvcs=false -trimpath -ldflags "-s -w ${4:-}" -o "$bin/$1.new" "$3")
  mv "$bin/$1.new" "$bin/$1"
}

definitions() {
  local dir files kind
  # For kinds that users write, take Argo's "full" definitions: the default ones accept any field.
  dir=$(module "github.com/argoproj/argo-workflows/v3@$argo")/manifests/base/crds
  files=("$dir"/full/argoproj.io_workflow{s,templates}.yaml "$dir"/minimal/argoproj.io_{clusterworkflowtemplates,cronworkflows,workflow{artifactgctasks,eventbindings,taskresults,tasksets}}.yaml)
  dir=$(module "sigs.k8s.io/kueue@$kueue"); for kind in "${queues[@]}"; do files+=("$dir/config/components/crd/bases/kueue.x-k8s.io_$kind.yaml"); done
  dir=$(module "github.com/openshift/api@$openshift")
  (cd "$here" && go run ./definitions "$dir/openapi/openapi.json" "${files[@]}") >"$root/definitions.new"
  mv "$root/definitions.new" "$root/definitions.json"
}
version() { # version PART: prints the version of its sources
  case $1 in
  etcd) echo "$etcd" ;;
  kube*) echo "$kubernetes" ;;
  argo | workflow-controller | argoexec) echo "$argo" ;;
  coredns) echo "$coredns" ;;
  minio) echo "$minio" ;;
  definitions) echo "$openshift $argo $kueue ${queues[*]} $(cat "$here"/definitions/*.go | cksum)" ;;
  esac
}
program() {
  local version="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${kubernetes:3:2}"
  case $1 in
  etcd)
    required "etcd-$etcd" "go.etcd.io/etcd/server/v3@$etcd"
    compile etcd "etcd-$etcd" go.etcd.io/etcd/server/v3 ;;
  kube* )
    required "kubernetes-$kubernetes" "k8s.io/kubernetes@$kubernetes"
    compile "$1" "kubernetes-$kubernetes" "k8s.io/kubernetes/cmd/$1" "$version" ;;
  argo | workflow-controller | argoexec)
    # A module lacks the server's web page and symbolic links.
    copied "argo-$argo" "github.com/argoproj/argo-workflows/v3@$argo"
    mkdir -p "$src/argo-$argo/ui/dist/app"; echo '<html></html>' >"$src/argo-$argo/ui/dist/app/index.html"
    cp "$src/argo-$argo"/workflow/executor/osspecific/signal_{darwin,linux}.go
    compile "$1" "argo-$argo" "./cmd/$1" "-X github.com/argoproj/argo-workflows/v3.version=$argo" ;;
  coredns)
    required "coredns-$coredns" "github.com/coredns/coredns@$coredns"
    cat >"$src/coredns-$coredns/main.go" <<C
// Command coredns has only the plugins that a cluster needs.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
	coremain.Run()
}
C
    compile coredns "coredns-$coredns" . ;;
  minio)
    copied "minio-$minio" "github.com/minio/minio@$minio"
    compile minio "minio-$minio" . ;;
  esac
}
for what in "$@"; do
  case $what in
  api) parts=(etcd kube-apiserver kubectl definitions) ;;
  node) parts=(etcd kube-apiserver kubectl definitions kube-scheduler kube-controller-manager kubelet coredns argo workflow-controller argoexec minio) ;;
  etcd | kube-apiserver | kubectl | kube-scheduler | kube-controller-manager | kubelet | coredns | argo | workflow-controller | argoexec | minio | definitions) parts=("$what") ;;
  *) die "unknown part \"$what\"; name api, argo, node or one of their programs" ;;
  esac
  for part in "${parts[@]}"; do
    now=$(version "$part")
    [ "$(cat "$root/made/$part" 2>/dev/null)" != "$now" ] || continue
    if [ "$part" = definitions ]; then definitions; else program "$part"; fi
    echo "$now" >"$root/made/$part"
  done
done
[ $# -gt 0 ] || die "usage: build.sh api|argo|node|PROGRAM..."
