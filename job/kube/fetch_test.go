package kube

import (
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
)

func TestResultPath(t *testing.T) {
	one := job.Pod{Volumes: []job.Volume{{Claim: "data", Path: "/data"}, {Path: "/scratch"}}}
	cd := one
	cd.Dir = "/data/run"
	two := job.Pod{Volumes: []job.Volume{{Claim: "a", Path: "/a"}, {Claim: "b", Path: "/b"}}}
	for _, x := range []struct {
		name    string
		pod     job.Pod
		path    string
		running bool
		want    string // or the error
	}{
		{"the only volume", one, "", false, "/data"},
		{"below it", one, "run/x", false, "/data/run/x"},
		{"absolute", one, "/data/run/", false, "/data/run"},
		{"below --cd", cd, "x", false, "/data/run/x"},
		{"another directory", one, "/database", false, "not on a persistent volume, so it is gone; the volumes are at /data"},
		{"up from the volume", one, "../etc", false, "not on a persistent volume"},
		{"scratch is gone", one, "/scratch/x", false, "not on a persistent volume"},
		{"scratch of a running task", one, "/scratch/x", true, "/scratch/x"},
		{"two volumes", two, "", false, "several volumes; name a path below one of them: /a, /b"},
		{"one of two", two, "/b/x", false, "/b/x"},
		{"relative, of two", two, "x", false, "not on a persistent volume"},
		{"no volume", job.Pod{}, "", false, "has no volume with results"},
		{"no volume, a path", job.Pod{}, "/x", false, "the job has no persistent volume, so its files are gone"},
	} {
		f := &batch.Fetch{Submitted: &batch.Submitted{ID: "main-1", Job: &job.Job{Pod: x.pod}}, Path: x.path}
		if x.running {
			f.Running = &job.Task{}
		}
		_, got, err := resultPath(f)
		if err != nil {
			got = err.Error()
		}
		if got != x.want && !(err != nil && strings.Contains(got, x.want)) {
			t.Errorf("%s: resultPath(%q) = %q; want %q", x.name, x.path, got, x.want)
		}
	}
}
