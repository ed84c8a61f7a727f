#!/bin/bash
# testdata/clusters/vm/run.sh COMMAND... - runs a command under a Debian kernel in a virtual machine. The machine sees the files
# of this machine, and its changes to them are discarded. It has only cgroups of version 2, only the loopback network,
# and a separate disk for temporary files. Run it as root; it exits with the command's status. It needs qemu-system-x86,
# kmod, cpio, e2fsprogs and busybox-static. It emulates the processor; HPCC_VM_ACCEL=kvm is faster if it is available.
# HPCC_VM_SUITE is the Debian release of the kernel (bookworm).
set -euo pipefail
# shellcheck source=kernel.sh
. "$(dirname "$0")/kernel.sh"
[ $# -gt 0 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: needs root, because the machine reads root's files" >&2; exit 1; }

kernel amd64 "${HPCC_VM_SUITE:-bookworm}"
root=$kernel_root version=$kernel_version

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/init/bin" "$work/init/modules"
cp "$(command -v busybox)" "$work/init/bin/busybox"
modules virtio_pci 9pnet_virtio 9p overlay virtio_blk ext4 >"$work/modules"
while read -r ko; do cp "$ko" "$work/init/modules"; echo "${ko##*/}"; done <"$work/modules" >"$work/init/order"
echo "$root/lib/modules/$version" >"$work/init/modules/of" # the kernel loads the other modules on demand
{
  printf 'cd %q\n' "$PWD"
  export -p
  echo 'export TMPDIR=/mnt'
  printf 'exec'
  printf ' %q' "$@"
  echo
} >"$work/init/command"
cat >"$work/init/init" <<'I'
#!/bin/busybox sh
set -e
PATH=/bin; /bin/busybox --install -s /bin
mkdir -p /proc /dev /host /rw /new
mount -t proc proc /proc
mount -t devtmpfs dev /dev
while read -r ko; do insmod "/modules/$ko"; done </order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
mount -t tmpfs -o size=80% rw /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work root /new
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts -o ptmxmode=666 pts /new/dev/pts
mount -t ext4 /dev/vda /new/mnt
chmod 1777 /new/mnt
for t in dev/shm run; do mount -t tmpfs -o mode=1777 tmp /new/$t; done
for c in $(cat /new/sys/fs/cgroup/cgroup.controllers); do echo "+$c" >/new/sys/fs/cgroup/cgroup.subtree_control; done
hostname vm
ip link set lo up
ip addr add 127.0.0.1/8 dev lo 2>/dev/null || true
mkdir -p /new/lib/modules
ln -s "$(cat /modules/of)" /new/lib/modules/
mv /command /last /new/run
stty raw </dev/ttyS0
exec switch_root /new /bin/bash /run/last # a process in a chroot cannot create user namespaces
I
cat >"$work/init/last" <<'I'
setsid bash /run/command </dev/null >/dev/ttyS0 2>&1
echo "status $?" >/dev/ttyS1
sync
echo o >/proc/sysrq-trigger
sleep 60
I
chmod 755 "$work/init/init"
(cd "$work/init" && find . | cpio -o -H newc --quiet) >"$work/initrd"
start() {
  truncate -s 1G "$work/disk"
  mkfs.ext4 -q -F "$work/disk"
  timeout "${HPCC_VM_TIMEOUT:-900}" qemu-system-x86_64 -M q35 -accel "${HPCC_VM_ACCEL:-tcg}" -cpu max -smp 1 -m "${HPCC_VM_MEMORY:-6G}" -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$root/boot/vmlinuz-$version" -initrd "$work/initrd" -append "console=ttyS1 quiet loglevel=1 panic=-1 softlockup_panic=1 watchdog_thresh=30 cgroup_no_v1=all" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
    -serial stdio -serial "file:$work/console" </dev/null
}
start
# An emulated kernel with several processors has deadlocked. The machine therefore has one processor, and is
# restarted after a soft lockup.
if grep -q 'soft lockup' "$work/console"; then
  cat "$work/console" >&2
  start
fi
status=$(sed -n 's/^status \([0-9]*\).*/\1/p' "$work/console")
[ -n "$status" ] || { cat "$work/console" >&2; echo "$0: the machine ended before its command did" >&2; exit 1; }
exit "$status"
