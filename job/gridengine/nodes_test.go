package gridengine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

func TestGridEngineNodes(t *testing.T) {
	nodes, err := hosts(strings.NewReader(jobtest.Recorded(t, "qhost-qjF.xml")), "")
	testenv.Check(t, err)
	at := capacity.NodeIndex(nodes)
	testenv.Check(t, holds(at, strings.NewReader(jobtest.Recorded(t, "qstat-gt.xml")), ""))
	if h := at["n1"].Holds; len(h) != 1 || h[0].CPUs != 2 || h[0].GPUs != 2 || !h[0].To.Equal(jobtest.ThatDay(t, "21:29:35")) {
		t.Errorf("n1 has holds %+v", h)
	}
	for i := range nodes {
		nodes[i].Settle(jobtest.ThatDay(t, "21:27:00"))
	}
	jobtest.CheckNodes(t, nodes, // 14 and 4 slots of the queue "spare" are taken; qhost reports the free GPUs
		"n1 shared cpus 50/64 memory 20891M/24105M gpus 4/6 all.q,gpu,spare,cpu",
		"n2 shared cpus 60/64 memory 20888M/24105M gpus 4/4 all.q,gpu,spare,cpu")
	one, err := hosts(strings.NewReader(jobtest.Recorded(t, "qhost-qjF.xml")), "spare")
	if err != nil || one[0].FreeCPUs != 2 || one[0].CPUs != 16 {
		t.Errorf("n1 in queue spare: %+v, %v", one, err)
	}
	// The same jobs in a listing without -g t: a row for each task.
	if err := holds(capacity.NodeIndex(one), strings.NewReader(jobtest.Recorded(t, "qstat-r-gd.xml")), "spare"); err != nil || len(one[0].Holds) != 14 {
		t.Errorf("n1 has %d holds; want 14, %v", len(one[0].Holds), err)
	}
}

// TestGridEngineClosed covers queues that accept no jobs, and slots that the host itself counts.
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
		nodes, err := hosts(strings.NewReader(host(c.left, c.states)), "")
		testenv.Check(t, err)
		nodes[0].Settle(time.Now())
		jobtest.CheckNodes(t, nodes, c.want)
	}
}

func FuzzGridEngineNodes(f *testing.F) {
	for _, file := range []string{"qhost-qjF.xml", "qstat-gt.xml"} {
		f.Add(jobtest.Recorded(f, file))
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, s string) {
		c := &capacity.Snapshot{}
		if more, err := hosts(strings.NewReader(s), ""); err == nil {
			c.Nodes = more
		}
		c.Nodes = append(c.Nodes, capacity.Node{Name: "n1", CPUs: 4, FreeCPUs: 4})
		at := capacity.NodeIndex(c.Nodes)
		_ = holds(at, strings.NewReader(s), "")
		jobtest.CheckFree(t, c, now)
	})
}
