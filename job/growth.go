package job

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/job/quantity"
	"hpcc/text"
)

// A growth specifies how a request grows from attempt to attempt. The zero value never grows.
type growth struct {
	Factor float64 `json:"factor"`
	Max    int64   `json:"max,omitempty"` // bytes or nanoseconds; 0: maxGrowth times the first request
}

// Bounds of a growth. A smaller factor would submit a task hundreds of times.
const (
	minFactor = 1.1
	maxFactor = 100
	maxGrowth = 8 // without a maximum
)

// ParseGrowth parses how memory and time grow: x2, x1.5,64G. An empty text means never.
func (r *Retry) ParseGrowth(memory, limit string) error {
	var err error
	if r.Memory, err = parseGrowth(memory, "x2,64G", quantity.ParseMemory); err != nil {
		return fmt.Errorf("--retry-mem: %w", err)
	}
	parseTime := func(s string) (int64, error) { d, err := quantity.ParseTime(s); return int64(d), err }
	if r.Time, err = parseGrowth(limit, "x2,24h", parseTime); err != nil {
		return fmt.Errorf("--retry-time: %w", err)
	}
	return nil
}

func parseGrowth(s, example string, parse func(string) (int64, error)) (g growth, err error) {
	if s == "" {
		return growth{}, nil
	}
	factor, most, hasMax := strings.Cut(s, ",")
	digits, ok := strings.CutPrefix(factor, "x")
	if !ok {
		digits, ok = strings.CutPrefix(factor, "×")
	}
	g.Factor, err = strconv.ParseFloat(digits, 64)
	if !ok || err != nil || strings.Trim(digits, "0123456789.") != "" {
		return growth{}, fmt.Errorf("%q: not a factor with an optional maximum (for example %s)", text.Short(s), example)
	}
	if g.Factor < minFactor || g.Factor > maxFactor {
		return growth{}, fmt.Errorf("%q: the factor is not between %v and %d", text.Short(s), minFactor, maxFactor)
	}
	if hasMax {
		g.Max, err = parse(most)
	}
	return g, err
}

// most returns the largest request.
func (g growth) most(first int64) int64 {
	if g.Max > 0 || first > math.MaxInt64/maxGrowth {
		return cmp.Or(g.Max, first)
	}
	return first * maxGrowth
}

// next returns the request after last, rounded up to a multiple of unit, or last if it does not
// grow any more.
func (g growth) next(first, last, unit int64) int64 {
	if g.Factor == 0 || last <= 0 {
		return last
	}
	n := math.Ceil(float64(last)*g.Factor/float64(unit)) * float64(unit)
	if most := g.most(first); n >= float64(most) {
		return max(last, most)
	}
	return int64(n)
}

// check returns an error for a growth without a request, or with a maximum below it.
func (g growth) check(flag, request, example string, first int64, format func(int64) string) error {
	switch {
	case g.Factor == 0:
		return nil
	case first <= 0:
		return fmt.Errorf("--retry-%s needs a first request: add --%s, for example --%s %s", flag, request, request, example)
	case g.most(first) <= first:
		return fmt.Errorf("--retry-%s: the maximum is not above the first request, %s", flag, format(first))
	}
	return nil
}

// Grows reports whether a task that ended for lack of memory or time is submitted again.
func (r Retry) Grows() bool { return r.Memory.Factor > 0 || r.Time.Factor > 0 }

// CheckGrowth returns an error if the job cannot grow as its retries request.
func (j *Job) CheckGrowth() error {
	if j.Interactive && j.Retry.Grows() {
		return errors.New("--retry-mem and --retry-time cannot be used with an interactive job, which is not submitted again")
	}
	if err := j.Retry.Memory.check("mem", "mem", "4G", j.MemoryPerNode(), quantity.FormatMemory); err != nil {
		return err
	}
	return j.Retry.Time.check("time", "time", "2h", int64(j.Time), func(n int64) string { return quantity.FormatTime(time.Duration(n)) })
}

// Grow returns the request of the next attempt of a task that ended with last, and whether that
// is larger. Only what the task lacked grows.
func (j *Job) Grow(t *Task, last Request) (next Request, grows bool) {
	next = last
	memory, late := t.Lacked(last)
	if memory {
		next.Memory = j.Retry.Memory.next(j.MemoryPerNode(), last.Memory, 1<<20)
	}
	if late {
		next.Time = time.Duration(j.Retry.Time.next(int64(j.Time), int64(last.Time), int64(time.Second)))
	}
	return next, next != last
}

