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

// countChildren returns the numbers of living children and of zombies that the reaper is
// responsible for. Processes of earlier tests are the new reaper's own and do not count.
func countChildren(f *reaper) (living, zombies int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range f.list() {
		switch s, ok := f.read.stat(pid); {
		case !ok || f.own[process{pid, s.start}]:
		case s.zombie:
			zombies++
		default:
			living++
		}
	}
	return living, zombies
}

func zombies(f *reaper) int {
	_, n := countChildren(f)
	return n
}

// TestMeasureReapsBetweenScans: orphans that end long before the next scan are reaped and
// counted.
func TestMeasureReapsBetweenScans(t *testing.T) {
	children = newReaper()
	children.adopt()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 50 ]; do i=$((i+1)); (timeout 5 true &); done; : >"+dir+"/forked; exec sleep 100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testenv.Check(t, children.start(cmd, false))
	tree := newTree(cmd.Process.Pid, cmd.Process.Pid, nil) // it is never scanned
	for range 3000 {
		time.Sleep(20 * time.Millisecond)
		_, err := os.Stat(filepath.Join(dir, "forked"))
		if living, zombies := countChildren(children); err == nil && living == 0 && zombies == 0 {
			break
		}
	}
	if n := zombies(children); n > 0 {
		t.Errorf("%d zombies are left", n)
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
	if children.leave(tree); tree.usage.MaxRSS == 0 {
		t.Errorf("the usage is %+v", tree.usage)
	}
}

// TestMeasureCountsOrphansOnce: with several runs, an orphan in its own session is reaped
// and counted at most once.
func TestMeasureCountsOrphansOnce(t *testing.T) {
	children = newReaper()
	dir := t.TempDir()
	const leave = "setsid sh -c 'echo $$ >pid; " + burn + "; " + burn + "; while ! [ -e left ]; do sleep 0.05; done; : >done' & " +
		`while ! grep -q '"processes":[3-9]' 0; do sleep 0.05; done; exit 0` // a scan has seen it
	scripts := []string{"(" + leave + "); : >left; while ! [ -e done ]; do sleep 0.05; done; while kill -0 $(cat pid); do sleep 0.05; done"}
	for range 3 {
		scripts = append(scripts, "exec sleep 1000")
	}
	runs, others := make(chan Run, len(scripts)), make(chan int, len(scripts))
	for i, script := range scripts {
		go func() {
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
			begun := func(Run) {
				if i > 0 {
					others <- cmd.Process.Pid
				}
			}
			run, err := Measure(t.Context(), cmd, Options{File: filepath.Join(dir, strconv.Itoa(i)), Started: begun})
			if err != nil {
				t.Error(err)
			}
			if i == 0 {
				for range scripts[1:] {
					_ = syscall.Kill(<-others, syscall.SIGKILL)
				}
			}
			runs <- run
		}()
	}
	some := 0
	for range scripts {
		if r := <-runs; r.Footer.Processes > 1 || r.Usage.User+r.Usage.System > 0.05 {
			some++
		}
	}
	if some != 1 {
		t.Errorf("%d runs have the orphan; want only its own", some)
	}
	if n := zombies(children); n > 0 {
		t.Errorf("%d zombies are left", n)
	}
}

// TestWhoseOrphans: an unseen orphan of any group belongs to the only run. With several
// runs, it belongs to the run that has seen it or has its group, or to no run.
func TestWhoseOrphans(t *testing.T) {
	one := &tree{group: 1, seen: map[int]int64{7: 70}}
	two := &tree{group: 2}
	for _, c := range []struct {
		name  string
		trees []*tree
		runs  int
		p     process
		group int
		want  *tree
	}{
		{"the only run", []*tree{one}, 1, process{8, 80}, 9, one},
		{"another run is starting", []*tree{one}, 2, process{8, 80}, 9, nil},
		{"another group", []*tree{one, two}, 2, process{8, 80}, 9, nil},
		{"its group", []*tree{one, two}, 2, process{8, 80}, 2, two},
		{"seen", []*tree{two, one}, 2, process{7, 70}, 9, one},
		{"its pid was seen earlier", []*tree{two, one}, 2, process{7, 71}, 9, nil},
		{"a group that belongs to no run", []*tree{one}, 1, process{8, 80}, 3, nil},
		{"no run", nil, 0, process{8, 80}, 1, nil},
	} {
		f := newReaper()
		f.trees, f.runs, f.foreign = c.trees, c.runs, map[int]bool{3: true}
		if got := f.runOf(c.p, &stat{group: c.group}); got != c.want {
			t.Errorf("%s: its run is %+v; want %+v", c.name, got, c.want)
		}
	}
}

// TestStartHangs: processes that may be a child that is being started are not reaped.
func TestStartHangs(t *testing.T) {
	children = newReaper()
	children.adopt()
	defer children.leave(nil)
	cmd := exec.Command("sh", "-c", "exit 7")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	children.starting++ // Start has not returned
	testenv.Check(t, cmd.Start())
	for n := 0; n < 6000 && zombies(children) == 0; n++ {
		time.Sleep(10 * time.Millisecond)
	}
	children.trees = []*tree{{group: 1}}
	children.sweep()
	children.trees, children.starting = nil, 0
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the child: %v", err)
	}
}
