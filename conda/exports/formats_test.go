package exports

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"

	"hpcc/conda/pip"
	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "write the golden results anew")

// TestFormats reads files as the tools wrote them, cut to a few packages of each shape, and holds the result
// to the golden one: the result for linux-64, and the lines that differ for linux-ppc64le.
// "go test ./conda/exports -run TestFormats -update" renews them.
func TestFormats(t *testing.T) {
	files, err := filepath.Glob("testdata/exports/*")
	if err != nil || len(files) < 29 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".golden") {
			continue
		}
		read := func(subdir string) string {
			e, err := Read(bytes.NewReader(example(t, filepath.Base(file))), filepath.Base(file), ReadOptions{Subdir: subdir})
			if err != nil {
				t.Errorf("%s for %s: %v", file, subdir, err)
				return ""
			}
			return describe(e)
		}
		got := read("linux-64")
		if _, changed, ok := strings.Cut(string(diff.Diff("linux-64", []byte(got), "linux-ppc64le", []byte(read("linux-ppc64le")))), "@@\n"); ok {
			got += "\nfor linux-ppc64le:\n"
			for line := range strings.Lines(changed) {
				if line[0] == '+' || line[0] == '-' {
					got += line
				}
			}
		}
		if *update {
			testenv.Check(t, os.WriteFile(file+".golden", []byte(got), 0o644))
		}
		want, err := os.ReadFile(file + ".golden")
		if err != nil || got != string(want) {
			t.Errorf("%s differs from %s.golden (%v); -update renews it. Got:\n%.2000s", file, file, err, got)
		}
	}
}

// example returns a file of testdata/exports.
func example(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/exports", name))
	testenv.Check(t, err)
	return b
}

// describe writes what was read, for golden results.
func describe(e *Export) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, written on %q, explicit %v\n", e.Format, e.Subdir, e.Explicit)
	for _, c := range e.Channels {
		fmt.Fprintln(&b, "channel", c)
	}
	for _, x := range e.Entries {
		fmt.Fprintln(&b, x.Line, "entry", strings.TrimSpace(strings.Join([]string{x.Name, x.Version, x.Build, x.Channel, x.URL, x.MD5, x.SHA256}, " ")), x.Size)
	}
	for _, s := range e.Specs {
		fmt.Fprintln(&b, s.Line, "spec", s.Text, s.Asked)
	}
	for _, p := range e.Pip {
		fmt.Fprintln(&b, p.Line, "pip", p, p.Hashes, p.Marker, p.Editable)
		if len(e.Python) > 0 {
			fmt.Fprintln(&b, "  needed", p.Needed, "virtual", p.Virtual, "index", p.Index, "groups", p.Groups)
		}
		for _, f := range p.Files {
			fmt.Fprintln(&b, "  file", f.Name, f.URL, f.Size, f.Hashes)
		}
		for _, d := range p.Requires {
			fmt.Fprintln(&b, "  requires", d, d.Marker)
		}
	}
	for _, s := range e.Python {
		fmt.Fprintln(&b, s.Line, "python", s.Text)
	}
	if i := e.PipIndexes; i.URL != "" || len(i.Extra)+len(i.FindLinks) > 0 {
		fmt.Fprintln(&b, "pip index", i.URL, i.Extra, i.FindLinks, i.NoIndex)
	}
	for _, s := range e.Limits {
		fmt.Fprintln(&b, s.Line, "limit", s.Text)
	}
	for _, x := range e.Virtual {
		fmt.Fprintln(&b, x.Line, "virtual", x)
	}
	if e.Flexible {
		fmt.Fprintln(&b, "flexible order of channels")
	}
	for _, k := range slices.Sorted(maps.Keys(e.Variables)) {
		fmt.Fprintf(&b, "variable %s=%q\n", k, e.Variables[k])
	}
	for _, n := range e.Notes {
		fmt.Fprintln(&b, "note", n)
	}
	return b.String()
}

