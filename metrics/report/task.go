package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"hpcc/metrics"
)

// A Task is one run, with what its file and its job's record say of it.
type Task struct {
	File    string             `json:"file,omitempty"` // of the measured run
	Ending  Ending             `json:"ending"`
	Figures map[string]float64 `json:"figures"` // by the name of the measure; what is not known is not there
	Header  metrics.Header     `json:"header"`
	Footer  *metrics.Footer    `json:"footer,omitempty"`

	Ranks    int  `json:"-"` // that it asked for; 0: one
	Measured bool `json:"-"` // the footer is of the file: not of the job's record, which knows one process and its children
}

// An Ending is how a run ended.
type Ending string

// The endings. Of what has none the record ends before the run, or the run goes on.
const (
	Done      Ending = "done"
	failed    Ending = "failed"        // by its exit status
	signalled Ending = "signal"        // ended by one
	NoMemory  Ending = "out of memory" // and then killed
	TimeLimit Ending = "time limit"
	notRun    Ending = "not run" // hpcc could not, or ended it
	Open      Ending = "no end"
)

// endings are all of them, in the order in which they are told.
var endings = []Ending{Done, failed, NoMemory, TimeLimit, signalled, notRun, Open}

// nearLimit is the part of a limit that was as good as reached, when what ended the
// run did not leave its name; overLimit that from which on nobody can have held it.
const (
	nearLimit = 0.97
	overLimit = 1.1
)

// ending tells how a run ended. Slurm and kernels kill without a word: a run that was killed
// at its limit was killed for it. What is told goes before that.
func ending(h *metrics.Header, f *metrics.Footer) Ending {
	if f == nil {
		return Open
	}
	killed := f.Signal == "SIGKILL" || f.Exit == 137
	told := killed || f.Signal == "SIGTERM" || f.Exit == 143
	memory := limitOr(h.Limits.Memory)
	if asked := limitOr(h.Asked.Memory); float64(f.Memory) <= overLimit*asked {
		memory = min(memory, asked)
	}
	switch {
	case f.Exit == 0 && f.Signal == "" && f.Problem == "":
		return Done
	case f.Cgroup != nil && f.Cgroup.OOMKills > 0 && !h.Limits.Shared, strings.Contains(f.Problem, "more than its memory"):
		return NoMemory
	case strings.Contains(f.Problem, "time limit"), told && h.Asked.Time > 0 && f.Wall >= h.Asked.Time*nearLimit:
		return TimeLimit
	case killed && float64(f.Memory) > nearLimit*memory:
		return NoMemory
	case f.Signal != "":
		return signalled
	case f.Problem != "":
		return notRun
	}
	return failed
}

// limitOr is a limit, where there is one.
func limitOr(n int64) float64 {
	if n <= 0 {
		return most
	}
	return float64(n)
}

// index is the task's index in its job; 0 where it is of none.
func (t *Task) index() int {
	if t.Header.Job == nil {
		return 0
	}
	return t.Header.Job.Task
}

func (t *Task) attempt() int {
	if t.Header.Job == nil {
		return 0
	}
	return t.Header.Job.Attempt
}

// key is what a run has in common with that of another system that did the same: its
// parameters, or its index; "" where it has neither.
func (t *Task) key() string {
	if t.Header.Job == nil {
		return ""
	}
	if p := t.Header.Job.Params; len(p) > 0 {
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(p)) {
			fmt.Fprintf(&b, "%q=%q ", k, p[k])
		}
		return b.String()
	}
	return fmt.Sprint(t.Header.Job.Task)
}

// end is when the run ended; zero while it runs.
func (t *Task) end() time.Time {
	switch {
	case t.Footer == nil:
		return time.Time{}
	case t.Footer.End.IsZero():
		return t.Header.Start.Add(time.Duration(t.Figures["wall_s"] * float64(time.Second)))
	}
	return t.Footer.End
}

// how is the ending with what belongs to it.
func (t *Task) how() string {
	switch {
	case t.Ending == failed:
		return fmt.Sprintf("exit %d", t.Footer.Exit)
	case t.Ending == signalled:
		return plain(t.Footer.Signal)
	case t.Ending == notRun:
		return "not run: " + plain(t.Footer.Problem)
	}
	return string(t.Ending)
}

// before puts tasks in order.
func before(a, b *Task) int {
	return cmp.Or(cmp.Compare(a.index(), b.index()), cmp.Compare(a.attempt(), b.attempt()), a.Header.Start.Compare(b.Header.Start), cmp.Compare(a.File, b.File))
}
