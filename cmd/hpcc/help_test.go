package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text/terminal"
)

// TestHelp checks that the help of every command fits 80 columns, and that --help prints at most
// two screens of 24 lines.
func TestHelp(t *testing.T) {
	check := func(what, text string, lines int) {
		t.Helper()
		if n := strings.Count(text, "\n"); n > lines {
			t.Errorf("%s has %d lines; at most %d", what, n, lines)
		}
		for line := range strings.Lines(text) {
			if terminal.Width(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s: longer than 80 columns: %s", what, line)
			}
		}
	}
	check("hpcc --help", appHelp(app()), 48)
	for _, c := range describedCommands() {
		check(c.Name+" --help", commandHelp(c, 80, false, ""), 48)
		check(c.Name+" --help-all", commandHelp(c, 80, true, ""), 200)
		check(c.Name+" --help --to openshift", commandHelp(c, 80, false, "openshift"), 90)
		for _, sub := range c.Subcommands {
			check(c.Name+" "+sub.Name+" --help", commandHelp(sub, 80, false, ""), 48)
		}
	}
}

// TestHelpSections checks that help lists every visible flag, and that targets of sections have pods.
func TestHelpSections(t *testing.T) {
	for _, c := range describedCommands() {
		listed := 0
		for _, s := range sections {
			listed += len(flagsOf(c.Flags, s.title))
		}
		visible := 0
		for _, f := range c.Flags {
			if v, ok := f.(cli.VisibleFlag); !ok || v.IsVisible() {
				visible++
			}
		}
		if listed != visible {
			t.Errorf("%s has %d visible flags, and help lists %d", c.Name, visible, listed)
		}
	}
	targets := []string{string(job.Kubernetes), string(job.OpenShift), string(job.Argo)}
	for _, s := range sections {
		for _, name := range s.targets {
			if !slices.Contains(targets, name) {
				t.Errorf("section %q is for %q, which is not a target with pods", s.title, name)
			}
		}
	}
}

// TestExamples checks that the examples in descriptions, in README.md and in docs use existing
// commands and flags.
func TestExamples(t *testing.T) {
	a := app()
	for _, c := range a.Commands {
		for line := range strings.Lines(c.Description) {
			if strings.HasPrefix(line, " ") {
				checkExample(t, "help of "+c.Name, a, line)
			}
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	testenv.Check(t, err)
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		testenv.Check(t, err)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "    ") {
				checkExample(t, filepath.Base(page), a, strings.TrimPrefix(strings.TrimSpace(line), "$ "))
			}
		}
	}
}

// checkExample checks the hpcc commands of one line, without the programs that they start.
func checkExample(t *testing.T, where string, a *cli.App, line string) {
	t.Helper()
	for command := range strings.SplitSeq(strings.NewReplacer("; ", " && ", " · ", " && ").Replace(line), " && ") {
		argv := strings.Fields(command)
		if len(argv) < 2 || argv[0] != "hpcc" || argv[1] == "=" {
			continue
		}
		c := a.Command(argv[1])
		if c == nil {
			t.Errorf("%s: hpcc has no command %s", where, argv[1])
			continue
		}
		for _, word := range argv[2:] {
			if word == "--" || word == "#" || word == "|" || word == "…" || word == "..." || word[0] == '\'' || word[0] == '"' {
				break
			}
			name, _, _ := strings.Cut(strings.TrimLeft(strings.Trim(word, "[]"), "-"), "=")
			known := func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }
			if strings.HasPrefix(word, "-") && word != "-" && !slices.ContainsFunc(c.Flags, known) && c.Name != "oci" {
				t.Errorf("%s: hpcc %s has no flag %s", where, c.Name, word)
			}
		}
	}
}
