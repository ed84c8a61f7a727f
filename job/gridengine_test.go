package job

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What a real Grid Engine (8.1.9) said is read.
func TestGridEngineQueue(t *testing.T) {
	f, err := os.Open("testdata/gridengine/qstat.xml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := gridEngineQueue(f)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]standing{
		"2": {running: 14, waiting: 4, reason: "suspended"}, "3": {running: 1}, "4": {waiting: 1, reason: "error"},
		"5": {waiting: 1, reason: "held"}, "6": {waiting: 1, reason: "no free slots yet"},
	} {
		if !reflect.DeepEqual(got[id], want) {
			t.Errorf("job %s: %+v; want %+v", id, got[id], want)
		}
	}
	many := `<job_info><job_info><job_list state="pending"><JB_job_number>7</JB_job_number><state>qw</state><tasks>7-20:1,30,40-50:5</tasks></job_list></job_info></job_info>`
	if got, err := gridEngineQueue(strings.NewReader(many)); err != nil || got["7"].waiting != 18 {
		t.Errorf("tasks that wait: %+v, %v; want 18", got, err)
	}
	if _, err := gridEngineQueue(strings.NewReader("<job_info><job_list>")); err == nil {
		t.Error("a listing that breaks off is taken")
	}
}

func TestGridEngineReasons(t *testing.T) {
	for file, want := range map[string]string{
		"qstat-j-err.txt":    `can't open output file "/nonexist/x": No such file or directory; "qmod -cj 4" lets it try again`,
		"qstat-j-toobig.txt": `(-l gpu=9) cannot run at host "n2" because it offers only hc:gpu=4.000000`,
	} {
		b, err := os.ReadFile(filepath.Join("testdata/gridengine", file))
		if err != nil {
			t.Fatal(err)
		}
		got := gridEngineReasons(b)
		if len(got) != 1 {
			t.Errorf("%s: %q; want one job's", file, got)
		}
		for _, why := range got {
			if !strings.HasPrefix(why, want) {
				t.Errorf("%s: %q; want %q", file, why, want)
			}
		}
	}
}

func TestGridEngineAccount(t *testing.T) {
	b, err := os.ReadFile("testdata/gridengine/qacct-j.txt")
	if err != nil {
		t.Fatal(err)
	}
	good, failed, _ := strings.Cut(string(b), "exit_status  0")
	for account, want := range map[string]string{
		good + "exit_status  0\n": "",
		string(b) + strings.Replace("failed 0\nexit_status  0"+failed, "exit_status  0", "exit_status  3", 1): "exit_status 3",
		"failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137\n":                "failed 37 : qmaster enforced h_rt",
		"": "says nothing",
	} {
		if err := gridEngineAccount("1", account); (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("an account: %v; want %q", err, want)
		}
	}
}
