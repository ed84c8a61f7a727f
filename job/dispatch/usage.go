package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/job"
	"hpcc/metrics"
)

// A Usage is the state of a job and its running tasks at a moment.
type Usage struct {
	Type     string      `json:"type"` // "top"
	ID       string      `json:"id"`
	Site     string      `json:"site,omitempty"`
	Target   job.Target  `json:"target"`
	State    string      `json:"state"`
	Total    int         `json:"total"`
	Done     int         `json:"done"`
	Failed   int         `json:"failed"`
	Running  int         `json:"running"`
	Waiting  int         `json:"waiting"`
	Silent   int         `json:"silent,omitempty"` // running tasks without a record
	Unseen   int         `json:"unseen,omitempty"` // running tasks whose records were not read yet, because there are many
	Sum      TaskUsage   `json:"sum"`
	Tasks    []TaskUsage `json:"tasks"`
	Warnings []string    `json:"warnings,omitempty"` // about records that could not be read
}

// A UsageReader reads the records of a job on this machine.
type UsageReader struct {
	Dir   string   // of all jobs
	ID    string   // of the job
	Tail  []string // argv that prints the end of the record in a pod
	All   bool     // read the record of every task at each refresh, however many there are
	sub   *Submission
	asked time.Time
	tasks map[int]*watchedTask
}

// A watchedTask keeps the record of one task between refreshes.
type watchedTask struct {
	task job.Task
	tail metrics.Tail
	peak int64     // highest memory use so far, in bytes
	seen time.Time // when the record was last read
	err  error
}

// Limits of one refresh.
const (
	usageParallel     = 16 // records that are read at the same time
	usageParallelPods = 8  // the same, for pods
	usagePods         = 64 // pods whose records are read
)

// Intervals between queries to the scheduler. A cluster that keeps the records is queried more often.
const (
	queryInterval     = 10 * time.Second
	queryIntervalPods = 4 * time.Second
)

// Refresh reads the state of the job, which may have been cancelled or rerun since the last call.
func (p *UsageReader) Refresh(ctx context.Context) (*Usage, error) {
	var err error
	if p.sub, err = ReadJob(filepath.Join(p.Dir, p.ID)); err != nil {
		return nil, err
	}
	interval := queryInterval
	if p.sub.Target.Pods() {
		interval = queryIntervalPods
	}
	ask := time.Since(p.asked) >= interval
	st, err := p.sub.Status(ctx, p.Dir, ask)
	if err != nil {
		return nil, err
	}
	if ask {
		p.asked = time.Now()
	}
	open := st.Total - st.Done - len(st.Failed) - st.Stopped - st.Lost
	st.Waiting = max(0, open-st.Running)
	now := &Usage{Type: "top", ID: st.ID, Site: st.Site, Target: st.Target, State: st.State(), Tasks: []TaskUsage{},
		Total: st.Total, Done: st.Done, Failed: len(st.Failed), Running: st.Running, Waiting: st.Waiting}
	if ask && st.Running == 0 { // the tasks without an end are lost
		st.Tasks = nil
	}
	if p.tasks == nil {
		p.tasks = map[int]*watchedTask{}
	}
	p.keep(st.Tasks)
	p.read(ctx)
	return now, p.fill(now)
}

// keep updates p.tasks to the running tasks in list.
func (p *UsageReader) keep(list []job.Task) {
	running := map[int]bool{}
	for _, t := range list {
		if t.Ended() {
			continue
		}
		running[t.Index] = true
		if k := p.tasks[t.Index]; k == nil || k.task.Attempt != t.Attempt || k.task.Native != t.Native {
			p.tasks[t.Index] = &watchedTask{}
		}
		p.tasks[t.Index].task = t
	}
	for k := range p.tasks {
		if !running[k] {
			delete(p.tasks, k)
		}
	}
}

// read reads the records of the tasks. To read the record in a pod, it must start a program there,
// so it reads only the usagePods pods with the oldest reads, unless p.All is set.
func (p *UsageReader) read(ctx context.Context) {
	var list []*watchedTask
	for _, k := range p.tasks {
		list = append(list, k)
	}
	var g errgroup.Group
	g.SetLimit(files.MaxParallel(usageParallel, 4))
	if p.sub.Target.Pods() {
		g.SetLimit(usageParallelPods)
		slices.SortFunc(list, func(a, b *watchedTask) int { return a.seen.Compare(b.seen) })
		if !p.All {
			list = list[:min(len(list), usagePods)]
		}
	}
	for _, k := range list {
		g.Go(func() error {
			k.err = p.readOne(ctx, k)
			k.seen = time.Now()
			return nil
		})
	}
	_ = g.Wait()
}

