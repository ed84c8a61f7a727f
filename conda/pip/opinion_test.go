package pip

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

func needPip(t testing.TB) {
	t.Helper()
	err := exec.Command("/usr/bin/python3", "-c", "import pip, venv; assert tuple(map(int, pip.__version__.split('.')[:2])) >= (22, 3)").Run()
	testenv.Need(t, "python3 with pip 22.3 or newer and venv (Debian: python3-pip, python3-venv)", err)
}

// TestOpinion installs the same wheels with hpcc and with pip into a virtual environment, and
// compares the trees file by file. It allows the intended differences: headers go to
// include/pythonX.Y/NAME, as outside of virtual environments; scripts are always executable;
// RECORD does not list a wheel's own wrapper of an entry point, which neither installs.
func TestOpinion(t *testing.T) {
	needPip(t)
	wheels := []condatest.Wheel{condatest.DemoWheel,
		{Name: "helper", Version: "1.0", Build: "2", Tag: "cp36-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", Meta: "Requires-Python: >=3.6\n", Files: []condatest.WheelFile{
			{Name: "helper/__init__.py", Text: "h = 1\n"}, {Name: "helper/_x.abi3.so", Text: "\x7fELF", Mode: 0o755}, {Name: "nspace/other/two.py", Text: "y = 2\n"},
			{Name: "helper-1.0.data/scripts/no-mode", Text: "#!python\n"},
		}},
		{Name: "old", Version: "2!1.0rc1", Points: "[console_scripts]\nold-tool=old:main\n", Files: []condatest.WheelFile{
			{Name: "old.py", Text: "x"}, {Name: "old-2!1.0rc1.data/scripts/old-tool", Text: "#!python\nold wrapper\n", Mode: 0o755},
		}},
	}
	dir := condatest.WheelDir(t, wheels...)
	rows := "Demo-Pkg\nhelper\nold==2!1.0rc1"
	real, err := filepath.Glob("/usr/share/python-wheels/*.whl")
	if err == nil && len(real) == 0 {
		err = os.ErrNotExist
	}
	testenv.Need(t, "real wheels (Debian: python3-pip-whl, python3-setuptools-whl, python3-wheel-whl)", err)
	for _, w := range real {
		b, err := os.ReadFile(w)
		testenv.Check(t, err)
		n, err := parseWheelName(filepath.Base(w))
		testenv.Check(t, err)
		testenv.Write(t, filepath.Join(dir, n.file), b)
		rows += "\n" + n.dist
	}
	prefix := filepath.Join(t.TempDir(), "v")
	condatest.Python(t, "", "-m", "venv", "--without-pip", prefix)
	version := strings.TrimSpace(string(condatest.Python(t, "", "-c", "import platform; print(platform.python_version())")))
	before := tree(t, prefix)
	interpreter := prefix + "/bin/python" + Minor(version)
	args := append([]string{"-m", "pip", "--python", interpreter, "install", "--no-compile", "--no-deps", "--no-index", "--find-links", dir}, strings.Split(rows, "\n")...)
	condatest.Python(t, "", args...)
	pipTree := tree(t, prefix)
	target := Target{Subdir: "linux-64", Python: version, Glibc: "2.36", Prefix: prefix}
	r, err := installed(t, rows, target, fromDir(dir))
	testenv.Check(t, err)
	hpccTree := map[string]treeFile{}
	for name, f := range r.files {
		rel, ok := strings.CutPrefix(name, strings.TrimPrefix(prefix, "/")+"/")
		if !ok || strings.HasSuffix(f.Name, "/") {
			continue
		}
		if h, ok := strings.CutPrefix(rel, "include/"); ok {
			rel = "include/site/" + h
		}
		hpccTree[rel] = treeFile{f.Data, fs.FileMode(f.Mode)}
	}
	for p := range before {
		delete(pipTree, p)
	}
	compareTrees(t, hpccTree, pipTree)
	if len(hpccTree) < 300 && len(real) > 0 {
		t.Errorf("only %d files were compared", len(hpccTree))
	}
	t.Logf("%d files of %d wheels were compared", len(hpccTree), len(wheels)+len(real))
	useTree(t, prefix, interpreter, r, before, pipTree)
}

