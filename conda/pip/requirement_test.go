package pip

import (
	"fmt"
	"strings"
	"testing"

	"hpcc/text"
)

func TestParseRequirement(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, c := range []struct {
		row  string
		want Requirement
	}{
		{"flask", Requirement{Name: "flask"}},
		{"Flask == 2.0  # the web", Requirement{Name: "Flask", Specifier: "==2.0"}},
		{"flask[async, dot_env] >=2,<3 ; python_version < '4'", Requirement{Name: "flask", Extras: []string{"async", "dot-env"}, Specifier: ">=2,<3", Marker: "python_version < '4'"}},
		{"flask (>=2)", Requirement{Name: "flask", Specifier: ">=2"}},
		{"flask>=2;sys_platform=='linux'", Requirement{Name: "flask", Specifier: ">=2", Marker: "sys_platform=='linux'"}},
		{"torch==2.1.2+cu118 --hash=sha256:" + sum + " --hash sha256:" + strings.ToUpper(sum), Requirement{Name: "torch", Specifier: "==2.1.2+cu118", Hashes: []string{"sha256:" + sum, "sha256:" + sum}}},
		{"x @ https://e.org/x-1-py3-none-any.whl#sha256=" + sum, Requirement{Name: "x", URL: "https://e.org/x-1-py3-none-any.whl#sha256=" + sum}},
		{"x@https://user:pw@e.org/x.whl ; os_name=='nt'", Requirement{Name: "x", URL: "https://user:pw@e.org/x.whl", Marker: "os_name=='nt'"}},
		{"x @ file:///home/conda/feedstock_root/build/work", Requirement{Name: "x", URL: "file:///home/conda/feedstock_root/build/work"}},
		{"https://user:pw@e.org/a/Some_Name-1.0-py3-none-any.whl", Requirement{Name: "Some_Name", URL: "https://user:pw@e.org/a/Some_Name-1.0-py3-none-any.whl"}},
		{"./wheels/x-1-py3-none-any.whl[b]", Requirement{Name: "x", Extras: []string{"b"}, URL: "./wheels/x-1-py3-none-any.whl"}},
		{"x-1-py3-none-any.whl", Requirement{Name: "x", URL: "x-1-py3-none-any.whl"}},
		{"../sources", Requirement{URL: "../sources"}},
		{"sub/dir", Requirement{URL: "sub/dir"}},
		{"git+https://github.com/a/b@main#egg=bee", Requirement{Name: "bee", URL: "git+https://github.com/a/b@main#egg=bee"}},
		{"git+ssh://git@github.com/a/b.git", Requirement{URL: "git+ssh://git@github.com/a/b.git"}},
		{"b @ git+https://github.com/a/b", Requirement{Name: "b", URL: "git+https://github.com/a/b"}},
		{"-e .", Requirement{Editable: true, URL: "."}},
		{"--editable git+https://e.org/x#egg=x", Requirement{Editable: true, URL: "git+https://e.org/x#egg=x", Name: "x"}},
	} {
		got, err := ParseRequirement(c.row)
		if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%q: %#v, %v; want %#v", c.row, got, err, c.want)
		}
	}
	for row, want := range map[string]string{
		"":                                    "the row is empty",
		"# comment":                           "the row is empty",
		"flask=2.0":                           "pip writes ==, not = as conda does",
		"flask=2.0=py311_0":                   "pip writes ==, not = as conda does",
		"flask 2.0":                           "does not begin with one of",
		"flask ==x":                           "is not a version",
		"flask[async":                         "missing ] after the extras",
		"flask[a b]":                          "invalid extra",
		"flask; nonsense":                     "unknown variable",
		"flask @":                             "missing URL after @",
		"_x":                                  "does not begin with a package name",
		"-r other.txt":                        "is an option, not a package",
		"flask --hash=md5:00":                 "not sha256",
		"flask --hash=sha256:00":              "not sha256",
		"flask --global-option=x":             "unsupported option --global-option=x",
		"flask " + strings.Repeat("x", 1<<17): "more than",
	} {
		if got, err := ParseRequirement(row); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", text.Short(row), got, err, want)
		}
	}
	if r, err := ParseRequirement("x@https://user:pw@e.org/x.whl?token=pw"); err != nil || strings.Contains(r.String(), "pw") {
		t.Errorf("String contains the password: %s, %v", r, err)
	}
}

