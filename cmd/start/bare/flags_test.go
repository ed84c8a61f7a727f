package bare

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"hpcc/envfile"
	"hpcc/testdata/helpers/testenv"
)

// stack lays out argv, variables and ids as the kernel does.
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
	// The block holds pointers, so that the garbage collector sees the strings. The count precedes them.
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

// TestIsRun checks which command lines isRun accepts, and the image and argv that it finds.
func TestIsRun(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"a.env": "A=1\n", "large": strings.Repeat("A=1\n", maxFile/4)} {
		testenv.Check(t, os.WriteFile(name, []byte(text), 0o600))
	}
	testenv.Check(t, syscall.Mkfifo("fifo", 0o600))
	user := [4]uintptr{1000, 1000, 100, 100}
	for _, c := range []struct {
		line, want string // "" if it declines
		env        string
		ids        [4]uintptr
	}{
		{line: "hpcc run bb env", want: "bb env"},
		{line: "/usr/bin/hpcc run bb -- env -j", want: "bb env -j"},
		{line: "hpcc run bb", want: "bb"},
		{line: "hpcc run bb make -j 4", want: "bb make -j 4"},
		{line: "hpcc run bb env --join=x", want: "bb env --join=x"},
		{line: "hpcc run -- bb -- env", want: "bb env"},
		{line: "hpcc run bb -- -- env", want: "bb -- env"},
		{line: "hpcc run --cd / -b /a:/b --bind=/c bb env", want: "bb env"}, {line: "hpcc run --bind= bb env"}, {line: "hpcc run --cd= bb env"},
		{line: "hpcc run -cd / --b /a:/b -b /c -W -t --home bb env", want: "bb env"},
		{line: "hpcc run -W=1g -W=20% bb", want: "bb"},
		{line: "hpcc run -W=0 bb"}, {line: "hpcc run -W=200% bb"}, {line: "hpcc run -W=1x bb"}, {line: "hpcc run -W= bb"}, {line: "hpcc run -W=99999999999 bb"},
		{line: "hpcc run --set-env a.env --set-env=B=2 --set-env0 C=3 --unset-env D* bb env", want: "bb env"},
		{line: "hpcc run --set-env bb -- env", want: "bb env"},
		{line: "hpcc run -e A=1 -e HOME --env0 a.env bb env", want: "bb env"}, {line: "hpcc run -e NO_SUCH bb env"}, {line: "hpcc run -e= bb env"}, {line: "hpcc run -e A=1 --env B=2 bb env", want: "bb env"}, {line: "hpcc run --env0 A=1 bb env"},
		{line: "hpcc run --set-env --cd / bb -- env"}, {line: "hpcc run --set-env= bb env"}, {line: "hpcc run --cd --set-env bb -- env"},
		{line: "hpcc run --set-env nofile bb env"}, {line: "hpcc run --set-env fifo bb env"}, {line: "hpcc run --set-env . bb env"}, {line: "hpcc run --set-env large bb env"},
		{line: "hpcc run --unset-env [a] bb env"}, {line: "hpcc run --unset-env !(a) bb env"},
		{line: "hpcc run --clean-env --no-passwd --no-home --no-config --gpu --env-no-expand --entrypoint= --store=s bb", want: "bb"},
		{line: "hpcc run --clean-env=true bb env"}, {line: "hpcc run --store= bb env"}, {line: "hpcc run --home --no-home bb"},
		{line: "hpcc run -tW bb env"}, {line: "hpcc run --uid 0 bb"}, {line: "hpcc run -j bb env"}, {line: "hpcc run --measure bb"}, {line: "hpcc run --help"},
		{line: "hpcc run --cd"}, {line: "hpcc run"}, {line: "hpcc run --"}, {line: "hpcc run - env", want: "- env"}, {line: "hpcc run --= bb"}, {line: "hpcc run ---cd / bb"},
		{line: "hpcc pull bb"},
		{line: "hpcc-init run bb env"}, {line: "hpcc+ent1234 run bb env"}, {line: "/usr/bin/hpcc-oci run bb env"},
		{line: "hpcc run bb", env: "HPCC_STAGE=1"}, {line: "hpcc run --stage bb"}, {line: "hpcc run x.sqfs"}, {line: "hpcc run ./x.sfs y"}, {line: "hpcc run x.sif y"},
		{line: "hpcc run bb", env: "HPCC_STAGE=", want: "bb"},
		{line: "hpcc run bb", env: "HPCC_NO_CONFIG=1"},
		{line: "hpcc run bb", env: "HPCC_FOREIGN=run:1:1"},
		{line: "hpcc run bb env", ids: [4]uintptr{1000, 0, 100, 100}},
		{line: "hpcc run bb env", ids: [4]uintptr{1000, 1000, 100, 5}},
		{line: "hpcc run " + strings.Repeat("-b /a ", maxBinds) + "bb", want: "bb"},
		{line: "hpcc run " + strings.Repeat("-b /a ", maxBinds+1) + "bb"},
		{line: "hpcc run " + strings.Repeat("--unset-env a ", maxFlags+1) + "bb"},
	} {
		if c.ids == [4]uintptr{} {
			c.ids = user
		}
		r, got := new(run), ""
		if r.read(stack(strings.Fields(c.line), []string{"HOME=/home/me", c.env}, c.ids)) && r.isRun() {
			got = r.image.text()
			for i := r.first; i < r.argc; i++ {
				got += " " + r.argv[i].text()
			}
		}
		if got != c.want {
			t.Errorf("%q with %q and %v: %q; want %q", c.line, c.env, c.ids, got, c.want)
		}
	}
	r := new(run)
	if r.read(stack(make([]string, maxArgs+1), nil, user)) {
		t.Error("read accepted too many arguments")
	}
	if r = new(run); r.read(stack([]string{"hpcc"}, many(maxVariables), user)) {
		t.Error("read accepted too many variables")
	}
}

