package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"hpcc/front"
	"hpcc/testdata/helpers/testenv"
)

// TestEffectsPage checks that docs/options.md is the table effects, and that each cell without text is
// that of a way without such an option.
func TestEffectsPage(t *testing.T) {
	const file = "../../docs/options.md"
	for i := range ways {
		w, counts := &ways[i], map[string]int{}
		for k := range effects {
			if e := &effects[k]; e.concerns(w) {
				verdict := e.cell(w).verdict
				counts[verdict]++
				if verdict == "none" && w.hasAll(e.names()) {
					t.Errorf("%s has %q: add a cell for it to the row %q", w.name, e.names(), e.option)
				}
			}
		}
		t.Logf("%s: %d cells as in the row, %d always, %d with other facts, %d refused, %d notes, %d not tested, %d without such an option",
			w.name, counts[""], counts["always"], counts["differs"], counts["refused"], counts["note"], counts["untested"], counts["none"])
	}
	got := optionsPage()
	if *update {
		testenv.Check(t, os.WriteFile(file, []byte(got), 0o644))
	}
	if want, err := os.ReadFile(file); err != nil || got != string(want) {
		t.Errorf("%s does not match effects (%v); run \"make docs\"", file, err)
	}
}

// withoutRow are the options of run and submit that effects does not have, with the reason.
var withoutRow = map[string]string{
	"dry-run explain json report strict wait":                      "they print, and the program does not see them",
	"to on from dialect workflow parameter artifact store":         "they select the target and what it runs; the scripts job_*, kube_argo*",
	"context server token-file ca-file insecure-skip-verify":       "they select a cluster",
	"pull pull-secret node-label gpu-type port scratch":            "the cluster sees them, not the program; TestOptionsOnTargets",
	"retry retry-on retry-mem retry-time signal backfill time-min": "they decide when tasks start and end; the scripts job_*, nodes_*",
	"interactive debug tensorboard mpi join-pid":                   "they need a terminal, a library or another program; the scripts job_*, run_*",
	"tasks-per-node": "as --tasks",
}

// TestEffectsRows checks that each option of run and submit has a row in effects, or a reason in withoutRow.
func TestEffectsRows(t *testing.T) {
	has := map[string]bool{}
	for i := range effects {
		for _, name := range effects[i].names() {
			has[name] = true
		}
	}
	for names := range withoutRow {
		for name := range strings.FieldsSeq(names) {
			if has["--"+name] {
				t.Errorf("--%s has a row in effects; remove it from withoutRow", name)
			}
			has["--"+name] = true
		}
	}
	for _, f := range slices.Concat(runCommand().Flags, submitCommand().Flags) {
		v, ok := f.(cli.VisibleFlag)
		if name := f.Names()[0]; (!ok || v.IsVisible()) && !has["--"+name] {
			t.Errorf("--%s has no row in effects; add one, or a reason in withoutRow", name)
		}
	}
}

// concerns reports whether a row has a cell for a way: some are about jobs only, or about one program.
func (e *effect) concerns(w *way) bool {
	_, own := e.ways[w.column()]
	return own || (e.jobs && w.takes == "job") || (!e.jobs && e.want != "")
}

// names returns the long names of the options of a row, or none if it is not about options.
func (e *effect) names() (list []string) {
	for word := range strings.FieldsSeq(cmp.Or(e.flags, e.option)) {
		name, _, _ := strings.Cut(word, "=")
		if !strings.HasPrefix(name, "-") {
			continue
		}
		for _, f := range submitCommand().Flags {
			if slices.Contains(f.Names(), strings.TrimLeft(name, "-")) {
				name = "--" + f.Names()[0]
			}
		}
		list = append(list, name)
	}
	return list
}

// hasAll reports whether a way has all options, by the table of the program that reads them.
func (w *way) hasAll(options []string) bool {
	return !slices.ContainsFunc(options, func(o string) bool { return !w.has(o) })
}

