package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/quantity"
	"hpcc/metrics"
	"hpcc/runtime"
	"hpcc/runtime/usertext"
	"hpcc/store"
	"hpcc/unpack"
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

The program finds its index in HPCC_TASK_ID, and the number of tasks in HPCC_TASK_COUNT. {task} in
CMD is the index. Exit status with --wait: 1 if a task failed.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with 1 if a task failed"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show where and when the job would start, and exit"},
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
	write            bool // --write: checked before the job starts
	wait, json       bool
	record           bool // print the record, for hpcc on another machine
	dryRun, backfill bool
	timeMin          time.Duration // the shortest limit that --backfill may choose; 0 for a quarter of --time
}

func parseSubmit(c *cli.Context) (*submitArgs, error) {
	j, err := parseJob(c)
	if err != nil {
		return nil, err
	}
	a := &submitArgs{jobArgs: j, write: c.Bool("write"), wait: c.Bool("wait"), json: c.Bool("json"), record: c.Bool("record"), dryRun: c.Bool("dry-run"), backfill: c.Bool("backfill")}
	if s := c.String("time-min"); s != "" && a.backfill {
		if a.timeMin, err = quantity.ParseTime(s); err != nil {
			return nil, usagef("--time-min: %w", err)
		}
	}
	return a, nil
}

func (a *submitArgs) run(ctx context.Context) error {
	j, to, err := a.resolve(ctx)
	if err != nil {
		return err
	}
	if to.remote != nil {
		return a.submitRemote(ctx, j, to)
	}
	if err := pinCluster(ctx, to); err != nil {
		return err
	}
	if err := a.fitTime(ctx, j, to.Cluster); err != nil {
		return err
	}
	if a.dryRun {
		return a.reportFit(ctx, j, to.Cluster)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	// Unpack the image now, or else every node would unpack it at the same time.
	if j.Image != "" && !namesSquashFS(j.Image) && !to.Target.Pods() {
		at := rootArgs{image: j.Image, store: a.store, write: a.write}
		dir, err := at.imageDir(ctx)
		if err == nil {
			err = a.checkProgram(dir, j.Args)
		}
		if err != nil {
			return err
		}
	}
	if j.After, err = nativeIDs(ctx, s.Jobs(), j.After); err != nil {
		return err
	}
	if j.Interactive {
		return interactive(ctx, s.Jobs(), j, to.Cluster)
	}
	sub, notes, err := dispatch.Submit(ctx, s.Jobs(), j, to.Cluster)
	if err != nil {
		return readOnlyHint(err, s.Jobs(), storeHint)
	}
	sayNotes(notes)
	if err := a.printSubmitted(sub, to.String()); err != nil || !a.wait {
		return err
	}
	return waitFor(ctx, s, sub)
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
	return s.Wait(ctx, st.Jobs(), lock, func(text string) { say("%s", text) })
}

// programFlags are the flags that can change which program a name means.
var programFlags = []string{"from", "workflow", "entrypoint", "set-env", "set-env0", "unset-env", "clean-env", "env", "bind", "mount", "device", "mpi", "gpu", "ray"}

// checkProgram refuses a job whose program is not in the image's PATH, because every task would
// fail. It skips jobs whose program depends on flags or on an ENTRYPOINT.
func (a *submitArgs) checkProgram(dir string, argv []string) error {
	for _, name := range programFlags {
		if a.set[name] {
			return nil
		}
	}
	if len(argv) == 0 || strings.ContainsAny(argv[0], "/{") {
		return nil
	}
	img, err := runtime.ReadImage(dir, unpack.ConfigFile)
	if err != nil || len(img.Config.Entrypoint) > 0 {
		return nil // the run reports the error
	}
	path := envfile.Lookup(img.Config.Env, "PATH")
	if path == "" {
		path = os.Getenv("PATH") + ":" + runtime.StandardPath
	}
	home := os.Getenv("HOME") + "/"
	var dirs []string
	for _, d := range filepath.SplitList(path) {
		inside, err := securejoin.SecureJoin(dir, filepath.Join(d, argv[0]))
		if err != nil {
			return nil
		}
		if _, err := os.Stat(inside); err == nil {
			return nil
		}
		if _, err := os.Stat(filepath.Join(d, argv[0])); err == nil && strings.HasPrefix(d, home) { // the home directory is bound
			return nil
		}
		dirs = append(dirs, filepath.Dir(inside))
	}
	m := usagef("image %s has no program %q in its PATH (%s)", a.image, argv[0], path)
	if like := usertext.Similar(argv[0], dirs...); like != "" {
		return m.hint("did you mean %q?", like)
	}
	return m.hint("the program comes after IMAGE: hpcc %s %s -- CMD", a.verb, a.image)
}

// fitTime shortens the job's time limit to a free window, with --backfill.
func (a *submitArgs) fitTime(ctx context.Context, j *job.Job, to dispatch.Cluster) error {
	if !a.backfill {
		if a.set["time-min"] {
			return usagef("--time-min needs --backfill").hint("to pass it to Slurm, write --native --time-min=1:00:00")
		}
		return nil
	}
	notes, err := dispatch.Backfill(to.Within(ctx), j, to.Target, a.timeMin)
	if err != nil {
		return fmt.Errorf("--backfill: %w", err)
	}
	for _, n := range notes {
		say("backfill: %s", n)
	}
	return nil
}

// reportFit implements --dry-run: it prints where and when the job would start.
func (a *submitArgs) reportFit(ctx context.Context, j *job.Job, to dispatch.Cluster) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	if j.After, err = nativeIDs(ctx, s.Jobs(), j.After); err != nil {
		return err
	}
	f, err := dispatch.Fits(to.Within(ctx), j, to.Target)
	if err != nil {
		return err
	}
	return printFit(f, a.json)
}

