package gridengine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// gpuNames are the names that sites have for GPUs as a resource that is used
// up. hpcc asks for the first.
var gpuNames = []string{"gpu", "gpus", "ngpus"}

// Nodes asks for hosts with their queues, and for what runs on them.
func (System) Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error) {
	out, err := invoke.Call(ctx, "/", "qhost", "-F", "mem_total,mem_free,slots,"+strings.Join(gpuNames, ","), "-q", "-xml")
	if err != nil {
		return nil, fmt.Errorf("asking Grid Engine for its hosts: %w", readError(out, err))
	}
	c := &capacity.Snapshot{}
	if c.Nodes, err = hosts(bytes.NewReader(out), queue); err != nil {
		return nil, fmt.Errorf("reading what qhost said: %w", err)
	}
	out, err = invoke.Call(ctx, "/", "qstat", "-u", "*", "-s", "r", "-r", "-g", "t", "-xml")
	if err == nil {
		err = holds(capacity.NodeIndex(c.Nodes), bytes.NewReader(out), queue)
	} else {
		err = readError(out, err)
	}
	if err != nil {
		c.Notes = append(c.Notes, "when jobs end is not known: asking Grid Engine for them: "+err.Error())
	}
	return c, nil
}

// A machine is a host in the XML of qhost.
type machine struct {
	Name   string  `xml:"name,attr"`
	Values []value `xml:"hostvalue"`
	More   []value `xml:"resourcevalue"`
	Queues []struct {
		Name   string  `xml:"name,attr"`
		Values []value `xml:"queuevalue"`
	} `xml:"queue"`
}

type value struct {
	Name string `xml:"name,attr"`
	Kind string `xml:"dominance,attr"` // hc: what is left of what is used up; hl: as the host reports
	Text string `xml:",chardata"`
}

// hosts reads the XML of "qhost -F -q". queue, when given, is the one
// whose slots count.
func hosts(r io.Reader, queue string) ([]capacity.Node, error) {
	var nodes []capacity.Node
	err := eachElement(r, "host", func(h *machine) {
		if h.Name != "global" && h.Name != "" {
			nodes = append(nodes, h.node(queue))
		}
	})
	return nodes, err
}

// node is what the host has: slots of the queues that take jobs, all of them, since
// a job may have some of each, and no more than the host itself gives out.
func (h *machine) node(queue string) capacity.Node {
	n := capacity.Node{Name: h.Name}
	used := int64(0)
	for _, v := range h.Values {
		switch v.Name {
		case "mem_total":
			n.Memory = quantity.Bytes(v.Text, 1)
		case "mem_used":
			used = quantity.Bytes(v.Text, 1)
		}
	}
	n.FreeMemory = max(n.Memory-used, 0)
	left := -1
	for _, v := range h.More {
		switch {
		case v.Name == "mem_total":
			n.Memory = quantity.Bytes(v.Text, 1)
		case v.Name == "mem_free":
			n.FreeMemory = quantity.Bytes(v.Text, 1)
		case v.Name == "slots" && v.Kind == "hc":
			left = whole(v.Text)
		case slices.Contains(gpuNames, v.Name) && v.Kind == "hc":
			n.FreeGPUs = whole(v.Text)
			n.GPUs = n.FreeGPUs // and what jobs have, see holds
		}
	}
	readQueues(&n, h, queue, left)
	return n
}

// readQueues counts the slots of the queues; left are those that the host
// has left, -1 where it does not count.
func readQueues(n *capacity.Node, h *machine, queue string, left int) {
	var closed []string
	taken, shut, idle := 0, 0, 0 // slots; the latter two of queues that are closed
	for _, q := range h.Queues {
		n.Queues = append(n.Queues, q.Name)
		slots, used, state := 0, 0, ""
		for _, v := range q.Values {
			switch v.Name {
			case "slots":
				slots = quantity.Count(v.Text)
			case "slots_used", "slots_resv":
				used += quantity.Count(v.Text)
			case "state_string":
				state = v.Text
			}
		}
		taken += used
		if queue != "" && q.Name != queue {
			continue
		}
		if why := whyClosed(state); why != "" {
			closed = append(closed, q.Name+" "+why)
			shut, idle = min(shut+slots, 1<<30), min(idle+max(slots-used, 0), 1<<30)
			continue
		}
		n.CPUs, n.FreeCPUs = min(n.CPUs+slots, 1<<30), min(n.FreeCPUs+max(slots-used, 0), 1<<30)
	}
	off := n.CPUs == 0 && len(closed) > 0
	if off { // the host is there all the same, and its load goes down again
		n.CPUs, n.FreeCPUs = shut, idle
	}
	if left >= 0 && n.CPUs > left+taken {
		n.CPUs = left + taken
	}
	if left >= 0 && n.FreeCPUs > left {
		n.FreeCPUs = left
	}
	switch {
	case len(h.Queues) == 0:
		n.State, n.Reason = capacity.Off, "it has no queue"
	case off:
		n.State, n.Reason = capacity.Off, strings.Join(closed, ", ")
	case n.CPUs == 0 && (queue == "" || slices.Contains(n.Queues, queue)):
		n.State, n.Reason = capacity.Off, "its queues have no slots"
	}
}

