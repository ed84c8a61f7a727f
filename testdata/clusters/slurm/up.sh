#!/bin/bash
# up.sh - starts a real Slurm with four virtual nodes on one machine for the tests.
#
# Run it as root; it is safe to run twice. It installs missing Debian packages, needs no
# service manager, listens only on 127.0.0.1 and writes only below $SLURM_BASE. It prints
# "export SLURM_CONF=..." for users' shells. down.sh stops it. An ordinary user who runs it
# gets a cluster whose daemons and jobs belong to that user; the packages must be installed.
#
# Debian's slurmd supports several daemons on one host (slurmd -N). With
# config_overrides, nodes can claim more processors and memory than the host has.
set -euo pipefail
base=${SLURM_BASE:-/var/tmp/hpcc-slurm-test}
port=${SLURM_PORT:-17817} # of slurmctld; slurmdbd uses the next one, nodes use ports from 101 above
nodes=${SLURM_NODES:-4}
patience=${SLURM_MESSAGE_TIMEOUT:-10} # seconds within which a daemon must respond to a command
user=$(id -un)
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
me=slurm/up.sh
. "$(dirname "$0")/../cluster.sh"

need=()
for pair in slurmctld:slurmctld slurmd:slurmd slurmdbd:slurmdbd sbatch:slurm-client munged:munge mariadbd:mariadb-server; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
# For --mpi=pmix, the plugin loads the library by its name without a version.
[ "$user" != root ] || ls /usr/lib/*/pmix2/lib/libpmix.so >/dev/null 2>&1 || need+=(libpmix-dev)
install_packages "${need[@]}"

mkdir -p "$base"/{run,log,state,spool,munge}
chmod 755 "$base" "$base"/{run,log,munge}
running() { alive "${1%%.*}" "$base/run/$1.pid"; } # running NAME: checks that a daemon runs
# Daemons pass parts of their environment to jobs, so start them without the caller's.
clean() { env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin SLURM_CONF="$base/slurm.conf" "$@" </dev/null; }

socket=$base/munge/socket
if ! running munged; then
  [ -s "$base/munge/key" ] || (umask 077; head -c 128 /dev/urandom >"$base/munge/key")
  munged --force --socket="$socket" --key-file="$base/munge/key" --seed-file="$base/munge/seed" \
    --pid-file="$base/run/munged.pid" --log-file="$base/log/munged.log" 2>>"$base/log/munged.err" || die "munged: $(tail -3 "$base/log/munged.err")"
fi
await munge munge -S "$socket" -n

host=$(hostname -s)
{
  cat <<C
ClusterName=hpcctest
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$socket
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool/%n
TmpFS=$base/tmp/%n
SlurmctldPidFile=$base/run/slurmctld.pid
SlurmdPidFile=$base/run/slurmd.%n.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd.%n.log
SlurmdParameters=config_overrides
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
KillWait=3
ReturnToService=2
MessageTimeout=$patience
DefMemPerCPU=256
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$socket
PartitionName=cpu Nodes=n[1-$nodes] Default=YES MaxTime=24:00:00 DefaultTime=10:00 PriorityTier=10
PartitionName=spare Nodes=n[1-$nodes] MaxTime=4:00:00 DefaultTime=5:00 PriorityTier=1
C
  for i in $(seq $nodes); do
    echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 100 + i)) CPUs=4 CoresPerSocket=4 RealMemory=4096 State=UNKNOWN"
  done
} >"$base/slurm.conf"
# srun --container: each user's tests install their own runtime in $base/oci. Slurm also calls
# the runtime as root, which must not execute a user's program: it switches to the user first.
install -d -m 1777 "$base/oci"
cat >"$base/oci-runtime" <<C
#!/bin/sh
user=\$1; shift
[ "\$(id -u)" != 0 ] || exec setpriv --reuid="\$user" --regid="\$user" --init-groups "\$0" "\$user" "\$@"
exec "$base/oci/\$user/hpcc-oci" --root "$base/oci/\$user/state" "\$@"
C
chmod 755 "$base/oci-runtime"
cat >"$base/oci.conf" <<C
RunTimeQuery="$base/oci-runtime %u state %n.%u.%j.%s.%t"
RunTimeKill="$base/oci-runtime %u kill --all %n.%u.%j.%s.%t"
RunTimeDelete="$base/oci-runtime %u delete --force %n.%u.%j.%s.%t"
RunTimeRun="$base/oci-runtime %u run --bundle %b %n.%u.%j.%s.%t"
C
printf 'CgroupPlugin=autodetect\nCgroupAutomount=no\n' >"$base/cgroup.conf"
export SLURM_CONF=$base/slurm.conf

# Accounting: a database on its own socket, without TCP.
db=(mariadb --no-defaults -S "$base/db/socket")
dbuser=$user; [ "$user" != root ] || dbuser=mysql
if ! running mariadbd; then
  if [ ! -d "$base/db/data/mysql" ]; then
    mkdir -p "$base/db"; chown "$dbuser": "$base/db"
    mariadb-install-db --no-defaults --user="$dbuser" --datadir="$base/db/data" --auth-root-authentication-method=socket \
      --skip-test-db --innodb-log-file-size=16M >"$base/log/mariadb-install.log" 2>&1 || die "mariadb-install-db; see $base/log"
  fi
  mariadbd --no-defaults --user="$dbuser" --datadir="$base/db/data" --socket="$base/db/socket" --pid-file="$base/db/pid" --skip-networking \
    --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=2 --innodb-lock-wait-timeout=900 \
    >"$base/log/mariadb.log" 2>&1 </dev/null &
  echo $! >"$base/run/mariadbd.pid"
fi
await mariadb "${db[@]}" -e 'select 1'
if ! running slurmdbd; then
  "${db[@]}" -e "create database if not exists slurm_acct; create user if not exists slurm@localhost identified by 'slurm'; grant all on slurm_acct.* to slurm@localhost"
  (umask 077; cat >"$base/slurmdbd.conf" <<C
AuthType=auth/munge
AuthInfo=socket=$socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((port + 1))
SlurmUser=$user
PidFile=$base/run/slurmdbd.pid
LogFile=$base/log/slurmdbd.log
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
C
  )
  clean MYSQL_UNIX_PORT="$base/db/socket" slurmdbd >>"$base/log/slurmdbd.out" 2>&1 || die "slurmdbd; see $base/log"
fi
await slurmdbd sacctmgr -n show cluster
sacctmgr -iQ add cluster hpcctest >/dev/null 2>&1 || true # fails if it exists
sacctmgr -iQ add account proj Description=tests Organization=tests >/dev/null 2>&1 || true
{ echo "$user"; getent passwd | awk -F: '$3 == 0 || ($3 >= 1000 && $3 < 60000) {print $1}'; } | sort -u | while read -r name; do
  sacctmgr -iQ add user "$name" Account=proj >/dev/null 2>&1 || true
done

if running slurmctld; then scontrol reconfigure; else clean slurmctld >>"$base/log/slurmctld.out" 2>&1 || die "slurmctld; see $base/log"; fi
await slurmctld sh -c 'scontrol ping | grep -q UP'
# Each node has its own /dev/shm, and other files in $base/local, like a local disk: mounts in the
# mount namespace of the node's daemon. Without root, the nodes share /dev/shm, and $base/local is
# missing. MPI's files in /dev/shm have the names of the host and of the rank on its node.
for i in $(seq $nodes); do
  install -d -m 1777 "$base/tmp" "$base/tmp/n$i" # the PMIx server of each node keeps files in TmpFS
  running "slurmd.n$i" && continue
  mkdir -p "$base/spool/n$i"
  daemon=(slurmd -N "n$i")
  if [ "$user" = root ]; then
    install -d -m 1777 "$base/local" "$base/disk" "$base/disk/n$i"
    daemon=(unshare --mount sh -c 'mount --bind "$1" "$2" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && shift 2 && exec "$@"' sh "$base/disk/n$i" "$base/local" "${daemon[@]}")
  fi
  clean "${daemon[@]}" >>"$base/log/slurmd.out" 2>&1 || die "slurmd n$i; see $base/log"
done
ready() {
  local bad
  bad=$(sinfo -h -N -p cpu -t down,drain -o %N | paste -sd,)
  [ -z "$bad" ] || scontrol update NodeName="$bad" State=RESUME
  [ "$(sinfo -h -N -p cpu -t idle,mix,alloc -o %N | wc -l)" = $nodes ]
}
await nodes ready
echo "export SLURM_CONF=$SLURM_CONF"