// TestFormatsAgree: the one environment, written in every form, is read alike.
func TestFormatsAgree(t *testing.T) {
	read := func(name string) *Export {
		e, err := Read(bytes.NewReader(example(t, name)), name, ReadOptions{})
		testenv.Check(t, err)
		return e
	}
	list := read("local-list-e.txt")
	for _, name := range []string{"local-list-human.txt", "local-list.json", "local-env-export.yml", "local-env-export.json", "local-env-export-no-builds.yml"} {
		if changes := changes(list, read(name)); len(changes) > 0 {
			t.Errorf("local-list-e.txt and %s differ: %q; want no difference", name, changes)
		}
	}
	for _, name := range []string{"local-explicit-md5.txt", "local-mamba-list.txt", "local-mamba-env-export.yml"} { // they lose pip's
		for _, c := range changes(list, read(name)) {
			if !strings.HasPrefix(c, "pip ") || !strings.HasSuffix(c, " removed") {
				t.Errorf("local-list-e.txt and %s differ: %q; want only pip's packages to be missing", name, c)
			}
		}
	}
}

// changes lists the packages that two exports do not share, and those whose versions
// or builds differ. Builds are compared only where both exports have them.
func changes(a, b *Export) (out []string) {
	type state struct{ version, build string }
	contents := func(e *Export) map[string]state {
		m := map[string]state{}
		for _, x := range e.Specs {
			if name, version, ok := strings.Cut(x.Text[strings.LastIndex(x.Text, ":")+1:], "="); ok && !x.Asked {
				m["conda "+name] = state{version: strings.TrimPrefix(version, "=")}
			} else if !x.Asked {
				m["conda "+name] = state{version: "any"}
			}
		}
		for _, x := range e.Entries {
			m["conda "+x.Name] = state{x.Version, x.Build}
		}
		for _, p := range e.Pip {
			m["pip "+pip.NormalName(p.Name)] = state{version: cmp.Or(strings.TrimPrefix(p.Specifier, "=="), p.URL)}
		}
		return m
	}
	old, now := contents(a), contents(b)
	for name, x := range old {
		switch y, ok := now[name]; {
		case !ok:
			out = append(out, name+" removed")
		case x.version != y.version || (x.build != y.build && x.build != "" && y.build != ""):
			out = append(out, fmt.Sprintf("%s %v %v", name, x, y))
		}
	}
	for name := range now {
		if _, ok := old[name]; !ok {
			out = append(out, name+" added")
		}
	}
	return out
}

