package conda

import (
	"archive/tar"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/conda/layer"
	"hpcc/conda/pip"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// holder is a placeholder in the form of conda-build's.
var holder = "/home/builder/placehold" + strings.Repeat("_placehold", 23)

func TestInstall(t *testing.T) {
	p := &testPkg{name: "shapes", files: []testFile{
		{path: "bin/tool", text: "#!/bin/sh\n", mode: 0o755},
		{path: "bin/locked", text: "x", mode: 0o500},
		{path: "lib/libx.so.1.2", text: "ELF"},
		{path: "lib/libx.so", link: "libx.so.1.2"},
		{path: "lib/abs", link: "/etc/hostname"},
		{path: "lib/up", link: "../../../../../etc"},
		{path: "lib/hard", hard: "lib/libx.so.1.2", text: "ELF"},
		{path: "var/empty", dir: true, mode: 0o700},
		{path: "var/listed", dir: true, absent: true},
		{path: "share/ünïcode " + strings.Repeat("long/", 60) + "x", text: "y"},
		{path: "share/empty"},
		{path: "share/unlisted", text: "z", unlisted: true},
	}}
	r := mustInstall(t, p)
	for _, c := range []struct {
		path string
		kind byte
		mode int64
		data string // or the link's target
		when time.Time
	}{
		{"opt", tar.TypeDir, 0o755, "", layer.Epoch},
		{"opt/conda", tar.TypeDir, 0o755, "", layer.Epoch},
		{"opt/conda/bin", tar.TypeDir, 0o755, "", layer.Epoch},
		{"opt/conda/bin/tool", tar.TypeReg, 0o755, "#!/bin/sh\n", born},
		{"opt/conda/bin/locked", tar.TypeReg, 0o500, "x", born},
		{"opt/conda/lib/libx.so.1.2", tar.TypeReg, 0o644, "ELF", born},
		{"opt/conda/lib/libx.so", tar.TypeSymlink, 0o777, "libx.so.1.2", born},
		{"opt/conda/lib/abs", tar.TypeSymlink, 0o777, "/etc/hostname", born},
		{"opt/conda/lib/up", tar.TypeSymlink, 0o777, "../../../../../etc", born},
		{"opt/conda/lib/hard", tar.TypeLink, 0o644, "opt/conda/lib/libx.so.1.2", born},
		{"opt/conda/var/empty", tar.TypeDir, 0o700, "", born},
		{"opt/conda/var/listed", tar.TypeDir, 0o755, "", layer.Epoch},
		{"opt/conda/share/ünïcode " + strings.Repeat("long/", 60) + "x", tar.TypeReg, 0o644, "y", born},
		{"opt/conda/share/empty", tar.TypeReg, 0o644, "", born},
	} {
		e, ok := r.files[c.path]
		if !ok {
			t.Errorf("%s is missing", c.path)
			continue
		}
		if e.Typeflag != c.kind || e.Mode != c.mode || e.Data+e.Linkname != c.data || !e.ModTime.Equal(c.when) {
			t.Errorf("%s: type %q mode %o time %v data %q; want %q %o %v %q", c.path, e.Typeflag, e.Mode, e.ModTime, e.Data+e.Linkname, c.kind, c.mode, c.when, c.data)
		}
	}
	if _, ok := r.files["opt/conda/share/unlisted"]; ok {
		t.Error("a file that the package does not list is installed")
	}
	if n := r.notes(); !strings.Contains(n, "2 links of shapes point outside of the environment: lib/abs to /etc/hostname, lib/up to ../../../../../etc") {
		t.Errorf("Notes = %q; want the two links that leave the prefix", n)
	}
	if r.env.Path != "/opt/conda/bin" || !slices.Equal(r.env.Env, []string{"CONDA_DEFAULT_ENV=/opt/conda", "CONDA_PREFIX=/opt/conda", "CONDA_SHLVL=1"}) {
		t.Errorf("Environment = %+v", r.env)
	}
}

func TestInstallBothFormats(t *testing.T) {
	p := &testPkg{name: "x", files: []testFile{{path: "bin/x", text: "#!" + holder + "/bin/sh\n", mode: 0o755, prefix: holder}, {path: "lib/y", link: "../bin/x"}}}
	old := *p
	old.format = ".tar.bz2"
	want, got := mustInstall(t, p), mustInstall(t, &old)
	for name, e := range want.files {
		if o := got.files[name]; !strings.Contains(name, "conda-meta/x") && !reflect.DeepEqual(e, o) {
			t.Errorf("%s differs: %+v and %+v", name, e, o)
		}
	}
	if len(want.files) != len(got.files) {
		t.Errorf("%d and %d files", len(want.files), len(got.files))
	}
}

// python returns a package that the installer treats as python.
func python(version string) *testPkg {
	f := []testFile{{path: "bin/python" + pip.Minor(version), text: "ELF", mode: 0o755}}
	return &testPkg{name: "python", version: version, build: "h1_0_cpython", files: f}
}

func TestNoarchPython(t *testing.T) {
	pip := &testPkg{name: "pip", noarch: "python", subdir: "noarch", depends: []string{"python >=3.9"}, timestamp: 1_700_000_000_123, entryPoints: []string{"pip = pip._internal.cli.main:main", "pip3.x=a:B.c"},
		files: []testFile{{path: "site-packages/pip/__init__.py", text: "1"}, {path: "python-scripts/old", text: "#!" + holder + "/bin/python\n", mode: 0o755, prefix: holder},
			{path: "share/pip", text: "2"}, {path: "site-packages/pip/link", link: "__init__.py"}, {path: "site-packages/pip/hard", hard: "site-packages/pip/__init__.py", text: "1"}}}
	free := python("3.13.1")
	free.site = "lib/python3.13t/site-packages"
	for _, c := range []struct {
		name, site, exe string
		python          *testPkg
	}{
		{"python 3.11", "lib/python3.11/site-packages", "python3.11", python("3.11.4")},
		{"its own site-packages", "lib/python3.13t/site-packages", "python3.13", free},
	} {
		c.python.depends = []string{"pip"}
		r := mustInstall(t, pip, c.python)
		want := "#!/opt/conda/bin/" + c.exe + "\n# -*- coding: utf-8 -*-\nimport re\nimport sys\n\nfrom pip._internal.cli.main import main\n\n" +
			"if __name__ == '__main__':\n    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])\n    sys.exit(main())\n"
		for path, data := range map[string]string{
			c.site + "/pip/__init__.py": "1", "bin/old": "#!/opt/conda/bin/python\n", "share/pip": "2", "bin/pip": want,
			"bin/pip3.x": strings.NewReplacer("from pip._internal.cli.main import main", "from a import B", "sys.exit(main())", "sys.exit(B.c())").Replace(want),
		} {
			if got := r.files["opt/conda/"+path].Data; got != data {
				t.Errorf("%s: %s = %q; want %q", c.name, path, got, data)
			}
		}
		if e := r.files["opt/conda/bin/pip"]; e.Mode != 0o755 || !e.ModTime.Equal(time.Unix(1_700_000_000, 0)) {
			t.Errorf("%s: bin/pip has mode %o, time %v", c.name, e.Mode, e.ModTime)
		}
		if e := r.files["opt/conda/"+c.site+"/pip/hard"]; e.Linkname != "opt/conda/"+c.site+"/pip/__init__.py" {
			t.Errorf("%s: the target of the hard link is %q", c.name, e.Linkname)
		}
		for name := range r.files {
			if strings.Contains(name, "conda/site-packages") || strings.Contains(name, "python-scripts") {
				t.Errorf("%s: %s was installed", c.name, name)
			}
		}
	}
	// A package may be noarch according to info/link.json only.
	quiet := *pip
	quiet.noarch = ""
	if r := mustInstall(t, &quiet, python("3.11.4")); r.files["opt/conda/lib/python3.11/site-packages/pip/__init__.py"].Data != "1" {
		t.Error("info/link.json was ignored")
	}
	s := condatest.NewStore(t)
	lone := *pip
	lone.depends = nil
	_, err := install(t, s, export(&lone), Options{Request: Request{Channels: []string{newChannel(t, &lone)}}})
	refused(t, s, "no python", err, "pip-1.0-0.conda: it needs python, which the export does not list")
}

func TestCommandsOfOneName(t *testing.T) {
	p := &testPkg{name: "p", noarch: "python", entryPoints: []string{"x = a:f", "x = b:g"}, files: []testFile{{path: "bin/x", text: "the package's own"}}}
	r := mustInstall(t, p, python("3.11.4"))
	if got := r.files["opt/conda/bin/x"].Data; !strings.Contains(got, "from b import g") {
		t.Errorf("bin/x = %q; want the latter entry point", got)
	}
	// One package's program, another's entry point.
	q := &testPkg{name: "q", files: []testFile{{path: "bin/x", text: "q's"}}, depends: []string{"p"}}
	r = mustInstall(t, p, q, python("3.11.4"))
	if got := r.files["opt/conda/bin/x"].Data; got != "q's" {
		t.Errorf("bin/x = %q; want the file of the package installed last", got)
	}
	if m := record1(t, r, "p-1.0-0"); slices.Contains(m.Files, "bin/x") {
		t.Errorf("files of p = %q", m.Files)
	}
	if !strings.Contains(r.notes(), "1 path is in both p and q; the latter's are used: bin/x") {
		t.Errorf("Notes = %q", r.notes())
	}
}

func TestLegacy(t *testing.T) {
	other := "/opt/" + strings.Repeat("x", 75)
	p := &testPkg{name: "old", legacy: true, files: []testFile{
		{path: "bin/bare", text: "#!" + oldPlaceholder + "/bin/sh\n"}, {path: "bin/plain", text: other}, {path: "bin/quoted name", text: "a " + other + " b"},
		{path: "lib/bin.so", text: other + "/lib\x00z"}, {path: "lib/untouched", text: other}, {path: "lib/link", link: "bin.so"}, {path: "lib/extra", text: "e", unlisted: true},
	}, info: map[string]string{
		"has_prefix": "bin/bare\n" + other + " text ./bin/plain\r\n\"" + other + "\" \"text\" \"bin/quoted name\"\n'" + other + "' 'binary' 'lib/bin.so'\n\n",
		"no_link":    "bin/plain\n",
	}}
	r := mustInstall(t, p)
	for path, want := range map[string]string{
		"bin/bare": "#!/opt/conda/bin/sh\n", "bin/plain": "/opt/conda", "bin/quoted name": "a /opt/conda b", "lib/untouched": other,
		"lib/bin.so": "/opt/conda/lib" + strings.Repeat("\x00", len(other)-len("/opt/conda")) + "\x00z",
	} {
		if got := r.files["opt/conda/"+path].Data; got != want {
			t.Errorf("%s = %q; want %q", path, got, want)
		}
	}
	if r.files["opt/conda/lib/link"].Linkname != "bin.so" {
		t.Error("the link is missing")
	}
	if _, ok := r.files["opt/conda/lib/extra"]; ok {
		t.Error("a file that info/files does not list is installed")
	}
}

func TestParsePrefix(t *testing.T) {
	for _, c := range []struct{ in, placeholder, mode, file string }{
		{"bin/x", oldPlaceholder, "text", "bin/x"}, {`"bin/x y"`, oldPlaceholder, "text", "bin/x y"}, {"'bin/x y'", oldPlaceholder, "text", "bin/x y"},
		{"/p text bin/x", "/p", "text", "bin/x"}, {"/p  binary\tbin/x", "/p", "binary", "bin/x"}, {`"/p q" binary "bin/x y"`, "/p q", "binary", "bin/x y"},
		{"/p text bin/x y", "/p", "text", "bin/x y"}, {"C:\\p text x", "C:\\p", "text", "x"},
		{"/p other bin/x", "", "", ""}, {"/p text", "", "", ""}, {`"/p`, oldPlaceholder, "text", "/p"}, {`/p text "a" b`, "", "", ""}, {"/p\x00 text x", "", "", ""},
	} {
		placeholder, mode, file, err := parsePrefix(c.in)
		if placeholder != c.placeholder || mode != c.mode || file != c.file || (err != nil) != (c.file == "") {
			t.Errorf("parsePrefix(%q) = %q, %q, %q, %v; want %q, %q, %q", c.in, placeholder, mode, file, err, c.placeholder, c.mode, c.file)
		}
	}
}

// wide returns text with zeros before and after each character.
func wide(s string, before, after int) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString(strings.Repeat("\x00", before) + string(c) + strings.Repeat("\x00", after))
	}
	return b.String()
}

