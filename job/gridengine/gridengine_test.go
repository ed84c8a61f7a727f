package gridengine

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/testenv"
)

// TestGridEngineQueue parses output that was recorded from Grid Engine 8.1.9.
func TestGridEngineQueue(t *testing.T) {
	f, err := os.Open("testdata/qstat.xml")
	testenv.Check(t, err)
	defer f.Close()
	got, err := parseQueue(f)
	testenv.Check(t, err)
	for id, want := range map[string]batch.State{
		"2": {Running: 14, Waiting: 4, Reason: "suspended"}, "3": {Running: 1}, "4": {Waiting: 1, Reason: "error"},
		"5": {Waiting: 1, Reason: "held"}, "6": {Waiting: 1, Reason: "no free slots yet"},
	} {
		states := got[id].States
		if want.States = states; !reflect.DeepEqual(got[id], want) || len(states) != want.Running+want.Waiting {
			t.Errorf("job %s: %+v; want %+v", id, got[id], want)
		}
	}
	if s := got["2"].States; s[16] != job.QueueRunning || s[17] != job.QueueWaiting || s[4] != 0 {
		t.Errorf("tasks of job 2: %v; want 16 running, 17 waiting, and no 4", s)
	}
	many := `<job_info><job_info><job_list state="pending"><JB_job_number>7</JB_job_number><state>qw</state><tasks>7-20:1,30,40-50:5</tasks></job_list></job_info></job_info>`
	if got, err := parseQueue(strings.NewReader(many)); err != nil || got["7"].Waiting != 18 {
		t.Errorf("waiting tasks: %+v, %v; want 18", got, err)
	}
	if _, err := parseQueue(strings.NewReader("<job_info><job_list>")); err == nil {
		t.Error("a truncated listing is not an error")
	}
}

// TestWaitReason checks states that were seen on Grid Engine 8.1.9.
func TestWaitReason(t *testing.T) {
	for state, want := range map[string]string{"r": "", "t": "", "Rr": "", "hr": "", "qw": "no free slots yet", "hqw": held, "Eqw": "error",
		"S": "suspended", "s": "suspended", "hRq": held, "Rq": "no free slots yet"} {
		if got := waitReason(state); got != want {
			t.Errorf("state %s: %q; want %q", state, got, want)
		}
	}
}

func TestGridEngineReasons(t *testing.T) {
	for file, want := range map[string]string{
		"qstat-j-err.txt":    `can't open output file "/nonexist/x": No such file or directory; "qmod -cj 4" clears the error`,
		"qstat-j-toobig.txt": `(-l gpu=9) cannot run at host "n2" because it offers only hc:gpu=4.000000`,
	} {
		b, err := os.ReadFile(filepath.Join("testdata", file))
		testenv.Check(t, err)
		got := reasons(b)
		if len(got) != 1 {
			t.Errorf("reasons of %s = %q; want those of one job", file, got)
		}
		for _, why := range got {
			if !strings.HasPrefix(why, want) {
				t.Errorf("%s: %q; want %q", file, why, want)
			}
		}
	}
}

func TestGridEngineAccount(t *testing.T) {
	b, err := os.ReadFile("testdata/qacct-j.txt")
	testenv.Check(t, err)
	good, failed, _ := strings.Cut(string(b), "exit_status  0")
	for account, want := range map[string]string{
		good + "exit_status  0\n": "",
		string(b) + strings.Replace("failed 0\nexit_status  0"+failed, "exit_status  0", "exit_status  3", 1): "exit_status 3",
		"failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n":                "failed 37 : qmaster enforced h_rt",
		"": "does not report",
	} {
		if err := checkAccount("1", account); (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("checkAccount = %v; want %q", err, want)
		}
	}
}

// TestEndings parses accounts of Grid Engine 8.1.9, with one of an attempt that was rescheduled.
func TestEndings(t *testing.T) {
	b, err := os.ReadFile("testdata/qacct-j.txt")
	testenv.Check(t, err)
	if got := endings(string(b)); len(got) != 1 || got[0].At.IsZero() {
		t.Errorf("endings: %v; want one, of task 0", got)
	}
	account := func(task, failed, exit, deleted string) string {
		return "==============\ntaskid       " + task + "\nend_time     Sat Nov 21 00:28:35 2026\nfailed       " + failed + "\nexit_status  " + exit + "\ndeleted_by   " + deleted + "\n"
	}
	got := endings(account("1", "0", "0", "NONE") + account("2", "0", "3", "NONE") + account("3", "25  : rescheduling", "0", "NONE") +
		account("4", "25  : rescheduling", "0", "NONE") + account("4", "0", "0", "NONE") + account("5", "100 : assumedly after job", "137", "bob@h1") +
		account("6", "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", "NONE") + account("7", "26  : opening input/output file", "0", "NONE"))
	at := time.Date(2026, 11, 21, 0, 28, 35, 0, time.Local)
	want := map[int]job.End{1: {State: job.Done, At: at}, 2: {State: job.Failed, At: at, Why: "ended with status 3"}, 4: {State: job.Done, At: at},
		5: {State: job.Stopped, At: at, Why: "deleted by bob@h1"}, 6: {State: job.Failed, At: at, Why: "ended at its time limit"},
		7: {State: job.Failed, At: at, Why: "opening input/output file"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("endings: %v; want %v", got, want)
	}
}