// storeHint is the hint for a job whose records cannot be written.
const storeHint = "jobs keep their records in the store; set HPCC_STORE to a directory that you can write to"

// manyFiles is the number of tasks above which submit warns about their output files.
const manyFiles = 100

// printSubmitted prints the ID of a submitted job.
func (a *submitArgs) printSubmitted(sub *dispatch.Submission, where string) error {
	var err error
	switch {
	case a.record:
		return json.NewEncoder(os.Stdout).Encode(sub.Redacted())
	case a.json:
		answer := map[string]any{"type": "job", "id": sub.ID, "native": sub.Native, "target": sub.Target, "tasks": sub.Job.Count()}
		if sub.Site != "" {
			answer["site"] = sub.Site
		}
		err = json.NewEncoder(os.Stdout).Encode(answer)
	default:
		_, err = fmt.Println(sub.ID)
	}
	if sub.Job.Workflow != nil {
		say("submitted workflow %s to %s; \"hpcc status %s\" shows its state", sub.Native, where, sub.ID)
	} else if n := sub.Job.Count(); sub.Target == job.Local && sub.Site == "" && n > manyFiles && sub.Job.Output == "" {
		say("each of the %d tasks writes a file to %s; \"--output logs/{task}.out\" writes them to a subdirectory", n, sub.Job.Dir)
	} else if sub.Target != job.Local || sub.Site != "" {
		say("submitted job %s to %s, %s; \"hpcc status %s\" shows its state", sub.Native, where, counted(sub.Job.Count(), "task", "tasks"), sub.ID)
	}
	return err
}

// verdict returns an error if a job that has ended did not succeed.
func verdict(ctx context.Context, dir, id string) error {
	list, warnings, err := dispatch.Statuses(ctx, dir, []string{id})
	if err != nil {
		return err
	}
	warn(warnings)
	st := list[0]
	if st.Done == st.Total {
		return nil
	}
	text := fmt.Sprintf("%d of %s did not succeed", st.Total-st.Done, counted(st.Total, "task", "tasks"))
	if st.Stopped > 0 {
		text += fmt.Sprintf(", %d of them because the job was cancelled", st.Stopped)
	}
	if n := len(st.Failed); n > 0 {
		text += ": " + indices(st.Failed)
		for _, t := range st.Tasks {
			if !t.OK() && t.Output != "" {
				return (&message{err: fmt.Errorf("job %s: %s", id, text)}).hint("see the output of task %d in %s", t.Index, t.Output)
			}
		}
	}
	return fmt.Errorf("job %s: %s", id, text)
}

// indices lists a few task indices.
func indices(list []int) string {
	const most = 20
	text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list[:min(len(list), most)])), ","), "[]")
	if len(list) > most {
		text += ",…"
	}
	return text
}

// nativeIDs converts IDs of hpcc to the IDs of the scheduler. It keeps numbers, which are already
// IDs of the scheduler.
func nativeIDs(ctx context.Context, dir string, ids []string) ([]string, error) {
	var out []string
	for _, id := range ids {
		if strings.Trim(id, "0123456789") == "" {
			out = append(out, id)
			continue
		}
		list, _, err := dispatch.Statuses(ctx, dir, []string{id})
		if err != nil {
			return nil, err
		}
		for _, st := range list {
			out = append(out, st.Native)
		}
	}
	return out, nil
}

// interactive runs the script that "hpcc script --interactive" prints on this terminal, and ends
// with the program's status. It removes the record of a job that the scheduler refused.
func interactive(ctx context.Context, dir string, j *job.Job, to dispatch.Cluster) error {
	sub, script, notes, err := dispatch.Interact(dir, j, to)
	if err != nil {
		return readOnlyHint(err, dir, storeHint)
	}
	sayNotes(notes)
	cmd := exec.Command("bash", script, sub.ID)
	cmd.Env = to.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	run, err := metrics.Measure(ctx, cmd, metrics.Options{})
	home := filepath.Dir(script)
	tasks, terr := readTasks(home)
	if err == nil {
		err = terr
	}
	if err == nil && len(tasks) == 0 {
		err = os.RemoveAll(home)
	}
	if err != nil {
		return fmt.Errorf("running an interactive job: %w", err)
	}
	return exitStatus(run.Status())
}

// sayNotes prints notes to standard error.
func sayNotes(notes []string) {
	for _, n := range notes {
		say("note: %s", n)
	}
}