// useTree replaces pip's tree with hpcc's, runs one of its programs, and checks that pip can
// list and remove all packages.
func useTree(t *testing.T, prefix, interpreter string, r *result, before, pipTree map[string]treeFile) {
	t.Helper()
	for p := range pipTree {
		testenv.Check(t, os.Remove(filepath.Join(prefix, p)))
	}
	for name, f := range r.files {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		testenv.Check(t, os.MkdirAll(filepath.Dir("/"+name), 0o755))
		testenv.Check(t, os.WriteFile("/"+name, []byte(f.Data), fs.FileMode(f.Mode)))
	}
	if out, err := exec.Command(prefix + "/bin/demo").CombinedOutput(); err != nil || string(out) != "demo demo\n" {
		t.Errorf("bin/demo printed %q, %v", out, err)
	}
	var names []string
	for l := range strings.Lines(string(condatest.Python(t, "", "-m", "pip", "--python", interpreter, "list", "--format=freeze"))) {
		name, _, _ := strings.Cut(strings.TrimSpace(l), "==")
		names = append(names, name)
	}
	if len(names) != len(r.plan.Wheels) {
		t.Errorf("pip lists %q; want %d packages", names, len(r.plan.Wheels))
	}
	condatest.Python(t, "", append([]string{"-m", "pip", "--python", interpreter, "uninstall", "-y"}, names...)...)
	for p := range tree(t, prefix) {
		if _, ok := before[p]; !ok && !strings.HasSuffix(p, ".pyc") {
			t.Errorf("pip removed all packages but left %s", p)
		}
	}
}

type treeFile struct {
	data string
	mode fs.FileMode
}

// tree reads all files below a directory.
func tree(t testing.TB, dir string) map[string]treeFile {
	t.Helper()
	out := map[string]treeFile{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		out[rel] = treeFile{string(b), fi.Mode().Perm()}
		return err
	})
	testenv.Check(t, err)
	return out
}

func compareTrees(t *testing.T, hpccTree, pipTree map[string]treeFile) {
	t.Helper()
	all := maps.Clone(hpccTree)
	maps.Copy(all, pipTree)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		a, installed := hpccTree[p]
		b, byPip := pipTree[p]
		switch {
		case !installed || !byPip:
			t.Errorf("%s: installed by hpcc %v, by pip %v", p, installed, byPip)
		case a.mode != b.mode && !(p == "bin/no-mode" && a.mode == 0o755):
			t.Errorf("%s has mode %o; pip gives it %o", p, a.mode, b.mode)
		case a.data == b.data:
		case filepath.Base(p) == "RECORD":
			compareRecords(t, p, a.data, b.data)
		case !strings.HasPrefix(p, "bin/") || !sameProgram(a.data, b.data):
			t.Errorf("%s contains %q; pip writes %q", p, text.Short(a.data), text.Short(b.data))
		}
	}
}

// sameProgram compares entry point scripts. Their text differs between versions of pip, so
// only the first line, the import and the call must be equal.
func sameProgram(a, b string) bool {
	essence := func(s string) string {
		var out []string
		for i, l := range strings.Split(s, "\n") {
			if i == 0 || strings.HasPrefix(l, "from ") || strings.Contains(l, "sys.exit(") {
				out = append(out, l)
			}
		}
		return strings.Join(out, "\n")
	}
	return essence(a) == essence(b)
}

// compareRecords compares RECORDs row by row, except the rows of scripts, which pip may write
// differently.
func compareRecords(t *testing.T, name, a, b string) {
	t.Helper()
	hpccRows, err := parseRecord([]byte(a))
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	pipRows, err := parseRecord([]byte(b))
	if err != nil {
		t.Errorf("%s of pip: %v", name, err)
	}
	for p := range pipRows {
		if strings.Contains(p, ".data/scripts/") {
			delete(pipRows, p)
		}
		if headers := strings.Replace(p, "/include/site/", "/include/", 1); headers != p {
			pipRows[headers] = pipRows[p]
			delete(pipRows, p)
		}
	}
	if !maps.Equal(hpccRows, pipRows) {
		for p, row := range hpccRows {
			if pipRows[p] != row && !strings.HasPrefix(p, "../../../bin/") {
				t.Errorf("%s: the row of %q is %v; pip writes %v", name, p, row, pipRows[p])
			}
		}
		for p := range pipRows {
			if _, ok := hpccRows[p]; !ok {
				t.Errorf("%s: the row of %q is missing, but pip writes it", name, p)
			}
		}
	}
}

// opinion runs a Python program, which reads the cases as JSON, and returns the results that
// it prints.
func opinion[T any](t testing.TB, program string, cases any) []T {
	t.Helper()
	in, err := json.Marshal(cases)
	testenv.Check(t, err)
	var out []T
	testenv.Check(t, json.Unmarshal(condatest.Python(t, string(in), "-c", "import json, sys\ncases = json.load(sys.stdin)\n"+program), &out))
	return out
}