// TestSplit checks that lines of a run.conf file are split by the rules of runtime/runconf.
func TestSplit(t *testing.T) {
	for _, c := range []struct{ line, want string }{ // want: arguments with "|" between them, or "!" for an invalid line
		{"", ""}, {"  # x", ""}, {"--cd /a  -b\t/c#d # e", "--cd|/a|-b|/c#d"}, {`'a b' "c d"`, "a b|c d"}, {"''", ""}, {"a''b", "ab"},
		{"'a", "!"}, {`"a`, "!"}, {`a\ b \\ \`, `a b|\|\`}, {`"a\"b\$c\d\\"`, `a"b$c\d\`}, {"$HOME ${HOME}x $HOMEx", "!"}, {"$HOME/x ${HOME}x", "/home/me/x|/home/mex"},
		{"$NO", "!"}, {"${HOME", "!"}, {"${}", "!"}, {"${a-b}", "!"}, {"$ $1 '$HOME'", "$|$1|$HOME"}, {"~ ~/x ~x a=~/b ''~", "~|/home/me/x|~x|a=/home/me/b|/home/me"}, {`"$HOME"#`, "/home/me#"},
	} {
		r := new(run)
		if !r.read(stack([]string{"hpcc"}, []string{"HOME=/home/me"}, [4]uintptr{})) {
			t.Fatal("read refused the stack")
		}
		got := "!"
		if r.split(c.line) {
			var list []string
			for _, w := range r.lineArgs[:r.nlineArgs] {
				list = append(list, w.text())
			}
			got = strings.Join(list, "|")
		}
		if got != c.want {
			t.Errorf("split(%q) = %q; want %q", c.line, got, c.want)
		}
	}
}

// environment returns an environment after the changes of a file of a flag: set-env, set-env0 or env0.
// ok is false if the file is declined.
func environment(vars []string, file string, flag int, expand bool) (out []string, ok bool) {
	r := new(run)
	if !r.read(stack([]string{"hpcc"}, vars, [4]uintptr{})) || !r.assignAll(&change{flag: flag, text: file}, expand) {
		return nil, false
	}
	for i := range r.vars.n {
		out = append(out, r.vars.list[i].text())
	}
	return out, true
}

// sameEnvironment compares assignAll with package envfile.
func sameEnvironment(t *testing.T, file string, flag int, expand bool) {
	t.Helper()
	vars := []string{"SET=foo", "EMPTY=", "PATH=/a:/b", "A=0"}
	got, ok := environment(vars, file, flag, expand)
	changes, err := envfile.Read(strings.NewReader(file), "f", envfile.Options{NUL: flag != setEnv, Exact: flag == env0})
	if !ok {
		if err == nil {
			t.Errorf("%q is declined but valid", file)
		}
		return
	}
	if err != nil {
		t.Errorf("%q: %q; package envfile: %v", file, got, err)
		return
	}
	if want, err := envfile.Apply(vars, changes, expand); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q: %q; package envfile: %q, %v", file, got, want, err)
	}
}

