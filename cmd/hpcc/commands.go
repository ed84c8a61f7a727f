package main

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// commands returns the commands in the order in which help lists them.
func commands() []*cli.Command {
	return slices.Concat(
		inGroup("Build and run", buildCommand(), runCommand(), checkCommand(), doctorCommand(), completionCommand()),
		inGroup("Images", imagesCommand(), pullCommand(), pushCommand(), deployCommand(), loginCommand(),
			loadCommand(), saveCommand(), unpackCommand(), commitCommand(), tagCommand(), inspectCommand(), historyCommand(), rmCommand(), gcCommand()),
		inGroup("Jobs", submitCommand(), statusCommand(), logsCommand(), fetchCommand(), topCommand(), waitCommand(), cancelCommand(), rerunCommand(),
			attachCommand(), forwardCommand(), scriptCommand()),
		inGroup("Clusters", nodesCommand(), sitesCommand(), reportCommand()),
		inGroup("Started by other programs", entryCommand(), ociCommand(),
			taskCommand(), rayCommand(), hereCommand(), relayCommand(), enterCommand(), completeCommand(), manCommand()),
	)
}

// inGroup puts commands into a group of the help.
func inGroup(title string, list ...*cli.Command) []*cli.Command {
	for _, c := range list {
		c.Category = title
	}
	return list
}
