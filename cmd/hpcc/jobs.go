package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
)

// eachJob finds the jobs that the arguments name, all before one is touched. Those
// of sites that ssh reaches are left to hpcc there, with these flags.
func eachJob(c *cli.Context, flags []string, do func(s *dispatch.Submission, dir string) error) error {
	ids, err := parseArguments(c, 1, 1000, "JOB...")
	if err != nil {
		return err
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	var list []found
	for _, id := range ids {
		f, err := findJob(c, s.Jobs(), id)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	ended := exitStatus(0)
	for _, f := range list {
		err := error(nil)
		if f.site != nil {
			err = passOn(c, f.site, slices.Concat([]string{c.Command.Name}, flags, []string{f.id})...)
		} else if _, err = readTasks(filepath.Join(s.Jobs(), f.ID)); err == nil {
			err = do(f.Submission, s.Jobs())
		}
		if errors.As(err, &ended) { // hpcc there has said why; the others have their turn
			continue
		}
		if err != nil {
			return err
		}
	}
	if ended != 0 {
		return ended
	}
	return nil
}

// readTasks reads the records of a job, and warns of those that cannot be read.
func readTasks(home string) ([]job.Task, error) {
	tasks, err := job.Tasks(home)
	var bad *job.RecordsError
	if errors.As(err, &bad) {
		warn([]string{bad.Error()})
		err = nil
	}
	return tasks, err
}

// found is a job of this machine, or the id of one of a site.
type found struct {
	*dispatch.Submission
	site *dispatch.Site
	id   string
}

// findJob finds a job: here, else at the sites that ssh reaches.
func findJob(c *cli.Context, dir, id string) (found, error) {
	sites, here, err := remoteSites(c)
	if err != nil {
		return found{}, err
	}
	none := error(&dispatch.NoJobError{ID: id})
	if here {
		sub, err := dispatch.Find(dir, id)
		if err == nil {
			return found{Submission: sub}, nil
		}
		if none = err; !errors.As(err, new(*dispatch.NoJobError)) {
			return found{}, err
		}
	}
	site, whole, err := dispatch.Owner(c.Context, dir, sites, id)
	if err == nil && site == nil {
		err = none
	}
	return found{site: site, id: whole}, err
}

// findTask finds JOB or JOB.TASK of this machine. A task of a site that ssh reaches is
// reached from there: the refusal says how.
func findTask(c *cli.Context, dir, name string) (*dispatch.Submission, int, error) {
	sub, index, err := dispatch.FindTask(dir, name)
	if !errors.As(err, new(*dispatch.NoJobError)) {
		return sub, index, err
	}
	sites, _, serr := remoteSites(c)
	if serr != nil {
		return nil, 0, serr
	}
	id := name
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		id = name[:i]
	}
	if site, _, oerr := dispatch.Owner(c.Context, dir, sites, id); oerr == nil && site != nil {
		return nil, 0, (&message{err: fmt.Errorf("job %s is of site %s, whose nodes are reached from there", id, site.Name)}).hint("ssh -t %s hpcc %s …", site.SSH, c.Command.Name)
	}
	return nil, 0, err
}

func cancelCommand() *cli.Command {
	return &cli.Command{
		Name: "cancel", Usage: "end jobs", ArgsUsage: "JOB...",
		Description: `Ends the tasks that run or wait. "hpcc rerun" takes them up again.

   hpcc cancel main-261121-090000`,
		Flags: []cli.Flag{onFlag(), storeFlag()},
		Action: func(c *cli.Context) error {
			return eachJob(c, nil, func(s *dispatch.Submission, dir string) error {
				ended, err := s.Cancel(c.Context, dir)
				if err == nil && !ended {
					say("job %s has ended before", s.ID)
				}
				return err
			})
		},
	}
}

func waitCommand() *cli.Command {
	return &cli.Command{
		Name: "wait", Usage: "wait until jobs have ended", ArgsUsage: "JOB...",
		Description: `Exit status: 0 when all tasks succeeded, else 1.

   hpcc wait main-261121-090000 && hpcc submit --name next sci -- python next.py`,
		Flags: []cli.Flag{onFlag(), storeFlag()},
		Action: func(c *cli.Context) error {
			var bad []error
			err := eachJob(c, nil, func(s *dispatch.Submission, dir string) error {
				if err := s.Wait(c.Context, dir); err != nil {
					return err
				}
				bad = append(bad, verdict(c.Context, dir, s.ID))
				return nil
			})
			if errors.As(err, new(exitStatus)) && errors.Join(bad...) != nil {
				err = nil // a site's mere status would hide what is to be said here
			}
			return errors.Join(append(bad, err)...)
		},
	}
}

func rerunCommand() *cli.Command {
	return &cli.Command{
		Name: "rerun", Usage: "run the tasks of a job again that did not succeed", ArgsUsage: "JOB...",
		Description: `Hands in those tasks alone that failed, were cancelled, or were lost, with the indices
they had. The records of earlier attempts stay beside the new ones.

   hpcc rerun main-261121-090000
   hpcc rerun --wait main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "return when the job has ended, with status 1 when a task failed"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object for each job"},
			onFlag(), storeFlag(),
		},
		Action: func(c *cli.Context) error {
			return eachJob(c, given(c, "wait", "json"), func(s *dispatch.Submission, dir string) error { return rerun(c, s, dir) })
		},
	}
}

func rerun(c *cli.Context, s *dispatch.Submission, dir string) error {
	tasks, notes, err := s.Rerun(c.Context, dir)
	if errors.Is(err, dispatch.ErrNothingFailed) {
		say("job %s: %v", s.ID, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("running tasks of job %s again: %w", s.ID, err)
	}
	tell(notes)
	if c.Bool("json") {
		err = json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "job", "id": s.ID, "native": s.Reruns[len(s.Reruns)-1].Native, "target": s.Target, "tasks": len(tasks)})
	} else {
		_, err = fmt.Println(s.ID)
	}
	if s.Job.Workflow != nil {
		say("job %s: %s again, and what waits for them", s.ID, counted(len(tasks), "step runs", "steps run"))
	} else {
		say("job %s: %d of %d tasks run again: %s", s.ID, len(tasks), s.Job.Count(), indices(tasks))
	}
	if err != nil || !c.Bool("wait") {
		return err
	}
	if err := s.Wait(c.Context, dir); err != nil {
		return err
	}
	return verdict(c.Context, dir, s.ID)
}

func logsCommand() *cli.Command {
	return &cli.Command{
		Name: "logs", Usage: "show what tasks wrote", ArgsUsage: "JOB [TASK...]",
		Description: `Shows the output of the job's tasks, or of those that are named by their index.

   hpcc logs main-261121-090000
   hpcc logs --failed main
   hpcc logs -f main 3`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the task has ended"},
			&cli.BoolFlag{Name: "failed", Usage: "only of tasks that did not succeed"},
			onFlag(), storeFlag(),
		},
		Action: func(c *cli.Context) error {
			a, err := parseArguments(c, 1, 1000, "JOB [TASK...]")
			if err != nil {
				return err
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			sub, err := findJob(c, s.Jobs(), a[0])
			if err != nil {
				return err
			}
			if sub.site != nil {
				return passOn(c, sub.site, slices.Concat([]string{"logs"}, given(c, "follow", "failed"), []string{sub.id}, a[1:])...)
			}
			l := taskLogs{sub: sub.Submission, dir: s.Jobs(), failed: c.Bool("failed")}
			for _, w := range a[1:] {
				k, err := strconv.Atoi(w)
				if err != nil {
					if err := l.step(w); err != nil {
						return err
					}
					continue
				}
				l.want = append(l.want, k)
			}
			if !c.Bool("follow") {
				return l.show(c.Context)
			}
			if len(l.want) == 0 && (sub.Job.Workflow != nil || len(sub.Job.Steps) > 0) {
				return l.followSteps(c.Context)
			}
			if len(l.want) == 0 && sub.Job.Count() == 1 {
				l.want = slices.Collect(sub.Job.Array.All())
				if len(l.want) == 0 {
					l.want = []int{0}
				}
			}
			if len(l.want) != 1 {
				return usagef("--follow follows one task").hint("hpcc logs -f %s TASK", a[0])
			}
			return l.follow(c.Context, l.want[0])
		},
	}
}

// step wants the tasks of a workflow's step.
func (l *taskLogs) step(name string) error {
	tasks, err := readTasks(filepath.Join(l.dir, l.sub.ID))
	if err != nil {
		return err
	}
	before := len(l.want)
	for _, t := range tasks {
		if t.Step == name {
			l.want = append(l.want, t.Index)
		}
	}
	if len(l.want) == before {
		return usagef("%q is no index of a task, and no step that has begun", name)
	}
	return nil
}

// given are the flags, of those that are switches, that the command line sets.
func given(c *cli.Context, names ...string) (words []string) {
	for _, n := range names {
		if c.Bool(n) {
			words = append(words, "--"+n)
		}
	}
	return words
}

// taskLogs shows the output of tasks of one job.
type taskLogs struct {
	sub    *dispatch.Submission
	dir    string // of all jobs
	want   []int  // indices; empty for all
	failed bool
}

func (l *taskLogs) show(ctx context.Context) error {
	if l.sub.Target.Pods() { // where records come from the cluster
		_, warnings, err := dispatch.Statuses(ctx, l.dir, []string{l.sub.ID})
		if err != nil {
			return err
		}
		warn(warnings)
	}
	tasks, err := readTasks(filepath.Join(l.dir, l.sub.ID))
	if err != nil {
		return err
	}
	var list []job.Task
	for _, t := range tasks {
		if (len(l.want) == 0 || slices.Contains(l.want, t.Index)) && !(l.failed && t.OK()) {
			list = append(list, t)
		}
	}
	for _, k := range l.want {
		if !slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Index == k }) {
			say("task %d has not begun, or is none of the job", k)
		}
	}
	for _, t := range list {
		if len(list) > 1 {
			rowf(os.Stdout, "==> task %d%s: %s  %s\n", t.Index, stepOf(&t), goes(&t), t.Output)
		}
		kept, err := l.sub.Follow(ctx, &t, false, os.Stdout)
		if !kept {
			err = copyLog(&t, 0, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goes tells how a task goes, or how it ended.
func goes(t *job.Task) string {
	switch {
	case !t.Ended():
		return "runs on " + t.Host
	case t.OK():
		return "done"
	}
	return t.Ending()
}

// copyLog prints a task's output from a byte on; end becomes where it stopped.
func copyLog(t *job.Task, from int64, end *int64) error {
	if t.Output == "" && t.Host == "" { // it never began
		return nil
	}
	if t.Output == "" {
		say("task %d on %s: its output went to no file that hpcc knows of", t.Index, t.Host)
		return nil
	}
	f, err := os.Open(t.Output)
	if err != nil {
		return fmt.Errorf("showing the output of task %d: %w", t.Index, err)
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(os.Stdout, f)
	if end != nil {
		*end = from + n
	}
	return err
}

// looks is how often a task that is followed is looked at; once in so many looks the scheduler is asked
// whether somebody runs it.
const (
	looks    = 300 * time.Millisecond
	looksAsk = 30
)

// follow prints a task's output as it grows, until the task has ended.
func (l *taskLogs) follow(ctx context.Context, k int) error {
	at, told, lost := int64(0), false, 0
	if l.sub.Target.Pods() {
		return l.followPod(ctx, k)
	}
	for n := 1; ; n++ {
		tasks, err := job.Tasks(filepath.Join(l.dir, l.sub.ID))
		var bad *job.RecordsError
		if err != nil && !errors.As(err, &bad) {
			return err
		}
		if bad != nil && n == 1 {
			warn([]string{bad.Error()})
		}
		i := slices.IndexFunc(tasks, func(t job.Task) bool { return t.Index == k })
		if i < 0 {
			if !told {
				say("task %d has not begun yet", k)
				told = true
			}
		} else if t := &tasks[i]; t.Output != "" || t.Ended() {
			if err := copyLog(t, at, &at); err != nil || t.Ended() {
				return err
			}
		}
		if lost == 2 {
			return fmt.Errorf("task %d of job %s has no end, and nobody runs it any more", k, l.sub.ID)
		}
		if n%looksAsk == 0 { // its last words may come late, over a file system that many share
			if st, err := l.sub.Look(ctx, l.dir, true); err == nil && st.Running+st.Waiting == 0 {
				lost++
			}
		}
		if err := pause(ctx, looks); err != nil {
			return err
		}
	}
}

// followPod prints what the cluster keeps of a task, as soon as it runs, or what was kept of it.
func (l *taskLogs) followPod(ctx context.Context, k int) error {
	l.want = []int{k}
	t, err := l.sub.Running(ctx, l.dir, k, words)
	if err != nil && ctx.Err() == nil { // it has ended
		return l.show(ctx)
	}
	if err != nil {
		return err
	}
	_, err = l.sub.Follow(ctx, t, true, os.Stdout)
	return err
}
