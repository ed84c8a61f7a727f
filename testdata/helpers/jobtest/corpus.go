package jobtest

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hpcc/job"
)

// corpusVariable is the environment variable that names a directory with the scripts of the corpus.
const corpusVariable = "HPCC_TEST_SCRIPTS"

// corpusList is the list of the scripts, relative to the directory of a package such as job/dispatch.
const corpusList = "../../testdata/corpora/scripts.txt"

// A CorpusScript is a job script of a public repository.
type CorpusScript struct {
	Name    string // OWNER/NAME/PATH
	Dialect job.Target
	Text    []byte
}

// Corpus returns the job scripts of public repositories, in the order of the list. It skips the
// test if the environment does not name a directory with them.
func Corpus(t *testing.T) []CorpusScript {
	t.Helper()
	dir := os.Getenv(corpusVariable)
	if dir == "" {
		t.Skipf("needs the scripts of testdata/corpora/scripts.txt: %s names their directory", corpusVariable)
	}
	f, err := os.Open(corpusList)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []CorpusScript
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		fields := strings.Fields(s.Text())
		if len(fields) != 4 {
			t.Fatalf("scripts.txt: cannot read the line %q", s.Text())
		}
		c := CorpusScript{Name: fields[0] + "/" + fields[2], Dialect: job.Target(fields[3])}
		if c.Text, err = os.ReadFile(filepath.Join(dir, c.Name)); err != nil {
			t.Fatalf("%v; the list wants it as of commit %s", err, fields[1])
		}
		out = append(out, c)
	}
	if len(out) < 500 {
		t.Fatalf("scripts.txt has %d scripts; want 500", len(out))
	}
	return out
}

// A reason without the values of one script, so that equal reasons of several scripts can be counted.
var values = regexp.MustCompile(`"[^"]*"|[0-9]+|\S*/\S*`)

// Reason returns an error or the explanation of a row without names and numbers.
func Reason(text string) string { return values.ReplaceAllString(text, "…") }
