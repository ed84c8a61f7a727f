package main

import (
	"context"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/front/docker"
	"hpcc/runtime"
	"hpcc/text"
)

// dockerCommand does what docker does and other commands of hpcc do not.
func dockerCommand() *cli.Command {
	return &cli.Command{
		Name: "docker", Hidden: true, Usage: "list images and end containers as docker does (started by docker)",
		ArgsUsage: "OPERATION [ARG...]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quiet", Usage: "print only IDs"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "print complete IDs"}, &cli.BoolFlag{Name: "digests", Usage: "print digests"},
			&cli.StringFlag{Name: "format", Usage: "print with Go template `FORMAT`, or json"},
			&cli.StringSliceFlag{Name: "filter", Usage: "print only what matches `NAME=VALUE`"},
			&cli.BoolFlag{Name: "force", Usage: "do not report what is missing"},
			&cli.StringFlag{Name: "signal", Usage: "send signal `NAME`"},
			&cli.IntFlag{Name: "time", Value: 10, Usage: "wait `SECONDS` before SIGKILL"}, storeFlag(),
		},
		Action: action(parseDocker),
	}
}

// dockerArgs is a command line of "hpcc docker".
type dockerArgs docker.Command

func parseDocker(c *cli.Context) (*dockerArgs, error) {
	if c.NArg() == 0 {
		return nil, text.Usagef("docker needs an operation").Hint("use docker: hpcc install-fronts DIR")
	}
	return &dockerArgs{
		Operation: c.Args().First(), Args: c.Args().Tail(), Quiet: c.Bool("quiet"), Full: c.Bool("no-trunc"), Digests: c.Bool("digests"),
		Filters: c.StringSlice("filter"), Format: c.String("format"), Force: c.Bool("force"), Signal: c.String("signal"),
		Wait: time.Duration(c.Int("time")) * time.Second, Store: c.String("store"), Revision: version,
	}, nil
}

func (a *dockerArgs) run(context.Context) error { return (*docker.Command)(a).Run(os.Stdout) }

// dockerRunFlags are the hidden flags of "hpcc run" that package front uses for docker.
func dockerRunFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "docker-id", Hidden: true, Usage: "run the program as docker does, in container `ID`"},
		&cli.StringFlag{Name: "docker-name", Hidden: true, Usage: "with --docker-id: `NAME` of the container"},
		&cli.StringFlag{Name: "docker-user", Hidden: true, Usage: "with --docker-id: run as `USER` of the image"},
		&cli.StringFlag{Name: "docker-cidfile", Hidden: true, Usage: "with --docker-id: write the ID to new `FILE`"},
		&cli.StringSliceFlag{Name: "docker-ulimit", Hidden: true, Usage: "with --docker-id: set limit `NAME=SOFT:HARD`"},
		&cli.StringFlag{Name: "docker-platform", Hidden: true, Usage: "with --docker-id: fail if the image is not for `OS/ARCH`"},
	}
}

// parseDockerRun reads these flags, and completes the options of the runtime.
func parseDockerRun(c *cli.Context, o *runtime.Options) (docker.Run, error) {
	d := docker.Run{ID: c.String("docker-id"), Name: c.String("docker-name"), CIDFile: c.String("docker-cidfile"),
		Want: c.String("docker-platform")}
	if d.ID == "" {
		return d, nil
	}
	o.Docker, o.User = true, c.String("docker-user")
	for _, arg := range c.StringSlice("docker-ulimit") {
		limit, err := docker.ParseLimit(arg)
		if err != nil {
			return d, err
		}
		o.Limits = append(o.Limits, limit)
	}
	return d, nil
}
