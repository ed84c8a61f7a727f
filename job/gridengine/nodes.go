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

// gpuNames are the names that sites use for a consumable GPU resource. hpcc requests the first.
var gpuNames = []string{"gpu", "gpus", "ngpus"}

// Nodes lists the hosts with their queues and running jobs.
func (System) Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error) {
	c, err := listHosts(ctx, queue)
	if err != nil {
		return nil, err
	}
	out, err := invoke.Call(ctx, "/", "qstat", "-u", "*", "-s", "r", "-r", "-g", "t", "-xml")
	if err == nil {
		err = holds(capacity.NodeIndex(c.Nodes), bytes.NewReader(out), queue)
	} else {
		err = readError(out, err)
	}
	if err != nil {
		c.Notes = append(c.Notes, "the end times of jobs are unknown: querying Grid Engine for jobs: "+err.Error())
	}
	return c, nil
}

// listHosts lists the hosts with their queues.
func listHosts(ctx context.Context, queue string) (*capacity.Snapshot, error) {
	out, err := invoke.Call(ctx, "/", "qhost", "-F", "mem_total,mem_free,slots,"+strings.Join(gpuNames, ","), "-q", "-xml")
	if err != nil {
		return nil, fmt.Errorf("querying Grid Engine for hosts: %w", readError(out, err))
	}
	c := &capacity.Snapshot{}
	if c.Nodes, err = hosts(bytes.NewReader(out), queue); err != nil {
		return nil, fmt.Errorf("reading the output of qhost: %w", err)
	}
	return c, nil
}

// never reports a request for more memory than any host has, which verify does not check.
func never(ctx context.Context, j *job.Job) (why string, sure bool) {
	if j.Memory == 0 || len(j.Rules.Memory) > 0 {
		return "", false
	}
	c, err := listHosts(ctx, "")
	if err != nil {
		return "", false
	}
	slot := job.Job{Memory: capacity.NewNeed(j, 0, adjust).Memory}
	return capacity.NewNeed(&slot, 0, nil).Never(c, ""), true
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
	Kind string `xml:"dominance,attr"` // hc: remaining amount of a consumable; hl: load value of the host
	Text string `xml:",chardata"`
}

// hosts parses the XML of "qhost -F -q". If queue is given, only its slots count.
func hosts(r io.Reader, queue string) ([]capacity.Node, error) {
	var nodes []capacity.Node
	err := eachElement(r, "host", func(h *machine) {
		if h.Name != "global" && h.Name != "" {
			nodes = append(nodes, h.node(queue))
		}
	})
	return nodes, err
}

// node returns the resources of a host. Its slots are those of all open queues, since a job may use
// several, up to the host's own limit.
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
	freeSlots := -1
	for _, v := range h.More {
		switch {
		case v.Name == "mem_total":
			n.Memory = quantity.Bytes(v.Text, 1)
		case v.Name == "mem_free":
			n.FreeMemory = quantity.Bytes(v.Text, 1)
		case v.Name == "slots" && v.Kind == "hc":
			freeSlots = integer(v.Text)
		case slices.Contains(gpuNames, v.Name) && v.Kind == "hc":
			n.FreeGPUs = integer(v.Text)
			n.GPUs = n.FreeGPUs // without the GPUs of jobs, see holds
		}
	}
	readQueues(&n, h, queue, freeSlots)
	return n
}

// readQueues counts the slots of the queues. freeSlots is the number of free slots of the host, or -1 if the
// host does not count them.
func readQueues(n *capacity.Node, h *machine, queue string, freeSlots int) {
	var closed []string
	taken, shut, idle := 0, 0, 0 // slots; shut and idle are those of closed queues
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
		if why := closedReason(state); why != "" {
			closed = append(closed, q.Name+" "+why)
			shut, idle = min(shut+slots, 1<<30), min(idle+max(slots-used, 0), 1<<30)
			continue
		}
		n.CPUs, n.FreeCPUs = min(n.CPUs+slots, 1<<30), min(n.FreeCPUs+max(slots-used, 0), 1<<30)
	}
	off := n.CPUs == 0 && len(closed) > 0
	if off { // an overloaded host still counts; its load will drop
		n.CPUs, n.FreeCPUs = shut, idle
	}
	if freeSlots >= 0 && n.CPUs > freeSlots+taken {
		n.CPUs = freeSlots + taken
	}
	if freeSlots >= 0 && n.FreeCPUs > freeSlots {
		n.FreeCPUs = freeSlots
	}
	switch {
	case len(h.Queues) == 0:
		n.State, n.Reason = capacity.Off, "the host has no queue"
	case off:
		n.State, n.Reason = capacity.Off, strings.Join(closed, ", ")
	case n.CPUs == 0 && (queue == "" || slices.Contains(n.Queues, queue)):
		n.State, n.Reason = capacity.Off, "its queues have no slots"
	}
}

