package job

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What of a Node, and of a Pod that takes something of it, hpcc reads.
type kubeNode struct {
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Unschedulable bool
		Taints        []struct{ Key, Value, Effect string }
	}
	Status struct {
		Allocatable map[string]string
		Conditions  []kubeCondition
	}
}

type kubeTaker struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		NodeName              string
		ActiveDeadlineSeconds int64
		Containers            []struct {
			Resources struct{ Requests map[string]string }
		}
	}
	Status struct {
		Phase     string
		StartTime time.Time
	}
}

// nodes reads the nodes, and what all pods on them ask for. That needs rights which
// not every user of a cluster has.
func (k kubernetes) nodes(ctx context.Context, _ string) (*cluster, error) {
	api, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.close()
	list, err := kubeList[kubeNode](ctx, api, "/api/v1/nodes", "")
	if err != nil {
		return nil, fmt.Errorf("asking %s for its nodes: %w", k.target.Title(), err)
	}
	c := &cluster{}
	takers, err := kubeList[kubeTaker](ctx, api, "/api/v1/pods", "")
	if err != nil {
		c.notes = append(c.notes, fmt.Sprintf("what is free is not known: %v", err))
	}
	for i := range list {
		c.nodes = append(c.nodes, list[i].node(takers, err == nil))
	}
	return c, nil
}

// node is what a node has, and what is left of it.
func (n *kubeNode) node(takers []kubeTaker, known bool) Node {
	cpus, _ := parseQuantity(n.Status.Allocatable["cpu"])
	memory, _ := parseQuantity(n.Status.Allocatable["memory"])
	gpus, _ := parseQuantity(n.Status.Allocatable[resourceGPU])
	out := Node{Name: n.Metadata.Name, State: Idle, CPUs: int(cpus), Memory: int64(memory), GPUs: int(gpus), GPUType: n.Metadata.Labels[LabelGPU]}
	used := map[string]float64{}
	for _, t := range takers {
		if t.Spec.NodeName != n.Metadata.Name || t.Status.Phase == "Succeeded" || t.Status.Phase == "Failed" {
			continue
		}
		out.Running++
		for _, c := range t.Spec.Containers {
			for name, q := range c.Resources.Requests {
				v, _ := parseQuantity(q)
				used[name] += v
			}
		}
		if end := t.Status.StartTime.Add(time.Duration(t.Spec.ActiveDeadlineSeconds) * time.Second); t.Spec.ActiveDeadlineSeconds == 0 {
			out.NoLimit = true
		} else if end.After(out.BusyUntil) {
			out.BusyUntil = end
		}
	}
	if known {
		out.FreeCPUs, out.FreeMemory, out.FreeGPUs = int(math.Floor(cpus-used["cpu"]+1e-9)), int64(memory-used["memory"]), int(gpus-used[resourceGPU])
	}
	switch {
	case n.off() != "":
		out.State, out.Reason = Off, n.off()
	case known && out.FreeCPUs <= 0:
		out.State = Full
	case out.Running > 0:
		out.State = Shared
	}
	return out
}

// off is why a node takes no pods of ours; "" when it does.
func (n *kubeNode) off() string {
	if n.Spec.Unschedulable {
		return "cordoned"
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			return "not ready: " + strings.Join(strings.Fields(c.Message), " ")
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != "PreferNoSchedule" && t.Key != resourceGPU {
			return "kept for others: " + t.Key
		}
	}
	return ""
}

// parseQuantity reads an amount (resource.Quantity): 500m, 2, 64Gi, 1e3.
func parseQuantity(s string) (float64, bool) {
	units := []string{"m", "", "k", "M", "G", "T", "P", "E"}
	number := strings.TrimRight(s, "mkMGTPEKi")
	unit := s[len(number):]
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, false
	}
	if binary, ok := strings.CutSuffix(unit, "i"); ok {
		if binary == "K" {
			binary = "k"
		}
		return v * math.Pow(1024, float64(slices.Index(units, binary)-1)), slices.Contains(units[2:], binary)
	}
	return v * math.Pow(1000, float64(slices.Index(units, unit)-1)), slices.Contains(units, unit)
}
