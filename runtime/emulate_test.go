package runtime

import (
	"debug/elf"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// header returns the start of an ELF file for a machine, little- or big-endian, of a kind (2
// program, 3 shared object).
func header(m machine, kind byte) []byte {
	h := make([]byte, 20)
	copy(h, "\x7fELF\x02\x01\x01")
	h[16], h[18] = kind, m.elf
	if m.big {
		h[5] = 2
		h[16], h[17], h[18], h[19] = 0, kind, 0, m.elf
	}
	return h
}

// unescape decodes \xNN as the kernel does.
func unescape(t *testing.T, s string) []byte {
	t.Helper()
	var out []byte
	for _, hex := range strings.Split(s, `\x`)[1:] {
		var b byte
		for _, c := range hex {
			b = b<<4 | byte(strings.IndexRune("0123456789abcdef", c))
		}
		out = append(out, b)
	}
	return out
}

// A rule matches programs and shared objects of its machine and nothing else.
func TestRule(t *testing.T) {
	matches := func(rule string, file []byte) bool {
		f := strings.Split(rule, ":")
		magic, mask := unescape(t, f[4]), unescape(t, f[5])
		if len(magic) != 20 || len(mask) != 20 {
			t.Fatalf("%q has %d bytes of magic and %d of mask", rule, len(magic), len(mask))
		}
		for i := range magic {
			if file[i]&mask[i] != magic[i]&mask[i] {
				return false
			}
		}
		return true
	}
	for arch, m := range machines {
		r := rule(m, "/usr/bin/qemu")
		if !strings.HasPrefix(r, ":hpcc-"+m.qemu+":M::") || !strings.HasSuffix(r, ":/usr/bin/qemu:FP") {
			t.Errorf("%s: %q", arch, r)
		}
		for other, o := range machines {
			for kind := byte(1); kind <= 4; kind++ {
				h := header(o, kind)
				h[7] = 3 // Linux, or 0: any
				if got, want := matches(r, h), other == arch && (kind == 2 || kind == 3); got != want {
					t.Errorf("the rule for %s matches a file for %s, kind %d: %v; want %v", arch, other, kind, got, want)
				}
			}
		}
		h := header(m, 2)
		h[4] = 1 // 32 bits
		if matches(r, h) {
			t.Errorf("the rule for %s takes programs of 32 bits", arch)
		}
	}
}

// An emulator is used only if it needs nothing from the image.
func TestFindQemu(t *testing.T) {
	busybox := filepath.Join(testenv.BusyboxRoot(t), "bin/busybox") // static
	dynamic := header(machines["amd64"], 2)
	put := func(dir, name string, data []byte) {
		t.Helper()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
	}
	static, err := os.ReadFile(busybox)
	testenv.Check(t, err)
	if b, err := os.ReadFile("/bin/sh"); err == nil {
		dynamic = b
	}
	for _, c := range []struct {
		name  string
		files map[string][]byte
		want  string // the file's name, or after "!" of the error
	}{
		{"nothing", nil, "!there is no qemu-ppc64le-static"},
		{"Debian's", map[string][]byte{"qemu-ppc64le-static": static}, "qemu-ppc64le-static"},
		{"a static one by the plain name", map[string][]byte{"qemu-ppc64le": static}, "qemu-ppc64le"},
		{"one with libraries", map[string][]byte{"qemu-ppc64le": dynamic}, "!needs libraries that the image does not have"},
		{"both", map[string][]byte{"qemu-ppc64le": dynamic, "qemu-ppc64le-static": static}, "qemu-ppc64le-static"},
		{"no program at all", map[string][]byte{"qemu-ppc64le": []byte("#!/bin/sh\n")}, "!needs libraries"},
		{"a name that no rule can hold", nil, "!there is no"},
	} {
		dir := t.TempDir()
		if strings.HasPrefix(c.name, "a name") {
			dir = filepath.Join(dir, "a:b")
			testenv.Check(t, os.Mkdir(dir, 0o755))
			put(dir, "qemu-ppc64le-static", static)
		}
		for n, b := range c.files {
			put(dir, n, b)
		}
		t.Setenv("PATH", dir)
		got, err := findQemu("ppc64le")
		if want, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q, %v; want an error with %q", c.name, got, err, want)
			}
		} else if got != filepath.Join(dir, want) || err != nil {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, want)
		}
	}
}

func TestIsStatic(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "text": "#!/bin/sh\n", "short": "\x7fELF\x02\x01", "far": "\x7fELF\x02\x01" + strings.Repeat("\xff", 58)} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
		if isStatic(filepath.Join(dir, name)) {
			t.Errorf("a file %q is a static program", name)
		}
	}
	// isStatic agrees with debug/elf on files of this machine.
	for _, file := range []string{"/bin/sh", "/bin/busybox", "/usr/bin/qemu-aarch64-static", "/proc/self/exe"} {
		f, err := elf.Open(file)
		if err != nil {
			continue
		}
		want := !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
		f.Close()
		if got := isStatic(file); got != want {
			t.Errorf("isStatic(%s) = %v; want %v", file, got, want)
		}
	}
}

// Native architectures need no emulator; unknown ones are reported.
func TestEmulateRefuses(t *testing.T) {
	for arch, want := range map[string]string{"": "", goruntime.GOARCH: "", "vax": "no emulator is known for it"} {
		err := CanRun(arch)
		if (want == "" && err != nil) || (want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the image is for "+arch))) {
			t.Errorf("CanRun(%q): %v; want %q", arch, err, want)
		}
	}
}

// A process in the initial user namespace registers nothing: as root it would change the
// host's list for all users.
func TestEmulateLeavesTheHostAlone(t *testing.T) {
	if !inInitialUserNamespace() {
		t.Skip("the tests run in a user namespace")
	}
	arch := "ppc64le"
	if goruntime.GOARCH == arch {
		arch = "amd64"
	}
	if registered(machines[arch]) {
		t.Skip("the host registers an emulator for " + arch)
	}
	busybox, err := testenv.Busybox()
	testenv.Need(t, "busybox-static", err)
	t.Setenv("PATH", t.TempDir())
	qemu := filepath.Join(os.Getenv("PATH"), "qemu-"+machines[arch].qemu+"-static")
	testenv.Check(t, os.Symlink(busybox, qemu))
	if err := CanRun(arch); err == nil || !strings.Contains(err.Error(), "for the whole host") {
		t.Errorf("CanRun(%q): %v; want a refusal", arch, err)
	}
	if registered(machines[arch]) {
		t.Errorf("%s now has an emulator for %s", Handlers, arch)
	}
}

func TestLadder(t *testing.T) {
	for _, c := range []struct {
		value, rung string
		uid, gid    int
		ok          bool
	}{
		{"register:7:8", "register", 7, 8, true},
		{"register:7:8", "run", 0, 0, false},
		{"run:0:0", "run", 0, 0, true},
		{"run:7", "run", 7, 0, false},
		{"", "run", 0, 0, false},
	} {
		t.Setenv(ladderVar, c.value)
		if uid, gid, ok := ladder(c.rung); ok != c.ok || (ok && (uid != c.uid || gid != c.gid)) {
			t.Errorf("ladder(%q) with %q = %d, %d, %v; want %d, %d, %v", c.rung, c.value, uid, gid, ok, c.uid, c.gid, c.ok)
		}
	}
}
