package metrics

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// measured runs a shell script in its own process group and returns its record, which the
// script sees as run.jsonl.
func measured(t *testing.T, script string) (*Record, Run) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.jsonl")
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.SysProcAttr = filepath.Dir(file), &syscall.SysProcAttr{Setpgid: true}
	run, err := Measure(t.Context(), cmd, Options{File: file})
	testenv.Check(t, err)
	r, err := ReadRecord(file, true)
	testenv.Check(t, err)
	if r.Footer == nil || len(r.Samples) == 0 || r.Footer.Samples != len(r.Samples) || r.Torn {
		t.Fatalf("%d samples, footer %+v", len(r.Samples), r.Footer)
	}
	for i, s := range r.Samples[1:] {
		if was := r.Samples[i]; s.At < was.At || s.CPU < was.CPU || s.Read < was.Read || s.Written < was.Written {
			t.Errorf("sample %d is %+v after %+v", i+1, s, was)
		}
	}
	return r, run
}

const burn = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done"

// TestMeasureCountsOrphans: processes that a program leaves behind, in its group, in their
// own, or in a session, count for the run and are reaped.
func TestMeasureCountsOrphans(t *testing.T) {
	for name, way := range map[string]string{"group": "sh -c", "session": "setsid sh -c"} {
		r, _ := measured(t, "cd "+t.TempDir()+"; (("+way+" 'echo $$ >pid; "+burn+"; echo done' >done &) &) ; while ! [ -s done ]; do sleep 0.05; done; while kill -0 $(cat pid); do sleep 0.05; done; rm done pid")
		f := r.Footer
		if f.Usage.User+f.Usage.System < 0.02 || f.Processes < 2 {
			t.Errorf("%s: %+v; want the processor time of the orphan, and it among the processes", name, f)
		}
	}
}

// TestMeasureCountsLeftRunning: processes that the program leaves running count with what the
// samples saw of them, because nobody waits for them.
func TestMeasureCountsLeftRunning(t *testing.T) {
	dir := t.TempDir()
	r, _ := measured(t, "cd "+dir+`; sh -c 'echo $$ >pid; `+burn+`; : >done; exec sleep 1000' & while ! [ -e done ]; do sleep 0.05; done
		for k in 1 2; do n=$(wc -c <"$OLDPWD/run.jsonl"); while [ "$(wc -c <"$OLDPWD/run.jsonl")" = "$n" ]; do sleep 0.05; done; done`)
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	testenv.Check(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	testenv.Check(t, err)
	testenv.Check(t, syscall.Kill(n, syscall.SIGKILL))
	last := r.Samples[len(r.Samples)-1]
	if u := r.Footer.Usage; last.CPU < 0.02 || u.User+u.System < last.CPU-1e-6 {
		t.Errorf("%+v in total; the last sample has %g s", u, last.CPU)
	}
}

// TestMeasureLeavesOtherChildren: this process's other children are neither counted nor
// reaped: earlier ones, and those that it starts itself.
func TestMeasureLeavesOtherChildren(t *testing.T) {
	children = newReaper() // as in a process that has not measured yet
	var others []*exec.Cmd
	for i, start := range []func(*exec.Cmd) error{(*exec.Cmd).Start, Start, (*exec.Cmd).Start} {
		other := exec.Command("sh", "-c", burn+"; exit 7")
		other.SysProcAttr = &syscall.SysProcAttr{Setpgid: i < 2}
		if i == 1 {
			children.adopt()
			defer children.leave(nil)
		}
		testenv.Check(t, start(other))
		others = append(others, other)
	}
	r, _ := measured(t, "exec sleep 0.8")
	for i, other := range others {
		if err := other.Wait(); err == nil || other.ProcessState.ExitCode() != 7 {
			t.Errorf("other child %d: %v", i, err)
		}
	}
	if r.Footer.Processes != 1 || r.Samples[len(r.Samples)-1].CPU > 0.05 {
		t.Errorf("%+v, %+v; want one process that did nothing", r.Footer, r.Samples[len(r.Samples)-1])
	}
}

// TestMeasureWithoutListsOfChildren: the method for kernels without lists of children gives
// the same results.
func TestMeasureWithoutListsOfChildren(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 100 & sleep 100 & wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	children.adopt()
	testenv.Check(t, children.start(cmd, false))
	defer func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	}()
	tree := newTree(cmd.Process.Pid, cmd.Process.Pid, nil)
	defer children.leave(tree)
	var a, b census
	for range 3000 {
		tree.slow = false
		a = tree.scan(false)
		tree.slow = true
		if b = tree.scan(true); a.processes == 3 && b.processes == 3 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if a.processes != 3 || b.processes != 3 || a.threads != 3 || b.pss <= 0 || b.pss > b.rss {
		t.Errorf("from the lists of children %+v, from /proc %+v; want 3 processes", a, b)
	}
}

// TestMeasureEndsTheRecord: a program that is ended by a forwarded signal has a complete
// record.
func TestMeasureEndsTheRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	begun := func(Run) { syscall.Kill(os.Getpid(), syscall.SIGTERM) }
	run, err := Measure(t.Context(), exec.Command("sleep", "100"), Options{File: file, Started: begun, Problem: func() string { return "canceled" }})
	r, rerr := ReadRecord(file, true)
	if err != nil || rerr != nil || run.Signal != "SIGTERM" || r.Footer == nil || r.Footer.Signal != "SIGTERM" || r.Footer.Problem != "canceled" {
		t.Errorf("%+v, %v; %+v, %v", run, err, r, rerr)
	}
}

