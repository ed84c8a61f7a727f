package lsf

import (
	"os"
	"reflect"
	"slices"
	"testing"

	"hpcc/job/queue"
	"hpcc/testdata/testenv"
)

// TestLSFQueue parses output that was recorded from volclava 2.2, which is compatible with LSF.
func TestLSFQueue(t *testing.T) {
	for _, file := range []string{"bjobs-w.txt", "bjobs-aw.txt"} { // without and with ended jobs
		b, err := os.ReadFile("testdata/" + file)
		testenv.Check(t, err)
		got := parseQueue(string(b))
		const waiting, running = queue.Waiting, queue.Running
		for id, want := range map[string]queue.State{
			"9":  {Running: 2, Waiting: 4, States: map[int]queue.TaskState{1: running, 2: running, 3: waiting, 4: waiting, 5: waiting, 6: waiting}},
			"10": {Running: 1, States: map[int]queue.TaskState{0: running}}, "11": {Waiting: 1, Reason: "held", States: map[int]queue.TaskState{0: waiting}},
			"13": {Waiting: 1, States: map[int]queue.TaskState{0: waiting}}, "3": {}, "5": {},
		} {
			if !reflect.DeepEqual(got[id], want) {
				t.Errorf("%s: job %s: %+v; want %+v", file, id, got[id], want)
			}
		}
	}
	if got := parseQueue("No unfinished job found\n"); len(got) != 0 {
		t.Errorf("parseQueue of an empty listing = %v", got)
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

func TestJoinResources(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"-n 4", `-R "span[hosts=1]"`, "-x"}, []string{"-n 4", `-R "span[hosts=1]"`, "-x"}},
		{[]string{"-n 4", `-R "span[hosts=1]"`, "-x", `-R "rusage[mem=1MB]"`, `-R "rusage[scratch=10]"`},
			[]string{"-n 4", `-R "rusage[mem=1MB,scratch=10] span[hosts=1]"`, "-x"}},
		{[]string{`-R "select[a || b]"`, "-R c", `-R "order[ut]"`, `-R 'order[mem]'`}, []string{`-R "select[(a || b) && c] order[ut:mem]"`}},
		{[]string{`-R "select[a]"`, `-R "select[a]"`}, []string{`-R "select[a]"`}},
		// LSF has no syntax for these:
		{[]string{`-R "span[hosts=1]"`, `-R "span[ptile=2]"`}, []string{`-R "span[hosts=1]"`, `-R "span[ptile=2]"`}},
		{[]string{`-R "rusage[a=1||b=1]"`, `-R "rusage[mem=1MB]"`}, []string{`-R "rusage[a=1||b=1]"`, `-R "rusage[mem=1MB]"`}},
		{[]string{`-R "1*{select[a]} + 2*{select[b]}"`, `-R "select[c]"`}, []string{`-R "1*{select[a]} + 2*{select[b]}"`, `-R "select[c]"`}},
	} {
		if got := joinResources(slices.Clone(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("joinResources(%q) = %q; want %q", c.in, got, c.want)
		}
	}
}

func TestSuccesses(t *testing.T) {
	got := successes("JOBID USER STAT\n9 alice DONE normal h n2 arr[1] Nov 21 00:34\n9 alice EXIT normal h n2 arr[2] Nov 21 00:34\n9 alice DONE normal h n2 arr[3] Nov 21 00:34\n")
	if _, ok := got[3]; len(got) != 2 || !ok {
		t.Errorf("successes: %v; want 1 and 3", got)
	}
	if got := successes("5 alice DONE normal h n2 main Nov 21 00:34\n"); len(got) != 1 {
		t.Errorf("successes of a job that is not an array: %v; want 0", got)
	}
}
