package main

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"hpcc/text"
	"hpcc/text/terminal"

	"github.com/urfave/cli/v2"
)

// Help is generated from the table of commands and flags. --help lists the flags that most users
// need. With --to TARGET it also lists those of the target. --help-all lists every flag.

// A section is a heading of flags in the help of a command. A flag's category names its
// section; flags without a category come first.
type section struct {
	title   string
	listed  bool     // --help lists it
	targets []string // --help lists it with one of these values of --to
}

// Sections, in the order in which help lists them.
const (
	condaSection       = "Conda and pip"
	condaSourceSection = "Conda and pip: sources and solving"
	dockerfileSection  = "Dockerfile"
	imageSection       = "Image"
	cacheSection       = "Cache"
	outputSection      = "Output"
	attestSection      = "Attestations"
	fromSection        = "Translation of job scripts"
	arraySection       = "Arrays and retries"
	scheduleSection    = "Scheduling"
	programSection     = "Companions and environment"
	podSection         = "Kubernetes, OpenShift and Argo"
	argoSection        = "Argo Workflows"
	openShiftSection   = "OpenShift builds"
	containerSection   = "Container"
	isolationSection   = "Isolation"
	sweepSection       = "Sweeps"
	generalSection     = "General"
)

var sections = []section{
	{title: "", listed: true},
	{title: condaSection, listed: true},
	{title: condaSourceSection},
	{title: dockerfileSection},
	{title: imageSection},
	{title: cacheSection},
	{title: outputSection},
	{title: attestSection},
	{title: arraySection, listed: true},
	{title: fromSection},
	{title: scheduleSection},
	{title: programSection},
	{title: podSection, targets: []string{"kubernetes", "openshift", "argo"}},
	{title: argoSection, targets: []string{"argo"}},
	{title: openShiftSection, targets: []string{"openshift"}},
	{title: containerSection},
	{title: isolationSection},
	{title: sweepSection, listed: true},
	{title: generalSection},
}

// describedCommands returns the commands with their help and the sections of their flags. The
// cli package renders the help of every flag with a category at each start, which takes a
// quarter of a millisecond. Therefore app clears the sections of the commands that it runs.
func describedCommands() []*cli.Command {
	list := commands()
	for _, c := range list {
		withHelp(c)
	}
	return list
}

// describe returns a command or subcommand with the sections of its flags.
func describe(c *cli.Command) *cli.Command {
	for _, d := range describedCommands() {
		if d.Name == c.Name {
			return d
		}
		for _, sub := range d.Subcommands {
			if sub.Name == c.Name && strings.HasSuffix(c.HelpName, d.Name+" "+sub.Name) {
				sub.HelpName = c.HelpName
				return sub
			}
		}
	}
	return c
}

// inSection puts flags into a section.
func inSection(title string, flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		reflect.ValueOf(f).Elem().FieldByName("Category").SetString(title)
	}
	return flags
}

// helpFlags are the flags of every command that print its help.
func helpFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show help"},
		&cli.BoolFlag{Name: "help-all", Hidden: true, Usage: "show help with every flag"},
	}
}

// The help flag of the cli package would print the help of that package.
func init() { cli.HelpFlag = nil }

// withHelp makes a command print its help instead of acting when a flag asks for it.
func withHelp(c *cli.Command) {
	c.HideHelp, c.HideHelpCommand = true, true
	required := takeRequired(c)
	c.Flags = append(c.Flags, helpFlags()...)
	act := c.Action
	c.Action = func(ctx *cli.Context) error {
		if all := ctx.Bool("help-all"); all || ctx.Bool("help") || act == nil {
			return printHelp(ctx.App.Writer, c, all, strings.Join(parseRepeated(ctx, "to"), ""))
		}
		for _, name := range required {
			if !ctx.IsSet(name) {
				return text.Usagef("%s needs --%s", c.Name, name).Hint("\"hpcc %s --help\" shows an example", c.Name)
			}
		}
		return act(ctx)
	}
	for _, sub := range c.Subcommands {
		withHelp(sub)
	}
}

// takeRequired returns the names of the required flags of a command and makes them optional. The
// cli package would report them as missing before it looks for --help.
func takeRequired(c *cli.Command) (names []string) {
	for _, f := range c.Flags {
		if s, ok := f.(*cli.StringFlag); ok && s.Required {
			s.Required = false
			names = append(names, s.Name)
		}
	}
	return names
}

// printHelp prints the help of a command in the width of the terminal, at most 100 columns.
func printHelp(w io.Writer, c *cli.Command, all bool, target string) error {
	columns, _ := terminal.Size()
	_, err := io.WriteString(w, commandHelp(describe(c), min(columns, 100), all, target))
	return err
}

