package slurm

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// listings are the commands that list the nodes, in formats that 22.05 and later share.
var listings = [][]string{
	{"scontrol", "--all", "--details", "--oneliner", "show", "node"},
	listPartitions,
	{"scontrol", "--all", "--oneliner", "show", "reservation"},
	{"squeue", "--all", "-h", "-t", "PENDING,RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT", "-O",
		"ArrayJobID:|,State:|,StartTime:|,EndTime:|,NodeList:|,SchedNodes:|,tres-alloc:|,NumNodes:|"},
}

var listPartitions = []string{"scontrol", "--all", "--oneliner", "show", "partition"}

// Nodes returns the resources of the nodes, in total and free.
func (System) Nodes(ctx context.Context, _ string) (*capacity.Snapshot, error) {
	outputs := make([]string, len(listings))
	errs := make([]error, len(listings))
	var all sync.WaitGroup
	for i, l := range listings {
		all.Go(func() {
			out, err := invoke.Call(ctx, "/", l[0], l[1:]...)
			if err != nil {
				errs[i] = fmt.Errorf("querying Slurm for nodes: %w", readError(out, err))
			}
			outputs[i] = string(out[:min(len(out), invoke.MaxListing)])
		})
	}
	all.Wait()
	if errs[0] != nil {
		return nil, errs[0]
	}
	c := &capacity.Snapshot{Nodes: nodes(outputs[0])}
	for _, err := range errs[1:] {
		if err != nil {
			c.Notes = append(c.Notes, err.Error())
		}
	}
	readPartitions(c, outputs[1])
	at := capacity.NodeIndex(c.Nodes)
	readReservations(c, at, outputs[2])
	readJobs(c, at, outputs[3], time.Now())
	return c, nil
}

// fields splits a line of "scontrol --oneliner" into its fields. A value may contain blanks; the next
// field starts at a word that looks like a key.
func fields(line string, want func(key, value string)) {
	key, value := "", ""
	for line != "" {
		word, rest, _ := strings.Cut(line, " ")
		line = rest
		if k, v, ok := strings.Cut(word, "="); ok && isKey(k) {
			want(key, value)
			key, value = k, v
		} else if word != "" {
			value += " " + word
		}
	}
	want(key, value)
}

// isKey reports whether a word is a key of scontrol.
func isKey(s string) bool {
	for i, r := range s {
		if !((r >= 'A' && r <= 'Z') || (i > 0 && ((r >= 'a' && r <= 'z') || r == '/' || r == ':' || r == '_'))) {
			return false
		}
	}
	return s != ""
}

// nodes parses "scontrol show node".
func nodes(list string) []capacity.Node {
	var nodes []capacity.Node
	for line := range strings.Lines(list) {
		var n capacity.Node
		var used, allocated, state, reason string
		haveUsed := false
		fields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "NodeName":
				n.Name = v
			case "CPUTot":
				n.CPUs = quantity.Count(v)
			case "CPUEfctv": // without the processors reserved for the system
				n.CPUs = quantity.Count(v)
			case "CPUAlloc":
				n.FreeCPUs = -quantity.Count(v)
			case "RealMemory":
				n.Memory = quantity.Bytes(v, 1<<20)
			case "AllocMem":
				n.FreeMemory = -quantity.Bytes(v, 1<<20)
			case "Gres":
				n.GPUs, n.GPUType = gres(v)
			case "GresUsed":
				used, haveUsed = v, true
			case "AllocTRES":
				allocated = v
			case "State":
				state = v
			case "Reason":
				reason = v
			case "Partitions":
				n.Queues = strings.Split(v, ",")
			}
		})
		if n.Name == "" {
			continue
		}
		n.FreeCPUs, n.FreeMemory = n.CPUs+n.FreeCPUs, n.Memory+n.FreeMemory
		taken := tres(allocated).GPUs
		if haveUsed {
			taken, _ = gres(used)
		}
		n.FreeGPUs = n.GPUs - taken
		if off(state) {
			n.State, n.Reason = capacity.Off, strings.TrimSpace(strings.ToLower(state)+" "+reason)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// off reports whether a node in a state accepts no jobs (scontrol(1), NODE STATE). A powered-down cloud
// node does: Slurm powers it up for a job.
func off(state string) bool {
	if strings.HasSuffix(state, "*") { // does not respond
		return true
	}
	for part := range strings.SplitSeq(strings.TrimRight(state, "*~#!%$@^-"), "+") {
		switch part {
		case "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "ERROR",
			"MAINTENANCE", "MAINT", "NOT_RESPONDING",
			"REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN", "INVAL", "INVALID_REG", "PERFCTRS", "BLOCKED":
			return true
		}
	}
	return false
}

// gres counts the GPUs in a list of generic resources: gpu:a100:4(S:0-1),
// gpu:2, gpu:fake:2(IDX:0-1), shard:8.
func gres(gres string) (n int, kind string) {
	var kinds []string
	for gres != "" {
		end, depth := len(gres), 0
		for i, r := range gres {
			if r == '(' {
				depth++
			} else if r == ')' {
				depth--
			} else if r == ',' && depth == 0 {
				end = i
				break
			}
		}
		one, _, _ := strings.Cut(gres[:end], "(")
		gres = strings.TrimPrefix(gres[end:], ",")
		f := strings.Split(one, ":")
		if f[0] != "gpu" || len(f) < 2 {
			continue
		}
		n = min(n+quantity.Count(f[len(f)-1]), 1<<20)
		if len(f) > 2 {
			kinds = append(kinds, f[1])
		}
	}
	return n, strings.Join(kinds, ",")
}

// tres parses the trackable resources of a job or node:
// cpu=4,mem=1G,node=1,gres/gpu=2,gres/gpu:a100=2.
func tres(s string) (h capacity.Hold) {
	kinds := 0
	for f := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(f, "=")
		switch {
		case k == "cpu":
			h.CPUs = quantity.Count(v)
		case k == "mem":
			h.Memory = quantity.Bytes(v, 1<<20)
		case k == "gres/gpu":
			h.GPUs = quantity.Count(v)
		case strings.HasPrefix(k, "gres/gpu:"):
			kinds = min(kinds+quantity.Count(v), 1<<20)
		}
	}
	h.GPUs = max(h.GPUs, kinds)
	return h
}

