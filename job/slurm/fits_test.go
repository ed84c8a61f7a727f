package slurm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/quantity"
	"hpcc/testdata/helpers/jobtest"
)

// TestFits computes starts at noon on four nodes with four processors and 4G each; n3 and n4
// also have two GPUs. n1 is full until 13:00, and n2 is half full until 14:00. n4 is reserved
// for a waiting job from 12:30 to 15:00, and all nodes for maintenance from 20:00 to 22:00.
func TestFits(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	at := func(hours float64) time.Time { return noon.Add(time.Duration(hours * float64(time.Hour))) }
	c := &capacity.Snapshot{Queue: "cpu", Limits: map[string]time.Duration{"cpu": 24 * time.Hour}}
	for i := range 4 {
		n := capacity.Node{Name: fmt.Sprintf("n%d", i+1), CPUs: 4, FreeCPUs: 4, Memory: 4 << 30, FreeMemory: 4 << 30, Queues: []string{"cpu"}}
		if i > 1 {
			n.GPUs, n.FreeGPUs, n.GPUType = 2, 2, "a100"
		}
		c.Nodes = append(c.Nodes, n)
	}
	c.Nodes = append(c.Nodes, capacity.Node{Name: "n5", CPUs: 4, Memory: 4 << 30, FreeCPUs: 4, FreeMemory: 4 << 30, State: capacity.Off})
	c.Nodes[0].FreeCPUs, c.Nodes[0].Holds = 0, []capacity.Hold{{From: at(-1), To: at(1), CPUs: 4}}
	c.Nodes[1].FreeCPUs, c.Nodes[1].FreeMemory, c.Nodes[1].Holds = 2, 2<<30, []capacity.Hold{{From: at(-1), To: at(2), CPUs: 2, Memory: 2 << 30}}
	c.Nodes[3].Holds = []capacity.Hold{{From: at(0.5), To: at(3), FullNode: true, By: "job 9"}}
	for i := range c.Nodes {
		c.Nodes[i].Holds = append(c.Nodes[i].Holds, capacity.Hold{From: at(8), To: at(10), FullNode: true, By: "reservation maint"})
		c.Nodes[i].Settle(noon)
	}
	for _, x := range []struct {
		name string
		job  job.Job
		want string // when, start, nodes, why, instead
	}{
		{"one", job.Job{Time: time.Hour}, "now 00:00 n2"},
		{"a node's processors", job.Job{CPUs: 4, Time: time.Hour}, "now 00:00 n3"},
		{"next to running jobs", job.Job{CPUs: 2, Memory: 2 << 30, Time: time.Hour}, "now 00:00 n2"},
		{"a short free window", job.Job{Nodes: 2, CPUs: 4, Time: 30 * time.Minute}, "now 00:00 n3,n4"},
		{"longer than the free window", job.Job{Nodes: 2, CPUs: 4, Time: time.Hour}, `later 13:00 n1,n3 the free resources are reserved from 12:30:00, by job 9, and 1h are requested | --time 30m, --nodes 1`},
		{"before maintenance", job.Job{CPUs: 4, Time: 9 * time.Hour}, "later 22:00 n1 the free resources are reserved from 20:00:00, by reservation maint, and 9h are requested | --time 8h"},
		{"all nodes", job.Job{Nodes: 4, CPUs: 4, Time: time.Hour}, "later 15:00 n1,n2,n3,n4 now there is room for 1 of 4 nodes with 4 CPUs | --nodes 1"},
		{"GPUs of two nodes", job.Job{Nodes: 2, GPUs: 2, Time: 2 * time.Hour}, "later 15:00 n3,n4 the free resources are reserved from 12:30:00, by job 9, and 2h are requested | --time 30m, --nodes 1"},
		{"processes anywhere", job.Job{Tasks: 7, Time: time.Hour}, "later 13:00 n1,n2,n3 the free resources are reserved from 12:30:00, by job 9, and 1h are requested | --time 30m, --tasks 6"},
		{"an exclusive node", job.Job{Exclusive: true, Time: 7 * time.Hour}, "now 00:00 n3"},
		{"selected hosts", job.Job{Time: time.Hour, Constraints: job.Constraints{Hosts: []string{"n1"}}}, "later 13:00 n1 now there is room for 0 of 1 process with 1 CPU |"},
		{"more memory", job.Job{Memory: 64 << 30}, "never no node has 64G of memory: the largest, n1, has 4G of memory"},
		{"more GPUs", job.Job{GPUs: 8}, "never no node has 8 GPUs: the largest, n3, has 2 GPUs"},
		{"GPUs of another kind", job.Job{GPUs: 1, Constraints: job.Constraints{GPUType: "h100"}}, "never no node has GPUs of kind h100"},
		{"more nodes", job.Job{Nodes: 9}, "never the job needs 9 nodes, and the cluster has 5"},
		{"more nodes with GPUs", job.Job{Nodes: 3, GPUs: 1}, "never the job needs 3 nodes with 1 GPU, and only 2 have that"},
		{"more processes", job.Job{Tasks: 99}, "never the job needs 99 processes with 1 CPU each, and all nodes together have room for 20"},
		{"longer than the queue's limit", job.Job{Time: 25 * time.Hour}, "never queue cpu limits jobs to 24h, and the job requests 25h"},
	} {
		f := capacity.NewNeed(&x.job, 0, adjust).Fit(c, "cpu", noon)
		got := string(f.When)
		if f.When != capacity.Never {
			if f.Start.IsZero() {
				got += " 00:00"
			} else {
				got += f.Start.Format(" 15:04")
			}
			got += " " + strings.Join(f.Nodes, ",")
		}
		if f.Why != "" {
			got += " " + f.Why
		}
		if f.When == capacity.Later {
			got += strings.TrimRight(" | "+strings.Join(f.Instead, ", "), " ")
		}
		if got != x.want {
			t.Errorf("%s:\ngot  %s\nwant %s", x.name, got, x.want)
		}
		for _, flag := range f.Instead { // with each advised flag, the job would start now
			j := x.job
			kind, value, _ := strings.Cut(flag, " ")
			switch kind {
			case "--time":
				j.Time, _ = quantity.ParseTime(value)
			case "--nodes":
				fmt.Sscan(value, &j.Nodes)
			case "--tasks":
				fmt.Sscan(value, &j.Tasks)
			case "--cpus":
				fmt.Sscan(value, &j.CPUs)
			case "--mem":
				j.Memory, _ = quantity.ParseMemory(value)
			}
			if again := capacity.NewNeed(&j, 0, adjust).Fit(c, "cpu", noon); again.When != capacity.Now {
				t.Errorf("%s: with %s it starts %s, %s", x.name, flag, again.When, again.Why)
			}
		}
	}
}

