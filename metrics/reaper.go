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

	"hpcc/runtime/inherit"
)

// A reaper knows the children of this process: those that it started and waits for itself, and
// adopted orphans of the measured programs, which it reaps.
type reaper struct {
	mu       sync.Mutex // also for the trees, because an orphan may belong to any of them
	adopts   bool
	own      map[process]bool  // started by this process, or before an exec
	foreign  map[int]bool      // process groups that belong to no run
	orphans  map[process]*tree // run that an orphan belongs to; nil: no current run
	starting int               // children that are being started
	runs     int               // current or starting runs
	trees    []*tree           // of the running programs
	stop     chan struct{}     // closed to end reaping
	read     reader
	slow     bool // the kernel has no lists of children
}

// children is the only reaper, because a process has only one parent.
var children = newReaper()

func newReaper() *reaper {
	return &reaper{own: map[process]bool{}, foreign: map[int]bool{}, orphans: map[process]*tree{}}
}

// Start starts a command that is not part of any run while [Measure] may be running. The
// command, and its leftovers in its own process group, are not counted. The caller must wait
// for it.
func Start(cmd *exec.Cmd) error { return children.start(cmd, true) }

// start starts a child of this process. Starting may hang, for example on a file system, so
// no lock is held meanwhile, and unknown children are not mistaken for orphans. foreign
// reports that the child belongs to no run.
func (f *reaper) start(cmd *exec.Cmd, foreign bool) error {
	f.mu.Lock()
	f.starting++
	f.mu.Unlock()
	path, args := cmd.Path, cmd.Args
	cmd.Path, cmd.Args = inherit.Command(path, args)
	err := cmd.Start()
	cmd.Path, cmd.Args = path, args
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.starting--; err == nil {
		pid := cmd.Process.Pid
		f.forget()
		f.addOwn(pid)
		if delete(f.foreign, pid); foreign && cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
			f.foreign[pid] = true
		}
	}
	return err
}

// addOwn records a child as this process's own.
func (f *reaper) addOwn(pid int) {
	if s, ok := f.read.stat(pid); ok {
		f.own[process{pid, s.start}] = true
	}
}

// forget drops processes that have ended.
func (f *reaper) forget() {
	gone := func(p process) bool {
		s, ok := f.read.stat(p.pid)
		return !ok || s.start != p.start
	}
	maps.DeleteFunc(f.own, func(p process, _ bool) bool { return gone(p) })
	maps.DeleteFunc(f.orphans, func(p process, _ *tree) bool { return gone(p) })
	maps.DeleteFunc(f.foreign, func(group int, _ bool) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) })
}

// adopt makes this process the parent of orphans for one more run. Earlier processes do not
// belong to the run.
func (f *reaper) adopt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs++; f.adopts {
		f.sweep()
		return
	}
	_, err := f.read.read("/proc/thread-self/children") // CONFIG_PROC_CHILDREN
	f.adopts, f.slow = true, err != nil
	for _, pid := range f.list() {
		f.addOwn(pid)
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // since Linux 3.4
}

func (f *reaper) list() []int {
	if f.slow {
		return f.read.childrenByParent()[os.Getpid()]
	}
	return f.read.children(os.Getpid(), 2)
}

// join counts orphans for a tree until leave.
func (f *reaper) join(t *tree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trees = append(f.trees, t)
	if f.stop == nil {
		f.stop = make(chan struct{})
		go f.reap(f.stop)
	}
}

// leave ends a run and returns the usage of its ended orphans. t is nil if its program did
// not run.
func (f *reaper) leave(t *tree) Usage {
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

// reapPause is how long a zombie may wait, and reapRest the minimum ratio of the pause to the
// time for reaping. Processes that end in quick succession are reaped together.
const (
	reapPause = 100 * time.Millisecond
	reapRest  = 200
)

// reap reaps orphans soon after they end, because the next scan may be a minute away.
func (f *reaper) reap(stop <-chan struct{}) {
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

// sweep finds new orphans and releases those that have ended.
func (f *reaper) sweep() {
	apart := true
	for _, t := range f.trees {
		apart = apart && t.group != 0
	}
	for _, pid := range f.list() {
		s, ok := f.read.stat(pid)
		p := process{pid, s.start}
		// Measured programs with their own process groups leave nothing in this process's
		// group. Processes there were started by other parts of it.
		if !ok || f.own[p] || (apart && s.group == unix.Getpgrp()) {
			continue
		}
		t, known := f.orphans[p]
		if !known {
			if t = f.runOf(p, &s); t == nil && f.starting > 0 {
				continue
			}
			f.orphans[p] = t
		}
		if s.zombie {
			f.release(p, t)
		}
	}
}

// runOf returns the run of a new orphan: the run that has seen it as a descendant or has its
// group, or the only run. It returns nil if the run is ambiguous or does not exist.
func (f *reaper) runOf(p process, s *stat) *tree {
	if f.foreign[s.group] {
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

// of returns a tree's living orphans.
func (f *reaper) of(t *tree) (out []int) {
	f.sweep()
	for p, owner := range f.orphans {
		if owner == t {
			out = append(out, p.pid)
		}
	}
	return out
}

// release removes an orphan that ended and adds its usage to the tree.
func (f *reaper) release(p process, t *tree) {
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
	t.ended.add(counted{ticks(u.Utime), ticks(u.Stime), io[0], io[1]})
	t.usage.add(usageOf(&u))
}
