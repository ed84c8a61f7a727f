#!/bin/bash
# down.sh - ends the processes that up.sh started; --purge also removes $SLURM_BASE.
set -uo pipefail
base=${SLURM_BASE:-/var/tmp/hpcc-slurm-test}
. "$(dirname "$0")/../cluster.sh"
export SLURM_CONF=$base/slurm.conf
for id in $(timeout 5 squeue -h -o %A 2>/dev/null); do timeout 5 scancel "$id"; done
for f in "$base"/run/slurmd.*.pid; do [ ! -e "$f" ] || end slurmd "$f"; done
for name in slurmctld slurmdbd mariadbd munged; do end $name "$base/run/$name.pid"; done
# Step daemons outlive slurmd by design; those of this cluster have its SLURM_CONF.
for d in /proc/[0-9]*; do
  if [ "$(cat "$d/comm" 2>/dev/null)" = slurmstepd ] && [ -r "$d/environ" ] && tr '\0' '\n' <"$d/environ" 2>/dev/null | grep -qx "SLURM_CONF=$SLURM_CONF"; then
    kill -KILL "${d#/proc/}"
  fi
done
purge "${1:-}"
