package slurm

import (
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/testdata/jobtest"
)

func TestSlurmAllocations(t *testing.T) {
	list := allocations(jobtest.Recorded(t, "sacct-a.txt"))
	for _, s := range list {
		if s.ID == "29" || s.ID == "32" || s.ID == "35" {
			t.Errorf("job %s never began and counts", s.ID)
		}
	}
	jobtest.CheckAllocations(t, list[:3],
		"30 alice 00:00:23-00:00:23 cpus 16 memory 4096M gpus 8",
		"31 alice 00:00:33-00:00:42 cpus 1 memory 256M gpus 0",
		"34 alice 00:00:46-00:00:46 cpus 1 memory 256M gpus 0")
	jobtest.CheckAllocations(t, list[len(list)-1:], "56_1 alice 00:29:17-runs cpus 1 memory 256M gpus 0")
	jobtest.CheckAllocations(t, allocations("9|bob|2026-11-21T00:00:00|Unknown|NODE_FAIL|cpu=1\n10|bob|Unknown|Unknown|PENDING|\n\n|||||\nx"))
}

func TestWindows(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 30, 0, 0, time.Local)
	c := at(t)
	c.Nodes[1].Holds = append(c.Nodes[1].Holds, capacity.Hold{From: now.Add(90 * time.Minute), FullNode: true, By: "job 99"})
	c.Nodes[0].Holds = append(c.Nodes[0].Holds, capacity.Hold{From: now.Add(89 * time.Second), FullNode: true, By: "job 98"})
	for i := range c.Nodes {
		c.Nodes[i].Settle(now)
	}
	var got []string
	for _, h := range capacity.Windows(c, now) {
		got = append(got, strings.Join(h.Nodes, ",")+" "+h.Flags(now)+" "+h.For)
	}
	want := []string{
		"n4 --cpus 4 --mem 4096M --gpus 4 --time 24h ",
		"n3 --cpus 3 --mem 3840M --gpus 2 --time 24h ",
		"n2 --cpus 4 --mem 4096M --time 1h29m job 99",
	} // the free window of n1 is shorter than a minute
	if !slices.Equal(got, want) {
		t.Errorf("windows:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func FuzzSlurmAllocations(f *testing.F) {
	f.Add("30|alice|2026-11-21T00:00:23|2026-11-21T00:00:23|COMPLETED|billing=16,cpu=16,gres/gpu=8,mem=4G,node=4\n")
	f.Fuzz(func(t *testing.T, text string) {
		list := allocations(text)
		for _, s := range list {
			if s.Start.IsZero() || s.CPUs < 0 || s.Memory < 0 || s.GPUs < 0 {
				t.Errorf("a job has %+v", s)
			}
		}
	})
}
