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
			loadCommand(), saveCommand(), unpackCommand(), commitCommand(), tagCommand(), inspectCommand(),
			historyCommand(), rmCommand(), gcCommand()),
		inGroup("Jobs and clusters", submitCommand(), statusCommand(), logsCommand(), fetchCommand(),
			topCommand(), waitCommand(), cancelCommand(), rerunCommand(),
			attachCommand(), forwardCommand(), scriptCommand(), nodesCommand(), sitesCommand(), reportCommand()),
		inGroup("Use from other tools", installFrontsCommand(), wrapCommand(), kernelCommand(), snakemakeProfileCommand()),
		inGroup(startedByOthers, entryCommand(), ociCommand(),
			taskCommand(), envCommand(), stageCommand(), hereCommand(), relayCommand(),
			enterCommand(), sshdCommand(), completeCommand(), manCommand(), charliecloudCommand(), dockerCommand(),
			snakemakeStatusCommand(), snakemakeCancelCommand()),
	)
}

// startedByOthers is the group of the commands that other programs start. The help lists it only
// in docs/cli.md.
const startedByOthers = "Started by other programs"

// inGroup puts commands into a group of the help.
func inGroup(title string, list ...*cli.Command) []*cli.Command {
	for _, c := range list {
		c.Category = title
	}
	return list
}
