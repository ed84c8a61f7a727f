#!/bin/bash
# run.sh [NODES...] - measures how long a file takes to reach all nodes of a job, in two ways: all
# nodes read it from one file server, or a tree of nodes passes it on, as sbcast does. It compares
# both with the model of docs/scale.md. Default: 4, 16 and 64 nodes.
#
# Each node is a network namespace. Its link to a bridge is limited in both directions to $RATE, that
# of the server to $SERVER_RATE, in Mbit/s. It needs no root: an ordinary user gets a user namespace.
set -euo pipefail
rate=${RATE:-20} server_rate=${SERVER_RATE:-40} # Mbit/s
size=${SIZE:-2097152} block=${BLOCK:-262144} fanout=${FANOUT:-8}
sizes=(${*:-4 16 64})
if [ "${1:-}" != --inside ]; then
  cd "$(dirname "$0")/../../.."
  tool=$(mktemp -d)
  trap 'rm -rf "$tool"' EXIT
  CGO_ENABLED=0 go build -o "$tool/scale" ./testdata/benchmarks/broadcast
  user=(); [ "$(id -u)" = 0 ] || user=(--user --map-root-user)
  unshare "${user[@]}" --net --mount --pid --fork --kill-child --mount-proc "$PWD/testdata/benchmarks/broadcast/run.sh" --inside "$tool/scale" "${sizes[@]}"
  exit
fi
scale=$2; sizes=("${@:3}")
most=$(printf '%s\n' "${sizes[@]}" | sort -n | tail -1)
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link add br0 type bridge
ip link set br0 up

host() { # host NAME N MBIT: a namespace with the address 10.9.0.N
  local limit="rate $3mbit burst 16kb latency 200ms"
  ip netns add "$1"
  ip link add "v$2" type veth peer name eth0 netns "$1"
  ip link set "v$2" master br0 up
  ip -n "$1" addr add "10.9.0.$2/24" dev eth0
  ip -n "$1" link set eth0 up
  ip -n "$1" link set lo up
  tc qdisc add dev "v$2" root tbf $limit
  ip netns exec "$1" tc qdisc add dev eth0 root tbf $limit
  ip netns exec "$1" "$scale" node "10.9.0.$2:9" &
}
host server 250 "$server_rate"
nodes=()
for i in $(seq "$most"); do
  host "n$i" "$i" "$rate"
  nodes+=("10.9.0.$i:9")
done
on() { ip netns exec n1 "$scale" "$@"; }
until on read 10.9.0.250:9 0 "${nodes[@]}" >/dev/null 2>&1; do sleep 0.2; done

bytes() { echo $(($1 * 1000000 / 8)); }
row() { # row N WAY PREDICTED MEASURED
  awk -v n="$1" -v way="$2" -v p="$3" -v m="$4" 'BEGIN { printf "| %d | %s | %.2f | %.2f | %+.0f %% |\n", n, way, p, m, 100 * (m - p) / p }'
}
echo "file of $size bytes, blocks of $block bytes, fanout $fanout; links: nodes $rate Mbit/s, server $server_rate Mbit/s"
echo "| nodes | way | predicted, s | measured, s | difference |"
echo "| --- | --- | --- | --- | --- |"
for n in "${sizes[@]}"; do
  read -r p_read p_tree < <("$scale" predict "$(bytes "$rate")" "$(bytes "$server_rate")" "$fanout" "$size" "$n")
  row "$n" "all read from the server" "$p_read" "$(on read 10.9.0.250:9 "$size" "${nodes[@]:0:n}")"
  row "$n" "tree" "$p_tree" "$(on send "$fanout" "$block" "$size" "${nodes[@]:0:n}")"
done