// Resize sets the memory and time of the job, for a resubmission of its tasks. Zero values change
// nothing. The maxima of the retries apply to the job that was submitted first.
func (j *Job) Resize(to Request) {
	j.Retry.Memory.Max, j.Retry.Time.Max = 0, 0
	if now := j.MemoryPerNode(); to.Memory > 0 && to.Memory != now {
		if j.MemoryPerCPU > 0 {
			j.MemoryPerCPU = int64(math.Ceil(float64(j.MemoryPerCPU) * (float64(to.Memory) / float64(now))))
		} else {
			j.Memory = to.Memory
		}
	}
	if to.Time > 0 && to.Time != j.Time {
		j.Time, j.TimeMin = to.Time, 0
	}
}

// nearLimit is the share of a limit that counts as reached if a signal ended the task.
const nearLimit = 0.97

// moreMemory is the part of the [Task.Problem] of a task that the scheduler killed for its memory.
const moreMemory = "it used more memory than it requested"

// Explain completes the record of a task by an end of which its scheduler reports. It reports whether that adds
// something.
func (t *Task) Explain(end End, scheduler string) bool {
	switch {
	case end.Memory:
		t.Problem = scheduler + " killed it because " + moreMemory
	case t.stopped() && end.State == Done && !t.AtLimit:
		t.Stop = "" // what asked the program to stop did not end the task
	case t.Ended() && end.State == Stopped:
		t.Stop = StopCancelled
	case t.Ended() && !(t.stopped() && end.State == Failed):
		return false
	case end.State == Stopped:
		t.Stop, t.Problem = StopCancelled, scheduler+": "+end.Why
	case end.State == Failed:
		t.Problem = scheduler + ": " + end.Why
	}
	if !t.Ended() {
		if t.End = end.At; t.End.IsZero() {
			t.End = time.Now()
		}
		if t.Start.IsZero() || t.End.Before(t.Start) { // the clocks of the nodes differ
			t.Start = t.End
		}
	}
	return true
}

// Lacked reports whether a task ended because it had too little memory or time, by its record.
// SIGKILL alone proves neither: the kernel counted a kill for lack of memory in the task's
// cgroup, or the peak of the memory was at the request. A task that got SIGTERM before its limit
// was cancelled, or killed for its memory if the scheduler's accounting says so. asked is the request
// of the attempt.
func (t *Task) Lacked(asked Request) (memory, late bool) {
	if !t.Ended() || t.OK() {
		return false, false
	}
	killed, terminated := t.endedBy(syscall.SIGKILL), t.endedBy(syscall.SIGTERM)
	reached := asked.Time > 0 && t.End.Sub(t.Start).Seconds() >= nearLimit*asked.Time.Seconds()
	switch {
	case t.Problem != "":
		return strings.Contains(t.Problem, moreMemory), strings.Contains(t.Problem, "time limit")
	case t.OOMKills > 0 && !terminated, killed && t.full(asked):
		return true, false
	case t.stopped():
		return false, t.AtLimit
	}
	return false, reached && (killed || terminated)
}

// Exceeded reports whether a signal ended a task that had used the memory that it requested, but
// its record does not show whether the scheduler killed it for that.
func (t *Task) Exceeded(asked Request) bool {
	memory, late := t.Lacked(asked)
	return t.Ended() && t.Problem == "" && !memory && !late && (t.endedBy(syscall.SIGTERM) || t.endedBy(syscall.SIGINT)) && t.full(asked)
}

// endedBy reports whether a signal ended the program, or its last process, according to a shell.
func (t *Task) endedBy(s syscall.Signal) bool {
	return t.Signal == unix.SignalName(s) || t.Exit == 128+int(s)
}

// full reports whether the peak of the task's memory was at its request.
func (t *Task) full(asked Request) bool {
	var used struct {
		MaxRSS int64 `json:"max_rss_bytes"`
	}
	_ = json.Unmarshal(t.Usage, &used)
	return asked.Memory > 0 && float64(used.MaxRSS) >= nearLimit*float64(asked.Memory)
}
