package metrics

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A relatedFinder finds processes that belong to a run without being descendants of its program,
// because a launcher started them through a daemon. It misses what they use after the last
// scan.
type relatedFinder struct {
	variables []string                   // all must be in their environments; empty: there are no such processes
	others    map[int]otherProcess       // unrelated processes, unless they execute another program
	known     map[process]relatedProcess // related processes and their descendants at the last scan
	lost      counted                    // usage of those that have ended
	read      reader
}

// A process is identified by pid and start time, in ticks since boot, because pids are
// reused.
type process struct {
	pid   int
	start int64
}

// A relatedProcess is a related process or a descendant of one.
type relatedProcess struct {
	used   counted // including children that it waited for
	parent process
}

// An otherProcess is an unrelated process, with its start time and its program's name.
type otherProcess struct {
	start int64
	name  [16]byte
}

// settling is how long after its start a process may become related, in ticks: a daemon forks
// it, prepares it, and then executes the program with its environment. Later changes are
// detected by the program's name.
const settling = int64(60 / tick)

// ticksNow returns the current time in the unit of process start times.
func ticksNow() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // on failure 0: all processes count as new
	return t.Nano() / int64(tick*1e9)
}

// maxEnvironment bounds the part of an environment that is read, in bytes.
const maxEnvironment = 128 << 10

// find returns the running related processes, except those whose parent is related: they are
// counted as its descendants.
func (k *relatedFinder) find() []int {
	if len(k.variables) == 0 {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	parents := map[int]int{}
	others, settled := make(map[int]otherProcess, len(names)), ticksNow()-settling
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		s, ok := k.read.stat(pid)
		now := otherProcess{s.start, s.name}
		switch known := k.others[pid] == now; {
		case !ok:
		case known || !k.has(pid) || startedUs(pid):
			if known || s.start < settled {
				others[pid] = now
			}
		default:
			parents[pid] = s.parent
		}
	}
	k.others = others
	return tops(parents)
}

// tops returns the processes whose parents are not in the map. Children of this process are
// omitted, because they are in a tree or belong to another run.
func tops(parents map[int]int) (out []int) {
	for pid, parent := range parents {
		if _, below := parents[parent]; !below && parent != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// has reports whether a process has all the variables. Other users' environments cannot be
// read.
func (k *relatedFinder) has(pid int) bool {
	b, err := k.read.readSome(procFile(pid, "environ"), maxEnvironment)
	if err != nil {
		return false
	}
	b = append([]byte{0}, append(b, 0)...)
	for _, v := range k.variables {
		if !bytes.Contains(b, append(append([]byte{0}, v...), 0)) {
			return false
		}
	}
	return true
}

// counts records the processes of a scan. It returns the usage of the others: of those that the
// scan missed, and of those that have ended, unless a living process waited for them and
// includes it.
func (k *relatedFinder) counts(now map[process]relatedProcess) counted {
	missed := counted{}
	for p, r := range k.known {
		if _, found := now[p]; !found && k.lives(p) {
			now[p] = r
			missed.add(r.used)
		}
	}
	for p, r := range k.known {
		if _, found := now[p]; !found && !k.below(r.parent, now) {
			k.lost.add(r.used)
		}
	}
	k.known = now
	missed.add(k.lost)
	return missed
}

// below reports whether a process or one of its former ancestors is alive.
func (k *relatedFinder) below(p process, living map[process]relatedProcess) bool {
	for range len(k.known) + 1 {
		if _, ok := living[p]; ok {
			return true
		}
		p = k.known[p].parent
	}
	return false
}

func (k *relatedFinder) lives(p process) bool {
	s, ok := k.read.stat(p.pid)
	return ok && s.start == p.start && !s.zombie
}
