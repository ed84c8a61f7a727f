package pbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Nodes lists the nodes from the text format of pbsnodes, which every PBS supports, and the running jobs from
// JSON.
func (System) Nodes(ctx context.Context, _ string) (*capacity.Snapshot, error) {
	c, err := listNodes(ctx)
	if err != nil {
		return nil, err
	}
	out, err := invoke.Call(ctx, "/", "qstat", "-f", "-t", "-F", "json")
	if err == nil {
		err = holds(capacity.NodeIndex(c.Nodes), bytes.NewReader(out))
	} else {
		err = invoke.Error(out, err)
	}
	if err != nil {
		c.Notes = append(c.Notes, "the end times of jobs are unknown: querying PBS for jobs: "+err.Error())
	}
	return c, nil
}

// listNodes lists the nodes.
func listNodes(ctx context.Context) (*capacity.Snapshot, error) {
	out, err := invoke.Call(ctx, "/", "pbsnodes", "-a", "-v")
	if err != nil {
		return nil, fmt.Errorf("querying PBS for nodes: %w", invoke.Error(out, err))
	}
	return &capacity.Snapshot{Nodes: nodes(string(out[:min(len(out), invoke.MaxListing)]))}, nil
}

// never reports a job that no nodes could run, which PBS would let wait. It is not sure on a site with vnodes,
// whose names contain a bracket, because PBS can spread a chunk over those of a host.
func never(ctx context.Context, j *job.Job) (why string, sure bool) {
	c, err := listNodes(ctx)
	if err != nil {
		return "", false
	}
	vnodes := slices.ContainsFunc(c.Nodes, func(n capacity.Node) bool { return strings.Contains(n.Name, "[") })
	return capacity.NewNeed(j, 0, nil).Never(c, j.Queue), !vnodes
}

// nodes parses "pbsnodes -a": a name at the margin, with indented attributes.
func nodes(list string) []capacity.Node {
	var nodes []capacity.Node
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		if line[0] != ' ' && line[0] != '\t' {
			nodes = append(nodes, capacity.Node{Name: line})
			continue
		}
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || len(nodes) == 0 {
			continue
		}
		readAttribute(&nodes[len(nodes)-1], key, value)
	}
	for i := range nodes {
		n := &nodes[i] // so far the free resources are the allocated ones, negated
		n.FreeCPUs, n.FreeMemory, n.FreeGPUs = n.CPUs+n.FreeCPUs, n.Memory+n.FreeMemory, n.GPUs+n.FreeGPUs
		if n.State != capacity.Off {
			n.Reason = ""
		}
		if n.State == capacity.Full { // a job or reservation has the node exclusively
			n.FreeCPUs, n.FreeGPUs, n.FreeMemory = 0, 0, 0
		}
	}
	return nodes
}

// readAttribute stores one attribute of a node. It stores allocated resources as negative free ones, because
// the total may follow.
func readAttribute(n *capacity.Node, key, value string) {
	switch key {
	case "state":
		n.State = state(value)
		if n.State == capacity.Off {
			n.Reason = strings.TrimSuffix(value+": "+n.Reason, ": ")
		}
	case "comment":
		if n.State == capacity.Off {
			n.Reason += ": " + value
		} else {
			n.Reason = value
		}
	case "resources_available.ncpus":
		n.CPUs = quantity.Count(value)
	case "resources_available.mem":
		n.Memory = quantity.Bytes(value, 1)
	case "resources_available.ngpus":
		n.GPUs = quantity.Count(value)
	case "resources_available.gpu_type", "resources_available.gpu_model":
		n.GPUType = value
	case "resources_available.Qlist", "queue":
		n.Queues = strings.Split(value, ",")
	case "resources_assigned.ncpus":
		n.FreeCPUs = -quantity.Count(value)
	case "resources_assigned.mem":
		n.FreeMemory = -quantity.Bytes(value, 1)
	case "resources_assigned.ngpus":
		n.FreeGPUs = -quantity.Count(value)
	}
}

// state maps the states of a node in PBS to [capacity.Full], [capacity.Off] or "".
func state(s string) string {
	state := ""
	for part := range strings.SplitSeq(s, ",") {
		switch strings.TrimSpace(part) {
		case "free", "job-busy":
		case "job-exclusive", "resv-exclusive":
			state = capacity.Full
		default: // down, offline, unknown, stale, provisioning, sleep, maintenance, busy …
			return capacity.Off
		}
	}
	return state
}

// holds adds the running jobs in the JSON of "qstat -f -t" to their nodes, with their end times.
func holds(at map[string]*capacity.Node, r io.Reader) error {
	var list struct {
		Jobs map[string]struct {
			State   string `json:"job_state"`
			Where   string `json:"exec_vnode"` // (n1:ncpus=2:ngpus=2)+(n2:ncpus=2)
			Start   string `json:"stime"`
			Request struct {
				Time string `json:"walltime"`
			} `json:"Resource_List"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(r, invoke.MaxListing)).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the output of qstat: %w", err)
	}
	for _, j := range list.Jobs {
		if j.State != "R" && j.State != "E" {
			continue
		}
		var end time.Time
		start := ansic(j.Start)
		if limit, err := quantity.ParseTime(j.Request.Time); err == nil && !start.IsZero() {
			end = start.Add(limit)
		}
		for name, part := range parts(j.Where) {
			if n := at[name]; n != nil {
				part.To = end
				n.Holds = append(n.Holds, part)
			}
		}
	}
	return nil
}

// parts parses exec_vnode and returns a job's resources on each node.
func parts(where string) map[string]capacity.Hold {
	parts := map[string]capacity.Hold{}
	for chunk := range strings.SplitSeq(strings.NewReplacer("(", "", ")", "").Replace(where), "+") {
		f := strings.Split(chunk, ":")
		h := parts[f[0]]
		for _, r := range f[1:] {
			k, v, _ := strings.Cut(r, "=")
			switch k {
			case "ncpus":
				h.CPUs += quantity.Count(v)
			case "ngpus":
				h.GPUs += quantity.Count(v)
			case "mem":
				h.Memory += quantity.Bytes(v, 1)
			}
		}
		parts[f[0]] = h
	}
	delete(parts, "")
	return parts
}
