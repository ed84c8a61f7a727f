package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// newRunner returns a runner for a job in a new directory, and the text that its program appends to a file.
func newRunner(t *testing.T, script string) (r *Runner, ran func() string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "ran")
	r = &Runner{Dir: dir, Argv: []string{"sh", "-c", script}, Count: 1, Logf: t.Logf, Ready: func(context.Context) error { return nil }}
	t.Setenv("RAN", file)
	return r, func() string {
		b, _ := os.ReadFile(file)
		return string(b)
	}
}

// TestDoneStaysDone checks that a task that has succeeded does not run when the scheduler starts it again.
func TestDoneStaysDone(t *testing.T) {
	r, ran := newRunner(t, `printf x >>$RAN; [ -e $RAN.good ]`)
	if status := r.Run(t.Context(), 0); status != 1 {
		t.Fatalf("Run = %d; want 1", status)
	}
	testenv.Check(t, os.WriteFile(filepath.Join(r.Dir, "ran.good"), nil, 0o644))
	for range 2 {
		if status := r.Run(t.Context(), 0); status != 0 {
			t.Errorf("Run = %d; want 0", status)
		}
	}
	tasks, err := job.Tasks(r.Dir)
	if err != nil || len(tasks) != 1 || !tasks[0].OK() || tasks[0].Attempt != 1 || ran() != "xx" {
		t.Errorf("records %+v, %v after the runs %q; want two runs, the second one good", tasks, err, ran())
	}
}

// TestStopped checks that a program runs again if it ended with status 0 after a request to stop, and the scheduler
// starts its task again. Other signals, and keys at a terminal, do not count as requests.
func TestStopped(t *testing.T) {
	for _, c := range []struct {
		signal, warning string
		interactive     bool
		stop            string
	}{
		{"TERM", "", false, "SIGTERM"},
		{"XCPU", "", false, "SIGXCPU"},
		{"USR1", "USR1", false, "SIGUSR1"},
		{"USR1", "USR2", false, ""},
		{"USR1", "", false, ""},
		{"INT", "", true, ""},
	} {
		// hpcc passes the signal on to the program, which ends only then.
		r, ran := newRunner(t, `printf x >>$RAN; trap 'exit 0' `+c.signal+`; [ -e $RAN.asked ] && exit 0; : >$RAN.asked; kill -`+c.signal+` $PPID; while :; do sleep 0.05; done`)
		r.Interactive, r.Warned = c.interactive, func() string { return c.warning }
		for range 2 {
			if status := r.Run(t.Context(), 0); status != 0 {
				t.Errorf("%+v: Run = %d; want 0", c, status)
			}
		}
		tasks, err := job.Tasks(r.Dir)
		if err != nil || len(tasks) != 1 || !tasks[0].OK() {
			t.Errorf("%+v: records %+v, %v", c, tasks, err)
			continue
		}
		if want := map[bool]string{true: "x", false: "xx"}[c.stop == ""]; ran() != want {
			t.Errorf("%+v: runs %q; want %q", c, ran(), want)
		}
		var first job.Task
		if c.stop != "" && (!job.ReadRecord(r.Dir, tasks[0].EarlierName(0), &first) || first.Stop != c.stop || first.AtLimit != (c.warning != "") || first.OK()) {
			t.Errorf("%+v: the record of the first attempt is %+v", c, first)
		}
	}
}

// TestCollectedStaysDone checks the same for a large array, whose records are collected, and that the records of
// a scheduler that does not report restarts are not.
func TestCollectedStaysDone(t *testing.T) {
	r, ran := newRunner(t, `printf x >>$RAN`)
	r.Count, r.Schedulers = collectFrom, Schedulers{{IDs: []string{"TOY_ID"}, Restarts: "TOY_RESTARTS"}, {IDs: []string{"MUTE_ID"}}}
	t.Setenv("TOY_ID", "1")
	for _, restarts := range []string{"", "1"} {
		t.Setenv("TOY_RESTARTS", restarts)
		if status := r.Run(t.Context(), 3); status != 0 || ran() != "x" {
			t.Errorf("Run with %q restarts = %d after the runs %q; want 0 after one", restarts, status, ran())
		}
	}
	if entries, err := filepath.Glob(filepath.Join(r.Dir, "task*")); err != nil || len(entries) != 1 {
		t.Errorf("files %q, %v; want that of the host", entries, err)
	}
	t.Setenv("MUTE_ID", "1")
	if r.Run(t.Context(), 4); !job.ReadRecord(r.Dir, "task.4.json", &job.Task{}) {
		t.Error("the record of a task whose scheduler does not report restarts is not in a file of its own")
	}
}

// TestSuperseded checks that an attempt that ends after a newer one has begun leaves the newer record.
func TestSuperseded(t *testing.T) {
	r, _ := newRunner(t, "true")
	old := r.Schedulers.Begin(r.Dir, 0)
	r.keep(old)
	if status := r.Run(t.Context(), 0); status != 0 {
		t.Fatalf("Run = %d; want 0", status)
	}
	r.fail(old, context.Canceled)
	var got job.Records
	err := got.Read(r.Dir, true)
	if err != nil || len(got.Bad) > 0 || len(got.Last) != 1 || !got.Last[0].OK() || len(got.Earlier) != 1 || got.Earlier[0].Problem != context.Canceled.Error() {
		t.Errorf("records: %+v, %v; want the success, and the end of the first attempt before it", got, err)
	}
}

// TestOverlap checks that a task waits for the end of its earlier attempt, if the scheduler may start both.
func TestOverlap(t *testing.T) {
	earlier := exec.Command("sleep", "1")
	testenv.Check(t, earlier.Start())
	go func() { _ = earlier.Wait() }()
	r, _ := newRunner(t, fmt.Sprintf("! kill -0 %d", earlier.Process.Pid)) // it fails while the earlier attempt is alive
	r.Schedulers = Schedulers{{IDs: []string{"TOY_ID"}, Overlaps: true}}
	t.Setenv("TOY_ID", "1")
	old := r.Schedulers.Begin(r.Dir, 0)
	old.PID = earlier.Process.Pid
	r.keep(old)
	if status := r.Run(t.Context(), 0); status != 0 {
		t.Errorf("Run = %d: the program ran next to its earlier attempt", status)
	}
}

// TestMessages checks that a task's file for standard error also gets hpcc's messages, in order, if hpcc opens it: the
// file that the scheduler opens is then discarded.
func TestMessages(t *testing.T) {
	saved, err := unix.Dup(2)
	testenv.Check(t, err)
	defer unix.Close(saved)
	r, _ := newRunner(t, "echo attempt >&2; exit 3")
	r.Schedulers = Schedulers{{IDs: []string{"TOY_ID"}}}
	r.Output, r.Retry.Times = filepath.Join(r.Dir, "out"), 1
	r.Logf = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "hpcc: "+format+"\n", args...) }
	t.Setenv("TOY_ID", "1")
	r.Run(t.Context(), 0)
	testenv.Check(t, unix.Dup3(saved, 2, 0))
	const want = "attempt\nhpcc: task 0: status 3; trying again in 1s\nattempt\n"
	if b, err := os.ReadFile(r.Output); err != nil || string(b) != want {
		t.Errorf("the file has %q, %v; want %q", b, err, want)
	}
}
