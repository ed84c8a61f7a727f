package metrics

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// kin are processes that belong to a run without being descendants of its program,
// because a launcher started them through a daemon. What they use after the last look
// is lost.
type kin struct {
	variables []string             // all must be in their environments; empty: no kin
	strangers map[int]stranger     // processes that are not kin until they execute another program
	known     map[process]relative // kin and their descendants at the last look
	lost      counted              // usage of those that have ended
	read      reader
}

// A process is identified by pid and start time, in ticks since boot, because pids are
// reused.
type process struct {
	pid   int
	start int64
}

// A relative is one of the kin or a descendant.
type relative struct {
	used   counted // including children that it waited for
	parent process
}

// A stranger is identified by its start time and its program's name.
type stranger struct {
	start int64
	name  [16]byte
}

// youth is how long a process may still become kin, in ticks: a daemon forks it, prepares
// it, and then executes the program with its environment. Later changes are detected by the
// program's name.
const youth = int64(60 / tick)

// ticksNow returns the current time in the unit of process start times.
func ticksNow() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // 0: all count as young
	return t.Nano() / int64(tick*1e9)
}

// maxEnvironment bounds the part of an environment that is read, in bytes.
const maxEnvironment = 128 << 10

// find returns the running kin, except those whose parent is kin, which are counted below
// it.
func (k *kin) find() []int {
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
	strangers, grown := make(map[int]stranger, len(names)), ticksNow()-youth
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		s, ok := k.read.stat(pid)
		now := stranger{s.start, s.name}
		switch known := k.strangers[pid] == now; {
		case !ok:
		case known || !k.has(pid) || startedUs(pid):
			if known || s.start < grown {
				strangers[pid] = now
			}
		default:
			parents[pid] = s.parent
		}
	}
	k.strangers = strangers
	return tops(parents)
}

// tops returns the processes whose parents are not in the map, except children of this
// process, which are in a tree or belong to another run.
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
func (k *kin) has(pid int) bool {
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

// counts records the relatives of a look and returns the usage of the others: those that
// were missed, and those that have ended unless a living relative waited for them and
// includes it.
func (k *kin) counts(now map[process]relative) counted {
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
func (k *kin) below(p process, living map[process]relative) bool {
	for range len(k.known) + 1 {
		if _, ok := living[p]; ok {
			return true
		}
		p = k.known[p].parent
	}
	return false
}

func (k *kin) lives(p process) bool {
	s, ok := k.read.stat(p.pid)
	return ok && s.start == p.start && !s.zombie
}
