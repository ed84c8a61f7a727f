package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/prepare"
	"hpcc/job/quantity"
	"hpcc/job/site"
	"hpcc/runtime/explain"
	"hpcc/store"
	"hpcc/text"
)

func submitCommand() *cli.Command {
	return &cli.Command{
		Name: "submit", Usage: "submit a job", ArgsUsage: jobUsage,
		Description: `Submits CMD in IMAGE to the scheduler of this machine, or to another target. Prints the job's ID.
Every task leaves a record, which "hpcc status" reads.

   hpcc submit --array 1-8 sci -- python main.py --id={task}
   hpcc submit --to local --wait --array 1-8 sci -- python main.py --id={task}
   hpcc submit -N 2 --tasks-per-node 4 --time 2h sci -- python mpi.py
   hpcc submit --interactive --gpus 1 sci -- bash
   hpcc submit --dry-run -N 4 --time 2h sci -- python mpi.py

The program finds its index in HPCC_TASK_ID and as {task} in CMD, and the number of tasks in
HPCC_TASK_COUNT.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with its program's status, or 1"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show where and when the job would start, and exit"},
			&cli.BoolFlag{Name: "explain", Usage: "print the job and what its program would see, and exit"},
		}, jobFlags(), inSection(scheduleSection,
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "backfill", Usage: "shorten --time to fit into idle slots"},
			&cli.StringFlag{Name: "time-min", Usage: "with --backfill: keep at least `TIME` (default: a quarter of --time)"},
		)),
		Action: action(parseSubmit),
	}
}

type submitArgs struct {
	*jobArgs
	wait, json bool
	record     bool // print the record, for hpcc on another machine
	explain    bool
}

func parseSubmit(c *cli.Context) (verb, error) {
	choices, err := parseSiteChoices(c)
	if err != nil {
		return nil, err
	}
	if len(choices) > 1 {
		return parseSeveral(c, choices)
	}
	return parseSubmitTo(c, choices[0])
}

func parseSubmitTo(c *cli.Context, at site.Choice) (*submitArgs, error) {
	j, err := parseJob(c, at)
	if err != nil {
		return nil, err
	}
	a := &submitArgs{jobArgs: j, wait: c.Bool("wait"), json: c.Bool("json"),
		record: c.Bool("record"), explain: c.Bool("explain")}
	if a.explain {
		a.Sources = explain.Sources{}
	}
	a.Backfill = c.Bool("backfill")
	if s := c.String("time-min"); s != "" && a.Backfill {
		if a.TimeMin, err = quantity.ParseTime(s); err != nil {
			return nil, text.Usagef("--time-min: %w", err)
		}
	}
	return a, nil
}

func (a *submitArgs) run(ctx context.Context) error {
	j, to, err := prepare.Ready(ctx, &a.Request)
	switch {
	case err != nil:
		return err
	case a.explain:
		return a.explainJob(ctx, j, to)
	case a.DryRun:
		return a.reportFit(ctx, j, to)
	case j.Interactive:
		return to.Interact(ctx, &a.Request, j)
	}
	sub, err := a.send(ctx, j, to)
	if err != nil || !a.wait {
		return err
	}
	return a.await(ctx, sub, to)
}

// waitFor waits for the end of a job and returns an error if it did not succeed.
func waitFor(ctx context.Context, st *store.Store, s *dispatch.Submission) error {
	if err := waitEnd(ctx, st, s); err != nil {
		return err
	}
	return verdict(ctx, st.Jobs(), s.ID)
}

// waitEnd waits for the end of a job.
func waitEnd(ctx context.Context, st *store.Store, s *dispatch.Submission) error {
	lock := func(ctx context.Context) func() { return lockJob(ctx, st, s.ID) }
	return s.Wait(ctx, st.Jobs(), lock, sayLine)
}

// reportFit is send for --dry-run: it prints where and when the job would start.
func (a *submitArgs) reportFit(ctx context.Context, j *job.Job, to *prepare.Destination) error {
	if to.Remote != nil {
		argv := []string{"submit", "--job", "-", "--dry-run"}
		if a.json {
			argv = append(argv, "--json")
		}
		out, err := to.Ask(ctx, j, argv...)
		_, werr := os.Stdout.Write(out)
		return cmp.Or(err, werr)
	}
	f, err := to.Fits(ctx, &a.Request, j)
	if err != nil {
		return err
	}
	return printFit(f, a.json)
}

// manyFiles is the number of tasks above which submit warns about their output files.
const manyFiles = 100

// printSubmitted prints the ID of a submitted job.
func (a *submitArgs) printSubmitted(sub *dispatch.Submission, where string) error {
	var err error
	switch {
	case a.record:
		return json.NewEncoder(os.Stdout).Encode(sub.Redacted())
	case a.json:
		answer := withImage(map[string]any{"type": "job", "id": sub.ID, "native": sub.Native, "target": sub.Target,
			"tasks": sub.Job.Count()}, sub.Job)
		if sub.Site != "" {
			answer["site"] = sub.Site
		}
		err = json.NewEncoder(os.Stdout).Encode(answer)
	default:
		_, err = fmt.Println(sub.ID)
	}
	if sub.Job.Workflow != nil {
		say("submitted workflow %s to %s; \"hpcc status %s\" shows its state", sub.Native, where, sub.ID)
	} else if n := sub.Job.Count(); sub.Target == job.Local && sub.Site == "" && n > manyFiles &&
		sub.Job.Output == "" && !sub.Job.Packed() {
		say("each of the %d tasks writes a file to %s; \"--output logs/{task}.out\" writes them to a subdirectory", n, sub.Job.Dir)
	} else if sub.Target != job.Local || sub.Site != "" {
		say("submitted job %s to %s, %s; \"hpcc status %s\" shows its state",
			sub.Native, where, text.Count(sub.Job.Count(), "task", "tasks"), sub.ID)
	}
	return err
}

// withImage adds the image of a job to an object.
func withImage(object map[string]any, j *job.Job) map[string]any {
	for name, value := range map[string]string{"image": j.Image, "image_digest": j.ImageDigest, "image_file": j.ImageFile} {
		if value != "" {
			object[name] = value
		}
	}
	return object
}

// verdict returns an error if a job that has ended did not succeed.
func verdict(ctx context.Context, dir, id string) error {
	warnings, err := dispatch.Verdict(ctx, dir, id)
	warn(warnings)
	return err
}

// sayNotes prints notes to standard error.
func sayNotes(notes []string) {
	for _, n := range notes {
		say("note: %s", n)
	}
}

// parseRepeated returns the values of a flag that may be given several times, or once.
func parseRepeated(c *cli.Context, name string) []string {
	switch v := c.Value(name).(type) {
	case string:
		if v != "" {
			return []string{v}
		}
	case cli.StringSlice:
		return v.Value()
	}
	return nil
}

// parseSiteChoices reads --to and --on of a job: one choice, or one for each of several targets
// or sites.
func parseSiteChoices(c *cli.Context) (list []site.Choice, err error) {
	targets, sites := parseRepeated(c, "to"), parseRepeated(c, "on")
	if len(targets) <= 1 && len(sites) <= 1 {
		w, err := newChoice(strings.Join(sites, ""), strings.Join(targets, ""))
		return []site.Choice{w}, err
	}
	if len(targets) > 0 && len(sites) > 0 {
		return nil, text.Usagef("--to and --on cannot be combined for several targets").
			Hint("name only sites, --on A --on B, or only targets, --to A --to B")
	}
	for _, name := range slices.Concat(targets, sites) {
		w := site.Choice{On: name}
		if len(targets) > 0 {
			if w, err = newChoice("", name); err != nil {
				return nil, err
			}
		}
		if slices.Contains(list, w) {
			return nil, text.Usagef("%s is named twice", name).
				Hint("name each target once; --array runs a program several times on one target")
		}
		list = append(list, w)
	}
	return list, nil
}

// submitSeveral submits one job to several targets.
type submitSeveral []*submitArgs

// parseSeveral parses the same command line for each target.
func parseSeveral(c *cli.Context, choices []site.Choice) (verb, error) {
	for _, name := range []string{"interactive", "after", "workflow", "job"} {
		if c.IsSet(name) {
			return nil, text.Usagef("--%s applies to one target, but the job goes to %d", name, len(choices)).
				Hint("submit the job to each target by itself")
		}
	}
	goesTo := func(kind func(job.Target) bool) bool {
		return slices.ContainsFunc(choices, func(w site.Choice) bool { return kind(w.Target()) })
	}
	var list submitSeveral
	for _, w := range choices {
		a, err := parseSubmitTo(c, w)
		if err != nil {
			return nil, err
		}
		// A flag for some of the targets is allowed, and has no effect on the others.
		if goesTo(job.Target.Pods) {
			a.PodFlag = ""
		}
		if goesTo(func(t job.Target) bool { return t == job.Argo }) {
			a.ArgoFlag = ""
		}
		list = append(list, a)
	}
	return list, nil
}

// run submits the job to all targets, after it has checked the job for each of them. If one
// refuses the job later, the others keep theirs.
func (list submitSeveral) run(ctx context.Context) error {
	jobs, to := make([]*job.Job, len(list)), make([]*prepare.Destination, len(list))
	sent := make([]*dispatch.Submission, len(list))
	// each calls do for each target, and returns its errors.
	each := func(doing string, do func(i int, a *submitArgs) error) (failed []error) {
		for i, a := range list {
			if err := do(i, a); err != nil {
				failed = append(failed, atTarget(err, doing, a.At))
			}
		}
		return failed
	}
	for i, a := range list {
		var err error
		if jobs[i], to[i], err = prepare.Ready(ctx, &a.Request); err == nil && to[i].Remote == nil {
			err = to[i].Check(ctx, jobs[i])
		}
		if err != nil {
			return atTarget(err, "checking the job for", a.At)
		}
	}
	switch first := list[0]; {
	case first.explain:
		for i, a := range list {
			if err := a.explainJob(ctx, jobs[i], to[i]); err != nil {
				return atTarget(err, "explaining the job for", a.At)
			}
		}
		return nil
	case first.DryRun:
		var never exitStatus
		failed := each("submitting to", func(i int, a *submitArgs) error {
			say("%s:", a.At)
			err := a.reportFit(ctx, jobs[i], to[i])
			if errors.As(err, &never) {
				return nil
			}
			return err
		})
		if len(failed) == 0 && never != 0 {
			return never
		}
		return errors.Join(failed...)
	}
	var ids, named []string
	failed := each("submitting to", func(i int, a *submitArgs) (err error) {
		if sent[i], err = a.send(ctx, jobs[i], to[i]); sent[i] != nil {
			ids, named = append(ids, sent[i].ID), append(named, a.At.String()+"="+sent[i].ID)
		}
		return err
	})
	if len(failed) > 0 {
		return partly(failed, ids, len(list))
	}
	say("\"hpcc report %s\" compares their runs", text.Arguments(named))
	if !list[0].wait {
		return nil
	}
	return errors.Join(each("waiting for", func(i int, a *submitArgs) error { return a.await(ctx, sent[i], to[i]) })...)
}

// partly returns the error of a job that some targets have not taken. ids are the submitted jobs.
func partly(failed []error, ids []string, total int) error {
	if len(ids) == 0 {
		return errors.Join(failed...)
	}
	m := &text.Error{Err: fmt.Errorf("the job was submitted to %d of %d targets: %w", len(ids), total, errors.Join(failed...))}
	return m.Hint("submit it again with --to or --on of the others only, or end the submitted jobs with hpcc cancel %s", strings.Join(ids, " "))
}

// atTarget adds the target to an error, and keeps its hint and status.
func atTarget(err error, doing string, at site.Choice) error {
	wrapped := &text.Error{Err: fmt.Errorf("%s %s: %w", doing, at, err)}
	if m := (*text.Error)(nil); errors.As(err, &m) {
		wrapped.Advice, wrapped.Status = m.Advice, m.Status
	}
	return wrapped
}

// send submits a prepared job, and prints its ID.
func (a *submitArgs) send(ctx context.Context, j *job.Job, to *prepare.Destination) (*dispatch.Submission, error) {
	sub, err := to.Submit(ctx, &a.Request, j)
	if err != nil {
		return nil, err
	}
	return sub, a.printSubmitted(sub, to.String())
}

// await waits for the end of a submitted job, and returns an error if it did not succeed.
func (a *submitArgs) await(ctx context.Context, sub *dispatch.Submission, to *prepare.Destination) error {
	if to.Remote != nil {
		return to.Remote.Run(ctx, nil, os.Stdout, os.Stderr, "wait", sub.ID)
	}
	s, err := store.Open(a.Store)
	if err != nil {
		return err
	}
	return waitFor(ctx, s, sub)
}
