#!/bin/bash
# up.sh - starts a real Grid Engine (Debian's Son of Grid Engine 8.1.9) on one
# machine for the tests.
#
# Run it as root; it is safe to run twice. It installs missing Debian packages, needs
# no service manager, and writes only below $GRIDENGINE_BASE. It prints the exports
# that users' shells need. down.sh stops it.
#
# The host has 8 slots, whatever its number of processors, and 4 units of a consumable gpu.
# A second, equal host is this machine under another name and address: a network
# namespace, and a line in /etc/hosts that down.sh removes. If the namespace cannot be
# created, there is only one host.
# Queues: all.q, cpu, gpu. Parallel environments: smp (one host), mpi.
set -euo pipefail
base=${GRIDENGINE_BASE:-/var/tmp/hpcc-gridengine-test}
port=${GRIDENGINE_PORT:-17644} # of sge_qmaster; sge_execd is one above
slots=8 gpus=4
lib=/usr/lib/gridengine share=/usr/share/gridengine
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
me=gridengine/up.sh
. "$(dirname "$0")/../cluster.sh"
[ "$(id -u)" = 0 ] || die "needs root"

# Prevent the packages from creating a cell.
echo "gridengine-master shared/gridengineconfig boolean false" | debconf-set-selections 2>/dev/null || true
install_packages gridengine-master gridengine-exec gridengine-client

host=$("$lib/gethostname" | sed -n 's/^Hostname: *//p')
[ -n "$host" ] || die "this host's name has no address; give it one in /etc/hosts"
cell=$base/default/common
second=ge-$port net=10.213.$((port % 256))
settings=("SGE_ROOT=$base" SGE_CELL=default "SGE_QMASTER_PORT=$port" "SGE_EXECD_PORT=$((port + 1))" SGE_CLUSTER_NAME=hpcctest)
export "${settings[@]}"
# Daemons pass their environment to jobs, so start them without the caller's.
clean() { env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LD_LIBRARY_PATH="$lib" "${settings[@]}" "$@" </dev/null; }
as_admin() { setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups env LD_LIBRARY_PATH="$lib" "$@"; }

if [ ! -s "$cell/bootstrap" ]; then
  arch=$("$share/util/arch")
  mkdir -p "$cell" "$base"/{log,bin,lib,utilbin} "$base"/spool/{qmaster/job_scripts,execd}
  chmod 755 "$base"
  ln -sfn "$share/util" "$base/util"
  for d in bin lib utilbin; do ln -sfn "$lib" "$base/$d/$arch"; done
  echo "$host" >"$cell/act_qmaster"
  echo hpcctest >"$cell/cluster_name"
  echo "$host localhost localhost.localdomain" >"$cell/host_aliases" # otherwise 127.0.0.1 resolves to another name
  sed -e "s|^execd_spool_dir.*|execd_spool_dir $base/spool/execd|" -e "s|^load_report_time.*|load_report_time 00:00:02|" \
    -e "s|^reporting_params.*|reporting_params accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00|" \
    -e "s|^auto_user_delete_time.*|auto_user_delete_time 0|" -e "s|^mailer.*|mailer /bin/true|" "$share/default-configuration" >"$base/configuration"
  cat >"$cell/bootstrap.new" <<C
admin_user sgeadmin
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params $cell;$base/spool/qmaster
binary_path $base/bin
qmaster_spool_dir $base/spool/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
C
  chown -R sgeadmin:sgeadmin "$base"
  cp "$cell/bootstrap.new" "$cell/bootstrap"
  {
    as_admin "$lib/spoolinit" classic libspoolc "$cell;$base/spool/qmaster" init &&
    as_admin "$lib/spooldefaults" configuration "$base/configuration" &&
    as_admin "$lib/spooldefaults" complexes "$share/util/resources/centry" &&
    as_admin "$lib/spooldefaults" usersets "$share/util/resources/usersets" &&
    as_admin "$lib/spooldefaults" managers sgeadmin root &&
    as_admin "$lib/spooldefaults" operators sgeadmin root
  } >"$base/log/init" 2>&1 || { rm -f "$cell/bootstrap"; tail "$base/log/init" >&2; die "cannot create the cell"; }
fi

add_host "$host" "$second" "$net"
hosts=("$host")
if [ -e "/run/netns/$second" ]; then
  hosts+=("$second")
  grep -q " $second\$" /etc/hosts || echo "$net.2 $second" >>/etc/hosts # for clients
fi
alive sge_qmaster "$base/spool/qmaster/qmaster.pid" || clean "$lib/sge_qmaster" >>"$base/log/qmaster" 2>&1 || die "sge_qmaster; see $base/log"
conf() { "$lib/qconf" "$@" 2>>"$base/log/qconf"; }
await sge_qmaster "$lib/qconf" -sm

