package metrics

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A tree is the program with all that it started: its descendants, and the
// orphans among them, which become children of this process.
type tree struct {
	program int
	group   int // the program's process group, where it has one of its own; else 0
	session int // of this process
	exclude func(pid int) bool
	seen    map[int]int64 // processes by when they started: pids are used again
	gone    counted       // what orphans used that ended
	usage   Usage         // the same, as the kernel sums it up
	last    counted
	kin     kin
	read    reader
	slow    bool // there are no lists of children: all of /proc is looked at
}

// counted is what grows as a run goes on.
type counted struct {
	user, system int64 // ticks
	in, out      int64 // bytes from and to storage
}

func (c *counted) add(d counted) {
	c.user, c.system, c.in, c.out = c.user+d.user, c.system+d.system, c.in+d.in, c.out+d.out
}

// less is what was counted since.
func (c *counted) less(d counted) counted {
	return counted{c.user - d.user, c.system - d.system, c.in - d.in, c.out - d.out}
}

// A census is how a tree stood at one moment.
type census struct {
	counted
	processes, threads int
	rss, pss, swap     int64 // bytes; the latter two where they were asked for
}

// newTree makes this process the one that orphans come to.
func newTree(program, group int, exclude func(int) bool, relatives []string) *tree {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // since Linux 3.4
	t := &tree{program: program, group: group, exclude: exclude, seen: map[int]int64{}, kin: kin{variables: relatives}}
	t.session, _ = unix.Getsid(0)
	_, err := t.read.read("/proc/thread-self/children") // CONFIG_PROC_CHILDREN
	t.slow = err != nil
	return t
}

// look counts the tree, and reaps the orphans that ended.
func (t *tree) look(pss bool) census {
	var c census
	seen := make(map[int]int64, len(t.seen))
	children := t.children
	if t.slow {
		all := t.parents()
		children = func(pid int, _ int64) []int { return all[pid] }
	}
	walk := func(roots []int, found map[process]relative) {
		for next := roots; len(next) > 0; next = next[1:] {
			if _, twice := seen[next[0]]; twice { // it moved while we looked
				continue
			}
			before := c.counted
			if s, ok := t.visit(next[0], &c, pss); ok {
				seen[next[0]] = s.start
				if found != nil {
					found[process{next[0], s.start}] = relative{c.less(before), process{s.parent, seen[s.parent]}}
				}
				next = append(next, children(next[0], s.threads)...)
			}
		}
	}
	roots := []int{t.program}
	for _, pid := range children(os.Getpid(), 2) {
		if pid != t.program && !t.exclude(pid) {
			roots = append(roots, pid)
		}
	}
	walk(roots, nil)
	relatives := map[process]relative{}
	walk(t.kin.find(), relatives)
	c.add(t.kin.counts(relatives))
	t.seen = seen
	c.add(t.gone)
	// What ended, and was waited for by nobody or while we looked, does not come back.
	t.last = counted{max(c.user, t.last.user), max(c.system, t.last.system), max(c.in, t.last.in), max(c.out, t.last.out)}
	c.counted = t.last
	return c
}

// visit counts a process; not ok where it is gone or is none of the run's.
func (t *tree) visit(pid int, c *census, pss bool) (s stat, ok bool) {
	b, err := t.read.read(procFile(pid, "stat"))
	if err != nil {
		return s, false
	}
	s, ok = parseStat(b)
	orphan := s.parent == os.Getpid() && pid != t.program
	if !ok || orphan && (t.exclude(pid) || !t.ours(pid, &s)) {
		return s, false
	}
	if s.zombie && orphan {
		t.reap(pid)
		return s, false
	}
	t.count(c, pid, &s, pss)
	return s, true
}

// ours says whether a child of this process, other than the program, was the program's: it was
// seen below it, or is of its group or of a session of its own. Else it may be another
// program of this process's, which has its own way to wait for it.
func (t *tree) ours(pid int, s *stat) bool {
	return t.group == 0 || t.seen[pid] == s.start && s.start != 0 || s.group == t.group || s.session != t.session
}

// count adds one process.
func (t *tree) count(c *census, pid int, s *stat, pss bool) {
	c.add(counted{user: s.user + s.childUser, system: s.system + s.childSystem})
	c.in, c.out = add(c.in, c.out, t.storage(pid))
	if s.zombie {
		return
	}
	c.processes++
	c.threads += int(s.threads)
	c.rss += s.resides * int64(os.Getpagesize())
	if !pss {
		return
	}
	b, err := t.read.read(procFile(pid, "smaps_rollup")) // since Linux 4.14
	if err == nil {
		c.pss += field(b, "Pss") << 10
		c.swap += field(b, "Swap") << 10
	}
}

func add(in, out int64, more [2]int64) (int64, int64) { return in + more[0], out + more[1] }

// storage is what a process, with the children that it waited for, read and
// wrote; zeros where that may not be known.
func (t *tree) storage(pid int) [2]int64 {
	b, err := t.read.read(procFile(pid, "io"))
	if err != nil {
		return [2]int64{}
	}
	return [2]int64{field(b, "read_bytes"), field(b, "write_bytes")}
}

// reap takes in what an orphan used and lets it go.
func (t *tree) reap(pid int) {
	io := t.storage(pid)
	var u syscall.Rusage
	n, err := retry(func() (int, error) { return syscall.Wait4(pid, nil, syscall.WNOHANG, &u) })
	if err != nil || n != pid {
		return
	}
	ticks := func(t syscall.Timeval) int64 { return (t.Nano() + 5e6) / 1e7 }
	t.gone.add(counted{ticks(u.Utime), ticks(u.Stime), io[0], io[1]})
	t.usage.add(usageOf(&u))
}

// children lists those of a process, which each of its threads has of its own. A process that ends
// meanwhile may hide others: the next look finds them.
func (t *tree) children(pid int, threads int64) []int {
	tasks := []string{strconv.Itoa(pid)}
	if threads > 1 {
		dir, err := os.Open(procFile(pid, "task"))
		if err != nil {
			return nil
		}
		tasks, _ = dir.Readdirnames(maxThreads)
		dir.Close()
	}
	var out []int
	for _, task := range tasks {
		if b, err := t.read.read(procFile(pid, "task/"+task+"/children")); err == nil {
			out = append(out, pids(b)...)
		}
	}
	return out
}

// maxThreads bounds how many of a process's threads are looked at.
const maxThreads = 4096

// parents finds all children by their parents.
func (t *tree) parents() map[int][]int {
	out := map[int][]int{}
	dir, err := os.Open("/proc")
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := t.read.read(procFile(pid, "stat"))
		if err != nil {
			continue
		}
		if s, ok := parseStat(b); ok {
			out[s.parent] = append(out[s.parent], pid)
		}
	}
	return out
}
