#!/bin/bash
# down.sh - deletes all jobs and ends the processes that up.sh started; --purge also removes
# $OPENPBS_BASE with the built OpenPBS.
set -uo pipefail
base=${OPENPBS_BASE:-/var/tmp/hpcc-openpbs-test}
second=pbs-2
case ${1:-} in ''|--purge) ;; *) echo "usage: [OPENPBS_BASE=DIR] openpbs/down.sh [--purge]" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || { echo "openpbs/down.sh: needs root" >&2; exit 1; }
end() { # end NAME FILE [SIGNAL]: sends the signal, or TERM, to process NAME with the pid in FILE, and KILL after ten seconds
  local p; p=$(head -n 1 "$2" 2>/dev/null | tr -d ' ') && [ -n "$p" ] || return 0
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$1" ] || return 0
  kill -"${3:-TERM}" "$p"
  for _ in $(seq 100); do [ -d "/proc/$p" ] || return 0; sleep 0.1; done
  kill -KILL "$p"
}
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
if [ -e "/run/netns/$second" ]; then # the second host and its network interface
  ip netns del "$second"
  rm -rf "/etc/netns/$second"
  rest=$(grep -v " $second\$" /etc/hosts) && echo "$rest" >/etc/hosts # /etc/hosts may be a mount point, so it cannot be renamed over
fi
case ${1:-}:$base in
--purge:/?*/?*) rm -rf --one-file-system "$base" ;;
esac
