package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/quantity"
	"hpcc/text"
)

// A grown holds tasks whose last request is larger than that of the job.
type grown struct {
	Tasks  []int         `json:"tasks"`
	Memory int64         `json:"memory_bytes,omitempty"` // per node; 0: as the job
	Time   time.Duration `json:"time_ns,omitempty"`      // 0: as the job
}

// request returns the memory and time that the last submission of a task requested.
func (s *Submission) request(index int) job.Request {
	first := job.Request{Memory: s.Job.MemoryPerNode(), Time: s.Job.Time}
	last := first
	for _, r := range s.Reruns {
		if r.has(index) {
			last = job.Request{Memory: cmp.Or(r.Memory, first.Memory), Time: cmp.Or(r.Time, first.Time)}
		}
	}
	return last
}

// Grows reports whether the task with this record will be submitted again with a larger request.
func (s *Submission) Grows(t *job.Task) bool {
	_, grows := s.Job.Grow(t, s.request(t.Index))
	return grows && s.Cancelled.IsZero()
}

// Grow submits the tasks again that ended for lack of memory or time, with larger requests, and
// describes these submissions. onNode reports that hpcc calls it at the end of a task, which the
// scheduler still has in its queue. The caller keeps others from changing the job, and has read
// it since.
func (s *Submission) Grow(ctx context.Context, dir string, onNode bool) (texts []string, err error) {
	home := filepath.Join(dir, s.ID)
	tasks, err := job.Tasks(home)
	if _, err = job.Readable(err); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(tasks, func(t job.Task) bool { return s.Grows(&t) }) {
		return nil, nil
	}
	if onNode {
		leaveJob()
	}
	st, err := s.status(ctx, dir)
	if err != nil {
		return nil, err
	}
	sizes := map[job.Request][]int{}
	for _, t := range st.Tasks {
		requeued := st.requeued[t.Index] && (!onNode || st.queue[t.Index] == job.QueueWaiting)
		if s.Grows(&t) && !requeued {
			to, _ := s.Job.Grow(&t, s.request(t.Index))
			sizes[to] = append(sizes[to], t.Index)
		}
	}
	for _, to := range sorted(sizes) {
		if _, err := s.resubmit(ctx, home, sizes[to], Rerun{Memory: to.Memory, Time: to.Time}, nil); err != nil {
			return texts, fmt.Errorf("running tasks %s of job %s again with %s: %w", list(sizes[to]), s.ID, s.size(to), err)
		}
		texts = append(texts, fmt.Sprintf("job %s: %s again with %s: %s", s.ID, verb(len(sizes[to]), "runs", "run"),
			s.size(to), list(sizes[to])))
	}
	return texts, nil
}

// sorted returns the requests in increasing order.
func sorted(sizes map[job.Request][]int) []job.Request {
	return slices.SortedFunc(maps.Keys(sizes), func(a, b job.Request) int {
		return cmp.Or(cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Time, b.Time))
	})
}

// has reports whether a task is part of the resubmission.
func (r *Rerun) has(index int) bool { return r.Array.IsZero() || r.Array.Has(index) }

// submitTime limits how long a submission without a native ID counts as being submitted. A process
// that died meanwhile leaves such an entry, and a scheduler that has not answered may queue the job late.
const submitTime = 5 * time.Minute

// submitting reports whether hpcc is submitting a task at this moment.
func (s *Submission) submitting(index int, now time.Time) bool {
	if s.Native == "" && now.Sub(s.Submitted) < submitTime {
		return true
	}
	return slices.ContainsFunc(s.Reruns, func(r Rerun) bool { return r.Native == "" && now.Sub(r.Submitted) < submitTime && r.has(index) })
}

// resubmitted reads the job again, and reports whether tasks were submitted since it was read.
func (s *Submission) resubmitted(dir string) bool {
	fresh, err := ReadJob(filepath.Join(dir, s.ID))
	if err != nil || slices.Equal(fresh.natives(), s.natives()) {
		return false
	}
	s.Native, s.Reruns, s.Cancelled = fresh.Native, fresh.Reruns, fresh.Cancelled
	return true
}

// continues submits the tasks of a job that seems to have ended again if they lack memory or time.
// It reports whether the job goes on, because of that or because a task has submitted itself.
func (s *Submission) continues(ctx context.Context, dir string, lock func(context.Context) (release func()),
	report func(string)) (bool, error) {
	defer lock(ctx)()
	fresh, err := ReadJob(filepath.Join(dir, s.ID))
	if err == nil {
		err = ctx.Err() // lock has not waited
	}
	if err != nil {
		return false, err
	}
	texts, err := fresh.Grow(ctx, dir, false)
	if err != nil {
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		report(text)
	}
	again := len(fresh.Reruns) > len(s.Reruns)
	s.Reruns, s.Scripts, s.Cancelled, s.ended = fresh.Reruns, fresh.Scripts, fresh.Cancelled, fresh.ended
	return again, nil
}

