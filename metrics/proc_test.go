package metrics

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

const statTail = " S 17 18 19 0 -1 4194560 1 2 3 4 50 60 70 80 20 0 3 0 12345 9999 2048 18446744073709551615\n"

func TestParseStat(t *testing.T) {
	want := stat{parent: 17, group: 18, session: 19, user: 50, system: 60, childUser: 70, childSystem: 80, threads: 3, start: 12345, rssPages: 2048}
	for _, name := range []string{"sh", "", "a) R 1 (", "((((", "a\nb", ") Z 1 2 3 4", " ", "kworker/u16:3-events_unbound"} {
		named := want
		copy(named.name[:], name)
		if got, ok := parseStat([]byte("42 (" + name + ")" + statTail)); !ok || got != named {
			t.Errorf("a process named %q: %+v, %v", name, got, ok)
		}
	}
	if got, ok := parseStat([]byte("42 (x)" + strings.Replace(statTail, " S ", " Z ", 1))); !ok || !got.zombie {
		t.Errorf("a zombie: %+v, %v", got, ok)
	}
	for _, text := range []string{"", "42", "42 (x)", "42 (x) S", "42 (x) S 1 2 3", "(((", ")", ") "} {
		if got, ok := parseStat([]byte(text)); ok {
			t.Errorf("parseStat(%q) = %+v", text, got)
		}
	}
}

// TestOwnStat compares with the system's data on this process.
func TestOwnStat(t *testing.T) {
	var r reader
	b, err := r.read("/proc/self/stat")
	testenv.Check(t, err)
	if s, ok := parseStat(b); !ok || s.parent != os.Getppid() || s.threads < 1 || s.rssPages < 100 || s.zombie {
		t.Errorf("this process: %+v, %v; its parent is %d", s, ok, os.Getppid())
	}
}

func TestReaderReadsWhatIsLarge(t *testing.T) {
	file := t.TempDir() + "/f"
	text := strings.Repeat("0123456789", 3000)
	testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
	var r reader
	if b, err := r.read(file); err != nil || string(b) != text {
		t.Errorf("%d bytes, %v; want %d", len(b), err, len(text))
	}
	testenv.Check(t, os.WriteFile(file, make([]byte, 3*maxSmall), 0o644))
	if b, err := r.read(file); err != nil || len(b) > 2*maxSmall {
		t.Errorf("%d bytes of a file without end, %v", len(b), err)
	}
}

func TestField(t *testing.T) {
	text := "Pss_Dirty:  7 kB\nPss:      12 kB\nSwapPss: 1 kB\nusage_usec 99\nhuge 99999999999999999999999\nnone\nnegative -3\n"
	for key, want := range map[string]int64{"Pss": 12, "usage_usec": 99, "huge": 1<<63 - 1, "none": 0, "negative": 0, "Swap": 0, "absent": 0} {
		if got := field([]byte(text), key); got != want {
			t.Errorf("field(%q) = %d; want %d", key, got, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a) R 1 ()" + statTail)
	f.Add("1 (x) S " + strings.Repeat("9", 400))
	f.Fuzz(func(t *testing.T, text string) {
		s, _ := parseStat([]byte(text))
		for _, n := range []int64{s.user, s.system, s.childUser, s.childSystem, s.threads, s.start, s.rssPages} {
			if n < 0 {
				t.Errorf("parseStat(%q) = %+v", text, s)
			}
		}
		for _, p := range pids([]byte(text)) {
			if p < 1 || p > 1<<22 {
				t.Errorf("pids(%q) has %d", text, p)
			}
		}
	})
}

func FuzzSystemFiles(f *testing.F) {
	f.Add("Inter-|   Receive\n  eth0: 100 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0\n    lo: 7 1 0 0 0 0 0 0 7 1\n")
	f.Add("some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull total=4\n")
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, text string) {
		n := network{space: "a", was: map[string][2]int64{"eth0": {}}, upper: map[string]bool{"eth0": false}, in: 1, out: 1}
		n.take([]byte(text), "a")
		read, written := deviceSums([]byte(text), "rbytes=", "wbytes=")
		if n.in < 1 || n.out < 1 || read < 0 || written < 0 || someTotal([]byte(text)) < 0 {
			t.Errorf("%q: %d, %d, %d, %d", text, n.in, n.out, read, written)
		}
	})
}

