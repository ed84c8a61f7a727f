package pbs

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"hpcc/job/queue"
	"hpcc/testdata/testenv"
)

// TestPBSQueue parses output that was recorded from OpenPBS 23.06.
func TestPBSQueue(t *testing.T) {
	f, err := os.Open("testdata/qstat-fxt.json")
	testenv.Check(t, err)
	defer f.Close()
	got, err := parseQueue(f)
	testenv.Check(t, err)
	const waiting, running = queue.Waiting, queue.Running
	one := map[int]queue.TaskState{0: waiting}
	for id, want := range map[string]queue.State{
		"1[].h": {}, "3.h": {}, "10.h": {Waiting: 1, States: one, Reason: "held"}, "12.h": {Running: 1, States: map[int]queue.TaskState{0: running}},
		"11[].h": {Running: 2, Waiting: 4,
			States: map[int]queue.TaskState{0: running, 1: running, 2: waiting, 3: waiting, 4: waiting, 5: waiting}},
		"14.h": {Waiting: 1, States: one, Reason: "Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 8 T: 8)"},
		"15.h": {Waiting: 1, States: one, Reason: "Not enough free nodes available"},
	} {
		if !reflect.DeepEqual(got[id], want) {
			t.Errorf("job %s: %+v; want %+v", id, got[id], want)
		}
	}
	if got, err := parseQueue(strings.NewReader("")); err != nil || len(got) != 0 {
		t.Errorf("parseQueue of empty output = %v, %v", got, err)
	}
	if _, err := parseQueue(strings.NewReader(`{"Jobs":{"1.h":{`)); err == nil {
		t.Error("a truncated listing is not an error")
	}
}

// TestSuccesses parses a history of OpenPBS 23.06.
func TestSuccesses(t *testing.T) {
	b, err := os.ReadFile("testdata/qstat-fxt.json")
	testenv.Check(t, err)
	got, err := successes(b) // of all jobs, where qstat lists one
	testenv.Check(t, err)
	for _, k := range []int{0, 2, 4, 6, 8} {
		if _, ok := got[k]; !ok {
			t.Errorf("successes: %v; want %d", got, k)
		}
	}
	if _, err := successes([]byte("{")); err == nil {
		t.Error("a truncated history is not an error")
	}
}
