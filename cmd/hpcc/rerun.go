package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
)

func rerunCommand() *cli.Command {
	return &cli.Command{
		Name: "rerun", Usage: "run the failed tasks of a job again", ArgsUsage: "JOB...",
		Description: `Runs again the tasks that failed, were cancelled or were lost, under the same indices. Keeps the
records of earlier attempts.

   hpcc rerun main
   hpcc rerun --wait --mem 8G --time 4h main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with 1 if a task failed"},
			&cli.StringFlag{Name: "mem", Usage: "request `SIZE` of memory per node: 512M, 4G"},
			&cli.StringFlag{Name: "time", Usage: "limit the run time to `TIME`: 90m, 1h30m or 1-12:00:00"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per job"},
			onFlag(), storeFlag(),
		},
		Action: action(parseRerun),
	}
}

type rerunArgs struct {
	*eachJob
	wait, json bool
	size       job.Request // 0: as in the last attempt
}

func parseRerun(c *cli.Context) (*rerunArgs, error) {
	jobs, err := parseEachJob(c, "wait", "json")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"mem", "time"} {
		if c.IsSet(name) {
			jobs.switches = append(jobs.switches, "--"+name+"="+c.String(name))
		}
	}
	size, err := parseSize(c)
	return &rerunArgs{eachJob: jobs, wait: c.Bool("wait"), json: c.Bool("json"), size: size}, err
}

func (a *rerunArgs) run(ctx context.Context) error {
	return a.each(ctx, func(st *store.Store, s *dispatch.Submission) error { return a.rerunJob(ctx, st, s) })
}

// rerunJob submits the tasks of one job again.
func (a *rerunArgs) rerunJob(ctx context.Context, st *store.Store, s *dispatch.Submission) error {
	s, release, err := alone(ctx, st, s)
	if err != nil {
		return err
	}
	tasks, notes, err := s.Rerun(ctx, st.Jobs(), a.size)
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
	return waitFor(ctx, st, s)
}
