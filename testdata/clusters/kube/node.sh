#!/bin/bash
# node.sh - starts one real Kubernetes node for up.sh, in its own pid, mount and network
# namespaces. On the host it adds only a veth pair ($KUBE_NET.1 on the host, .2 on the node),
# through which all users of this machine reach the node, and a cgroup named like $KUBE_BASE.
# Each start creates a new cluster with
#
#   pods         containerd, runc, the bridge plugin, kubelet; DNS by coredns; two simulated
#                NVIDIA GPUs; a volume claim "data" in each namespace, stored in volumes/NAMESPACE
#   a registry   http, at $KUBE_NET.2:5000, from which pods pull images; import.sh loads
#                images onto the node
#   Argo         its controller; a server that requires tokens, https://$KUBE_NET.2:2746, with a
#                certificate of ca.crt; one without tokens, http://$KUBE_NET.2:2747, for
#                namespace "restricted"
#   S3           minio, http://$KUBE_NET.2:9000, bucket "artifacts", its keys in the secret "s3"
#
# The file "environment" has the addresses as lines NAME=VALUE.
# Needs bin/hpcc, or $HPCC, to build the images of the node itself.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=$KUBE_BASE
net=${KUBE_NET:-10.217.0} # network of the veth pair; pods are in 10.218.0
address=$net.2 pods=10.218.0 services=10.96.0
hpcc=${HPCC:-$here/../../../bin/hpcc}
export LC_ALL=C KUBE_HOST=$address KUBE_PORT=443 PATH=$HPCC_KUBE/bin:$PATH
. "$here/common.sh"

