package main

import "github.com/urfave/cli/v2"

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
