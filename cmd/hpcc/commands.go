package main

import (
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

// storeFlag lets every command that uses images name the store.
func storeFlag() cli.Flag {
	return &cli.StringFlag{Name: "store", EnvVars: []string{"HPCC_STORE"}, Usage: "keep images in `DIR` (default ~/.local/share/hpcc)"}
}

// args refuses a wrong number of arguments, and flags that stand after them:
// the parser would take those for arguments.
func args(c *cli.Context, min, max int, usage string) ([]string, error) {
	a := c.Args().Slice()
	for _, x := range a {
		if len(x) > 1 && x[0] == '-' {
			return nil, usagef("flag %q stands after an argument", x).hint("flags come first: hpcc %s %s", c.Command.Name, usage)
		}
	}
	if len(a) < min || len(a) > max {
		return nil, usagef("%s takes %s", c.Command.Name, usage).hint(`"hpcc %s --help" shows examples`, c.Command.Name)
	}
	return a, nil
}
