package dispatch

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/testdata/jobtest"
	"hpcc/testdata/testenv"
)

// TestManifests has a real API server validate every golden manifest.
func TestManifests(t *testing.T) {
	for _, target := range []string{"kubernetes", "openshift", "argo"} {
		t.Run(target, func(t *testing.T) {
			list := goldenManifests(t, "testdata/*."+target)
			if target == "openshift" { // the example of docs/biggan.md
				list = append(list, goldenManifests(t, "../../testdata/biggan/*.yaml")...)
			}
			jobtest.CheckManifests(t, target, list)
		})
	}
}

// TestWorkflows has the real "argo lint" validate the golden files for Argo.
func TestWorkflows(t *testing.T) { jobtest.CheckWorkflows(t, goldenManifests(t, "testdata/*.argo")) }

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
