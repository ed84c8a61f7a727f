#!/bin/bash
# import.sh FILE - hand an image's archive (OCI, "hpcc save NAME FILE") to the node's
# containerd, as an administrator would who has no registry. For any user; needs
# $HPCC_TEST_KUBE. Prints what containerd says.
set -euo pipefail
kube=${HPCC_TEST_KUBE:?names no cluster: testdata/kube/up.sh node prints it}
name=$(mktemp -u "$(id -un)-XXXXXXXX")
cp "$1" "$kube/import/$name.part"
mv "$kube/import/$name.part" "$kube/import/$name.tar"
for _ in $(seq 600); do
  if [ -e "$kube/imported/$name.done" ]; then cat "$kube/imported/$name.done"; exit 0; fi
  if [ -e "$kube/imported/$name.refused" ]; then cat "$kube/imported/$name.refused" >&2; exit 1; fi
  sleep 0.1
done
echo "import.sh: $1: no answer in a minute" >&2
exit 1
