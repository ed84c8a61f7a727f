package exports

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/pip"
	"hpcc/testdata/helpers/testenv"
)

// The lock files in testdata/exports are from public repositories: uv.lock and uv-script.lock from
// astral-sh/uv (test/packages/built-by-uv, scripts/create-python-mirror.py.lock), poetry-2.0.lock and
// poetry-2.1.lock from python-poetry/poetry (tests/fixtures/with_path_dependency, and some packages
// of its own), pylock.toml from pypa/packaging (the example of PEP 751), and pylock-pdm.toml from
// Fuyukai/h11 (some packages).

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// uvHead and poetryTail complete lock files.
const (
	uvHead     = "version = 1\nrevision = 3\nrequires-python = \">=3.11, <3.13\"\n"
	uvProject  = "[[package]]\nname = \"app\"\nversion = \"1\"\nsource = { editable = \".\" }\n"
	poetryTail = "[metadata]\nlock-version = \"2.1\"\npython-versions = \"^3.10\"\n"
)

// registry returns a package of uv.lock.
func registry(name, version, more string) string {
	return fmt.Sprintf("[[package]]\nname = %q\nversion = %q\nsource = { registry = \"https://i.example/simple\" }\n%s"+
		"wheels = [{ url = \"https://f.example/%s-%s-py3-none-any.whl\", hash = \"sha256:%s\", size = 7 }]\n", name, version, more, name, version, sumA)
}

