# common.sh - functions that the scripts of this directory share. The scripts set $base.
die() { echo "kube: $*" >&2; exit 1; }
alive() { # alive NAME: checks that the process with the pid in run/NAME.pid runs the program NAME
  local p; p=$(cat "$base/run/$1.pid" 2>/dev/null) || return 1
  [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "${1:0:15}" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$p/status"
}
start() { # start NAME COMMAND...: starts the daemon NAME, unless it runs, without the caller's environment
  local name=$1; shift
  ! alive "$name" || return 0
  env -i HOME="$base" PATH="$PATH" ${GOGC:+GOGC="$GOGC"} setsid "$@" >"$base/log/$name" 2>&1 </dev/null &
  echo $! >"$base/run/$name.pid"
}
await() { # await WHAT COMMAND...: waits until COMMAND succeeds, at most five minutes, because the machine may be busy
  local what=$1 end=$((SECONDS + 300)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$what did not start within 5 minutes; see $base/log"
    sleep 0.2
  done
}
first() { # prints the pid of the node's first process, if it is alive
  local p start; read -r p start 2>/dev/null <"$base/run/node" || return 1
  [ "$(cut -d' ' -f22 "/proc/$p/stat" 2>/dev/null)" = "$start" ] && echo "$p" # the start time excludes another process with the same pid
}
cgroup() { basename "$base"; } # name of the cgroup of the node's pods, in each hierarchy
