package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
)

func manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Hidden: true, Usage: "write the manual pages to DIR (run by make install)", ArgsUsage: "DIR",
		Action: action(parseMan),
	}
}

type manArgs struct {
	version string
	dir     string
}

func parseMan(c *cli.Context) (*manArgs, error) {
	dirs, err := parseArguments(c, 1, 1, "DIR")
	if err != nil {
		return nil, err
	}
	return &manArgs{version: c.App.Version, dir: dirs[0]}, nil
}

func (a *manArgs) run(context.Context) error {
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return fmt.Errorf("writing the manual: %w", err)
	}
	commands := describedCommands()
	pages := map[string]string{"hpcc.1": manOverview(a.version, commands)}
	for _, c := range commands {
		if !c.Hidden {
			pages["hpcc-"+c.Name+".1"] = manPage(c)
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("writing the manual: %w", err)
		}
	}
	return nil
}

// manOverview returns the page of hpcc itself, as troff.
func manOverview(version string, commands []*cli.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH HPCC 1 \"\" \"hpcc %s\"\n.SH NAME\nhpcc \\- run your software on any cluster, as an ordinary user\n", troff(version))
	b.WriteString(".SH SYNOPSIS\n\\fBhpcc\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIARGUMENTS\\fR]\n.SH COMMANDS\n")
	for _, c := range commands {
		if !c.Hidden {
			fmt.Fprintf(&b, ".TP\n\\fBhpcc-%s\\fR(1)\n%s\n", troff(c.Name), troff(c.Usage))
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 for success, 1 for failure, 2 for wrong usage. \\fBhpcc run\\fR exits with the status of the program.\n")
	return b.String()
}

// manPage returns the page of a command, as troff.
func manPage(c *cli.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH HPCC-%s 1 \"\" \"hpcc\"\n.SH NAME\nhpcc-%s \\- %s\n", strings.ToUpper(troff(c.Name)),
		troff(c.Name), troff(c.Usage))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fBhpcc %s\\fR [\\fIFLAGS\\fR] %s\n.SH DESCRIPTION\n", troff(c.Name), troff(c.ArgsUsage))
	b.WriteString(manText(c.Description))
	for _, s := range sections {
		list := flagsOf(c.Flags, s.title)
		if len(list) > 0 {
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(flagsTitle(s.title)))
		}
		for _, f := range list {
			var names []string
			for _, n := range f.Names() {
				names = append(names, "\\fB"+troff(dashed(n))+"\\fR")
			}
			value := metavar(f)
			if value != "" {
				value = "\\fI" + troff(value) + "\\fR"
			}
			fmt.Fprintf(&b, ".TP\n%s%s\n%s\n", strings.Join(names, ", "), value, troff(flagText(f)))
		}
	}
	b.WriteString(".SH SEE ALSO\n\\fBhpcc\\fR(1)\n")
	return b.String()
}

// manText returns a description as troff. Indented lines are examples.
func manText(text string) string {
	var b strings.Builder
	example := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, " ")
		switch {
		case indented && !example:
			b.WriteString(".nf\n")
		case !indented && example:
			b.WriteString(".fi\n")
		}
		if example = indented; line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(troff(line) + "\n")
	}
	if example {
		b.WriteString(".fi\n")
	}
	return b.String()
}

// troff escapes text for troff.
func troff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
