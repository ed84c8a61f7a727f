package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// stalls reads how long tasks waited for processors, memory and storage since the start of
// the run, from the cgroup if available, else from the machine.
type stalls struct {
	dir  string // empty for the machine
	base Pressure
	read reader
}

// begin records the state at the start of the run.
func (s *stalls) begin(c *cgroups) {
	if k := c.memory; k.version == 2 && !k.isRoot() && exists(filepath.Join(k.dir, "cpu.pressure")) {
		s.dir = k.dir
	}
	if p := s.absolute(); p != nil {
		s.base = *p
	}
}

// now returns the waits, or nil if the kernel does not count them (before Linux 4.20, or
// disabled).
func (s *stalls) now() *Pressure {
	p := s.absolute()
	if p == nil {
		return nil
	}
	p.CPU, p.Memory, p.IO = round(max(0, p.CPU-s.base.CPU)), round(max(0, p.Memory-s.base.Memory)), round(max(0, p.IO-s.base.IO))
	return p
}

func (s *stalls) absolute() *Pressure {
	p := &Pressure{Machine: s.dir == ""}
	known := false
	for name, to := range map[string]*float64{"cpu": &p.CPU, "memory": &p.Memory, "io": &p.IO} {
		file := "/proc/pressure/" + name
		if s.dir != "" {
			file = filepath.Join(s.dir, name+".pressure")
		}
		b, err := s.read.read(file)
		if err != nil {
			continue
		}
		*to, known = float64(someTotal(b))/1e6, true
	}
	if !known {
		return nil
	}
	return p
}

// someTotal returns N of the line "some avg10=… total=N", in microseconds.
func someTotal(b []byte) int64 {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	head, total, ok := bytes.Cut(line, []byte(" total="))
	if !ok || !bytes.HasPrefix(head, []byte("some ")) {
		return 0
	}
	return number(total)
}

// A network counts the traffic of the interfaces that the program sees. It ignores the
// loopback interface and interfaces on top of others, such as bridges, bonds and VLANs,
// whose traffic the lower ones count.
type network struct {
	in, out int64 // since the start of the run
	class   string
	space   string              // network namespace
	was     map[string][2]int64 // previous counters of its interfaces, in and out
	upper   map[string]bool     // interfaces on top of others
	read    reader
}

func (n *network) begin() {
	n.class, n.upper = "/sys/class/net", map[string]bool{}
	if b, err := n.read.read("/proc/thread-self/net/dev"); err == nil {
		space, _ := os.Readlink("/proc/thread-self/ns/net")
		n.take(b, space)
	}
}

// update updates the counters. An ended or unreadable process has no interfaces, so nothing
// changes.
func (n *network) update(pid int) {
	b, err := n.read.read(procFile(pid, "net/dev"))
	if err != nil || len(b) == 0 {
		return
	}
	space, err := os.Readlink(procFile(pid, "ns/net"))
	if err != nil { // unreadable for another user's process
		space = n.space
	}
	n.take(b, space)
}

// take adds the increases. Counters of new interfaces, or of another namespace, start at
// their current values; removed interfaces subtract nothing.
func (n *network) take(b []byte, space string) {
	now := interfaces(b)
	if space != n.space {
		n.space, n.was = space, nil
	}
	for name, count := range now {
		if was, known := n.was[name]; known && !n.onOthers(name) {
			n.in, n.out = sum(n.in, max(0, count[0]-was[0])), sum(n.out, max(0, count[1]-was[1]))
		}
	}
	n.was = now
}

// onOthers reports whether an interface is on top of others, according to sysfs since Linux
// 3.14.
func (n *network) onOthers(name string) bool {
	upper, known := n.upper[name]
	if !known {
		files, _ := os.ReadDir(filepath.Join(n.class, name))
		upper = slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), "lower_") })
		n.upper[name] = upper
	}
	return upper
}

// interfaces parses the lines "NAME: BYTES … BYTES …" of /proc/net/dev: the first and the
// ninth number.
func interfaces(b []byte) map[string][2]int64 {
	counts := map[string][2]int64{}
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		i := bytes.LastIndexByte(line, ':') // the name of an alias contains one
		if i < 0 {
			continue
		}
		name, f := string(bytes.TrimSpace(line[:i])), bytes.Fields(line[i+1:])
		if name != "lo" && len(f) >= 9 {
			counts[name] = [2]int64{number(f[0]), number(f[8])}
		}
	}
	return counts
}
