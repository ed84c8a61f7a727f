package pbs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/testenv"
)

// TestPBSQueue parses output that was recorded from OpenPBS 23.06.06. Most jobs lack the fields
// that nothing reads. In qstat-f-held.json, 102[] is an array that was held while two tasks ran.
func TestPBSQueue(t *testing.T) {
	f, err := os.Open("testdata/qstat-fxt.json")
	testenv.Check(t, err)
	defer f.Close()
	got, err := parseQueue(f)
	testenv.Check(t, err)
	const waiting, running = job.QueueWaiting, job.QueueRunning
	one := map[int]job.Queue{0: waiting}
	for id, want := range map[string]batch.State{
		"1[].h": {}, "3.h": {}, "10.h": {Waiting: 1, States: one, Reason: "held"}, "12.h": {Running: 1, States: map[int]job.Queue{0: running}},
		"11[].h": {Running: 2, Waiting: 4,
			States: map[int]job.Queue{0: running, 1: running, 2: waiting, 3: waiting, 4: waiting, 5: waiting}},
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

// TestPBSQuery checks that jobs deleted because of a dependency are reported, and other ended jobs are not.
func TestPBSQuery(t *testing.T) {
	fakeQstat(t)
	got, err := System{}.Query(t.Context(), []string{"999.vm", "96[].vm", "97.vm", "100.vm", "99.vm"})
	testenv.Check(t, err)
	for id, want := range map[string]batch.State{
		"97.vm": {Reason: "dependency failed: afterok:96[].vm@vm"}, "99.vm": {Waiting: 1, Reason: "held"},
		"96[].vm": {}, "100.vm": {}, "999.vm": {}, // ended, deleted by its owner, unknown
	} {
		if g := got[id]; g.Running != want.Running || g.Waiting != want.Waiting || g.Reason != want.Reason {
			t.Errorf("Query: job %s: %+v; want %+v", id, got[id], want)
		}
	}
}

// TestPBSSucceeded checks the arrays on which a task depends.
func TestPBSSucceeded(t *testing.T) {
	fakeQstat(t)
	err := succeeded(t.Context(), "96[].vm")
	if want := "dependency 96[].vm did not succeed: Job Array Began at Wed Nov 25 at 21:33 and failed"; err == nil || err.Error() != want {
		t.Errorf("succeeded of an array with failed tasks = %v; want %s", err, want)
	}
	for _, id := range []string{"95.vm", "999[].vm"} { // PBS checks jobs that are not arrays
		if err := succeeded(t.Context(), id); err != nil {
			t.Errorf("succeeded(%s) = %v", id, err)
		}
	}
}

// fakeQstat puts a qstat on PATH that prints recorded output.
func fakeQstat(t *testing.T) {
	dir, err := filepath.Abs("testdata")
	testenv.Check(t, err)
	bin := t.TempDir()
	qstat := "#!/bin/sh\n[ \"$1\" != -x ] || { cat " + dir + "/qstat-fxt.txt; exit 153; }\ncat " + dir + "/qstat-f-held.json\n"
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "qstat"), []byte(qstat), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// TestEndings parses a history of OpenPBS 23.06.
func TestEndings(t *testing.T) {
	b, err := os.ReadFile("testdata/qstat-fxt.json")
	testenv.Check(t, err)
	got, err := endings(b) // of all jobs, where qstat lists one
	testenv.Check(t, err)
	for _, k := range []int{0, 2, 4, 6, 8} {
		if _, ok := got[k]; !ok {
			t.Errorf("endings: %v; want %d", got, k)
		}
	}
	got, err = endings([]byte(`{"Jobs": {"7[3].vm": {"job_state": "X", "Exit_status": -27, "obittime": "Thu Nov 26 01:39:30 2026"}, "7[4].vm": {"job_state": "X", "Exit_status": 271}}}`))
	if err != nil || len(got) != 1 || !got[3].Memory || got[3].At.IsZero() {
		t.Errorf("endings: %+v, %v; want that task 3 was killed", got, err)
	}
	if _, err := endings([]byte("{")); err == nil {
		t.Error("a truncated history is not an error")
	}
}