// TestFormatsRefuse reads mistakes made on purpose.
func TestFormatsRefuse(t *testing.T) {
	hash := strings.Repeat("0", 64)
	lockHead := "version: 1\nmetadata: {}\npackage:\n"
	for _, c := range []struct {
		name, file, in string
		line           int
		want           []string
	}{
		{"two mistakes", "environment.yml", "dependencies:\n  - ok=1=0\n  - a b c d\n  - pip:\n    - x ==\n", 3, []string{`"a b c d": not of the form`, `line 5: "x ==": "" is not a version`}},
		{"a row over two lines", "e.yml", "dependencies:\n- numpy\n\n 1\n", 2, []string{`"numpy\n1": not of the form`}},
		{"unknown key of dependencies", "e.yml", "dependencies:\n  - npm:\n    - x\n", 2, []string{`unknown key "npm" in dependencies`}},
		{"unknown selector", "e.yml", "dependencies:\n  - sel(beos): x\n", 2, []string{"unknown platform sel(beos)"}},
		{"-r", "e.yml", "dependencies:\n  - python=3.11=0\n  - pip:\n    - -r more.txt\n", 4, []string{"-r more.txt: only a file can include others", "insert the rows of that file"}},
		{"no list", "e.yml", "dependencies: numpy\n", 1, []string{"dependencies is not a list"}},
		{"no dependencies", "e.yml", "name: x\nchannels: [a]\n", 1, []string{`no "dependencies:"`}},
		{"aliases", "e.yml", "x: &a [1,2]\ndependencies: *a\n", 1, []string{"aliases (& and *) are not supported"}},
		{"twice", "e.yml", "dependencies: []\ndependencies: []\n", 2, []string{`duplicate key "dependencies"`}},
		{"broken", "e.yml", "name: x\ndependencies:\n  - [a\n", 2, []string{"parsing YAML"}},
		{"tab", "e.yml", "name: x\ndependencies:\n\t- a\n", 3, []string{"parsing YAML"}},
		{"variable", "e.yml", "dependencies: [a]\nvariables:\n  A B: c\n", 3, []string{`"A B": invalid variable name or value`}},
		{"variables", "e.yml", "dependencies: [a]\nvariables:\n  A: [c]\n", 3, []string{"the value of variable A is not a string"}},
		{"two entries", "e.yml", "dependencies:\n- a=1=0\n- A=2=0\n", 3, []string{"duplicate package a, already in line 2"}},

		{"version of conda-lock", "conda-lock.yml", "version: 9\npackage: []\n", 1, []string{`version "9" of conda-lock.yml`}},
		{"lying lock", "conda-lock.yml", lockHead + "- {name: b, version: '1', manager: conda, platform: linux-64, url: 'https://c/linux-64/a-1-0.conda', hash: {md5: x}}\n", 4, []string{"invalid md5 or sha256"}},
		{"lying name", "conda-lock.yml", lockHead + "- {name: b, version: '1', manager: conda, platform: linux-64, url: 'https://c/linux-64/a-1-0.conda', hash: {sha256: '" + hash + "'}}\n", 4, []string{`name "b" differs from the URL (a)`}},
		{"manager", "conda-lock.yml", lockHead + "- {name: b, manager: npm, platform: linux-64}\n", 4, []string{`manager "npm" is neither`}},
		{"token", "conda-lock.yml", lockHead + "- {name: a, manager: conda, platform: linux-64, url: 'https://c/t/<TOKEN>/linux-64/a-1-0.conda'}\n", 4, []string{"replace <TOKEN> by yours"}},
		{"empty lock", "conda-lock.yml", "version: 1\npackage: []\n", 2, []string{"lists no package"}},

		{"version of pixi", "pixi.lock", "version: 8\nenvironments: {}\npackages: []\n", 1, []string{`version "8" of pixi.lock`}},
		{"environment", "pixi.lock", "version: 6\nenvironments:\n  test: {}\n", 3, []string{`there is no environment "default"; choose one with --environment: the file has test`}},
		{"not described", "pixi.lock", "version: 6\nenvironments:\n  default:\n    packages:\n      linux-64:\n      - conda: https://c/linux-64/a-1-0.conda\n", 6, []string{"is not described below packages"}},
		{"source", "pixi.lock", "version: 6\nenvironments:\n  default:\n    packages:\n      linux-64:\n      - conda: ./src\npackages:\n- conda: ./src\n  name: thing\n", 6, []string{"thing @ ./src is built from source by pixi"}},
		{"conda_source", "pixi.lock", "version: 7\nplatforms:\n- name: linux-64\nenvironments:\n  default:\n    packages:\n      linux-64:\n      - conda_source: a[2ea7f626] @ .\npackages:\n- conda_source: a[2ea7f626] @ .\n", 8, []string{`a[2ea7f626] @ . is built from source by pixi and has no archive; build it with "pixi build"`}},
		{"no packages", "pixi.lock", "version: 6\nenvironments:\n  default: {packages: {linux-64: []}}\n  test: {packages: {}}\n", 3, []string{"environment default has no packages; choose another one with --environment: the file has test"}},
		{"virtual package", "pixi.lock", "version: 7\nplatforms:\n- name: linux-64\n  virtual-packages: [cuda 12]\nenvironments: {default: {packages: {linux-64: [{conda: a}]}}}\npackages: []\n", 4, []string{`"cuda 12" is not a virtual package`}},
		{"priority", "pixi.lock", "version: 6\nenvironments:\n  default:\n    options: {channel-priority: high}\n    packages: {linux-64: [{conda: https://c/linux-64/a-1-0.conda}]}\n", 4, []string{`channel-priority "high" is not strict, flexible or disabled`}},
		{"unknown kind", "pixi.lock", "version: 6\nenvironments:\n  default:\n    packages:\n      linux-64:\n      - npm: x\n", 6, []string{"unknown kind of package: npm"}},

		{"hash", "requirements.txt", "a==1 --hash=sha256:abc\n", 1, []string{"not sha256, sha384 or sha512"}},
		{"option of a package", "requirements.txt", "a==1 --global-option=x\n", 1, []string{"unsupported option --global-option=x; remove it"}},
		{"marker", "requirements.txt", "a==1; beos == 'x'\nb==1; os_name = 'x'\n", 1, []string{`unknown variable "beos"`, `line 2: "b==1; os_name = 'x'": condition "os_name = 'x'": expected a comparison operator, found "= 'x'"`}},
		{"options", "requirements.txt", "--trusted-host h\n--what\n-r x\n-cy\na==1\n", 1, []string{"--trusted-host is refused", `line 2: unsupported option "--what"`, "line 3: -r x: only a file can include", "line 4: -c y: only a file can include"}},
		{"no value", "requirements.txt", "a==1\n--index-url\n", 2, []string{"--index-url has no value"}},
		{"password", "requirements.txt", "https://me:secret@h/x.whl --bad=1\n", 1, []string{"https://h/x.whl --bad=1"}},

		{"columns", "list.txt", "# packages in environment at /x:\na 1 0\nb\n", 3, []string{"want the columns name, version, build, channel"}},
		{"json", "list.json", "[\n {\"name\": \"a\", \"version\": \"1\", \"build_string\": \"/\"},\n {\"name\": \"?\"}]", 2, []string{`"/" is not a build string; line 3: "?" is not a package name`}},
		{"many keys", "e.yml", "dependencies: []\nvariables:\n" + manyKeys(), 3, []string{"more than 4096 keys"}},
		{"large document", "e.yml", "dependencies:\n" + strings.Repeat("- aaaaaaaaaaaaaaaaaaa\n", maxDocument/22), 1, []string{"larger than"}},
		{"no URL", "x.txt", "@EXPLICIT\n# no URL for: a-1-0.conda\n", 2, []string{"did not know the origin of this package"}},
	} {
		e, err := Read(strings.NewReader(c.in), c.file, ReadOptions{})
		var le *LineError
		if e != nil || !errors.As(err, &le) {
			t.Errorf("%s: Read = %v, %v; want a LineError", c.name, e, err)
			continue
		}
		if head := fmt.Sprintf("%s:%d: ", c.file, c.line); !strings.HasPrefix(err.Error(), head) {
			t.Errorf("%s: Read = %.300q; want it to begin with %q", c.name, err, head)
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: Read = %.400q; want %q in it", c.name, err, w)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: Read = %q contains a password", c.name, err)
		}
	}
}

