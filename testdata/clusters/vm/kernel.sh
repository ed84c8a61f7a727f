# shellcheck shell=bash
# testdata/clusters/vm/kernel.sh - downloads Debian kernels once; run.sh and machine.sh source it.
cache=${HPCC_VM:-/var/cache/hpcc-test/vm}

# debian ARCH SUITE COMMAND...: runs a COMMAND of apt for another architecture and release of Debian, with the mirror of
# this machine. It ignores the installed packages.
debian() {
  local arch=$1 suite=$2 state=$cache/apt/$1-$2 mirror
  local options=(-qq -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State="$state/state" -o Dir::State::status=/dev/null
    -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Get::List-Cleanup=0)
  shift 2
  if [ ! -e "$state/sources.list" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | grep -v security | head -n 1)
    [ -n "$mirror" ] || { echo "kernel.sh: the sources of apt contain no Debian mirror" >&2; return 1; }
    mkdir -p "$state/state/lists/partial" "$state/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$state/sources.new"
    mv "$state/sources.new" "$state/sources.list"
    apt-get "${options[@]}" update || { rm -rf "$state"; return 1; }
  fi
  "$1" "${options[@]}" "${@:2}"
}

# kernel ARCH SUITE: downloads a kernel, and sets kernel_root to a directory with boot/vmlinu*, and kernel_version.
kernel() {
  local arch=$1 suite=$2 flavour package
  kernel_root=$cache/$arch-$suite
  if [ ! -d "$kernel_root" ]; then
    case $arch in ppc64el) flavour=powerpc64le ;; *) flavour=$arch ;; esac
    package=$(debian "$arch" "$suite" apt-cache depends "linux-image-$flavour" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$package" ] || { echo "kernel.sh: Debian $suite has no linux-image-$flavour on this mirror" >&2; return 1; }
    unpacked "$arch" "$suite" "$package" "$kernel_root.new"
    depmod -b "$kernel_root.new" "${package#linux-image-}"
    mv "$kernel_root.new" "$kernel_root"
  fi
  kernel_version=$(cd "$kernel_root/lib/modules" && echo *)
}

# unpacked ARCH SUITE PACKAGE DIR: downloads a package and unpacks it to a new DIR.
unpacked() {
  rm -rf "$4"
  mkdir -p "$4"
  (cd "$4" && debian "$1" "$2" apt-get download "$3" && dpkg -x ./*.deb . && rm -f ./*.deb)
}

# modules MODULE...: prints the files of kernel modules and their dependencies, in the order for insmod.
modules() {
  modprobe -d "$kernel_root" -S "$kernel_version" -a --show-depends "$@" | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}