# Create missing objects; other settings come from templates.
new=$(mktemp -d); trap 'rm -rf "$new"' EXIT
has() { conf "$1" | grep -qx -- "$2"; } # has LISTING NAME
for h in "${hosts[@]}"; do
  has -sh "$h" || conf -ah "$h" >/dev/null
  has -ss "$h" || conf -as "$h" >/dev/null
done
if ! conf -sc | grep -q '^gpu '; then
  { conf -sc | grep -v '^#'; echo "gpu gpu INT <= YES YES 0 1000"; } >"$new/complexes"; conf -Mc "$new/complexes" >/dev/null
fi
for h in "${hosts[@]}"; do
  has -sel "$h" && continue
  printf '%s\n' "hostname $h" "load_scaling NONE" "complex_values gpu=$gpus" "user_lists NONE" "xuser_lists NONE" "projects NONE" "xprojects NONE" \
    "usage_scaling NONE" "report_variables NONE" >"$new/host"
  conf -Ae "$new/host" >/dev/null
done
conf -ssconf | sed -e 's/^schedule_interval.*/schedule_interval 0:0:1/' -e 's/^flush_submit_sec.*/flush_submit_sec 1/' -e 's/^flush_finish_sec.*/flush_finish_sec 1/' \
  -e 's/^job_load_adjustments.*/job_load_adjustments NONE/' -e 's/^load_adjustment_decay_time.*/load_adjustment_decay_time 0:0:0/' \
  -e 's/^schedd_job_info.*/schedd_job_info true/' >"$new/scheduler"
conf -Msconf "$new/scheduler" >/dev/null
if ! has -shgrpl @allhosts; then
  printf '%s\n' "group_name @allhosts" "hostlist ${hosts[*]}" >"$new/group"; conf -Ahgrp "$new/group" >/dev/null
fi
for h in "${hosts[@]}"; do # an earlier run may have had only one host
  conf -shgrp @allhosts | grep -qw -- "$h" || conf -aattr hostgroup hostlist "$h" @allhosts >/dev/null
done
# Grid Engine finds the processes of a job by a supplementary group from the host's range.
# Both hosts share one kernel, so the second one needs another range.
if [ ${#hosts[@]} -gt 1 ] && ! has -sconfl "$second"; then
  echo "gid_range 64000-64999" >"$new/$second"; conf -Aconf "$new/$second" >/dev/null
fi
for pe in 'smp $pe_slots' 'mpi $round_robin'; do
  has -spl "${pe%% *}" && continue
  printf '%s\n' "pe_name ${pe%% *}" "slots 999" "user_lists NONE" "xuser_lists NONE" "start_proc_args NONE" "stop_proc_args NONE" "allocation_rule ${pe#* }" \
    "control_slaves TRUE" "job_is_first_task FALSE" "urgency_slots min" "accounting_summary TRUE" "qsort_args NONE" >"$new/pe"
  conf -Ap "$new/pe" >/dev/null
done
for q in all.q cpu gpu; do
  has -sql "$q" && continue
  conf -sq | sed -e "s/^qname .*/qname $q/" -e "s/^hostlist .*/hostlist @allhosts/" -e "s/^slots .*/slots $slots/" -e "s/^pe_list .*/pe_list smp mpi/" \
    -e "s/^rerun .*/rerun TRUE/" -e "s/^load_thresholds .*/load_thresholds NONE/" -e "s|^shell .*|shell /bin/sh|" >"$new/queue"
  conf -Aq "$new/queue" >/dev/null
done

for h in "${hosts[@]}"; do
  reports() { "$lib/qhost" | awk -v h="${h%%.*}" '$1 == h && $4 != "-" && $7 != "-" { ok = 1 } END { exit !ok }'; }
  spool=$base/spool/execd/${h%%.*}
  if [ "$h" = "$host" ] && [ ! -d "$spool" ]; then spool=$base/spool/execd/localhost; fi # the name that its address has
  if alive sge_execd "$spool/execd.pid"; then
    : # it will report to a qmaster that was restarted
  elif [ "$h" = "$second" ]; then
    clean ip netns exec "$second" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$second" "$lib/sge_execd" >>"$base/log/execd-2" 2>&1 || die "sge_execd of $second; see $base/log"
  else
    clean "$lib/sge_execd" >>"$base/log/execd" 2>&1 || die "sge_execd; see $base/log"
  fi
  await "sge_execd of $h" reports
done
printf 'export %s\n' "${settings[@]}"
