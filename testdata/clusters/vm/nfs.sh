#!/bin/bash
# testdata/clusters/vm/nfs.sh HPCC BASE.tar - runs core.sh with the store on NFS 3 and then on NFS 4.2, as an ordinary user.
# Runs as root in the machine of run.sh, whose kernel exports a directory of its disk to itself. Needs nfs-kernel-server.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
hpcc=$1 base=$2
mkdir -p /run/rpcbind /run/bin /mnt/export
install -m 755 "$hpcc" /run/bin/hpcc
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || { modprobe nfsd && mount -t nfsd nfsd /proc/fs/nfsd; }
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs 2>/dev/null || true
rpcbind -w
exportfs -o rw,no_subtree_check,insecure,fsid=0 127.0.0.1:/mnt/export
rpc.nfsd 2
rpc.mountd --port 20048
for version in 3 4.2; do
  path=/mnt/export
  [ $version = 3 ] || path=/ # fsid=0 is the root of NFS 4
  mkdir -p "/mnt/nfs$version"
  install -d -o 1000 -g 1000 "/mnt/export/$version" "/mnt/home$version"
  mount -t nfs -o "vers=$version,nolock,proto=tcp" "127.0.0.1:$path" "/mnt/nfs$version"
  echo "== store on NFS $version"
  setpriv --reuid=1000 --regid=1000 --clear-groups env -i HOME="/mnt/home$version" USER=u LOGNAME=u PATH=/run/bin:/usr/bin:/bin OWNERS="${OWNERS:-}" TMPDIR=/tmp \
    busybox sh -c "cd '/mnt/nfs$version/$version' && exec busybox sh '$here/core.sh' '$base'"
done
