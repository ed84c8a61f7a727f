#!/bin/bash
# import.sh FILE - imports an image archive (OCI, from "hpcc save NAME FILE") into the node's
# containerd, as an administrator without a registry would do. Any user can run it. It needs
# $HPCC_TEST_KUBE, and prints the output of containerd.
set -euo pipefail
kube=${HPCC_TEST_KUBE:?is not set; testdata/clusters/kube/up.sh node prints it}
name=$(mktemp -u "$(id -un)-XXXXXXXX")
cp "$1" "$kube/import/$name.part"
mv "$kube/import/$name.part" "$kube/import/$name.tar"
for _ in $(seq 600); do
  if [ -e "$kube/imported/$name.done" ]; then cat "$kube/imported/$name.done"; exit 0; fi
  if [ -e "$kube/imported/$name.refused" ]; then cat "$kube/imported/$name.refused" >&2; exit 1; fi
  sleep 0.1
done
echo "import.sh: $1 was not imported within a minute" >&2
exit 1
