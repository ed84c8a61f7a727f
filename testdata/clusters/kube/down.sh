#!/bin/bash
# down.sh api|node [--purge] - end what up.sh started; --purge removes $KUBE_BASE too.
set -uo pipefail
mode=${1:-}
case $mode in api | node) ;; *) echo "kube/down.sh: usage: down.sh api|node [--purge]" >&2; exit 2 ;; esac
base=${KUBE_BASE:-/var/tmp/hpcc-kube-$mode}
. "$(dirname "$0")/common.sh"
end() { # end NAME: TERM, and KILL after ten seconds
  local p; alive "$1" || return 0
  p=$(cat "$base/run/$1.pid")
  kill "$p"
  for _ in $(seq 100); do alive "$1" || return 0; sleep 0.1; done
  kill -KILL "$p"
}
if [ "$mode" = node ]; then
  # The first process of the node's namespaces takes all others, mounts and networks with it.
  if p=$(first); then
    kill -KILL "$p"
    for _ in $(seq 100); do [ -d "/proc/$p" ] || break; sleep 0.1; done
  fi
  for _ in 1 2 3 4 5; do # groups empty a moment after their processes
    find /sys/fs/cgroup -depth -type d \( -name "$(cgroup)" -o -path "*/$(cgroup)/*" \) -exec rmdir {} + 2>/dev/null && break
    sleep 0.2
  done
else
  for name in kube-apiserver etcd; do end $name; done
fi
case ${2:-}:$base in
--purge:/?*/?*) rm -rf --one-file-system "$base" ;;
esac
