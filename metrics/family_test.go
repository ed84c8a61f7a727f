package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// zombies counts the children of this process that ended and that nobody waited for.
func zombies(f *family) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range f.list() {
		if s, ok := f.read.stat(pid); ok && s.zombie {
			n++
		}
	}
	return n
}

// fork runs a program of the shell's twice removed, in a process group of its own, as "set -m" has it.
func fork(words string) string { return "(set -m; (" + words + ") & ) ; " }

// TestMeasureReapsBetweenLooks: orphans that end long before the next look do not pile up.
func TestMeasureReapsBetweenLooks(t *testing.T) {
	children = newFamily()
	children.adopt()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 50 ]; do i=$((i+1)); "+fork("true")+"done; : >"+dir+"/forked; exec sleep 100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := children.start(cmd); err != nil {
		t.Fatal(err)
	}
	tree := newTree(cmd.Process.Pid, cmd.Process.Pid, nil) // at which nobody looks
	for n := 0; n < 500; n++ {
		time.Sleep(20 * time.Millisecond)
		if _, err := os.Stat(filepath.Join(dir, "forked")); err == nil && zombies(children) == 0 {
			break
		}
	}
	if n := zombies(children); n > 0 {
		t.Errorf("%d zombies are left", n)
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
	if children.leave(tree); tree.usage.MaxRSS == 0 {
		t.Errorf("what they used is not known: %+v", tree.usage)
	}
}

// TestMeasureCountsUnseenOrphans: an orphan of another process group that no look saw below the program is the run's.
func TestMeasureCountsUnseenOrphans(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	r, _ := measured(t, fork(burn+"; "+burn+"; : >"+done)+"while ! [ -e "+done+" ]; do sleep 0.05; done; sleep 0.3")
	if f := r.Footer; f.Usage.User+f.Usage.System < 0.05 {
		t.Errorf("%+v; want the processor time of the orphan", f.Usage)
	}
}

// TestMeasureCountsOrphansOnce: where several runs go on, an orphan in a session of its own is counted at most once, and reaped.
func TestMeasureCountsOrphansOnce(t *testing.T) {
	children = newFamily()
	dir := t.TempDir()
	done := filepath.Join(dir, "done")
	leave := "setsid sh -c '" + burn + "; " + burn + "; : >" + done + "' & sleep 0.3; exit 0"
	scripts := []string{"(" + leave + "); while ! [ -e " + done + " ]; do sleep 0.05; done; sleep 0.5"}
	for range 3 {
		scripts = append(scripts, "exec sleep 2")
	}
	used := make(chan float64, len(scripts))
	for i, script := range scripts {
		go func() {
			cmd := exec.Command("sh", "-c", script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			run, err := Measure(cmd, Options{File: filepath.Join(dir, strconv.Itoa(i))})
			if err != nil {
				t.Error(err)
			}
			used <- run.Usage.User + run.Usage.System
		}()
	}
	some := 0
	for range scripts {
		if <-used > 0.05 {
			some++
		}
	}
	if some != 1 {
		t.Errorf("%d runs have the processor time of the orphan; want that which left it", some)
	}
	if n := zombies(children); n > 0 {
		t.Errorf("%d zombies are left", n)
	}
}
