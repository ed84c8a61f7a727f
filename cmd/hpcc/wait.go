package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/store"
	"hpcc/text"
)

func waitCommand() *cli.Command {
	return &cli.Command{
		Name: "wait", Usage: "wait for jobs to end", ArgsUsage: "JOB...",
		Description: `Waits until jobs have ended. Exit status: 0 if all tasks succeeded, else 1; for one job of one task, the status
of its program.

   hpcc wait main && hpcc submit --name next sci -- python next.py`,
		Flags:  []cli.Flag{onFlag(), storeFlag()},
		Action: action(parseWait),
	}
}

type waitArgs struct{ *eachJob }

func parseWait(c *cli.Context) (*waitArgs, error) {
	jobs, err := parseEachJob(c)
	return &waitArgs{jobs}, err
}

func (a *waitArgs) run(ctx context.Context) error {
	var failed []error
	err := a.each(ctx, func(st *store.Store, s *dispatch.Submission) error {
		if err := waitEnd(ctx, st, s); err != nil {
			return err
		}
		failed = append(failed, verdict(ctx, st.Jobs(), s.ID))
		return nil
	})
	if errors.As(err, new(exitStatus)) && errors.Join(failed...) != nil {
		err = nil // the exit status of a site would hide the messages about jobs of this machine
	}
	if err = errors.Join(append(failed, err)...); err != nil && len(failed) > 1 && !errors.As(err, new(exitStatus)) {
		err = &text.Error{Err: err, Status: exitFailure}
	}
	return err
}
