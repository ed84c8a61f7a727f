package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// wrongMembers returns objects in which one member, at any depth, has another type than in t.
func wrongMembers(t reflect.Type) (out []map[string]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		at, list := f.Type, false
		if list = at.Kind() == reflect.Slice; list || at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if at.Kind() == reflect.Struct && at != reflect.TypeFor[time.Time]() {
			for _, in := range wrongMembers(at) {
				var value any = in
				if list {
					value = []any{in}
				}
				out = append(out, map[string]any{name: value})
			}
		}
		var wrong any = "wrong"
		if f.Type.Kind() == reflect.String {
			wrong = 7
		}
		out = append(out, map[string]any{name: wrong})
	}
	return out
}

// TestPodRecordReads checks that package metrics can read the records that hpcc keeps of pods, even
// if the programs in the pods left invalid ones.
func TestPodRecordReads(t *testing.T) {
	line := func(kind string, members map[string]any) string {
		b, _ := json.Marshal(members)
		return strings.TrimSuffix(`{"kind":"`+kind+`",`+string(b[1:]), "\n") + "\n"
	}
	good := func() map[string]any { return map[string]any{"version": 1, "start": "2026-11-22T04:00:00Z"} }
	head := line("header", good())
	messages := []string{
		head + `{"kind":"footer"}` + "\n",
		head + `{"kind":"footer","Kind":"sample","EXIT":3}` + "\n",
		line("header", map[string]any{"Digest": 7, "CONFIG": 7, "Job": 7, "ASKED": 7, "Image": 7, "Start": 7}),
		line("header", map[string]any{"Digest": "7", "Machine": map[string]any{"HOST": 7}}),
	}
	for _, m := range wrongMembers(reflect.TypeFor[metrics.Header]()) {
		for k, v := range good() {
			if m[k] == nil {
				m[k] = v
			}
		}
		messages = append(messages, line("header", m))
	}
	for _, m := range wrongMembers(reflect.TypeFor[metrics.Footer]()) {
		messages = append(messages, head+line("footer", m))
	}
	home := podsThatLeft(t, messages)
	for k, m := range messages {
		r, err := metrics.ReadRecord(filepath.Join(home, fmt.Sprintf("task.%d.jsonl", k+1)), true)
		if err != nil || r.Footer == nil || r.Torn || r.Header.Machine.Host != "n7" || r.Header.Job == nil || r.Header.Job.Task != k+1 {
			t.Errorf("of %q: %v", m, err)
		}
	}
}

// podsThatLeft returns the directory of a job whose pods each left a message, after hpcc queried them.
func podsThatLeft(t *testing.T, messages []string) (home string) {
	t.Helper()
	jobs, bin := t.TempDir(), t.TempDir()
	var pods []map[string]any
	for k, m := range messages {
		ended := map[string]any{"exitCode": 0, "reason": "Completed", "message": m, "startedAt": "2026-11-22T04:00:00Z", "finishedAt": "2026-11-22T04:00:20Z"}
		pods = append(pods, map[string]any{
			"metadata": map[string]any{"name": fmt.Sprintf("x-%d", k), "labels": map[string]string{"hpcc/job": "x-1"}, "annotations": map[string]string{"batch.kubernetes.io/job-completion-index": fmt.Sprint(k)}},
			"spec":     map[string]any{"nodeName": "n7"},
			"status":   map[string]any{"containerStatuses": []any{map[string]any{"name": "main", "state": map[string]any{"terminated": ended}}}},
		})
	}
	socket := filepath.Join(bin, "s")
	listener, err := net.Listen("unix", socket)
	testenv.Check(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			_ = json.NewEncoder(w).Encode(map[string]any{"items": pods})
		case strings.HasSuffix(r.URL.Path, "/jobs"):
			fmt.Fprint(w, `{"items":[]}`)
		default:
			http.NotFound(w, r)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	kubectl := "#!/bin/sh\nfor w; do case $w in --unix-socket=*) ln -s " + socket + " ${w#*=};; esac; done\nexec sleep 60\n"
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	array, err := job.ParseArray(fmt.Sprintf("1-%d", len(messages)))
	testenv.Check(t, err)
	s := &dispatch.Submission{ID: "x-1", Native: "x-1", Cluster: dispatch.Cluster{Target: job.Kubernetes},
		Job: &job.Job{Name: "x", Measure: true, Array: array, Output: os.DevNull}}
	b, err := json.Marshal(s)
	testenv.Check(t, err)
	testenv.Check(t, os.MkdirAll(filepath.Join(jobs, s.ID), 0o755))
	testenv.Check(t, os.WriteFile(filepath.Join(jobs, s.ID, "job.json"), b, 0o644))
	if _, _, err := dispatch.Statuses(t.Context(), jobs, nil); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(jobs, s.ID)
}