// brief describes the rows that were read.
func brief(e *Export) string {
	var out []string
	for _, p := range e.Pip {
		s := p.String()
		if p.Virtual {
			s += " (virtual)"
		}
		if p.Marker != "" {
			s += " if " + p.Marker
		}
		for _, f := range p.Files {
			if f.URL != "" {
				s += fmt.Sprintf(" <%s %d %d>", f.URL, f.Size, len(f.Hashes))
			}
		}
		if len(p.Hashes) > 0 {
			s += fmt.Sprintf(" (%d digests)", len(p.Hashes))
		}
		if p.Index != "" {
			s += " at " + p.Index
		}
		for _, d := range p.Requires {
			s += " > " + d.String()
			if d.Marker != "" {
				s += " if " + d.Marker
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, "\n")
}

// TestPythonLocks reads lock files of uv, poetry and PEP 751.
func TestPythonLocks(t *testing.T) {
	poetry := func(name, version, more string) string {
		return fmt.Sprintf("[[package]]\nname = %q\nversion = %q\noptional = false\npython-versions = \"*\"\n%sfiles = [{file = \"x.whl\", hash = \"sha256:%s\"}]\n", name, version, more, sumA)
	}
	wheel := "wheels = [{url = \"https://f.example/a-1-py3-none-any.whl\", hashes = {sha256 = \"" + sumA + "\", md5 = \"" + sumA[:32] + "\"}}]\n"
	for _, c := range []struct{ name, file, text, want, python, note string }{
		{"registry, forks, extras", "uv.lock", uvHead + uvProject +
			"dependencies = [{ name = \"a\", version = \"1\", source = { registry = \"https://i.example/simple\" }, marker = \"python_version < '3.12'\" }, { name = \"a\", version = \"2\", source = { registry = \"https://i.example/simple\" }, marker = \"python_version >= '3.12'\" }, { name = \"b\", extra = [\"x\", \"none\"] }]\n" +
			"[package.dev-dependencies]\ndev = [{ name = \"tool\" }]\nlint = []\n[package.optional-dependencies]\nplot = [{ name = \"tool\" }]\n" +
			registry("a", "1", "") + registry("a", "2", "") + registry("b", "1", "") + "[package.optional-dependencies]\nx = [{ name = \"c\", marker = \"os_name == 'posix'\" }]\n" + registry("c", "1", "") + registry("tool", "1", ""),
			`app (virtual) > a==1 if python_version < '3.12' > a==2 if python_version >= '3.12' > b[x]==1
a==1 <https://f.example/a-1-py3-none-any.whl 7 1> at https://i.example/simple
a==2 <https://f.example/a-2-py3-none-any.whl 7 1> at https://i.example/simple
b==1 <https://f.example/b-1-py3-none-any.whl 7 1> at https://i.example/simple > c==1 if (os_name == 'posix') and extra == "x"
c==1 <https://f.example/c-1-py3-none-any.whl 7 1> at https://i.example/simple`, "python>=3.11,<3.13", "dependency groups are left out: dev and lint"},
		{"other sources", "uv.lock", uvHead + uvProject +
			"dependencies = [{ name = \"g\" }, { name = \"u\" }, { name = \"p\" }, { name = \"d\" }, { name = \"l\" }]\n" +
			"[[package]]\nname = \"g\"\nversion = \"1\"\nsource = { git = \"https://g.example/g?rev=main&subdirectory=py#0123\" }\n" +
			"[[package]]\nname = \"u\"\nversion = \"1\"\nsource = { url = \"https://f.example/u-1.tar.gz\", subdirectory = \"s\" }\nsdist = { hash = \"sha256:" + sumB + "\" }\n" +
			"[[package]]\nname = \"p\"\nversion = \"1\"\nsource = { path = \"w/p-1-py3-none-any.whl\" }\nwheels = [{ filename = \"p-1-py3-none-any.whl\", hash = \"sha256:" + sumB + "\" }]\n" +
			"[[package]]\nname = \"d\"\nversion = \"1\"\nsource = { directory = \"../d\" }\n" +
			"[[package]]\nname = \"l\"\nversion = \"1\"\nsource = { registry = \"../links\" }\nsdist = { path = \"l-1.tar.gz\" }\n",
			`app (virtual) > g @ git+https://g.example/g@0123#subdirectory=py > u @ https://f.example/u-1.tar.gz#subdirectory=s > p @ ./w/p-1-py3-none-any.whl > d > l==1
g @ git+https://g.example/g@0123#subdirectory=py
u @ https://f.example/u-1.tar.gz#subdirectory=s (1 digests)
p @ ./w/p-1-py3-none-any.whl (1 digests)
d (virtual)
l==1 <./../links/l-1.tar.gz 0 0>`, "python>=3.11,<3.13", "d is a directory of sources (../d) and is not installed; copy it"},
		{"a workspace without a project", "uv.lock", uvHead + "[manifest]\nmembers = [\"m\", \"n\"]\n" +
			"[[package]]\nname = \"m\"\nsource = { editable = \"m\" }\ndependencies = [{ name = \"a\" }]\n[[package]]\nname = \"n\"\nsource = { virtual = \"n\" }\n" + registry("a", "1", ""),
			"m (virtual) > a==1\nn (virtual)\na==1 <https://f.example/a-1-py3-none-any.whl 7 1> at https://i.example/simple", "python>=3.11,<3.13", "m is a directory of sources (m)"},
		{"a script with forks", "x.py.lock", uvHead + "[manifest]\nrequirements = [{ name = \"a\", marker = \"os_name == 'posix'\" }]\n" +
			registry("a", "1", "resolution-markers = [\"python_version < '3.12'\"]\n") + registry("a", "2", "resolution-markers = [\"python_version >= '3.12'\"]\n"),
			`a==1 <https://f.example/a-1-py3-none-any.whl 7 1> at https://i.example/simple
a==2 <https://f.example/a-2-py3-none-any.whl 7 1> at https://i.example/simple
script (virtual) > a==1 if (os_name == 'posix') and ((python_version < '3.12')) > a==2 if (os_name == 'posix') and ((python_version >= '3.12'))`, "python>=3.11,<3.13", ""},
		{"groups and markers", "poetry.lock", poetry("a", "1", "groups = [\"main\", \"dev\"]\nmarkers = \"python_version < '3.12'\"\n") +
			poetry("b", "1", "groups = [\"dev\", \"main\"]\nmarkers = {main = \"sys_platform == 'linux'\", dev = \"sys_platform == 'win32'\"}\n") + "[package.source]\ntype = \"legacy\"\nurl = \"https://i.example/simple\"\n" +
			poetry("c", "1", "groups = [\"test\"]\n") + poetry("d", "1", "groups = [\"main\"]\n") + "[package.source]\ntype = \"git\"\nurl = \"https://g.example/d\"\nreference = \"main\"\nresolved_reference = \"0123\"\n" +
			poetry("e", "1", "groups = [\"main\"]\n") + "[package.source]\ntype = \"url\"\nurl = \"https://f.example/e-1.tar.gz\"\n" + poetry("f", "1", "groups = [\"main\"]\n") + "[package.source]\ntype = \"file\"\nurl = \"f-1.tar.gz\"\n" + poetryTail,
			`a==1 if python_version < '3.12' (1 digests)
b==1 (1 digests) at https://i.example/simple
d @ git+https://g.example/d@0123
e @ https://f.example/e-1.tar.gz (1 digests)
f @ ./f-1.tar.gz (1 digests)`, "python>=3.10,<4", "dependency groups are left out: test"},
		{"a walk without a project", "poetry.lock", poetry("a", "1", "") + "[package.dependencies]\nb = [{version = \"^1\", markers = \"python_version < '3.12'\"}, {version = \">=1.5 || >2\", markers = \"python_version >= '3.12'\"}]\nw = {version = \"*\", markers = \"os_name == 'nt'\", extras = [\"X\"]}\nno = {version = \"*\", optional = true, markers = \"extra == 'y'\"}\n" +
			poetry("b", "1.9", "") + poetry("b", "2.10", "") + poetry("w", "1", "") + "[package.dependencies]\nw2 = \"*\"\n" + poetry("w2", "1", "") + "[package.dependencies]\nw = \"*\"\n" + strings.Replace(poetryTail, "2.1", "2.0", 1),
			`a==1 (1 digests) > b==1.9 if (python_version < '3.12') > b==2.10 if (python_version >= '3.12') > w[x]==1 if (os_name == 'nt')
b==1.9 (1 digests)
b==2.10 (1 digests)
w==1 (1 digests) > w2==1
w2==1 (1 digests) > w==1`, "python>=3.10,<4", "the packages of all groups are installed"},
		{"markers", "pylock.toml", "lock-version = \"1.0\"\nrequires-python = \"==3.12.*\"\nextras = [\"x\"]\ndependency-groups = [\"dev\", \"base\"]\ndefault-groups = [\"base\"]\n" +
			"[[packages]]\nname = \"a\"\nversion = \"1\"\nmarker = \"'base' in dependency_groups and python_version < '3.13'\"\n" + wheel +
			"[[packages]]\nname = \"b\"\nversion = \"1\"\nmarker = \"'dev' in dependency_groups or 'x' in extras\"\n" + wheel +
			"[[packages]]\nname = \"c\"\n[packages.vcs]\ntype = \"git\"\nurl = \"https://g.example/c\"\ncommit-id = \"0123\"\n" +
			"[[packages]]\nname = \"d\"\n[packages.archive]\nurl = \"https://f.example/d.zip\"\nsize = 5\nsubdirectory = \"s\"\nhashes = {sha256 = \"" + sumA + "\"}\n" +
			"[[packages]]\nname = \"e\"\nversion = \"1\"\nindex = \"https://i.example/simple\"\nsdist = {name = \"e-1.tar.gz\", path = \"dist/e\", hashes = {sha256 = \"" + sumA + "\"}}\n" +
			"[[packages]]\nname = \"f\"\n[packages.directory]\npath = \".\"\n",
			`a==1 if 'base' in dependency_groups and python_version < '3.13' <https://f.example/a-1-py3-none-any.whl 0 2>
c @ git+https://g.example/c@0123
d @ https://f.example/d.zip#subdirectory=s (1 digests)
e==1 <./dist/e 0 1> at https://i.example/simple`, "python 3.12.*", "dependency groups are left out: dev"},
	} {
		e, err := Read(strings.NewReader(c.text), c.file, ReadOptions{Subdir: "linux-64"})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := brief(e); got != c.want || specTexts(e.Python) != c.python || !strings.Contains(strings.Join(e.Notes, "\n"), c.note) || e.PipOpen || e.Explicit {
			t.Errorf("%s: read\n%s\nwith %q and the notes %q; want\n%s\nwith %q and %q", c.name, got, specTexts(e.Python), e.Notes, c.want, c.python, c.note)
		}
	}
}

// TestPythonLocksRefused checks the lines and texts of refusals.
func TestPythonLocksRefused(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"uv.lock", "version = 2\nrequires-python = \">=3.9\"\n", `uv.lock:1: unsupported version "2" of uv.lock: want 1; rewrite the file with a current uv: "uv lock"`},
		{"poetry.lock", "[metadata]\nlock-version = \"1.1\"\n", `poetry.lock:2: unsupported version "1.1" of poetry.lock: want 2.0, 2.1; rewrite the file with Poetry 1.3 or newer: "poetry lock"`},
		{"pylock.toml", "lock-version = \"2.0\"\n", `pylock.toml:1: unsupported version "2.0" of pylock.toml: want 1.0; rewrite the file with the tool that wrote it, such as "uv export --format pylock.toml" or "pip lock"`},
		{"uv.lock", uvHead, "uv.lock:1: the file describes no project"},
		{"uv.lock", uvHead + uvProject + "[package.dev-dependencies]\nprod = [{ name = \"a\" }]\n" + registry("a", "1", ""), "uv.lock:1: no packages remain to be installed for linux-64: the packages of dependency groups are left out: prod; add one"},
		{"uv.lock", uvHead + uvProject + "dependencies = [\n  { name = \"a\" },\n]\n", "uv.lock:9: app needs a, and the file describes 0 such packages"},
		{"uv.lock", uvHead + uvProject + "dependencies = [{ name = \"a\" }]\n" + registry("a", "1", "") + registry("a", "2", ""), "uv.lock:8: app needs a, and the file describes 2 such packages"},
		{"uv.lock", uvHead + uvProject + "dependencies = [{ name = \"a\", marker = \"no == 1\" }]\n" + registry("a", "1", ""), `uv.lock:8: app: condition "no == 1": unknown variable "no"`},
		{"uv.lock", uvHead + uvProject + "dependencies = [{ name = \"a\" }]\n[[package]]\nname = \"a\"\nversion = \"1\"\nsource = { registry = \"https://i.example/simple\" }\n", "uv.lock:9: a has neither wheels nor an sdist"},
		{"uv.lock", uvHead + uvProject + "[[package]]\nname = \"a\"\nversion = \"1\"\nsource = { hg = \"x\" }\n", "uv.lock:8: a: unknown source"},
		{"uv.lock", uvHead + uvProject + "[[package]]\nname = \"a\"\nsource = { git = \"https://g.example/x\" }\n", `uv.lock:8: a: "https://g.example/x" is not a git URL with a commit`},
		{"uv.lock", uvHead + uvProject + registry("a", "one", ""), `uv.lock:10: a: invalid version "one"`},
		{"uv.lock", uvHead + "[[package]]\nname = \"a b\"\n", `uv.lock:4: invalid package name "a b"`},
		{"uv.lock", uvHead + strings.Replace(registry("a", "1", ""), sumA, "xyz", 1), `uv.lock:8: invalid digest "sha256:xyz"`},
		{"uv.lock", strings.Replace(uvHead, ">=3.11, <3.13", ">=3.$", 1), `uv.lock:3: the versions of python: ">=3.$": not a constraint such as >=3.9,<4`},
		{"uv.lock", uvHead + "supported-markers = [\"sys_platform == 'win32'\"]\n", "uv.lock:4: the file was locked for other environments than linux-64: sys_platform == 'win32'; add one for it and lock again"},
		{"uv.lock", uvHead + strings.Repeat(registry("a", "1", ""), maxForks+1), "a has more than 50 packages"},
		{"pylock.toml", "lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nversion = \"1\"\nwheels = [{name = \"a.whl\"}]\n", "pylock.toml:5: an archive without url and path"},
		{"pylock.toml", "lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nvcs = {type = \"hg\", url = \"x\", commit-id = \"1\"}\n", "pylock.toml:4: a comes from a repository (hg) that is not git"},
		{"pylock.toml", "lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nsdist = {url = \"https://f.example/a-1.tar.gz\"}\n", "pylock.toml:2: a has no version"},
		{"pylock.toml", "lock-version = \"1.0\"\n", "pylock.toml:1: no packages remain to be installed for linux-64"},
		{"poetry.lock", "[[package]]\nname = \"a\"\nversion = \"1\"\ngroups = [\"main\"]\n[package.source]\ntype = \"svn\"\n" + poetryTail, `poetry.lock:5: a: unknown source "svn"`},
		{"poetry.lock", "[[package]]\nname = \"a\"\n" + poetryTail, "poetry.lock:1: a has no version"},
		{"poetry.lock", "[[package]]\nname = \"a\"\nversion = \"1\"\n[package.dependencies]\na = {version = \"*\", markers = \"x\"}\n" + strings.Replace(poetryTail, "2.1", "2.0", 1), `poetry.lock:1: a: condition "(x)": unknown variable "x"`},
	} {
		_, err := Read(strings.NewReader(c.text), c.file, ReadOptions{Subdir: "linux-64"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
}

// TestPoetryProject reads the packages of the main group in pyproject.toml, next to a file that does
// not record groups.
func TestPoetryProject(t *testing.T) {
	row := func(name string) string {
		return "[[package]]\nname = \"" + name + "\"\nversion = \"1\"\noptional = false\npython-versions = \"*\"\nfiles = []\n"
	}
	dir := testenv.Files(t, "poetry.lock", row("a")+"[package.dependencies]\nb = \"*\"\n"+row("b")+row("pytest")+row("extra")+row("old")+strings.Replace(poetryTail, "2.1", "2.0", 1),
		"pyproject.toml", "[tool.poetry.dependencies]\npython = \"^3.10\"\nA = \">=1\"\nextra = {version = \"*\", optional = true}\nold = {version = \"1\", python = \"~3.10 || 3.11.*\", platform = \"linux\"}\n[tool.poetry.group.dev.dependencies]\npytest = \"*\"\n")
	e, err := ReadFile(filepath.Join(dir, "poetry.lock"), ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	want := `a==1 > b==1
b==1
old==1
project (virtual) > a==1 > old==1 if sys_platform == "linux" and (python_full_version >= "3.10" and python_full_version < "3.11" or python_full_version == "3.11.*")`
	if got := brief(e); got != want || !strings.Contains(strings.Join(e.Notes, "\n"), "dependency groups are left out: dev") {
		t.Errorf("read\n%s\nwith the notes %q; want\n%s", got, e.Notes, want)
	}
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "pyproject.toml"), []byte("[a]\nb ="), 0o644))
	if _, err := ReadFile(filepath.Join(dir, "poetry.lock"), ReadOptions{}); err == nil || !strings.Contains(err.Error(), "pyproject.toml:2: parsing TOML") {
		t.Errorf("an invalid pyproject.toml: %v", err)
	}
}

// TestConstraints converts constraints of poetry.
func TestConstraints(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"*", "[[]]"}, {"", "[[]]"}, {">=3.9,<4.0", "[[>=3.9 <4.0]]"}, {">=2.7, !=3.0.*", "[[>=2.7 !=3.0.*]]"}, {">= 3.6", "[[>=3.6]]"}, {">=3.8 <4", "[[>=3.8 <4]]"},
		{"^1.2.3", "[[>=1.2.3 <2]]"}, {"^0.2.3", "[[>=0.2.3 <0.3]]"}, {"^0.0.3", "[[>=0.0.3 <0.0.4]]"}, {"^0.0", "[[>=0.0 <0.1]]"}, {"^0", "[[>=0 <1]]"}, {"^1.0b2", "[[>=1.0b2 <2]]"},
		{"~1.2.3", "[[>=1.2.3 <1.3]]"}, {"~1.2", "[[>=1.2 <1.3]]"}, {"~1", "[[>=1 <2]]"}, {"~=1.4.2", "[[~=1.4.2]]"},
		{"1.0", "[[==1.0]]"}, {"=1.0", "[[==1.0]]"}, {"3.11.*", "[[==3.11.*]]"}, {"==1.*", "[[==1.*]]"}, {"<1 || >2 | 3", "[[<1] [>2] [==3]]"}, {"1.0+cu118", "[[==1.0+cu118]]"},
		{"x y", "[[==x ==y]]"}, {"^x", "error"}, {">=", "error"}, {"1 - 2", "error"},
	} {
		got, err := constraints(c.text)
		if text := fmt.Sprint(got); (err != nil) != (c.want == "error") || (err == nil && text != c.want) {
			t.Errorf("constraints(%q) = %v, %v; want %s", c.text, got, err, c.want)
		}
	}
}

