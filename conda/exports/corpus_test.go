package exports

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// corpusList is the list of the environment files.
const corpusList = "../../testdata/corpora/environments.txt"

// A counted file has the numbers of rows that testdata/corpus/count.py found, which has no code in
// common with hpcc.
type counted struct {
	Kind, Error                     string
	Conda, Pip, Channels, Variables int
}

// A corpusTally counts the files of one format.
type corpusTally struct {
	read, refused, conda, pip, left int
	reasons                         map[string]int // of refused files
}

// TestEnvironmentCorpus reads environment files of public repositories. It compares the numbers of
// rows with those of an independent parser, checks that the refused files are those of the list
// and that each refusal names a line, and logs a table.
func TestEnvironmentCorpus(t *testing.T) {
	dir := os.Getenv("HPCC_TEST_ENVIRONMENTS")
	if dir == "" {
		t.Skip("needs the files of testdata/corpora/environments.txt: HPCC_TEST_ENVIRONMENTS names their directory")
	}
	testenv.Need(t, "python3 with yaml (Debian: python3-yaml)", exec.Command("/usr/bin/python3", "-c", "import yaml").Run())
	list, err := os.ReadFile(corpusList)
	testenv.Check(t, err)
	counts := map[string]counted{}
	count := exec.Command("/usr/bin/python3", "testdata/corpus/count.py", dir)
	count.Stdin, count.Stderr = bytes.NewReader(list), os.Stderr
	out, err := count.Output()
	testenv.Check(t, err)
	testenv.Check(t, json.Unmarshal(out, &counts))
	table, repositories, files := map[string]*corpusTally{}, map[string]bool{}, 0
	for s := bufio.NewScanner(bytes.NewReader(list)); s.Scan(); {
		f := strings.Fields(s.Text())
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		if len(f) != 3 && (len(f) != 4 || f[3] != "refused") {
			t.Fatalf("environments.txt: cannot read the line %q", s.Text())
		}
		files++
		repositories[f[0]] = true
		name := f[0] + "/" + f[2]
		want := counts[name]
		tally := table[want.Kind]
		if tally == nil {
			tally = &corpusTally{reasons: map[string]int{}}
			table[want.Kind] = tally
		}
		t.Run(name, func(t *testing.T) { tally.compare(t, filepath.Join(dir, name), want, len(f) == 4) })
	}
	if files < 450 || len(repositories) < 60 {
		t.Errorf("environments.txt has %d files of %d repositories; want 450 of 60", files, len(repositories))
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(table)) {
		c := table[kind]
		fmt.Fprintf(&b, "%-17s %3d read, %3d refused; %5d conda rows, %5d pip rows, %4d left out\n", kind+":", c.read, c.refused, c.conda, c.pip, c.left)
		for _, r := range slices.Sorted(maps.Keys(c.reasons)) {
			fmt.Fprintf(&b, "    %4d %s\n", c.reasons[r], r)
		}
	}
	t.Logf("%d files of %d repositories\n%s", files, len(repositories), b.String())
}

// leftOut matches the notes of rows that are left out.
var leftOut = regexp.MustCompile(`:\d+: .* is left out$`)

// compare reads a file and compares it with the counts of the independent parser.
func (c *corpusTally) compare(t *testing.T, file string, want counted, refused bool) {
	e, err := ReadFile(file, ReadOptions{Subdir: "linux-64"})
	if err != nil {
		c.refused++
		c.reasons[corpusReason(err)]++
		var at *LineError
		if !errors.As(err, &at) || at.File != file || at.Line == 0 {
			t.Errorf("the refusal does not name the file and line: %v", err)
		}
		if !refused {
			t.Errorf("refused, but not in the list: %v", err)
		}
		return
	}
	c.read++
	if refused {
		t.Errorf("the list has it as refused, but it is read")
	}
	got := counted{Kind: want.Kind, Conda: len(e.Entries) + len(e.UnmetSpecs()), Channels: len(e.Channels), Variables: len(e.Variables)}
	for _, p := range e.Pip {
		if p.Within == "" {
			got.Pip++
		}
	}
	c.conda, c.pip = c.conda+got.Conda, c.pip+got.Pip
	left := 0
	for _, n := range e.Notes {
		if leftOut.MatchString(n) {
			left++
		}
	}
	c.left += left
	if !strings.HasPrefix(e.Format, want.Kind) && !(want.Kind == "list" && e.Format == "conda list -e") {
		t.Errorf("read as %s, not %s", e.Format, want.Kind)
	}
	if got.Conda+got.Pip+left != want.Conda+want.Pip || got.Conda > want.Conda || got.Pip > want.Pip || got.Channels != want.Channels || got.Variables != want.Variables {
		t.Errorf("got %+v and %d left out; want %+v", got, left, want)
	}
	for _, n := range e.Notes {
		t.Log(n)
	}
}

// corpusValues are the values in a reason that differ between files.
var corpusValues = regexp.MustCompile(`"[^"]*"|[0-9]+|\S*/\S*`)

// corpusReason returns the first reason of a refusal, with "…" for the values.
func corpusReason(err error) string {
	var at *LineError
	if errors.As(err, &at) {
		err = at.Err
	}
	first, _, _ := strings.Cut(err.Error(), "; line ")
	return corpusValues.ReplaceAllString(first, "…")
}
