package solve

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"hpcc/testdata/helpers/testenv"
)

// readTestdata reads a file that testdata/main2021.py wrote.
func readTestdata(t testing.TB, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/main2021-" + name + ".json.zst")
	testenv.Check(t, err)
	z, err := zstd.NewReader(bytes.NewReader(b))
	testenv.Check(t, err)
	defer z.Close()
	testenv.Check(t, json.NewDecoder(z).Decode(into))
}

// main2021 returns Anaconda's channel "main" of September 2021, for one platform.
func main2021(t testing.TB, subdir string) Fetcher {
	t.Helper()
	byName := map[string][]*Record{}
	for _, sub := range []string{subdir, "noarch"} {
		index := map[string]map[string]*Record{}
		readTestdata(t, sub, &index)
		for _, kind := range []string{"packages", "packages.conda"} {
			for fn, r := range index[kind] {
				r.FileName, r.Subdir, r.Origin = fn, sub, "https://repo.anaconda.com/pkgs/main"
				byName[r.Name] = append(byName[r.Name], r)
			}
		}
	}
	for _, rs := range byName {
		slices.SortFunc(rs, func(a, b *Record) int { return strings.Compare(a.Subdir+a.FileName, b.Subdir+b.FileName) })
	}
	return func(_ context.Context, names map[string]bool) (out []*Record, err error) {
		for n := range names {
			out = append(out, byName[n]...)
		}
		return out, nil
	}
}

// machine returns the virtual packages of a machine of 2021.
func machine() []*Record {
	return []*Record{{Name: "__glibc", Version: "2.28", Build: "0"}, {Name: "__linux", Version: "5.10", Build: "0"}, {Name: "__unix", Version: "0", Build: "0"}}
}

// specs parses the specs of a test.
func specs(t testing.TB, texts ...string) (out []*Spec) {
	t.Helper()
	for _, text := range texts {
		s, err := ParseSpec(text)
		testenv.Check(t, err)
		out = append(out, s)
	}
	return out
}

// valid returns an error for an invalid solution: an unmet spec or requirement, or two
// packages of one name. It uses Spec, but no part of the solver.
func valid(p *Problem, pkgs []*Record) error {
	have := map[string]*Record{}
	for _, r := range slices.Concat(pkgs, p.Virtual) {
		if have[r.Name] != nil {
			return fmt.Errorf("duplicate package %s", r.Name)
		}
		have[r.Name] = r
	}
	met := func(s *Spec, need bool) bool {
		r := have[s.Name]
		if r == nil {
			return !need
		}
		v, err := parseVersion(r.Version)
		return err == nil && s.matches(r, v)
	}
	for _, s := range p.Wants {
		if !met(s, true) {
			return fmt.Errorf("unmet spec %s", s)
		}
	}
	for _, r := range pkgs {
		for i, text := range slices.Concat(r.Depends, r.Constrains) {
			s, err := ParseSpec(text)
			if err != nil || !met(s, i < len(r.Depends)) {
				return fmt.Errorf("%s-%s-%s: unmet requirement %s", r.Name, r.Version, r.Build, text)
			}
		}
	}
	return nil
}

// An answer is a problem with the solutions of other tools; nil if a tool found none.
type answer struct {
	Subdir                string
	Specs                 []string
	Conda, Mamba, Rattler []string
}

// versionsOf converts name=version=build to name=version, sorted.
func versionsOf(list []string) (out []string) {
	for _, s := range list {
		f := strings.SplitN(s, "=", 3)
		out = append(out, f[0]+"="+f[1])
	}
	slices.Sort(out)
	return out
}

