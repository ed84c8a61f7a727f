package conda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"hpcc/conda/exports"
	"hpcc/conda/solve"
	"hpcc/testdata/helpers/testenv"
)

// exportOf returns an export of recorded packages, and their records.
func exportOf(t testing.TB, subdir string, pkgs []string) (*exports.Export, map[string]*solve.Record) {
	t.Helper()
	e := read(t, "# platform: "+subdir+"\n"+strings.Join(pkgs, "\n"))
	names := map[string]bool{}
	for _, x := range e.Entries {
		names[x.Name] = true
	}
	records, err := index2021(t, subdir)(t.Context(), names)
	testenv.Check(t, err)
	source := map[string]*solve.Record{}
	for _, x := range e.Entries {
		for _, r := range records {
			if r.Name == x.Name && r.Version == x.Version && r.Build == x.Build {
				source[x.Name] = r
			}
		}
		if source[x.Name] == nil {
			t.Fatalf("%s is not in the index", x)
		}
	}
	return e, source
}

func recorded(t testing.TB) (cases []solved) {
	readSolved(t, "answers", &cases)
	return cases
}

// moved returns a table as text, one row on each line.
func moved(rows []Move) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%-13s  %s %s -> %s  %s\n", r.Fate, r.Name, r.From, r.To, r.Why)
	}
	return strings.ReplaceAll(b.String(), "  \n", "\n")
}