func TestPrefixes(t *testing.T) {
	pad := strings.Repeat("\x00", len(holder)-len("/opt/conda"))
	for _, c := range []struct {
		name, mode, in, want string
	}{
		{"text", "text", "a=" + holder + "/x:" + holder + "\n", "a=/opt/conda/x:/opt/conda\n"},
		{"text without", "text", "nothing", "nothing"},
		{"shebang", "text", "#!" + holder + "/bin/python3 -u\nx", "#!/opt/conda/bin/python3 -u\nx"},
		{"binary", "binary", "\x7fELF\x00" + holder + "/lib\x00rest", "\x7fELF\x00/opt/conda/lib" + pad + "\x00rest"},
		{"several in one string", "binary", holder + "/a:" + holder + "/b\x00rest", "/opt/conda/a:/opt/conda/b" + pad + pad + "\x00rest"},
		{"several strings", "binary", "x" + holder + "\x00" + holder + "/b\x00", "x/opt/conda" + pad + "\x00/opt/conda/b" + pad + "\x00"},
		{"up to the end of the file", "binary", "a\x00" + holder + "/b", "a\x00/opt/conda/b" + pad},
		{"binary without", "binary", "a\x00b", "a\x00b"},
		{"UTF-16, text", "text", wide("<"+holder+"/x>", 0, 1), wide("</opt/conda/x>", 0, 1)},
		{"UTF-16, low byte first", "binary", wide("a:"+holder+"/x:"+holder, 0, 1) + "\x00\x00next", wide("a:/opt/conda/x:/opt/conda", 0, 1) + pad + pad + pad + pad + "\x00\x00next"},
		{"UTF-16, high byte first", "binary", "\x01" + wide(holder, 1, 0) + "\x00\x00next\x00\x00", "\x01" + wide("/opt/conda", 1, 0) + pad + pad + "\x00\x00next\x00\x00"},
		{"UTF-16, two strings", "binary", wide(holder+"\x00"+holder+"/b", 0, 1), wide("/opt/conda", 0, 1) + pad + pad + "\x00\x00" + wide("/opt/conda/b", 0, 1) + pad + pad},
		{"UTF-32, low byte first", "binary", wide(holder+"/x", 0, 3) + "\x00\x00\x00\x00next", wide("/opt/conda/x", 0, 3) + pad + pad + pad + pad + "\x00\x00\x00\x00next"},
		{"UTF-32, high byte first", "binary", wide(holder, 3, 0) + "\x00\x00\x00\x00next", wide("/opt/conda", 3, 0) + pad + pad + pad + pad + "\x00\x00\x00\x00next"},
	} {
		p := &testPkg{name: "x", files: []testFile{{path: "f", text: c.in, prefix: holder, binary: c.mode == "binary"}}}
		e := mustInstall(t, p).files["opt/conda/f"]
		if e.Data != c.want {
			t.Errorf("%s: %q; want %q", c.name, e.Data, c.want)
		}
		if c.mode == "binary" && e.Size != int64(len(c.in)) {
			t.Errorf("%s: the file has %d bytes; it had %d", c.name, e.Size, len(c.in))
		}
	}
	// A prefix chosen by the user.
	p := &testPkg{name: "x", files: []testFile{{path: "f", text: holder + "/x\x00", prefix: holder, binary: true}}}
	dir := newChannel(t, p)
	r, err := install(t, condatest.NewStore(t), export(p), Options{Request: Request{Channels: []string{dir}, Prefix: "/env"}})
	testenv.Check(t, err)
	if got := r.files["env/f"].Data; !strings.HasPrefix(got, "/env/x\x00") || len(got) != len(holder)+3 {
		t.Errorf("env/f = %q", got)
	}
	// A prefix that does not fit.
	p = &testPkg{name: "x", files: []testFile{{path: "f", text: "/short\x00", prefix: "/short", binary: true}}}
	s := condatest.NewStore(t)
	_, err = install(t, s, export(p), Options{Request: Request{Channels: []string{newChannel(t, p)}}})
	refused(t, s, "short placeholder", err, `x-1.0-0.conda: pkg-x-1.0-0.tar.zst: entry "f": the prefix "/opt/conda" is longer than the package's placeholder (6 bytes)`)
}

