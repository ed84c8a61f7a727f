package main

import (
	"hpcc/store"

	"github.com/urfave/cli/v2"
)

// commands lists the verbs in the order people need them.
func commands() []*cli.Command {
	return []*cli.Command{
		buildCommand(),
		pullCommand(), pushCommand(), deployCommand(), loginCommand(),
		imagesCommand(), inspectCommand(), checkCommand(), rmCommand(), gcCommand(),
		loadCommand(), saveCommand(), unpackCommand(),
		runCommand(), entryCommand(), ociCommand(),
		scriptCommand(), submitCommand(), statusCommand(), topCommand(), nodesCommand(), logsCommand(), waitCommand(), cancelCommand(), rerunCommand(), reportCommand(), sitesCommand(), taskCommand(), rayCommand(), hereCommand(),
		forwardCommand(), attachCommand(), relayCommand(), enterCommand(),
		doctorCommand(),
	}
}

// openStore opens the store that the command line names.
func openStore(c *cli.Context) (*store.Store, error) { return store.Open(c.String("store")) }

// findStore opens it for a command that creates nothing there: the store may be
// read-only, and a question must not leave a directory.
func findStore(c *cli.Context) (*store.Store, error) { return store.OpenToRead(c.String("store")) }
