# cluster.sh - functions for the up.sh and down.sh of the test clusters, which source it. They set
# $base, the directory of the cluster, and $me, the name of the script in messages.

die() { echo "$me: $*" >&2; exit 1; }

install_packages() { # install_packages PACKAGE...: installs those that are missing, without starting services
  local need=() p out
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || need+=("$p")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "needs the packages ${need[*]}; install them as root"
  local deny=/usr/sbin/policy-rc.d made= failed=
  if [ ! -e $deny ]; then
    printf '#!/bin/sh\nexit 101\n' >$deny; chmod 755 $deny; made=1
  fi
  out=$(mktemp)
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${need[@]}"; } >"$out" 2>&1 || failed=1
  [ -z "$made" ] || rm -f $deny
  [ -z "$failed" ] || { tail "$out" >&2; die "apt-get cannot install ${need[*]}; the log is $out"; }
  rm -f "$out"
}

alive() { # alive NAME FILE: checks that the process with the pid in FILE runs the program NAME
  local p; p=$(head -n 1 "$2" 2>/dev/null | tr -d ' ') && [ -n "$p" ] || return 1
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$1" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$p/status" # and is not a zombie
}

await() { # await NAME CMD...: waits until CMD succeeds, at most 60 s
  local name=$1 end=$((SECONDS + 60)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$name did not start within 60 s; see $base/log"
    sleep 0.2
  done
}

end() { # end NAME FILE [SIGNAL]: sends SIGNAL, by default TERM, to the process of alive, and KILL after ten seconds
  local p; alive "$1" "$2" || return 0
  p=$(head -n 1 "$2" | tr -d ' ')
  kill -"${3:-TERM}" "$p"
  for _ in $(seq 100); do alive "$1" "$2" || return 0; sleep 0.1; done
  kill -KILL "$p"
}

# add_host HOST SECOND NET: makes this machine, HOST, also the host SECOND: a network namespace, linked by
# NET.1 and NET.2. If that fails, it writes the reason to standard error.
add_host() {
  local host=$1 second=$2 net=$3
  [ ! -e "/run/netns/$second" ] || return 0
  {
    ip netns add "$second" && ip link add "$second" type veth peer name eth0 netns "$second" &&
      ip addr add "$net.1/24" dev "$second" && ip link set "$second" up &&
      ip -n "$second" link set lo up && ip -n "$second" addr add "$net.2/24" dev eth0 && ip -n "$second" link set eth0 up
  } 2>>"$base/log/second" || {
    ip netns del "$second" 2>/dev/null || true
    echo "$me: no second host: $(tail -n 1 "$base/log/second")" >&2
    return 0
  }
  mkdir -p "/etc/netns/$second" # "ip netns exec" mounts its files over those in /etc
  printf '%s\n' "127.0.0.1 localhost" "$net.1 $host" "$net.2 $second" >"/etc/netns/$second/hosts"
  chmod 644 "/etc/netns/$second/hosts"
}

remove_host() { # remove_host SECOND: removes a second host with its processes, and its line in /etc/hosts
  local rest
  [ -e "/run/netns/$1" ] || return 0
  ip netns pids "$1" | xargs -r kill -KILL
  ip netns del "$1"
  rm -rf "/etc/netns/$1"
  rest=$(grep -v " $1\$" /etc/hosts) && echo "$rest" >/etc/hosts # /etc/hosts may be a mount point, so it cannot be renamed over
}

purge() { # purge OPTION: removes the directory of the cluster if OPTION is --purge
  case $1:$base in --purge:/?*/?*) rm -rf --one-file-system "$base" ;; esac
}
