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

// A Task is one run with the data of its file and its job's record.
type Task struct {
	File    string             `json:"file,omitempty"` // of the measured run
	Ending  Ending             `json:"ending"`
	Figures map[string]float64 `json:"figures"` // by the name of the measure; unknown figures are missing
	Header  metrics.Header     `json:"header"`
	Footer  *metrics.Footer    `json:"footer,omitempty"`

	soFar    *metrics.Footer // usage up to the last sample of a file without a footer
	Ranks    int             `json:"-"` // requested processes; 0: one
	Measured bool            `json:"-"` // the footer is from the file, not from the job's record, which covers one process and its children
}

// gpus returns the number of GPUs that the run requested, or else could use.
func (t *Task) gpus() float64 {
	if n := t.Header.Asked.GPUs; n > 0 {
		return float64(n)
	}
	return float64(len(t.Header.Machine.GPUs))
}

// used returns the run's usage: its footer, or the usage up to its last sample. It is nil if
// neither is known.
func (t *Task) used() *metrics.Footer {
	if t.Footer != nil {
		return t.Footer
	}
	return t.soFar
}

// An Ending describes how a run ended.
type Ending string

// The endings. Open means that the record has no end, or the run is in progress.
const (
	Done      Ending = "done"
	failed    Ending = "failed"        // nonzero exit status
	signalled Ending = "signal"        // ended by a signal
	NoMemory  Ending = "out of memory" // killed for lack of memory
	TimeLimit Ending = "time limit"
	notRun    Ending = "not run" // hpcc could not start it, or ended it
	Open      Ending = "no end"
)

// endings lists all endings in display order.
var endings = []Ending{Done, failed, NoMemory, TimeLimit, signalled, notRun, Open}

// nearLimit is the share of a limit that counts as reached if the cause of the end is
// unknown. overLimit is the share above which a limit cannot have been in force.
const (
	nearLimit = 0.97
	overLimit = 1.1
)

// ending returns how a run ended. Slurm and kernels kill without a message, so a run killed
// near its limit counts as killed for it, unless the record has the cause.
func ending(h *metrics.Header, f *metrics.Footer) Ending {
	if f == nil {
		return Open
	}
	killed := f.Signal == "SIGKILL" || f.Exit == 137
	terminated := killed || f.Signal == "SIGTERM" || f.Exit == 143
	memory := limitOr(h.Limits.Memory)
	if request := limitOr(h.Asked.Memory); float64(f.Memory) <= overLimit*request {
		memory = min(memory, request)
	}
	switch {
	case f.Exit == 0 && f.Signal == "" && f.Problem == "":
		return Done
	case f.Cgroup != nil && f.Cgroup.OOMKills > 0 && !h.Limits.Shared, strings.Contains(f.Problem, "more than its memory"):
		return NoMemory
	case strings.Contains(f.Problem, "time limit"), terminated && h.Asked.Time > 0 && f.Wall >= h.Asked.Time*nearLimit:
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

// limitOr returns a limit, or infinity without one.
func limitOr(n int64) float64 {
	if n <= 0 {
		return most
	}
	return float64(n)
}

// index returns the task's index in its job, or 0 without a job.
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

// key returns the identity of a run for matching it between systems: its parameters, else
// its index, else "".
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

// end returns the end of the run, or zero while it is in progress.
func (t *Task) end() time.Time {
	switch {
	case t.Footer == nil:
		return time.Time{}
	case t.Footer.End.IsZero():
		return t.Header.Start.Add(time.Duration(t.Figures["wall_s"] * float64(time.Second)))
	}
	return t.Footer.End
}

// how describes the ending with its details.
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

// before orders tasks.
func before(a, b *Task) int {
	return cmp.Or(cmp.Compare(a.index(), b.index()), cmp.Compare(a.attempt(), b.attempt()),
		a.Header.Start.Compare(b.Header.Start), cmp.Compare(a.File, b.File))
}
