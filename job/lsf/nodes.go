package lsf

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// A listing is a query that adds a property to the listed hosts.
type listing struct {
	what string
	args []string
	read func(at map[string]*capacity.Node, list string)
}

// configured are the queries for what the hosts have, and current those for its use.
var (
	configured = []listing{
		{"the memory of hosts is", []string{"lshosts", "-w"}, static},
		{"the queues of hosts are", []string{"bqueues", "-l"}, queues},
	}
	current = []listing{
		{"the free memory of hosts is", []string{"lsload", "-w"}, load},
		{"the GPUs of hosts are", []string{"bhosts", "-gpu", "-w"}, gpus},
		{"the end times of jobs are", []string{"bjobs", "-u", "all", "-r", "-noheader", "-o",
			"exec_host time_left delimiter='|'"}, holds},
	}
)

// Nodes lists the hosts with their slots, memory, GPUs, queues and the remaining time of jobs. If a query
// other than the first fails, the Snapshot has a note.
func (System) Nodes(ctx context.Context, _ string) (*capacity.Snapshot, error) {
	return list(ctx, slices.Concat(configured, current))
}

// never reports a job that no hosts could run, which LSF would let wait.
func never(ctx context.Context, j *job.Job) (why string, sure bool) {
	c, err := list(ctx, configured)
	if err != nil || len(c.Notes) > 0 {
		return "", false
	}
	return capacity.NewNeed(j, 0, nil).Never(c, j.Queue), true
}

// list lists the hosts with their slots, and what the queries add.
func list(ctx context.Context, queries []listing) (*capacity.Snapshot, error) {
	out, err := invoke.Call(ctx, "/", "bhosts", "-w")
	if err != nil {
		return nil, fmt.Errorf("querying LSF for hosts: %w", refusal(out, err))
	}
	c := &capacity.Snapshot{Nodes: hosts(string(out[:min(len(out), invoke.MaxListing)]))}
	at := capacity.NodeIndex(c.Nodes)
	for _, l := range queries {
		out, err := invoke.Call(ctx, "/", l.args[0], l.args[1:]...)
		if err != nil {
			if !strings.Contains(string(out), "No ") { // "No unfinished job found", and the like
				c.Notes = append(c.Notes, fmt.Sprintf("%s unknown: %s: %v", l.what, strings.Join(l.args[:2], " "), refusal(out, err)))
			}
			continue
		}
		l.read(at, string(out[:min(len(out), invoke.MaxListing)]))
	}
	return c, nil
}

// columns parses a table whose first line names the columns, without blanks. It calls row for each other
// line with a lookup by column name.
func columns(list string, row func(get func(name string) string)) {
	var names map[string]int
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if names == nil {
			names = map[string]int{}
			for i, n := range f {
				names[n] = i
			}
			continue
		}
		row(func(name string) string {
			if i, ok := names[name]; ok && i < len(f) {
				return f[i]
			}
			return ""
		})
	}
}

// hosts parses "bhosts -w": the slots and states of hosts.
func hosts(list string) []capacity.Node {
	var nodes []capacity.Node
	columns(list, func(get func(string) string) {
		n := capacity.Node{Name: get("HOST_NAME"), CPUs: quantity.Count(get("MAX"))}
		status := get("STATUS")
		if get("MAX") == "-" {
			n.CPUs = -1 // static sets the number of the host's processors
		}
		n.FreeCPUs = -quantity.Count(get("NJOBS")) - quantity.Count(get("RSV"))
		switch {
		case status == "closed_Excl" || status == "closed_Full":
			n.State = capacity.Full
		case status != "ok":
			n.State, n.Reason = capacity.Off, status
		}
		if n.CPUs == 0 {
			n.State, n.Reason = capacity.Off, "the host has no slots"
		}
		if n.CPUs > 0 {
			n.FreeCPUs += n.CPUs
		}
		if n.State == capacity.Full && n.CPUs > 0 {
			n.FreeCPUs = 0
		}
		nodes = append(nodes, n)
	})
	return nodes
}

// static adds the total memory from "lshosts -w", and the slots of hosts without a slot limit.
func static(at map[string]*capacity.Node, list string) {
	columns(list, func(get func(string) string) {
		n := at[get("HOST_NAME")]
		if n == nil {
			return
		}
		n.Memory = quantity.Bytes(get("maxmem"), 1)
		if n.CPUs < 0 {
			n.CPUs = quantity.Count(get("ncpus"))
			if n.FreeCPUs += n.CPUs; n.State == capacity.Full {
				n.FreeCPUs = 0
			}
		}
	})
}

// load adds the free memory from "lsload -w".
func load(at map[string]*capacity.Node, list string) {
	columns(list, func(get func(string) string) {
		if n := at[get("HOST_NAME")]; n != nil {
			n.FreeMemory = quantity.Bytes(get("mem"), 1)
		}
	})
}

// queues adds the queues of hosts from "bqueues -l". It does not resolve host groups: a queue with a host
// group counts for every host.
func queues(at map[string]*capacity.Node, list string) {
	queue := ""
	for line := range strings.Lines(list) {
		if name, ok := strings.CutPrefix(line, "QUEUE:"); ok {
			queue = strings.TrimSpace(name)
		}
		hosts, ok := strings.CutPrefix(line, "HOSTS:")
		if !ok || queue == "" {
			continue
		}
		named := map[string]bool{}
		every := false
		for h := range strings.FieldsSeq(hosts) {
			h, _, _ = strings.Cut(h, "+") // a preference
			named[h] = true
			every = every || h == "all" || strings.HasSuffix(h, "/") || strings.HasPrefix(h, "~")
		}
		for name, n := range at {
			if (every || named[name]) && !named["~"+name] {
				n.Queues = append(n.Queues, queue)
			}
		}
		queue = ""
	}
}

// gpus adds GPUs from "bhosts -gpu -w": a line for each GPU. Only the first line of a host has its name.
func gpus(at map[string]*capacity.Node, list string) {
	var n *capacity.Node
	var names []string
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
			continue
		case names == nil:
			names = f
			continue
		case line[0] != ' ':
			n, f = at[f[0]], f[1:]
		}
		if n == nil || len(f) < 2 {
			continue
		}
		n.GPUs++
		n.GPUType = strings.TrimRight(f[1], ".")
		free := true
		for i, v := range f {
			if i+1 < len(names) && names[i+1] == "NJOBS" && v != "0" {
				free = false
			}
		}
		if free {
			n.FreeGPUs++
		}
	}
}

// holds adds running jobs from "bjobs -o 'exec_host time_left'": 4*n1:2*n2|1:30 L.
func holds(at map[string]*capacity.Node, list string) {
	now := time.Now()
	for f := range batch.Table(list, 2) {
		var h capacity.Hold
		left, _, _ := strings.Cut(f[1], " ")
		if hours, minutes, ok := strings.Cut(left, ":"); ok {
			if d := time.Duration(quantity.Count(hours))*time.Hour +
				time.Duration(quantity.Count(minutes))*time.Minute; d >= 0 && d < quantity.MaxTime {
				h.To = now.Add(d)
			}
		}
		slots := map[string]int{}
		for w := range strings.SplitSeq(f[0], ":") {
			count, host, ok := strings.Cut(w, "*")
			if !ok {
				count, host = "1", w
			}
			slots[host] = min(slots[host]+quantity.Count(count), 1<<20)
		}
		for host, count := range slots {
			if n := at[host]; n != nil {
				h.CPUs = count
				n.Holds = append(n.Holds, h)
			}
		}
	}
}
