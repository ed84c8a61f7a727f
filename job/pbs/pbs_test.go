package pbs

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"hpcc/job/batch"
	"hpcc/testdata/testenv"
)

// TestPBSQueue parses output that was recorded from OpenPBS 23.06.
func TestPBSQueue(t *testing.T) {
	for file, want := range map[string]map[string]batch.QueueState{
		"qstat-f.json": {
			"10.h": {Waiting: 1, Reason: "held"}, "11[].h": {Running: 2, Waiting: 4, Reason: "Job Array Began at Sat Nov 21 at 00:33"}, "12.h": {Running: 1}, "13.h": {Waiting: 1, Reason: "held"},
			"14.h": {Waiting: 1, Reason: "Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 8 T: 8)"}, "15.h": {Waiting: 1, Reason: "Not enough free nodes available"},
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
