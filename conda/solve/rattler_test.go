package solve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// A comparison is a spec list with the results of both solvers.
type comparison struct {
	index     *index
	specs     []string
	problem   *Problem
	packages  []*Record // of hpcc
	err       error
	theirs    rattlerResult
	confirmed rattlerResult // the result of rattler if hpcc's packages are requested, too
}

// A rattlerResult is a result of testdata/helpers/rattler/solve.mjs.
type rattlerResult struct {
	Packages []string // name=version=build; nil without a solution
	Error    string
}

// rattlerCase is a request to testdata/helpers/rattler/solve.mjs.
type rattlerCase struct {
	Specs     []string         `json:"specs"`
	Channels  []string         `json:"channels"`
	Platforms []string         `json:"platforms"`
	Virtual   []rattlerVirtual `json:"virtual"`
}

// TestRattler solves random spec lists on synthetic and real indexes, with hpcc and with rattler's
// solver. Both must choose the same builds, or explain must prove why not. rattler must also accept
// the solutions of hpcc that differ.
func TestRattler(t *testing.T) {
	testenv.Slow(t)
	testenv.NeedProgram(t, "node")
	modules := os.Getenv("HPCC_TEST_RATTLER")
	_, err := os.Stat(filepath.Join(modules, "node_modules/@conda-org/rattler/package.json"))
	testenv.Need(t, "rattler's solver for node in HPCC_TEST_RATTLER (npm ci in a copy of testdata/helpers/rattler)", err)
	root := t.TempDir()
	var all, differ []*comparison
	for _, x := range indexes(t, root) {
		for _, list := range x.lists {
			all = append(all, x.solve(t, list))
		}
	}
	for i, r := range runRattler(t, root, modules, all, false) {
		c := all[i]
		if c.theirs = r; !slices.Equal(builds(c.packages), r.Packages) {
			differ = append(differ, c)
		}
	}
	for i, r := range runRattler(t, root, modules, differ, true) {
		differ[i].confirmed = r
	}
	table := map[string]map[string]int{}
	for _, c := range all {
		if table[c.index.name] == nil {
			table[c.index.name] = map[string]int{}
		}
		table[c.index.name][c.explain(t)]++
	}
	logTable(t, table)
	if s := table["synthetic"]; s["same"] < 1000 || s["no solution"] < 300 {
		t.Errorf("%d equal solutions and %d unsolvable spec lists on synthetic indexes: too few of one kind", s["same"], s["no solution"])
	}
}

// logTable prints the number of cases by index and reason.
func logTable(t *testing.T, table map[string]map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		reasons, total := table[name], 0
		var lines []string
		for reason, n := range reasons {
			total += n
			lines = append(lines, fmt.Sprintf("%6d %s", n, reason))
		}
		slices.Sort(lines)
		slices.Reverse(lines)
		t.Logf("%s: %d spec lists\n%s", name, total, strings.Join(lines, "\n"))
	}
}

// solve solves a spec list with hpcc. It checks the solution.
func (x *index) solve(t *testing.T, list []string) *comparison {
	t.Helper()
	if x.byName == nil {
		x.byName = map[string][]*Record{}
		for _, r := range x.records {
			x.byName[r.Name] = append(x.byName[r.Name], r)
		}
	}
	c := &comparison{index: x, specs: list, problem: &Problem{Subdir: x.subdir, Wants: specs(t, list...)}}
	for _, name := range x.channels {
		c.problem.Channels = append(c.problem.Channels, rattlerHost+name)
	}
	for _, v := range x.machine() {
		c.problem.Virtual = append(c.problem.Virtual, &Record{Name: v.Name, Version: v.Version, Build: v.Build})
	}
	c.packages, c.err = gatherAndSolve(t.Context(), c.problem, func(_ context.Context, names map[string]bool) (out []*Record, err error) {
		for name := range names {
			out = append(out, x.byName[name]...)
		}
		return out, nil
	})
	var u *Unsolvable
	if c.err != nil && !errors.As(c.err, &u) {
		t.Fatalf("%s: %v", c, c.err)
	}
	if c.err == nil {
		if err := c.check(c.packages); err != nil {
			t.Errorf("%s: hpcc's solution: %v", c, err)
		}
	}
	return c
}

func (c *comparison) String() string {
	return fmt.Sprintf("%s: %q", c.index.channels[0], c.specs)
}

// check returns an error if the packages are not a solution: an unmet requirement, a package that
// nothing needs, or one that strict channel priority hides.
func (c *comparison) check(pkgs []*Record) error {
	if err := valid(c.problem, pkgs); err != nil {
		return err
	}
	for _, r := range pkgs {
		if first := c.index.byName[r.Name][0].Origin; first != r.Origin {
			return fmt.Errorf("%s is from %s, but %s has the name, too", r.Name, r.Origin, first)
		}
	}
	byName := map[string]*Record{}
	for _, r := range pkgs {
		byName[r.Name] = r
	}
	var visit func(name string)
	visit = func(name string) {
		if r := byName[name]; r != nil {
			delete(byName, name)
			for _, d := range r.Depends {
				visit(Dependency(d))
			}
		}
	}
	for _, s := range c.problem.Wants {
		visit(s.Name)
	}
	for name := range byName {
		return fmt.Errorf("nothing needs %s", name)
	}
	return nil
}

func builds(pkgs []*Record) (out []string) {
	for _, r := range pkgs {
		out = append(out, r.Name+"="+r.Version+"="+r.Build)
	}
	slices.Sort(out)
	return out
}

// runRattler solves the spec lists with rattler, with pinned together with the packages that hpcc
// chose. The packages of a result are sorted.
func runRattler(t *testing.T, root, modules string, all []*comparison, pinned bool) []rattlerResult {
	input := struct {
		Root  string        `json:"root"`
		Cases []rattlerCase `json:"cases"`
	}{root, nil}
	for _, c := range all {
		k := rattlerCase{slices.Clone(c.specs), c.index.channels, []string{c.index.subdir, "noarch"}, c.index.machine()}
		for _, r := range c.packages {
			if pinned {
				k.Specs = append(k.Specs, r.Name+" =="+r.Version+" "+r.Build)
			}
		}
		input.Cases = append(input.Cases, k)
	}
	b, err := json.Marshal(input)
	testenv.Check(t, err)
	cmd := exec.CommandContext(t.Context(), "node", "../../testdata/helpers/rattler/solve.mjs", modules)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(b), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, &stderr)
	}
	var results []rattlerResult
	testenv.Check(t, json.Unmarshal(out, &results))
	if len(results) != len(all) {
		t.Fatalf("%d results for %d cases", len(results), len(all))
	}
	for _, r := range results {
		slices.Sort(r.Packages)
	}
	return results
}
