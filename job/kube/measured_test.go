package kube

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/metrics"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// measuredPod is a pod whose program has ended.
func measuredPod(exit int, reason, message string) podState {
	var p podState
	text, _ := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": "train-x-0-abc", "creationTimestamp": "2026-11-22T03:59:00Z"},
		"spec":     map[string]any{"nodeName": "n7"},
		"status": map[string]any{"phase": "Failed", "startTime": "2026-11-22T03:59:30Z", "containerStatuses": []any{map[string]any{"name": "main", "imageID": "r.example/x@sha256:" + strings.Repeat("b", 64),
			"state": map[string]any{"terminated": map[string]any{"exitCode": exit, "reason": reason, "message": message, "startedAt": "2026-11-22T04:00:00Z", "finishedAt": "2026-11-22T04:00:20Z"}}}}},
	})
	if err := json.Unmarshal(text, &p); err != nil {
		panic(err)
	}
	return p
}

// TestMeasuredPods checks that each ended task has a complete record, whatever message its pod left.
func TestMeasuredPods(t *testing.T) {
	long := strings.Replace(jobtest.PodFoot, `"later":7`, `"later":"`+strings.Repeat("x", 16<<10)+`"`, 1)
	for _, c := range []struct {
		name    string
		exit    int
		reason  string
		message string
		want    string // exit, signal, wall and problem in the footer
		usage   bool
	}{
		{"complete", 0, "Completed", jobtest.PodHead + jobtest.PodFoot, `0 "" 10 ""`, true},
		{"its own status", 3, "Error", jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"exit":0`, `"exit":3`, 1), `3 "" 10 ""`, true},
		{"a signal", 143, "Error", jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"exit":0`, `"exit":-1,"signal":"SIGTERM"`, 1), `-1 "SIGTERM" 10 ""`, true},
		{"killed with the measuring process", 137, "OOMKilled", jobtest.PodHead + jobtest.PodFoot, `-1 "SIGKILL" 20 "killed because it used more than its memory (OOMKilled); raise the limit with --mem"`, true},
		{"killed by another process", 137, "Error", jobtest.PodHead + jobtest.PodFoot, `-1 "SIGKILL" 20 "the measuring process was killed too; the figures are from its last sample"`, true},
		{"not executable", 126, "Error", jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"exit":0`, `"exit":-1,"problem":"starting /main: exec format error"`, 1), `126 "" 20 "starting /main: exec format error"`, true},
		{"only the header", 137, "OOMKilled", jobtest.PodHead, `-1 "SIGKILL" 20 "killed because it used more than its memory (OOMKilled); raise the limit with --mem"`, false},
		{"a footer cut off", 0, "Completed", jobtest.PodHead + jobtest.PodFoot[:90], `0 "" 20 ""`, false},
		{"a header cut off", 0, "Completed", jobtest.PodHead[:90], `0 "" 20 ""`, false},
		{"no message", 0, "Completed", "", `0 "" 20 ""`, false},
		{"the program's own message", 3, "Error", "cannot open data", `3 "" 20 ""`, false},
		{"wrong types", 0, "Completed", strings.Replace(jobtest.PodHead, `"cpus":2`, `"cpus":"many"`, 1) + jobtest.PodFoot, `0 "" 20 ""`, false},
		{"wrong types in the footer", 0, "Completed", jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"wall_s":10`, `"wall_s":[]`, 1), `0 "" 20 ""`, false},
		{"a sample in the footer's place", 0, "Completed", jobtest.PodHead + strings.Replace(jobtest.PodFoot, "footer", "sample", 1), `0 "" 20 ""`, false},
		{"another reason", 9, "ContainerStatusUnknown", jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"exit":0`, `"exit":9`, 1), `9 "" 10 "ContainerStatusUnknown"`, true},
		{"too long", 0, "Completed", jobtest.PodHead + long, `0 "" 20 ""`, false},
		{"after Argo's text", 3, "Error", "Error (exit code 3): " + jobtest.PodHead + strings.Replace(jobtest.PodFoot, `"exit":0`, `"exit":3`, 1), `3 "" 10 ""`, true},
		{"never started", 128, "StartError", "exec: no such file", `128 "" 20 "the program could not be started: exec: no such file"`, false},
	} {
		home := t.TempDir()
		s := &batch.Submitted{ID: "train-x", Home: home, Natives: []string{"train-x"}, Arrays: make([]job.Array, 1),
			At:  func(*job.Task) time.Time { return time.Date(2026, 11, 22, 3, 58, 0, 0, time.UTC) },
			Job: &job.Job{Name: "train", Measure: true, CPUs: 2, Image: "base", Args: []string{"main"}, Pod: job.Pod{Measurer: job.Measurer{Argv: []string{"x"}, Config: "sha256:c", Architecture: "amd64"}}}}
		st := batch.State{}
		learnPods(&st, []podState{measuredPod(c.exit, c.reason, c.message)}, func(int) bool { return true })
		st.Tasks[0].Pulled = 1500 * time.Millisecond
		testenv.Check(t, (System{Target: job.Kubernetes}).Record(s, map[string]batch.State{"train-x": st}))
		text, err := os.ReadFile(filepath.Join(home, "task.0.jsonl"))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		header, h, footer, f := podRecord(string(text))
		if header == nil || footer == nil || bytes.Count(text, []byte("\n")) != 2 {
			t.Errorf("%s: no record: %s", c.name, text)
			continue
		}
		got, _ := json.Marshal([]any{f.Exit, f.Signal, f.Wall, f.Problem})
		if g := strings.NewReplacer(",\"", " \"", ",", " ", "[", "", "]", "").Replace(string(got)); g != strings.NewReplacer(",", " ").Replace(c.want) {
			t.Errorf("%s: footer %s; want %s", c.name, g, c.want)
		}
		if h.Machine.Host != "n7" || !strings.Contains(string(header["job"]), `"id":"train-x","name":"train","target":"kubernetes","task":0,"native":{"pod":"train-x-0-abc"},"submitted":"2026-11-22T03:58:00Z","pull_s":1.5`) ||
			string(header["asked"]) != `{"cpus":2}` || !strings.Contains(string(header["digest"]), "bbbb") {
			t.Errorf("%s: header %s", c.name, text)
		}
		if (string(header["config"]) == `"sha256:c"`) != (h.Machine.Architecture == "amd64") {
			t.Errorf("%s: configuration %s for architecture %q", c.name, header["config"], h.Machine.Architecture)
		}
		list, err := job.Tasks(home)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if want := "sha256:" + strings.Repeat("b", 64); list[0].ImageDigest != want {
			t.Errorf("%s: image %s; want %s", c.name, list[0].ImageDigest, want)
		}
		if cpu, _, _ := capacity.UsedBy(&list[0]); (cpu == 5*time.Second) != c.usage || (c.usage && string(footer["later"]) != "7") {
			t.Errorf("%s: used %v; %s", c.name, cpu, text)
		}
	}
}

// FuzzPodRecord checks that a task has a valid record of two lines, whatever message its program left.
func FuzzPodRecord(f *testing.F) {
	f.Add(jobtest.PodHead+jobtest.PodFoot, 0)
	f.Add("oh: "+jobtest.PodHead+"{}", 137)
	f.Add(recordHead+"}", 128)
	f.Add(recordHead+`,"machine":null,"limits":null}`+"\n"+`{"kind":"footer","usage":null}`, 1)
	f.Fuzz(func(t *testing.T, message string, exit int) {
		home := t.TempDir()
		s := &batch.Submitted{ID: "a-b", Home: home, Natives: []string{"a-b"}, Arrays: make([]job.Array, 1), Job: &job.Job{Name: "a", Measure: true}, At: func(*job.Task) time.Time { return time.Time{} }}
		st := batch.State{}
		learnPods(&st, []podState{measuredPod(exit, "Error", message)}, func(int) bool { return true })
		testenv.Check(t, (System{Target: job.Kubernetes}).Record(s, map[string]batch.State{"a-b": st}))
		text, err := os.ReadFile(filepath.Join(home, "task.0.jsonl"))
		header, _, footer, _ := podRecord(string(text))
		if err != nil || header == nil || footer == nil || len(text) > 2*16<<10 {
			t.Fatalf("%v: %q", err, text)
		}
	})
}

// TestEndedWith compares footers with the exit status of the container, also for signals without a name
// of their own.
func TestEndedWith(t *testing.T) {
	for _, c := range []struct {
		exit   int
		signal string
		status int
		want   bool
	}{
		{3, "", 3, true}, {3, "", 4, false}, {-1, "SIGKILL", 137, true}, {-1, "SIGKILL", 143, false}, {-1, "SIGRTMIN+1", 163, true}, {-1, "SIGRTMIN+1", 137, false},
	} {
		f := metrics.Footer{Exit: c.exit, Signal: c.signal}
		if got := endedWith(&f, c.status); got != c.want {
			t.Errorf("exit %d, signal %q: endedWith(%d) = %v; want %v", c.exit, c.signal, c.status, got, c.want)
		}
	}
}
