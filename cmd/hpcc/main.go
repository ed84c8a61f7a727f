// Command hpcc runs a researcher's software on any cluster. It builds images, unpacks them
// to directory trees, runs programs in them as an ordinary user, and writes and submits the
// native job of each scheduler.
//
// Only this package handles the command line. Each command parses its flags and arguments into
// one struct and calls other packages with its values. It turns their errors into messages,
// hints and exit statuses. Messages go to standard error with the prefix "hpcc:", results to
// standard output.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/cmd/start/bare"
	"hpcc/files"
	"hpcc/front/charliecloud"
	"hpcc/front/wrapper"
	"hpcc/runtime"
	"hpcc/runtime/oci"
	"hpcc/runtime/probe"
	"hpcc/runtime/process"
)

// version is set by the linker from the file VERSION and the commit.
var version = "dev"

func main() {
	if f := bare.Failed(); f != nil {
		err := blame(f.Defaults, fmt.Errorf("running %s: %w", f.Image, runtime.Launch(f.Args, f.Env, f.Dir)))
		if f.ChRun {
			err = chRunError(err)
		}
		os.Exit(printError(err))
	}
	if child, err := runtime.Init(oci.Child, probe.Child); child {
		os.Exit(printError(err))
	}
	process.WatchCPU(func(err error) { os.Exit(printError(err)) })
	ctx, stop := files.UntilSignal(context.Background())
	if isWrapped(os.Args) {
		os.Exit(printError(atStatus(process.ExitFailed, wrapper.Exec(os.Args))))
	}
	if isFront(os.Args[0]) {
		os.Exit(printError(runFront(ctx, os.Args)))
	}
	a, help := app(), &helpWriter{}
	a.Writer = help
	err := a.RunContext(withTimeout(ctx), uniform(joinBareSetEnv(ociArgv(os.Args)), 1, a.Flags, a.Commands))
	err = withSignal(ctx, err)
	stop()
	if err == nil {
		err = help.err
	}
	os.Exit(printError(err))
}

// A helpWriter writes help and version to standard output and keeps the first error, which
// the cli package drops.
type helpWriter struct{ err error }

func (w *helpWriter) Write(p []byte) (int, error) {
	n, err := os.Stdout.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// app returns the command line of hpcc: one table for parsing, help and docs/cli.md.
func app() *cli.App {
	a := &cli.App{
		Name:                      "hpcc",
		Version:                   version,
		HideHelp:                  true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		Flags:                     helpFlags(),
		Commands:                  describedCommands(),
		OnUsageError:              usageError,
		ExitErrHandler:            func(*cli.Context, error) {},
		Action:                    withoutCommand,
	}
	for _, c := range a.Commands {
		c.OnUsageError = usageError
		if c.Name == "run" || c.Name == "entry" {
			c.OnUsageError = func(c *cli.Context, err error, sub bool) error {
				if len(os.Args) > 2 && os.Args[2] == "--ch-run" { // package front writes it first
					return atStatus(charliecloud.Failed, usageError(c, err, sub))
				}
				return atStatus(process.ExitFailed, usageError(c, err, sub))
			}
		}
		keepBlanks(inSection("", c.Flags...))
		if !c.Hidden { // scripts of jobs call the others
			c.Before = parseNonEmpty
		}
	}
	return a
}

// uniform returns args with one spelling for each flag, because the flag parser refuses two, and
// with decimal numbers, because it takes 010 for 8. The flags begin at args[i]; a command may follow.
func uniform(args []string, i int, flags []cli.Flag, commands []*cli.Command) []string {
	args = slices.Clone(args)
	spelling := map[cli.Flag]string{}
	i = eachFlag(args, i, flags, func(f cli.Flag, given []string) {
		name, value, joined := strings.Cut(given[0], "=")
		if spelling[f] == "" {
			spelling[f] = name
		}
		name = spelling[f]
		if _, number := f.(*cli.IntFlag); number {
			if !joined && len(given) > 1 {
				given[1] = withoutZeros(given[1])
			}
			value = withoutZeros(value)
		}
		if given[0] = name; joined {
			given[0] += "=" + value
		}
	})
	if i < len(args) {
		for _, c := range commands {
			if c.HasName(args[i]) {
				return uniform(args, i+1, c.Flags, c.Subcommands)
			}
		}
	}
	return args
}

// withoutZeros returns a decimal number without leading zeros, and any other text unchanged.
func withoutZeros(s string) string {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return s
	}
	return strconv.FormatUint(n, 10)
}

// eachFlag calls visit with each flag of args from i on and its arguments: the name, and the value
// unless "=" joins it to the name. It returns the index of the first argument after the flags.
func eachFlag(args []string, i int, flags []cli.Flag, visit func(f cli.Flag, given []string)) int {
	for i < len(args) && len(args[i]) > 1 && args[i][0] == '-' && args[i] != "--" {
		start := i
		name, _, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		i++
		k := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
		if k < 0 {
			continue // the flag parser returns the error
		}
		if !joined && takesValue(flags[k]) && i < len(args) {
			i++
		}
		visit(flags[k], args[start:i])
	}
	return i
}

// takesValue reports whether the argument after a flag is its value.
func takesValue(f cli.Flag) bool {
	if g, ok := f.(*cli.GenericFlag); ok {
		b, ok := g.Value.(interface{ IsBoolFlag() bool })
		return !ok || !b.IsBoolFlag()
	}
	_, isBool := f.(*cli.BoolFlag)
	return !isBool
}

// parseNonEmpty returns an error for a flag with an empty value on the command line, such as
// --time "$LIMIT" where LIMIT is not set. Only an empty --entrypoint has a meaning; the fronts of
// other programs give the hidden flags, and mean what they say.
func parseNonEmpty(c *cli.Context) error {
	set := parseFlagSet(c)
	for _, f := range c.Command.Flags {
		name, empty := f.Names()[0], false
		switch f := f.(type) {
		case *cli.StringFlag:
			empty = !f.Hidden && set[name] && c.String(name) == ""
		case *cli.StringSliceFlag:
			empty = slices.Contains(c.StringSlice(name), "")
		}
		if empty && name != "entrypoint" {
			return c.Command.OnUsageError(c, fmt.Errorf("--%s: the value is empty", name), false)
		}
	}
	return nil
}

// withoutCommand handles a command line without a known command: "hpcc help", "hpcc help
// COMMAND", "hpcc version" and mistakes.
func withoutCommand(c *cli.Context) error {
	switch name := c.Args().First(); {
	case name == "version":
		cli.ShowVersion(c)
		return nil
	case name == "help" && c.NArg() > 1:
		command := c.App.Command(c.Args().Get(1))
		if command == nil {
			return unknownCommand(c.App, c.Args().Get(1))
		}
		return printHelp(c.App.Writer, command, false, "")
	case name != "" && name != "help":
		return unknownCommand(c.App, name)
	}
	_, err := io.WriteString(c.App.Writer, appHelp(c.App))
	return err
}