func TestParseWheelName(t *testing.T) {
	for file, want := range map[string]string{
		"a-1-py3-none-any.whl":                                       "a 1  [py3-none-any]",
		"a_b-1.0+cu118-1x-cp311-abi3-manylinux_2_17_x86_64.whl":      "a_b 1.0+cu118 1x [cp311-abi3-manylinux_2_17_x86_64]",
		"a-1-py2.py3-none-any.whl":                                   "a 1  [py2-none-any py3-none-any]",
		"a-1-cp311-cp311-manylinux_2_5_x86_64.manylinux1_x86_64.whl": "a 1  [cp311-cp311-manylinux_2_5_x86_64 cp311-cp311-manylinux1_x86_64]",
	} {
		w, err := parseWheelName(file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		} else if got := fmt.Sprint(w.dist, " ", w.version, " ", w.build, " ", w.tags); got != want {
			t.Errorf("%s: %s; want %s", file, got, want)
		}
	}
	for _, file := range []string{"", "a.whl", "a-1-py3-none-any.zip", "a-x-py3-none-any.whl", "a-1-b-py3-none-any.whl", "-1-py3-none-any.whl", "a/b-1-py3-none-any.whl", "a-1-1-2-py3-none-any.whl", "a-1-" + strings.Repeat("a.", 100) + "-" + strings.Repeat("b.", 100) + "-any.whl"} {
		if _, err := parseWheelName(file); err == nil {
			t.Errorf("parseWheelName(%q) succeeded; want an error", text.Short(file))
		}
	}
}

// FuzzRequirement checks that a parsed requirement without marker, URL and hashes prints as a
// row that parses to the same requirement.
func FuzzRequirement(f *testing.F) {
	for _, s := range []string{"flask[a,b]>=1,<2;python_version<'3'", "x @ https://u:p@e.org/x-1-py3-none-any.whl#sha256=00", "-e .", "./a b.whl", "x==1 --hash=sha256:" + strings.Repeat("0", 64), "x;(((os_name=='a')))"} {
		f.Add(s)
	}
	env := (&Target{Subdir: "linux-64", Python: "3.11.4"}).environment()
	f.Fuzz(func(t *testing.T, row string) {
		r, err := ParseRequirement(row)
		if err != nil {
			return
		}
		d, err := r.dependency()
		if err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		d.cond.holds(env, "")
		if r.Marker != "" || r.URL != "" || len(r.Hashes) > 0 {
			return
		}
		again, err := ParseRequirement(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q: %q, then %q, %v", row, r, again, err)
		}
	})
}

// FuzzSpecifier checks that versions are totally ordered and that == matches its version.
func FuzzSpecifier(f *testing.F) {
	f.Add("1.0rc1", "1!2.0.post1.dev3+a.1", ">=1,<2")
	f.Add("v01.0-1", "1", "~=1.0,!=1.*")
	f.Fuzz(func(t *testing.T, a, b, s string) {
		if spec, err := parseSpecifier(s); err == nil {
			again, err := parseSpecifier(spec.String())
			if err != nil || again.String() != spec.String() {
				t.Fatalf("%q: %q, then %q, %v", s, spec, again, err)
			}
		}
		v, err := parseVersion(a)
		if err != nil {
			return
		}
		if again, err := parseVersion(v.String()); err != nil || again.compare(v) != 0 || again.String() != v.String() {
			t.Fatalf("%q: %s, then %s, %v", a, v, again, err)
		}
		if spec, err := parseSpecifier("==" + v.String()); err != nil || !spec.match(v) {
			t.Fatalf("%q does not match itself: %v", a, err)
		}
		if w, err := parseVersion(b); err == nil && v.compare(w) != -w.compare(v) {
			t.Fatalf("%q and %q: %d and %d", a, b, v.compare(w), w.compare(v))
		}
	})
}