var envFiles = []string{
	"", "A=1", "A=1\nB=2\n", "# x\r\nA=1\r\n\r\nB=2\r", "A='x y'\nB=''\nC='''\nD='a", "A=$SET:b\nB=$A", "A=$UNSET:x:$EMPTY:$SET:$", "A=:$UNSET:x\nB=::$SET\nC=$UNSET::",
	"PATH=/opt/bin:$PATH", "A=${SET}/lib:${UNSET}x:$SET/lib:$UNSET/x:${SET:$SET}", "A=$$SET:${}:$/x:$1/x:${1}", " A=1\nexport B=2", "A=a=b", "A=1\x00B=2\n\x00\x00C=3", "A", "=b", "A=1\n \n", "A=b\x00c",
}

func TestEnvFile(t *testing.T) {
	for _, file := range envFiles {
		for _, flag := range []int{setEnv, setEnv0, env0} {
			sameEnvironment(t, file, flag, true)
			sameEnvironment(t, file, flag, false)
		}
	}
	if _, ok := environment(nil, "A=$B:"+strings.Repeat("x", maxMemory), setEnv, true); ok {
		t.Error("a value that is larger than the memory was accepted")
	}
}

func FuzzEnvFile(f *testing.F) {
	for _, file := range envFiles {
		f.Add(file, false, true)
	}
	f.Fuzz(func(t *testing.T, file string, nul, expand bool) {
		sameEnvironment(t, file, map[bool]int{false: setEnv, true: setEnv0}[nul], expand)
		sameEnvironment(t, file, env0, expand)
	})
}

// FuzzPattern compares supported patterns of --unset-env with package envfile.
func FuzzPattern(f *testing.F) {
	for _, p := range []string{"A", "*", "A_*", "?", "*a*b?c*", "**", "]", "!*", "ä?"} {
		f.Add(p, "A_b")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if !simplePattern(pattern) || pattern == "" || len(pattern) > 30 || len(name) > 60 || strings.ContainsAny(name, "=\x00") {
			return
		}
		u, err := envfile.Unset(pattern)
		testenv.Check(t, err)
		left, err := envfile.Apply([]string{name + "=x"}, []envfile.Change{u}, true)
		testenv.Check(t, err)
		if got, want := matches(pattern, name), len(left) == 0; got != want {
			t.Errorf("matches(%q, %q) = %v; package envfile: %v", pattern, name, got, want)
		}
	})
}

// many returns n variables with different names.
func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, "V"+strings.Repeat("x", i%200)+string(rune('a'+i/200))+"=1")
	}
	return out
}

// TestVariables checks that the first of two variables with the same name counts, as in package os.
func TestVariables(t *testing.T) {
	r := new(run)
	if !r.read(stack([]string{"hpcc"}, []string{"A=1", "", "B=2", "A=3", "odd", "odd", "=C:", "=D:", "AB=4"}, [4]uintptr{})) {
		t.Fatal("read refused the stack")
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
	for _, p := range []string{"/", "/a", "/a/b", "/a/", "/a//b", "//", "/.", "/./a", "/a/.", "/a/..", "/../a", "/a/../../b", "/a/b/../c/..", "a", "", "./a", "../x", "/a/...", "/.a", "/a/.b/..c"} {
		r := &run{cwd: "/w/d\x00"}
		want := filepath.Clean(p)
		if !filepath.IsAbs(p) {
			want = filepath.Join("/w/d", p)
		}
		if got := r.absolute(p).text(); got != want {
			t.Errorf("absolute(%q) = %q; want %q", p, got, want)
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
		if got := find(file, id, 2); got != want {
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
		t.Error("join, decimal or digits returns a wrong string")
	}
	for !r.full {
		r.alloc(maxMemory / 3)
	}
	if r.used > maxMemory {
		t.Error("alloc returned more memory than the run has")
	}
}
