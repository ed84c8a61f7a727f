package job

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/text"
)

// A Retry specifies which endings of a task are retried, and how often. The zero value never
// retries.
type Retry struct {
	Times int `json:"times"` // after the first attempt
	// Endings are exit=99, signal=SIGKILL, preempted, node-fail; an empty list means all.
	Endings []string `json:"on,omitempty"`

	// Memory and Time are how the request grows when a task ended for lack of it. The task is then
	// submitted again, because an allocation has a fixed size.
	Memory growth `json:"memory,omitzero"`
	Time   growth `json:"time,omitzero"`
}

// Endings that only the scheduler sees.
const (
	preempted = "preempted"
	nodeFail  = "node-fail"
)

// ParseEndings parses a list such as exit=99,signal=SIGKILL,preempted.
func ParseEndings(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	out := strings.Split(list, ",")
	for _, e := range out {
		kind, value, _ := strings.Cut(e, "=")
		n, err := strconv.Atoi(value)
		switch {
		case kind == "exit" && err == nil && n > 0 && n < 256, kind == "signal" && strings.HasPrefix(value, "SIG"),
			e == preempted, e == nodeFail:
		default:
			return nil, fmt.Errorf("%q: not exit=NUMBER, signal=SIGNAME, %s or %s", text.Short(e), preempted, nodeFail)
		}
	}
	return out, nil
}

// Again reports whether hpcc should retry a task with this ending. A task that reached its time
// limit would reach it again, and one that was asked to stop must not continue.
func (r Retry) Again(t *Task) bool {
	if t.OK() || !t.Ended() || t.Problem != "" || t.stopped() {
		return false
	}
	ending := "exit=" + strconv.Itoa(t.Exit)
	if t.Signal != "" {
		ending = "signal=" + t.Signal
	}
	return len(r.Endings) == 0 || slices.Contains(r.Endings, ending)
}

// Statuses returns the exit statuses of containers to retry; a signal's is 128 plus its number, as
// in shells. node reports whether the loss of a node is retried.
func (r Retry) Statuses() (codes []int, node bool) {
	node = len(r.Endings) == 0
	for _, e := range r.Endings {
		kind, value, _ := strings.Cut(e, "=")
		switch kind {
		case "exit":
			n, _ := strconv.Atoi(value)
			codes = append(codes, n)
		case "signal":
			if n := unix.SignalNum(value); n > 0 {
				codes = append(codes, 128+int(n))
			}
		default:
			node = true
		}
	}
	slices.Sort(codes) // Kubernetes requires sorted codes
	return slices.Compact(codes), node
}

// Requeue reports whether the scheduler should restart a task whose node was taken away.
func (r Retry) Requeue() bool {
	return r.Times > 0 && (len(r.Endings) == 0 || slices.Contains(r.Endings, preempted) || slices.Contains(r.Endings, nodeFail))
}

// Tries returns how often the scheduler has started this task before, by its records. A rerun
// counts as a new task. dir is the job's directory.
func (t *Task) Tries(dir string) int {
	n := 0
	for i := range t.Attempt {
		var before Task
		err := ReadJSON(filepath.Join(dir, t.EarlierName(i)), &before)
		if err == nil && t.Native != "" && before.Native == t.Native {
			n++
		}
	}
	return n
}
