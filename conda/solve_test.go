package conda

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A little is a record of a test: "name version build; needs, needs; constrains"
func little(t testing.TB, text string) *record {
	t.Helper()
	f := strings.Split(text+";;", ";")
	head := strings.Fields(f[0] + " 0")
	r := &record{Name: head[0], Version: head[1], Build: head[2], Subdir: "linux-64", origin: "https://one"}
	r.fn = r.Name + "-" + r.Version + "-" + r.Build + ".conda"
	for i, list := range []*[]string{&r.Depends, &r.Constrains} {
		for _, s := range strings.Split(f[i+1], "&") {
			if s = strings.TrimSpace(s); s != "" {
				*list = append(*list, s)
			}
		}
	}
	return r
}

// Random problems of a few packages: the answer is one by the rules, and there
// is none only if trying all choices finds none.
func TestSolveAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 9))
	solved, failed := 0, 0
	for n := range 4_000 {
		p, records := randomProblem(t, random)
		pkgs, err := p.solveWith(t.Context(), records)
		var u *unsolvable
		switch possible := tryAll(p, records); {
		case err == nil:
			solved++
			if bad := valid(p, pkgs); bad != nil {
				t.Fatalf("problem %d: %v\n%s", n, bad, problemText(p, records))
			}
		case !errors.As(err, &u) || possible:
			t.Fatalf("problem %d: %v, but there is an answer\n%s", n, err, problemText(p, records))
		default:
			failed++
		}
	}
	if solved < 600 || failed < 600 {
		t.Errorf("%d problems with an answer and %d without: the test sees too few of one kind", solved, failed)
	}
}

func randomProblem(t testing.TB, random *rand.Rand) (*problem, []*record) {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	names := []string{"a", "b", "c", "d", "e"}
	asked := func() string {
		return pick(names...) + " " + pick("*", "1", "2", "3", "<3", ">1", "!=2", "1|3")
	}
	var records []*record
	for _, n := range names {
		for v := range 1 + random.IntN(3) {
			r := little(t, fmt.Sprintf("%s %d", n, v+1))
			for range random.IntN(4) {
				r.Depends = append(r.Depends, asked())
			}
			if random.IntN(3) == 0 {
				r.Constrains = append(r.Constrains, asked())
			}
			records = append(records, r)
		}
	}
	p := &problem{}
	for range 1 + random.IntN(3) {
		p.wants = append(p.wants, wishes(t, asked())...)
	}
	return p, records
}

// tryAll tries all choices of one package or none of each name.
func tryAll(p *problem, records []*record) bool {
	var pkgs []*record
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

func problemText(p *problem, records []*record) string {
	var b strings.Builder
	for _, s := range p.wants {
		fmt.Fprintln(&b, "wanted:", s)
	}
	for _, r := range records {
		fmt.Fprintln(&b, r.Name, r.Version, r.Depends, r.Constrains)
	}
	return b.String()
}

// A problem that has no answer and in which choosing and going back would take
// for ever: each of many names has many versions, of which none go together.
func TestNoBlowUp(t *testing.T) {
	var records []*record
	const names, versions = 30, 30
	for n := range names {
		for v := range versions {
			text := fmt.Sprintf("n%d %d; n%d", n, v, n+1)
			if n == names-1 {
				text = fmt.Sprintf("n%d %d; x %d & y >%d", n, v, v, v)
			}
			records = append(records, little(t, text))
		}
	}
	for v := range versions {
		records = append(records, little(t, fmt.Sprintf("x %d; y %d", v, v)), little(t, fmt.Sprintf("y %d", v)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := &problem{wants: wishes(t, "n0")}
	_, err := p.solveWith(ctx, records)
	var u *unsolvable
	if !errors.As(err, &u) {
		t.Errorf("solve = %v; want no answer", err)
	}
}

func TestSolveEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&problem{wants: wishes(t, "a")}).solveWith(ctx, []*record{little(t, "a 1")}); !errors.Is(err, context.Canceled) {
		t.Errorf("solve = %v; want that it was cancelled", err)
	}
}

// Whatever an index says, there is an answer that is one, or an explanation of
// a few lines, and both come again.
func FuzzSolve(f *testing.F) {
	f.Add("a", "a 1; b >=1 & __glibc; c 2\nb 1.5 h_0\nb 2 h_1; a <1\nc 1")
	f.Add("a 1|2\nb", "a 1; b[version='>=1',build=x*]\nb 1 x; a\nb 1 y; a 9")
	f.Add("one::a", "a 1..2\na 1; a\npython 3; pip\npip 1; python")
	f.Fuzz(func(t *testing.T, wants, index string) {
		if len(wants)+len(index) > 2000 {
			return
		}
		p := &problem{subdir: "linux-64", pip: true, virtual: machine()}
		for _, text := range strings.Split(wants, "\n") {
			if s, err := parseSpec(text); err == nil {
				p.wants = append(p.wants, s)
			}
		}
		var records []*record
		for _, line := range strings.Split(index, "\n") {
			if f := strings.Fields(strings.SplitN(line, ";", 2)[0]); len(f) > 1 && nameText().MatchString(f[0]) && !strings.HasPrefix(f[0], "__") {
				records = append(records, little(t, line))
			}
		}
		pkgs, err := p.solveWith(t.Context(), records)
		again, err2 := p.solveWith(t.Context(), records)
		var u *unsolvable
		switch {
		case err == nil:
			if bad := valid(p, pkgs); bad != nil {
				t.Error(bad)
			}
			if fmt.Sprint(again) != fmt.Sprint(pkgs) {
				t.Errorf("solve = %v, then %v", pkgs, again)
			}
		case !errors.As(err, &u) || len(u.lines) == 0 || len(u.lines) > maxLines:
			t.Errorf("solve = %v", err)
		case fmt.Sprint(err) != fmt.Sprint(err2):
			t.Errorf("solve = %v, then %v", err, err2)
		}
	})
}
