#!/bin/sh
# clean.sh RESOURCES NAMESPACE... - deletes the resources of the jobs in $HPCC_STORE from namespaces of the cluster.
# It leaves the resources of other tests, which may run at the same time.
ids=$(ls "$HPCC_STORE/jobs" | tr 'A-Z_.' 'a-z--' | paste -sd,)
resources=$1; shift
for ns; do
	kubectl -n "$ns" delete "$resources" -l "hpcc/job in ($ids)" --wait=false
done
