package pip

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
)

// lockedRow returns a row of a lock file with wheels of the given tags.
func lockedRow(name, version string, requires []Requirement, tags ...string) Requirement {
	r := Requirement{Name: name, Specifier: "==" + version, Locked: true, Needed: true, Requires: requires}
	for _, tag := range tags {
		r.Files = append(r.Files, Requirement{URL: "https://f.example/" + strings.ReplaceAll(name, "-", "_") + "-" + version + "-" + tag + ".whl", Size: 9})
	}
	return r
}

// need returns a dependency on a row, from its text.
func need(text string) Requirement {
	r, err := ParseRequirement(text)
	if err != nil {
		panic(err)
	}
	r.Locked = true
	return r
}

// TestLocked chooses the rows of a lock file that the target needs, and their wheels.
func TestLocked(t *testing.T) {
	any := "py3-none-any"
	rows := []Requirement{
		{Name: "app", Virtual: true, Locked: true, Requires: []Requirement{need("a[x]==1"), need("b==1; python_version < '3.10'"), need("b==2; python_version >= '3.10'"), need("member")}},
		{Name: "member", Virtual: true, Needed: true, Locked: true, Requires: []Requirement{need("m==1"), need("no==1; extra == 'y'")}},
		lockedRow("a", "1", []Requirement{need("c==1"), need("d==1; extra == 'x'"), need("no==1; extra == 'y'"), need("no==1; sys_platform == 'win32'")}, any, "cp39-cp39-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_17_ppc64le"),
		lockedRow("b", "1", nil, any),
		lockedRow("b", "2", []Requirement{need("a==1")}, any),
		lockedRow("c", "1", nil, any), lockedRow("d", "1", nil, any), lockedRow("m", "1", nil, any), lockedRow("no", "1", nil, any),
	}
	p, err := Resolve(t.Context(), condatest.NewStore(t), rows, pyTarget(nil), Options{Closed: true, Indexes: Indexes{NoIndex: true}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range p.Wheels {
		asked := ""
		if w.Asked {
			asked = " asked"
		}
		got = append(got, w.File+asked)
	}
	want := "a-1-cp311-cp311-manylinux_2_28_x86_64.whl asked, b-2-py3-none-any.whl asked, c-1-py3-none-any.whl, d-1-py3-none-any.whl, m-1-py3-none-any.whl asked"
	if strings.Join(got, ", ") != want || !strings.Contains(strings.Join(p.Notes, "\n"), "exclude linux-64 with python 3.11.4: b==1, no==1") {
		t.Errorf("Resolve = %s with the notes %q; want %s", strings.Join(got, ", "), p.Notes, want)
	}
	if f := p.Archives()[0]; f.URL != "https://f.example/"+p.Wheels[0].File || f.Size != 9 {
		t.Errorf("the archive is %+v", f)
	}
}

// TestLockedRefused reports the wheels that a locked package has.
func TestLockedRefused(t *testing.T) {
	old := lockedRow("a", "1", nil, "cp39-cp39-manylinux_2_17_x86_64", "cp310-cp310-macosx_11_0_arm64")
	source := lockedRow("a", "1", nil)
	source.Files = []Requirement{{URL: "https://f.example/a-1.tar.gz"}}
	python := lockedRow("a", "1", nil, "py3-none-any")
	python.Python = ">=3.12"
	other := lockedRow("a", "1", nil)
	other.Files = []Requirement{{URL: "https://f.example/a-1.exe"}, {URL: "https://f.example/b-1-py3-none-any.whl"}}
	both := Requirement{Name: "app", Virtual: true, Requires: []Requirement{need("b==1"), need("b==2")}}
	for _, c := range []struct {
		name string
		rows []Requirement
		want string
	}{
		{"another python", []Requirement{old}, "no wheel fits: the environment is for python 3.11 and linux-64, glibc 2.36; available: cp39-cp39-manylinux_2_17_x86_64, cp310-cp310-macosx_11_0_arm64"},
		{"only sources", []Requirement{source}, "only sources are available, which have to be built"},
		{"requires-python", []Requirement{python}, "needs python >=3.12"},
		{"no archive", []Requirement{other}, "none of its files is a wheel or a source archive"},
		{"two versions", []Requirement{both, lockedRow("b", "1", nil, "py3-none-any"), lockedRow("b", "2", nil, "py3-none-any")}, "no versions satisfy all requirements: the list wants b==1, the list wants b==2"},
		{"an edge without a marker", []Requirement{{Name: "a", Virtual: true, Requires: []Requirement{{Name: "b", Marker: "x"}}}}, `unknown variable "x"`},
	} {
		_, err := Resolve(t.Context(), condatest.NewStore(t), c.rows, pyTarget(nil), Options{Closed: true, Indexes: Indexes{NoIndex: true}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

// TestLockedIndex looks a row up in its own index.
func TestLockedIndex(t *testing.T) {
	usual := condatest.ServeIndex(t, false, condatest.SimpleWheel("a", "1"), condatest.SimpleWheel("b", "1"))
	own := condatest.ServeIndex(t, true, condatest.SimpleWheel("a", "1"))
	rows := []Requirement{{Name: "a", Specifier: "==1", Index: own.URL + "/simple"}, {Name: "b", Specifier: "==1"}}
	p, err := Resolve(t.Context(), condatest.NewStore(t), rows, pyTarget(nil), Options{Closed: true, Indexes: Indexes{URL: usual.URL + "/simple"}})
	if err != nil || len(p.Wheels) != 2 || !strings.HasPrefix(p.Wheels[0].URL, own.URL) || !strings.HasPrefix(p.Wheels[1].URL, usual.URL) {
		t.Errorf("Resolve = %+v, %v; want a from %s and b from %s", p, err, own.URL, usual.URL)
	}
	if usual.Count("/simple/a/") != 0 {
		t.Error("the usual index was asked for a")
	}
}

// TestLockMarkers evaluates the lists of lock files in markers.
func TestLockMarkers(t *testing.T) {
	for _, c := range []struct {
		marker string
		want   string
	}{
		{"'dev' in dependency_groups", "true true"},
		{"'D.E_V' not in dependency_groups", "true true"},
		{"'Test' in dependency_groups", "false true"},
		{"'x' in extras", "false true"},
		{"'x' not in extras and python_version < '3.12'", "false false"},
		{"'x' in extras and python_version < '3.12'", "false true"},
		{"dependency_groups == 'dev'", "a list of names allows only"},
		{"dependency_groups in 'dev'", "a list of names allows only"},
	} {
		holds, known, err := Requirement{Marker: c.marker, Locked: true, Groups: []string{"dev"}}.Decide("linux-64")
		if got := fmt.Sprint(holds, known); got != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %s, %v; want %s", c.marker, got, err, c.want)
		}
	}
	if _, _, err := (Requirement{Marker: "'x' in extras"}).Decide("linux-64"); err == nil {
		t.Error("a marker of a lock file is accepted in a requirement")
	}
}

// TestNewest finds the newest version that a specifier allows.
func TestNewest(t *testing.T) {
	versions := []string{"1.9", "bad", "1.10", "2.0"}
	for spec, want := range map[string]string{"": "2.0", "<2": "1.10", "<1": "", "no": ""} {
		if got := (Requirement{Specifier: spec}).Newest(versions); got != want {
			t.Errorf("Newest(%q) = %q; want %q", spec, got, want)
		}
	}
}

// TestLockedTooMany ends a walk through dependencies that no tool writes.
func TestLockedTooMany(t *testing.T) {
	r, err := newResolver(t.Context(), condatest.NewStore(t), pyTarget(nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var rows []Requirement
	for range 1100 {
		rows = append(rows, Requirement{Name: "a", Requires: []Requirement{{Name: "a"}}})
	}
	r.required(rows)
	if len(r.refused) == 0 || !strings.Contains(errors.Join(&refusedError{Refused: r.refused}).Error(), "more than 1000000 steps") {
		t.Errorf("refused %v", r.refused)
	}
}

// TestUnfit finds the packages without wheels for a version of python.
func TestUnfit(t *testing.T) {
	source := lockedRow("s", "1", nil)
	source.Files = []Requirement{{URL: "https://f.example/s-1.tar.gz"}}
	rows := []Requirement{
		{Name: "app", Virtual: true, Requires: []Requirement{need("a==1"), need("b==1"), need("s==1"), need("c==1; python_version < '3.12'")}},
		lockedRow("a", "1", nil, "cp310-cp310-linux_x86_64", "cp311-cp311-linux_ppc64le"), lockedRow("b", "1", nil, "cp39-abi3-linux_x86_64"), source, lockedRow("c", "1", nil, "cp311-cp311-linux_x86_64"), lockedRow("no", "1", nil, "cp27-cp27m-win32"),
		{Name: "p", Locked: true, Specifier: "==1", Files: []Requirement{{Name: "p-1-cp312-cp312-linux_x86_64.whl"}}},
	}
	for python, want := range map[string]string{"3.10.0": "[c p]", "3.11.0": "[a p]", "3.12.0": "[a]", "2.7": "[]"} {
		if got := fmt.Sprint((Target{Subdir: "linux-64", Python: python, Glibc: "2.99"}).Unfit(rows)); got != want {
			t.Errorf("Unfit for python %s = %s; want %s", python, got, want)
		}
	}
}
