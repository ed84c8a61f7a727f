package metrics

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// kin are processes that are the run's without being descendants of its program: a
// launcher had a daemon start them. What they used is lost when they end, but for what the last look found.
type kin struct {
	variables []string             // each of which is in their environments; none: there are no kin
	strangers map[int]stranger     // processes that are none, and will not be before they execute another program
	known     map[process]relative // kin, and what is below them, when last seen
	lost      counted              // what those used that are gone
	read      reader
}

// A process is told by when it started, in ticks since the machine's: pids are used again.
type process struct {
	pid   int
	start int64
}

// A relative is one of the kin, or a descendant of one.
type relative struct {
	used   counted // with the children that it waited for
	parent process
}

// A stranger is told by when it started, and by the name of its program.
type stranger struct {
	start int64
	name  [16]byte
}

// youth is how long a process may still become one of the kin, in ticks: a daemon forks it, prepares it, and then
// executes the program with its environment. Later ones are told by the program's name, which most change.
const youth = int64(60 / tick)

// ticksNow is the time of which processes have that of their start.
func ticksNow() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // 0: all are young
	return t.Nano() / int64(tick*1e9)
}

// maxEnvironment bounds how much of an environment is read, in bytes.
const maxEnvironment = 128 << 10

// find returns those that run, but for those whose parent is one of them: these are below it.
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

// tops are the processes whose parents are not among them, but for children of this process, which
// are in a tree, or in that of another run.
func tops(parents map[int]int) (out []int) {
	for pid, parent := range parents {
		if _, below := parents[parent]; !below && parent != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// has says whether a process has all variables. Of other users' processes nothing can be read.
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

// counts takes in those that a look found, and is what the others used: those that it
// missed, and those that are gone, unless one that lives waited for them and so has it.
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

// below says whether a process, or one that it was below, is among those that live.
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
