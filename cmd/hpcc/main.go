// Command hpcc takes a researcher's environment to any cluster: it makes
// images, flattens them into directory trees, runs programs in them as the
// ordinary user, and turns one job into the native job of each scheduler.
//
// Only this package knows the command line. Each verb parses its flags and arguments
// into one struct of values, calls the packages with it, and turns their errors
// into messages, hints and exit statuses. Messages go to standard error with the
// prefix "hpcc:", results to standard output.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/cmd/start/bare"
	"hpcc/runtime"
	"hpcc/runtime/oci"
	"hpcc/runtime/probe"
	"hpcc/runtime/process"
	"hpcc/store/wait"
)

// version is set by the linker from the newest tag.
var version = "0.1.0-dev"

func main() {
	if f := bare.Failed(); f != nil {
		os.Exit(tellError(blame(f.Defaults, fmt.Errorf("running %s: %w", f.Image, runtime.Launch(f.Args, f.Env, f.Dir)))))
	}
	if child, err := runtime.Init(oci.Child, probe.Child); child {
		os.Exit(tellError(err))
	}
	watchCPU()
	ctx, stop := wait.UntilSignal(context.Background())
	a, help := app(), &helpWriter{}
	a.Writer = help
	err := a.RunContext(patient(ctx), joinBareSetEnv(ociWords(os.Args)))
	err = withSignal(ctx, err)
	stop()
	if err == nil {
		err = help.err
	}
	os.Exit(tellError(err))
}

// A helpWriter writes help and version to standard output and keeps the first
// error, which the library of the command line drops.
type helpWriter struct{ err error }

func (w *helpWriter) Write(p []byte) (int, error) {
	n, err := os.Stdout.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// app is the full command line: one table for parsing, help and docs/cli.md.
func app() *cli.App {
	a := &cli.App{
		Name:                      "hpcc",
		Usage:                     "take an environment to any cluster",
		Version:                   version,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		Commands:                  commands(),
		OnUsageError:              usageError,
		ExitErrHandler:            func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			if c.Args().First() == "help" {
				return help(c, c.Args().Get(1))
			}
			if c.Args().Present() {
				return usagef("unknown command %q", c.Args().First()).hint(`"hpcc --help" lists the commands`)
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range a.Commands {
		c.OnUsageError = usageError
		if c.Name == "run" || c.Name == "entry" {
			c.OnUsageError = func(c *cli.Context, err error, sub bool) error {
				return atStatus(process.ExitFailed, usageError(c, err, sub))
			}
		}
		c.HideHelpCommand = true
	}
	return a
}

// help is "hpcc help" and "hpcc help COMMAND".
func help(c *cli.Context, name string) error {
	if name == "" {
		return cli.ShowAppHelp(c)
	}
	if c.App.Command(name) == nil {
		return usagef("unknown command %q", name).hint(`"hpcc --help" lists the commands`)
	}
	return cli.ShowCommandHelp(c, name)
}
