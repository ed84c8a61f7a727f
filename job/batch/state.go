package batch

import (
	"errors"
	"iter"
	"strings"
	"time"

	"hpcc/job"
)

// Table returns the columns of each line of a listing, which bars separate: 17_3|alice|RUNNING. It skips
// lines with fewer than the given number of columns.
func Table(list string, columns int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(list) {
			f := strings.Split(strings.TrimSpace(line), "|")
			if len(f) >= columns && !yield(f) {
				return
			}
		}
	}
}

// A State is the batch system's view of a job. The zero value is a job that it does
// not know or that has ended.
type State struct {
	Running, Waiting int               // number of tasks
	States           map[int]job.Queue // tasks in the queue, by the batch system's own index; set by Add
	Reason           string            // why tasks wait, as the batch system puts it; if none do, why the job never started
	Alive            bool              // the job has not ended, but the states of its tasks are unknown
	Tasks            []Attempt         // records of the tasks, if the batch system keeps them
	Done, Failed     []int             // tasks, by hpcc's index, that have ended and of which the batch system has not given a record
}

// Add counts a task in the queue. index is 0 if the job is not an array.
func (s *State) Add(index int, state job.Queue) {
	if s.States == nil {
		s.States = map[int]job.Queue{}
	}
	s.States[index] = max(s.States[index], state)
	if state == job.QueueWaiting {
		s.Waiting++
	} else {
		s.Running++
	}
}

// Explain sets the reasons why jobs wait, by native ID. It ignores those of jobs that are not in the map.
func Explain(jobs map[string]State, reasons map[string]string) {
	for id, why := range reasons {
		if s, ok := jobs[id]; ok {
			s.Reason = why
			jobs[id] = s
		}
	}
}

// EachEnding is [Accountant.Endings] of a batch system that reports on one job at a time.
func EachEnding(ids []string, endings func(id string) (map[int]job.End, error)) (ends map[string]map[int]job.End, err error) {
	ends = map[string]map[int]job.End{}
	for _, id := range ids {
		of, e := endings(id)
		ends[id], err = of, errors.Join(err, e)
	}
	return ends, err
}

// Indices returns the function for [Description.Index] of a batch system that counts the tasks of an
// array from 1, except in arrays whose indices it owns.
func Indices(owns func(job.Array) bool) func(a job.Array, n int) (index int, ok bool) {
	return func(a job.Array, n int) (index int, ok bool) {
		if owns(a) {
			return n, a.Has(n)
		}
		return a.Nth(n)
	}
}

// Gone reports whether the batch system runs and queues nothing of the job.
func (s State) Gone() bool { return !s.Alive && s.Running+s.Waiting == 0 }

// An Attempt is a batch system's own record of a task that ran without hpcc. Its Index is
// the position in the array, from 0.
type Attempt struct {
	job.Task
	Last     bool          // no other attempt follows
	Message  string        // termination message of the program, with its measurements
	Image    string        // by digest; "" if unknown
	Pulled   time.Duration // time to pull the image; 0 if unknown
	Template string        // template of the workflow step
	All      bool          // the record stands for all tasks of the step
}
