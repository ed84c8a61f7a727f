package job

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestDecide checks the state of a task for its record, the answer of the batch system, its accounting and the wishes
// of the user. A cell with several words stands for a row for each of them. With -v it prints these rows.
func TestDecide(t *testing.T) {
	now := time.Now()
	ended := func(exit int, signal, stop string) *Task {
		return &Task{Start: now.Add(-time.Hour), End: now, Exit: exit, Signal: signal, Stop: stop}
	}
	old, limit := ended(3, "", ""), ended(0, "", "SIGUSR1")
	old.End, limit.AtLimit = now.Add(-2*endingTime), true
	records := map[string]*Task{"none": nil, "open": {Start: now}, "success": ended(0, "", ""), "failure": ended(3, "", ""), "old": old,
		"killed": ended(-1, "SIGKILL", "SIGTERM"), "stopped": ended(0, "", "SIGTERM"), "limit": limit, "cancelled": ended(143, "", StopCancelled)}
	answers := map[string]Facts{"silent": {}, "alive": {Answer: Alive}, "absent": {Answer: Listed},
		"ending": {Answer: Listed, Queue: QueueEnding}, "waiting": {Answer: Listed, Queue: QueueWaiting}, "running": {Answer: Listed, Queue: QueueRunning}}
	more := map[string]func(*Facts){
		"-":          func(*Facts) {},
		"ended:done": func(f *Facts) { f.End = &End{State: Done} },
		"ended:bad":  func(f *Facts) { f.End = &End{State: Failed} },
		"ended:stop": func(f *Facts) { f.End = &End{State: Stopped} },
		"cancelled":  func(f *Facts) { f.Cancelled = now.Add(-time.Second) },    // before the end
		"later":      func(f *Facts) { f.Cancelled = now.Add(3 * time.Second) }, // cancelled after the end
		"sent":       func(f *Facts) { f.Sending = true },
		"retried":    func(f *Facts) { f.Retrying = true },
	}
	for _, c := range []struct {
		record, answer, more string
		want                 Verdict
	}{
		{"success", "silent alive absent ending waiting running", "- ended:bad cancelled sent", Verdict{State: Done}},
		{"failure killed", "waiting", "- cancelled sent", Verdict{State: Waiting, Again: true}},
		{"failure killed", "running ending", "- cancelled sent", Verdict{State: Running, Again: true}},
		{"failure killed", "silent alive absent", "sent", Verdict{State: Waiting}},
		{"failure killed", "silent alive", "retried", Verdict{State: Waiting}},
		{"failure killed", "absent", "- retried later", Verdict{State: Failed, Ask: true}},
		{"failure killed", "silent alive", "- later", Verdict{State: Failed}},
		{"failure killed", "absent", "ended:bad", Verdict{State: Failed}},
		{"failure killed", "absent", "ended:stop", Verdict{State: Stopped}},
		{"failure killed", "silent alive absent", "cancelled", Verdict{State: Stopped}},
		{"old", "ending", "-", Verdict{State: Failed, Ask: true}},
		{"old", "ending", "cancelled", Verdict{State: Failed, Ask: true}}, // it had ended before
		{"old", "waiting", "-", Verdict{State: Waiting, Again: true}},
		{"stopped limit cancelled", "waiting", "- cancelled sent", Verdict{State: Waiting, Again: true}},
		{"stopped limit cancelled", "running ending", "- cancelled", Verdict{State: Running, Again: true}},
		{"stopped limit cancelled", "silent alive absent", "sent", Verdict{State: Waiting}},
		{"stopped", "absent", "-", Verdict{State: Stopped, Ask: true}},
		{"stopped", "silent alive absent", "ended:done", Verdict{State: Done}},
		{"stopped limit cancelled", "silent alive", "-", Verdict{State: Stopped}},
		{"stopped limit cancelled", "absent", "ended:bad ended:stop cancelled", Verdict{State: Stopped}},
		{"limit cancelled", "absent", "- ended:done later", Verdict{State: Stopped}},
		{"none open", "waiting", "- cancelled sent ended:bad", Verdict{State: Waiting}},
		{"none open", "running ending", "- cancelled sent", Verdict{State: Running}},
		{"none open", "absent", "sent", Verdict{State: Waiting}},
		{"none open", "silent alive absent", "ended:done", Verdict{State: Done}},
		{"none open", "silent alive absent", "ended:bad", Verdict{State: Failed}},
		{"none open", "silent alive absent", "ended:stop", Verdict{State: Stopped}},
		{"none open", "absent", "-", Verdict{State: Lost, Ask: true}},
		{"none open", "absent", "cancelled later", Verdict{State: Stopped}},
		{"none", "silent alive", "- cancelled", Verdict{State: Waiting}},
		{"open", "silent alive", "- cancelled", Verdict{State: Running}},
	} {
		for _, record := range strings.Fields(c.record) {
			for _, answer := range strings.Fields(c.answer) {
				for _, wish := range strings.Fields(c.more) {
					f := answers[answer]
					f.Record = records[record]
					more[wish](&f)
					got := f.Decide(now)
					t.Logf("%-9s %-7s %-10s %v", record, answer, wish, got)
					if got != c.want {
						t.Errorf("%s, %s, %s: %v; want %v", record, answer, wish, got, c.want)
					}
				}
			}
		}
	}
}

// TestCounts checks that the sum of the counts is always the number of tasks.
func TestCounts(t *testing.T) {
	var c Counts
	for k, s := range []State{Failed, Waiting, Running, Done, Stopped, Lost, Waiting, Failed} {
		c.Add(8-k, s)
	}
	if want := (Counts{Total: 8, Done: 1, Failed: []int{1, 8}, Running: 1, Waiting: 2, Stopped: 1, Lost: 1}); !reflect.DeepEqual(c, want) {
		t.Errorf("%+v; want %+v", c, want)
	}
	for _, w := range []struct{ running, waiting, total int }{{3, 0, 3}, {1, 1, 3}, {9, 9, 3}, {0, 0, 3}} {
		c := Counts{Total: 3, Running: 1, Waiting: 2}
		c.Spread(w.running, w.waiting, Lost)
		if c.Running+c.Waiting+c.Lost != 3 || c.Running > w.running || c.Waiting > w.waiting {
			t.Errorf("%d and %d: %+v", w.running, w.waiting, c)
		}
	}
}
