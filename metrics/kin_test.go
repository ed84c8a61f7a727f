package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/testenv"
)

// TestMeasureCountsKin: processes that a daemon started for the run, and no others, are
// found by their environment.
func TestMeasureCountsKin(t *testing.T) {
	dir := t.TempDir()
	script := burn + "; " + burn + "; : >" + dir + "/done.$$; sleep 1000"
	start := func(env string) {
		daemon := exec.Command("sh", "-c", env+` NODE=n1 sh -c "$1" & wait`, "sh", script)
		daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		testenv.Check(t, daemon.Start())
		t.Cleanup(func() { syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL); daemon.Wait() })
	}
	job := "JOB=" + strconv.Itoa(os.Getpid()) // the same test may run elsewhere on the machine
	for range 2 {
		start(job)
	}
	start(job + "1")
	start("X" + job)
	file, fifo := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "fifo")
	testenv.Check(t, syscall.Mkfifo(fifo, 0o600))
	cmd := exec.Command("sh", "-c", "read x <"+fifo)
	go func() { // once all have worked, and a look that came later is in the record, the program ends
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
	_, err := Measure(t.Context(), cmd, Options{File: file, Kin: []string{job, "NODE=n1"}})
	testenv.Check(t, err)
	r, err := ReadRecord(file, true)
	testenv.Check(t, err)
	if f := r.Footer; f.Processes < 3 || f.Processes > 5 || f.Usage.User+f.Usage.System <= 0 {
		t.Errorf("%+v; want the program, its two kin, and their sleeps", f)
	}
}

// TestKinLate: a foreign process is checked again after it has executed another program.
func TestKinLate(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"JOB=17"}
	testenv.Check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	k := kin{variables: []string{"JOB=17"}}
	for n := 0; n < 500 && !k.has(pid); n++ { // its environment comes last
		time.Sleep(10 * time.Millisecond)
	}
	s, ok := k.read.stat(pid)
	for name, want := range map[string]bool{"sleep": true, "slurmstepd": false} {
		was := stranger{start: s.start}
		copy(was.name[:], name)
		k.strangers = map[int]stranger{pid: was}
		k.find()
		if _, still := k.strangers[pid]; !ok || still != want {
			t.Errorf("what was %s is a stranger: %v; want %v", name, still, want)
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

// TestKinToBe: a process forked by a daemon has the daemon's environment until it executes
// the program.
func TestKinToBe(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x; JOB=17 exec sleep 1000")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	testenv.Check(t, err)
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	k := kin{variables: []string{"JOB=17"}}
	looks := func() bool {
		k.find()
		_, stranger := k.strangers[cmd.Process.Pid]
		return !stranger && k.has(cmd.Process.Pid)
	}
	if looks() {
		t.Fatal("it is one of the kin before")
	}
	if s, ok := k.read.stat(1); ok && s.start < ticksNow()-youth && k.strangers[1].start != s.start {
		t.Error("old strangers are looked at again and again")
	}
	_, _ = in.Write([]byte("\n"))
	for range 3000 {
		if k.has(cmd.Process.Pid) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !looks() {
		t.Error("it is none of the kin afterwards")
	}
}

// TestKinOnce: the usage of kin is counted once, whichever of them end and are waited for
// between two looks.
func TestKinOnce(t *testing.T) {
	const base = 1 << 23 // there are no such pids
	parent, child, other := process{base, 1}, process{base + 1, 2}, process{base + 2, 3}
	self := process{os.Getpid(), 0}
	if s, ok := parseStat(must(t, procFile(self.pid, "stat"))); ok {
		self.start = s.start
	}
	of := func(ticks int64, below process) relative { return relative{counted{user: ticks}, below} }
	type look map[process]relative
	for _, c := range []struct {
		name  string
		looks []look
		want  []int64
	}{
		{"a child is waited for", []look{{parent: of(10, process{}), child: of(1000, parent)}, {parent: of(1010, process{})}, {}}, []int64{1010, 1010, 1010}},
		{"a parent ends, its child goes on", []look{{parent: of(10, process{}), child: of(1000, parent)}, {child: of(1500, process{1, 0})}, {}}, []int64{1010, 1510, 1510}},
		{"all end", []look{{parent: of(10, process{}), child: of(1000, parent), other: of(5, child)}, {}, {}}, []int64{1015, 1015, 1015}},
		{"a child with its own, waited for", []look{{parent: of(10, process{}), child: of(20, parent), other: of(5, child)}, {parent: of(35, process{})}}, []int64{35, 35}},
		{"a pid is used again", []look{{parent: of(10, process{})}, {process{base, 9}: of(3, process{})}}, []int64{10, 13}},
		{"a look misses one", []look{{self: of(10, process{})}, {}, {self: of(12, process{})}}, []int64{10, 10, 12}},
	} {
		var k kin
		for i, now := range c.looks {
			var sum counted
			for _, r := range now {
				sum.add(r.used)
			}
			sum.add(k.counts(now))
			if sum.user != c.want[i] {
				t.Errorf("%s: look %d counts %d; want %d", c.name, i, sum.user, c.want[i])
			}
		}
	}
	if got := tops(map[int]int{7: 900, 900: 1, 8: 7}); len(got) != 1 || got[0] != 900 { // pids began again between them
		t.Errorf("tops are %v; want 900, the parent of 7", got)
	}
}

func must(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	return b
}
