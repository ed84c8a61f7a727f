package lsf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestLSFQueue parses output that was recorded from volclava 2.2, which is compatible with LSF.
func TestLSFQueue(t *testing.T) {
	for _, file := range []string{"bjobs-w.txt", "bjobs-aw.txt"} { // without and with ended jobs
		b, err := os.ReadFile("testdata/" + file)
		testenv.Check(t, err)
		got := parseQueue(string(b))
		const waiting, running = job.QueueWaiting, job.QueueRunning
		for id, want := range map[string]batch.State{
			"9":  {Running: 2, Waiting: 4, States: map[int]job.Queue{1: running, 2: running, 3: waiting, 4: waiting, 5: waiting, 6: waiting}},
			"10": {Running: 1, States: map[int]job.Queue{0: running}}, "11": {Waiting: 1, Reason: "held", States: map[int]job.Queue{0: waiting}},
			"13": {Waiting: 1, States: map[int]job.Queue{0: waiting}}, "3": {}, "5": {},
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

func TestEndings(t *testing.T) {
	got := endings("JOBID USER STAT\n9 alice DONE normal h n2 arr[1] Nov 21 00:34\n9 alice EXIT normal h n2 arr[2] Nov 21 00:34\n9 alice DONE normal h n2 arr[3] Nov 21 00:34\n")
	if _, ok := got[3]; len(got) != 2 || !ok {
		t.Errorf("endings: %v; want 1 and 3", got)
	}
	if got := endings("5 alice DONE normal h n2 main Nov 21 00:34\n"); len(got) != 1 {
		t.Errorf("endings of a job that is not an array: %v; want 0", got)
	}
}

// TestKilled parses a history of volclava 2.2: LSF killed task 2 for its memory, and a user killed 2772. The reason
// for task 3 is that of IBM's LSF.
func TestKilled(t *testing.T) {
	b, err := os.ReadFile("testdata/volclava-2.2/bhist-l.txt")
	testenv.Check(t, err)
	if got := killed(string(b)); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("killed: %v; want 2 and 3", got)
	}
}

// volclava is the directory with the answers of volclava 2.2 on two hosts with 8 slots.
const volclava = "volclava-2.2/"

// commands puts commands on PATH that print recorded answers and end with a status.
func commands(t *testing.T, answers map[string]string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, answer := range answers {
		file, status, _ := strings.Cut(answer, " ")
		path, err := filepath.Abs("testdata/" + file)
		testenv.Check(t, err)
		script := fmt.Sprintf("#!/bin/sh\ncat %q\nexit %s\n", path, cmp.Or(status, "0"))
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
}

// TestOpenLava checks that scripts for OpenLava have no units, and that options that it would misread are errors.
func TestOpenLava(t *testing.T) {
	commands(t, map[string]string{"lsid": volclava + "lsid.txt", "bsub": volclava + "bsub-h.txt 255"})
	for _, tt := range []struct{ in, want, err string }{
		{"#BSUB -J \"a\"\n#BSUB -x\necho -M 1MB\n", "#BSUB -J \"a\"\n#BSUB -x\necho -M 1MB\n", ""},
		{"#BSUB -R \"rusage[mem=10MB] span[hosts=1]\"\n#BSUB -M 10MB\n", "#BSUB -R \"rusage[mem=10] span[hosts=1]\"\n#BSUB -M 10\n", ""},
		{"#BSUB -Jd text\n#BSUB -sp 3\n", "#BSUB -Jd text\n#BSUB -sp 3\n", ""},
		{"#BSUB -env \"none, A\"\n", "", `volclava project 2.2 does not support the option -env "none, A"; submit the job without it`},
		{"#BSUB -gpu num=1\n", "", "volclava project 2.2 does not support the option -gpu num=1; submit the job without it"},
		{"#BSUB -rn\n", "", "volclava project 2.2 does not support the option -rn; submit the job without it"},
	} {
		got, err := openLava(t.Context(), tt.in)
		if text := fmt.Sprint(err); got != tt.want || (err != nil && text != tt.err) || (err == nil && tt.err != "") {
			t.Errorf("openLava(%q) = %q, %v; want %q, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
	commands(t, map[string]string{"lsid": "lsid-documented.txt"})
	in := "#BSUB -M 10MB\n#BSUB -env all\n"
	if got, err := openLava(t.Context(), in); got != in || err != nil {
		t.Errorf("openLava(%q) with IBM's LSF = %q, %v; want no change", in, got, err)
	}
}

// TestCancel checks that cancelling succeeds if LSF ends the tasks in the background, or if they have ended.
func TestCancel(t *testing.T) {
	for _, tt := range []struct{ answer, err string }{
		{volclava + "bkill-array.txt 255", ""},
		{volclava + "bkill-ended.txt 255", ""},
		{volclava + "bkill-unknown.txt 255", "cancelling job 77: Job <77>: No matching job found"},
	} {
		commands(t, map[string]string{"bkill": tt.answer})
		if err := (System{}).Cancel(t.Context(), "77"); (err == nil) != (tt.err == "") || (err != nil && err.Error() != tt.err) {
			t.Errorf("Cancel with %s: %v; want %q", tt.answer, err, tt.err)
		}
	}
}

func TestSucceeded(t *testing.T) {
	commands(t, map[string]string{"bjobs": volclava + "bjobs-a.txt"})
	for id, want := range map[string]string{
		"165": "<nil>", "first": "<nil>",
		"166": "dependency 166 did not succeed: bjobs lists 1 of 2 tasks as DONE",
	} {
		if got := fmt.Sprint(succeeded(t.Context(), id)); got != want {
			t.Errorf("succeeded(%s) = %s; want %s", id, got, want)
		}
	}
}

// TestRefusal checks that messages of bsub remain without the usage that follows some of them.
func TestRefusal(t *testing.T) {
	var got []string
	for part := range strings.SplitSeq(jobtest.Recorded(t, volclava+"bsub-errors.txt"), "$ bsub ") {
		if _, answer, ok := strings.Cut(part, "\n"); ok {
			got = append(got, refusal([]byte(answer), errors.New("exit status 255")).Error())
		}
	}
	want := []string{
		"nosuch: No such queue. Job not submitted.",
		"Too many processors requested. Job not submitted.",
		"10MB: MEMLIMT value should be a positive integer. Job not submitted.",
		"Bad resource requirement syntax. Job not submitted.",
		"wd: Bad CPULIMIT specification. Job not submitted.",
		"bsub: illegal option -- gpu",
		"99999: No matching job found. Job not submitted.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the messages are %q; want %q", got, want)
	}
}
