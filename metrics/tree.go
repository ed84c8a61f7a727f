package metrics

import (
	"os"
	"strconv"
)

// A tree is the process tree of a program. It includes orphans, which become children of this
// process. The lock of [reaper] protects it.
type tree struct {
	program int
	group   int           // the program's own process group, or 0
	seen    map[int]int64 // start times of processes, because pids are reused
	ended   counted       // usage of orphans that ended
	usage   Usage         // the same, as counted by the kernel
	last    counted       // result of the last scan
	related relatedFinder
	read    reader
	slow    bool // the kernel has no lists of children, so all of /proc is searched
}

// counted holds counters that only grow during a run.
type counted struct {
	user, system int64 // ticks
	in, out      int64 // bytes read from and written to storage
}

func (c *counted) add(d counted) {
	c.user, c.system, c.in, c.out = c.user+d.user, c.system+d.system, c.in+d.in, c.out+d.out
}

// since returns the increase since d.
func (c *counted) since(d counted) counted {
	return counted{c.user - d.user, c.system - d.system, c.in - d.in, c.out - d.out}
}

// A census is the state of a tree at one moment.
type census struct {
	counted
	processes, threads int
	rss, pss, swap     int64 // bytes; the latter two only if requested
}

// newTree returns the tree of a running program.
func newTree(program, group int, relatives []string) *tree {
	t := &tree{program: program, group: group, seen: map[int]int64{}, related: relatedFinder{variables: relatives}, slow: children.slow}
	children.join(t)
	return t
}

// scan counts the processes of the tree and reaps the orphans that ended. pss requests
// proportional set sizes, which take longer to read.
func (t *tree) scan(pss bool) census {
	children.mu.Lock()
	defer children.mu.Unlock()
	var c census
	seen := make(map[int]int64, len(t.seen))
	below := t.read.children
	if t.slow {
		all := t.read.childrenByParent()
		below = func(pid int, _ int64) []int { return all[pid] }
	}
	walk := func(roots []int, found map[process]relatedProcess) {
		for next := roots; len(next) > 0; next = next[1:] {
			if _, twice := seen[next[0]]; twice { // it got another parent during the scan
				continue
			}
			before := c.counted
			if s, ok := t.visit(next[0], &c, pss); ok {
				seen[next[0]] = s.start
				if found != nil {
					found[process{next[0], s.start}] = relatedProcess{c.since(before), process{s.parent, seen[s.parent]}}
				}
				next = append(next, below(next[0], s.threads)...)
			}
		}
	}
	walk(append(children.of(t), t.program), nil)
	relatives := map[process]relatedProcess{}
	walk(t.related.find(), relatives)
	c.add(t.related.counts(relatives))
	t.seen = seen
	c.add(t.ended)
	// Processes that ended without being waited for, or during the scan, must not reduce the
	// counters.
	t.last = counted{max(c.user, t.last.user), max(c.system, t.last.system), max(c.in, t.last.in), max(c.out, t.last.out)}
	c.counted = t.last
	return c
}

// visit adds a process to the census. ok is false if the process has ended.
func (t *tree) visit(pid int, c *census, pss bool) (s stat, ok bool) {
	if s, ok = t.read.stat(pid); !ok {
		return s, false
	}
	io := t.read.storage(pid)
	c.add(counted{s.user + s.childUser, s.system + s.childSystem, io[0], io[1]})
	if s.zombie {
		return s, true
	}
	c.processes++
	c.threads += int(s.threads)
	c.rss += s.rssPages * int64(os.Getpagesize())
	if !pss {
		return s, true
	}
	b, err := t.read.read(procFile(pid, "smaps_rollup")) // since Linux 4.14
	if err == nil {
		c.pss += field(b, "Pss") << 10
		c.swap += field(b, "Swap") << 10
	}
	return s, true
}

// storage returns the bytes that a process, including the children that it waited for, read from
// and wrote to storage, or zeros if unknown.
func (r *reader) storage(pid int) [2]int64 {
	b, err := r.read(procFile(pid, "io"))
	if err != nil {
		return [2]int64{}
	}
	return [2]int64{field(b, "read_bytes"), field(b, "write_bytes")}
}

// children returns the children of a process. Each thread has its own list. A process that
// ends meanwhile may hide others, which the next scan finds.
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

// maxThreads is the maximum number of threads of a process whose children are read.
const maxThreads = 4096

// childrenByParent returns the children of all processes.
func (r *reader) childrenByParent() map[int][]int {
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
