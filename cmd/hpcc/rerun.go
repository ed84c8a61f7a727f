package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
)

func rerunCommand() *cli.Command {
	return &cli.Command{
		Name: "rerun", Usage: "run the failed tasks of a job again", ArgsUsage: "JOB...",
		Description: `Runs again the tasks that failed, were cancelled or were lost, under the same indices. Keeps the
records of earlier attempts.

   hpcc rerun main
   hpcc rerun --wait main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with 1 if a task failed"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per job"},
			onFlag(), storeFlag(),
		},
		Action: action(parseRerun),
	}
}

type rerunArgs struct {
	*eachJob
	wait, json bool
}

func parseRerun(c *cli.Context) (*rerunArgs, error) {
	jobs, err := parseEachJob(c, "wait", "json")
	return &rerunArgs{eachJob: jobs, wait: c.Bool("wait"), json: c.Bool("json")}, err
}

func (a *rerunArgs) run(ctx context.Context) error {
	return a.each(ctx, func(s *dispatch.Submission, dir string) error { return a.rerunJob(ctx, s, dir) })
}

// rerunJob submits the tasks of one job again.
func (a *rerunArgs) rerunJob(ctx context.Context, s *dispatch.Submission, dir string) error {
	s, release, err := a.alone(ctx, s, dir)
	if err != nil {
		return err
	}
	tasks, notes, err := s.Rerun(ctx, dir)
	release()
	if errors.Is(err, dispatch.ErrNothingFailed) {
		say("job %s: %v", s.ID, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("running tasks of job %s again: %w", s.ID, err)
	}
	sayNotes(notes)
	if a.json {
		err = json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "job", "id": s.ID, "native": s.Reruns[len(s.Reruns)-1].Native, "target": s.Target, "tasks": len(tasks)})
	} else {
		_, err = fmt.Println(s.ID)
	}
	if s.Job.Workflow != nil {
		say("job %s: %s again, and the steps that depend on them", s.ID, counted(len(tasks), "step runs", "steps run"))
	} else {
		say("job %s: %d of %s run again: %s", s.ID, len(tasks), counted(s.Job.Count(), "task", "tasks"), indices(tasks))
	}
	if err != nil || !a.wait {
		return err
	}
	return waitFor(ctx, dir, s)
}
