package pbs

import (
	"strings"
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/testdata/jobtest"
	"hpcc/testdata/testenv"
)

func TestPBSUsed(t *testing.T) {
	u := used(jobtest.Recorded(t, "qstat-fxt.txt"))
	if u["98.vm"].Peak != 22024<<10 || u["96[].vm"].Peak != 23352<<10 || len(u) != 5 {
		t.Errorf("used = %+v; want 5 jobs, 22024 KiB for 98.vm and 23352 KiB for 96[].vm", u)
	}
}

func TestPBSAllocations(t *testing.T) {
	list, err := allocations(strings.NewReader(jobtest.Recorded(t, "qstat-fxt.json")), time.Time{})
	testenv.Check(t, err)
	var some []capacity.Allocation
	for _, s := range list {
		if strings.Contains(s.ID, "[]") {
			t.Errorf("array %s counts in addition to its tasks", s.ID)
		}
		if s.ID == "0.h" || s.ID == "1[1].h" {
			some = append(some, s)
		}
	}
	jobtest.CheckAllocations(t, some,
		"0.h alice 00:23:38-00:23:39 cpus 4 memory 200M gpus 2",
		"1[1].h alice 00:23:38-00:23:39 cpus 1 memory 0M gpus 0")
	if list, err := allocations(strings.NewReader("no json"), time.Time{}); err == nil {
		t.Errorf("allocations of text that is not JSON = %v; want an error", list)
	}
}

func FuzzPBSAllocations(f *testing.F) {
	f.Add(`{"Jobs":{"1.h":{"stime":"Sat Nov 21 00:23:38 2026","job_state":"F","resources_used":{"walltime":"00:00:01"},"exec_vnode":"(n1:ncpus=1)"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		list, _ := allocations(strings.NewReader(text), time.Time{})
		for _, s := range list {
			if s.Start.IsZero() || s.CPUs < 0 || s.Memory < 0 || s.GPUs < 0 {
				t.Errorf("invalid allocation %+v", s)
			}
		}
	})
}
