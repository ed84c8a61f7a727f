package dispatch

import (
	"reflect"
	"testing"
)

func TestNativeIDs(t *testing.T) {
	for _, c := range []struct{ env, want map[string]string }{
		{map[string]string{"JOB_ID": "anybody's"}, map[string]string{}},
		{map[string]string{"JOB_ID": "7", "SGE_TASK_ID": "2", "X": "1"}, map[string]string{"JOB_ID": "7", "SGE_TASK_ID": "2"}},
		{map[string]string{"SLURM_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3", "HPCC_TASK_ID": "3"}, map[string]string{"SLURM_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3", "HPCC_TASK_ID": "3"}},
		{map[string]string{"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}, map[string]string{"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}},
		{map[string]string{"PBS_JOBID": "5[2].host"}, map[string]string{"PBS_JOBID": "5[2].host"}},
	} {
		if got, _ := OnNode().NativeIDs(func(n string) string { return c.env[n] }); !reflect.DeepEqual(got, c.want) {
			t.Errorf("NativeIDs(%v) = %v; want %v", c.env, got, c.want)
		}
	}
}
