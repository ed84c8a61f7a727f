#!/bin/bash
# up.sh - builds OpenPBS and starts it with two hosts on one machine for the tests.
#
# $HPCC_OPENPBS_SRC is a source tree of OpenPBS, or a git repository from which up.sh takes
# the commit $HPCC_OPENPBS_REF, by default HEAD. Debian does not package OpenPBS. The release
# 23.06.06 does not compile with Debian 12's Python 3.11; later commits do.
#
# Run it as root; it is safe to run twice. It builds only once. It installs missing Debian
# packages, needs no service manager, and writes only below $OPENPBS_BASE, which the build
# contains. It prints the exports that users' shells need. down.sh stops the cluster.
#
# Each host has 8 CPUs, 8 GiB of memory and 4 units of ngpus, whatever the machine has.
# OpenPBS refuses loopback addresses. So the daemons see an /etc/hosts that gives this machine
# the address of its end of a virtual network link. The second host is the other end: a network
# namespace, and a line in /etc/hosts that down.sh removes. If the namespace cannot be created,
# there is only one host.
# Queues: workq, cpu, and high, whose jobs preempt others. The server has one unit of the
# resource token, with which a test preempts its own job and no other.
set -euo pipefail
base=${OPENPBS_BASE:-/var/tmp/hpcc-openpbs-test}
ref=${HPCC_OPENPBS_REF:-HEAD}
cpus=8 memory=8gb gpus=4
second=pbs-2 net=10.214.1
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
me=openpbs/up.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"
[ -n "${HPCC_OPENPBS_SRC:-}" ] || [ -s "$base/built" ] || die "HPCC_OPENPBS_SRC does not name a source tree or git repository of OpenPBS"

install_packages gcc g++ make libtool autoconf automake pkg-config bison flex swig perl libhwloc-dev libx11-dev libxt-dev libedit-dev libical-dev libcjson-dev \
  libncurses-dev libpq-dev postgresql python3-dev tcl-dev tk-dev libexpat1-dev libssl-dev libxext-dev libxft-dev zlib1g-dev
postgres=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)

mkdir -p "$base/log"
chmod 755 "$base"
export PBS_CONF_FILE=$base/pbs.conf
exec_dir=$base/pbs home=$base/server
PATH=$exec_dir/bin:$exec_dir/sbin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin # Debian's Python, not another one

build() { # builds OpenPBS in $base/build and installs it in $exec_dir
  rm -rf "$base/build" "$exec_dir"
  mkdir -p "$base/build/source"
  if git -C "$HPCC_OPENPBS_SRC" rev-parse --git-dir >/dev/null 2>&1; then
    git -C "$HPCC_OPENPBS_SRC" archive "$ref" | tar -xf - -C "$base/build/source"
  else
    cp -a "$HPCC_OPENPBS_SRC/." "$base/build/source"
  fi
  cd "$base/build/source"
  ./autogen.sh
  cd ..
  # Without --disable-security, the daemons refuse a directory below /var/tmp.
  source/configure --prefix="$exec_dir" --with-pbs-conf-file="$base/pbs.conf" --with-pbs-server-home="$home" --with-database-user=postgres \
    --disable-security --disable-static --disable-dependency-tracking CFLAGS="-O1 -w" CXXFLAGS="-O1 -w"
  for d in buildutils src; do nice make -j"$(nproc)" -C $d; make -C $d install; done
  chmod 4755 "$exec_dir/sbin/pbs_iff" "$exec_dir/sbin/pbs_rcp"
  cd /
  rm -rf "$base/build"
  echo "$ref" >"$base/built"
}
if [ ! -s "$base/built" ]; then
  echo "openpbs/up.sh: building OpenPBS, which takes some minutes; the log is $base/log/build" >&2
  (build) >"$base/log/build" 2>&1 || { tail "$base/log/build" >&2; die "cannot build OpenPBS"; }
fi

host=$(hostname)
add_host "$host" "$second" "$net"
if [ -e "/run/netns/$second" ]; then
  cp "/etc/netns/$second/hosts" "$base/hosts"
  grep -q " $second\$" /etc/hosts || echo "$net.2 $second" >>/etc/hosts # for clients
else
  address=$(hostname -I | cut -d ' ' -f 1)
  [ -n "$address" ] || die "this machine has no address besides loopback"
  printf '%s\n' "127.0.0.1 localhost" "$address $host" >"$base/hosts"
fi

# Daemons pass their environment to jobs, so start them without the caller's.
clean() { env -i PATH="$postgres:$exec_dir/bin:$exec_dir/sbin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" PBS_CONF_FILE="$PBS_CONF_FILE" "$@" </dev/null; }
inside() { # inside HOST CMD...: runs CMD as on HOST
  local h=$1; shift
  if [ "$h" = "$second" ]; then
    clean ip netns exec "$second" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$second" "$@"
  else
    clean unshare --mount --propagation slave sh -c 'mount --bind "$0" /etc/hosts; exec "$@"' "$base/hosts" "$@"
  fi
}
home_of() { # home_of HOST: prints its PBS_HOME
  if [ "$1" = "$second" ]; then echo "$base/$second"; else echo "$home"; fi
}
conf() { # conf HOST: prints its pbs.conf
  printf '%s\n' "PBS_EXEC=$exec_dir" "PBS_HOME=$(home_of "$1")" "PBS_SERVER=$host" PBS_START_SERVER=0 PBS_START_SCHED=0 PBS_START_COMM=0 PBS_START_MOM=0 \
    PBS_CORE_LIMIT=0 PBS_SCP=/bin/false PBS_RCP=/bin/false PBS_SYSLOG=0 PBS_LOCALLOG=1
}
make_home() { # make_home HOST: creates the directories of the daemons
  local d; d=$(home_of "$1")
  install -d -m 755 "$d" "$d"/{aux,server_logs,sched_logs,comm_logs,mom_logs,server_priv/accounting}
  install -d -m 750 "$d"/server_priv "$d"/server_priv/{jobs,users,hooks,hooks/tmp} "$d"/{sched_priv,mom_priv/hooks,mom_priv/hooks/tmp}
  install -d -m 751 "$d"/mom_priv "$d"/mom_priv/jobs
  install -d -m 700 "$d/checkpoint"
  install -d -m 1777 "$d"/{spool,undelivered}
  echo "PATH=/usr/local/bin:/usr/bin:/bin" >"$d/pbs_environment"
  printf '%s\n' "\$clienthost $host" '$usecp *:/ /' '$logevent 0x1ff' >"$d/mom_priv/config"
}
hosts=("$host")
[ ! -e "/run/netns/$second" ] || hosts+=("$second")
for h in "${hosts[@]}"; do
  make_home "$h"
  conf "$h" >"$(home_of "$h")/pbs.conf"
