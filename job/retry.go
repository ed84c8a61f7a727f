package job

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/job/message"
)

// A Retry is what of a task's endings are tried again, and how often. The zero
// value is never.
type Retry struct {
	Times int `json:"times"` // after the first time
	// Endings are exit=99, signal=SIGKILL, preempted, node-fail; none stands for all.
	Endings []string `json:"on,omitempty"`
}

// Endings that the scheduler sees, and not the task.
const (
	preempted = "preempted"
	nodeFail  = "node-fail"
)

// ParseEndings reads a list such as exit=99,signal=SIGKILL,preempted.
func ParseEndings(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	out := strings.Split(list, ",")
	for _, e := range out {
		kind, value, _ := strings.Cut(e, "=")
		n, err := strconv.Atoi(value)
		switch {
		case kind == "exit" && err == nil && n > 0 && n < 256, kind == "signal" && strings.HasPrefix(value, "SIG"), e == preempted, e == nodeFail:
		default:
			return nil, fmt.Errorf("%q: not exit=NUMBER, signal=SIGNAME, %s or %s", message.Short(e), preempted, nodeFail)
		}
	}
	return out, nil
}

// Again says whether a task that ended so is to be tried once more, here. One
// that was ended at its limit would be again.
func (r Retry) Again(t *Task) bool {
	if t.OK() || !t.Ended() || t.Problem != "" {
		return false
	}
	ending := "exit=" + strconv.Itoa(t.Exit)
	if t.Signal != "" {
		ending = "signal=" + t.Signal
	}
	return len(r.Endings) == 0 || slices.Contains(r.Endings, ending)
}

// Statuses are those of containers that are tried again: a signal's is 128 and its number
// (as shells have it). node says whether the loss of a node is, too.
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
	slices.Sort(codes) // as Kubernetes wants them
	return slices.Compact(codes), node
}

// Requeue says whether the scheduler is to start a task again whose node was
// taken away.
func (r Retry) Requeue() bool {
	return r.Times > 0 && (len(r.Endings) == 0 || slices.Contains(r.Endings, preempted) || slices.Contains(r.Endings, nodeFail))
}

// Tries is how often the scheduler's own task has been begun before, by its
// records; a rerun is another one. dir is the job's directory.
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
