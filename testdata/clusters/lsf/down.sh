#!/bin/bash
# down.sh - ends the processes that up.sh started; --purge also removes $LSF_BASE.
set -uo pipefail
base=${LSF_BASE:-/var/tmp/hpcc-lsf-test}
port=${LSF_PORT:-16322}
case ${1:-} in ''|--purge) ;; *) echo "usage: [LSF_BASE=DIR LSF_PORT=N] lsf/down.sh [--purge]" >&2; exit 2 ;; esac
me=lsf/down.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"
ours() { # ours: lists the processes of the cluster's daemons and jobs
  local d
  for d in /proc/[0-9]*; do
    case $(readlink "$d/exe") in
    "$base"/sbin/*) echo "${d#/proc/}" ;;
    *) ! { grep -qzx "LSF_ENVDIR=$base/etc" "$d/environ" && grep -qz '^LSB_JOBID=' "$d/environ"; } || echo "${d#/proc/}" ;;
    esac
  done 2>/dev/null
}
# Remove the jobs, otherwise those that wait would run after the next up.sh.
LSF_ENVDIR=$base/etc timeout 20 "$base/bin/bkill" -r -u all 0 >/dev/null 2>&1 && sleep 2
for signal in TERM KILL; do
  for _ in $(seq 10); do
    all=$(ours)
    [ -n "$all" ] || break 2
    kill -$signal $all 2>/dev/null
    sleep 0.2
  done
done
remove_host "lsf-$port"
purge "${1:-}"
