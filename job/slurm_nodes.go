package job

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"hpcc/job/hostlist"
	"hpcc/job/quantity"
)

// slurmListings are what Slurm is asked for a picture of its nodes, in the formats
// that 22.05 and later have in common.
var slurmListings = [][]string{
	{"scontrol", "--all", "--details", "--oneliner", "show", "node"},
	{"scontrol", "--all", "--oneliner", "show", "partition"},
	{"scontrol", "--all", "--oneliner", "show", "reservation"},
	{"squeue", "--all", "-h", "-t", "PENDING,RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT", "-O", "ArrayJobID:|,State:|,StartTime:|,EndTime:|,NodeList:|,SchedNodes:|,tres-alloc:|,NumNodes:|"},
}

func (slurm) nodes(ctx context.Context, _ string) (*cluster, error) {
	said := make([]string, len(slurmListings))
	errs := make([]error, len(slurmListings))
	var all sync.WaitGroup
	for i, l := range slurmListings {
		all.Go(func() {
			out, err := call(ctx, "/", l[0], l[1:]...)
			if err != nil {
				errs[i] = fmt.Errorf("asking Slurm for its nodes: %w", slurmWords(out, err))
			}
			said[i] = string(out[:min(len(out), maxListing)])
		})
	}
	all.Wait()
	if errs[0] != nil {
		return nil, errs[0]
	}
	c := &cluster{nodes: slurmNodes(said[0])}
	for _, err := range errs[1:] {
		if err != nil {
			c.notes = append(c.notes, err.Error())
		}
	}
	c.slurmPartitions(said[1])
	at := nodeIndex(c.nodes)
	c.slurmReservations(at, said[2])
	c.slurmJobs(at, said[3], time.Now())
	return c, nil
}

// slurmFields splits a line of "scontrol --oneliner" into its fields. Values may
// have blanks, and what follows them is a field when it begins as one.
func slurmFields(line string, want func(key, value string)) {
	key, value := "", ""
	for line != "" {
		word, rest, _ := strings.Cut(line, " ")
		line = rest
		if k, v, ok := strings.Cut(word, "="); ok && slurmKey(k) {
			want(key, value)
			key, value = k, v
		} else if word != "" {
			value += " " + word
		}
	}
	want(key, value)
}

// slurmKey says whether a word is one that scontrol begins a field with.
func slurmKey(s string) bool {
	for i, r := range s {
		if !((r >= 'A' && r <= 'Z') || (i > 0 && ((r >= 'a' && r <= 'z') || r == '/' || r == ':' || r == '_'))) {
			return false
		}
	}
	return s != ""
}