// manyKeys returns more keys than a mapping may have.
func manyKeys() string {
	var b strings.Builder
	for i := range maxKeys + 1 {
		fmt.Fprintf(&b, "  K%d: x\n", i)
	}
	return b.String()
}

// FuzzDocument reads YAML and JSON: environments, lock files, lists.
func FuzzDocument(f *testing.F) {
	for _, s := range []string{
		"dependencies:\n- a=1=0\n- b\n- pip:\n  - x==1\n- sel(linux): y # [linux]\nvariables: {A: b}\n",
		"version: 1\npackage:\n- {name: a, version: '1', manager: conda, platform: linux-64, url: 'https://c/linux-64/a-1-0.conda', hash: {md5: " + md5A + "}}\n",
		"version: 6\nenvironments: {default: {channels: [{url: c}], packages: {linux-64: [{conda: https://c/linux-64/a-1-0.conda}]}}}\npackages: [{conda: https://c/linux-64/a-1-0.conda, sha256: " + shaA + "}]\n",
		strings.Replace(variantsLock("linux-ppc64le", "p1 __cuda=12 __glibc=2.28 __archspec=0=x86_64_v3"), "subdir: linux-64", "subdir: linux-ppc64le", 2),
		`[{"name": "a", "version": "1", "build_string": "0", "channel": "x", "platform": "linux-64"}]`, "a: &a [*a]\ndependencies: *a", "dependencies: !!binary x", "? [a]\n: b\ndependencies: ~",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) { checkRead(t, in, "environment.yml") })
}

