#!/bin/bash
# control.sh - starts the control plane that both kinds of cluster share: certificates, etcd,
# kube-apiserver, the objects of cluster.yaml, the definitions of custom resources, and
# the users' kubeconfig files. Needs $KUBE_BASE, $KUBE_HOST and $KUBE_PORT; etcd uses the
# next two ports.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=$KUBE_BASE host=$KUBE_HOST port=$KUBE_PORT
services=10.96.0 # network of services; its first address is the API server's
export PATH=$HPCC_KUBE/bin:$PATH HOME=$base # kubectl keeps its discovery cache in HOME
. "$here/common.sh"
for p in etcd kube-apiserver kubectl; do [ -x "$HPCC_KUBE/bin/$p" ] || die "$HPCC_KUBE/bin/$p is missing; run testdata/clusters/kube/build.sh api"; done
command -v openssl >/dev/null || die "needs openssl"
umask 022
mkdir -p "$base"/{run,log,bin}
for p in kubectl argo; do [ ! -x "$HPCC_KUBE/bin/$p" ] || ln -sf "$HPCC_KUBE/bin/$p" "$base/bin/"; done
[ -e "$base/pki" ] || (umask 077; mkdir "$base/pki.new" && mv "$base/pki.new" "$base/pki")

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1"; }
cert() { # cert NAME SUBJECT [NAMES]: creates pki/NAME.crt and pki/NAME.key for SUBJECT
  key "$1.key"
  printf '%s\n' "extendedKeyUsage=serverAuth,clientAuth" ${3:+"subjectAltName=$3"} >"$1.ext"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  openssl x509 -req -days 3650 -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -extfile "$1.ext" -out "$1.crt"
}
# Create them again if the address has changed.
if [ ! -e "$base/pki/made" ] || ! openssl x509 -in "$base/pki/server.crt" -noout -checkip "$host" | grep -q 'does match'; then
  (
    umask 077; cd "$base/pki"
    key ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj /CN=hpcc-test-ca -out ca.crt
    key accounts.key
    openssl pkey -in accounts.key -pubout -out accounts.pub
    cert server /CN=kube-apiserver "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:$host,IP:$services.1"
    cert admin /O=system:masters/CN=admin
    cert researcher /CN=researcher
    cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
    cert proxy /CN=front-proxy
    cert controller-manager /CN=system:kube-controller-manager
    cert scheduler /CN=system:kube-scheduler
    cert node "/O=system:nodes/CN=system:node:node" "DNS:node,IP:$host"
    touch made
  ) >"$base/log/pki" 2>&1 || { tail "$base/log/pki" >&2; die "openssl cannot make certificates"; }
fi
kubeconfig() { # kubeconfig FILE USER [NAMESPACE]
  local p=$base/pki
  cat >"$base/$1.new" <<C
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://$host:$port", certificate-authority-data: $(base64 -w0 "$p/ca.crt")}
users:
- name: $2
  user: {client-certificate-data: $(base64 -w0 "$p/$2.crt"), client-key-data: $(base64 -w0 "$p/$2.key")}
contexts:
- name: test
  context: {cluster: test, user: $2, namespace: ${3:-default}}
current-context: test
C
  mv "$base/$1.new" "$base/$1"
}
(umask 077; for u in admin controller-manager scheduler node; do kubeconfig "$u.kubeconfig" "$u"; done)
kubeconfig kubeconfig researcher restricted # readable by all users of this machine, who may run tests
install -m 644 "$base/pki/ca.crt" "$base/ca.crt"

# start keeps variables such as KUBERNETES_SERVICE_HOST from these.
start etcd etcd --data-dir="$base/etcd" --unsafe-no-fsync --log-level=warn \
  --listen-client-urls="http://127.0.0.1:$((port + 1))" --advertise-client-urls="http://127.0.0.1:$((port + 1))" \
  --listen-peer-urls="http://127.0.0.1:$((port + 2))" --initial-advertise-peer-urls="http://127.0.0.1:$((port + 2))" --initial-cluster="default=http://127.0.0.1:$((port + 2))"
bind=$host
[ "$host" = 127.0.0.1 ] || bind=0.0.0.0
GOGC=50 start kube-apiserver kube-apiserver --etcd-servers="http://127.0.0.1:$((port + 1))" --secure-port="$port" --bind-address="$bind" --advertise-address="$host" \
  --service-cluster-ip-range="$services.0/24" --endpoint-reconciler-type=none --authorization-mode=Node,RBAC --allow-privileged=true \
  --client-ca-file="$base/pki/ca.crt" --tls-cert-file="$base/pki/server.crt" --tls-private-key-file="$base/pki/server.key" \
  --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$base/pki/accounts.pub" --service-account-signing-key-file="$base/pki/accounts.key" \
  --kubelet-client-certificate="$base/pki/kubelet-client.crt" --kubelet-client-key="$base/pki/kubelet-client.key" --kubelet-preferred-address-types=InternalIP \
  --proxy-client-cert-file="$base/pki/proxy.crt" --proxy-client-key-file="$base/pki/proxy.key" --requestheader-client-ca-file="$base/pki/ca.crt" \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1beta1=true
export KUBECONFIG=$base/admin.kubeconfig
await kube-apiserver kubectl get --raw /readyz

if [ ! -e "$base/run/set-up" ]; then
  kubectl apply --server-side -f "$here/cluster.yaml" >"$base/log/cluster" 2>&1 || { tail "$base/log/cluster" >&2; die "the cluster refuses testdata/clusters/kube/cluster.yaml"; }
  kubectl apply --server-side -f "$HPCC_KUBE/definitions.json" >"$base/log/definitions" 2>&1 || { tail "$base/log/definitions" >&2; die "the cluster refuses a definition"; }
  # kubectl wait fails if a definition has no status yet.
  await "the custom resources of definitions.json" kubectl wait --for=condition=Established crd --all --timeout=60s
  touch "$base/run/set-up"
fi
# Policies take effect a moment after they are created.
guarded() {
  kubectl -n ocp create --dry-run=server -o yaml -f - <<C | grep -q 'openshift.io/scc: restricted-v2'
{apiVersion: v1, kind: Pod, metadata: {name: probe}, spec: {containers: [{name: probe, image: probe}]}}
C
}
await "restricted-v2" guarded
for n in restricted ocp; do
  suffix=; [ $n = restricted ] || suffix=-$n
  kubectl -n $n create token researcher --duration=720h >"$base/token$suffix.new"
  mv "$base/token$suffix.new" "$base/token$suffix"
done
