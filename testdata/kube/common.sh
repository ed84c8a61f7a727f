# common.sh - what the scripts of this directory share. They set $base.
die() { echo "kube: $*" >&2; exit 1; }
alive() { # alive NAME: does the process that run/NAME.pid names live, and is it NAME's?
  local p; p=$(cat "$base/run/$1.pid" 2>/dev/null) || return 1
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "${1:0:15}" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$p/status"
}
start() { # start NAME COMMAND...: a daemon of that name, unless it runs, with nothing of our environment
  local name=$1; shift
  ! alive "$name" || return 0
  env -i HOME="$base" PATH="$PATH" ${GOGC:+GOGC="$GOGC"} setsid "$@" >"$base/log/$name" 2>&1 </dev/null &
  echo $! >"$base/run/$name.pid"
}
await() { # await WHAT COMMAND...: until it succeeds, five minutes at most: a machine can be busy
  local what=$1 end=$((SECONDS + 300)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$what does not come up; see $base/log"
    sleep 0.2
  done
}
first() { # prints the node's first process, if it lives
  local p start; read -r p start 2>/dev/null <"$base/run/node" || return 1
  [ "$(cut -d' ' -f22 "/proc/$p/stat" 2>/dev/null)" = "$start" ] && echo "$p" # not another that has its number
}
cgroup() { basename "$base"; } # where the node's pods are, in each hierarchy
