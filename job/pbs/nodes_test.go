package pbs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/quantity"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

func TestPBSNodes(t *testing.T) {
	nodes := nodes(jobtest.Recorded(t, "pbsnodes-a.txt"))
	testenv.Check(t, holds(capacity.NodeIndex(nodes), strings.NewReader(jobtest.Recorded(t, "qstat-f.json"))))
	if h := nodes[0].Holds; len(h) != 1 || h[0].CPUs != 2 || h[0].GPUs != 2 || !h[0].To.IsZero() {
		t.Errorf("n1 has holds %+v", h)
	}
	for i := range nodes {
		nodes[i].Settle(time.Now())
	}
	jobtest.CheckNodes(t, nodes, "n1 full cpus 0/4 memory 24105M/24105M gpus 2/4", "n2 idle cpus 4/4 memory 24105M/24105M gpus 4/4")
	if !nodes[0].NoLimit {
		t.Error("NoLimit of n1 is false, but its job has no walltime")
	}
	// The JSON that was recorded at the same time has the same resources.
	var list struct {
		Nodes map[string]struct {
			State     string         `json:"state"`
			Available map[string]any `json:"resources_available"`
			Assigned  map[string]any `json:"resources_assigned"`
		} `json:"nodes"`
	}
	testenv.Check(t, json.Unmarshal([]byte(jobtest.Recorded(t, "pbsnodes.json")), &list))
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
	nodes := nodes(list)
	for i := range nodes {
		nodes[i].Settle(time.Now())
	}
	jobtest.CheckNodes(t, nodes, "a off cpus 4/4 memory 0M/0M gpus 0/0", "b full cpus 0/4 memory 0M/0M gpus 0/0", "c off cpus 0/0 memory 0M/0M gpus 0/0")
	if nodes[0].Reason != "offline: bad disk" || nodes[1].Reason != "" || nodes[2].Reason != "down,offline" {
		t.Errorf("reasons are %q, %q, %q", nodes[0].Reason, nodes[1].Reason, nodes[2].Reason)
	}
}

func FuzzPBSNodes(f *testing.F) {
	for _, file := range []string{"pbsnodes-a.txt", "qstat-f.json"} {
		f.Add(jobtest.Recorded(f, file))
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, s string) {
		c := &capacity.Snapshot{}
		c.Nodes = nodes(s)
		c.Nodes = append(c.Nodes, capacity.Node{Name: "n1", CPUs: 4, FreeCPUs: 4})
		at := capacity.NodeIndex(c.Nodes)
		_ = holds(at, bytes.NewReader([]byte(s)))
		used(s)
		jobtest.CheckFree(t, c, now)
	})
}
