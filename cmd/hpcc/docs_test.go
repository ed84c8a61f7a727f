package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

// TestDocs checks that docs/cli.md matches the command line.
func TestDocs(t *testing.T) {
	const file = "../../docs/cli.md"
	got := cliPage(app())
	if *update {
		testenv.Check(t, os.WriteFile(file, []byte(got), 0o644))
	}
	if want, err := os.ReadFile(file); err != nil || got != string(want) {
		t.Errorf("%s does not match the command line (%v); run \"make docs\"", file, err)
	}
}

// cliPage writes the command line as Markdown.
func cliPage(a *cli.App) string {
	var b strings.Builder
	b.WriteString("# Command line\n\n    hpcc images --help\n    hpcc doctor --help\n\nWritten by `make docs` from the program's table; `hpcc COMMAND --help-all` prints the same.\n\n" +
		"Flags come before arguments. Everything after IMAGE belongs to the program, with or without `--`.\n" +
		"Results go to standard output, messages to standard error. The exit status is 0 for success, 1 for failure\n" +
		"and 2 for wrong usage. `hpcc run` exits with the program's status, or with 125 if hpcc failed, 126 if the\n" +
		"program is not executable, and 127 if it was not found.\n")
	for _, c := range describedCommands() {
		if c.Hidden {
			continue
		}
		fmt.Fprintf(&b, "\n## hpcc %s\n\n%s.\n\n    %s\n", c.Name, strings.ToUpper(c.Usage[:1])+c.Usage[1:], strings.TrimRight("hpcc "+c.Name+" [FLAGS] "+c.ArgsUsage, " "))
		if c.Description != "" {
			text := strings.ReplaceAll(c.Description, "\n   ", "\n    ")
			fmt.Fprintf(&b, "\n%s\n", text)
		}
		for _, s := range sections {
			for i, f := range flagsOf(c.Flags, s.title) {
				if i == 0 {
					fmt.Fprintf(&b, "\n| %s | |\n| --- | --- |\n", flagsTitle(s.title))
				}
				if f.Names()[0] != "help" {
					fmt.Fprintf(&b, "| %s | %s |\n", flagNames(f), flagUsage(f))
				}
			}
		}
		for i, s := range c.Subcommands {
			if i == 0 {
				b.WriteString("\n| command | what it does | flags |\n| --- | --- | --- |\n")
			}
			var names []string
			for _, f := range s.Flags {
				names = append(names, flagNames(f))
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.TrimSpace(s.Name+" "+s.ArgsUsage), s.Usage, strings.Join(names, "; "))
		}
	}
	return b.String()
}

func flagNames(f cli.Flag) string {
	var names []string
	for _, n := range f.Names() {
		dash := "--"
		if len(n) == 1 {
			dash = "-"
		}
		names = append(names, "`"+dash+n+"`")
	}
	return strings.Join(names, ", ")
}

// flagUsage returns the usage of a flag in Markdown, with its default and its variable.
func flagUsage(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	text := strings.ReplaceAll(d.GetUsage(), "|", "\\|")
	if _, ok := f.(*cli.StringSliceFlag); ok {
		text += " (repeatable)"
	}
	if v := d.GetDefaultText(); v != "" && v != "false" && v != "0" && v != `""` && v != "[]" {
		text += " (default " + v + ")"
	}
	if e := d.GetEnvVars(); len(e) > 0 {
		text += " [$" + strings.Join(e, ", $") + "]"
	}
	return text
}

// TestBigGANPage checks that docs/biggan.md shows the files of testdata/corpora/biggan and bigganReasons.
// testdata/script/script_biggan.txtar checks the files that hpcc wrote.
func TestBigGANPage(t *testing.T) {
	const dir, file = "../../testdata/corpora/biggan/", "../../docs/biggan.md"
	read := func(name string) string {
		b, err := os.ReadFile(dir + name)
		testenv.Check(t, err)
		return strings.TrimSuffix(string(b), "\n")
	}
	var out strings.Builder
	for line := range strings.Lines(read("page.md") + "\n") {
		word, ok := strings.CutPrefix(strings.TrimSpace(line), "{{")
		word, _ = strings.CutSuffix(word, "}}")
		names := strings.Fields(word)
		switch {
		case !ok:
			out.WriteString(line)
		case names[0] == "reasons":
			out.WriteString("| field | reason |\n| --- | --- |\n")
			for _, f := range slices.Sorted(maps.Keys(bigganReasons[names[1]])) {
				fmt.Fprintf(&out, "| `%s` | %s |\n", f, bigganReasons[names[1]][f])
			}
		default:
			out.WriteString("    " + strings.ReplaceAll(read(names[0]), "\n", "\n    ") + "\n")
		}
	}
	if *update {
		testenv.Check(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	if want, err := os.ReadFile(file); err != nil || out.String() != string(want) {
		t.Errorf("%s does not match testdata/corpora/biggan (%v); run \"make docs\"", file, err)
	}
}
