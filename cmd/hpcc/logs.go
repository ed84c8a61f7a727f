package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name: "logs", Usage: "show the output of tasks", ArgsUsage: "JOB [TASK...]",
		Description: `Shows the output of a job's tasks, or of the tasks with the given indices.

   hpcc logs main
   hpcc logs --failed main
   hpcc logs -f main 3`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "follow the output until the task ends"},
			&cli.BoolFlag{Name: "failed", Usage: "show only tasks that did not succeed"},
			onFlag(), storeFlag(),
		},
		Action: action(parseLogs),
	}
}

type logsArgs struct {
	id             string
	tasks          []string // indices, or names of steps of a workflow
	follow, failed bool
	switches       []string // --follow and --failed, for hpcc of a site
	in             jobScope
	store          string
}

func parseLogs(c *cli.Context) (*logsArgs, error) {
	args, err := parseArguments(c, 1, 1000, "JOB [TASK...]")
	if err != nil {
		return nil, err
	}
	return &logsArgs{id: args[0], tasks: args[1:], follow: c.Bool("follow"), failed: c.Bool("failed"), switches: parseSwitches(c, "follow", "failed"), in: parseJobScope(c), store: c.String("store")}, nil
}

func (a *logsArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := a.in.find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	if sub.site != nil {
		return passOn(ctx, sub.site, slices.Concat([]string{"logs"}, a.switches, []string{sub.id}, a.tasks)...)
	}
	l := taskLogs{sub: sub.Submission, dir: s.Jobs(), failed: a.failed}
	for _, w := range a.tasks {
		k, err := strconv.Atoi(w)
		if err != nil {
			if err := l.step(w); err != nil {
				return err
			}
			continue
		}
		l.want = append(l.want, k)
	}
	if !a.follow {
		return l.show(ctx)
	}
	if len(l.want) == 0 && (sub.Job.Workflow != nil || len(sub.Job.Steps) > 0) {
		return l.followSteps(ctx)
	}
	if len(l.want) == 0 && sub.Job.Count() == 1 {
		l.want = slices.Collect(sub.Job.Array.All())
		if len(l.want) == 0 {
			l.want = []int{0}
		}
	}
	if len(l.want) != 1 {
		return usagef("--follow follows one task").hint("hpcc logs -f %s TASK", a.id)
	}
	tasks, err := readTasks(filepath.Join(l.dir, l.sub.ID))
	if err != nil {
		return err
	}
	if err := l.checkWanted(tasks); err != nil {
		return err
	}
	return l.follow(ctx, l.want[0])
}

// step selects the tasks of a workflow's step.
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
		return usagef("%q is neither the index of a task nor a step that has started", name)
	}
	return nil
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
	if err := l.checkWanted(tasks); err != nil {
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
			say("task %d has not started", k)
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

// checkWanted refuses an index that is not one of the job's tasks.
func (l *taskLogs) checkWanted(tasks []job.Task) error {
	j := l.sub.Job
	for _, k := range l.want {
		recorded := slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Index == k })
		if recorded || j.Array.Has(k) || (j.Array.IsZero() && k == 0) || j.Workflow != nil || len(j.Steps) > 0 {
			continue
		}
		if j.Array.IsZero() {
			return usagef("job %s has no task %d", l.sub.ID, k).hint("it is not an array; its only task is 0")
		}
		tasks, _, _ := strings.Cut(fmt.Sprint(j.Array), "%")
		return usagef("job %s has no task %d", l.sub.ID, k).hint("its tasks are %s", tasks)
	}
	return nil
}

// copyLog prints a task's output from an offset on, and sets end to the offset where it stopped.
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

// looks is the interval between looks at a followed task. Every looksAsk looks, the scheduler is asked
// whether the task still runs.
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

// followPod prints the log that the cluster keeps of a task, as soon as it runs, or its last log.
func (l *taskLogs) followPod(ctx context.Context, k int) error {
	l.want = []int{k}
	t, err := l.sub.Running(ctx, l.dir, k, sayLine)
	if err != nil && ctx.Err() == nil { // it has ended
		return l.show(ctx)
	}
	if err != nil {
		return err
	}
	_, err = l.sub.Follow(ctx, t, true, os.Stdout)
	return err
}

// followSteps prints the output of all steps of a workflow as they write it, with the step's name before each line.
func (l *taskLogs) followSteps(ctx context.Context) error {
	var lock sync.Mutex
	var g sync.WaitGroup
	defer g.Wait()
	begun := map[string]bool{}
	for {
		list, warnings, err := dispatch.Statuses(ctx, l.dir, []string{l.sub.ID})
		if err != nil {
			return err
		}
		warn(warnings)
		st := list[0]
		for _, t := range st.Tasks {
			if key := fmt.Sprint(t.Index, t.Attempt); !begun[key] {
				begun[key] = true
				g.Go(func() {
					w := &stepWriter{out: os.Stdout, lock: &lock, name: cmp.Or(t.Step, fmt.Sprint(t.Index))}
					if err := l.copyStep(ctx, &t, w); err != nil && ctx.Err() == nil {
						say("warning: %v", err)
					}
					w.flush()
				})
			}
		}
		if st.Running+st.Waiting == 0 {
			return nil
		}
		if err := pause(ctx, 10*looks); err != nil {
			return err
		}
	}
}

// copyStep prints the output of a step until it ends.
func (l *taskLogs) copyStep(ctx context.Context, t *job.Task, w io.Writer) error {
	kept, err := l.sub.Follow(ctx, t, true, w)
	if kept || t.Output == "" {
		return err
	}
	f, err := os.Open(t.Output)
	if err != nil {
		return fmt.Errorf("showing the output of step %s: %w", t.Step, err)
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// A stepWriter puts a name before each line, and writes full lines.
type stepWriter struct {
	out  io.Writer
	lock *sync.Mutex // of out
	name string
	rest []byte
}

// maxLine is how many bytes of an unfinished line are held back.
const maxLine = 64 << 10

func (w *stepWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := slices.Index(w.rest, '\n')
		if i < 0 && len(w.rest) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		if err := w.line(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = w.rest[i+1:]
	}
}

func (w *stepWriter) line(text []byte) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	_, err := fmt.Fprintf(w.out, "%s: %s", w.name, text)
	return err
}

func (w *stepWriter) flush() {
	if len(w.rest) > 0 {
		_ = w.line(append(w.rest, '\n'))
	}
}
