package lsf

import (
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/testdata/helpers/jobtest"
)

func TestLSFNodes(t *testing.T) {
	nodes := hosts(jobtest.Recorded(t, "bhosts-w.txt"))
	at := capacity.NodeIndex(nodes)
	static(at, jobtest.Recorded(t, "lshosts.txt"))
	load(at, jobtest.Recorded(t, "lsload-l.txt"))
	queues(at, jobtest.Recorded(t, "bqueues-l.txt"))
	for i := range nodes {
		nodes[i].Settle(time.Now())
	}
	jobtest.CheckNodes(t, nodes,
		"h off cpus 0/0 memory 20480M/24105M gpus 0/0 normal,spare",
		"n1 full cpus 0/4 memory 20480M/24105M gpus 0/0 normal,spare",
		"n2 full cpus 0/4 memory 20480M/24105M gpus 0/0 normal,spare")
}

// TestLSFDocumented parses the examples of IBM's manuals bhosts(1) and bjobs(1) for output
// that volclava, the source of the recordings, does not have.
func TestLSFDocumented(t *testing.T) {
	nodes := hosts("HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\na ok - - 2 2 0 0 0\nb closed_Adm - 8 0 0 0 0 0\nc ok - 8 3 3 0 0 1\n")
	at := capacity.NodeIndex(nodes)
	static(at, "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\na X86_64 Intel 60.0 16 64G 4G Yes (mg)\n")
	gpus(at, "HOST_NAME             ID       MODEL     MUSED      MRSV  NJOBS    RUN   SUSP    RSV\na                      0  TeslaK80...      0M      0M      1      1      0      0\n                       1  TeslaK80...      0M      0M      0      0      0      0\nc                      0   TeslaV100      0M      0M      0      0      0      0\n")
	holds(at, "2*a:3*c|1:30 L\nc|-\n")
	for i := range nodes {
		nodes[i].Settle(time.Now())
	}
	jobtest.CheckNodes(t, nodes,
		"a shared cpus 14/16 memory 0M/65536M gpus 1/2 TeslaK80",
		"b off cpus 8/8 memory 0M/0M gpus 0/0",
		"c shared cpus 4/8 memory 0M/0M gpus 1/1 TeslaV100")
	if a, c := at["a"].Holds, at["c"].Holds; len(a) != 1 || a[0].CPUs != 2 || len(c) != 2 || c[0].CPUs != 3 || c[1].CPUs != 1 {
		t.Errorf("a has holds %+v, and c %+v", a, c)
	}
	if d := time.Until(at["a"].BusyUntil); d < 89*time.Minute || d > 90*time.Minute || !at["c"].NoLimit {
		t.Errorf("a is busy for another %v, NoLimit of c is %v; want 1h30m, true", d, at["c"].NoLimit)
	}
}

func FuzzLSFNodes(f *testing.F) {
	for _, file := range []string{"bhosts-w.txt", "lshosts.txt", "lsload-l.txt", "bqueues-l.txt"} {
		f.Add(jobtest.Recorded(f, file))
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, s string) {
		c := &capacity.Snapshot{}
		c.Nodes = hosts(s)
		c.Nodes = append(c.Nodes, capacity.Node{Name: "n1", CPUs: 4, FreeCPUs: 4})
		at := capacity.NodeIndex(c.Nodes)
		static(at, s)
		load(at, s)
		queues(at, s)
		gpus(at, s)
		holds(at, s)
		used(s)
		jobtest.CheckFree(t, c, now)
	})
}

// TestVolclava parses the answers of a cluster of testdata/clusters/lsf/up.sh with an array.
func TestVolclava(t *testing.T) {
	nodes := hosts(jobtest.Recorded(t, volclava+"bhosts-w.txt"))
	queues(capacity.NodeIndex(nodes), jobtest.Recorded(t, volclava+"bqueues-l.txt"))
	jobtest.CheckNodes(t, nodes,
		"n2 cpus 8/8 memory 0M/0M gpus 0/0 normal,spare",
		"n1 cpus 4/8 memory 0M/0M gpus 0/0 normal,spare")
	if s := parseQueue(jobtest.Recorded(t, volclava+"bjobs-w.txt"))["161"]; s.Running != 2 || s.Waiting != 3 {
		t.Errorf("the array has %d running and %d waiting tasks; want 2 and 3", s.Running, s.Waiting)
	}
}
