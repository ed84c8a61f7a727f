package dispatch

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestManifests has a real API server validate the manifest of every recorded job.
func TestManifests(t *testing.T) {
	for _, target := range []job.Target{job.Kubernetes, job.OpenShift, job.Argo} {
		t.Run(string(target), func(t *testing.T) {
			list := manifests(t, target)
			if target == job.OpenShift {
				for name, text := range around(t) {
					list = append(list, jobtest.Manifest{Name: "around-" + name, Text: text})
				}
				list = append(list, goldenManifests(t, "../../testdata/corpora/biggan/*.yaml")...) // the example of docs/biggan.md
			}
			jobtest.CheckManifests(t, string(target), list)
		})
	}
}

// TestWorkflows has the real "argo lint" validate the workflow of every recorded job.
func TestWorkflows(t *testing.T) { jobtest.CheckWorkflows(t, manifests(t, job.Argo)) }

// manifests returns the manifests of the recorded jobs for a target.
func manifests(t *testing.T, target job.Target) (list []jobtest.Manifest) {
	t.Helper()
	for _, r := range renderings(t) {
		if r.target == target {
			list = append(list, jobtest.Manifest{Name: r.name + "." + string(target), Text: rendered(t, r)})
		}
	}
	return list
}

// goldenManifests returns the files that match a pattern.
func goldenManifests(t *testing.T, pattern string) (found []jobtest.Manifest) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) < 3 {
		t.Fatalf("%s matches %v, %v", pattern, files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		testenv.Check(t, err)
		found = append(found, jobtest.Manifest{Name: filepath.Base(file), Text: string(text)})
	}
	return found
}
