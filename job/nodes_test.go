package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job/quantity"
)

func recorded(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// told is a node as a few words, to compare with.
func told(n *Node) string {
	return fmt.Sprintf("%s %s cpus %d/%d memory %dM/%dM gpus %d/%d %s %s", n.Name, n.State, n.FreeCPUs, n.CPUs, n.FreeMemory>>20, n.Memory>>20, n.FreeGPUs, n.GPUs, n.GPUType, strings.Join(n.Queues, ","))
}

func checkNodes(t *testing.T, nodes []Node, want ...string) {
	t.Helper()
	var got []string
	for i := range nodes {
		got = append(got, strings.Join(strings.Fields(told(&nodes[i])), " "))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("nodes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// slurmAt is the cluster of the recordings, as seen at a moment.
func slurmAt(t testing.TB) *cluster {
	c := &cluster{nodes: slurmNodes(recorded(t, "slurm/scontrol-node.txt"))}
	c.slurmPartitions(recorded(t, "slurm/scontrol-part.txt"))
	return c
}

func TestSlurmNodes(t *testing.T) {
	c := slurmAt(t)
	for i := range c.nodes {
		c.nodes[i].settle(time.Now())
	}
	checkNodes(t, c.nodes,
		"n1 shared cpus 2/4 memory 3584M/4096M gpus 0/0 cpu,spare",
		"n2 idle cpus 4/4 memory 4096M/4096M gpus 0/0 cpu,spare",
		"n3 shared cpus 3/4 memory 3840M/4096M gpus 2/4 fake cpu,spare,gpu",
		"n4 idle cpus 4/4 memory 4096M/4096M gpus 4/4 fake cpu,spare,gpu")
	if c.queue != "cpu" || c.limits["spare"] != 4*time.Hour || c.usual["gpu"] != 10*time.Minute {
		t.Errorf("partitions: default %q, spare %v at most, gpu %v usually", c.queue, c.limits["spare"], c.usual["gpu"])
	}
}

// TestSlurmStates: what state(scontrol show node) means for new jobs.
func TestSlurmStates(t *testing.T) {
	for state, off := range map[string]bool{
		"IDLE": false, "MIXED+CLOUD": false, "IDLE+PLANNED": false, "IDLE+CLOUD+POWERED_DOWN": false, "ALLOCATED": false, "IDLE~": false, "MIXED-": false,
		"DOWN": true, "IDLE+DRAIN": true, "DOWN*+DRAIN": true, "IDLE*": true, "ALLOCATED+MAINTENANCE+RESERVED": true, "UNKNOWN+NOT_RESPONDING": true, "FUTURE": true, "IDLE+REBOOT_REQUESTED": true,
	} {
		list := "NodeName=x CPUTot=4 State=" + state + " Reason=disk a=b is full [root@2026-11-21T00:00:00]\n"
		n := slurmNodes(list)
		if len(n) != 1 || (n[0].State == Off) != off {
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
		n, kind := slurmGRES(in)
		if got := fmt.Sprintf("%d %s", n, kind); got != want {
			t.Errorf("slurmGRES(%q) = %q; want %q", in, got, want)
		}
	}
}

// thatDay is a time of the recordings, of that day.
func thatDay(t testing.TB, clock string) time.Time {
	at := slurmWhen("2026-11-21T" + clock)
	if at.IsZero() {
		t.Fatalf("%q is no time", clock)
	}
	return at
}

// TestSlurmHolds reads jobs that run and wait, and a reservation, as recorded at
// 21:27:57 that day, when three nodes ran one job each and the fourth was idle.
func TestSlurmHolds(t *testing.T) {
	c := &cluster{}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.nodes = append(c.nodes, Node{Name: name, CPUs: 4, Memory: 4 << 30, FreeMemory: 3 << 30})
	}
	c.nodes[3].FreeCPUs, c.nodes[3].FreeMemory = 3, 4<<30-256<<20
	at, now := nodeIndex(c.nodes), thatDay(t, "21:27:57")
	c.slurmReservations(at, strings.ReplaceAll(recorded(t, "slurm/scontrol-res.txt"), "EndTime=2026", "EndTime=2096"))
	c.slurmJobs(at, recorded(t, "slurm/squeue-O.txt"), now)
	for i := range c.nodes {
		c.nodes[i].settle(now)
	}
	checkNodes(t, c.nodes,
		"n1 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n2 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n3 full cpus 0/4 memory 3072M/4096M gpus 0/0",
		"n4 shared cpus 3/4 memory 3840M/4096M gpus 0/0")
	n1, n4 := c.nodes[0], c.nodes[3]
	if !n1.BusyUntil.Equal(thatDay(t, "21:46:28")) || !n4.FreeUntil.Equal(thatDay(t, "21:46:28")) || n4.For != "job 4" || !n4.BusyUntil.Equal(thatDay(t, "21:37:52")) {
		t.Errorf("n1 busy until %v, n4 free until %v for %q", n1.BusyUntil, n4.FreeUntil, n4.For)
	}
	if p := c.planned["16"]; !p.start.Equal(thatDay(t, "22:16:00")) || !reflect.DeepEqual(p.nodes, []string{"n4"}) {
		t.Errorf("job 16 is planned %+v", p)
	}
}

func TestGridEngineNodes(t *testing.T) {
	nodes, err := gridEngineHosts(strings.NewReader(recorded(t, "gridengine/qhost-qjF.xml")), "")
	if err != nil {
		t.Fatal(err)
	}
	at := nodeIndex(nodes)
	if err := gridEngineHolds(at, strings.NewReader(recorded(t, "gridengine/qstat-gt.xml")), ""); err != nil {
		t.Fatal(err)
	}
	if h := at["n1"].holds; len(h) != 1 || h[0].cpus != 2 || h[0].gpus != 2 || h[0].to.Sub(h[0].from) != 3*time.Minute {
		t.Errorf("n1 is held by %+v", h)
	}
	for i := range nodes {
		nodes[i].settle(thatDay(t, "21:27:00"))
	}
	checkNodes(t, nodes, // 14 and 4 slots of the queue "spare" are taken; qhost tells of GPUs that are left
		"n1 shared cpus 50/64 memory 20891M/24105M gpus 4/6 all.q,gpu,spare,cpu",
		"n2 shared cpus 60/64 memory 20888M/24105M gpus 4/4 all.q,gpu,spare,cpu")
	one, err := gridEngineHosts(strings.NewReader(recorded(t, "gridengine/qhost-qjF.xml")), "spare")
	if err != nil || one[0].FreeCPUs != 2 || one[0].CPUs != 16 {
		t.Errorf("n1 in queue spare: %+v, %v", one, err)
	}
	// The same jobs in a listing without -g t: a row for each task.
	if err := gridEngineHolds(nodeIndex(one), strings.NewReader(recorded(t, "gridengine/qstat-r-gd.xml")), "spare"); err != nil || len(one[0].holds) != 14 {
		t.Errorf("n1 has %d holds; want 14, %v", len(one[0].holds), err)
	}
}

// TestGridEngineClosed: queues that take no jobs, and slots that the host counts.
func TestGridEngineClosed(t *testing.T) {
	host := func(left, states string) string {
		x := `<qhost><host name='a'><hostvalue name='mem_total'>-</hostvalue>`
		if left != "" {
			x += `<resourcevalue name='slots' dominance='hc'>` + left + `</resourcevalue>`
		}
		for i, s := range strings.Split(states, "/") {
			x += fmt.Sprintf(`<queue name='q%d'><queuevalue name='slots'>4</queuevalue><queuevalue name='slots_used'>1</queuevalue><queuevalue name='state_string'>%s</queuevalue></queue>`, i, s)
		}
		return x + `</host></qhost>`
	}
	for _, c := range []struct{ left, states, want string }{
		{"", "/", "a shared cpus 6/8 memory 0M/0M gpus 0/0 q0,q1"},
		{"2.000000", "/", "a shared cpus 2/4 memory 0M/0M gpus 0/0 q0,q1"},
		{"", "d/", "a shared cpus 3/4 memory 0M/0M gpus 0/0 q0,q1"},
		{"", "au/E", "a off cpus 6/8 memory 0M/0M gpus 0/0 q0,q1"},
	} {
		nodes, err := gridEngineHosts(strings.NewReader(host(c.left, c.states)), "")
		if err != nil {
			t.Fatal(err)
		}
		nodes[0].settle(time.Now())
		checkNodes(t, nodes, c.want)
	}
}

func TestPBSNodes(t *testing.T) {
	nodes := pbsNodes(recorded(t, "pbs/pbsnodes-a.txt"))
	if err := pbsHolds(nodeIndex(nodes), strings.NewReader(recorded(t, "pbs/qstat-f.json"))); err != nil {
		t.Fatal(err)
	}
	if h := nodes[0].holds; len(h) != 1 || h[0].cpus != 2 || h[0].gpus != 2 || !h[0].to.IsZero() || h[0].by != "job 12.h" {
		t.Errorf("n1 is held by %+v", h)
	}
	for i := range nodes {
		nodes[i].settle(time.Now())
	}
	checkNodes(t, nodes, "n1 full cpus 0/4 memory 24105M/24105M gpus 2/4", "n2 idle cpus 4/4 memory 24105M/24105M gpus 4/4")
	if !nodes[0].NoLimit {
		t.Error("n1: its job has no walltime, and that is not told")
	}
	// The JSON of the same moment says the same of what nodes have and what is assigned.
	var list struct {
		Nodes map[string]struct {
			State     string         `json:"state"`
			Available map[string]any `json:"resources_available"`
			Assigned  map[string]any `json:"resources_assigned"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(recorded(t, "pbs/pbsnodes.json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		j := list.Nodes[n.Name]
		used, _ := j.Assigned["ncpus"].(float64)
		if float64(n.CPUs) != j.Available["ncpus"] || float64(n.CPUs-n.FreeCPUs) != used || n.Memory != quantity.Bytes(fmt.Sprint(j.Available["mem"]), 1) {
			t.Errorf("%s: text and JSON differ: %+v, %+v", n.Name, n, j)
		}
	}
}

func TestPBSStates(t *testing.T) {
	list := "a\n     state = offline\n     comment = bad disk\n     resources_available.ncpus = 4\n\nb\n     state = job-exclusive\n     resources_available.ncpus = 4\n     comment = whatever\n\nc\n     state = down,offline\n"
	nodes := pbsNodes(list)
	for i := range nodes {
		nodes[i].settle(time.Now())
	}
	checkNodes(t, nodes, "a off cpus 4/4 memory 0M/0M gpus 0/0", "b full cpus 0/4 memory 0M/0M gpus 0/0", "c off cpus 0/0 memory 0M/0M gpus 0/0")
	if nodes[0].Reason != "offline: bad disk" || nodes[1].Reason != "" || nodes[2].Reason != "down,offline" {
		t.Errorf("reasons are %q, %q, %q", nodes[0].Reason, nodes[1].Reason, nodes[2].Reason)
	}
}

func TestLSFNodes(t *testing.T) {
	nodes := lsfHosts(recorded(t, "lsf/bhosts-w.txt"))
	at := nodeIndex(nodes)
	lsfStatic(at, recorded(t, "lsf/lshosts.txt"))
	lsfLoad(at, recorded(t, "lsf/lsload-l.txt"))
	lsfQueues(at, recorded(t, "lsf/bqueues-l.txt"))
	for i := range nodes {
		nodes[i].settle(time.Now())
	}
	checkNodes(t, nodes,
		"h off cpus 0/0 memory 20480M/24105M gpus 0/0 normal,spare",
		"n1 full cpus 0/4 memory 20480M/24105M gpus 0/0 normal,spare",
		"n2 full cpus 0/4 memory 20480M/24105M gpus 0/0 normal,spare")
}

// TestLSFDocumented holds what volclava does not have to the examples in the manual
// of IBM's bhosts(1) and bjobs(1).
func TestLSFDocumented(t *testing.T) {
	nodes := lsfHosts("HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\na ok - - 2 2 0 0 0\nb closed_Adm - 8 0 0 0 0 0\nc ok - 8 3 3 0 0 1\n")
	at := nodeIndex(nodes)
	lsfStatic(at, "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\na X86_64 Intel 60.0 16 64G 4G Yes (mg)\n")
	lsfGPUs(at, "HOST_NAME             ID       MODEL     MUSED      MRSV  NJOBS    RUN   SUSP    RSV\na                      0  TeslaK80...      0M      0M      1      1      0      0\n                       1  TeslaK80...      0M      0M      0      0      0      0\nc                      0   TeslaV100      0M      0M      0      0      0      0\n")
	lsfHolds(at, "17|2*a:3*c|1:30 L|125 second(s)\n18|c|-\n")
	for i := range nodes {
		nodes[i].settle(time.Now())
	}
	checkNodes(t, nodes,
		"a shared cpus 14/16 memory 0M/65536M gpus 1/2 TeslaK80",
		"b off cpus 8/8 memory 0M/0M gpus 0/0",
		"c shared cpus 4/8 memory 0M/0M gpus 1/1 TeslaV100")
	run := (&cluster{nodes: nodes}).running(time.Now())
	if len(run) != 1 || run[0].CPUs != 5 || time.Since(run[0].Start).Round(10*time.Second) != 2*time.Minute+10*time.Second {
		t.Errorf("what runs is %+v", run)
	}
	if d := time.Until(at["a"].BusyUntil); d < 89*time.Minute || d > 90*time.Minute || !at["c"].NoLimit {
		t.Errorf("a is busy for %v more, c has jobs without limit: %v", d, at["c"].NoLimit)
	}
}

func TestLocalNodes(t *testing.T) {
	list, notes, err := Nodes(t.Context(), Local, "")
	if err != nil || len(list) != 1 || len(notes) > 0 || list[0].CPUs < 1 || list[0].Memory < 1<<20 || list[0].FreeMemory > list[0].Memory {
		t.Errorf("this machine is %+v, %v, %v", list, notes, err)
	}
	all, free, kind := nvidiaGPUs("NVIDIA H200, 1, 143771\nNVIDIA H200, 70000, 143771\n")
	if all != 2 || free != 1 || kind != "NVIDIA H200" {
		t.Errorf("%d of %d GPUs of %q are free; want 1 of 2", free, all, kind)
	}
}

func FuzzNodes(f *testing.F) {
	for _, file := range []string{"slurm/scontrol-node.txt", "slurm/scontrol-part.txt", "slurm/scontrol-res.txt", "slurm/squeue-O.txt", "slurm/test-only.txt", "slurm/sacct.txt", "gridengine/qhost-qjF.xml", "gridengine/qstat-gt.xml",
		"pbs/pbsnodes-a.txt", "pbs/qstat-f.json", "lsf/bhosts-w.txt", "lsf/lshosts.txt", "lsf/lsload-l.txt", "lsf/bqueues-l.txt"} {
		f.Add(recorded(f, file))
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, s string) {
		c := &cluster{nodes: slurmNodes(s)}
		c.nodes = append(c.nodes, pbsNodes(s)...)
		c.nodes = append(c.nodes, lsfHosts(s)...)
		if more, err := gridEngineHosts(strings.NewReader(s), ""); err == nil {
			c.nodes = append(c.nodes, more...)
		}
		c.nodes = append(c.nodes, Node{Name: "n1", CPUs: 4, FreeCPUs: 4})
		at := nodeIndex(c.nodes)
		c.slurmPartitions(s)
		c.slurmReservations(at, s)
		c.slurmJobs(at, s, now)
		slurmStart(s, now)
		_ = gridEngineHolds(at, strings.NewReader(s), "")
		_ = pbsHolds(at, bytes.NewReader([]byte(s)))
		lsfStatic(at, s)
		lsfLoad(at, s)
		lsfQueues(at, s)
		lsfGPUs(at, s)
		lsfHolds(at, s)
		slurmUsed(map[string]usage{}, s)
		pbsUsed([]byte(s))
		lsfUsed(s)
		for i := range c.nodes {
			n := &c.nodes[i]
			n.settle(now)
			if (n.CPUs >= 0 && (n.FreeCPUs < 0 || n.FreeCPUs > n.CPUs)) || n.FreeMemory < 0 || n.FreeMemory > n.Memory || n.FreeGPUs < 0 || n.FreeGPUs > n.GPUs {
				t.Fatalf("more is free than there is: %+v", n)
			}
		}
		x := needs(&Job{CPUs: 2, Time: time.Hour}, 0, slurm{}.adjust)
		if f := x.fit(c, "", now); f.When == "" {
			t.Fatal("a job starts neither now nor later nor never")
		}
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

// BenchmarkNodes reads 10,000 nodes with 20,000 jobs, and finds out when a job of
// all processors of 5,000 nodes could start.
func BenchmarkNodes(b *testing.B) {
	nodes, jobs := many()
	now := time.Now()
	for b.Loop() {
		c := &cluster{nodes: slurmNodes(nodes)}
		c.slurmJobs(nodeIndex(c.nodes), jobs, now)
		for i := range c.nodes {
			c.nodes[i].settle(now)
		}
		f := needs(&Job{Nodes: 5000, CPUs: 128, Time: time.Hour}, 0, slurm{}.adjust).fit(c, "", now)
		if f.When != Later || f.Start.IsZero() || len(f.Nodes) != 5000 {
			b.Fatalf("%s, %v, %d nodes", f.When, f.Start, len(f.Nodes))
		}
	}
}
