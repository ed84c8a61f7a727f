#!/bin/bash
# down.sh - ends the processes that up.sh started; --purge also removes $SLURM_BASE.
set -uo pipefail
base=${SLURM_BASE:-/var/tmp/hpcc-slurm-test}
end() { # end NAME: sends TERM to the process NAME, and KILL after ten seconds
  local p; p=$(cat "$base/run/$1.pid" 2>/dev/null) || return 0
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "${1%%.*}" ] || return 0
  kill "$p"
  for _ in $(seq 100); do [ -d "/proc/$p" ] || return 0; sleep 0.1; done
  kill -KILL "$p"
}
export SLURM_CONF=$base/slurm.conf
for id in $(timeout 5 squeue -h -o %A 2>/dev/null); do timeout 5 scancel "$id"; done
for f in "$base"/run/slurmd.*.pid; do [ ! -e "$f" ] || end "$(basename "$f" .pid)"; done
for name in slurmctld slurmdbd mariadbd munged; do end $name; done
# Step daemons outlive slurmd by design; those of this cluster have its SLURM_CONF.
for d in /proc/[0-9]*; do
  if [ "$(cat "$d/comm" 2>/dev/null)" = slurmstepd ] && [ -r "$d/environ" ] && tr '\0' '\n' <"$d/environ" 2>/dev/null | grep -qx "SLURM_CONF=$SLURM_CONF"; then
    kill -KILL "${d#/proc/}"
  fi
done
case ${1:-}:$base in
--purge:/?*/?*) rm -rf --one-file-system "$base" ;;
esac
