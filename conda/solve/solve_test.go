package solve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// parseRecord parses a record: "name version build; dependency & dependency; constrains".
func parseRecord(t testing.TB, text string) *Record {
	t.Helper()
	f := strings.Split(text+";;", ";")
	head := strings.Fields(f[0] + " 0")
	r := &Record{Name: head[0], Version: head[1], Build: head[2], Subdir: "linux-64", Origin: "https://one"}
	r.FileName = r.Name + "-" + r.Version + "-" + r.Build + ".conda"
	for i, list := range []*[]string{&r.Depends, &r.Constrains} {
		for _, s := range strings.Split(f[i+1], "&") {
			if s = strings.TrimSpace(s); s != "" {
				*list = append(*list, s)
			}
		}
	}
	return r
}

// TestSolveAgainstBruteForce solves small random problems. Each solution must be valid. For a
// problem without a solution, no combination of packages may be valid.
func TestSolveAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 9))
	solved, failed := 0, 0
	for n := range 4_000 {
		p, records := randomProblem(t, random)
		pkgs, err := p.Solve(t.Context(), records)
		var u *Unsolvable
		switch possible := tryAll(p, records); {
		case err == nil:
			solved++
			if bad := valid(p, pkgs); bad != nil {
				t.Fatalf("problem %d: %v\n%s", n, bad, problemText(p, records))
			}
		case !errors.As(err, &u) || possible:
			t.Fatalf("problem %d: %v, but there is a solution\n%s", n, err, problemText(p, records))
		default:
			failed++
		}
	}
	if solved < 600 || failed < 600 {
		t.Errorf("%d problems with a solution and %d without: too few of one kind", solved, failed)
	}
}

func randomProblem(t testing.TB, random *rand.Rand) (*Problem, []*Record) {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	names := []string{"a", "b", "c", "d", "e"}
	randomSpec := func() string {
		return pick(names...) + " " + pick("*", "1", "2", "3", "<3", ">1", "!=2", "1|3")
	}
	var records []*Record
	for _, n := range names {
		for v := range 1 + random.IntN(3) {
			r := parseRecord(t, fmt.Sprintf("%s %d", n, v+1))
			for range random.IntN(4) {
				r.Depends = append(r.Depends, randomSpec())
			}
			if random.IntN(3) == 0 {
				r.Constrains = append(r.Constrains, randomSpec())
			}
			records = append(records, r)
		}
	}
	p := &Problem{}
	for range 1 + random.IntN(3) {
		p.Wants = append(p.Wants, specs(t, randomSpec())...)
	}
	return p, records
}

// tryAll reports whether any combination of at most one package per name is a solution.
func tryAll(p *Problem, records []*Record) bool {
	var pkgs []*Record
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(records) {
			return valid(p, pkgs) == nil
		}
		end := i
		for end < len(records) && records[end].Name == records[i].Name {
			end++
		}
		for _, r := range records[i:end] {
			pkgs = append(pkgs, r)
			if try(end) {
				return true
			}
			pkgs = pkgs[:len(pkgs)-1]
		}
		return try(end)
	}
	return try(0)
}

func problemText(p *Problem, records []*Record) string {
	var b strings.Builder
	for _, s := range p.Wants {
		fmt.Fprintln(&b, "wanted:", s)
	}
	for _, r := range records {
		fmt.Fprintln(&b, r.Name, r.Version, r.Depends, r.Constrains)
	}
	return b.String()
}