func TestFixShebang(t *testing.T) {
	long := "/" + strings.Repeat("p", 130)
	for _, c := range []struct{ name, in, want string }{
		{"short", "#!/bin/sh\nx", "#!/bin/sh\nx"},
		{"127 bytes", "#!/" + strings.Repeat("p", 124) + "\nx", "#!/" + strings.Repeat("p", 124) + "\nx"},
		{"128 bytes", "#!/" + strings.Repeat("p", 121) + "/sh2\nx", "#!/usr/bin/env sh2\nx"},
		{"options", "#! " + long + "/python3  -u  -s\nx\n#!" + long, "#!/usr/bin/env python3  -u  -s\nx\n#!" + long},
		{"escaped blank", "#!" + long + "/a\\ b/python3 -u\n", "#!/usr/bin/env python3 -u\n"},
		{"no newline", "#!" + long + "/perl", "#!/usr/bin/env perl"},
		{"a long first line without #!", long + long + "\n", long + long + "\n"},
		{"long and without an interpreter", "#!x" + long + "\n", "#!x" + long + "\n"},
	} {
		if got := string(fixShebang([]byte(c.in))); got != c.want {
			t.Errorf("%s: fixShebang = %q; want %q", c.name, got, c.want)
		}
	}
}

// TestStalePyc omits compiled files whose source the installation changed: python compares
// times, and would use them.
func TestStalePyc(t *testing.T) {
	p := &testPkg{name: "x", files: []testFile{
		{path: "lib/a.py", text: holder, prefix: holder}, {path: "lib/__pycache__/a.cpython-311.pyc", text: "1"}, {path: "lib/__pycache__/a.cpython-311.opt-1.pyc", hard: "lib/__pycache__/a.cpython-311.pyc", text: "1"}, {path: "lib/a.pyc", text: "2"}, {path: "lib/a.pyo", text: "3"},
		{path: "lib/b.py", text: "b"}, {path: "lib/__pycache__/b.cpython-311.pyc", text: "4"}, {path: "lib/ab.pyc", text: "5"},
		{path: "lib/copy.pyc", hard: "lib/__pycache__/a.cpython-311.pyc", text: "1"},
	}}
	r := mustInstall(t, p)
	for path, want := range map[string]bool{"a.py": true, "__pycache__/a.cpython-311.pyc": false, "__pycache__/a.cpython-311.opt-1.pyc": false, "a.pyc": false, "a.pyo": false, "b.py": true, "__pycache__/b.cpython-311.pyc": true, "ab.pyc": true} {
		if _, ok := r.files["opt/conda/lib/"+path]; ok != want {
			t.Errorf("%s: installed %v; want %v", path, ok, want)
		}
	}
}