// someVersions are valid and invalid versions of all kinds. The tests compare all pairs.
var someVersions = []string{
	"0", "1", "1.0", "1.0.0", "1.1", "1.10", "1.9", "2", "1!0.1", "0!1", "1.0.dev0", "1.0.dev1", "1.0a0", "1.0a", "1.0alpha1", "1.0.a.1", "1.0-a1", "1.0a1.dev2", "1.0b2", "1.0beta2", "1.0rc1",
	"1.0c1", "1.0pre1", "1.0-preview_3", "1.0.post0", "1.0-1", "1.0.post1.dev3", "1.0rev2", "1.0r2", "1.0a1.post2", "1.0a1.post2.dev3", "1.0+abc", "1.0+abc.1", "1.0+1", "1.0+1.abc", "1.0+ABC-1", "1.0+abc_2",
	"1.0.post1+local", "v1.0", " 1.0 ", "01.002", "2023.10.5", "20240101123456789012345678", "20240101123456789012345679", "2.1.2+cu118", "2.1.2", "2.1.2.1", "1.0+001",
	"", "x", "1.0.x", "1..0", "1.0+", "1.0+a+b", "1!", "!1", "1.0a1a2", "1.0-", "1.0 0", "1,0", "1.0.*", "1.0dev-1", "1.0post", "1.0.post.", "١.0",
}

