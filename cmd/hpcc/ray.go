package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/node"
	"hpcc/text"
)

// rayCommand returns the command that the task of a --ray job runs. The task runs it once for
// the job. It then lets the scheduler's launcher start it again, with --dir, on each node.
func rayCommand() *cli.Command {
	return &cli.Command{
		Name: "ray", Hidden: true, Usage: "run a program as the driver of a Ray cluster (started by job scripts)",
		ArgsUsage: "-- CMD [ARG...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "run under scheduler `TARGET`"},
			&cli.IntFlag{Name: "nodes", Value: 1, Usage: "start Ray on `N` nodes"},
			&cli.IntFlag{Name: "cpus", Usage: "give each node `N` CPUs (default: those available)"},
			&cli.IntFlag{Name: "gpus", Usage: "give each node `N` GPUs"},
			&cli.Int64Flag{Name: "mem", Usage: "give each node `BYTES` of memory"},
			&cli.IntFlag{Name: "image-words", Usage: "use the first `N` arguments to start programs in the image"},
			&cli.StringFlag{Name: "dir", Usage: "join the Ray cluster that meets in `DIR`"},
			&cli.StringFlag{Name: "peer", Usage: "use the address that reaches `HOST`"},
			&cli.IntFlag{Name: "rank", Usage: "act as node `N` (default: the rank that srun sets)"},
		},
		Action: action(parseRay),
	}
}

type rayArgs struct {
	to   job.Target
	plan node.RayPlan
	dir  string // meeting directory of the Ray cluster that this node joins; "" to start one
	rank int    // of this node; -1 for the rank that the launcher sets
	peer string
}

func parseRay(c *cli.Context) (*rayArgs, error) {
	a := &rayArgs{dir: c.String("dir"), rank: -1, peer: c.String("peer"), to: job.Target(c.String("to"))}
	if c.IsSet("rank") {
		a.rank = c.Int("rank")
	}
	if c.IsSet("dir") {
		return a, nil
	}
	if os.Getenv("HPCC_JOB_DIR") == "" {
		return nil, text.Usagef("ray is for job scripts only").Hint("hpcc submit --ray --nodes 2 IMAGE -- python main.py")
	}
	argv, n := trimDashes(c.Args().Slice()), c.Int("image-words")
	if n < 2 || n >= len(argv) {
		return nil, text.Usagef("--image-words %d does not fit %d arguments", n, len(argv))
	}
	a.plan = node.RayPlan{Nodes: c.Int("nodes"), CPUs: c.Int("cpus"), GPUs: c.Int("gpus"),
		Memory: c.Int64("mem"), Image: argv[:n], Program: argv[n:]}
	return a, nil
}

func (a *rayArgs) run(ctx context.Context) (err error) {
	var status int
	if a.dir != "" {
		status, err = dispatch.OnNode().JoinRay(ctx, a.dir, a.rank, a.peer, say)
	} else {
		self, serr := os.Executable()
		if serr != nil {
			return fmt.Errorf("finding hpcc itself: %w", serr)
		}
		status, err = dispatch.OnNode().StartRay(ctx, a.to, os.Getenv("HPCC_JOB_DIR"), a.plan, []string{self, "ray"}, say)
	}
	if err != nil {
		return err
	}
	return exitStatus(status)
}