func TestClobber(t *testing.T) {
	a := &testPkg{name: "a", files: []testFile{{path: "share/both", text: "a's"}, {path: "share/second", text: "a's"}, {path: "share/name", hard: "share/both", text: "a's"}, {path: "share/dir", dir: true}, {path: "share/kind", dir: true}, {path: "share/gone", text: "a's", prefix: holder}}}
	b := &testPkg{name: "b", depends: []string{"c"}, files: []testFile{{path: "share/both", text: "b's"}, {path: "share/second", link: "both"}, {path: "share/dir", dir: true}, {path: "share/kind", text: "b's"}}}
	c := &testPkg{name: "c", files: []testFile{{path: "share/both", text: "c's"}, {path: "share/gone", link: "both"}}}
	// The order is a, c, b.
	r := mustInstall(t, a, b, c)
	for path, want := range map[string]string{"both": "b's", "second": "both", "name": "a's", "kind": "b's", "gone": "both"} {
		if e := r.files["opt/conda/share/"+path]; e.Header == nil || e.Data+e.Linkname != want {
			t.Errorf("share/%s = %+v; want %q", path, e, want)
		}
	}
	if e := r.files["opt/conda/share/name"]; e.Header == nil || e.Typeflag != tar.TypeReg {
		t.Error("a hard link to a file that another package replaces did not become a separate file")
	}
	if e := r.files["opt/conda/share/dir"]; e.Header == nil || e.Typeflag != tar.TypeDir {
		t.Error("share/dir is missing")
	}
	for _, want := range []string{"2 paths are in both a and b; the latter's are used: share/kind, share/second", "2 paths are in both a and c; the latter's are used: share/both, share/gone", "1 path is in both c and b; the latter's are used: share/both"} {
		if !strings.Contains(r.notes(), want) {
			t.Errorf("Notes = %q; want %q", r.notes(), want)
		}
	}
	// Omitted files are not recorded as installed.
	if m := record1(t, r, "a-1.0-0"); slices.Contains(m.Files, "share/both") || !slices.Contains(m.Files, "share/name") {
		t.Errorf("files of a = %q", m.Files)
	}
}