// TestMeasureSignalBeforeStart: a signal before the program's start prevents the start.
func TestMeasureSignalBeforeStart(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	file, ran := filepath.Join(t.TempDir(), "run.jsonl"), filepath.Join(t.TempDir(), "ran")
	_, err := Measure(ctx, exec.Command("touch", ran), Options{File: file})
	r, rerr := ReadRecord(file, true)
	if want := "starting touch: terminated signal received"; err == nil || err.Error() != want || rerr != nil || r.Footer == nil || r.Footer.Problem != want {
		t.Errorf("%v; %+v, %v; want %q", err, r, rerr, want)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program ran")
	}
}

// TestMeasureOnAFullDisk: the program runs, and the incomplete record is reported.
func TestMeasureOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	run, err := Measure(t.Context(), exec.Command("true"), Options{File: "/dev/full"})
	if err != nil || run.Status() != 0 || run.RecordErr == nil || !strings.Contains(run.RecordErr.Error(), "no space left") || run.Footer == nil {
		t.Errorf("%+v, %v", run, err)
	}
}

// TestMeasureReplacesRecordsOnly: a mistyped file name does not overwrite other files.
func TestMeasureReplacesRecordsOnly(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testenv.Check(t, syscall.Mkfifo(fifo, 0o600))
	other := filepath.Join(dir, "main.py")
	testenv.Check(t, os.WriteFile(other, []byte("print()\n"), 0o644))
	for file, why := range map[string]string{fifo: "is a pipe", other: "is not a measured run"} {
		var early error
		run, err := Measure(t.Context(), exec.Command("true"), Options{File: file, Started: func(r Run) { early = r.RecordErr }})
		if err != nil || run.Status() != 0 || run.RecordErr == nil || early == nil || !strings.Contains(early.Error(), why) {
			t.Errorf("%s: %+v, %v; at the start %v", file, run, err, early)
		}
	}
	if b, _ := os.ReadFile(other); string(b) != "print()\n" {
		t.Errorf("it is %q now", b)
	}
	record := filepath.Join(dir, "run.jsonl")
	for range 2 {
		if run, err := Measure(t.Context(), exec.Command("true"), Options{File: record}); err != nil || run.RecordErr != nil {
			t.Errorf("%v, %v", run.RecordErr, err)
		}
	}
	if r, err := ReadRecord(record, true); err != nil || r.Footer == nil {
		t.Errorf("replaced: %+v, %v", r, err)
	}
}

