package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMeasureCountsKin: processes that a daemon started for the run are found by their environment, and
// others are not.
func TestMeasureCountsKin(t *testing.T) {
	const script = "sleep 0.3; " + burn + "; " + burn + "; sleep 1"
	start := func(env string) {
		daemon := exec.Command("sh", "-c", env+` NODE=n1 sh -c "$1" & wait`, "sh", script)
		daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL); daemon.Wait() })
	}
	for range 2 {
		start("JOB=17")
	}
	start("JOB=171")
	start("XJOB=17")
	file := filepath.Join(t.TempDir(), "run.jsonl")
	cmd := exec.Command("sleep", "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := Measure(t.Context(), cmd, Options{File: file, Kin: []string{"JOB=17", "NODE=n1"}}); err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecord(file, true)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Footer; f.Processes < 3 || f.Processes > 5 || f.Usage.User+f.Usage.System <= 0 {
		t.Errorf("%+v; want the program, its two kin, and their sleeps", f)
	}
}

// TestKinOnce: what kin used counts once, whichever of them end and are waited for between two looks.
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
	if err != nil {
		t.Fatal(err)
	}
	return b
}
