package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestParams(t *testing.T) {
	p, err := ParseParams([]string{"a=x,y", "b=1..5:2", "c=-1..1"}, "", "")
	if err != nil || p.Count() != 18 {
		t.Fatalf("%d combinations, %v; want 18", p.Count(), err)
	}
	seen := map[string]bool{}
	for k := 1; k <= p.Count(); k++ {
		r := p.Row(k)
		if seen[r["a"]+r["b"]+r["c"]] = true; len(r) != 3 {
			t.Errorf("Row(%d) = %v; want 3 parameters", k, r)
		}
	}
	if r := p.Row(18); len(seen) != 18 || r["a"] != "y" || r["b"] != "5" || r["c"] != "1" {
		t.Errorf("%d distinct rows, the last %v; want 18, the last with y, 5 and 1", len(seen), r)
	}
	for _, k := range []int{-1, 0, 19} {
		if p.Row(k) != nil {
			t.Errorf("Row(%d) = %v; want nil", k, p.Row(k))
		}
	}
	for bad, want := range map[string]string{"": "not of the form", "x": "not of the form", "1x=2": "not of the form", "task=1,2": "not of the form", "x=": "is empty", "x=5..1": "is empty",
		"x=1..999999999": "more than", "x=a,,b": "is empty", "x=1..3:0": "is empty", "x=0.1..0.3": "whole numbers", "x=1..3,7": "stands alone"} {
		if _, err := ParseParams([]string{bad}, "", ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseParams(%q): %v; want %q", bad, err, want)
		}
	}
	for list, want := range map[string]string{"x=08..10": "08 09 10", "x=0..2:2": "0 2", "x=../a,b..c": "../a b..c"} {
		if p, err := ParseParams([]string{list}, "", ""); err != nil || strings.Join(p.Rows[0], " ") != want {
			t.Errorf("ParseParams(%q): %v, %v; want %s", list, p.Rows, err, want)
		}
	}
	if _, err := ParseParams([]string{"a=1..5000", "b=1..5000"}, "", ""); err == nil || !strings.Contains(err.Error(), "combinations") {
		t.Errorf("25 million combinations: %v; want an error", err)
	}
	if _, err := ParseParams([]string{"a=1", "a=2"}, "", ""); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a repeated name: %v; want an error", err)
	}
}

func TestParamsFromFile(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty.csv":  {"", "no rows"},
		"head.csv":   {"a,b\n", "no rows"},
		"ragged.csv": {"a,b\n1\n", "wrong number of fields"},
		"twice.csv":  {"a,a\n1,2\n", "appears twice"},
		"blank.csv":  {"a b\n1\n", `name "a b"`},
		"x.json":     {`{"a": 1}`, "not an array of objects"},
		"deep.json":  {`[{"a": [1]}]`, `row 1: "a" is not a string`},
		"other.json": {`[{"a": 1}, {"a": 1, "b": 2}]`, "row 2: its names differ"},
		"less.json":  {`[{"a": 1, "b": 2}, {"a": 1}]`, `row 2: "b" is not a string`},
		"bom.csv":    {"\xef\xbb\xbfa\n1\n", ""},
	} {
		file := filepath.Join(t.TempDir(), name)
		testenv.Check(t, os.WriteFile(file, []byte(c.text), 0o644))
		p, err := ParseParams(nil, file, "")
		if c.want == "" {
			if err != nil || p.Row(1)["a"] != "1" {
				t.Errorf("%s: first row %v, %v; want a=1", name, p.Row(1), err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func FuzzParams(f *testing.F) {
	f.Add("a=1,2", "b=1..4")
	f.Add("a=0..9:3", "b=x")
	f.Fuzz(func(t *testing.T, a, b string) {
		p, err := ParseParams([]string{a, b}, "", "")
		if err != nil {
			return
		}
		n := p.Count()
		if n < 1 || n > maxIndex || len(p.Row(1)) != 2 || len(p.Row(n)) != 2 || p.Row(n+1) != nil {
			t.Errorf("ParseParams(%q, %q): %d combinations, first %v, last %v", a, b, n, p.Row(1), p.Row(n))
		}
	})
}
