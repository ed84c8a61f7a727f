package pbs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hpcc/job/batch"
	"hpcc/testdata/testenv"
)

// TestPBSQueue parses output that was recorded from OpenPBS 23.06.06. In qstat-f-held.json, 102[] is
// an array that was held while two tasks ran.
func TestPBSQueue(t *testing.T) {
	for file, want := range map[string]map[string]batch.QueueState{
		"qstat-f.json": {
			"10.h": {Waiting: 1, Reason: "held"}, "11[].h": {Running: 2, Waiting: 4}, "12.h": {Running: 1}, "13.h": {Waiting: 1, Reason: "held"},
			"14.h": {Waiting: 1, Reason: "Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 8 T: 8)"}, "15.h": {Waiting: 1, Reason: "Not enough free nodes available"},
		},
		"qstat-f-held.json": {
			"99.vm": {Waiting: 1, Reason: "held"}, "101.vm": {Waiting: 1, Reason: "waits for afterok:99.vm@vm"}, "102[].vm": {Running: 2, Waiting: 2, Reason: "held"},
			"103.vm": {Running: 1}, "104.vm": {Waiting: 1, Reason: "Insufficient amount of resource: ncpus (R: 8 A: 6 T: 16)"},
		},
		"qstat-fxt.json": {"1[].h": {}},
	} {
		f, err := os.Open("testdata/" + file)
		testenv.Check(t, err)
		got, err := queue(f)
		f.Close()
		testenv.Check(t, err)
		for id, w := range want {
			if !reflect.DeepEqual(got[id], w) {
				t.Errorf("%s: job %s: %+v; want %+v", file, id, got[id], w)
			}
		}
	}
	if got, err := queue(strings.NewReader("")); err != nil || len(got) != 0 {
		t.Errorf("queue of empty output = %v, %v", got, err)
	}
	if _, err := queue(strings.NewReader(`{"Jobs":{"1.h":{`)); err == nil {
		t.Error("a truncated listing is not an error")
	}
}

// TestPBSQuery checks that jobs deleted because of a dependency are reported, and other ended jobs are not.
func TestPBSQuery(t *testing.T) {
	fakeQstat(t)
	got, err := System{}.Query(t.Context(), []string{"999.vm", "96[].vm", "97.vm", "100.vm", "99.vm"})
	testenv.Check(t, err)
	for id, want := range map[string]batch.QueueState{
		"97.vm": {Reason: "dependency failed: afterok:96[].vm@vm"}, "99.vm": {Waiting: 1, Reason: "held"},
		"96[].vm": {}, "100.vm": {}, "999.vm": {}, // ended, deleted by its owner, unknown
	} {
		if !reflect.DeepEqual(got[id], want) {
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
