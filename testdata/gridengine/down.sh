#!/bin/bash
# down.sh - end what up.sh started, by process id; --purge removes $GRIDENGINE_BASE too.
set -uo pipefail
base=${GRIDENGINE_BASE:-/var/tmp/hpcc-gridengine-test}
port=${GRIDENGINE_PORT:-17644}
case ${1:-} in ''|--purge) ;; *) echo "usage: [GRIDENGINE_BASE=DIR GRIDENGINE_PORT=N] gridengine/down.sh [--purge]" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || { echo "gridengine/down.sh: needs root" >&2; exit 1; }
end() { # end NAME FILE: TERM, and KILL after ten seconds
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
# Shepherds outlive sge_execd by design; they stand in their job's directory.
for d in /proc/[0-9]*; do
  if [ "$(cat "$d/comm" 2>/dev/null)" = sge_shepherd ]; then
    case $(readlink "$d/cwd" 2>/dev/null) in "$base"/*) kill -KILL "${d#/proc/}" ;; esac
  fi
done
if [ -e "/run/netns/ge-$port" ]; then # the second host, and the wire to it
  ip netns del "ge-$port"
  rm -rf "/etc/netns/ge-$port"
  rest=$(grep -v " ge-$port\$" /etc/hosts) && echo "$rest" >/etc/hosts # which may be a mount: no other file in its place
fi
case ${1:-}:$base in
--purge:/?*/?*) rm -rf --one-file-system "$base" ;;
esac
