package metrics

import (
	"bytes"
	"path/filepath"
)

// stalls reads how long tasks waited for processors, memory and storage since the run began: of
// the cgroup where it has that, else of the machine.
type stalls struct {
	dir  string // "" for the machine
	base Pressure
	read reader
}

// begin notes how it stood when the run began.
func (s *stalls) begin(c *cgroups) {
	if k := c.memory; k.version == 2 && !k.whole() && exists(filepath.Join(k.dir, "cpu.pressure")) {
		s.dir = k.dir
	}
	if p := s.absolute(); p != nil {
		s.base = *p
	}
}

// now is nil where the kernel does not count that (before Linux 4.20, or not asked to).
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

// someTotal is the sum of the line "some avg10=… total=N", in microseconds.
func someTotal(b []byte) int64 {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	head, total, ok := bytes.Cut(line, []byte(" total="))
	if !ok || !bytes.HasPrefix(head, []byte("some ")) {
		return 0
	}
	return number(total)
}

// A network counts what went over the interfaces that the program sees, but for
// the loopback one.
type network struct {
	in, out int64    // since the run began
	was     [2]int64 // what the interfaces had counted
	read    reader
}

func (n *network) begin() {
	b, _ := n.read.read("/proc/thread-self/net/dev")
	n.was[0], n.was[1] = interfaces(b)
}

// look counts on. A program that ended shows no interfaces, nor one that hides: then there is nothing new.
func (n *network) look(pid int) {
	b, err := n.read.read(procFile(pid, "net/dev"))
	if err != nil || len(b) == 0 {
		return
	}
	in, out := interfaces(b)
	n.in, n.out = n.in+grown(in, n.was[0]), n.out+grown(out, n.was[1])
	n.was = [2]int64{in, out}
}

// grown is by how much a count grew; a smaller one began again, in another namespace.
func grown(now, was int64) int64 {
	if now < was {
		return now
	}
	return now - was
}

// interfaces adds what the lines "NAME: BYTES … BYTES …" of /proc/net/dev count:
// the first and the ninth number.
func interfaces(b []byte) (in, out int64) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		i := bytes.LastIndexByte(line, ':') // an alias has one in its name
		if i < 0 || string(bytes.TrimSpace(line[:i])) == "lo" {
			continue
		}
		f := bytes.Fields(line[i+1:])
		if len(f) < 9 {
			continue
		}
		in, out = sum(in, number(f[0])), sum(out, number(f[8]))
	}
	return in, out
}
