package slurm

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/testdata/helpers/jobtest"
)

// at is the cluster of the recordings, as seen at a moment.
func at(t testing.TB) *capacity.Snapshot {
	c := &capacity.Snapshot{Nodes: nodes(jobtest.Recorded(t, "scontrol-node.txt"))}
	readPartitions(c, jobtest.Recorded(t, "scontrol-part.txt"))
	return c
}

func TestSlurmNodes(t *testing.T) {
	c := at(t)
	for i := range c.Nodes {
		c.Nodes[i].Settle(time.Now())
	}
	jobtest.CheckNodes(t, c.Nodes,
		"n1 shared cpus 2/4 memory 3584M/4096M gpus 0/0 cpu,spare",
		"n2 idle cpus 4/4 memory 4096M/4096M gpus 0/0 cpu,spare",
		"n3 shared cpus 3/4 memory 3840M/4096M gpus 2/4 fake cpu,spare,gpu",
		"n4 idle cpus 4/4 memory 4096M/4096M gpus 4/4 fake cpu,spare,gpu")
	if c.Queue != "cpu" || c.Limits["spare"] != 4*time.Hour || c.Usual["gpu"] != 10*time.Minute {
		t.Errorf("partitions: default %q, spare %v at most, gpu %v usually", c.Queue, c.Limits["spare"], c.Usual["gpu"])
	}
}

// TestSlurmStates: what state(scontrol show node) means for new jobs.
func TestSlurmStates(t *testing.T) {
	for state, off := range map[string]bool{
		"IDLE": false, "MIXED+CLOUD": false, "IDLE+PLANNED": false, "IDLE+CLOUD+POWERED_DOWN": false, "ALLOCATED": false, "IDLE~": false, "MIXED-": false,
		"DOWN": true, "IDLE+DRAIN": true, "DOWN*+DRAIN": true, "IDLE*": true, "ALLOCATED+MAINTENANCE+RESERVED": true, "UNKNOWN+NOT_RESPONDING": true, "FUTURE": true, "IDLE+REBOOT_REQUESTED": true,
	} {
		list := "NodeName=x CPUTot=4 State=" + state + " Reason=disk a=b is full [root@2026-11-21T00:00:00]\n"
		n := nodes(list)
		if len(n) != 1 || (n[0].State == capacity.Off) != off {
			t.Errorf("state %s: %+v; want off: %v", state, n, off)
		}
		if off && !strings.Contains(n[0].Reason, "disk a=b is full [root") {
			t.Errorf("state %s: reason %q", state, n[0].Reason)
		}
	}
}

func TestSlurmGRES(t *testing.T) {
	for in, want := range map[string]string{
		"(null)": "0 ", "gpu:4": "4 ", "gpu:a100:4(S:0-1)": "4 a100", "gpu:a100:2(S:0,1),gpu:v100:1,shard:8": "3 a100,v100", "gpu:fake:2(IDX:0-1)": "2 fake", "gpu": "0 ", "gpu:-1": "0 ",
	} {
		n, kind := gres(in)
		if got := fmt.Sprintf("%d %s", n, kind); got != want {
			t.Errorf("slurmGRES(%q) = %q; want %q", in, got, want)
		}
	}
}

