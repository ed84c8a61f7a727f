package translate_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/jobtest"
)

// directive matches the directives of each dialect, independently of package dialect.
var directive = map[job.Target]*regexp.Regexp{
	"slurm":      regexp.MustCompile(`^#SBATCH([\s-].*)?$`),
	"lsf":        regexp.MustCompile(`^#BSUB([\s-].*)?$`),
	"pbs":        regexp.MustCompile(`^\s*#PBS([\s-].*)?$`),
	"gridengine": regexp.MustCompile(`^#\$\s*-`),
}

// A tally counts what the translation of the corpus from one dialect for one target became.
type tally struct {
	translated, refused, rows, lost int
	unwrapped, needs, commands      int            // scripts for pods with changed commands, with paths of the host, and with refused commands
	reasons                         map[string]int // of refused scripts and rows
}

// TestCorpus translates job scripts of public repositories for all targets, and logs a table. Each
// translation either fails with a reason that names the file, or has rows with all words of each
// directive, and a script that bash can parse.
func TestCorpus(t *testing.T) {
	scripts := jobtest.Corpus(t)
	table := map[string]*tally{}
	for _, s := range scripts {
		t.Run(s.Name, func(t *testing.T) {
			for _, to := range jobtest.Targets {
				key := fmt.Sprintf("%-10s → %-10s", s.Dialect, to)
				if table[key] == nil {
					table[key] = &tally{reasons: map[string]int{}}
				}
				translateCorpus(t, s, to, table[key])
			}
		})
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(table)) {
		c := table[key]
		fmt.Fprintf(&b, "%s: %d translated, %d refused; %d rows, %d refused; pods: %d with changed commands, %d need a volume, %d with refused commands%s\n",
			key, c.translated, c.refused, c.rows, c.lost, c.unwrapped, c.needs, c.commands, c.top(8))
	}
	t.Logf("%d scripts\n%s", len(scripts), b.String())
}

// top lists the most frequent reasons.
func (c *tally) top(n int) string {
	list := slices.SortedFunc(maps.Keys(c.reasons), func(a, b string) int {
		return cmp.Or(c.reasons[b]-c.reasons[a], cmp.Compare(a, b))
	})
	var b strings.Builder
	for _, r := range list[:min(n, len(list))] {
		fmt.Fprintf(&b, "\n    %4d %s", c.reasons[r], r)
	}
	return b.String()
}

func translateCorpus(t *testing.T, s jobtest.CorpusScript, to job.Target, count *tally) {
	source := translate.Source{Name: s.Name, Text: s.Text, Dir: "/home/u/job", Home: "/home/u", User: "u",
		Open: func(string) ([]byte, error) { return nil, os.ErrNotExist }}
	c := &translateCase{source: source}
	tr, script, err := c.translate(to)
	if err != nil && strings.Contains(err.Error(), "directives of several schedulers") {
		c.source.Dialect = s.Dialect
		tr, script, err = c.translate(to)
	}
	if tr != nil {
		count.rows += len(tr.Rows)
		for _, r := range tr.Rows {
			if r.Fate == "refused" {
				count.lost++
				count.reasons[jobtest.Reason(r.How)]++
			}
		}
		checkRows(t, s, tr)
	}
	if err != nil {
		count.refused++
		count.reasons["ERROR "+jobtest.Reason(err.Error())]++
		if tr == nil && !strings.Contains(err.Error(), s.Name) {
			t.Errorf("for %s: the error does not name the script: %v", to, err)
		}
		return
	}
	count.translated++
	if tr.To.Pods() {
		count.podBody(t, s, tr)
	}
	if tr.Dialect != s.Dialect {
		t.Errorf("for %s: read as %s, not %s", to, tr.Dialect, s.Dialect)
	}
	if err := parses(t, tr, script); err != nil {
		t.Errorf("for %s: bash refuses the script: %v\n%s", to, err, script)
	}
}

// podBody counts what a script needs in a pod, and checks that its lines keep their numbers.
func (c *tally) podBody(t *testing.T, s jobtest.CorpusScript, tr *translate.Translation) {
	t.Helper()
	has := func(f field.Fate, how ...string) int {
		if slices.ContainsFunc(tr.Rows, func(r *field.Row) bool {
			return r.Fate == f && !directive[tr.Dialect].MatchString(r.Text) && slices.ContainsFunc(how, func(h string) bool { return strings.Contains(r.How, h) })
		}) {
			return 1
		}
		return 0
	}
	c.unwrapped += has(field.Changed, "it starts one process", "the pod runs it")
	c.needs += has("needs a volume", "")
	c.commands += has(field.Refused, " has srun", " has jsrun", "images do not have", "the image's own program", "pods have no container program", "commands in variables", "pods cannot pull", "hpcc does not know what")
	if tr.Job.Script == nil {
		return
	}
	want := strings.Count(strings.TrimSuffix(strings.ReplaceAll(string(s.Text), "\r\n", "\n"), "\n"), "\n") + 1
	if got := strings.Count(tr.Job.Script.Body, "\n"); got != want {
		t.Errorf("for %s: the body has %d lines, the script %d", tr.To, got, want)
	}
}

// parses checks with bash that a script, or the script in a manifest, can be parsed.
func parses(t *testing.T, tr *translate.Translation, script string) error {
	if tr.Job.Interactive {
		return nil
	}
	if tr.To.Pods() {
		script = jobtest.Unexpanded(podBody(t, tr.To, script))
	}
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

// checkRows checks that the rows of each directive have all of its words, once and in order.
func checkRows(t *testing.T, s jobtest.CorpusScript, tr *translate.Translation) {
	t.Helper()
	for i, line := range strings.Split(strings.ReplaceAll(string(s.Text), "\r\n", "\n"), "\n") {
		if !directive[tr.Dialect].MatchString(line) {
			continue
		}
		var got []string
		for _, r := range tr.Rows {
			if r.Line == i+1 && !strings.HasPrefix(r.Text, "$") && !strings.HasPrefix(r.Text, "(") {
				got = append(got, r.Text)
			}
		}
		prefix := regexp.MustCompile(`#(SBATCH|BSUB|PBS|\$)`)
		normal := func(s string) string { return strings.Join(strings.Fields(prefix.ReplaceAllString(s, "")), " ") }
		have, want := normal(strings.Join(got, " ")), normal(line)
		if have != want && !strings.HasPrefix(want, have+" #") {
			t.Errorf("%s:%d: the directive %q has the rows %q for %s", s.Name, i+1, line, got, tr.To)
		}
	}
}
