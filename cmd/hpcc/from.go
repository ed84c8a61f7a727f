package main

import (
	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/prepare"
)

// dialects lists the schedulers whose scripts --from reads, for help texts.
const dialects = "slurm, lsf, gridengine, pbs"

// targetNames lists the values of --to.
const targetNames = dialects + ", kubernetes, openshift, argo, local"

// fromFlags are the flags that read a job script of a scheduler.
func fromFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "from", Usage: "translate job script or manifest `FILE` (- is stdin)"},
	}, inSection(fromSection,
		&cli.StringFlag{Name: "dialect", Usage: "read --from as `SCHEDULER`: " + dialects},
		&cli.StringFlag{Name: "report", Value: "table", Usage: "report what became of each directive as `FORMAT`: table, json or none"},
		&cli.BoolFlag{Name: "strict", Usage: "fail when a directive cannot be translated (default for submit)"},
	)...)
}

func parseFrom(c *cli.Context) prepare.From {
	return prepare.From{Files: c.StringSlice("from"), Dialect: job.Target(c.String("dialect")), Report: c.String("report"),
		Strict: c.Bool("strict") || (c.Command.Name == "submit" && !c.IsSet("strict"))}
}