func TestNotRun(t *testing.T) {
	p := &testPkg{name: "s", files: []testFile{
		{path: "bin/.s-post-link.sh", text: "rm -rf /", mode: 0o755}, {path: "bin/.s-pre-link.sh", text: "x"}, {path: "bin/.s-pre-unlink.sh", text: "x"}, {path: "etc/conda/activate.d/s.sh", text: "export X=1\nexport Y=$(hostname)\n"}, {path: "lib", dir: true}, {path: "lib64", link: "lib"}, {path: "etc/conda/activate.d/t.sh", text: "[ -d $CONDA_PREFIX/lib64 ] || export X=2"},
		{path: "bin/su", text: "x", mode: 0o4755},
	}}
	r := mustInstall(t, p)
	want := []string{"bin/.s-post-link.sh of s is not run: its changes to the image could not be verified", "bin/.s-pre-link.sh of s is not run: pre-link scripts need the unpacked package, and conda has deprecated them",
		"bin/su of s: removed the setuid or setgid bit", `etc/conda/activate.d/s.sh is not run when the image is: line 2 has a command substitution; a program that needs it begins with ". /opt/conda/etc/conda/activate.d/s.sh"`,
		`etc/conda/activate.d/t.sh is not run when the image is: line 1 follows the link "lib64"; a program that needs it begins with ". /opt/conda/etc/conda/activate.d/t.sh"`}
	if !slices.Equal(r.env.Notes, want) {
		t.Errorf("Notes = %q; want %q", r.env.Notes, want)
	}
	if e := r.files["opt/conda/bin/su"]; e.Mode != 0o755 {
		t.Errorf("bin/su has mode %o", e.Mode)
	}
	if r.files["opt/conda/bin/.s-post-link.sh"].Data != "rm -rf /" {
		t.Error("the script itself is not installed")
	}
}