func TestInterfaces(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 5150861    9066    0    0    0     0          0         0  5150861    9066    0    0    0     0       0          0
  eth0: 100 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0
eth0:1:  10 1 0 0 0 0 0 0  5 1 0 0 0 0 0 0
  ib0:99999999999999999999 1 0 0 0 0 0 0 x 1
`
	want := map[string][2]int64{"eth0": {100, 50}, "eth0:1": {10, 5}, "ib0": {1<<63 - 1, 0}}
	if got := interfaces([]byte(text)); !maps.Equal(got, want) {
		t.Errorf("interfaces = %v; want %v", got, want)
	}
}

// TestNetwork: increases are counted, and nothing twice.
func TestNetwork(t *testing.T) {
	n := network{class: t.TempDir(), upper: map[string]bool{}}
	for _, dir := range []string{"bond0/lower_eth0", "bond0/lower_eth1", "eth0/device", "eth1/device"} {
		testenv.Check(t, os.MkdirAll(filepath.Join(n.class, dir), 0o755))
	}
	for _, c := range []struct {
		name, space, text string
		in, out           int64
	}{
		{"the start", "net:[1]", "eth0: 5000 0 0 0 0 0 0 0 700\neth1: 50 0 0 0 0 0 0 0 7\nbond0: 5050 0 0 0 0 0 0 0 707\nveth1: 30 0 0 0 0 0 0 0 40", 0, 0},
		{"a bond's slaves", "net:[1]", "eth0: 5100 0 0 0 0 0 0 0 703\neth1: 60 0 0 0 0 0 0 0 7\nbond0: 5160 0 0 0 0 0 0 0 710\nveth1: 31 0 0 0 0 0 0 0 40", 111, 3},
		{"one that goes", "net:[1]", "eth0: 5101 0 0 0 0 0 0 0 703\neth1: 60 0 0 0 0 0 0 0 7\nbond0: 5161 0 0 0 0 0 0 0 710", 112, 3},
		{"one that comes", "net:[1]", "eth0: 5101 0 0 0 0 0 0 0 703\neth1: 60 0 0 0 0 0 0 0 7\ntun0: 900 0 0 0 0 0 0 0 900", 112, 3},
		{"one that began again", "net:[1]", "eth0: 4 0 0 0 0 0 0 0 5\neth1: 60 0 0 0 0 0 0 0 8\ntun0: 901 0 0 0 0 0 0 0 900", 113, 4},
		{"another namespace", "net:[2]", "eth0: 70000 0 0 0 0 0 0 0 80000", 113, 4},
		{"and on", "net:[2]", "eth0: 70001 0 0 0 0 0 0 0 80002", 114, 6},
	} {
		if n.take([]byte(c.text), c.space); n.in != c.in || n.out != c.out {
			t.Errorf("%s: %d in, %d out; want %d, %d", c.name, n.in, n.out, c.in, c.out)
		}
	}
}

func TestMachineFiles(t *testing.T) {
	file := t.TempDir() + "/f"
	write := func(text string) {
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
	}
	for text, want := range map[string]string{
		"processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\n":           "Intel(R) Xeon(R)",
		"processor\t: 0\ncpu\t\t: POWER9, altivec supported\n":       "POWER9, altivec supported",
		"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c": "ARM part 0xd0c", "": "", "no colon\n": "",
	} {
		if write(text); cpuName(file) != want {
			t.Errorf("cpuName(%q) = %q", text, cpuName(file))
		}
	}
	for text, want := range map[string]int{"0-3,8\n": 5, "0": 1, "": 0, "x": 0, "3-1": 0, "0-99999999999": 0} {
		if write(text); online(file) != want {
			t.Errorf("online(%q) = %d; want %d", text, online(file), want)
		}
	}
}
