package metrics

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A family are the children of this process: those that it started itself, for which whoever started
// them waits, and the orphans that came to it from the programs that are measured.
type family struct {
	mu       sync.Mutex // also of the trees: an orphan may be that of any
	adopts   bool
	own      map[process]bool  // started here, or from before an exec
	beside   map[int]bool      // process groups of what is not part of any run
	orphans  map[process]*tree // whose they are; nil: of no run that goes on
	starting int               // children of which nothing is known yet
	runs     int               // that go on, or are about to
	trees    []*tree           // of those whose programs run
	stop     chan struct{}     // ends reaping
	read     reader
	slow     bool // there are no lists of children
}

// children are all that there are: the kernel knows only one parent.
var children = newFamily()

func newFamily() *family {
	return &family{own: map[process]bool{}, beside: map[int]bool{}, orphans: map[process]*tree{}}
}

// Start starts a command that is not part of any run, while [Measure] may be measuring: it is not counted, nor is what
// it leaves behind in a process group of its own, and it is left for its caller to wait for.
func Start(cmd *exec.Cmd) error { return children.start(cmd, true) }

// start starts a child of this process's own. That may hang, as where a file system does: nothing is
// locked meanwhile, and no child that nothing is known of is taken for an orphan. beside says that it is not part of any run.
func (f *family) start(cmd *exec.Cmd, beside bool) error {
	f.mu.Lock()
	f.starting++
	f.mu.Unlock()
	err := cmd.Start()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.starting--; err == nil {
		pid := cmd.Process.Pid
		f.forget()
		f.keep(pid)
		if delete(f.beside, pid); beside && cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
			f.beside[pid] = true
		}
	}
	return err
}

// keep notes a child as this process's own.
func (f *family) keep(pid int) {
	if s, ok := f.read.stat(pid); ok {
		f.own[process{pid, s.start}] = true
	}
}

// forget forgets those that are gone.
func (f *family) forget() {
	gone := func(p process) bool {
		s, ok := f.read.stat(p.pid)
		return !ok || s.start != p.start
	}
	maps.DeleteFunc(f.own, func(p process, _ bool) bool { return gone(p) })
	maps.DeleteFunc(f.orphans, func(p process, _ *tree) bool { return gone(p) })
	maps.DeleteFunc(f.beside, func(group int, _ bool) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) })
}

// adopt makes this process the one that orphans come to, for one more run. What is there
// before a run is not the run's.
func (f *family) adopt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs++; f.adopts {
		f.sweep()
		return
	}
	_, err := f.read.read("/proc/thread-self/children") // CONFIG_PROC_CHILDREN
	f.adopts, f.slow = true, err != nil
	for _, pid := range f.list() {
		f.keep(pid)
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // since Linux 3.4
}

func (f *family) list() []int {
	if f.slow {
		return f.read.parents()[os.Getpid()]
	}
	return f.read.children(os.Getpid(), 2)
}

// join has orphans counted for a tree, until leave.
func (f *family) join(t *tree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trees = append(f.trees, t)
	if f.stop == nil {
		f.stop = make(chan struct{})
		go f.reap(f.stop)
	}
}

// leave ends a run, and is what its orphans used that ended. t is nil where its program did not run.
func (f *family) leave(t *tree) Usage {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs--; t == nil {
		return Usage{}
	}
	for i := range f.trees {
		if f.trees[i] == t {
			f.trees = append(f.trees[:i:i], f.trees[i+1:]...)
			break
		}
	}
	if len(f.trees) == 0 && f.stop != nil {
		close(f.stop)
		f.stop = nil
	}
	return t.usage
}

// How long a zombie stays, and how many times longer than reaping took the time without is: many that
// end one after the other are reaped together.
const (
	reapPause = 100 * time.Millisecond
	reapRest  = 200
)

// reap reaps orphans soon after they end: a look may be a minute away.
func (f *family) reap(stop <-chan struct{}) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	pause := reapPause
	for {
		select {
		case <-stop:
			return
		case <-ended:
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		f.mu.Lock()
		began := time.Now()
		f.sweep()
		pause = max(reapPause, time.Since(began)*reapRest)
		f.mu.Unlock()
	}
}

// sweep finds the orphans, and lets go of those that ended.
func (f *family) sweep() {
	apart := true
	for _, t := range f.trees {
		apart = apart && t.group != 0
	}
	for _, pid := range f.list() {
		s, ok := f.read.stat(pid)
		p := process{pid, s.start}
		// Programs that are measured in groups of their own leave nothing in this process's: what
		// is there was started by other parts of it.
		if !ok || f.own[p] || (apart && s.group == unix.Getpgrp()) {
			continue
		}
		t, known := f.orphans[p]
		if !known {
			if t = f.whose(p, &s); t == nil && f.starting > 0 {
				continue
			}
			f.orphans[p] = t
		}
		if s.zombie {
			f.release(p, t)
		}
	}
}

// whose says to which run an orphan belongs that was not one before: it was seen below the program or is of
// its group, or there is only this run; nil where it may be that of any, or is of none.
func (f *family) whose(p process, s *stat) *tree {
	if f.beside[s.group] {
		return nil
	}
	for _, t := range f.trees {
		if start, seen := t.seen[p.pid]; (seen && start == p.start) || (t.group != 0 && s.group == t.group) {
			return t
		}
	}
	if f.runs == 1 && len(f.trees) == 1 && f.starting == 0 {
		return f.trees[0]
	}
	return nil
}

// of lists a tree's orphans that live.
func (f *family) of(t *tree) (out []int) {
	f.sweep()
	for p, whose := range f.orphans {
		if whose == t {
			out = append(out, p.pid)
		}
	}
	return out
}

// release lets go of an orphan that ended; the tree takes in what it used.
func (f *family) release(p process, t *tree) {
	io := f.read.storage(p.pid)
	var u syscall.Rusage
	n, err := retry(func() (int, error) { return syscall.Wait4(p.pid, nil, syscall.WNOHANG, &u) })
	if err != nil || n != p.pid {
		return
	}
	delete(f.orphans, p)
	if t == nil {
		return
	}
	ticks := func(t syscall.Timeval) int64 { return (t.Nano() + 5e6) / 1e7 }
	t.gone.add(counted{ticks(u.Utime), ticks(u.Stime), io[0], io[1]})
	t.usage.add(usageOf(&u))
}
