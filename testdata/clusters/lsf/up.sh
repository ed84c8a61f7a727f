#!/bin/bash
# up.sh - builds volclava, a free scheduler with the commands and files of LSF, and starts a cluster
# on one machine for the tests.
#
# Run it as root, with HPCC_VOLCLAVA_SRC naming volclava's source tree; it is safe to run twice and
# builds only once. It installs missing Debian packages, needs no service manager, and writes only
# below $LSF_BASE. It prints the exports that users' shells need. down.sh stops it.
#
# The host has 8 slots, whatever its number of processors. A second, equal host is this machine
# under another name and address, in a network namespace. Daemons listen only on the private
# network between the two, because volclava's authentication trusts every client. If the namespace
# cannot be created, there is only one host, on 127.0.0.1.
# Queues: normal, and spare with a lower priority.
set -euo pipefail
base=${LSF_BASE:-/var/tmp/hpcc-lsf-test}
port=${LSF_PORT:-16322} # of lim; res, mbatchd and sbatchd use the next three
slots=8
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
me=lsf/up.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"
[ -n "${HPCC_VOLCLAVA_SRC:-}" ] || die "HPCC_VOLCLAVA_SRC does not name a source tree of volclava"
[ -e "$HPCC_VOLCLAVA_SRC/lsbatch/lsbatch.h" ] || die "HPCC_VOLCLAVA_SRC: $HPCC_VOLCLAVA_SRC is not a source tree of volclava"

host=$(hostname -s) admin=lsfadmin
second=lsf-$port net=10.214.$((port % 256))
mkdir -p "$base"/log
chmod 755 "$base"
id "$admin" >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin "$admin"

if [ ! -x "$base/sbin/mbatchd" ]; then
  install_packages autoconf automake bison flex gcc make libc6-dev libncurses-dev libnsl-dev libtirpc-dev tcl-dev
  rm -rf "$base/build"
  mkdir "$base/build"
  (cd "$HPCC_VOLCLAVA_SRC" && tar c --exclude=.git .) | tar x --no-same-owner -C "$base/build"
  (
    cd "$base/build"
    # Listen on the address of this host in the cluster's list of hosts.
    own='*(in_addr_t *)Gethostbyname_(ls_getmyhostname())->h_addr_list[0]'
    grep -rlE --include='*.c' 'INADDR_ANY|LOOP_ADDR' lsf/lib lsf/res lsbatch/daemons |
      xargs sed -i -E "s/= (htonl\((INADDR_ANY|LOOP_ADDR)\)|INADDR_ANY);/= $own;/"
    sh bootstrap.sh --prefix="$base" volclavaadmin="$admin" volclavacluster=hpcctest && make && make install
  ) >"$base/log/build" 2>&1 || { tail "$base/log/build" >&2; die "cannot build volclava; see $base/log/build"; }
  rm -rf "$base/build"
fi

running() { # running HOST NAME: checks that the daemon NAME of a host runs
  local d
  for d in /proc/[0-9]*; do
    [ "$(readlink "$d/exe")" = "$base/sbin/$2" ] && [ "$(tr '\0' '\n' <"$d/environ" | sed -n 's/^TEST_HOST=//p')" = "$1" ] && return
  done 2>/dev/null
  return 1
}
running "$host" lim || add_host "$host" "$second" "$net"
hosts=("$host") list="127.0.0.1 $host"
[ ! -e "/run/netns/$second" ] || { hosts+=("$second"); list="$net.1 $host"$'\n'"$net.2 $second"; }

export LSF_ENVDIR=$base/etc PATH=$base/bin:$PATH
if ! running "$host" lim; then
  mkdir -p "$base"/state/logdir "$base"/etc
  echo "$list" >"$base/etc/hosts"
  cat >"$base/etc/lsf.conf" <<C
LSF_SERVERDIR=$base/sbin
LSF_BINDIR=$base/bin
LSB_SHAREDIR=$base/state
LSF_ENVDIR=$base/etc
LSF_CONFDIR=$base/etc
LSB_CONFDIR=$base/etc
LSF_LOGDIR=$base/log
LSF_LOG_MASK=LOG_WARNING
LSF_LIM_PORT=$port
LSF_RES_PORT=$((port + 1))
LSB_MBD_PORT=$((port + 2))
LSB_SBD_PORT=$((port + 3))
LSF_AUTH=eauth
LSB_MAILPROG=/bin/true
LSF_PIM_SLEEPTIME=2
C
  {
    printf '%s\n' "Begin ClusterAdmins" "Administrators = $admin" "End ClusterAdmins" "Begin Host" "HOSTNAME model type server r1m RESOURCES"
    printf '%s IntelI5 linux 1 - (cs)\n' "${hosts[@]}"
    printf '%s\n' "End Host" "Begin ResourceMap" "RESOURCENAME LOCATION" "End ResourceMap"
  } >"$base/etc/lsf.cluster.hpcctest"
  {
    printf '%s\n' "Begin Host" "HOST_NAME MXJ JL/U r1m pg ls tmp DISPATCH_WINDOW"
    printf '%s\n' "default $slots () () () () () ()" "End Host"
  } >"$base/etc/lsb.hosts"
  cat >"$base/etc/lsb.params" <<C
Begin Parameters
DEFAULT_QUEUE = normal
MBD_SLEEP_TIME = 1
SBD_SLEEP_TIME = 1
JOB_ACCEPT_INTERVAL = 0
CLEAN_PERIOD = 3600
End Parameters
C
  for q in "normal 30" "spare 1"; do
    printf '%s\n' "Begin Queue" "QUEUE_NAME = ${q% *}" "PRIORITY = ${q#* }" "RERUNNABLE = no" "EXCLUSIVE = Y" "DESCRIPTION = for the tests" "End Queue" ""
  done >"$base/etc/lsb.queues"
  chown -R "$admin" "$base/state" "$base/log" "$base/etc"
fi
# Daemons pass their environment to jobs, so start them without the caller's.
clean() { env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LSF_ENVDIR="$base/etc" "$@" </dev/null >>"$base/log/start" 2>&1; }
for daemon in lim res sbatchd; do # sbatchd of the first host starts mbatchd
  for h in "${hosts[@]}"; do
    running "$h" "$daemon" && continue
    if [ "$h" = "$second" ]; then
      clean ip netns exec "$second" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$second" env TEST_HOST="$h" "$base/sbin/$daemon"
    else
      clean TEST_HOST="$h" "$base/sbin/$daemon"
    fi || die "$daemon of $h; see $base/log"
  done
  [ "$daemon" != lim ] || await lim lsid
done
for h in "${hosts[@]}"; do
  accepts() { bhosts -w "$h" | awk -v h="$h" '$1 == h && $2 == "ok" { ok = 1 } END { exit !ok }'; }
  await "sbatchd of $h" accepts
done
echo "export LSF_ENVDIR=$base/etc"
echo "export PATH=$base/bin:\$PATH"