// whyClosed is why a queue takes no jobs on a host, by its state (qstat(1));
// "" when it does.
func whyClosed(state string) string {
	for _, s := range []struct{ letter, why string }{
		{"u", "does not answer"}, {"E", "is in error"}, {"d", "is disabled"}, {"D", "is disabled by the calendar"}, {"o", "is to go"}, {"c", "is misconfigured"},
		{"a", "has too much load"}, {"A", "has too much load"}, {"s", "is suspended"}, {"S", "is suspended by another queue"}, {"C", "is suspended by the calendar"},
	} {
		if strings.Contains(state, s.letter) {
			return s.why
		}
	}
	return ""
}

// whole reads a number of Grid Engine, 4.000000, rounded down.
func whole(s string) int {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= 0 && x < 1<<30) {
		return 0
	}
	return int(x)
}

// A slot is a row of "qstat -g t": a slot that a job has, or its master.
type slot struct {
	ID       string `xml:"JB_job_number"`
	Task     string `xml:"tasks"`
	Start    string `xml:"JAT_start_time"`
	Queue    string `xml:"queue_name"` // all.q@n1
	Slots    int    `xml:"slots"`
	Requests []struct {
		Name string `xml:"name,attr"`
		Text string `xml:",chardata"`
	} `xml:"hard_request"`
}

// holds reads the XML of "qstat -r -g t": which slots jobs have, and until
// when. What they have of the GPUs is what qhost does not tell of.
func holds(at map[string]*capacity.Node, r io.Reader, queue string) error {
	type key struct{ id, task, host string }
	holds, gpus := map[key]*capacity.Hold{}, map[key]float64{}
	err := eachElement(r, "job_list", func(s *slot) {
		q, host, _ := strings.Cut(s.Queue, "@")
		k := key{s.ID, s.Task, host}
		h := holds[k]
		if h == nil {
			h = s.hold()
			holds[k] = h
		}
		n := min(max(s.Slots, 1), 1<<20)
		if queue == "" || q == queue {
			h.Cpus = min(h.Cpus+n, 1<<30)
		}
		gpus[k] += s.gpus() * float64(n)
	})
	if err != nil {
		return fmt.Errorf("reading what qstat said: %w", err)
	}
	for k, h := range holds {
		n := at[k.host]
		if n == nil {
			continue
		}
		h.Gpus = int(min(gpus[k], 1<<20) + 0.5)
		n.GPUs += h.Gpus
		n.Holds = append(n.Holds, *h)
	}
	return nil
}

// hold is what the job of a row has, but for its slots.
func (s *slot) hold() *capacity.Hold {
	h := &capacity.Hold{From: moment(s.Start), By: "job " + s.ID}
	for _, r := range s.Requests {
		if r.Name == "h_rt" && !h.From.IsZero() {
			if limit, err := strconv.ParseFloat(r.Text, 64); err == nil && limit > 0 && limit < quantity.MaxTime.Seconds() {
				h.To = h.From.Add(time.Duration(limit * float64(time.Second)))
			}
		}
	}
	return h
}

// moment reads a moment of qstat; zero for none.
func moment(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}

// gpus is how many a slot of the row has.
func (s *slot) gpus() float64 {
	for _, r := range s.Requests {
		if x, err := strconv.ParseFloat(r.Text, 64); err == nil && x > 0 && x < 1<<20 && slices.Contains(gpuNames, r.Name) {
			return x
		}
	}
	return 0
}

// Estimate asks whether an empty cluster would run the script, and whether the one
// that there is would: Grid Engine has no word on when.
func (g System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	if err := g.verify(ctx, j, script); err != nil {
		return nil, err
	}
	_, err := invoke.Call(ctx, j.Dir, "qsub", "-w", "p", script)
	return &capacity.Estimate{Now: err == nil}, nil
}

// adjust counts as Grid Engine does: each slot asks for its share of memory,
// and options of a script for it are kept in its own words.
func adjust(x *capacity.Need, j *job.Job) {
	x.Memory /= int64(max(j.Slots(), 1))
	gpus := 0
	for _, o := range j.Native {
		switch f := strings.Fields(o); {
		case len(f) == 3 && f[0] == "-pe" && threaded().MatchString(f[1]):
			x.Cpus = max(quantity.Count(f[2]), 1)
		case len(f) == 3 && f[0] == "-pe":
			x.Units = max(quantity.Count(f[2]), 1)
		case len(f) == 2 && f[0] == "-l":
			name, value, _ := strings.Cut(f[1], "=")
			if slices.Contains(gpuNames, name) {
				gpus = whole(value)
			}
		}
	}
	x.Gpus = max(x.Gpus, min(gpus*x.Cpus, 1<<30))
}

// threaded are names of parallel environments whose slots are processors of one
// process. The site chooses names, so it is a guess, and told.
var threaded = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)smp|thread|openmp|shm|shared|multicore|onenode|single|serial|cores?$|local`)
})