// fuzzLock reads lock files and checks that the rows are usable.
func fuzzLock(f *testing.F, name string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Read(strings.NewReader(text), name, ReadOptions{Subdir: "linux-64"})
		if err != nil {
			return
		}
		names := map[string]bool{}
		for _, p := range e.Pip {
			names[pip.NormalName(p.Name)] = true
		}
		for _, p := range e.Pip {
			if !p.ValidName() {
				t.Fatalf("name %q", p.Name)
			}
			for _, d := range p.Requires {
				if !names[pip.NormalName(d.Name)] {
					t.Fatalf("%s requires %s, which was not read", p, d)
				}
				if _, _, err := d.Decide("linux-64"); err != nil {
					t.Fatalf("%s requires %s: %v", p, d, err)
				}
			}
			if _, _, err := p.Decide("linux-64"); err != nil {
				t.Fatalf("%s: %v", p, err)
			}
		}
	})
}

// The seeds of the fuzz targets are short: the fuzzer spends its time on making longer ones short.

// FuzzUVLock reads uv.lock.
func FuzzUVLock(f *testing.F) {
	fuzzLock(f, "uv.lock",
		uvHead+uvProject+"dependencies = [{ name = \"a\", extra = [\"x\"], marker = \"os_name == 'posix'\" }]\n"+registry("a", "1", "")+"[package.optional-dependencies]\nx = [{ name = \"a\" }]\n",
		uvHead+uvProject+"dependencies = [{ name = \"g\" }]\n[[package]]\nname = \"g\"\nsource = { git = \"https://g.example/g?subdirectory=a#01\" }\n",
		uvHead+"[manifest]\nrequirements = [{ name = \"a\" }]\n"+registry("a", "1", "resolution-markers = [\"python_version < '3.12'\"]\n"))
}

