package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"hpcc/job/quantity"
)

// nodes asks for the nodes in the text that every PBS writes, and for the jobs
// that run in JSON.
func (pbs) nodes(ctx context.Context, _ string) (*cluster, error) {
	out, err := call(ctx, "/", "pbsnodes", "-a", "-v")
	if err != nil {
		return nil, fmt.Errorf("asking PBS for its nodes: %w", words(out, err))
	}
	c := &cluster{nodes: pbsNodes(string(out[:min(len(out), maxListing)]))}
	out, err = call(ctx, "/", "qstat", "-f", "-t", "-F", "json")
	if err == nil {
		err = pbsHolds(nodeIndex(c.nodes), bytes.NewReader(out))
	} else {
		err = words(out, err)
	}
	if err != nil {
		c.notes = append(c.notes, "when jobs end is not known: asking PBS for them: "+err.Error())
	}
	return c, nil
}

// pbsNodes reads "pbsnodes -a": a name at the margin, below it attributes.
func pbsNodes(list string) []Node {
	var nodes []Node
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		if line[0] != ' ' && line[0] != '\t' {
			nodes = append(nodes, Node{Name: line})
			continue
		}
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || len(nodes) == 0 {
			continue
		}
		nodes[len(nodes)-1].pbsAttribute(key, value)
	}
	for i := range nodes {
		n := &nodes[i]
		n.FreeCPUs, n.FreeMemory, n.FreeGPUs = n.CPUs+n.FreeCPUs, n.Memory+n.FreeMemory, n.GPUs+n.FreeGPUs
		if n.State != Off {
			n.Reason = ""
		}
		if n.State == Full { // as a whole
			n.FreeCPUs, n.FreeGPUs, n.FreeMemory = 0, 0, 0
		}
	}
	return nodes
}

// pbsAttribute takes what one attribute of a node says; what is given out counts
// down from zero.
func (n *Node) pbsAttribute(key, value string) {
	switch key {
	case "state":
		n.State = pbsState(value)
		if n.State == Off {
			n.Reason = strings.TrimSuffix(value+": "+n.Reason, ": ")
		}
	case "comment":
		if n.State == Off {
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

// pbsState is what a state of PBS means for new jobs.
func pbsState(s string) string {
	state := ""
	for part := range strings.SplitSeq(s, ",") {
		switch strings.TrimSpace(part) {
		case "free", "job-busy":
		case "job-exclusive", "resv-exclusive":
			state = Full
		default: // down, offline, unknown, stale, provisioning, sleep, maintenance, busy …
			return Off
		}
	}
	return state
}

// pbsHolds reads the JSON of "qstat -f -t": where jobs run, and until when.
func pbsHolds(at map[string]*Node, r io.Reader) error {
	var list struct {
		Jobs map[string]struct {
			State string `json:"job_state"`
			Where string `json:"exec_vnode"` // (n1:ncpus=2:ngpus=2)+(n2:ncpus=2)
			Start string `json:"stime"`
			Asks  struct {
				Time string `json:"walltime"`
			} `json:"Resource_List"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(r, maxListing)).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading what qstat said: %w", err)
	}
	for id, j := range list.Jobs {
		if j.State != "R" && j.State != "E" {
			continue
		}
		h := hold{by: "job " + id}
		if start, err := time.ParseInLocation(time.ANSIC, j.Start, time.Local); err == nil {
			h.from = start
			if limit, err := quantity.ParseTime(j.Asks.Time); err == nil {
				h.to = start.Add(limit)
			}
		}
		for name, part := range pbsParts(j.Where) {
			if n := at[name]; n != nil {
				part.from, part.to, part.by = h.from, h.to, h.by
				n.holds = append(n.holds, part)
			}
		}
	}
	return nil
}

// pbsParts reads exec_vnode: what a job has of each node.
func pbsParts(where string) map[string]hold {
	parts := map[string]hold{}
	for chunk := range strings.SplitSeq(strings.NewReplacer("(", "", ")", "").Replace(where), "+") {
		f := strings.Split(chunk, ":")
		h := parts[f[0]]
		for _, r := range f[1:] {
			k, v, _ := strings.Cut(r, "=")
			switch k {
			case "ncpus":
				h.cpus += quantity.Count(v)
			case "ngpus":
				h.gpus += quantity.Count(v)
			case "mem":
				h.memory += quantity.Bytes(v, 1)
			}
		}
		parts[f[0]] = h
	}
	delete(parts, "")
	return parts
}