func TestVariables(t *testing.T) {
	dir := "etc/conda/env_vars.d/"
	a := &testPkg{name: "a", files: []testFile{{path: dir + "b.json", text: `{"B": "from b", "X": "2 = two"}`}, {path: dir + "c.json", text: `[1]`}, {path: dir + "readme", text: `{"NO": "1"}`}}}
	b := &testPkg{name: "b", files: []testFile{{path: dir + "a.json", text: `{"B": "from a", "HOME_OF_A": "` + holder + `", "bad name": "1", "A=B": "1", "N": "\u0000", "PATH": "/x"}`, prefix: holder}}}
	r := mustInstall(t, a, b)
	if want := []string{"B=from b", "CONDA_DEFAULT_ENV=/opt/conda", "CONDA_PREFIX=/opt/conda", "CONDA_SHLVL=1", "HOME_OF_A=/opt/conda", "X=2 = two"}; !slices.Equal(r.env.Env, want) {
		t.Errorf("Env = %q; want %q", r.env.Env, want)
	}
	if len(r.env.Notes) != 5 || !strings.Contains(r.notes(), "c.json: not an object of strings: left out") || !strings.Contains(r.notes(), `"bad name" is not a variable name`) {
		t.Errorf("Notes = %q", r.env.Notes)
	}
}

// A condaMeta is conda-meta/<package>.json.
type condaMeta struct {
	Name, Version, Build, Subdir, Noarch, Channel, URL, Fn, MD5, SHA256 string
	BuildNumber                                                         int `json:"build_number"`
	Size, Timestamp                                                     int64
	Depends, Constrains, Files                                          []string
	PathsData                                                           struct {
		Paths   []installed
		Version int `json:"paths_version"`
	} `json:"paths_data"`
	Link      struct{ Source string }
	Extracted string `json:"extracted_package_dir"`
	Tarball   string `json:"package_tarball_full_path"`
}

func record1(t testing.TB, r *result, dist string) condaMeta {
	t.Helper()
	var m condaMeta
	if err := json.Unmarshal([]byte(r.files["opt/conda/conda-meta/"+dist+".json"].Data), &m); err != nil {
		t.Fatalf("conda-meta of %s: %v", dist, err)
	}
	return m
}

