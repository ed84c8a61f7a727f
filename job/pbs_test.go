package job

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// What OpenPBS 23.06 said is read.
func TestPBSQueue(t *testing.T) {
	for file, want := range map[string]map[string]standing{
		"qstat-f.json": {
			"10.h": {waiting: 1, reason: "held"}, "11[].h": {running: 2, waiting: 4, reason: "Job Array Began at Sat Nov 21 at 00:33"}, "12.h": {running: 1}, "13.h": {waiting: 1, reason: "held"},
			"14.h": {waiting: 1, reason: "Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 8 T: 8)"}, "15.h": {waiting: 1, reason: "Not enough free nodes available"},
		},
		"qstat-fxt.json": {"1[].h": {}},
	} {
		f, err := os.Open("testdata/pbs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pbsQueue(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for id, w := range want {
			if !reflect.DeepEqual(got[id], w) {
				t.Errorf("%s: job %s: %+v; want %+v", file, id, got[id], w)
			}
		}
	}
	if got, err := pbsQueue(strings.NewReader("")); err != nil || len(got) != 0 {
		t.Errorf("no jobs: %v, %v", got, err)
	}
	if _, err := pbsQueue(strings.NewReader(`{"Jobs":{"1.h":{`)); err == nil {
		t.Error("a listing that breaks off is taken")
	}
}
