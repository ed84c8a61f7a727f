package lsf

import (
	"os"
	"reflect"
	"testing"

	"hpcc/job/batch"
	"hpcc/testdata/testenv"
)

// TestLSFQueue parses output that was recorded from volclava 2.2, which is compatible with LSF.
func TestLSFQueue(t *testing.T) {
	for _, file := range []string{"bjobs-w.txt", "bjobs-aw.txt"} { // without and with ended jobs
		b, err := os.ReadFile("testdata/" + file)
		testenv.Check(t, err)
		got := queue(string(b))
		for id, want := range map[string]batch.QueueState{
			"10": {Running: 1}, "9": {Running: 2, Waiting: 4}, "12": {Running: 1}, "11": {Waiting: 1, Reason: "held"}, "13": {Waiting: 1}, "3": {}, "5": {},
		} {
			if !reflect.DeepEqual(got[id], want) {
				t.Errorf("%s: job %s: %+v; want %+v", file, id, got[id], want)
			}
		}
	}
	if got := queue("No unfinished job found\n"); len(got) != 0 {
		t.Errorf("queue of an empty listing = %v", got)
	}
	b, err := os.ReadFile("testdata/bjobs-p.txt")
	testenv.Check(t, err)
	got := reasons(string(b))
	if len(got) != 2 || got["9"] != "Job slot limit reached: 3 hosts" || got["13"] != got["9"] {
		t.Errorf("reasons = %q", got)
	}
}

func TestLSFAnswer(t *testing.T) {
	if m := answer().FindStringSubmatch("a site's own words\nJob <9> is submitted to default queue <normal>.\n"); m == nil || m[1] != "9" {
		t.Errorf("the answer of bsub parses as %q", m)
	}
}