// parseTime parses a time in the format of Slurm's commands. It returns the zero time for other text.
func parseTime(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}

// parseLimit parses a time limit, such as 1-00:00:00 or 00:30:00. It returns 0 for UNLIMITED.
func parseLimit(s string) time.Duration {
	d, err := quantity.ParseTime(s)
	if err != nil {
		return 0
	}
	return d
}

// readPartitions adds the default partition and the limits from "scontrol show partition". It turns
// nodes off that have no partition in the state UP.
func readPartitions(c *capacity.Snapshot, list string) {
	c.Limits, c.MaxNodes, c.Usual = map[string]time.Duration{}, map[string]int{}, map[string]time.Duration{}
	up := map[string]bool{}
	for line := range strings.Lines(list) {
		name := ""
		fields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "PartitionName":
				name = v
			case "Default":
				if v == "YES" {
					c.Queue = name
				}
			case "MaxTime":
				c.Limits[name] = parseLimit(v)
			case "MaxNodes":
				c.MaxNodes[name] = quantity.Count(v) // 0 for UNLIMITED
			case "DefaultTime":
				c.Usual[name] = parseLimit(v)
			case "State":
				up[name] = v == "UP"
			}
		})
		if c.Usual[name] == 0 {
			c.Usual[name] = c.Limits[name]
		}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		open := len(up) == 0 || len(n.Queues) == 0
		for _, q := range n.Queues {
			open = open || up[q]
		}
		if !open && n.State != capacity.Off {
			n.State, n.Reason = capacity.Off, "its partitions are not up"
		}
	}
}

// readReservations adds holds for the nodes in "scontrol show reservation". A reservation of some processors
// of a node counts for the full node, which is the usual case.
func readReservations(c *capacity.Snapshot, at map[string]*capacity.Node, list string) {
	for line := range strings.Lines(list) {
		h := capacity.Hold{FullNode: true}
		nodes := ""
		fields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "ReservationName":
				h.By = "reservation " + v
			case "StartTime":
				h.From = parseTime(v)
			case "EndTime":
				h.To = parseTime(v)
			case "Nodes":
				nodes = v
			}
		})
		if h.By == "" || h.From.IsZero() || (!h.To.IsZero() && h.To.Before(time.Now())) {
			continue
		}
		hold(c, at, nodes, h)
	}
}

// hold adds a hold to the nodes of a list, and returns their names. An unreadable list becomes a note.
func hold(c *capacity.Snapshot, at map[string]*capacity.Node, list string, h capacity.Hold) []string {
	if list == "(null)" || list == "" {
		return nil
	}
	names, err := expandHosts(list, 2*len(at)+64) // some nodes may be hidden
	if err != nil {
		c.Notes = append(c.Notes, err.Error())
	}
	for _, name := range names {
		if n := at[name]; n != nil {
			n.Holds = append(n.Holds, h)
		}
	}
	return names
}

// readJobs adds holds for the jobs in the output of squeue. A running job holds its resources until its time
// limit. A waiting job with a planned start holds full nodes from then on, because Slurm reserves them.
func readJobs(c *capacity.Snapshot, at map[string]*capacity.Node, list string, now time.Time) {
	c.Planned = map[string]capacity.Plan{}
	for f := range batch.Table(list, 8) {
		id, start := strings.TrimSpace(f[0]), parseTime(f[2])
		h := tres(f[6])
		count := max(quantity.Count(f[7]), 1)
		h.CPUs, h.Memory, h.GPUs = h.CPUs/count, h.Memory/int64(count), h.GPUs/count
		h.From, h.To, h.By = start, parseTime(f[3]), "job "+id
		if f[1] != "PENDING" {
			if h.From.IsZero() || h.From.After(now) { // it runs, even if the clocks differ
				h.From = now
			}
			hold(c, at, f[4], h)
			continue
		}
		if start.IsZero() {
			continue
		}
		h.FullNode = true
		if h.From.Before(now) { // about to start
			h.From = now.Add(time.Second)
		}
		names := hold(c, at, f[5], h)
		if p, ok := c.Planned[id]; !ok || start.Before(p.Start) {
			c.Planned[id] = capacity.Plan{Start: start, Nodes: names}
		}
	}
}