// FuzzRequirements reads requirements files of pip.
func FuzzRequirements(f *testing.F) {
	for _, s := range []string{
		"a==1 \\\n --hash=sha256:" + shaA + "\n", "a[x,y]>=1,<2 ; python_version < '3' or (os_name == \"nt\")", "-e git+https://h/x.git@1#egg=x", "x @ https://u:p@h/x.whl ; os_name == 'posix'",
		"-i https://h\n--find-links=x\n-rfile\n", "./a.whl", "a (>=1)", "a==1;", "a @ ", "https://h/%zz.whl",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) { checkRead(t, in, "requirements.txt") })
}

// FuzzLists reads the columns that conda and mamba print.
func FuzzLists(f *testing.F) {
	f.Add("# packages in environment at /x:\n#\n# Name Version Build Channel\na 1 0\nb 1 pypi_0 pypi\n")
	f.Add("List of packages in environment: \"/x\"\n\n  Name  Version  Build  Channel\n─────\n  a  1  0  c\n")
	f.Fuzz(func(t *testing.T, in string) { checkRead(t, "# packages in environment at /x:\n"+in, "list.txt") })
}

// checkRead holds what is read of hostile text to what the rest relies on.
func checkRead(t *testing.T, in, file string) {
	e, err := Read(strings.NewReader(in), file, ReadOptions{Subdir: "linux-ppc64le"})
	if (e == nil) != (err != nil) {
		t.Fatalf("Read = %v, %v; want one of them", e, err)
	}
	if err != nil {
		var le *LineError
		if !errors.As(err, &le) || le.Line < 0 || le.Line > strings.Count(in, "\n")+2 {
			t.Fatalf("Read = %v; want a LineError of a line that is there", err)
		}
		return
	}
	names := map[string]bool{}
	for _, x := range e.Entries {
		if x.check() != nil || isPip(x.Build) || names[x.Name] || e.Explicit != (x.URL != "") || (x.MD5 != "" && !isDigest(x.MD5, 32)) || (x.SHA256 != "" && !isDigest(x.SHA256, 64)) || x.Size < 0 {
			t.Fatalf("Read(%q) has entry %+v", in, x)
		}
		names[x.Name] = true
	}
	for _, p := range e.Pip {
		if (p.Name == "" && p.URL == "") || (p.Name != "" && !p.ValidName()) {
			t.Fatalf("Read(%q) has requirement %+v", in, p)
		}
	}
	for _, s := range e.Specs {
		if s.Text == "" || strings.ContainsAny(s.Text, "\n\x00") {
			t.Fatalf("Read(%q) has spec %+v", in, s)
		}
	}
	for k, v := range e.Variables {
		if !IsVariable(k, v) {
			t.Fatalf("Read(%q) has variable %q=%q", in, k, v)
		}
	}
}

// FuzzLive reads records of conda-meta and metadata of pip.
func FuzzLive(f *testing.F) {
	for name, text := range prefixA {
		if isMetadata(name) {
			f.Add(name, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		if !isMetadata(name) {
			return
		}
		l := newPrefixReader("env", ReadOptions{})
		if l.take(name, bytes.NewReader(b)) != nil {
			return
		}
		e, err := l.export()
		if (e == nil) != (err != nil) {
			t.Fatalf("export = %v, %v; want one of them", e, err)
		}
	})
}