done
cp "$home/pbs.conf" "$PBS_CONF_FILE"
install -m 644 "$exec_dir/etc/pbs_dedicated" "$home/sched_priv/dedicated_time"
install -m 644 "$exec_dir/etc/pbs_holidays" "$home/sched_priv/holidays"
install -m 644 "$exec_dir/etc/pbs_resource_group" "$home/sched_priv/resource_group"
sed 's/^resources: "/resources: "ngpus, token, /' "$exec_dir/etc/pbs_sched_config" >"$home/sched_priv/sched_config"
cp "$exec_dir"/lib*/python/altair/pbs_hooks/* "$home/server_priv/hooks/" 2>/dev/null || true

# The database listens only on 127.0.0.1; the server does not start it.
data=$home/datastore
if [ ! -s "$base/initialised" ]; then
  rm -rf "$data"
  printf postgres >"$home/server_priv/db_user"; chmod 600 "$home/server_priv/db_user"
  inside "$host" env PBS_EXEC="$exec_dir" PBS_HOME="$home" PBS_SERVER="$host" PBS_DATA_SERVICE_USER=postgres PBS_DATA_SERVICE_PORT=15007 \
    "$exec_dir/libexec/pbs_db_utility" install_db >"$base/log/database" 2>&1 || { tail "$base/log/database" >&2; die "cannot create the database"; }
  sed -i "s/^listen_addresses = .*/listen_addresses = '127.0.0.1'/" "$data/postgresql.conf"
fi
for h in "${hosts[@]}"; do echo PBS_DATA_SERVICE_HOST=127.0.0.1 >>"$(home_of "$h")/pbs.conf"; done
alive postgres "$data/postmaster.pid" ||
  (cd / && clean setpriv --reuid=postgres --regid=postgres --init-groups "$postgres/pg_ctl" -D "$data" -l "$data/started" -w start) >>"$base/log/database" 2>&1 || die "PostgreSQL; see $data/started"

daemon() { # daemon NAME HOST LOCK CMD...: starts the daemon NAME unless it runs
  local name=$1 h=$2 lock=$3; shift 3
  alive "$name" "$(home_of "$h")/$lock" || inside "$h" env PBS_CONF_FILE="$(home_of "$h")/pbs.conf" "$@" >>"$base/log/$name" 2>&1 || die "$name of $h; see $base/log/$name"
}
daemon pbs_comm "$host" server_priv/comm.lock pbs_comm
if [ ! -s "$base/initialised" ]; then
  daemon pbs_server.bin "$host" server_priv/server.lock pbs_server -t create
else
  daemon pbs_server.bin "$host" server_priv/server.lock pbs_server
fi
await pbs_server qmgr -c 'list server'
if [ ! -s "$base/initialised" ]; then
  qmgr >"$base/log/qmgr" 2>&1 <<C || { cat "$base/log/qmgr" >&2; die "cannot configure the server"; }
create queue workq queue_type=execution,enabled=true,started=true
create queue cpu queue_type=execution,enabled=true,started=true
create queue high queue_type=execution,enabled=true,started=true,Priority=200
set server default_queue=workq
set server flatuid=true
set server job_history_enable=true
set server query_other_jobs=true
set server scheduler_iteration=20
set server node_fail_requeue=30
create resource ngpus type=long,flag=nh
create resource token type=long,flag=q
set server resources_available.token=1
set sched preempt_order=R
set sched log_events=767
C
  echo "$ref" >"$base/initialised"
fi
daemon pbs_sched "$host" sched_priv/sched.lock pbs_sched
for h in "${hosts[@]}"; do
  daemon pbs_mom "$h" mom_priv/mom.lock pbs_mom
  pbsnodes "$h" >/dev/null 2>&1 || qmgr -c "create node $h" >>"$base/log/qmgr" 2>&1 || die "cannot add the node $h; see $base/log/qmgr"
  qmgr -c "set node $h resources_available.ncpus=$cpus, resources_available.mem=$memory, resources_available.ngpus=$gpus" >>"$base/log/qmgr" 2>&1
  ready() { pbsnodes "$h" | grep -q '^ *state = \(free\|job-busy\|job-exclusive\)'; }
  await "pbs_mom of $h" ready
done
echo "export PBS_CONF_FILE=$PBS_CONF_FILE"
echo "export HPCC_TEST_OPENPBS=$exec_dir/bin"
echo "export PATH=$exec_dir/bin:\$PATH" # before the qsub of other batch systems
