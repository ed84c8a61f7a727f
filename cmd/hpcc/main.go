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
		err := blame(f.Defaults, fmt.Errorf("running %s: %w", f.Image, runtime.Launch(f.Args, f.Env, f.Dir)))
		if f.ChRun {
			err = chRunError(err)
		}
		os.Exit(printError(err))
	}
	if child, err := runtime.Init(oci.Child, probe.Child); child {
		os.Exit(printError(err))
	}
	watchCPU()
	ctx, stop := wait.UntilSignal(context.Background())
	if isWrapped(os.Args) {
		os.Exit(printError(atStatus(process.ExitFailed, runWrapped(os.Args))))
	}
	if isFront(os.Args[0]) {
		os.Exit(printError(runFront(ctx, os.Args)))
	}
	a, help := app(), &helpWriter{}
	a.Writer = help
	err := a.RunContext(withTimeout(ctx), joinBareSetEnv(ociArgv(os.Args)))
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
					return atStatus(chRunFailed, usageError(c, err, sub))
				}
				return atStatus(process.ExitFailed, usageError(c, err, sub))
			}
		}
		inSection("", c.Flags...)
	}
	return a
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
