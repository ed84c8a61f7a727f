package dispatch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/testdata/helpers/testenv"
)

// TestLostLog: a node's error message for a lost log is not a log, and does not overwrite
// the output that was saved while the program ran.
func TestLostLog(t *testing.T) {
	pods := `"/var/log/pods/lab_x_b9e3/main/0.log"`
	for _, c := range []struct {
		log, before string // "": nothing kept
		want        string
		gone        bool
	}{
		{"begun\n", "", "begun\n", false},
		{"", "", "", false},
		{"unable to retrieve container logs for containerd://45646575e93c", "begun\n", "begun\n", false},
		{"unable to retrieve container logs for cri-o://45646575e93c\n", "begun\n", "begun\n", false},
		{"failed to try resolving symlinks in path " + pods + ": lstat " + pods + ": no such file or directory", "", "", true},
		{"failed to open log file " + pods + ": open " + pods + ": no such file or directory", "begun\n", "begun\n", false},
		{"unable to retrieve container logs for containerd://45646575e93c\nsays my program", "old", "unable to retrieve container logs for containerd://45646575e93c\nsays my program", false},
		{"unable to retrieve container logs for the night\n", "old", "unable to retrieve container logs for the night\n", false},
		{strings.Repeat("long ", 4096), "old", strings.Repeat("long ", 4096), false},
	} {
		t.Run("", func(t *testing.T) {
			podsProxy(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.log) })
			dir := t.TempDir()
			s := &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Kubernetes}, Job: &job.Job{Name: "x", Dir: dir, Output: "x.out"}}
			if c.before != "" {
				testenv.Check(t, os.WriteFile(filepath.Join(dir, "x.out"), []byte(c.before), 0o644))
			}
			end := time.Now().UTC().Truncate(time.Second)
			testenv.Check(t, (&job.Task{Native: "x-0", Start: end, End: end}).Write(dir))
			testenv.Check(t, s.keeper().Collect(s.Within(t.Context()), s.kept(dir), false))
			list, err := job.Tasks(dir)
			if err != nil || len(list) != 1 || list[0].Gone != c.gone || (list[0].Output == "") != c.gone {
				t.Fatalf("tasks %+v, %v; want gone %t", list, err, c.gone)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "x.out")); string(got) != c.want {
				t.Errorf("kept %.80q, want %.80q", got, c.want)
			}
		})
	}
}

// TestNoLogOfWhatNeverBegan: a task that never started has no log; that is noted once and not
// repeated as a warning.
func TestNoLogOfWhatNeverBegan(t *testing.T) {
	asked := podsProxy(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"kind":"Status","message":"container \"main\" in pod \"x-0\" is waiting to start: ContainerCreating"}`)
	})
	dir := t.TempDir()
	s := &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Kubernetes}, Job: &job.Job{Name: "x", Dir: dir, Output: "x.out"}}
	runs := &job.Task{Native: "x-0", Start: time.Now().UTC()}
	testenv.Check(t, runs.Write(dir))
	if err := s.keeper().Collect(s.Within(t.Context()), s.kept(dir), true); err == nil || !strings.Contains(err.Error(), "waiting to start") {
		t.Errorf("of a task that runs: %v", err)
	}
	runs.End, runs.Problem = runs.Start, "ended after its time limit"
	testenv.Check(t, runs.Write(dir))
	for range 2 {
		if err := s.keeper().Collect(s.Within(t.Context()), s.kept(dir), false); err != nil {
			t.Error(err)
		}
	}
	list, err := job.Tasks(dir)
	if err != nil || len(list) != 1 || !list[0].Gone || *asked != 2 {
		t.Errorf("%+v, %v, after %d questions", list, err, *asked)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.out")); err == nil {
		t.Error("an empty log was kept")
	}
}

// TestLogOfASilentServer: an Argo server reports nothing for a deleted pod. The output that
// was saved on cancellation stays.
func TestLogOfASilentServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	for _, cancelled := range []bool{true, false} {
		dir := t.TempDir()
		s := &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Argo, Env: map[string]string{argo.ServerVariable: server.URL}}, Job: &job.Job{Name: "x", Dir: dir, Output: "x.out"}}
		want := ""
		if cancelled {
			s.Cancelled, want = time.Now(), "begun\n"
		}
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "x.out"), []byte("begun\n"), 0o644))
		end := time.Now().UTC()
		testenv.Check(t, (&job.Task{Native: "x-0", Start: end, End: end}).Write(dir))
		testenv.Check(t, s.keeper().Collect(s.Within(t.Context()), s.kept(dir), false))
		list, err := job.Tasks(dir)
		if err != nil || len(list) != 1 || list[0].Output != filepath.Join(dir, "x.out") {
			t.Fatalf("tasks %+v, %v", list, err)
		}
		if got, _ := os.ReadFile(list[0].Output); string(got) != want {
			t.Errorf("cancelled %t: kept %q, want %q", cancelled, got, want)
		}
	}
}
