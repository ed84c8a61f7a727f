#!/bin/sh
# clean.sh RESOURCES NAMESPACE...: takes away what the jobs of $HPCC_STORE have in namespaces of the cluster, and nothing of
# others, whose tests may run at the same time.
ids=$(ls "$HPCC_STORE/jobs" | tr 'A-Z_.' 'a-z--' | paste -sd,)
resources=$1; shift
for ns; do
	kubectl -n "$ns" delete "$resources" -l "hpcc/job in ($ids)" --wait=false
done