// readOne reads the record of one task.
func (p *UsageReader) readOne(ctx context.Context, k *watchedTask) error {
	if !p.sub.Target.Pods() {
		return k.tail.Look(filepath.Join(p.Dir, p.ID, k.task.Measured()))
	}
	out, err := p.sub.Read(ctx, &k.task, metrics.MaxTail, p.Tail...)
	if err != nil {
		return err
	}
	tail, err := metrics.ReadTail(strings.NewReader(string(out)))
	if err == nil {
		k.tail = *tail
	}
	return err
}

// fill builds the rows from the records. A job without any record was not measured.
func (p *UsageReader) fill(now *Usage) error {
	for _, i := range slices.Sorted(maps.Keys(p.tasks)) {
		k := p.tasks[i]
		switch {
		case k.seen.IsZero():
			now.Unseen++
		case errors.Is(k.err, fs.ErrNotExist), k.err == nil && len(k.tail.Samples) == 0:
			now.Silent++
		case k.err != nil:
			now.Silent++
			now.Warnings = append(now.Warnings, fmt.Sprintf("task %d: %v", i, k.err))
		case k.tail.Footer == nil:
			row := k.row(time.Now())
			now.Tasks = append(now.Tasks, row)
			now.Sum.Add(&row)
		}
	}
	now.Sum.Limit = max(0, now.Sum.Limit)
	if len(now.Tasks) == 0 && now.Running > 0 && !p.sub.Job.Measure {
		return &UnmeasuredError{p.ID}
	}
	return nil
}

// A TaskUsage is the current usage of a task. Rates cover the last second, or the time between the
// last two samples.
type TaskUsage struct {
	Task     int                 `json:"task"`
	Step     string              `json:"step,omitempty"`
	Attempt  int                 `json:"attempt,omitempty"`
	Params   map[string]string   `json:"params,omitempty"`
	Host     string              `json:"host,omitempty"`
	Start    time.Time           `json:"start,omitzero"`
	Age      float64             `json:"age_s"`              // age of the last sample, by this machine's clock
	CPUs     float64             `json:"cpus"`               // busy CPUs
	Granted  float64             `json:"cpus_granted"`       // CPUs that the task may use
	Memory   int64               `json:"memory_bytes"`       // of the task's own cgroup without the page cache, or else resident memory
	Peak     int64               `json:"memory_peak_bytes"`  // of the cgroup, or else of the samples
	Limit    int64               `json:"memory_limit_bytes"` // 0 for the machine's memory
	Read     float64             `json:"read_bytes_per_s"`
	Written  float64             `json:"written_bytes_per_s"`
	NetIn    float64             `json:"net_in_bytes_per_s"`
	NetOut   float64             `json:"net_out_bytes_per_s"`
	Threads  int                 `json:"threads"`
	GPUs     []metrics.GPUSample `json:"gpus,omitempty"`
	Stalled  float64             `json:"throttled_cpus"`     // CPUs that the quota holds back
	Pressure *metrics.Pressure   `json:"pressure,omitempty"` // seconds of each second
}

