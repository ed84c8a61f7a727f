#!/bin/sh
# testdata/clusters/vm/base.sh BUSYBOX TAR - writes a root file system with only busybox, the base image of core.sh.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/etc" "$dir/tmp" "$dir/mnt"
cp "$1" "$dir/bin/busybox"
for a in sh cat chmod chown echo env hostname id ln ls mkdir mkfifo mv pwd readlink rm sed sleep stat test touch true; do
  ln -s busybox "$dir/bin/$a"
done
echo root:x:0:0:root:/root:/bin/sh >"$dir/etc/passwd"
chmod 755 "$dir"
chmod 1777 "$dir/tmp"
tar -C "$dir" --owner=0 --group=0 --numeric-owner --sort=name --mtime=@0 -cf "$2" .