// TestMeasureProgress: Progress is called at the start and the end of the run, but not for each
// sample.
func TestMeasureProgress(t *testing.T) {
	var headers, ends []int
	ready := filepath.Join(t.TempDir(), "ready")
	progress := func(h *Header, f *Footer) {
		headers, ends = append(headers, h.Machine.CPUs), append(ends, f.Exit)
		if err := os.WriteFile(ready, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	run, err := Measure(t.Context(), exec.Command("sh", "-c", "while ! [ -e "+ready+" ]; do sleep 0.1; done; sleep 0.5; exit 3"), Options{Progress: progress})
	if err != nil || len(ends) < 2 || len(ends) > 8 || headers[0] < 1 || ends[0] != 0 || ends[len(ends)-1] != 3 || run.Footer == nil {
		t.Errorf("headers %v, ends %v; %v", headers, ends, err)
	}
}

func TestPause(t *testing.T) {
	for _, c := range []struct {
		running  time.Duration
		sampling float64
		want     time.Duration
	}{
		{0, 0, firstPause}, {20 * time.Second, 0.0001, time.Second}, {time.Hour, 0.001, longPause}, {25 * time.Hour, 0, dayPause},
		{time.Second, 0.01, firstPause}, {time.Second, 0.02, time.Second}, {time.Hour, 0.01 + 18.5, 100 * time.Second},
	} {
		if got := pause(c.running, c.sampling); got != c.want {
			t.Errorf("pause(%v, %g) = %v; want %v", c.running, c.sampling, got, c.want)
		}
	}
}

// TestPeak: the source of the peak memory.
func TestPeak(t *testing.T) {
	for _, c := range []struct {
		name    string
		rec     recorder
		largest int64
		want    int64
		from    string
	}{
		{"own cgroup", recorder{last: Sample{Cgroup: &CgroupUse{Peak: 80}}, most: peaks{cache: 10, pss: 50}}, 60, 80, "cgroup"},
		{"a shared one", recorder{shared: true, last: Sample{Cgroup: &CgroupUse{Peak: 80}}, most: peaks{pss: 50, rss: 70}}, 40, 50, "pss"},
		{"one full of files", recorder{last: Sample{Cgroup: &CgroupUse{Peak: 80}}, most: peaks{cache: 11, pss: 50}}, 40, 50, "pss"},
		{"a peak before the run", recorder{last: Sample{Cgroup: &CgroupUse{}}, most: peaks{rss: 50}}, 40, 50, "rss"},
		{"a peak between samples", recorder{most: peaks{pss: 50}}, 60, 60, "process"},
		{"the starting process's peak", recorder{most: peaks{pss: 50}, inheritedRSS: 60}, 60, 50, "pss"},
		{"no sample", recorder{inheritedRSS: 60}, 30, 30, "process"},
	} {
		if got, from := c.rec.peak(c.largest); got != c.want || from != c.from {
			t.Errorf("%s: %d from %s; want %d from %s", c.name, got, from, c.want, c.from)
		}
	}
}

// TestMeasureNearTheLimit: if the kernel may soon kill all processes in the cgroup, data is
// written at once, without waiting for the rest of the header.
func TestMeasureNearTheLimit(t *testing.T) {
	top := t.TempDir()
	own := filepath.Join(top, "own")
	testenv.Check(t, os.Mkdir(own, 0o755))
	for name, text := range map[string]string{"cgroup.events": "populated 1", "memory.max": "1000000", "memory.current": "950000", "memory.stat": "file 100000\nshmem 90000"} {
		testenv.Check(t, os.WriteFile(filepath.Join(own, name), []byte(text+"\n"), 0o644))
	}
	for _, c := range []struct {
		limit   int64
		written bool
	}{{1_000_000, true}, {2_000_000, false}, {0, false}} {
		children.adopt()
		rec := &recorder{start: time.Now(), limit: c.limit, cgroups: &cgroups{memory: controller{dir: own, top: top, version: 2}}, tree: newTree(os.Getpid(), 0, nil), gpus: &gpus{}}
		rec.header.Kind = kindHeader
		file := filepath.Join(t.TempDir(), "run.jsonl")
		rec.out.open(file)
		rec.sample()
		if rec.begun != c.written || (len(rec.out.text) == 0) != c.written {
			t.Errorf("limit %d: header written %t, %d bytes wait; want it written: %t", c.limit, rec.begun, len(rec.out.text), c.written)
		}
		if err := rec.out.close(); err != nil {
			t.Error(err)
		}
		children.leave(rec.tree)
	}
}
