package build

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

const (
	tablePage = "../docs/dockerfile.md"
	// The text after this line of the page comes from the table.
	tableMark = "<!-- The rest comes from testdata/corpora/dockerfile: make docs -->\n"
)

// TestTableDocs compares the page about Dockerfiles with the table.
func TestTableDocs(t *testing.T) {
	page, err := os.ReadFile(tablePage)
	testenv.Check(t, err)
	head, got, ok := strings.Cut(string(page), tableMark)
	if !ok {
		t.Fatalf("%s has no line %q", tablePage, tableMark)
	}
	want := tableText(readTable(t))
	if *update {
		testenv.Check(t, os.WriteFile(tablePage, []byte(head+tableMark+want), 0o644))
	} else if got != want {
		t.Errorf("%s differs from the table (-table +page); \"make docs\" updates it:\n%s", tablePage, lineDiff(want, got))
	}
}

// tableText lists the features that the table covers, and the differences of buildah.
func tableText(table []*topic) string {
	var b strings.Builder
	cases, failing, differing := 0, 0, 0
	reasons := map[string][]string{}
	rows := &strings.Builder{}
	for _, tp := range table {
		fmt.Fprintf(rows, "| [%s](../testdata/corpora/dockerfile/%s.txtar) | %d |\n", tp.title, tp.name, len(tp.cases))
		cases += len(tp.cases)
		for _, c := range tp.cases {
			if c.special["error"] != "" {
				failing++
			}
			if reason, lines := c.differs(); lines != "" {
				differing++
				reason = strings.Join(strings.Fields(reason), " ")
				reasons[reason] = append(reasons[reason], "`"+c.id()+"`")
			}
		}
	}
	fmt.Fprintf(&b, "\n## Coverage\n\n%d Dockerfiles, %d of which must fail with a given error.\n\n| topic | cases |\n| --- | --- |\n%s", cases, failing, rows)
	fmt.Fprintf(&b, "\n## Where buildah 1.28 differs\n\nbuildah differs in %d cases; in the other %d it makes the same configuration and tree, or fails too.\n\n", differing, cases-differing)
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "* %s\n  %s\n", reason, strings.Join(reasons[reason], ", "))
	}
	return b.String()
}
