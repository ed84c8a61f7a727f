package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/store"
)

func cancelCommand() *cli.Command {
	return &cli.Command{
		Name: "cancel", Usage: "cancel jobs", ArgsUsage: "JOB...",
		Description: `Cancels running and queued tasks. "hpcc rerun" runs them again.

   hpcc cancel main`,
		Flags:  []cli.Flag{onFlag(), storeFlag()},
		Action: action(parseCancel),
	}
}

type cancelArgs struct{ *eachJob }

func parseCancel(c *cli.Context) (*cancelArgs, error) {
	jobs, err := parseEachJob(c)
	return &cancelArgs{jobs}, err
}

func (a *cancelArgs) run(ctx context.Context) error {
	return a.each(ctx, func(st *store.Store, s *dispatch.Submission) error {
		s, release, err := alone(ctx, st, s)
		if err != nil {
			return err
		}
		defer release()
		ended, err := s.Cancel(ctx, st.Jobs())
		if err == nil && !ended {
			say("job %s has already ended", s.ID)
		}
		return err
	})
}