// TestFitsSmaller checks that the advice for a partly allocated node is to request the rest.
func TestFitsSmaller(t *testing.T) {
	c := &capacity.Snapshot{Nodes: []capacity.Node{{Name: "a", CPUs: 8, FreeCPUs: 3, Memory: 8 << 30, FreeMemory: 2 << 30, Holds: []capacity.Hold{{CPUs: 5, Memory: 6 << 30}}}}}
	now := time.Now()
	c.Nodes[0].Settle(now)
	for _, x := range []struct {
		job  job.Job
		want string
	}{
		{job.Job{CPUs: 4}, "[--cpus 3]"}, {job.Job{Memory: 4 << 30}, "[--mem 2048M]"}, {job.Job{Exclusive: true}, "[]"},
	} {
		f := capacity.NewNeed(&x.job, 0, nil).Fit(c, "", now)
		if f.When != capacity.Later || !f.Start.IsZero() || fmt.Sprint(f.Instead) != x.want {
			t.Errorf("%+v: %s %v %v; want later, without a time, %s", x.job, f.When, f.Start, f.Instead, x.want)
		}
	}
}

func TestSlurmStart(t *testing.T) {
	e := start(jobtest.Recorded(t, "test-only.txt"), time.Now())
	if e == nil || !e.Start.Equal(parseTime("2026-11-21T00:41:17")) || strings.Join(e.Nodes, " ") != "n1 n2 n3 n4" {
		t.Errorf("start of the recorded answer = %+v", e)
	}
	if !start(jobtest.Recorded(t, "test-only.txt"), e.Start.Add(-time.Second)).Now || start(jobtest.Recorded(t, "test-only.txt"), e.Start.Add(-time.Minute)).Now {
		t.Error("Now is not true only for a start within seconds")
	}
	if e := start("sbatch: warning: something", time.Now()); e != nil {
		t.Errorf("start of other output = %+v; want nil", e)
	}
}

// TestSlurmUsed parses the usage in the output of sacct and sstat.
func TestSlurmUsed(t *testing.T) {
	m := used(map[string]capacity.Usage{}, "3_1|01:00:00|\n3_1.batch|01:00:00|2097152K\n3_2|1-00:00:01.5|\n3_2.0|1-00:00:01|5G\n4.batch|00:30|12.5M\n")
	if u := m["3"]; u.CPU != 25*time.Hour+1500*time.Millisecond || u.Peak != 5<<30 {
		t.Errorf("job 3 used %+v", u)
	}
	if u := m["4"]; u.CPU != 30*time.Second || u.Peak != 12<<20+512<<10 {
		t.Errorf("job 4 used %+v", u)
	}
}
