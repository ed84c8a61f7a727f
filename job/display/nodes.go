package display

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A NodeRow is a node with its cluster.
type NodeRow struct {
	Type   string     `json:"type"` // "node"
	Target job.Target `json:"target"`
	Site   string     `json:"site,omitempty"`
	capacity.Node
}

// Nodes writes a row for each node that accepts jobs, and then a line for each reason why
// other nodes do not. With several clusters, a column names them.
func Nodes(out io.Writer, list []NodeRow, now time.Time) error {
	several := slices.ContainsFunc(list, func(r NodeRow) bool { return r.Site != list[0].Site || r.Target != list[0].Target })
	t := terminal.NewTable("SITE", "NODE", "STATE", "CPUS", "MEMORY", "GPUS", "QUEUES", "UNTIL")
	off := map[string][]string{}
	var reasons []string
	for _, n := range list {
		if n.State == capacity.Off {
			if off[n.Reason] == nil {
				reasons = append(reasons, n.Reason)
			}
			off[n.Reason] = append(off[n.Reason], n.Name)
			continue
		}
		gpus := ""
		if n.GPUs > 0 {
			gpus = strings.TrimSpace(fmt.Sprintf("%d/%d %s", n.FreeGPUs, n.GPUs, n.GPUType))
		}
		memory := gigabytes(n.FreeMemory) + "/" + gigabytes(n.Memory)
		t.Row(cmp.Or(n.Site, string(n.Target)), n.Name, n.State, fmt.Sprintf("%d/%d", n.FreeCPUs, n.CPUs), memory, gpus,
			strings.Join(n.Queues, ","), until(&n.Node, now))
	}
	if !several {
		t.Drop("SITE")
	}
	if err := t.Write(out); err != nil {
		return err
	}
	for _, r := range reasons {
		if _, err := terminal.Rowf(out, "%s no jobs: %s: %s\n", text.Count(len(off[r]), "node takes", "nodes take"),
			names(off[r]), terminal.ShortCell(r)); err != nil {
			return err
		}
	}
	return nil
}

// until describes how long a node stays in its state.
func until(n *capacity.Node, now time.Time) string {
	switch {
	case !n.FreeUntil.IsZero():
		return "free until " + moment(n.FreeUntil, now) + ", " + n.For
	case n.NoLimit:
		return "some jobs have no limit"
	case !n.BusyUntil.IsZero():
		return "jobs end by " + moment(n.BusyUntil, now)
	}
	return ""
}

// moment formats a time, without the date if it is today.
func moment(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// gigabytes formats an amount of memory in G, or in M below 1G.
func gigabytes(n int64) string {
	if n < 1<<30 {
		return strconv.FormatInt(n>>20, 10) + "M"
	}
	return strconv.FormatInt(n>>30, 10) + "G"
}

// names joins the first names of a list.
func names(list []string) string {
	const most = 12
	text := strings.Join(slices.Clone(list[:min(len(list), most)]), ",")
	if len(list) > most {
		text += ",…"
	}
	return text
}

// Fit formats where and when a job would start, in one line.
func Fit(f *capacity.Fit, now time.Time) string {
	where := ""
	if len(f.Nodes) > 0 {
		where = " on " + names(f.Nodes)
	}
	switch {
	case f.When == capacity.Now:
		return "starts now" + where
	case f.When == capacity.Running:
		return "has started"
	case f.When == capacity.Never:
		return "never starts: " + f.Why
	case f.Start.IsZero():
		return "starts later, at an unknown time: running jobs have no known time limits, other jobs go first, or nodes are off"
	}
	return "starts at " + moment(f.Start, now) + where
}

// Uses writes a line for each job that compares its requests with its use, and then the advice.
func Uses(out io.Writer, list []*capacity.Use) error {
	t := terminal.NewTable("JOB", "TARGET", "STATE", "TASKS", "CPUS", "BUSY", "MEMORY", "PEAK", "TIME", "LONGEST")
	for _, u := range list {
		busy, memory, limit := fmt.Sprintf("%.0f%%", 100*u.Busy()), "", ""
		if u.CPUUnknown {
			busy = "unknown"
		}
		if u.Memory > 0 {
			memory = gigabytes(u.Memory)
		}
		if u.Time > 0 {
			limit = u.Time.String()
		}
		t.Row(u.ID, u.Target, u.State, u.Tasks, u.CPUs, busy, memory, gigabytes(u.PeakMemory), limit,
			u.Longest.Round(time.Second))
	}
	if err := t.Write(out); err != nil {
		return err
	}
	for _, u := range list {
		for _, a := range u.Advice {
			if _, err := terminal.Rowf(out, "%s: %s\n", u.ID, a); err != nil {
				return err
			}
		}
	}
	return nil
}
