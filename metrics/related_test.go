package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// TestMeasureRelated: processes that a daemon started for the run, and no others, are
// found by their environment.
func TestMeasureRelated(t *testing.T) {
	dir := t.TempDir()
	script := burn + "; " + burn + "; : >" + dir + "/done.$$; sleep 1000"
	start := func(env string) {
		daemon := exec.Command("sh", "-c", env+` NODE=n1 sh -c "$1" & wait`, "sh", script)
		daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		testenv.Check(t, daemon.Start())
		t.Cleanup(func() { syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL); daemon.Wait() })
	}
	job := "JOB=" + strconv.Itoa(os.Getpid()) // the same test may run twice on the machine
	for range 2 {
		start(job)
	}
	start(job + "1")
	start("X" + job)
	file, fifo := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "fifo")
	testenv.Check(t, syscall.Mkfifo(fifo, 0o600))
	cmd := exec.Command("sh", "-c", "read x <"+fifo)
	go func() { // the program ends after all have worked and a later sample is in the record
		for done := 0; done < 4; time.Sleep(20 * time.Millisecond) {
			found, _ := filepath.Glob(filepath.Join(dir, "done.*"))
			done = len(found)
		}
		for range 2 {
			for before := sizeOf(file); sizeOf(file) == before; time.Sleep(20 * time.Millisecond) {
			}
		}
		_ = os.WriteFile(fifo, []byte("\n"), 0)
	}()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err := Measure(t.Context(), cmd, Options{File: file, Related: []string{job, "NODE=n1"}})
	testenv.Check(t, err)
	r, err := ReadRecord(file, true)
	testenv.Check(t, err)
	if f := r.Footer; f.Processes < 3 || f.Processes > 5 || f.Usage.User+f.Usage.System <= 0 {
		t.Errorf("%+v; want the program, two related processes, and their sleeps", f)
	}
}

// TestRelatedAfterExec: a foreign process is checked again after it has executed another program.
func TestRelatedAfterExec(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"JOB=17"}
	testenv.Check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	k := relatedFinder{variables: []string{"JOB=17"}}
	for n := 0; n < 500 && !k.has(pid); n++ { // the kernel sets its environment last
		time.Sleep(10 * time.Millisecond)
	}
	s, ok := k.read.stat(pid)
	for name, want := range map[string]bool{"sleep": true, "slurmstepd": false} {
		was := otherProcess{start: s.start}
		copy(was.name[:], name)
		k.others = map[int]otherProcess{pid: was}
		k.find()
		if _, still := k.others[pid]; !ok || still != want {
			t.Errorf("the process that was %s is unrelated: %v; want %v", name, still, want)
		}
	}
}

func sizeOf(file string) int64 {
	fi, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// TestRelatedBeforeExec: a process forked by a daemon has the daemon's environment until it executes
// the program.
func TestRelatedBeforeExec(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x; JOB=17 exec sleep 1000")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	testenv.Check(t, err)
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	k := relatedFinder{variables: []string{"JOB=17"}}
	scans := func() bool {
		k.find()
		_, otherProcess := k.others[cmd.Process.Pid]
		return !otherProcess && k.has(cmd.Process.Pid)
	}
	if scans() {
		t.Fatal("the process is related before it executes the program")
	}
	if s, ok := k.read.stat(1); ok && s.start < ticksNow()-settling && k.others[1].start != s.start {
		t.Error("old unrelated processes are checked again")
	}
	_, _ = in.Write([]byte("\n"))
	for range 3000 {
		if k.has(cmd.Process.Pid) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !scans() {
		t.Error("the process is not related after it executed the program")
	}
}

// TestRelatedOnce: usage is counted once, whichever processes end and are waited for between two
// scans.
func TestRelatedOnce(t *testing.T) {
	const base = 1 << 23 // above the largest pid
	parent, child, other := process{base, 1}, process{base + 1, 2}, process{base + 2, 3}
	self := process{os.Getpid(), 0}
	if s, ok := parseStat(must(t, procFile(self.pid, "stat"))); ok {
		self.start = s.start
	}
	of := func(ticks int64, below process) relatedProcess { return relatedProcess{counted{user: ticks}, below} }
	type scan map[process]relatedProcess
	for _, c := range []struct {
		name  string
		scans []scan
		want  []int64
	}{
		{"a child is waited for", []scan{{parent: of(10, process{}), child: of(1000, parent)}, {parent: of(1010, process{})}, {}}, []int64{1010, 1010, 1010}},
		{"a parent ends, its child goes on", []scan{{parent: of(10, process{}), child: of(1000, parent)}, {child: of(1500, process{1, 0})}, {}}, []int64{1010, 1510, 1510}},
		{"all end", []scan{{parent: of(10, process{}), child: of(1000, parent), other: of(5, child)}, {}, {}}, []int64{1015, 1015, 1015}},
		{"a child with its own, waited for", []scan{{parent: of(10, process{}), child: of(20, parent), other: of(5, child)}, {parent: of(35, process{})}}, []int64{35, 35}},
		{"a pid is reused", []scan{{parent: of(10, process{})}, {process{base, 9}: of(3, process{})}}, []int64{10, 13}},
		{"a scan misses one", []scan{{self: of(10, process{})}, {}, {self: of(12, process{})}}, []int64{10, 10, 12}},
	} {
		var k relatedFinder
		for i, now := range c.scans {
			var sum counted
			for _, r := range now {
				sum.add(r.used)
			}
			sum.add(k.counts(now))
			if sum.user != c.want[i] {
				t.Errorf("%s: scan %d counts %d; want %d", c.name, i, sum.user, c.want[i])
			}
		}
	}
	if got := tops(map[int]int{7: 900, 900: 1, 8: 7}); len(got) != 1 || got[0] != 900 { // pids wrapped around between them
		t.Errorf("tops are %v; want 900, the parent of 7", got)
	}
}

func must(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	return b
}
