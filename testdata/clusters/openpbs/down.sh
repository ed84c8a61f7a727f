#!/bin/bash
# down.sh - deletes all jobs and ends the processes that up.sh started; --purge also removes
# $OPENPBS_BASE with the built OpenPBS.
set -uo pipefail
base=${OPENPBS_BASE:-/var/tmp/hpcc-openpbs-test}
second=pbs-2
case ${1:-} in ''|--purge) ;; *) echo "usage: [OPENPBS_BASE=DIR] openpbs/down.sh [--purge]" >&2; exit 2 ;; esac
me=openpbs/down.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"
export PBS_CONF_FILE=$base/pbs.conf
list() { timeout 10 "$base/pbs/bin/qselect" 2>/dev/null; }
jobs=$(list)
if [ -n "$jobs" ]; then
  timeout 30 "$base/pbs/bin/qdel" -W suppress_email=-1 $jobs >/dev/null 2>&1
  for _ in $(seq 50); do [ -n "$(list)" ] || break; sleep 0.2; done
  jobs=$(list)
  [ -z "$jobs" ] || timeout 30 "$base/pbs/bin/qdel" -W force $jobs >/dev/null 2>&1
fi
for h in "$base/$second" "$base/server"; do end pbs_mom "$h/mom_priv/mom.lock"; done
end pbs_sched "$base/server/sched_priv/sched.lock"
end pbs_server.bin "$base/server/server_priv/server.lock"
end pbs_comm "$base/server/server_priv/comm.lock"
end postgres "$base/server/datastore/postmaster.pid" INT
remove_host "$second"
purge "${1:-}"
