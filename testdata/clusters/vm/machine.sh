#!/bin/bash
# testdata/clusters/vm/machine.sh [--root initramfs] [--store tmpfs] ARCH SUITE HPCC [ESCAPE] - boots the kernel of Debian SUITE for ARCH
# (amd64, arm64, ppc64el) in an emulated machine with only busybox and HPCC, a binary for that architecture. It runs core.sh in
# the machine as an ordinary user, and exits with its status. ESCAPE is testdata/clusters/vm/escape for that architecture.
#   --root initramfs   stay on the initramfs, as diskless nodes do; else the root is a tmpfs above it
#   --store tmpfs      keep home and store on a tmpfs; else on ext4
#   OWNERS             see core.sh
# Its clock is years ahead. Run it as root, because apt's files belong to root. Needs qemu-system-x86, -ppc or -arm with ipxe-qemu, kmod, cpio, e2fsprogs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=kernel.sh
. "$here/kernel.sh"
root=tmpfs store=disk
while [ $# -gt 0 ]; do
  case $1 in
  --root) root=$2; shift 2 ;;
  --store) store=$2; shift 2 ;;
  *) break ;;
  esac
done
[ $# -ge 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
arch=$1 suite=$2 hpcc=$3 escape=${4:-}
kernel "$arch" "$suite"
busybox=$cache/busybox-$arch
if [ ! -e "$busybox" ]; then
  unpacked "$arch" bookworm busybox-static "$cache/busybox.new-$arch"
  cp "$cache/busybox.new-$arch"/bin/busybox "$busybox.new"
  mv "$busybox.new" "$busybox"
  rm -rf "$cache/busybox.new-$arch"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,proc,sys,dev,tmp,etc,root,usr,home,modules}
cp "$busybox" "$tree/bin/busybox"
cp "$hpcc" "$tree/bin/hpcc"
if [ -n "$escape" ]; then cp "$escape" "$tree/bin/escape"; fi
cp "$here/core.sh" "$tree/core.sh"
touch "$tree/host-root" # the file that escape looks for
"$here/base.sh" "$busybox" "$tree/base.tar"
while read -r ko; do cp "$ko" "$tree/modules"; echo "${ko##*/}"; done <<<"$(modules virtio_pci virtio_blk ext4 overlay)" >"$tree/modules/order"
cat >"$tree/start" <<I
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
while read -r ko; do insmod /modules/\$ko; done </modules/order
if [ $store = disk ]; then mount -t ext4 /dev/vda /home; else mount -t tmpfs home /home; fi
mkdir -p /home/u
chown 1000:1000 /home/u
hostname vm
ip link set lo up
printf 'root:x:0:0::/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n' >/etc/passwd
echo u:x:1000: >/etc/group
echo 127.0.0.1 localhost vm >/etc/hosts
: >/etc/resolv.conf
su u -c 'cd /home/u; export HOME=/home/u USER=u LOGNAME=u OWNERS=${OWNERS:-} ROOT=$root; sh /core.sh /base.tar' 2>&1
echo "status \$?"
poweroff -f
I
if [ "$root" = initramfs ]; then
  mv "$tree/start" "$tree/init"
else
  cat >"$tree/init" <<'I'
#!/bin/busybox sh
/bin/busybox mkdir /new
/bin/busybox mount -t tmpfs root /new
for d in bin proc sys dev tmp etc root usr home modules core.sh host-root base.tar start; do /bin/busybox cp -a /$d /new/; done
exec /bin/busybox switch_root /new /start
I
fi
chmod 755 "$tree/init" "$tree"/start 2>/dev/null || chmod 755 "$tree/init"
(cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
truncate -s 1G "$work/disk"
mkfs.ext4 -q -F "$work/disk"
case $arch in
amd64) machine=(qemu-system-x86_64 -M q35 -cpu max) console=ttyS0 ;;
arm64) machine=(qemu-system-aarch64 -M virt -cpu cortex-a72) console=ttyAMA0 ;;
# The emulated processor has none of these mitigations.
ppc64el) machine=(qemu-system-ppc64 -M 'pseries,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off' -cpu power9) console=hvc0 ;;
*) echo "$0: no machine for $arch" >&2; exit 2 ;;
esac
timeout "${HPCC_VM_TIMEOUT:-600}" "${machine[@]}" -m 2G -smp 1 -rtc base=2031-05-06T07:08:09 -no-reboot -display none -nodefaults -serial stdio \
  -kernel "$(echo "$kernel_root"/boot/vmlinu?-"$kernel_version")" -initrd "$work/initrd" -append "console=$console quiet loglevel=1 panic=-1 no_timer_check" \
  -drive "file=$work/disk,format=raw,if=none,id=disk,cache=unsafe" -device virtio-blk-pci,drive=disk </dev/null | tr -d '\r' | tee "$work/console"
status=$(sed -n 's/^status \([0-9]*\)$/\1/p' "$work/console")
[ -n "$status" ] || { echo "$0: the machine ended before core.sh did" >&2; exit 1; }
exit "$status"