func TestVersionOpinion(t *testing.T) {
	needPip(t)
	type verdict struct {
		Text string // "" if invalid
		Pre  bool
		Less []int // indexes of greater versions
		Same []int
	}
	want := opinion[verdict](t, `
from pip._vendor.packaging.version import Version, InvalidVersion
def read(s):
    try: return Version(s)
    except InvalidVersion: return None
vs = [read(s) for s in cases]
print(json.dumps([{"Text": str(v) if v else "", "Pre": bool(v and v.is_prerelease),
  "Less": [i for i, w in enumerate(vs) if v and w and v < w], "Same": [i for i, w in enumerate(vs) if v and w and v == w]} for v in vs]))
`, someVersions)
	for i, s := range someVersions {
		v, err := parseVersion(s)
		if ok := want[i].Text != ""; (err == nil) != ok {
			t.Errorf("parseVersion(%q): %v; packaging accepts it: %v", s, err, ok)
			continue
		}
		if err != nil {
			continue
		}
		got := verdict{Text: v.String(), Pre: v.isPre()}
		for j, o := range someVersions {
			w, err := parseVersion(o)
			if err != nil {
				continue
			}
			switch v.compare(w) {
			case -1:
				got.Less = append(got.Less, j)
			case 0:
				got.Same = append(got.Same, j)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want[i]) {
			t.Errorf("%q: %v; packaging reports %v", s, got, want[i])
		}
	}
}

func TestSpecifierOpinion(t *testing.T) {
	needPip(t)
	var specs []string
	for _, op := range []string{"==", "!=", "<=", ">=", "<", ">", "~=", "==="} {
		for _, v := range []string{"1.0", "1", "1.0.0", "1.0a1", "1.0.post1", "1.0.dev1", "1.0+abc", "1.*", "1.0.*", "1!0.*", "2.1.2+cu118", "x"} {
			specs = append(specs, op+v)
		}
	}
	specs = append(specs, "", ">=1,<2", " >= 1 , != 1.9 ", ">=1,,<2", "1.0", "=1.0", ">==1", "~1", ">=1 <2")
	type verdict struct {
		OK    bool
		Match []int
	}
	want := opinion[verdict](t, `
from pip._vendor.packaging.specifiers import Specifier, InvalidSpecifier
from pip._vendor.packaging.version import Version, InvalidVersion
def read(s):
    try: return Version(s)
    except InvalidVersion: return None
vs = [read(s) for s in cases["versions"]]
def judge(s):
    try: spec = [Specifier(c) for c in s.split(",") if c.strip()]
    except InvalidSpecifier: return {"OK": False, "Match": None}
    return {"OK": True, "Match": [i for i, v in enumerate(vs) if v and all(c.contains(v, prereleases=True) for c in spec)] or None}
print(json.dumps([judge(s) for s in cases["specs"]]))
`, map[string][]string{"specs": specs, "versions": someVersions})
	lenient := 0
	for i, s := range specs {
		spec, err := parseSpecifier(s)
		if err == nil && !want[i].OK && strings.HasSuffix(s, ".*") {
			lenient++ // old packages have specifiers such as >=1.*
			continue
		}
		if (err == nil) != want[i].OK {
			t.Errorf("parseSpecifier(%q): %v; packaging accepts it: %v", s, err, want[i].OK)
			continue
		}
		if err != nil {
			continue
		}
		var got []int
		for j, o := range someVersions {
			if v, err := parseVersion(o); err == nil && spec.match(v) {
				got = append(got, j)
			}
		}
		if !slices.Equal(got, want[i].Match) {
			for _, j := range append(got, want[i].Match...) {
				if slices.Contains(got, j) != slices.Contains(want[i].Match, j) {
					t.Errorf("%q and version %q: hpcc %v, packaging %v", s, someVersions[j], slices.Contains(got, j), !slices.Contains(got, j))
				}
			}
		}
	}
	if lenient != 12 {
		t.Errorf("hpcc accepts %d specifiers that packaging refuses; want 12", lenient)
	}
}

func TestMarkerOpinion(t *testing.T) {
	needPip(t)
	markers := []string{
		`python_version >= "3.8"`, `python_version<'3.10'`, `python_version == "3.11"`, `python_full_version < "3.11.5"`, `python_version in "3.10 3.11"`, `python_version not in '2.7, 3.9'`,
		`sys_platform == "linux"`, `sys_platform != 'win32' and platform_machine == "x86_64"`, `platform_system == "Windows" or os_name == "posix"`, `platform_machine in "x86_64 amd64"`,
		`(python_version < "3" or sys_platform == "linux") and implementation_name == "cpython"`, `platform_python_implementation == 'CPython'`, `python_version ~= "3.9"`, `"linux" in sys_platform`,
		`"3.8" <= python_version`, `extra == "all"`, `extra == "ALL_x"`, `extra != "all"`, `os.name == "posix"`, `python_implementation != "PyPy"`, `python_version >= "3.8" and python_version < "4" or extra == "dev"`,
		`python_version === "3.11"`, `sys_platform == "lin"`, `platform_version == ""`, `platform_machine >= "a"`, `implementation_version >= "3"`, `python_version > "3.11.0"`, `python_version=='3.*'`, `python_version >= "3.8" and`,
		`python_version`, `python_version >= 3.8`, `"a" == "b"`, `foo == "a"`, `(python_version > "3"`, `python_version > "3")`, `python_version > "3" or`, `python_version > "3`, `python_version not "3"`, ``,
		`python_version>"3"and os_name=="posix"`, `sys_platform=="linux"or sys_platform=="x"`,
	}
	type verdict struct{ OK, Plain, Extra bool }
	want := opinion[verdict](t, `
from pip._vendor.packaging.markers import Marker, InvalidMarker, UndefinedEnvironmentName
def judge(m):
    try: m = Marker(m)
    except InvalidMarker: return {"OK": False}
    env = dict(cases["env"], platform_release="", platform_version="")
    try: return {"OK": True, "Plain": m.evaluate(dict(env, extra="")), "Extra": m.evaluate(dict(env, extra="all"))}
    except UndefinedEnvironmentName: return {"OK": False}
print(json.dumps([judge(m) for m in cases["markers"]]))
`, map[string]any{"markers": markers, "env": (&Target{Subdir: "linux-64", Python: "3.11.4"}).environment()})
	env := (&Target{Subdir: "linux-64", Python: "3.11.4"}).environment()
	for i, s := range markers {
		m, err := parseMarker(s)
		got := verdict{OK: err == nil}
		if err == nil {
			got.Plain, got.Extra = m.holds(env, ""), m.holds(env, "all")
		}
		if got != want[i] {
			t.Errorf("%s: %+v, %v; packaging reports %+v", s, got, err, want[i])
		}
	}
}

// TestTagsOpinion compares the tags and their order with the local python, except for its C
// library.
func TestTagsOpinion(t *testing.T) {
	needPip(t)
	type system struct {
		Version, Machine, Glibc string
		Tags                    []string
	}
	local := opinion[system](t, `
import platform
from pip._internal.utils.compatibility_tags import get_supported
print(json.dumps([{"Version": platform.python_version(), "Machine": platform.machine(), "Glibc": platform.libc_ver()[1], "Tags": [str(t) for t in get_supported()]}]))
`, nil)[0]
	target := Target{Python: local.Version, Glibc: local.Glibc}
	for processor, m := range pythonMachine {
		if m == local.Machine && processor != "arm64" {
			target.Subdir = "linux-" + processor
		}
	}
	ranks, err := target.ranks()
	testenv.Check(t, err)
	tags := slices.SortedFunc(maps.Keys(ranks), func(a, b string) int { return ranks[a] - ranks[b] })
	if !slices.Equal(tags, local.Tags) {
		for i := range min(len(tags), len(local.Tags)) {
			if tags[i] != local.Tags[i] {
				t.Fatalf("tag %d is %s; pip has %s", i, tags[i], local.Tags[i])
			}
		}
		t.Fatalf("%d tags; pip has %d", len(tags), len(local.Tags))
	}
}