func (w *way) has(option string) bool {
	var flags []cli.Flag
	switch {
	case w.takes == "run":
		flags = runCommand().Flags
	case w.takes == "job":
		flags = submitCommand().Flags
	case w.name == "wrap":
		flags = wrapCommand().Flags
	case w.name == "oci":
		flags = unpackCommand().Flags // of the bundle
	default:
		var line []front.Word
		for _, text := range strings.Fields(w.title + " " + option) {
			line = append(line, front.Word{Text: text})
		}
		_, why := front.Parse(line[0].Text, line)
		return !strings.Contains(why, "does not know")
	}
	return slices.ContainsFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), option[2:]) })
}

// optionsHead is the text of docs/options.md before its tables.
const optionsHead = `# Options: one meaning everywhere

    hpcc run -e MODE=fast --hostname lab sci -- python main.py

An option has one meaning, however you start the program, or it is refused where it cannot have its
effect. ` + "`make docs`" + ` writes this page from the table of ` + "`TestEffects`" + `, which runs each cell: a probe in
the container reports what it sees, and the test compares that with the meaning, and with a run
without the option.

In the tables, *yes* is the meaning of the row, and *always* that it holds without the option, too.
*Other* has what the container sees instead. A front has the spelling of its program. *–* means that
there is no such option, *not tested* has the reason.
`

// optionsPage writes effects as Markdown.
func optionsPage() string {
	b := &strings.Builder{}
	b.WriteString(optionsHead)
	var fronts, batch []*way
	for i := range ways {
		switch w := &ways[i]; {
		case w.title == "":
		case w.takes == "job":
			batch = append(batch, w)
		default:
			fronts = append(fronts, w)
		}
	}
	optionsTable(b, "Programs in an image", append(fronts, batch...), func(e *effect) bool { return e.want != "" && !e.jobs })
	optionsTable(b, "Jobs", batch, func(e *effect) bool { return e.jobs })
	optionsTable(b, "Options of one program", nil, func(e *effect) bool { return e.want == "" && !e.jobs })
	return b.String()
}

// optionsTable writes the rows that match, and notes for the cells that need one. Without columns, each row has the
// cell of one way.
func optionsTable(b *strings.Builder, title string, columns []*way, match func(*effect) bool) {
	fmt.Fprintf(b, "\n## %s\n\n| option | meaning |", title)
	for _, w := range columns {
		fmt.Fprintf(b, " %s |", w.title)
	}
	if columns == nil {
		b.WriteString(" tested as |")
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", max(len(columns), 1)+2) + "\n")
	var notes []string
	for i := range effects {
		e := &effects[i]
		if !match(e) {
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s |", e.option, e.means)
		cells := columns
		for i := range ways {
			if _, own := e.ways[ways[i].name]; own && columns == nil {
				cells = []*way{&ways[i]}
			}
		}
		for _, w := range cells {
			text, note := e.cell(w).markdown(e)
			if note != "" && !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
			if note != "" {
				text += fmt.Sprintf(" [%d]", slices.Index(notes, note)+1)
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString("\n")
	}
	for i, n := range notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%d. %s\n", i+1, n)
	}
}

// markdown returns the text of a cell and its note.
func (c outcome) markdown(e *effect) (text, note string) {
	spelled := "yes"
	switch flags := strings.NewReplacer("D/", "/", "C/", "").Replace(c.flags); {
	case strings.HasPrefix(flags, "{"):
		spelled = "config.json"
	case flags != "" && c.flags != e.flags:
		spelled = "`" + flags + "`"
	}
	switch c.verdict {
	case "none":
		return "–", ""
	case "untested":
		return "not tested", c.text
	case "always":
		return "always", ""
	case "refused":
		return "refused", c.text
	case "note":
		return "no effect", c.text
	case "differs":
		if e.want == "" {
			return spelled, ""
		}
		if spelled == "yes" {
			spelled = "other"
		}
		return spelled, "`" + strings.ReplaceAll(c.text, "; ", "`, `") + "`"
	}
	return spelled, ""
}
