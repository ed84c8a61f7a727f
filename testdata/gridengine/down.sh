#!/bin/bash
# down.sh - ends the processes that up.sh started; --purge also removes $GRIDENGINE_BASE.
set -uo pipefail
base=${GRIDENGINE_BASE:-/var/tmp/hpcc-gridengine-test}
port=${GRIDENGINE_PORT:-17644}
case ${1:-} in ''|--purge) ;; *) echo "usage: [GRIDENGINE_BASE=DIR GRIDENGINE_PORT=N] gridengine/down.sh [--purge]" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || { echo "gridengine/down.sh: needs root" >&2; exit 1; }
end() { # end NAME FILE: sends TERM to process NAME with the pid in FILE, and KILL after ten seconds
  local p; p=$(cat "$2" 2>/dev/null) || return 0
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$1" ] || return 0
  kill "$p"
  for _ in $(seq 100); do [ -d "/proc/$p" ] || return 0; sleep 0.1; done
  kill -KILL "$p"
}
export SGE_ROOT=$base SGE_CELL=default SGE_QMASTER_PORT=$port SGE_EXECD_PORT=$((port + 1))
timeout 10 /usr/lib/gridengine/qdel -f -u '*' >/dev/null 2>&1
for f in "$base"/spool/execd/*/execd.pid; do [ ! -e "$f" ] || end sge_execd "$f"; done
end sge_qmaster "$base/spool/qmaster/qmaster.pid"
# Shepherds outlive sge_execd by design; their working directory is that of their job.
for d in /proc/[0-9]*; do
  if [ "$(cat "$d/comm" 2>/dev/null)" = sge_shepherd ]; then
    case $(readlink "$d/cwd" 2>/dev/null) in "$base"/*) kill -KILL "${d#/proc/}" ;; esac
  fi
done
if [ -e "/run/netns/ge-$port" ]; then # the second host and its network interface
  ip netns del "ge-$port"
  rm -rf "/etc/netns/ge-$port"
  rest=$(grep -v " ge-$port\$" /etc/hosts) && echo "$rest" >/etc/hosts # /etc/hosts may be a mount point, so it cannot be renamed over
fi
case ${1:-}:$base in
--purge:/?*/?*) rm -rf --one-file-system "$base" ;;
esac