// leaveJob removes the variables of the job in which this process runs from its environment, and
// finds commands as the process that submitted the job. The commands of the batch system then submit
// as on a login node, and the new job does not inherit the variables.
func leaveJob() {
	for _, s := range OnNode() {
		if path := os.Getenv(s.Path); path != "" {
			_ = os.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
		}
	}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		_, task := strings.CutPrefix(name, "HPCC_TASK_")
		for _, s := range OnNode() {
			task = task || slices.Contains(s.IDs, name)
		}
		if task || insideJob(name) {
			_ = os.Unsetenv(name)
		}
	}
}

// readGrown finds the tasks whose requests have grown.
func (s *Status) readGrown() {
	sizes := map[job.Request][]int{}
	for _, k := range s.indices() {
		if to := s.request(k); len(s.Reruns) > 0 && (to.Memory > s.Job.MemoryPerNode() || to.Time > s.Job.Time) {
			sizes[to] = append(sizes[to], k)
		}
	}
	for _, to := range sorted(sizes) {
		g := grown{Tasks: sizes[to]}
		if to.Memory > s.Job.MemoryPerNode() {
			g.Memory = to.Memory
		}
		if to.Time > s.Job.Time {
			g.Time = to.Time
		}
		s.Grown = append(s.Grown, g)
	}
}

// Lessons describes which tasks ran with, or still need, more memory or time than the job requested,
// and how to request it.
func (s *Status) Lessons() (lines []string) {
	var most job.Request
	several := len(s.Grown) > 1
	memory, late := 0, 0
	for _, g := range s.Grown {
		if g.Memory > 0 {
			memory += len(g.Tasks)
		}
		if g.Time > 0 {
			late += len(g.Tasks)
		}
		most.Memory, most.Time = max(most.Memory, g.Memory), max(most.Time, g.Time)
		if several {
			lines = append(lines, fmt.Sprintf("%s with %s: %s", verb(len(g.Tasks), "was submitted", "were submitted"),
				s.size(job.Request{Memory: g.Memory, Time: g.Time}), list(g.Tasks)))
		}
	}
	larger := func(n int, what, now, first, flag string) {
		if first != "" {
			now = now + " instead of " + first
		}
		if several {
			now = "up to " + now
		}
		lines = append(lines, fmt.Sprintf("%d of %s ran with more %s: %s; submit with %s next time",
			n, text.Count(s.Total, "task", "tasks"), what, now, flag))
	}
	if memory > 0 {
		larger(memory, "memory", quantity.FormatMemory(most.Memory),
			optional(s.Job.MemoryPerNode(), quantity.FormatMemory), "--mem "+quantity.FormatMemory(most.Memory))
	}
	if late > 0 {
		larger(late, "time", quantity.FormatTime(most.Time), optional(s.Job.Time, quantity.FormatTime),
			"--time "+quantity.FormatTime(most.Time))
	}
	return append(lines, s.lacking()...)
}

// lacking describes the tasks that failed for lack of memory or time.
func (s *Status) lacking() (lines []string) {
	var most job.Request
	var memory, late, growing []int
	records := s.records()
	for _, k := range s.Failed {
		t, asked := records[k], s.request(k)
		if t == nil { // it is not read yet
			continue
		}
		lackedMemory, lackedTime := t.Lacked(asked)
		if s.Grows(t) {
			growing = append(growing, k)
			continue
		}
		if lackedMemory {
			memory, most.Memory = append(memory, k), max(most.Memory, asked.Memory)
		}
		if lackedTime {
			late, most.Time = append(late, k), max(most.Time, asked.Time)
		}
	}
	lacked := func(tasks []int, what, size, flag string) {
		lines = append(lines, fmt.Sprintf("%d of %s had too little %s (%s); request more: hpcc rerun %s %s",
			len(tasks), text.Count(s.Total, "task", "tasks"), what, size, flag, s.ID))
	}
	if most.Memory > 0 {
		lacked(memory, "memory", quantity.FormatMemory(most.Memory), "--mem "+quantity.FormatMemory(2*most.Memory))
	}
	if most.Time > 0 {
		lacked(late, "time", quantity.FormatTime(most.Time), "--time "+quantity.FormatTime(2*most.Time))
	}
	if n := len(growing); n > 0 {
		lines = append(lines, fmt.Sprintf("%d of %s had too little memory or time (%s); submit them with more: hpcc wait %s", n, text.Count(s.Total, "task", "tasks"), list(growing), s.ID))
	}
	return lines
}

// size describes the parts of a request that differ from the job's.
func (s *Submission) size(to job.Request) string {
	var parts []string
	if to.Memory > 0 && to.Memory != s.Job.MemoryPerNode() {
		parts = append(parts, quantity.FormatMemory(to.Memory)+" of memory")
	}
	if to.Time > 0 && to.Time != s.Job.Time {
		parts = append(parts, "a time limit of "+quantity.FormatTime(to.Time))
	}
	return strings.Join(parts, " and ")
}

// verb returns a number of tasks with a verb in the singular or plural.
func verb(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return text.Count(n, "task", "tasks") + " " + many
}

// list lists task indices as an array.
func list(tasks []int) string { return job.Array{}.Of(tasks).String() }

// optional formats a request; "" if there is none.
func optional[N int64 | time.Duration](n N, format func(N) string) string {
	if n == 0 {
		return ""
	}
	return format(n)
}