// TestSlurmHolds parses running and waiting jobs and a reservation. They were recorded at
// 21:27:57, when three nodes ran one job each and the fourth was idle.
func TestSlurmHolds(t *testing.T) {
	c := &capacity.Snapshot{}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.Nodes = append(c.Nodes, capacity.Node{Name: name, CPUs: 4, Memory: 4 << 30, FreeMemory: 3 << 30})
	}
	c.Nodes[3].FreeCPUs, c.Nodes[3].FreeMemory = 3, 4<<30-256<<20
	at, now := capacity.NodeIndex(c.Nodes), jobtest.ThatDay(t, "21:27:57")
	readReservations(c, at, strings.ReplaceAll(jobtest.Recorded(t, "scontrol-res.txt"), "EndTime=2026", "EndTime=2096"))
	readJobs(c, at, jobtest.Recorded(t, "squeue-O.txt"), now)
	for i := range c.Nodes {
		c.Nodes[i].Settle(now)
	}
	jobtest.CheckNodes(t, c.Nodes,
		"n1 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n2 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n3 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n4 shared cpus 3/4 memory 3840M/4096M gpus 0/0")
	n1, n4 := c.Nodes[0], c.Nodes[3]
	if !n1.BusyUntil.Equal(jobtest.ThatDay(t, "21:46:28")) || !n4.FreeUntil.Equal(jobtest.ThatDay(t, "21:46:28")) || n4.For != "job 4" || !n4.BusyUntil.Equal(jobtest.ThatDay(t, "21:37:52")) {
		t.Errorf("n1 busy until %v, n4 free until %v for %q", n1.BusyUntil, n4.FreeUntil, n4.For)
	}
	if p := c.Planned["16"]; !p.Start.Equal(jobtest.ThatDay(t, "22:16:00")) || !reflect.DeepEqual(p.Nodes, []string{"n4"}) {
		t.Errorf("plan of job 16 = %+v; want 22:16:00 on n4", p)
	}
}

func FuzzSlurmNodes(f *testing.F) {
	for _, file := range []string{"scontrol-node.txt", "scontrol-part.txt", "scontrol-res.txt", "squeue-O.txt", "test-only.txt", "sacct.txt"} {
		f.Add(jobtest.Recorded(f, file))
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, s string) {
		c := &capacity.Snapshot{}
		c.Nodes = nodes(s)
		c.Nodes = append(c.Nodes, capacity.Node{Name: "n1", CPUs: 4, FreeCPUs: 4})
		at := capacity.NodeIndex(c.Nodes)
		readPartitions(c, s)
		readReservations(c, at, s)
		readJobs(c, at, s, now)
		start(s, now)
		used(map[string]capacity.Usage{}, s)
		jobtest.CheckFree(t, c, now)
	})
}

// many is a listing of 10,000 nodes and of the 20,000 jobs on them.
func many() (nodes, jobs string) {
	var n, j strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&n, "NodeName=n%05d Arch=x86_64 CoresPerSocket=64 CPUAlloc=%d CPUEfctv=128 CPUTot=128 CPULoad=11.18 AvailableFeatures=(null) Gres=gpu:a100:4(S:0-1) GresUsed=gpu:a100:1(IDX:0) NodeAddr=10.0.0.1 Version=23.11 OS=Linux 5.14.0 #1 SMP @0 RealMemory=515000 AllocMem=100000 FreeMem=19350 State=MIXED Partitions=cpu,spare BootTime=2026-11-20T23:42:53 CfgTRES=cpu=128,mem=515000M,billing=4 AllocTRES=cpu=2,mem=512M\n", i, 64+i%60)
		for k := range 2 {
			fmt.Fprintf(&j, "%d|RUNNING|2026-11-21T00:00:00|2096-11-21T%02d:%02d:%02d|n%05d|(null)|cpu=%d,mem=50000M,node=1,billing=1|1|\n", 2*i+k, i/3600%24, i/60%60, i%60, i, (64+i%60)/2)
		}
	}
	return n.String(), j.String()
}

// BenchmarkNodes parses 10,000 nodes with 20,000 jobs, and computes when a job on
// all processors of 5,000 nodes could start.
func BenchmarkNodes(b *testing.B) {
	listing, jobs := many()
	now := time.Now()
	for b.Loop() {
		c := &capacity.Snapshot{Nodes: nodes(listing)}
		readJobs(c, capacity.NodeIndex(c.Nodes), jobs, now)
		for i := range c.Nodes {
			c.Nodes[i].Settle(now)
		}
		f := capacity.NewNeed(&job.Job{Nodes: 5000, CPUs: 128, Time: time.Hour}, 0, adjust).Fit(c, "", now)
		if f.When != capacity.Later || f.Start.IsZero() || len(f.Nodes) != 5000 {
			b.Fatalf("%s, %v, %d nodes", f.When, f.Start, len(f.Nodes))
		}
	}
}
