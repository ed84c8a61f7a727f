package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/store"
	"hpcc/text/terminal"
)

func completeCommand() *cli.Command {
	return &cli.Command{
		Name: "complete", Hidden: true, Usage: "print candidates for the last word (started by completion scripts)",
		ArgsUsage: "-- WORD...",
		Action:    action(parseComplete),
	}
}

// completeArgs is a command line that a user is typing.
type completeArgs struct {
	commands []*cli.Command
	words    []string // shell words after hpcc; the last is incomplete and may be empty
}

func parseComplete(c *cli.Context) (*completeArgs, error) {
	words := c.Args().Slice()
	if len(words) == 0 {
		words = []string{""}
	}
	return &completeArgs{commands: describedCommands(), words: words}, nil
}

func (a *completeArgs) run(context.Context) error {
	var b strings.Builder
	last := a.words[len(a.words)-1]
	list, files := a.candidates()
	for _, candidate := range list {
		if strings.HasPrefix(candidate, last) {
			word, description, _ := strings.Cut(candidate, "\t")
			b.WriteString(strings.TrimSuffix(terminal.Clean(word)+"\t"+terminal.Clean(description), "\t") + "\n")
		}
	}
	if files {
		b.WriteString(":files\n")
	}
	_, err := os.Stdout.WriteString(b.String())
	return err
}

// candidates returns the candidates for the last word, each with a description after a tab.
// files reports whether the last word can also be a file name.
func (a *completeArgs) candidates() (list []string, files bool) {
	if len(a.words) == 1 {
		return a.commandNames(), false
	}
	name, words := a.words[0], a.words[1:]
	if name == "help" {
		return a.commandNames(), false
	}
	i := slices.IndexFunc(a.commands, func(c *cli.Command) bool { return c.Name == name })
	if i < 0 {
		return nil, false
	}
	c := a.commands[i]
	last := words[len(words)-1]
	arguments := 0
	for k := 0; k < len(words)-1; k++ {
		word := words[k]
		switch f := flagNamed(c, word); {
		case word == "--" || (arguments > 0 && runsProgram(name)):
			return nil, true
		case f != nil && takesWord(f, word) && k == len(words)-2:
			return candidatesOf(cmp.Or(flagKinds[f.Names()[0]], "file"))
		case f != nil && takesWord(f, word):
			k++
		case !strings.HasPrefix(word, "-"):
			arguments++
		}
	}
	if strings.HasPrefix(last, "-") {
		return flagCandidates(c), false
	}
	return candidatesOf(kindOf(name, arguments))
}

func (a *completeArgs) commandNames() (list []string) {
	for _, c := range a.commands {
		if !c.Hidden {
			list = append(list, c.Name+"\t"+c.Usage)
		}
	}
	return append(list, "help\tshow help", "version\tprint the version")
}

// runsProgram reports whether the arguments after the first belong to a program.
func runsProgram(command string) bool {
	return slices.Contains([]string{"run", "submit", "script", "attach", "entry"}, command)
}

// flagNamed returns the flag that a word names, or nil.
func flagNamed(c *cli.Command, word string) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if !strings.HasPrefix(word, "-") || name == "" {
		return nil
	}
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// takesWord reports whether the word after a flag is its value.
func takesWord(f cli.Flag, word string) bool {
	m := metavar(f)
	return m != "" && m[0] == ' ' && !strings.Contains(word, "=")
}

// flagCandidates returns the visible flags of a command.
func flagCandidates(c *cli.Command) (list []string) {
	for _, s := range sections {
		for _, f := range flagsOf(c.Flags, s.title) {
			for _, n := range f.Names() {
				list = append(list, dashed(n)+"\t"+flagText(f))
			}
		}
	}
	return list
}

// flagKinds are the kinds of the values of flags; see candidatesOf. Others are files.
var flagKinds = map[string]string{"to": "target", "dialect": "dialect", "on": "site", "install": "site", "registry": "registry",
	"platform": "platform", "after": "job", "fits": "job|file"}

// argumentKinds are the kinds of the arguments of commands. The last one is for all further arguments. The arguments of
// other commands are files.
var argumentKinds = []struct{ commands, kinds string }{
	{"run submit script unpack check wrap", "image|file file"},
	{"inspect history push save tag", "image file"},
	{"commit", "file image"},
	{"deploy", "image|file"},
	{"rm", "image"},
	{"logs fetch top attach forward", "job none"},
	{"status wait cancel rerun", "job"},
	{"report", "job|file"},
	{"completion", "shell"},
	{"images gc doctor sites nodes login", "none"},
}

// kindOf returns the kind of argument n of a command.
func kindOf(command string, n int) string {
	for _, x := range argumentKinds {
		if slices.Contains(strings.Fields(x.commands), command) {
			kinds := strings.Fields(x.kinds)
			return kinds[min(n, len(kinds)-1)]
		}
	}
	return "file"
}

// candidatesOf returns the candidates of a kind. files reports whether it includes files.
func candidatesOf(kind string) (list []string, files bool) {
	kind, _, files = strings.Cut(kind, "|")
	switch kind {
	case "file":
		return nil, true
	case "image":
		list = imageNames()
	case "job":
		list = jobNames()
	case "site":
		list = siteNames()
	case "registry":
		if rs, err := store.ReadRegistries(""); err == nil {
			list = rs.Names()
		}
	case "target":
		list = strings.Split(targetNames, ", ")
	case "dialect":
		list = strings.Split(dialects, ", ")
	case "platform":
		list = []string{"linux/amd64", "linux/arm64", "linux/ppc64le"}
	case "shell":
		list = []string{"bash", "zsh", "fish"}
	}
	return list, files
}

// defaultStore opens the store that commands use without --store.
func defaultStore() (*store.Store, error) { return store.OpenToRead(os.Getenv("HPCC_STORE")) }

func imageNames() (names []string) {
	if s, err := defaultStore(); err == nil {
		names, _ = s.Names()
	}
	return names
}

// jobNames returns the IDs of jobs, the newest first.
func jobNames() (names []string) {
	s, err := defaultStore()
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(s.Jobs())
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") { // not a job
			names = append(names, e.Name())
		}
	}
	slices.Reverse(names)
	return names
}

func siteNames() (names []string) {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil
	}
	for _, s := range sites.All() {
		names = append(names, s.Name)
	}
	return names
}
