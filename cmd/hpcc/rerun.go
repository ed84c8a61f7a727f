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
	"hpcc/job/prepare"
	"hpcc/store"
	"hpcc/text"
)

func rerunCommand() *cli.Command {
	return &cli.Command{
		Name: "rerun", Usage: "run the failed tasks of a job again", ArgsUsage: "JOB...",
		Description: `Runs again the tasks that failed, were cancelled or were lost, under the same indices and in the same
image, also if its name has moved. Keeps the records of earlier attempts.

   hpcc rerun main
   hpcc rerun --image sci main
   hpcc rerun --wait --mem 8G --time 4h main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with its program's status, or 1"},
			&cli.StringFlag{Name: "mem", Usage: "request `SIZE` of memory per node: 512M, 4G"},
			&cli.StringFlag{Name: "time", Usage: "limit the run time to `TIME`: 90m, 1h30m or 1-12:00:00"},
			&cli.StringFlag{Name: "image", Usage: "run in `IMAGE` as it is now (default: as it was at submission)"},
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
	image      string      // "": as in the last attempt
}

func parseRerun(c *cli.Context) (*rerunArgs, error) {
	jobs, err := parseEachJob(c, "wait", "json")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"mem", "time", "image"} {
		if c.IsSet(name) {
			jobs.switches = append(jobs.switches, "--"+name+"="+c.String(name))
		}
	}
	size, err := parseSize(c)
	return &rerunArgs{eachJob: jobs, wait: c.Bool("wait"), json: c.Bool("json"), size: size, image: c.String("image")}, err
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
	to, err := a.asked()
	if err != nil {
		release()
		return err
	}
	tasks, notes, err := s.Rerun(ctx, st.Jobs(), to, func(j *job.Job) error { return a.checkImageVersion(ctx, s, j) })
	release()
	if errors.Is(err, dispatch.ErrNothingFailed) {
		say("job %s: %v", s.ID, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("running tasks of job %s again: %w", s.ID, err)
	}
	sayNotes(notes)
	noteMoved(st, s)
	if a.json {
		err = json.NewEncoder(os.Stdout).Encode(withImage(map[string]any{"type": "job", "id": s.ID,
			"native": s.Reruns[len(s.Reruns)-1].Native, "target": s.Target, "tasks": len(tasks)}, s.Imaged()))
	} else {
		_, err = fmt.Println(s.ID)
	}
	if s.Job.Workflow != nil {
		say("job %s: %s again, and the steps that depend on them", s.ID, text.Count(len(tasks), "step runs", "steps run"))
	} else {
		say("job %s: %d of %s run again: %s", s.ID, len(tasks), text.Count(s.Job.Count(), "task", "tasks"), job.Indices(tasks))
	}
	if err != nil || !a.wait {
		return err
	}
	return waitFor(ctx, st, s)
}

// asked returns the memory, time and image of the command line.
func (a *rerunArgs) asked() (to dispatch.Rerun, err error) {
	to.Memory, to.Time = a.size.Memory, a.size.Time
	if a.image == "" {
		return to, nil
	}
	named := job.Job{Image: a.image}
	err = prepare.PinImage(&named, a.store)
	to.Image, to.ImageVersion = named.Image, named.ImageVersion
	return to, err
}

// checkImageVersion refuses to run tasks of a job again in an image that is gone, or in a file that has changed. It unpacks the
// image if needed.
func (a *rerunArgs) checkImageVersion(ctx context.Context, s *dispatch.Submission, j *job.Job) (err error) {
	if j.Image == "" || s.Target.Pods() {
		return nil
	}
	if j.ImageFile == "" {
		at := newRoot(j.ExactImage(), a.store)
		_, err = at.Tree(ctx)
	} else if _, err = os.Stat(j.Image); err == nil {
		err = j.Changed(j.Image)
	}
	if err != nil && a.image == "" && !errors.As(err, new(*text.Error)) {
		return text.Hint(err, "hpcc rerun --image %s %s runs the tasks in that image as it is now", j.Image, s.ID)
	}
	return err
}

// noteMoved prints a note if the name of the job's image refers to another image now.
func noteMoved(st *store.Store, s *dispatch.Submission) {
	j := s.Imaged()
	if d, err := st.Digest(j.Image); err == nil && j.ImageDigest != "" && d.String() != j.ImageDigest && !s.Target.Pods() {
		say("note: %s refers to another image now: the tasks run in %s as before, not in %s; --image %s takes the new one", j.Image, j.ImageDigest, d, j.Image)
	}
}
