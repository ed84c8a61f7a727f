package kube

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/text"
)

// nodeState is what hpcc reads of a Node.
type nodeState struct {
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
		Conditions  []condition
	}
}

type taker struct {
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

// Nodes returns the nodes and the requests of all pods on them. Not every user has the rights for that.
func (k System) Nodes(ctx context.Context, _ string) (*capacity.Snapshot, error) {
	api, err := k.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	list, err := listOf[nodeState](ctx, api, "/api/v1/nodes", "")
	if err != nil {
		return nil, fmt.Errorf("querying %s for nodes: %w", title(k.Target), err)
	}
	c := &capacity.Snapshot{}
	takers, err := listOf[taker](ctx, api, "/api/v1/pods", "")
	if err != nil {
		c.Notes = append(c.Notes, fmt.Sprintf("free resources are unknown: %v", err))
	}
	for i := range list {
		c.Nodes = append(c.Nodes, list[i].node(takers, err == nil))
	}
	return c, nil
}

// node returns the resources of a node, in total and free.
func (n *nodeState) node(takers []taker, known bool) capacity.Node {
	cpus, _ := parseQuantity(n.Status.Allocatable["cpu"])
	memory, _ := parseQuantity(n.Status.Allocatable["memory"])
	resource, model := resourceGPU, n.Metadata.Labels[labelGPU]
	if _, amd := n.Status.Allocatable[resourceAMD]; amd && model == "" {
		resource, model = resourceAMD, typeAMD
	}
	gpus, _ := parseQuantity(n.Status.Allocatable[resource])
	out := capacity.Node{Name: n.Metadata.Name, State: capacity.Idle, CPUs: int(cpus), Memory: int64(memory),
		GPUs: int(gpus), GPUType: model}
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
		out.FreeCPUs, out.FreeMemory, out.FreeGPUs = int(math.Floor(cpus-used["cpu"]+1e-9)), int64(memory-used["memory"]),
			int(gpus-used[resource])
	}
	switch {
	case n.off() != "":
		out.State, out.Reason = capacity.Off, n.off()
	case known && out.FreeCPUs <= 0:
		out.State = capacity.Full
	case out.Running > 0:
		out.State = capacity.Shared
	}
	return out
}

// off returns why a node does not accept pods, or "".
func (n *nodeState) off() string {
	if n.Spec.Unschedulable {
		return "cordoned"
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			return "not ready: " + text.OneLine(c.Message)
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != "PreferNoSchedule" && t.Key != resourceGPU && t.Key != resourceAMD {
			return "reserved: " + t.Key
		}
	}
	return ""
}

// parseQuantity parses an amount (resource.Quantity): 500m, 2, 64Gi, 1e3.
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
