package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// writeJob writes a submitted job to its directory below dir.
func writeJob(t *testing.T, dir, id, name, native string) *Submission {
	t.Helper()
	s := &Submission{ID: id, Native: native, Cluster: Cluster{Target: "gridengine"}, Submitted: time.Unix(1e9, 0), Job: &job.Job{Name: name}}
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, id), 0o755))
	testenv.Check(t, s.write(filepath.Join(dir, id)))
	return s
}

// unread writes jobs that cannot be read, so that reading them is noticed.
func unread(t *testing.T, dir string) {
	t.Helper()
	for n := range 20 {
		testenv.Check(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("other-", n), "job.json"), 0o755))
	}
}

// TestFindReadsLittle finds jobs without reading others.
func TestFindReadsLittle(t *testing.T) {
	dir := t.TempDir()
	unread(t, dir)
	writeJob(t, dir, "train-010909-014640", "train", "17").noteNative(dir)
	writeJob(t, dir, "train-010909-014640-2", "train", "18").noteNative(dir)
	test := writeJob(t, dir, "test-010909-014640", "test", "19")
	test.Reruns = []Rerun{{Native: "21"}}
	testenv.Check(t, test.write(filepath.Join(dir, test.ID)))
	test.noteNative(dir)
	for id, want := range map[string]string{
		"train-010909-014640":   "train-010909-014640",
		"train-010909-014640-2": "train-010909-014640-2",
		"18":                    "train-010909-014640-2",
		"19":                    "test-010909-014640",
		"21":                    "test-010909-014640", // of a rerun
		"test":                  "test-010909-014640",
		"te":                    "test-010909-014640",
	} {
		f, err := newFinder(dir)
		testenv.Check(t, err)
		if found := f.find(id); len(found) != 1 || found[0].ID != want || len(f.bad) > 0 {
			t.Errorf("%s names %v; want %s, and no other job read: %v", id, found, want, f.bad)
		}
	}
	if _, warnings, err := Statuses(t.Context(), dir, nil); err != nil || len(warnings) < 20 {
		t.Errorf("without IDs: %d unreadable jobs, %v; want 20", len(warnings), err)
	}
	if subs, err := findAll(dir, []string{"te", "18"}); err != nil || len(subs) != 2 {
		t.Errorf("two jobs: %v, %v", subs, err)
	}
}

// TestFindWithoutIndex finds a job by its native ID if the index lacks or misnames it.
func TestFindWithoutIndex(t *testing.T) {
	for what, index := range map[string]string{
		"no index": "", "an empty line": "\n\n", "another job": "17\tgone-1\n", "a path": "17\t../x\n17\t/etc\n17\t..\n", "no newline": "17", "bytes": "\x00\xff\t17\n17\t\n",
	} {
		dir := t.TempDir()
		writeJob(t, dir, "a-1", "a", "17")
		writeJob(t, dir, "b-1", "b", "18")
		if index != "" {
			testenv.Check(t, os.WriteFile(filepath.Join(dir, nativesFile), []byte(index), 0o644))
		}
		if s, err := Find(dir, "18"); err != nil || s.ID != "b-1" {
			t.Errorf("%s: Find(18) = %v, %v", what, s, err)
		}
		if s, err := Find(dir, "17"); err != nil || s.ID != "a-1" {
			t.Errorf("%s: Find(17) = %v, %v", what, s, err)
		}
		if list, _, err := Statuses(context.Background(), dir, nil); err != nil || len(list) != 2 {
			t.Errorf("%s: Statuses gives %d jobs, %v", what, len(list), err)
		}
	}
}

// TestSucceededReadsLittle checks that a task's start reads only the jobs that it needs.
func TestSucceededReadsLittle(t *testing.T) {
	t.Setenv("PATH", "") // no scheduler answers
	dir := t.TempDir()
	writeJob(t, dir, "a-1", "a", "17").noteNative(dir)
	testenv.Check(t, os.Chmod(dir, 0o100)) // its jobs cannot be listed
	defer os.Chmod(dir, 0o755)
	if err := Succeeded(t.Context(), dir, nil); err != nil {
		t.Errorf("without needs: %v", err)
	}
	err := Succeeded(t.Context(), dir, []string{"17"})
	if err == nil || err.Error() != "dependency a-1 (17): 1 of 1 task did not succeed" {
		t.Errorf("a job without records: %v", err)
	}
	task := &job.Task{Start: time.Unix(1e9, 0), End: time.Unix(1e9+1, 0)}
	testenv.Check(t, task.Write(filepath.Join(dir, "a-1")))
	testenv.Check(t, Succeeded(t.Context(), dir, []string{"17"}))
}

// TestSucceededWaits checks that a task whose scheduler started it too early waits for its dependency.
func TestSucceededWaits(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	writeJob(t, dir, "a-1", "a", "17").noteNative(dir)
	ended := &job.Task{Start: time.Unix(1e9, 0), End: time.Unix(1e9+1, 0)}
	testenv.Check(t, ended.Write(bin))
	// The dependency runs when the scheduler is asked, and ends then.
	script := fmt.Sprintf("#!/bin/sh\ncp %s/task.0.json %s/a-1/\necho '<job_list><JB_job_number>17</JB_job_number><state>r</state></job_list>'\n", bin, dir)
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "qstat"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	testenv.Check(t, Succeeded(t.Context(), dir, []string{"17"}))
}

// FuzzNatives reads any index.
func FuzzNatives(f *testing.F) {
	f.Add("17\ta-1\n", "17")
	f.Add("17\t../a\n17", "17")
	f.Fuzz(func(t *testing.T, index, native string) {
		dir := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, nativesFile), []byte(index), 0o644))
		for _, id := range jobsOfNative(dir, native) {
			if filepath.Dir(filepath.Join(dir, id)) != dir {
				t.Errorf("the job %q is not in the directory", id)
			}
		}
	})
}

// TestSimilarJob suggests the job that a misspelled name or ID probably meant.
func TestSimilarJob(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.Mkdir(filepath.Join(dir, "lr-scan-261126-184630"), 0o755))
	list := `"hpcc status" lists the jobs`
	for id, want := range map[string]string{"lr-scna": `did you mean "lr-scan"?`,
		"lr-scan-261126-184631": `did you mean "lr-scan-261126-184630"?`, "other": list, "": list} {
		_, err := Find(dir, id)
		var none *NoJobError
		if !errors.As(err, &none) || none.Advice() != want {
			t.Errorf("Find(%q): %v; want the advice %q", id, err, want)
		}
	}
}
