package bare

import (
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// stack lays out words, variables and ids as the kernel does.
func stack(args, env []string, ids [4]uintptr) unsafe.Pointer {
	var keep []*byte
	add := func(list []string) {
		for _, s := range list {
			keep = append(keep, unsafe.StringData(s+"\x00"))
		}
		keep = append(keep, nil)
	}
	add(args)
	add(env)
	// Pointers first, so that the collector sees them; the count goes in front.
	block := make([]*byte, 0, len(keep)+12)
	block = append(append(block, nil), keep...)
	*(*uintptr)(unsafe.Pointer(&block[0])) = uintptr(len(args))
	for i, id := range append(ids[:], 0) {
		key := uintptr(11 + i)
		if i == len(ids) {
			key = 0
		}
		block = append(block, nil, nil)
		*(*uintptr)(unsafe.Pointer(&block[len(block)-2])) = key
		*(*uintptr)(unsafe.Pointer(&block[len(block)-1])) = id
	}
	return unsafe.Pointer(&block[0])
}

func TestUsual(t *testing.T) {
	user := [4]uintptr{1000, 1000, 100, 100}
	env := []string{"HOME=/home/me"}
	for _, c := range []struct {
		line string
		env  []string
		ids  [4]uintptr
		ok   bool
	}{
		{"hpcc run bb env", env, user, true},
		{"/usr/bin/hpcc run bb -- env -j", env, user, true},
		{"hpcc run bb", env, user, true},
		{"hpcc run bb env -j", env, user, false},
		{"hpcc run bb env --join=x", env, user, false},
		{"hpcc run --cd / bb env", env, user, false},
		{"hpcc run bb.sqfs env", env, user, false},
		{"hpcc run bb.squashfs -- env", env, user, false},
		{"hpcc run ./bb.sfs -- env", env, user, false},
		{"hpcc run sfs -- env x.sqfs", env, user, true},
		{"hpcc run", env, user, false},
		{"hpcc pull bb", env, user, false},
		{"hpcc-full run bb", env, user, false},
		{"hpcc+ent1234 run bb", env, user, false},
		{"/usr/bin/hpcc-oci run bb", env, user, false},
		{"hpcc run bb", nil, user, false},
		{"hpcc run bb", []string{"HOME="}, user, false},
		{"hpcc run bb", []string{"HOME=/"}, user, false},
		{"hpcc run bb", []string{"HOME=home"}, user, false},
		{"hpcc run bb", []string{"HOME=/home/../me"}, user, false},
		{"hpcc run bb", append(env, "HPCC_STAGE=1"), user, false},
		{"hpcc run bb", append(env, "HPCC_STAGE="), user, true},
		{"hpcc run bb", append(env, "HPCC_NO_CONFIG=1"), user, false},
		{"hpcc run bb", append(env, "HPCC_FOREIGN=run:1:1"), user, false},
		{"hpcc run bb", env, [4]uintptr{1000, 0, 100, 100}, false},
		{"hpcc run bb", env, [4]uintptr{1000, 1000, 100, 5}, false},
	} {
		r := new(run)
		if ok := r.read(stack(strings.Fields(c.line), c.env, c.ids)) && r.usual(); ok != c.ok {
			t.Errorf("%q with %q and %v: %v; want %v", c.line, c.env, c.ids, ok, c.ok)
		}
	}
	r := new(run)
	if r.read(stack(make([]string, maxWords+1), env, user)) {
		t.Error("more words than there is room for were read")
	}
	if r = new(run); r.read(stack([]string{"hpcc"}, many(maxVariables), user)) {
		t.Error("more variables than there is room for were read")
	}
}

// many makes n variables of different names.
func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, "V"+strings.Repeat("x", i%200)+string(rune('a'+i/200))+"=1")
	}
	return out
}

// The environment is as package os has it: of two of one name the first counts.
func TestVariables(t *testing.T) {
	r := new(run)
	if !r.read(stack([]string{"hpcc"}, []string{"A=1", "", "B=2", "A=3", "odd", "odd", "=C:", "=D:", "AB=4"}, [4]uintptr{})) {
		t.Fatal("not read")
	}
	got := func() string {
		var out []string
		for i := range r.vars.n {
			out = append(out, r.vars.list[i].text())
		}
		return strings.Join(out, " ")
	}
	if want := "A=1 B=2 odd odd =C: AB=4"; got() != want {
		t.Errorf("read %q; want %q", got(), want)
	}
	r.vars.set("B=5\x00")
	r.vars.set("C=6\x00")
	r.vars.remove("A")
	r.vars.remove("odd")
	if want := "B=5 =C: AB=4 C=6"; got() != want || r.vars.value("B") != "5" || r.vars.value("A") != "" {
		t.Errorf("%q; want %q", got(), want)
	}
	if len(many(maxVariables)) != maxVariables {
		t.Fatal("too few variables")
	}
}

func TestPaths(t *testing.T) {
	for _, p := range []string{"/", "/a", "/a/b", "/a/", "/a//b", "//", "/.", "/./a", "/a/.", "/a/..", "/../a", "a", "", "./a", "/a/...", "/.a", "/a/.b/..c"} {
		if want := filepath.IsAbs(p) && filepath.Clean(p) == p; clean(p) != want {
			t.Errorf("clean(%q) = %v", p, !want)
		}
	}
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a", "/", true}, {"/", "/", true}, {"/", "/a", false}} {
		if inside(c.path, c.dir) != c.want {
			t.Errorf("inside(%q, %q) = %v", c.path, c.dir, !c.want)
		}
	}
	for _, c := range [][3]string{{"/a\x00", "", "a"}, {"/a/b\x00", "/a", "b"}, {"/a/b/c\x00", "/a/b", "c"}} {
		if dir, name := parent(zstring(c[0])); dir != c[1] || name != c[2] {
			t.Errorf("parent(%q) = %q, %q", c[0], dir, name)
		}
	}
}

func TestFind(t *testing.T) {
	const file = "root:x:0:0::/root:/bin/sh\nshort\nme:x:10:1:Me,x:/h:/bin/sh\r\nlast:x:1"
	for id, want := range map[string]string{"0": "root:x:0:0::/root:/bin/sh", "10": "me:x:10:1:Me,x:/h:/bin/sh", "1": "last:x:1", "x": "", "": "", "2": ""} {
		if got := find(file, id); got != want {
			t.Errorf("find(%q) = %q; want %q", id, got, want)
		}
	}
	r := new(run)
	for _, c := range [][2]string{{"a\n", "a\nx:1\n"}, {"a", "a\nx:1\n"}, {"", "x:1\n"}} {
		if got := r.withLine(c[0], "x", ":", r.decimal(1)); got != c[1] {
			t.Errorf("withLine(%q) = %q; want %q", c[0], got, c[1])
		}
	}
	if r.join("a", "", "bc") != "abc\x00" || r.decimal(0) != "0" || r.decimal(1234567890) != "1234567890" || r.digits(0o1755, 8) != "1755" {
		t.Error("join, decimal or digits")
	}
	for !r.full {
		r.take(maxMemory / 3)
	}
	if r.used > maxMemory {
		t.Error("more was taken than there is")
	}
}