func TestCondaMeta(t *testing.T) {
	p := &testPkg{name: "x", number: 7, timestamp: 1_700_000_000_000, depends: []string{"python <4,>=3"}, noarch: "python", subdir: "noarch", entryPoints: []string{"x = x:x"}, files: []testFile{
		{path: "site-packages/x.py", text: "p=" + holder, prefix: holder}, {path: "bin/l", link: "x"}, {path: "share/d", dir: true}, {path: "share/f", text: "f"}, {path: "share/h", hard: "share/f", text: "f"},
	}}
	dir := newChannel(t, p, python("3.11.4"))
	web := condatest.Serve(t, dir, nil)
	r, err := install(t, condatest.NewStore(t), export(p, python("3.11.4")), Options{Request: Request{Channels: []string{web.URL}}})
	testenv.Check(t, err)
	file, err := os.ReadFile(filepath.Join(dir, "noarch/x-1.0-0.conda"))
	testenv.Check(t, err)
	m5 := md5.Sum(file)
	m := record1(t, r, "x-1.0-0")
	site := "lib/python3.11/site-packages/x.py"
	size := func(n int64) *int64 { return &n }
	script := condatest.SHA256([]byte(r.files["opt/conda/bin/x"].Data))
	want := condaMeta{Name: "x", Version: "1.0", Build: "0", BuildNumber: 7, Subdir: "noarch", Noarch: "python", Channel: web.URL, URL: web.URL + "/noarch/x-1.0-0.conda", Fn: "x-1.0-0.conda",
		MD5: hex.EncodeToString(m5[:]), SHA256: condatest.SHA256(file), Size: int64(len(file)), Timestamp: 1_700_000_000_000, Depends: []string{"python <4,>=3"}, Constrains: []string{}, Files: []string{site, "bin/l", "share/d", "share/f", "share/h", "bin/x"}}
	want.PathsData.Version = 1
	want.PathsData.Paths = []installed{
		{site, "hardlink", condatest.SHA256([]byte("p=" + holder)), condatest.SHA256([]byte("p=/opt/conda")), size(int64(len(holder) + 2)), "text", holder},
		{"bin/l", "softlink", condatest.SHA256(nil), "", size(0), "", ""}, {"share/d", "directory", "", "", nil, "", ""},
		{"share/f", "hardlink", condatest.SHA256([]byte("f")), condatest.SHA256([]byte("f")), size(1), "", ""}, {"share/h", "hardlink", condatest.SHA256([]byte("f")), condatest.SHA256([]byte("f")), size(1), "", ""},
		{"bin/x", "unix_python_entry_point", "", script, nil, "", ""},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("conda-meta = %s\nwant %s", mustJSON(m), mustJSON(want))
	}
	history := r.files["opt/conda/conda-meta/history"]
	wantHistory := fmt.Sprintf("==> 1980-01-01 00:00:00 <==\n# cmd: hpcc build --conda\n+%s/linux-64::python-3.11.4-h1_0_cpython\n+%s/noarch::x-1.0-0\n", web.URL, web.URL)
	if history.Data != wantHistory || !history.ModTime.Equal(layer.Epoch) {
		t.Errorf("history = %q, %v; want %q", history.Data, history.ModTime, wantHistory)
	}
}

// TestNoHostPaths checks that an image contains no path of this machine: no directory of a
// channel, store or user.
func TestNoHostPaths(t *testing.T) {
	p := &testPkg{name: "x", files: []testFile{{path: "share/x", text: "x"}}}
	dir := newChannel(t, p)
	s := condatest.NewStore(t)
	for _, in := range []string{export(p), "@EXPLICIT\n" + dir + "/linux-64/x-1.0-0.conda\n", "@EXPLICIT\nfile://" + dir + "/linux-64/x-1.0-0.conda\n"} {
		r, err := install(t, s, in, Options{Request: Request{Channels: []string{dir}}})
		testenv.Check(t, err)
		for name, e := range r.files {
			for _, secret := range []string{dir, s.Dir(), os.TempDir()} {
				if strings.Contains(e.Data, secret) {
					t.Errorf("%s has %q in it: %s", name, secret, e.Data)
				}
			}
		}
		if m := record1(t, r, "x-1.0-0"); m.Channel != "<unknown>" || m.URL != "" {
			t.Errorf("channel %q, URL %q", m.Channel, m.URL)
		}
		if h := r.files["opt/conda/conda-meta/history"].Data; !strings.Contains(h, "\n+<unknown>/linux-64::x-1.0-0\n") {
			t.Errorf("history = %q", h)
		}
	}
}

func TestSeconds(t *testing.T) {
	for _, c := range []struct{ in, want int64 }{{0, 0}, {1_400_000_000, 1_400_000_000}, {1_700_000_000_123, 1_700_000_000}} {
		if got := seconds(c.in); got != c.want {
			t.Errorf("seconds(%d) = %d; want %d", c.in, got, c.want)
		}
	}
}
