package gridengine

import (
	"testing"

	"hpcc/job"
	"hpcc/job/capacity"
)

// TestFitsGridEngine checks that native options for slots and GPUs count as requests.
func TestFitsGridEngine(t *testing.T) {
	for _, c := range []struct {
		native            []string
		units, cpus, gpus int
	}{
		{[]string{"-pe smp 4", "-l gpu=2"}, 1, 4, 8}, {[]string{"-pe mpi 12"}, 12, 1, 0}, {[]string{"-l h_vmem=4G", "-pe x"}, 1, 1, 0},
	} {
		if x := capacity.NewNeed(&job.Job{Native: c.native}, 0, adjust); x.Units != c.units || x.CPUs != c.cpus || x.GPUs != c.gpus {
			t.Errorf("%q: %d units of %d processors, %d GPUs; want %d of %d, %d", c.native, x.Units, x.CPUs, x.GPUs, c.units, c.cpus, c.gpus)
		}
	}
}