// TestMove moves an environment of 41 real packages from amd64 to ppc64le, and compares each
// row.
func TestMove(t *testing.T) {
	e, source := exportOf(t, "linux-64", recorded(t)[2].Conda)
	m := &move{export: e, source: source, fetch: index2021(t, "linux-ppc64le"), options: Options{Request: Request{Channels: []string{"https://repo.anaconda.com/pkgs/main"}}, Subdir: "linux-ppc64le"}}
	pkgs, rows, err := m.solve(t.Context())
	testenv.Check(t, err)
	if err := isAnswer(m.problem, pkgs); err != nil {
		t.Error(err)
	}
	got := moved(rows)
	const golden = "testdata/move-ppc64le.txt"
	if *update {
		testenv.Check(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	testenv.Check(t, err)
	if got != string(want) {
		t.Errorf("the table is\n%s\nwant\n%s\nif this is right, run the test with -update", got, want)
	}
	if n := strings.Count(got, "\n"); n != 42 || len(e.Entries) != 41 {
		t.Errorf("%d rows of %d entries; want 42 of 41", n, len(e.Entries))
	}
}

// TestMoves moves all recorded environments from amd64 to ppc64le, or reports why that is
// not possible, also if the dependencies of the export's packages are unknown.
func TestMoves(t *testing.T) {
	want := map[string]string{
		"python=3.8 numpy, known":                   "map[added:2 exact:8 missing:1 other version:3 same version:11 substituted:6]",
		"python=3.8 numpy, unknown":                 "map[added:2 exact:8 missing:1 other version:3 same version:11 substituted:6]",
		"python=3.9 pandas scikit-learn, known":     "map[added:1 exact:13 missing:2 other version:4 same version:16 substituted:6]",
		"python=3.9 pandas scikit-learn, unknown":   "1 of 41 packages is not in the channels for linux-ppc64le: libgfortran4=7.5.0=ha8ba4b0_17 (no package of that name)",
		"jupyter, known":                            "map[added:4 exact:53 missing:4 other version:6 same version:36 substituted:1]",
		"jupyter, unknown":                          "2 of 100 packages are not in the channels for linux-ppc64le: pyqt=",
		"dask numba, known":                         "numba cannot be installed for linux-ppc64le:",
		"dask numba, unknown":                       "numba and tbb cannot be installed together for linux-ppc64le:",
		"python=3.7 scipy blas=*=openblas, known":   "map[exact:8 missing:2 other version:4 same version:12 substituted:1]",
		"python=3.7 scipy blas=*=openblas, unknown": "1 of 27 packages is not in the channels for linux-ppc64le: libgfortran4=",
	}
	for _, c := range recorded(t) {
		if c.Subdir != "linux-64" || c.Conda == nil {
			continue
		}
		e, source := exportOf(t, "linux-64", c.Conda)
		for what, known := range map[string]map[string]*solve.Record{", known": source, ", unknown": nil} {
			m := &move{export: e, source: known, fetch: index2021(t, "linux-ppc64le"), options: Options{Subdir: "linux-ppc64le"}}
			pkgs, rows, err := m.solve(t.Context())
			count := map[Fate]int{}
			for _, r := range rows {
				count[r.Fate]++
			}
			got := fmt.Sprint(count)
			if err != nil {
				got = err.Error()
			} else if err := isAnswer(m.problem, pkgs); err != nil {
				t.Errorf("%s: %v", c.Specs, err)
			}
			name := strings.Join(c.Specs, " ") + what
			if want[name] == "" || !strings.Contains(got, want[name]) {
				t.Errorf("%q: %s; want %s", name, got, want[name])
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing rows: %v", want)
	}
}

// TestResolveSolves uses the nearest packages of a channel that lacks some, and reports them.
func TestResolveSolves(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "python", version: "3.11.4"}, &testPkg{name: "python", version: "3.12.1"},
		&testPkg{name: "lib", version: "1.2.4", build: "py311_0", depends: []string{"python 3.11.*", "new >=1"}}, &testPkg{name: "lib", version: "1.3.0", build: "py311_0", depends: []string{"python 3.11.*"}},
		&testPkg{name: "lib", version: "1.2.5", build: "py312_0", depends: []string{"python 3.12.*"}}, &testPkg{name: "new"}, &testPkg{name: "a", build: "h_1"})
	in := "# platform: linux-64\npython=3.11.3=0\nlib=1.2.3=py311_0\na=1.0=h_0"
	p, err := Resolve(t.Context(), read(t, in), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	testenv.Check(t, err)
	want := "other version  python 3.11.3=0 -> python=3.11.4=0  there is no version 3.11.3\nother version  lib 1.2.3=py311_0 -> lib=1.2.4=py311_0  there is no version 1.2.3\n" +
		"same version   a 1.0=h_0 -> a=1.0=h_1\nadded          new  -> new=1.0=0  needed by lib\n"
	if got := moved(p.Moves); got != want {
		t.Errorf("Moves =\n%s\nwant\n%s", got, want)
	}
	if got, want := strings.Join(p.Names(), " "), "a-1.0-h_1 new-1.0-0 python-3.11.4-0 lib-1.2.4-py311_0"; got != want {
		t.Errorf("Names = %q; want %q", got, want)
	}
	_, err = exports.Read(strings.NewReader("# platform: linux-64\na=1.0=h_0\npython=3.+!1=0\n"), "env.txt", exports.ReadOptions{})
	if err == nil || !strings.Contains(err.Error(), "env.txt:3: ") || !strings.Contains(err.Error(), "is not a version") {
		t.Errorf("Read = %v; want that line 3 has no version", err)
	}
	_, err = Resolve(t.Context(), read(t, "# platform: linux-64\na=1.0=h_0\npython=3.10.1=0\n"), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	var le *exports.LineError
	if !errors.As(err, &le) || le.Line != 3 || !strings.HasSuffix(err.Error(), "python=3.10 has no build for linux-64 in "+dir+"; the newest is 3.12.1") {
		t.Errorf("Resolve = %v; want that line 3 has no python 3.10", err)
	}
}

// TestPins keeps the versions and builds that an export pins and a channel has, unless Relax is set.
func TestPins(t *testing.T) {
	first := newChannel(t, &testPkg{name: "python", version: "3.11.4"}, &testPkg{name: "lib", version: "1.0", build: "old_0"}, &testPkg{name: "lib", version: "2.0"},
		&testPkg{name: "app", version: "1.0", depends: []string{"lib >=2"}}, &testPkg{name: "app", version: "0.9", depends: []string{"lib"}}, &testPkg{name: "both", version: "2.0"})
	second := newChannel(t, &testPkg{name: "both", version: "1.0"}, &testPkg{name: "lib", version: "1.0", build: "old_0"})
	for _, c := range []struct {
		name, in string
		relax    bool
		want     string // the packages, or the error
		degraded string
	}{
		{"a pin with a spec", "dependencies:\n- lib=1.0=old_0\n- app\n", false, "lib-1.0-old_0 app-0.9-0", ""},
		{"a pin against a spec", "dependencies:\n- lib=1.0=old_0\n- app>=1\n", false, "app>=1 and lib==1.0=old_0 cannot be installed together", ""},
		{"a pin against a spec, relaxed", "dependencies:\n- lib=1.0=old_0\n- app>=1\n", true, "lib-2.0-0 app-1.0-0", "lib"},
		{"a pin in the second channel", "dependencies:\n- both=1.0=0\n- app\n", false, "lib-2.0-0 app-1.0-0 both-1.0-0", ""},
		{"an absent build", "dependencies:\n- lib=1.0=new_0\n- app\n", false, "lib-2.0-0 app-1.0-0", "lib"},
		{"an absent version", "dependencies:\n- lib=1.1=0\n- app\n", false, "lib-2.0-0 app-1.0-0", "lib"},
		{"a list with an absent build", "# platform: linux-64\nlib=1.0=new_0\napp=0.9=0\n", false, "lib-1.0-old_0 app-0.9-0", "lib"},
		{"a list without builds that lacks a package", "app=1.0\n", false, "lib-2.0-0 app-1.0-0", ""},
		{"another platform", "# platform: linux-aarch64\nlib=1.0=h_0\napp=1.0=0\n", false, "lib-1.0-old_0 app-0.9-0", "app"},
		{"another build of another platform", "# platform: linux-aarch64\nlib=1.0=h_0\n", false, "lib-1.0-old_0", ""},
	} {
		p, err := Resolve(t.Context(), read(t, c.in), Options{Request: Request{Channels: []string{first, second}, Relax: c.relax}, Subdir: "linux-64"})
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(err.Error(), "with --relax") {
				t.Errorf("%s: %v; want %s", c.name, err, c.want)
			}
			continue
		}
		var degraded []string
		for _, m := range p.Moves {
			if m.Degraded {
				degraded = append(degraded, m.Name)
			}
		}
		if got := strings.Join(p.Names(), " "); got != c.want || strings.Join(degraded, " ") != c.degraded {
			t.Errorf("%s: %s, degraded %q; want %s, %q", c.name, got, degraded, c.want, c.degraded)
		}
	}
}

// TestRealPins solves environments of single pins with the index of Anaconda's channel "main". The
// pinned builds stay, though the channel has newer ones, and their dependencies are added.
func TestRealPins(t *testing.T) {
	for in, want := range map[string]string{
		"dependencies:\n- pytest-selenium=1.16.0=py36_0\n":                    "pytest-selenium-1.16.0-py36_0 python-3.6.13-h12debd9_1",
		"dependencies:\n- python\n- pytest-selenium=1.16.0=py37_0\n":          "pytest-selenium-1.16.0-py37_0 python-3.7.11-h12debd9_0",
		"dependencies: [python=3.8.11=h12debd9_0_cpython]\n":                  "python-3.8.11-h12debd9_0_cpython openssl-1.1.1l-h7f8727e_0 sqlite-3.36.0-hc218d9a_0",
		"dependencies:\n- python=3.8\n- pytest-selenium=1.16.0=py36_0\n":      "",
		"# platform: linux-64\npytest-selenium=1.16.0=py36_0\n":               "pytest-selenium-1.16.0-py36_0 python-3.6.13-h12debd9_1",
		"dependencies: [\"main/linux-64::pytest-selenium==1.16.0=py36_0\"]\n": "pytest-selenium-1.16.0-py36_0 python-3.6.13-h12debd9_1",
	} {
		m := &move{export: read(t, in), fetch: index2021(t, "linux-64"), options: Options{Request: Request{Channels: []string{"https://repo.anaconda.com/pkgs/main"}}, Subdir: "linux-64"}}
		pkgs, rows, err := m.solve(t.Context())
		if err != nil {
			if want != "" || !strings.Contains(err.Error(), "cannot be installed together") {
				t.Errorf("%q: %v", in, err)
			}
			continue
		}
		names := " " + strings.Join((&Plan{pkgs: pkgs}).Names(), " ") + " "
		for _, name := range strings.Fields(want) {
			if !strings.Contains(names, " "+name+" ") {
				t.Errorf("%q: %s is missing in%s", in, name, names)
			}
		}
		if err := isAnswer(m.problem, pkgs); err != nil || want == "" || slices.ContainsFunc(rows, func(r Move) bool { return r.Degraded }) {
			t.Errorf("%q: %v\n%s", in, err, moved(rows))
		}
	}
}

// readSolved reads a file that solve/testdata/main2021.py wrote.
func readSolved(t testing.TB, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("solve/testdata/main2021-" + name + ".json.zst")
	testenv.Check(t, err)
	z, err := zstd.NewReader(bytes.NewReader(b))
	testenv.Check(t, err)
	defer z.Close()
	testenv.Check(t, json.NewDecoder(z).Decode(into))
}

// index2021 returns Anaconda's channel "main" of September 2021, for one platform.
func index2021(t testing.TB, subdir string) solve.Fetcher {
	t.Helper()
	byName := map[string][]*solve.Record{}
	for _, sub := range []string{subdir, "noarch"} {
		index := map[string]map[string]*solve.Record{}
		readSolved(t, sub, &index)
		for _, kind := range []string{"packages", "packages.conda"} {
			for fn, r := range index[kind] {
				r.FileName, r.Subdir, r.Origin = fn, sub, "https://repo.anaconda.com/pkgs/main"
				byName[r.Name] = append(byName[r.Name], r)
			}
		}
	}
	for _, rs := range byName {
		slices.SortFunc(rs, func(a, b *solve.Record) int { return strings.Compare(a.Subdir+a.FileName, b.Subdir+b.FileName) })
	}
	return func(_ context.Context, names map[string]bool) (out []*solve.Record, err error) {
		for n := range names {
			out = append(out, byName[n]...)
		}
		return out, nil
	}
}

// isAnswer returns an error for an invalid solution: an unmet spec or requirement, or two
// packages of one name. It applies only the specs, independently of the solver.
func isAnswer(p *solve.Problem, pkgs []*solve.Record) error {
	have := map[string]*solve.Record{}
	for _, r := range slices.Concat(pkgs, p.Virtual) {
		if have[r.Name] != nil {
			return fmt.Errorf("duplicate package %s", r.Name)
		}
		have[r.Name] = r
	}
	met := func(s *solve.Spec, need bool) bool {
		r := have[s.Name]
		if r == nil {
			return !need
		}
		return s.Meets(r)
	}
	for _, s := range p.Wants {
		if !met(s, true) {
			return fmt.Errorf("unmet spec %s", s)
		}
	}
	for _, r := range pkgs {
		for i, text := range slices.Concat(r.Depends, r.Constrains) {
			s, err := solve.ParseSpec(text)
			if err != nil || !met(s, i < len(r.Depends)) {
				return fmt.Errorf("%s-%s-%s: unmet requirement %s", r.Name, r.Version, r.Build, text)
			}
		}
	}
	return nil
}

type solved struct {
	Subdir                string
	Specs                 []string
	Conda, Mamba, Rattler []string
}

var update = flag.Bool("update", false, "write the golden results anew")