// row returns the usage of a task from its newest samples.
func (k *watchedTask) row(now time.Time) TaskUsage {
	h, list := &k.tail.Header, k.tail.Samples
	last := &list[len(list)-1]
	before := &metrics.Sample{} // the start
	if len(list) > 1 {
		before = &list[0]
	}
	t := TaskUsage{
		Task: k.task.Index, Step: k.task.Step, Attempt: k.task.Attempt, Params: k.task.Params,
		Host: cmp.Or(k.task.Host, h.Machine.Host), Start: h.Start,
		Granted: h.Limits.CPUs, Limit: h.Limits.Memory, Memory: last.RSS, Threads: last.Threads, GPUs: last.GPUs,
	}
	t.Age = max(0, now.Sub(h.Start).Seconds()-last.At)
	if took := last.At - before.At; took > 0 {
		rate := func(a, b float64) float64 { return min(max(0, b-a)/took, math.MaxInt64) } // samples may be almost simultaneous
		t.CPUs = rate(before.CPU, last.CPU)
		t.Read, t.Written = rate(float64(before.Read), float64(last.Read)), rate(float64(before.Written), float64(last.Written))
		t.NetIn, t.NetOut = rate(float64(before.NetIn), float64(last.NetIn)), rate(float64(before.NetOut), float64(last.NetOut))
		if a, b := before.Pressure, last.Pressure; b != nil {
			if a == nil {
				a = &metrics.Pressure{}
			}
			t.Pressure = &metrics.Pressure{CPU: rate(a.CPU, b.CPU), Memory: rate(a.Memory, b.Memory),
				IO: rate(a.IO, b.IO), Machine: b.Machine}
		}
		if b := last.Cgroup; b != nil {
			a := before.Cgroup
			if a == nil {
				a = &metrics.CgroupUse{}
			}
			t.Stalled = rate(a.Throttled, b.Throttled)
		}
	}
	peak := last.Peak
	if g := last.Cgroup; g != nil && !h.Limits.Shared && g.Memory > 0 { // the memory controller may be missing
		t.Memory = g.Memory - g.Cache
		if g.Peak > 0 && g.Peak >= 8*g.Cache { // otherwise the peak is mostly page cache
			peak = g.Peak
		}
	}
	k.peak = max(k.peak, peak, t.Memory)
	t.Peak = k.peak
	return t
}

// Add adds a task to the sum.
func (s *TaskUsage) Add(t *TaskUsage) {
	s.CPUs, s.Granted, s.Stalled = s.CPUs+t.CPUs, s.Granted+t.Granted, s.Stalled+t.Stalled
	if s.Memory, s.Peak = s.Memory+t.Memory, s.Peak+t.Peak; t.Limit == 0 || s.Limit < 0 {
		s.Limit = -1 // a task has no limit
	} else {
		s.Limit += t.Limit
	}
	s.Read, s.Written, s.NetIn, s.NetOut = s.Read+t.Read, s.Written+t.Written, s.NetIn+t.NetIn, s.NetOut+t.NetOut
	s.Threads += t.Threads
	s.GPUs = append(s.GPUs, t.GPUs...)
	s.Age = max(s.Age, t.Age)
}

// GPU returns the mean utilisation of a task's GPUs in percent and their memory in bytes. The
// utilisation is negative if it is unknown for all GPUs, as for parts of GPUs (MIG).
func (t *TaskUsage) GPU() (busy float64, memory int64) {
	known := 0
	for _, g := range t.GPUs {
		if memory += g.Memory; !g.Unknown {
			busy += g.Utilisation
			known++
		}
	}
	if known == 0 {
		return -1, memory
	}
	return busy / float64(known), memory
}

// Waits returns the resource that the task waits for most, and the share of the time that it waits.
func (t *TaskUsage) Waits() (what string, part float64) {
	if p := t.Pressure; p != nil {
		what, part = "cpu", p.CPU
		if p.Memory > part {
			what, part = "memory", p.Memory
		}
		if p.IO > part {
			what, part = "io", p.IO
		}
	}
	return what, min(part, 1)
}

// An UnmeasuredError reports that the tasks of a job do not record their use of resources.
type UnmeasuredError struct{ ID string }

func (e *UnmeasuredError) Error() string {
	return fmt.Sprintf("job %s does not record its resource usage", e.ID)
}

// Advice returns what the user can do.
func (e *UnmeasuredError) Advice() string { return "submit it with hpcc submit --measure …" }

// EnclosingJob returns the job to which this process belongs, according to the environment, or nil.
func EnclosingJob(getenv func(string) string) *metrics.JobOf {
	ids, from := OnNode().NativeIDs(getenv)
	if len(ids) == 0 {
		return nil
	}
	of := &metrics.JobOf{Target: string(from), Native: ids}
	of.Task, _ = strconv.Atoi(getenv("HPCC_TASK_ID"))
	if dir := getenv("HPCC_JOB_DIR"); dir != "" {
		of.ID = filepath.Base(dir)
	}
	return of
}
