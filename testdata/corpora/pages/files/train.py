lr=${1#--lr=} seed=${2#--seed=}
printf '{"val.loss": %s%s}\n' "$lr" "$seed" >"$HPCC_TASK_DIR/metrics.json"
