package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// stoppedTerminal is a file whose writes fail: a terminal with stopped output.
func stoppedTerminal(t *testing.T) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		testenv.Need(t, "a pseudo-terminal", err)
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	must(err)
	file := fmt.Sprintf("/dev/pts/%d", n)
	slave, err := os.OpenFile(file, os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	t.Cleanup(func() { slave.Close() })
	must(unix.IoctlSetInt(int(slave.Fd()), unix.TCXONC, 0)) // TCOOFF
	return file
}

// TestMeasureHangingFile: a run ends with its program even if the record's file
// system hangs.
func TestMeasureHangingFile(t *testing.T) {
	file := stoppedTerminal(t)
	over := make(chan Run)
	go func() {
		run, _ := Measure(t.Context(), exec.Command("true"), Options{File: file})
		over <- run
	}()
	select {
	case run := <-over:
		if run.Status() != 0 || run.RecordErr == nil || !strings.Contains(run.RecordErr.Error(), file) || run.Footer == nil {
			t.Errorf("%+v; want a successful program and the error of its record", run)
		}
	case <-time.After(time.Minute):
		t.Fatal("the run waits for its record")
	}
}

// TestMeasureNoSignalsAfterEnd: a signal after the program was waited for is not
// sent to a process that reuses its pid.
func TestMeasureNoSignalsAfterEnd(t *testing.T) {
	own := make(chan os.Signal, 1)
	signal.Notify(own, syscall.SIGUSR1)
	defer signal.Stop(own)
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `(trap 'echo >got' USR1; trap 'echo >end; exit' USR2; echo >ready; while :; do sleep 0.05; done) & while ! [ -s ready ]; do sleep 0.05; done`)
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
	problem := func() string {
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		<-own
		time.Sleep(50 * time.Millisecond) // time to forward it
		return ""
	}
	_, err := Measure(t.Context(), cmd, Options{File: filepath.Join(dir, "run.jsonl"), Problem: problem})
	testenv.Check(t, err)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGUSR2)
	for range 1000 {
		if _, err := os.Stat(filepath.Join(dir, "end")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := os.Stat(filepath.Join(dir, "got")); err == nil {
		t.Error("the signal reached a process that the program left behind")
	}
}

// TestMeasureManyIntoOneFile: of several runs with the same file, one has its complete
// record there, and the others get an error.
func TestMeasureManyIntoOneFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	const ranks = 4
	var recs [ranks]recorder
	for i := range recs {
		l := &recs[i].out
		l.open(file)
		l.add(Header{Kind: kindHeader, Version: recordVersion, Job: &JobOf{Task: i}})
		l.flush()
	}
	refused := 0
	for i := range recs {
		recs[i].out.add(Footer{Kind: kindFooter, Exit: i})
		if err := recs[i].out.close(); err != nil {
			refused++
			if !strings.Contains(err.Error(), "each run needs its own file") {
				t.Error(err)
			}
		}
	}
	r, err := ReadRecord(file, true)
	if err != nil || r.Footer == nil || r.Footer.Exit != r.Header.Job.Task || refused != ranks-1 {
		t.Errorf("%+v, %v; %d of %d had an error", r, err, refused, ranks)
	}
}

// TestLogReplaces: a replaced record keeps its permissions and location.
func TestLogReplaces(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "link")
	testenv.Check(t, os.WriteFile(file, []byte(head), 0o600))
	testenv.Check(t, os.Symlink("run.jsonl", link))
	var l log
	l.open(link)
	l.add(Header{Kind: kindHeader, Hpcc: "new"})
	testenv.Check(t, l.close())
	st, err := os.Lstat(file)
	r, rerr := ReadRecord(link, false)
	if err != nil || rerr != nil || st.Mode() != 0o600 || r.Header.Hpcc != "new" {
		t.Errorf("%v, %v, %+v, %v", st, err, r, rerr)
	}
}

// TestLogLeavesOutputAlone: the program's input and output are not used for a record, even
// if empty.
func TestLogLeavesOutputAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(file)
	testenv.Check(t, err)
	was := os.Stderr
	os.Stderr = f
	defer func() { os.Stderr = was }()
	var l log
	l.open(file)
	now, err := os.Stat(file)
	own, _ := f.Stat()
	if l.err == nil || !strings.Contains(l.err.Error(), "own") || err != nil || !os.SameFile(own, now) {
		t.Errorf("%v; %v", l.err, err)
	}
}

// TestLogNotRemovable: if a record cannot be removed, for example in a foreign directory, a
// second run does not touch it until the first has ended.
func TestLogNotRemovable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	testenv.Check(t, os.WriteFile(file, []byte(head), 0o600))
	first, err := empty(file)
	testenv.Check(t, err)
	_, err = first.WriteString("mine")
	testenv.Check(t, err)
	if _, err := empty(file); err == nil || !strings.Contains(err.Error(), "each run needs its own file") {
		t.Errorf("a second one: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("it holds %q", b)
	}
	first.Close()
	again, err := empty(file)
	testenv.Check(t, err)
	again.Close()
	if b, _ := os.ReadFile(file); len(b) > 0 {
		t.Errorf("it holds %q", b)
	}
}

// TestLogReportsDroppedSamples: dropped samples are reported.
func TestLogReportsDroppedSamples(t *testing.T) {
	l := &log{name: "run.jsonl", lines: make(chan []byte), wrote: make(chan error, 1), text: make([]byte, maxBehind+1)}
	for range 3 {
		l.sample(&Sample{})
	}
	go func() {
		for range l.lines {
		}
		l.wrote <- nil
	}()
	if err := l.close(); err == nil || !strings.Contains(err.Error(), "3 samples were dropped because writing to run.jsonl was slow") {
		t.Errorf("%v; want three dropped samples", err)
	}
}
