package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"hpcc/job"
)

// TestHelp holds the help of every command to 80 columns, and what --help prints to two
// screens of 24 lines.
func TestHelp(t *testing.T) {
	a := app()
	check := func(what, text string, lines int) {
		t.Helper()
		if n := strings.Count(text, "\n"); n > lines {
			t.Errorf("%s has %d lines; at most %d", what, n, lines)
		}
		for line := range strings.Lines(text) {
			if width(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s: longer than 80 columns: %s", what, line)
			}
		}
	}
	check("hpcc --help", appHelp(a), 48)
	for _, c := range a.Commands {
		check(c.Name+" --help", commandHelp(c, 80, false, ""), 48)
		check(c.Name+" --help-all", commandHelp(c, 80, true, ""), 200)
		check(c.Name+" --help --to openshift", commandHelp(c, 80, false, "openshift"), 90)
		for _, sub := range c.Subcommands {
			check(c.Name+" "+sub.Name+" --help", commandHelp(sub, 80, false, ""), 48)
		}
	}
}

// TestHelpSections finds flags in sections that help does not have.
func TestHelpSections(t *testing.T) {
	for _, c := range app().Commands {
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

// TestHelpExamples checks that the examples in descriptions use commands and flags that
// there are.
func TestHelpExamples(t *testing.T) {
	a := app()
	for _, c := range a.Commands {
		for line := range strings.Lines(c.Description) {
			for command := range strings.SplitSeq(strings.TrimSpace(line), " && ") {
				argv := strings.Fields(command)
				if !strings.HasPrefix(line, " ") || len(argv) < 2 || argv[0] != "hpcc" {
					continue
				}
				target := a.Command(argv[1])
				if target == nil {
					t.Errorf("help of %s: hpcc has no command %s", c.Name, argv[1])
					continue
				}
				checkFlags(t, c.Name, target, argv[2:])
			}
		}
	}
}

// checkFlags checks the flags of an example up to the program that it starts.
func checkFlags(t *testing.T, where string, c *cli.Command, argv []string) {
	t.Helper()
	for _, word := range argv {
		if word == "--" || word == "#" || word == "|" {
			return
		}
		name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
		known := func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }
		if strings.HasPrefix(word, "-") && !slices.ContainsFunc(c.Flags, known) && c.Name != "oci" {
			t.Errorf("help of %s: hpcc %s has no flag %s", where, c.Name, word)
		}
	}
}