// slurmNodes reads "scontrol show node".
func slurmNodes(list string) []Node {
	var nodes []Node
	for line := range strings.Lines(list) {
		var n Node
		var used, allocated, state, reason string
		haveUsed := false
		slurmFields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "NodeName":
				n.Name = v
			case "CPUTot":
				n.CPUs = quantity.Count(v)
			case "CPUEfctv": // without those that are kept for the system
				n.CPUs = quantity.Count(v)
			case "CPUAlloc":
				n.FreeCPUs = -quantity.Count(v)
			case "RealMemory":
				n.Memory = quantity.Bytes(v, 1<<20)
			case "AllocMem":
				n.FreeMemory = -quantity.Bytes(v, 1<<20)
			case "Gres":
				n.GPUs, n.GPUType = slurmGRES(v)
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
		taken := slurmTRES(allocated).gpus
		if haveUsed {
			taken, _ = slurmGRES(used)
		}
		n.FreeGPUs = n.GPUs - taken
		if slurmOff(state) {
			n.State, n.Reason = Off, strings.TrimSpace(strings.ToLower(state)+" "+reason)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// slurmOff says whether a node in a state takes no jobs (scontrol(1), NODE STATE).
// A cloud's node that has no power is given some when a job is for it.
func slurmOff(state string) bool {
	if strings.HasSuffix(state, "*") { // does not respond
		return true
	}
	for part := range strings.SplitSeq(strings.TrimRight(state, "*~#!%$@^-"), "+") {
		switch part {
		case "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "ERROR", "MAINTENANCE", "MAINT", "NOT_RESPONDING",
			"REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN", "INVAL", "INVALID_REG", "PERFCTRS", "BLOCKED":
			return true
		}
	}
	return false
}

// slurmGRES counts the GPUs in a list of generic resources: gpu:a100:4(S:0-1),
// gpu:2, gpu:fake:2(IDX:0-1), shard:8.
func slurmGRES(gres string) (n int, kind string) {
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

// slurmTRES reads what a job or a node has of the resources that Slurm tracks:
// cpu=4,mem=1G,node=1,gres/gpu=2,gres/gpu:a100=2.
func slurmTRES(s string) (h hold) {
	kinds := 0
	for f := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(f, "=")
		switch {
		case k == "cpu":
			h.cpus = quantity.Count(v)
		case k == "mem":
			h.memory = quantity.Bytes(v, 1<<20)
		case k == "gres/gpu":
			h.gpus = quantity.Count(v)
		case strings.HasPrefix(k, "gres/gpu:"):
			kinds = min(kinds+quantity.Count(v), 1<<20)
		}
	}
	h.gpus = max(h.gpus, kinds)
	return h
}

// slurmWhen reads a moment as Slurm's commands write it; zero for none.
func slurmWhen(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}

// slurmSpan reads a time limit: 1-00:00:00, 00:30:00; 0 for UNLIMITED.
func slurmSpan(s string) time.Duration {
	d, err := quantity.ParseTime(s)
	if err != nil {
		return 0
	}
	return d
}

// slurmPartitions reads "scontrol show partition": which is the default, and how
// long jobs may be. One that is not up takes no jobs.
func (c *cluster) slurmPartitions(list string) {
	c.limits, c.usual = map[string]time.Duration{}, map[string]time.Duration{}
	up := map[string]bool{}
	for line := range strings.Lines(list) {
		name := ""
		slurmFields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "PartitionName":
				name = v
			case "Default":
				if v == "YES" {
					c.queue = name
				}
			case "MaxTime":
				c.limits[name] = slurmSpan(v)
			case "DefaultTime":
				c.usual[name] = slurmSpan(v)
			case "State":
				up[name] = v == "UP"
			}
		})
		if c.usual[name] == 0 {
			c.usual[name] = c.limits[name]
		}
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		open := len(up) == 0 || len(n.Queues) == 0
		for _, q := range n.Queues {
			open = open || up[q]
		}
		if !open && n.State != Off {
			n.State, n.Reason = Off, "its partitions are not up"
		}
	}
}

// slurmReservations reads "scontrol show reservation": nodes that are kept for
// somebody, or for maintenance. One for part of its nodes' processors takes them
// whole, as most do.
func (c *cluster) slurmReservations(at map[string]*Node, list string) {
	for line := range strings.Lines(list) {
		h := hold{whole: true}
		nodes := ""
		slurmFields(strings.TrimSpace(line), func(key, v string) {
			switch key {
			case "ReservationName":
				h.by = "reservation " + v
			case "StartTime":
				h.from = slurmWhen(v)
			case "EndTime":
				h.to = slurmWhen(v)
			case "Nodes":
				nodes = v
			}
		})
		if h.by == "" || h.from.IsZero() || (!h.to.IsZero() && h.to.Before(time.Now())) {
			continue
		}
		c.put(at, nodes, h)
	}
}

// put lays a hold on nodes. A list that cannot be read is noted.
func (c *cluster) put(at map[string]*Node, list string, h hold) []string {
	if list == "(null)" || list == "" {
		return nil
	}
	names, err := hostlist.Expand(list, 2*len(at)+64) // there may be some that are not shown
	if err != nil {
		c.notes = append(c.notes, err.Error())
	}
	for _, name := range names {
		if n := at[name]; n != nil {
			n.holds = append(n.holds, h)
		}
	}
	return names
}

// slurmJobs reads squeue: what runs holds its part of its nodes until its limit;
// what waits and has a start planned holds whole nodes then, as Slurm keeps them.
func (c *cluster) slurmJobs(at map[string]*Node, list string, now time.Time) {
	c.planned = map[string]plan{}
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) < 8 {
			continue
		}
		id, start := strings.TrimSpace(f[0]), slurmWhen(f[2])
		h := slurmTRES(f[6])
		count := max(quantity.Count(f[7]), 1)
		h.cpus, h.memory, h.gpus = h.cpus/count, h.memory/int64(count), h.gpus/count
		h.from, h.to, h.by = start, slurmWhen(f[3]), "job "+id
		if f[1] != "PENDING" {
			if h.from.IsZero() || h.from.After(now) { // it runs, whatever the clock says
				h.from = now
			}
			c.put(at, f[4], h)
			continue
		}
		if start.IsZero() {
			continue
		}
		h.whole = true
		if h.from.Before(now) { // about to start
			h.from = now.Add(time.Second)
		}
		names := c.put(at, f[5], h)
		if p, ok := c.planned[id]; !ok || start.Before(p.start) {
			c.planned[id] = plan{start, names}
		}
	}
}
