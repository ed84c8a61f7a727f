#!/bin/bash
# Tests hpcc --gpu on a machine with an NVIDIA GPU, and prints what a program sees.
#
#   testdata/helpers/gpu/check.sh [HPCC]        HPCC: a static binary, default bin/hpcc
#
# It needs no network. The image is a root directory with this machine's C library,
# loader and a few programs, without any part of the driver. The exit status is 0 if
# nvidia-smi and the CUDA driver worked in the image.
set -u
here=$(cd "$(dirname "$0")/../../.." && pwd)
hpcc=$(readlink -f "${1:-$here/bin/hpcc}")
[ -x "$hpcc" ] || { echo "$hpcc is not an executable file; usage: check.sh [HPCC]"; exit 2; }
work=$(mktemp -d "${TMPDIR:-/tmp}/hpcc-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
bad=0

say() { printf '\n== %s\n' "$*"; }
check() { # check NAME COMMAND...: runs COMMAND, and prints its output and ok or FAIL
	local name=$1 out rc
	shift
	out=$("$@" 2>&1)
	rc=$?
	printf '%s\n' "$out" | sed 's/^/   /'
	if [ $rc = 0 ]; then echo "ok   $name"; else echo "FAIL $name (status $rc)"; bad=1; fi
}

# add FILE: copies the file and the libraries that it is linked with to the root directory.
add() {
	local f
	[ -e "$1" ] || return 1
	mkdir -p "$root$(dirname "$1")"
	[ -e "$root$1" ] || cp -L "$1" "$root$1"
	for f in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
		case $f in *nvidia* | *libcuda*) continue ;; esac
		mkdir -p "$root$(dirname "$f")"
		[ -e "$root$f" ] || cp -L "$f" "$root$f"
	done
}