// TestNoBlowUp solves a problem without a solution that plain backtracking could not finish:
// each of many names has many versions, all of which conflict.
func TestNoBlowUp(t *testing.T) {
	var records []*Record
	const names, versions = 30, 30
	for n := range names {
		for v := range versions {
			text := fmt.Sprintf("n%d %d; n%d", n, v, n+1)
			if n == names-1 {
				text = fmt.Sprintf("n%d %d; x %d & y >%d", n, v, v, v)
			}
			records = append(records, parseRecord(t, text))
		}
	}
	for v := range versions {
		records = append(records, parseRecord(t, fmt.Sprintf("x %d; y %d", v, v)), parseRecord(t, fmt.Sprintf("y %d", v)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := &Problem{Wants: specs(t, "n0")}
	_, err := p.Solve(ctx, records)
	var u *Unsolvable
	if !errors.As(err, &u) {
		t.Errorf("Solve = %v; want an Unsolvable", err)
	}
}

func TestSolveEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Problem{Wants: specs(t, "a")}).Solve(ctx, []*Record{parseRecord(t, "a 1")}); !errors.Is(err, context.Canceled) {
		t.Errorf("Solve = %v; want context.Canceled", err)
	}
}

// TestPreference checks each rule of preference.
func TestPreference(t *testing.T) {
	in := func(channel, text string) *Record {
		r := parseRecord(t, text)
		r.Origin = "https://" + channel
		return r
	}
	dated := func(text string, number int, timestamp int64, features ...string) *Record {
		r := parseRecord(t, text)
		r.BuildNumber, r.Timestamp, r.TrackFeatures = number, timestamp, features
		return r
	}
	old := parseRecord(t, "a 1 x")
	old.FileName = "a-1-x.tar.bz2"
	for _, c := range []struct {
		name    string
		p       Problem
		records []*Record
		want    string
	}{
		{"version", Problem{}, []*Record{parseRecord(t, "a 1.9"), parseRecord(t, "a 1.10"), parseRecord(t, "a 1.10rc1")}, "a=1.10=0"},
		{"first channel, strict", Problem{}, []*Record{in("one", "a 1"), in("two", "a 2")}, "a=1=0"},
		{"first channel, flexible", Problem{Flexible: true}, []*Record{in("one", "a 1"), in("two", "a 2")}, "a=1=0"},
		{"later channel, flexible", Problem{Flexible: true, Wants: specs(t, "a >1")}, []*Record{in("one", "a 1"), in("two", "a 2")}, "a=2=0"},
		{"channel of the export", Problem{From: map[string]string{"a": "two"}}, []*Record{in("one", "a 1"), in("two", "a 2")}, "a=2=0"},
		{"channel in the spec", Problem{Wants: specs(t, "two::a")}, []*Record{in("one", "a 1"), in("two", "a 2")}, "a=2=0"},
		{"build number before the date", Problem{}, []*Record{dated("a 1 x", 1, 5), dated("a 1 y", 0, 9)}, "a=1=x"},
		{"date", Problem{}, []*Record{dated("a 1 x", 1, 5), dated("a 1 y", 1, 9)}, "a=1=y"},
		{"no features", Problem{}, []*Record{dated("a 2 x", 0, 0, "slow"), dated("a 1 y", 0, 0)}, "a=1=y"},
		{"higher dependency before the date", Problem{}, []*Record{dated("a 1 x; b 1", 0, 9), dated("a 1 y; b 2", 0, 5), parseRecord(t, "b 1"), parseRecord(t, "b 2")}, "a=1=y b=2=0"},
		{"fewer packages before the date", Problem{}, []*Record{dated("a 1 x; b", 0, 9), dated("a 1 y; c", 0, 5), parseRecord(t, "b 1; d"), parseRecord(t, "c 1"), parseRecord(t, "d 1")}, "a=1=y c=1=0"},
		{"newer dependencies before fewer packages", Problem{}, []*Record{dated("a 1 x; b <2", 0, 9), dated("a 1 y; c", 0, 5), parseRecord(t, "b 1"), parseRecord(t, "b 2"), parseRecord(t, "c 1; d"), parseRecord(t, "d 1")}, "a=1=y c=1=0 d=1=0"},
		{"a package that is wanted anyway does not count", Problem{Wants: specs(t, "a", "c")}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; c", 0, 9), parseRecord(t, "c 1")}, "a=1=y c=1=0"},
		{"a package that another needs does not count", Problem{Wants: specs(t, "a", "b")}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; d", 0, 9), parseRecord(t, "b 1; c"), parseRecord(t, "c 1; d"), parseRecord(t, "d 1; a")}, "a=1=y b=1=0 c=1=0 d=1=0"},
		{"an optional package does not count", Problem{Optional: []string{"c"}}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; c", 0, 9), parseRecord(t, "c 1")}, "a=1=y c=1=0"},
		{"pip of python does not count", Problem{Pip: true, Wants: specs(t, "a", "python")}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; pip", 0, 9), parseRecord(t, "python 3"), parseRecord(t, "pip 1; python")}, "a=1=y pip=1=0 python=3=0"},
		{"a virtual package does not count", Problem{Virtual: machine()}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; __glibc >=2.17", 0, 9)}, "a=1=y"},
		{"a package that only its own dependencies need counts", Problem{}, []*Record{dated("a 1 x", 0, 5), dated("a 1 y; c", 0, 9), parseRecord(t, "c 1; d"), parseRecord(t, "d 1; a & c")}, "a=1=x"},
		{"a package that only another version needs counts", Problem{Wants: specs(t, "a", "p")}, []*Record{dated("a 1 x; d", 0, 5), dated("a 1 y; c & g", 0, 9), parseRecord(t, "p 1; q; q <2"), parseRecord(t, "q 2; c"), parseRecord(t, "q 1"), parseRecord(t, "c 1"), parseRecord(t, "d 1"), parseRecord(t, "g 1")}, "a=1=x d=1=0 p=1=0 q=1=0"},
		{"a package that only replaceable builds need counts", Problem{Wants: specs(t, "a", "b")}, []*Record{dated("a 1 x; c", 0, 9), dated("a 1 y", 0, 5), dated("b 1 x; c", 0, 9), dated("b 1 y", 0, 5), parseRecord(t, "c 1")}, "a=1=y b=1=y"},
		{"a package that the machine cannot run does not count", Problem{Virtual: machine()}, []*Record{dated("a 1 x; b", 0, 5), dated("a 1 y; c", 0, 9), parseRecord(t, "b 1"), parseRecord(t, "c 2; __glibc >=2.34 & d"), parseRecord(t, "c 1"), parseRecord(t, "d 1")}, "a=1=y c=1=0"},
		{"a dependency that the machine cannot run", Problem{Virtual: machine()}, []*Record{dated("a 1 x; c <2", 0, 9), dated("a 1 y; c", 0, 5), parseRecord(t, "c 2; __cuda"), parseRecord(t, "c 1")}, "a=1=x c=1=0"},
		{"date in seconds", Problem{}, []*Record{dated("a 1 x", 0, 1_600_000_000), dated("a 1 y", 0, 1_500_000_000_000)}, "a=1=x"},
		{"the newer archive", Problem{}, []*Record{old, parseRecord(t, "a 1 x")}, "a=1=x .conda"},
		{"the first request", Problem{Wants: specs(t, "a", "b")}, []*Record{parseRecord(t, "a 1"), parseRecord(t, "a 2; b 1"), parseRecord(t, "b 1"), parseRecord(t, "b 2")}, "a=2=0 b=1=0"},
		{"the second request", Problem{Wants: specs(t, "b", "a")}, []*Record{parseRecord(t, "a 1"), parseRecord(t, "a 2; b 1"), parseRecord(t, "b 1"), parseRecord(t, "b 2")}, "a=1=0 b=2=0"},
		{"kept", Problem{Keep: map[string]Kept{"a": {Version: "1.2"}}}, []*Record{parseRecord(t, "a 1.3"), parseRecord(t, "a 1.2"), parseRecord(t, "a 1.1")}, "a=1.2=0"},
		{"kept build", Problem{Keep: map[string]Kept{"a": {Version: "1", Build: "x"}}}, []*Record{dated("a 1 x", 0, 0), dated("a 1 y", 1, 0)}, "a=1=x"},
		{"build for the kept python", Problem{Keep: map[string]Kept{"a": {Version: "1", Build: "z", Python: "3.9"}}}, []*Record{dated("a 1 py39_0", 0, 0), dated("a 1 py310_0", 1, 0)}, "a=1=py39_0"},
		{"nearest, same line", Problem{Keep: map[string]Kept{"a": {Version: "1.2.5"}}}, []*Record{parseRecord(t, "a 2.0"), parseRecord(t, "a 1.3"), parseRecord(t, "a 1.2.1"), parseRecord(t, "a 1.1")}, "a=1.2.1=0"},
		{"nearest, by distance", Problem{Keep: map[string]Kept{"a": {Version: "1.5"}}}, []*Record{parseRecord(t, "a 2.0"), parseRecord(t, "a 1.8"), parseRecord(t, "a 1.4"), parseRecord(t, "a 1.1")}, "a=1.4=0"},
		{"nearest, the higher", Problem{Keep: map[string]Kept{"a": {Version: "1.5"}}}, []*Record{parseRecord(t, "a 1.4"), parseRecord(t, "a 1.6")}, "a=1.6=0"},
		{"pip with python", Problem{Pip: true, Wants: specs(t, "python")}, []*Record{parseRecord(t, "python 3"), parseRecord(t, "pip 1; python")}, "pip=1=0 python=3=0"},
		{"no pip with an export's python", Problem{Wants: specs(t, "python")}, []*Record{parseRecord(t, "python 3"), parseRecord(t, "pip 1; python")}, "python=3=0"},
		{"a limit of a dependency", Problem{Limits: specs(t, "b <2", "c <2")}, []*Record{parseRecord(t, "a 1; b"), parseRecord(t, "b 1"), parseRecord(t, "b 2"), parseRecord(t, "c 1")}, "a=1=0 b=1=0"},
		{"optional packages, if they fit", Problem{Wants: specs(t, "a"), Optional: []string{"b", "c"}}, []*Record{parseRecord(t, "a 1;;b >1"), parseRecord(t, "b 1"), parseRecord(t, "c 1")}, "a=1=0 c=1=0"},
	} {
		if c.p.Wants == nil {
			c.p.Wants = specs(t, "a")
		}
		pkgs, err := c.p.Solve(t.Context(), c.records)
		var got []string
		for _, r := range pkgs {
			text := r.Name + "=" + r.Version + "=" + r.Build
			if c.name == "the newer archive" {
				text += " " + filepath.Ext(r.FileName)
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: Solve = %q, %v; want %q", c.name, s, err, c.want)
		}
	}
}

// FuzzSolve solves problems from any index: the result is a valid solution or a short
// explanation, and a second run gives the same.
func FuzzSolve(f *testing.F) {
	f.Add("a", "a 1; b >=1 & __glibc; c 2\nb 1.5 h_0\nb 2 h_1; a <1\nc 1")
	f.Add("a 1|2\nb", "a 1; b[version='>=1',build=x*]\nb 1 x; a\nb 1 y; a 9")
	f.Add("one::a", "a 1..2\na 1; a\npython 3; pip\npip 1; python")
	f.Fuzz(func(t *testing.T, wants, index string) {
		if len(wants)+len(index) > 2000 {
			return
		}
		p := &Problem{Subdir: "linux-64", Pip: true, Virtual: machine()}
		for _, text := range strings.Split(wants, "\n") {
			if s, err := ParseSpec(text); err == nil {
				p.Wants = append(p.Wants, s)
			}
		}
		var records []*Record
		for _, line := range strings.Split(index, "\n") {
			if f := strings.Fields(strings.SplitN(line, ";", 2)[0]); len(f) > 1 && IsName(f[0]) && !strings.HasPrefix(f[0], "__") {
				records = append(records, parseRecord(t, line))
			}
		}
		pkgs, err := p.Solve(t.Context(), records)
		again, err2 := p.Solve(t.Context(), records)
		var u *Unsolvable
		switch {
		case err == nil:
			if bad := valid(p, pkgs); bad != nil {
				t.Error(bad)
			}
			if fmt.Sprint(again) != fmt.Sprint(pkgs) {
				t.Errorf("Solve = %v, then %v", pkgs, again)
			}
		case !errors.As(err, &u) || len(u.lines) == 0 || len(u.lines) > maxLines:
			t.Errorf("Solve = %v; want an Unsolvable of 1 to %d lines", err, maxLines)
		case fmt.Sprint(err) != fmt.Sprint(err2):
			t.Errorf("Solve = %v, then %v", err, err2)
		}
	})
}
