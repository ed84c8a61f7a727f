package main

import (
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
			return a.values(f.Names()[0])
		case f != nil && takesWord(f, word):
			k++
		case !strings.HasPrefix(word, "-"):
			arguments++
		}
	}
	if strings.HasPrefix(last, "-") {
		return flagCandidates(c), false
	}
	return a.arguments(name, arguments)
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

// values returns the values of a flag.
func (a *completeArgs) values(flag string) (list []string, files bool) {
	switch flag {
	case "to":
		return strings.Split(targetNames, ", "), false
	case "dialect":
		return strings.Split(dialects, ", "), false
	case "on", "install":
		return siteNames(), false
	case "registry":
		if rs, err := store.ReadRegistries(""); err == nil {
			return rs.Names(), false
		}
		return nil, false
	case "platform":
		return []string{"linux/amd64", "linux/arm64", "linux/ppc64le"}, false
	case "after", "fits":
		return jobNames(), flag == "fits"
	}
	return nil, true
}

// arguments returns the candidates for argument n of a command.
func (a *completeArgs) arguments(command string, n int) (list []string, files bool) {
	first := n == 0
	switch command {
	case "run", "submit", "script", "unpack", "check", "wrap":
		if first {
			return imageNames(), true
		}
	case "inspect", "history", "push", "save", "tag":
		if first {
			return imageNames(), false
		}
	case "commit":
		if first {
			return nil, true
		}
		return imageNames(), false
	case "deploy":
		return imageNames(), true
	case "rm":
		return imageNames(), false
	case "logs", "fetch", "top", "attach", "forward":
		if first {
			return jobNames(), false
		}
		return nil, false
	case "status", "wait", "cancel", "rerun":
		return jobNames(), false
	case "report":
		return jobNames(), true
	case "completion":
		return []string{"bash", "zsh", "fish"}, false
	case "images", "gc", "doctor", "sites", "nodes", "login":
		return nil, false
	}
	return nil, true
}

// defaultStore opens the store that commands use without --store.
func defaultStore() (*store.Store, error) { return store.OpenToRead(os.Getenv("HPCC_STORE")) }

func imageNames() []string {
	s, err := defaultStore()
	if err != nil {
		return nil
	}
	names, err := s.Names()
	if err != nil {
		return nil
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