packages() {
  local need=() p
  for p in containerd runc containernetworking-plugins busybox-static docker-registry openssl iproute2; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || need+=("$p")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  if [ ! -e /usr/sbin/policy-rc.d ]; then # prevent packages from starting services
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
  fi
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${need[@]}"; } >"$base/log/apt" 2>&1 || { tail "$base/log/apt" >&2; die "apt-get cannot install ${need[*]}"; }
}
image() { # image NAME FILE DOCKERFILE: builds images/NAME.tar from FILE and further instructions
  local dir=$base/images/$1
  mkdir -p "$dir"
  cp -L "$2" "$dir/"
  printf 'FROM scratch\nCOPY %s /bin/\n%s\n' "$(basename "$2")" "$3" >"$dir/Dockerfile"
  { HPCC_STORE=$base/images/store "$hpcc" build -t "localhost/$1:1" "$dir" && HPCC_STORE=$base/images/store "$hpcc" save "localhost/$1:1" "$base/images/$1.tar"; } >"$base/log/images" 2>&1 ||
    { tail "$base/log/images" >&2; die "hpcc cannot build the image $1"; }
  rm -rf "$dir"
}
groups_of() { # prints the cgroup directory of the node's pods in each hierarchy
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$(cgroup)"; return; fi
  local d; for d in /sys/fs/cgroup/*/; do
    [ ! -e "$d/cgroup.procs" ] || [ -L "${d%/}" ] || echo "$d$(cgroup)"
  done
}

outside() {
  local p d wire=k-${net//./-} unshared
  [ -x "$hpcc" ] || die "$hpcc is missing; run make build"
  for p in kube-scheduler kube-controller-manager kubelet coredns argo workflow-controller argoexec minio; do
    [ -x "$HPCC_KUBE/bin/$p" ] || die "$HPCC_KUBE/bin/$p is missing; run testdata/clusters/kube/build.sh node"
  done
  rm -rf --one-file-system "$base"/{run,etcd,kubelet,containerd,registry,minio,volumes,import,imported,images}
  mkdir -p "$base"/{run,log,images,registry,minio,import,imported} "$base"/volumes/{restricted,ocp}
  chmod 755 "$base"
  chmod 1777 "$base/import" "$base"/volumes/*
  chown nobody "$base/registry"
  packages
  image pause /bin/busybox 'ENTRYPOINT ["/bin/busybox", "sleep", "infinity"]'
  image argoexec "$HPCC_KUBE/bin/argoexec" $'USER 8737\nENTRYPOINT ["/bin/argoexec"]'
  rm -rf "$base/images/store"
  groups_of | while read -r d; do mkdir -p "$d"; done
  printf '%s\n' "KUBE_REGISTRY=$address:5000" "ARGO_SERVER=https://$address:2746" "ARGO_OPEN_SERVER=http://$address:2747" "S3_ENDPOINT=$address:9000" >"$base/environment"

  ip link del "$wire" 2>/dev/null || true
  env -i HOME="$base" PATH="$PATH" KUBE_BASE="$base" KUBE_NET="$net" HPCC_KUBE="$HPCC_KUBE" setsid unshare --mount --net --pid --ipc --uts --fork --mount-proc --propagation private \
    "$here/node.sh" inside >"$base/log/node" 2>&1 </dev/null &
  unshared=$!
  until p=$(cat "/proc/$unshared/task/$unshared/children" 2>/dev/null) && [ -n "$p" ]; do
    [ -d "/proc/$unshared" ] || { tail "$base/log/node" >&2; die "cannot create namespaces"; }
    sleep 0.1
  done
  p=${p% }
  echo "$p $(cut -d' ' -f22 "/proc/$p/stat")" >"$base/run/node"
  ip link add "$wire" type veth peer name wire netns "$p" && ip addr add "$net.1/24" dev "$wire" && ip link set "$wire" up || die "cannot create the veth pair of the node"
}
ready() {
  until [ -e "$base/run/ready" ]; do
    first >/dev/null || { tail -n 20 "$base/log/node" >&2; die "the node ended; see $base/log"; }
    sleep 0.2
  done
}

network() {
  ip link set lo up
  ip addr add "$services.1/32" dev lo; ip addr add "$services.10/32" dev lo # addresses of the API server and of DNS
  await "the network interface" ip link show wire
  ip addr add "$address/24" dev wire; ip link set wire up
  ip link add pods type bridge; ip addr add "$pods.1/24" dev pods; ip link set pods up
  ip route add default dev pods
  echo 1 >/proc/sys/net/ipv4/ip_forward
}
mounts() {
  local d kv f
  mount -t tmpfs tmpfs /run
  mkdir -p /run/netns
  for d in /var/lib/cni /var/log/pods /var/log/containers; do mkdir -p "$d"; mount -t tmpfs tmpfs "$d"; done
  # The kubelet requires kernel settings that belong to the host: bind files with these values over them.
  for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    f=$base/run/${kv//\//_}; echo "${kv#*=}" >"$f"
    mount --bind "$f" "/proc/sys/${kv%=*}"
  done
}
runtime() {
  local i
  mkdir -p "$base/cni" "$base/certs.d/$address:5000"
  cat >"$base/cni/pods.conflist" <<C
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
C
  # Without server, containerd asks by https after a refusal, and the pod shows that error only.
  printf 'server = "http://%s:5000"\n[host."http://%s:5000"]\ncapabilities = ["pull", "resolve"]\n' "$address" "$address" >"$base/certs.d/$address:5000/hosts.toml"
  cat >"$base/containerd.toml" <<C
version = 2
root = "$base/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true # root of a container may not have the capability to lower it
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$base/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$base/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
C
  start containerd containerd -c "$base/containerd.toml"
  await containerd ctr version
  for i in pause argoexec; do ctr -n k8s.io images import "$base/images/$i.tar"; done
}
node() {
  local admin=$base/admin.kubeconfig
  start kube-controller-manager kube-controller-manager --kubeconfig="$base/controller-manager.kubeconfig" --use-service-account-credentials=true \
    --service-account-private-key-file="$base/pki/accounts.key" --root-ca-file="$base/ca.crt" --leader-elect=false --bind-address=127.0.0.1
  start kube-scheduler kube-scheduler --kubeconfig="$base/scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
  printf '.:53 {\n  bind %s.10\n  errors\n  kubernetes cluster.local {\n    kubeconfig %s\n    ttl 0\n  }\n}\n' "$services" "$admin" >"$base/Corefile"
  start coredns coredns -conf "$base/Corefile"
  cat >"$base/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $base/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $base/pki/node.crt
tlsPrivateKeyFile: $base/pki/node.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$(cgroup)
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
resolvConf: ""
clusterDNS: [$services.10]
clusterDomain: cluster.local
evictionHard: {memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
syncFrequency: 5s
nodeStatusUpdateFrequency: 5s
C
  start kubelet kubelet --config="$base/kubelet.yaml" --kubeconfig="$base/node.kubeconfig" --root-dir="$base/kubelet" --hostname-override=node --node-ip="$address"
  await "the node" kubectl wait --for=condition=Ready node/node --timeout=5s
  kubectl label node node nvidia.com/gpu.product=Tesla-V100 nvidia.com/gpu.present=true
  kubectl patch node node --subresource=status --type=merge -p '{"status": {"capacity": {"nvidia.com/gpu": "2"}}}'
  local n; for n in restricted ocp; do
    kubectl apply --server-side -f - <<C
apiVersion: v1
kind: PersistentVolume
metadata: {name: data-$n}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {path: $base/volumes/$n}
  claimRef: {namespace: $n, name: data}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: $n}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: data-$n
  resources: {requests: {storage: 1Gi}}
C
  done
}
registry() {
  printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}, delete: {enabled: true}}\nhttp: {addr: "%s:5000"}\n' "$base/registry" "$address" >"$base/registry.yml"
  start docker-registry setpriv --reuid=nobody --regid=nogroup --clear-groups docker-registry serve "$base/registry.yml"
  start minio env MINIO_ROOT_USER=researcher MINIO_ROOT_PASSWORD=artifacts-of-tests MINIO_UPDATE=off MINIO_CALLHOME_ENABLE=off \
    minio server "$base/minio" --address "$address:9000" --console-address 127.0.0.1:9001
  mkdir -p "$base/minio/artifacts" # minio treats this directory as a bucket
  local n; for n in restricted ocp; do
    kubectl -n $n create secret generic s3 --from-literal=accesskey=researcher --from-literal=secretkey=artifacts-of-tests
  done
}
argo_workflows() {
  kubectl create namespace argo
  kubectl -n argo create secret tls argo-server-tls --cert="$base/pki/server.crt" --key="$base/pki/server.key"
  local n; for n in argo restricted; do # the server without tokens reads it from its own namespace
    kubectl apply --server-side -f - <<C
apiVersion: v1
kind: ConfigMap
metadata: {name: workflow-controller-configmap, namespace: $n}
data:
  executor: |
    resources: {requests: {cpu: 10m, memory: 32Mi}}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, runAsNonRoot: true}
  artifactRepository: |
    s3:
      endpoint: $address:9000
      bucket: artifacts
      insecure: true
      accessKeySecret: {name: s3, key: accesskey}
      secretKeySecret: {name: s3, key: secretkey}
C
  done
  start workflow-controller env LEADER_ELECTION_DISABLE=true workflow-controller --kubeconfig "$base/admin.kubeconfig" --namespace argo --executor-image localhost/argoexec:1 --executor-image-pull-policy IfNotPresent
  start argo env KUBECONFIG="$base/admin.kubeconfig" argo server --namespace argo --namespaced=false --auth-mode=client --secure=true --tls-certificate-secret-name=argo-server-tls --port=2746
  start argo-open env KUBECONFIG="$base/kubeconfig" argo server --namespace restricted --namespaced --auth-mode=server --secure=false --port=2747
}
imports() { # imports the files of import.sh while the node runs
  local f log
  while :; do
    for f in "$base"/import/*.tar; do
      [ -f "$f" ] && [ ! -L "$f" ] || continue
      log=$base/imported/$(basename "$f" .tar) # a directory that users cannot write to
      if ctr -n k8s.io images import "$f" >"$log.new" 2>&1; then mv "$log.new" "$log.done"; else mv "$log.new" "$log.refused"; fi
      rm -f "$f"
    done
    sleep 0.3
  done
}
inside() {
  hostname node
  network
  mounts
  "$here/control.sh"
  export KUBECONFIG=$base/admin.kubeconfig
  runtime
  registry
  node
  argo_workflows
  await minio serves 9000
  await docker-registry serves 5000
  await "Argo's server" serves 2746
  await "Argo's open server" serves 2747
  touch "$base/run/ready"
  imports
}
serves() { (exec 3<>"/dev/tcp/$address/$1"); }

if [ "${1:-}" = inside ]; then
  inside
else
  first >/dev/null || outside
  ready
fi
