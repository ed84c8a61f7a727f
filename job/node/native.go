package node

import (
	"cmp"

	"hpcc/job"
)

// NativeIDs are the variables in which schedulers tell a task who it is, of those that are set.
func NativeIDs(getenv func(string) string) (ids map[string]string, from job.Target) {
	ids = map[string]string{}
	take := func(of job.Target, names ...string) {
		if getenv(names[0]) == "" {
			return
		}
		from = cmp.Or(from, of)
		for _, n := range names {
			if v := getenv(n); v != "" && len(v) <= 256 {
				ids[n] = v
			}
		}
	}
	take("slurm", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_CLUSTER_NAME")
	if getenv("SGE_TASK_ID") != "" || getenv("SGE_ROOT") != "" { // JOB_ID alone may be anybody's
		take("gridengine", "JOB_ID", "SGE_TASK_ID", "SGE_CLUSTER_NAME")
	}
	take("lsf", "LSB_JOBID", "LSB_JOBINDEX")
	take("pbs", "PBS_JOBID", "PBS_ARRAY_INDEX", "PBS_ARRAYID")
	take("", "HPCC_TASK_ID")
	return ids, from
}

// nativeTask is the scheduler's id of the task whose environment this is; ""
// without a scheduler.
func nativeTask(getenv func(string) string) string {
	switch {
	case getenv("SLURM_JOB_ID") != "":
		return getenv("SLURM_JOB_ID")
	case getenv("JOB_ID") != "" && getenv("SGE_ROOT") != "":
		if k := getenv("SGE_TASK_ID"); k != "" && k != "undefined" {
			return getenv("JOB_ID") + "." + k
		}
		return getenv("JOB_ID")
	case getenv("PBS_JOBID") != "":
		return getenv("PBS_JOBID")
	case getenv("LSB_JOBID") != "":
		if k := getenv("LSB_JOBINDEX"); k != "" && k != "0" {
			return getenv("LSB_JOBID") + "[" + k + "]"
		}
		return getenv("LSB_JOBID")
	}
	return ""
}
