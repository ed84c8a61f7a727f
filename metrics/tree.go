package metrics

import (
	"os"
	"strconv"
)

// A tree is the program with all that it started: its descendants, and the
// orphans among them, which become children of this process: see [family], whose lock it is under.
type tree struct {
	program int
	group   int           // the program's process group, where it has one of its own; else 0
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

// newTree is that of a program that runs.
func newTree(program, group int, relatives []string) *tree {
	t := &tree{program: program, group: group, seen: map[int]int64{}, kin: kin{variables: relatives}, slow: children.slow}
	children.join(t)
	return t
}

// look counts the tree, and reaps the orphans that ended.
func (t *tree) look(pss bool) census {
	children.mu.Lock()
	defer children.mu.Unlock()
	var c census
	seen := make(map[int]int64, len(t.seen))
	below := t.read.children
	if t.slow {
		all := t.read.parents()
		below = func(pid int, _ int64) []int { return all[pid] }
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
				next = append(next, below(next[0], s.threads)...)
			}
		}
	}
	walk(append(children.of(t), t.program), nil)
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

// visit counts a process; not ok where it is gone.
func (t *tree) visit(pid int, c *census, pss bool) (s stat, ok bool) {
	if s, ok = t.read.stat(pid); ok {
		t.count(c, pid, &s, pss)
	}
	return s, ok
}

// count adds one process.
func (t *tree) count(c *census, pid int, s *stat, pss bool) {
	io := t.read.storage(pid)
	c.add(counted{s.user + s.childUser, s.system + s.childSystem, io[0], io[1]})
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

// storage is what a process, with the children that it waited for, read and
// wrote; zeros where that may not be known.
func (r *reader) storage(pid int) [2]int64 {
	b, err := r.read(procFile(pid, "io"))
	if err != nil {
		return [2]int64{}
	}
	return [2]int64{field(b, "read_bytes"), field(b, "write_bytes")}
}

// children lists those of a process, which each of its threads has of its own. A process that ends
// meanwhile may hide others: the next look finds them.
func (r *reader) children(pid int, threads int64) []int {
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
		if b, err := r.read(procFile(pid, "task/"+task+"/children")); err == nil {
			out = append(out, pids(b)...)
		}
	}
	return out
}

// maxThreads bounds how many of a process's threads are looked at.
const maxThreads = 4096

// parents finds all children by their parents.
func (r *reader) parents() map[int][]int {
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
		if s, ok := r.stat(pid); ok {
			out[s.parent] = append(out[s.parent], pid)
		}
	}
	return out
}