// closedReason returns why a queue does not accept jobs on a host, by its state (qstat(1)), or "" if it does.
func closedReason(state string) string {
	for _, s := range []struct{ letter, why string }{
		{"u", "does not answer"}, {"E", "is in error"}, {"d", "is disabled"}, {"D", "is disabled by the calendar"},
		{"o", "is being removed"}, {"c", "is misconfigured"},
		{"a", "is overloaded"}, {"A", "is overloaded"}, {"s", "is suspended"}, {"S", "is suspended by another queue"},
		{"C", "is suspended by the calendar"},
	} {
		if strings.Contains(state, s.letter) {
			return s.why
		}
	}
	return ""
}

// integer parses a number of Grid Engine, 4.000000, and rounds it down.
func integer(s string) int {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= 0 && x < 1<<30) {
		return 0
	}
	return int(x)
}

// A slot is a row of "qstat -g t": one slot of a job, or the job's master task.
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

// holds parses the XML of "qstat -r -g t": the slots of jobs, their end times, and their GPUs, which qhost
// does not report.
func holds(at map[string]*capacity.Node, r io.Reader, queue string) error {
	type key struct{ id, task, host string }
	holds, gpus := map[key]*capacity.Hold{}, map[key]float64{}
	err := eachElement(r, "job_list", func(s *slot) {
		q, host, _ := strings.Cut(s.Queue, "@")
		k := key{s.ID, s.Task, host}
		h := holds[k]
		if h == nil {
			h = &capacity.Hold{To: s.end()}
			holds[k] = h
		}
		n := min(max(s.Slots, 1), 1<<20)
		if queue == "" || q == queue {
			h.CPUs = min(h.CPUs+n, 1<<30)
		}
		gpus[k] += s.gpus() * float64(n)
	})
	if err != nil {
		return fmt.Errorf("reading the output of qstat: %w", err)
	}
	for k, h := range holds {
		n := at[k.host]
		if n == nil {
			continue
		}
		h.GPUs = int(min(gpus[k], 1<<20) + 0.5)
		n.GPUs += h.GPUs
		n.Holds = append(n.Holds, *h)
	}
	return nil
}

// end returns the end of a row's job by its time limit, or the zero time.
func (s *slot) end() (end time.Time) {
	start := parseTime(s.Start)
	for _, r := range s.Requests {
		if r.Name == "h_rt" && !start.IsZero() {
			if limit, err := strconv.ParseFloat(r.Text, 64); err == nil && limit > 0 && limit < quantity.MaxTime.Seconds() {
				end = start.Add(time.Duration(limit * float64(time.Second)))
			}
		}
	}
	return end
}

// parseTime parses a time of qstat. It returns the zero time for other text.
func parseTime(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}

// gpus returns the number of GPUs per slot of the row.
func (s *slot) gpus() float64 {
	for _, r := range s.Requests {
		if x, err := strconv.ParseFloat(r.Text, 64); err == nil && x > 0 && x < 1<<20 && slices.Contains(gpuNames, r.Name) {
			return x
		}
	}
	return 0
}

// Estimate checks whether an empty cluster, and the current one, could run the script. Grid Engine does not
// estimate a start time.
func (g System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	if err := g.verify(ctx, j, script); err != nil {
		return nil, err
	}
	_, err := invoke.Call(ctx, j.Dir, "qsub", "-w", "p", script)
	return &capacity.Estimate{Now: err == nil}, nil
}

// adjust converts a need to Grid Engine's way of counting: memory is requested per slot, and native options
// may request slots and GPUs.
func adjust(x *capacity.Need, j *job.Job) {
	x.Memory /= int64(max(j.Slots(), 1))
	gpus := 0
	for _, o := range j.Native {
		switch f := strings.Fields(o); {
		case len(f) == 3 && f[0] == "-pe" && threaded().MatchString(f[1]):
			x.CPUs = max(quantity.Count(f[2]), 1)
		case len(f) == 3 && f[0] == "-pe":
			x.Units = max(quantity.Count(f[2]), 1)
		case len(f) == 2 && f[0] == "-l":
			name, value, _ := strings.Cut(f[1], "=")
			if slices.Contains(gpuNames, name) {
				gpus = integer(value)
			}
		}
	}
	x.GPUs = max(x.GPUs, min(gpus*x.CPUs, 1<<30))
}

// threaded matches the names of parallel environments whose slots usually are the processors of one process.
// Sites choose these names, so a translation reports the guess.
var threaded = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)smp|thread|openmp|^omp|mem$|shm|shared|multicore|onenode|single|serial|cores?$|local`)
})
