#!/bin/bash
# down.sh - ends the processes that up.sh started; --purge also removes $GRIDENGINE_BASE.
set -uo pipefail
base=${GRIDENGINE_BASE:-/var/tmp/hpcc-gridengine-test}
port=${GRIDENGINE_PORT:-17644}
case ${1:-} in ''|--purge) ;; *) echo "usage: [GRIDENGINE_BASE=DIR GRIDENGINE_PORT=N] gridengine/down.sh [--purge]" >&2; exit 2 ;; esac
me=gridengine/down.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"
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
remove_host "ge-$port"
purge "${1:-}"