// missing returns the elements of a that b lacks.
func missing(a, b []string) (out []string) {
	for _, s := range a {
		if !slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	return out
}

// TestAnswers compares the solutions of recorded problems with conda's, build by build, and
// checks that the same problems have none. It compares names and versions with those of mamba
// and rattler, except for known differences: rattler does not add pip, and both can choose a
// later build of pillow with other dependencies.
func TestAnswers(t *testing.T) {
	var cases []answer
	readTestdata(t, "answers", &cases)
	if len(cases) != 14 {
		t.Fatalf("%d cases; want 14", len(cases))
	}
	for _, c := range cases {
		name := c.Subdir + " " + strings.Join(c.Specs, " ")
		p := &Problem{Subdir: c.Subdir, Pip: true, Wants: specs(t, c.Specs...), Virtual: machine()}
		pkgs, err := gatherAndSolve(t.Context(), p, main2021(t, c.Subdir))
		if (err == nil) != (c.Conda != nil) || (err == nil) != (c.Mamba != nil) || (err == nil) != (c.Rattler != nil) {
			t.Errorf("%s: Solve = %v; conda has %d packages", name, err, len(c.Conda))
			continue
		}
		if err != nil {
			continue
		}
		if err := valid(p, pkgs); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, r := range pkgs {
			got = append(got, r.Name+"="+r.Version+"="+r.Build)
		}
		if more, less := missing(got, c.Conda), missing(c.Conda, got); len(more)+len(less) > 0 {
			t.Errorf("%s: only Solve has %v, only conda has %v", name, more, less)
		}
		for tool, want := range map[string][]string{"mamba": c.Mamba, "rattler": c.Rattler} {
			more := missing(versionsOf(got), versionsOf(want))
			less := missing(versionsOf(want), versionsOf(got))
			more = slices.DeleteFunc(more, func(s string) bool {
				n, _, _ := strings.Cut(s, "=")
				return tool == "rattler" && slices.Contains([]string{"pip", "setuptools", "wheel", "certifi"}, n)
			})
			if known := pillow[tool+" "+name]; fmt.Sprint(more, less) != cmp.Or(known, "[] []") {
				t.Errorf("%s: Solve and %s differ: only Solve has %v, only the other has %v; known differences: %q", name, tool, more, less, known)
			}
		}
	}
}

// TestPackageCount compares the builds of pillow with those that conda 23.9 chose. The later
// build needs libwebp and giflib, the earlier one openjpeg: the later one adds fewer packages
// if libwebp is installed anyway.
func TestPackageCount(t *testing.T) {
	for _, c := range []struct {
		specs, build string
		count        int
	}{
		{"python=3.8 pillow libwebp", "py38h5aabda8_0", 32},
		{"python=3.8 libxscrnsaver-cos6-x86_64 glue-core gtk-update-icon-cache-amzn2-aarch64", "py38h2c7a002_0", 165},
	} {
		p := &Problem{Subdir: "linux-64", Pip: true, Wants: specs(t, strings.Fields(c.specs)...), Virtual: machine()}
		pkgs, err := gatherAndSolve(t.Context(), p, main2021(t, "linux-64"))
		testenv.Check(t, err)
		for _, r := range pkgs {
			if r.Name == "pillow" && r.Build != c.build {
				t.Errorf("%s: pillow %s; conda chose %s", c.specs, r.Build, c.build)
			}
		}
		if err := valid(p, pkgs); err != nil || len(pkgs) != c.count {
			t.Errorf("%s: %d packages, %v; conda chose %d", c.specs, len(pkgs), err, c.count)
		}
	}
}

// pillow lists the known differences: mamba and rattler choose the later of two builds of
// pillow, while conda and Solve choose the one with fewer dependencies.
var pillow = map[string]string{
	"mamba linux-64 dask numba":                                       "[openjpeg=2.4.0] [giflib=5.2.1 libwebp=1.2.0]",
	"rattler linux-64 dask numba":                                     "[openjpeg=2.4.0] [giflib=5.2.1 libwebp=1.2.0]",
	"rattler linux-ppc64le python=3.8 pandas scikit-learn matplotlib": "[openjpeg=2.4.0] [giflib=5.2.1 libwebp=1.2.0]",
}

// gatherAndSolve fetches the records of a problem and solves it.
func gatherAndSolve(ctx context.Context, p *Problem, fetch Fetcher) ([]*Record, error) {
	records, err := p.Gather(ctx, fetch)
	if err != nil {
		return nil, err
	}
	return p.Solve(ctx, records)
}
