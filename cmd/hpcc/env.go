package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/runtime/process"
	"hpcc/text"
)

// envCommand returns the command that starts the program of a job without an image. So its
// variables do not change the launchers of the host.
func envCommand() *cli.Command {
	return &cli.Command{
		Name: "env", Hidden: true, Usage: "run a program of the host with other variables (started by job scripts)",
		ArgsUsage: "-- CMD [ARG...]",
		Flags:     new(envChanges).flags(), Action: programAction(parseEnv),
	}
}

type envArgs struct {
	env  *envChanges
	argv []string
}

func parseEnv(c *cli.Context) (*envArgs, error) {
	a := &envArgs{env: envOf(c), argv: trimDashes(c.Args().Slice())}
	if len(a.argv) == 0 {
		return nil, text.Usagef("env needs a command after --")
	}
	return a, nil
}

func (a *envArgs) run(context.Context) error {
	vars, err := envfile.Apply(os.Environ(), a.env.List, !a.env.NoExpand)
	if err == nil { // finds the program
		err = os.Setenv("PATH", envfile.Lookup(vars, "PATH"))
	}
	if err != nil {
		return atStatus(process.ExitFailed, err)
	}
	return execLocal(a.argv, vars)
}
