package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/store/wait"
)

// envChanges collects --set-env, --set-env0 and --unset-env in the order of
// the command line, which is the order they apply in. words keeps what was
// typed, for a job script that says it again.
type envChanges struct {
	list     []envfile.Change
	words    []string
	noExpand bool
	later    bool // for a job: files may be named after the task, and are read when it runs
}

func (e *envChanges) flags() []cli.Flag {
	return []cli.Flag{
		&cli.GenericFlag{Name: "set-env", Value: &envFlag{e: e, name: "set-env", parse: e.setFile(false)},
			Usage: "read variables from `FILE` or set one as NAME=VALUE (repeatable, in order)"},
		&cli.GenericFlag{Name: "set-env0", Value: &envFlag{e: e, name: "set-env0", parse: e.setFile(true)},
			Usage: "as --set-env, records of `FILE` end with a NUL byte"},
		&cli.GenericFlag{Name: "unset-env", Value: &envFlag{e: e, name: "unset-env", parse: e.unset},
			Usage: "remove variables whose names match `GLOB` (repeatable, in order)"},
		&cli.BoolFlag{Name: "env-no-expand", Usage: "keep $NAME in values as it stands", Destination: &e.noExpand},
	}
}

// envOf returns the changes that a command line with these flags asks for.
func envOf(c *cli.Context) *envChanges { return c.Generic("set-env").(*envFlag).e }

// setFile reads one argument of --set-env: an assignment when it has a "=",
// else a file. The bare form (the image's own environment, which hpcc applies
// always) arrives as "": see joinBareSetEnv.
func (e *envChanges) setFile(nul bool) func(string) error {
	return func(arg string) error {
		if arg == bareSetEnv {
			return nil
		}
		if strings.Contains(arg, "=") {
			c, err := envfile.Literal(arg)
			e.list = append(e.list, c)
			return err
		}
		if arg == "" {
			return errors.New("the file name is empty")
		}
		if e.later && strings.Contains(arg, "{task}") {
			return nil
		}
		f, err := wait.Open(arg)
		if err != nil {
			return err
		}
		defer f.Close()
		cs, err := envfile.Read(f, arg, envfile.Options{NUL: nul})
		e.list = append(e.list, cs...)
		return err
	}
}

func (e *envChanges) unset(glob string) error {
	c, err := envfile.Unset(glob)
	e.list = append(e.list, c)
	return err
}

// envFlag is one of the flags above as the parser wants it.
type envFlag struct {
	e     *envChanges
	name  string
	parse func(string) error
	err   error // of parse
}

func (f *envFlag) Set(arg string) error {
	if arg != bareSetEnv {
		word := arg
		if f.name != "unset-env" && !strings.Contains(arg, "=") {
			word, _ = filepath.Abs(arg) // a job starts in another directory
		}
		f.e.words = append(f.e.words, "--"+f.name+"="+word)
	}
	f.err = f.parse(arg)
	return f.err
}

func (f *envFlag) String() string { return "" }

// interruptedFlag returns the error of an environment flag of a command if a
// signal ended the wait for its file: the parser of flags keeps only the text.
func interruptedFlag(c *cli.Context) error {
	if c == nil || c.Command == nil {
		return nil
	}
	for _, f := range c.Command.Flags {
		g, ok := f.(*cli.GenericFlag)
		if !ok {
			continue
		}
		if e, ok := g.Value.(*envFlag); ok && errors.Is(e.err, context.Canceled) {
			return fmt.Errorf("--%s: %w", e.name, e.err)
		}
	}
	return nil
}

// bareSetEnv is what a --set-env without an argument becomes.
const bareSetEnv = "\x00"

// joinBareSetEnv decides whether the word after "--set-env" is its argument.
// Old ch-run took one always, the newer takes one only after "=": when a
// single word is left before "--", it is the image and --set-env stands bare, as
// it does before another flag.
func joinBareSetEnv(args []string) []string {
	end := slices.Index(args, "--")
	if end < 0 {
		return args
	}
	out := slices.Clone(args)
	for i := end - 1; i > 0; i-- {
		if (out[i] == "--set-env" || out[i] == "--set-env0") && (i+2 == end || (len(out[i+1]) > 1 && out[i+1][0] == '-')) {
			out[i] = fmt.Sprintf("%s=%s", out[i], bareSetEnv)
		}
	}
	return out
}