// appHelp returns the help of hpcc itself.
func appHelp(a *cli.App) string {
	var b strings.Builder
	b.WriteString("Run your software on any cluster, as an ordinary user.\nUsage: hpcc COMMAND [FLAGS] [ARGUMENTS]\n\"hpcc COMMAND --help\" shows examples and flags.\n")
	var titles []string
	for _, c := range a.Commands {
		if !c.Hidden && c.Category != startedByOthers && !slices.Contains(titles, c.Category) {
			titles = append(titles, c.Category)
		}
	}
	for _, title := range titles {
		fmt.Fprintf(&b, "\n%s:\n", title)
		for _, c := range a.Commands {
			if !c.Hidden && c.Category == title {
				fmt.Fprintf(&b, "  %-10s %s\n", c.Name, c.Usage)
			}
		}
	}
	return b.String()
}

// commandHelp returns the help of a command in lines of at most the given columns. all lists
// every flag. Otherwise target, the value of --to, selects the sections of targets.
func commandHelp(c *cli.Command, columns int, all bool, target string) string {
	var b strings.Builder
	name := c.HelpName
	if !strings.HasPrefix(name, "hpcc") {
		name = "hpcc " + c.Name
	}
	b.WriteString(terminal.Wrap("Usage: ", strings.TrimSpace(name+" [FLAGS] "+c.ArgsUsage), columns, 9))
	text := c.Description
	if text == "" {
		text = strings.ToUpper(c.Usage[:1]) + c.Usage[1:] + "."
	}
	b.WriteString("\n" + terminal.Reflow(text, columns))
	hasMore := false
	for _, s := range sections {
		list := flagsOf(c.Flags, s.title)
		if len(list) == 0 {
			continue
		}
		if !all && !s.listed && !slices.Contains(s.targets, target) {
			hasMore = true
			continue
		}
		fmt.Fprintf(&b, "\n%s:\n", flagsTitle(s.title))
		for _, f := range list {
			b.WriteString(flagHelp(f, columns))
		}
	}
	if len(c.VisibleCommands()) > 0 {
		b.WriteString("\nCommands:\n")
		for _, sub := range c.VisibleCommands() {
			b.WriteString(terminal.Wrap(fmt.Sprintf("  %-10s ", sub.Name), sub.Usage, columns, 13))
		}
	}
	if hasMore {
		fmt.Fprintf(&b, "\n%s", terminal.Wrap("", fmt.Sprintf("\"hpcc %s --help-all\" lists every flag.", c.Name), columns, 0))
	}
	return b.String()
}

func flagsTitle(section string) string {
	if section == "" {
		return "Flags"
	}
	return section
}

// flagsOf returns the flags of a section, without the hidden ones.
func flagsOf(flags []cli.Flag, section string) (list []cli.Flag) {
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
			continue
		}
		category := ""
		if d, ok := f.(cli.CategorizableFlag); ok {
			category = d.GetCategory()
		}
		if category == section {
			list = append(list, f)
		}
	}
	return list
}

// flagColumns is the width of the names of flags in help.
const flagColumns = 26

// flagHelp returns the help of a flag.
func flagHelp(f cli.Flag, columns int) string {
	short, long := "    ", ""
	for _, n := range f.Names() {
		switch {
		case len(n) == 1 && short == "    ":
			short = "-" + n + ", "
		case len(n) > 1 && long == "":
			long = "--" + n
		}
	}
	head := "  " + short + long + metavar(f)
	if len(head) < flagColumns {
		head += strings.Repeat(" ", flagColumns-len(head))
	} else {
		head += "  "
	}
	return terminal.Wrap(head, flagText(f), columns, flagColumns)
}

// metavar returns the name of a flag's value as help writes it after the flag.
func metavar(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok || !d.TakesValue() {
		return ""
	}
	_, rest, _ := strings.Cut(d.GetUsage(), "`")
	name, _, found := strings.Cut(rest, "`")
	if !found {
		name = "VALUE"
	}
	switch {
	case takesValue(f):
		return " " + name
	case !found:
		return ""
	}
	return "[=" + name + "]"
}

// flagText returns the usage text of a flag, with its default and the variable that sets it.
func flagText(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	text := strings.ReplaceAll(d.GetUsage(), "`", "")
	if _, ok := f.(*cli.StringSliceFlag); ok {
		text += " (repeatable)"
	}
	if v := d.GetDefaultText(); v != "" && v != "false" && v != "0" && v != `""` && v != "[]" {
		text += " (default " + strings.Trim(v, `"`) + ")"
	}
	if e := d.GetEnvVars(); len(e) > 0 {
		text += " [$" + strings.Join(e, ", $") + "]"
	}
	return text
}