say "this machine"
echo "user $(id -un) ($(id -u)), kernel $(uname -r), $(uname -m)"
grep -h . /proc/driver/nvidia/version 2>/dev/null | head -1
ls -d /dev/nvidia* /dev/dri/* /dev/infiniband/* 2>/dev/null | tr '\n' ' '
echo
ls /etc/cdi /var/run/cdi 2>/dev/null
/sbin/ldconfig -p 2>/dev/null | grep -E 'libcuda\.so|libnvidia-ml' || echo "the loader's cache has no libcuda"
echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}"
command -v nvidia-smi
"$hpcc" doctor

say "a root directory of this machine's files"
mkdir -p "$root"/{tmp,proc,sys,dev,etc,run,usr/bin}
for d in bin sbin lib lib64; do
	if [ -L /$d ]; then
		mkdir -p "$root/usr/$d"
		ln -s "usr/$d" "$root/$d"
	fi
done
for p in bash ls cat env sleep; do
	f=$(readlink -f "$(command -v $p)")
	add "$f"
	[ -e "$root/usr/bin/$p" ] || ln -s "$f" "$root/usr/bin/$p"
done
# Libraries that a driver or a probe loads by name and that ldd does not show.
for l in libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libgcc_s.so.1; do
	f=$(/sbin/ldconfig -p 2>/dev/null | awk -v l=$l '$1 == l { print $NF; exit }')
	[ -n "$f" ] && add "$f"
done
find "$root" -name 'libcuda*' -o -name 'libnvidia*' | sed 's/^/unexpected: /'
du -sh "$root" | cut -f1

say "a program that loads the driver"
cat >"$work/probe.c" <<'PROBE'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
	void *l = dlopen("libcuda.so.1", RTLD_NOW);
	if (!l) { printf("dlopen: %s\n", dlerror()); return 1; }
	int (*init)(unsigned) = dlsym(l, "cuInit"), (*count)(int *) = dlsym(l, "cuDeviceGetCount");
	int (*version)(int *) = dlsym(l, "cuDriverGetVersion"), (*name)(char *, int, int) = dlsym(l, "cuDeviceGetName");
	int n = -1, v = -1, r = init(0);
	char s[256] = "";
	if (r == 0) r = count(&n);
	if (r == 0 && n > 0) r = name(s, sizeof s, 0);
	version(&v);
	printf("cuInit: %d, devices: %d, driver API: %d, first: %s\n", r, n, v, s);
	return r != 0 || n < 1;
}
PROBE
probe=()
binds=()
if command -v gcc >/dev/null && gcc -o "$work/probe" "$work/probe.c" -ldl; then
	cp "$work/probe" "$root/usr/bin/probe"
	probe=(probe)
	echo "compiled with gcc"
elif py=$(command -v python3); then
	# Without a compiler, use the host's python, with its standard library bound into the image.
	cat >"$work/probe.py" <<'PROBE'
import ctypes, sys
l = ctypes.CDLL("libcuda.so.1")
n, s = ctypes.c_int(-1), ctypes.create_string_buffer(256)
r = l.cuInit(0) or l.cuDeviceGetCount(ctypes.byref(n))
if r == 0 and n.value > 0: r = l.cuDeviceGetName(s, 256, 0)
print("cuInit:", r, "devices:", n.value, "first:", s.value.decode())
sys.exit(r != 0 or n.value < 1)
PROBE
	cp "$work/probe.py" "$root/probe.py"
	py=$(readlink -f "$py")
	add "$py"
	prefix=$("$py" -c 'import sys; print(sys.base_prefix)')
	for f in $(find "$prefix/lib" -path '*lib-dynload*' -name '_ctypes*.so' 2>/dev/null); do add "$f"; done
	binds=(-b "$(dirname "$("$py" -c 'import os; print(os.__file__)')")")
	probe=("$py" /probe.py)
	echo "using $py"
else
	echo "neither gcc nor python3 is installed: testing only nvidia-smi"
fi

run() { "$hpcc" run --no-home --cd / "${binds[@]}" "$@"; }

say "without --gpu there is no driver inside"
if [ ${#probe[@]} -gt 0 ]; then
	if run "$root" -- "${probe[@]}"; then
		echo "FAIL the driver works without --gpu: the root directory already contains it"
		bad=1
	else
		echo "ok   as expected"
	fi
fi

say "with --gpu"
check "what is in the private directory" run --gpu "$root" -- bash -c 'ls -C /run/hpcc/lib /run/hpcc/bin; echo "$LD_LIBRARY_PATH"; ls -d /dev/nvidia*'
check "nvidia-smi" run --gpu "$root" -- nvidia-smi
[ ${#probe[@]} -gt 0 ] && check "libcuda" run --gpu "$root" -- "${probe[@]}"
if [ ${#probe[@]} -gt 0 ]; then
	export NVIDIA_VISIBLE_DEVICES=none
	if out=$(run --gpu "$root" -- "${probe[@]}" 2>&1); then
		echo "FAIL NVIDIA_VISIBLE_DEVICES=none: $out"
		bad=1
	else
		echo "ok   NVIDIA_VISIBLE_DEVICES=none: $out"
	fi
	unset NVIDIA_VISIBLE_DEVICES
fi

if command -v nvidia-ctk >/dev/null; then
	say "a CDI spec of nvidia-ctk"
	mkdir "$work/cdi"
	nvidia-ctk cdi generate --output "$work/cdi/nvidia.yaml" 2>&1 | tail -1
	export HPCC_CDI_DIRS=$work/cdi
	check "CDI: nvidia-smi" run --device nvidia.com/gpu=all "$root" -- nvidia-smi -L
	[ ${#probe[@]} -gt 0 ] && check "CDI: libcuda" run --device nvidia.com/gpu=all "$root" -- "${probe[@]}"
	unset HPCC_CDI_DIRS
fi

say "time of a start"
for w in "" --gpu; do
	s=$(date +%s%N)
	for _ in 1 2 3 4 5 6 7 8 9 10; do run $w "$root" -- env >/dev/null; done
	echo "run $w: $((($(date +%s%N) - s) / 10000)) microseconds each"
done

[ $bad = 0 ] && say "all tests passed" || say "some tests failed"
exit $bad
