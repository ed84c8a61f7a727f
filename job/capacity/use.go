package capacity

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"hpcc/job"
	"hpcc/job/quantity"
)

// A Use compares a job's requests with the usage of its tasks.
type Use struct {
	ID         string        `json:"id"`
	Target     job.Target    `json:"target"`
	State      string        `json:"state"`
	Tasks      int           `json:"tasks"`          // number of started tasks
	CPUs       int           `json:"cpus"`           // of a task, over its nodes
	GPUs       int           `json:"gpus,omitempty"` // of a task, over its nodes
	Nodes      int           `json:"nodes"`          // of a task
	CPUTime    time.Duration `json:"cpu_time_ns"`
	CPUUnknown bool          `json:"cpu_unknown,omitempty"` // the processor time of some tasks is unknown, for example of running ones
	Contended  bool          `json:"contended,omitempty"`   // tasks waited for processors, so fewer are not enough
	Failed     bool          `json:"failed,omitempty"`      // no task succeeded, so its usage is not what the job needs
	Wall       time.Duration `json:"wall_ns"`               // sum over all tasks except lost ones
	Longest    time.Duration `json:"longest_ns"`
	Time       time.Duration `json:"time_ns,omitempty"` // requested time limit
	Memory     int64         `json:"memory_bytes,omitempty"`
	PeakMemory int64         `json:"peak_memory_bytes"` // of the largest task, or of the largest process if the scheduler reports no figure
	Ended      time.Time     `json:"ended,omitzero"`    // end of the last task, or start of a lost one; zero while one runs
	Advice     []string      `json:"advice,omitempty"`
}

// Usage is a scheduler's figure for a job: the processor time of all tasks, and the memory of the largest. Zero
// means not counted.
type Usage struct {
	CPU  time.Duration
	Peak int64
}

// manyPreemptions is the number of involuntary context switches per second of processor time
// above which other programs competed for the same processors. A program alone has a few.
const manyPreemptions = 50

// UsedBy returns the usage in a task's record: processor time, the resident set of the largest
// process, and whether the task was often preempted.
func UsedBy(t *job.Task) (cpu time.Duration, peak int64, contended bool) {
	var u struct {
		User     float64 `json:"user_s"`
		System   float64 `json:"system_s"`
		MaxRSS   int64   `json:"max_rss_bytes"`
		Switches int64   `json:"involuntary_switches"`
	}
	if json.Unmarshal(t.Usage, &u) != nil || !(u.User >= 0 && u.System >= 0 && u.User+u.System < quantity.MaxTime.Seconds()) {
		return 0, 0, false
	}
	seconds := u.User + u.System
	return time.Duration(seconds * float64(time.Second)), u.MaxRSS, float64(u.Switches) > manyPreemptions*seconds
}

// A request is too high if the job used less than this part of it.
const (
	minCPUShare     = 0.5
	minShareDivisor = 4 // of memory and time: a quarter
)

// minWall is the shortest run time for which the use of processors is significant.
const minWall = time.Minute

// Advise returns a sentence for each request that is much too high, with a sufficient one. It
// does not advise fewer processors for a job that waited for processors, and gives no advice
// for a job that failed.
func (u *Use) Advise() []string {
	var out []string
	if u.Failed {
		return nil
	}
	if busy := u.busy(); !u.CPUUnknown && !u.Contended && u.CPUs > 1 && u.Wall >= minWall && busy < minCPUShare*float64(u.CPUs) {
		out = append(out, fmt.Sprintf("%.1f of %d processors were busy: ask for %d", busy, u.CPUs, max(1, int(math.Ceil(busy)))))
	}
	if u.Memory > 0 && u.PeakMemory > 0 && u.PeakMemory < u.Memory/minShareDivisor {
		enough := max((u.PeakMemory*3/2+memoryStep-1)/memoryStep*memoryStep, memoryStep)
		if enough < u.Memory {
			out = append(out, fmt.Sprintf("%s of %s of memory were used: --mem %s would do",
				quantity.FormatMemory(u.PeakMemory), quantity.FormatMemory(u.Memory), formatMemoryFlag(enough)))
		}
	}
	if enough := (2*u.Longest + 10*time.Minute - 1).Truncate(10 * time.Minute); u.Time > 0 &&
		u.Longest < u.Time/minShareDivisor && enough < u.Time {
		out = append(out, fmt.Sprintf("it ran for %s of %s: --time %s would do, and short jobs start sooner",
			quantity.FormatTime(u.Longest.Round(time.Second)), quantity.FormatTime(u.Time),
			quantity.FormatTime(max(enough, 10*time.Minute))))
	}
	return out
}

// formatMemoryFlag formats an amount of memory for --mem. From 8 GiB on it rounds up to full GiB.
func formatMemoryFlag(n int64) string {
	if n >= 8<<30 {
		return fmt.Sprintf("%dG", (n+1<<30-1)>>30)
	}
	return fmt.Sprintf("%dM", n>>20)
}

// memoryStep is the unit to which amounts of memory are rounded up, in bytes.
const memoryStep = 64 << 20

// busy returns the average number of busy processors.
func (u *Use) busy() float64 {
	if u.Wall <= 0 {
		return 0
	}
	return u.CPUTime.Seconds() / u.Wall.Seconds()
}

// Busy returns the busy part of the requested processors, from 0 to 1 or slightly more.
func (u *Use) Busy() float64 { return u.busy() / float64(max(u.CPUs, 1)) }
