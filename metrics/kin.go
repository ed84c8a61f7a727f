package metrics

import (
	"bytes"
	"os"
	"strconv"
)

// kin are processes that are the run's without being descendants of its program: a
// launcher had a daemon start them. What they used is lost when they end, but for what the last look found.
type kin struct {
	variables []string        // each of which is in their environments; none: there are no kin
	strangers map[int]int64   // processes that are none, by when they started
	known     map[int]counted // what each one used, when last seen
	lost      counted         // what those used that are gone
	read      reader
}

// maxEnvironment bounds how much of an environment is read, in bytes.
const maxEnvironment = 128 << 10

// find returns those that run and that are not in the tree by themselves.
func (k *kin) find() (out []int) {
	if len(k.variables) == 0 {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	strangers := make(map[int]int64, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := k.read.read(procFile(pid, "stat"))
		if err != nil {
			continue
		}
		s, ok := parseStat(b)
		if was, is := k.strangers[pid]; !ok || is && was == s.start || startedUs(pid) || !k.has(pid) {
			strangers[pid] = s.start
			continue
		}
		out = append(out, pid)
	}
	k.strangers = strangers
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

// counts takes in what those used that were found, and keeps what was used by those that are gone.
func (k *kin) counts(now map[int]counted) counted {
	for pid, c := range k.known {
		if _, lives := now[pid]; !lives {
			k.lost.add(c)
		}
	}
	k.known = now
	return k.lost
}