// FuzzPoetryLock reads poetry.lock.
func FuzzPoetryLock(f *testing.F) {
	fuzzLock(f, "poetry.lock",
		"[[package]]\nname = \"a\"\nversion = \"1\"\ngroups = [\"main\"]\nmarkers = {main = \"os_name == 'nt'\"}\nfiles = [{file = \"a.whl\", hash = \"md5:"+sumA[:32]+"\"}]\n[package.source]\ntype = \"url\"\nurl = \"x\"\n"+poetryTail,
		"[[package]]\nname = \"a\"\nversion = \"1\"\n[package.dependencies]\na = [{version = \"^1 || ~2\", markers = \"os_name == 'nt'\"}]\n"+strings.Replace(poetryTail, "2.1", "2.0", 1))
}

// FuzzPyLock reads pylock.toml.
func FuzzPyLock(f *testing.F) {
	fuzzLock(f, "pylock.toml",
		"lock-version = \"1.0\"\ndefault-groups = [\"a\"]\n[[packages]]\nname = \"a\"\nversion = \"1\"\nmarker = \"'a' in dependency_groups\"\nwheels = [{url = \"https://f.example/a.whl\", size = 1}]\n",
		"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nmarker = \"'a' in extras\"\narchive = {url = \"https://f.example/a.zip\", hashes = {sha256 = \""+sumA+"\"}}\n")
}

// specTexts returns the texts of specs, separated by commas.
func specTexts(list []Spec) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Text)
	}
	return strings.Join(out, ",")
}
