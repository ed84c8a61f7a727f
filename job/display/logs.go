package display

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

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/dispatch"
	"hpcc/text"
	"hpcc/text/terminal"
)

// Logs shows the output of the tasks of one job.
type Logs struct {
	Job    *dispatch.Submission
	Dir    string        // of all jobs
	Name   string        // of the job on the command line, for hints
	Tasks  []string      // indices, or names of steps of a workflow; empty for all
	Failed bool          // only tasks that did not succeed
	Tail   int           // lines of each task; -1 for all
	Since  time.Duration // only tasks that wrote within it; 0 for all
	Out    io.Writer
	Note   func(line string)       // shows a message to the user
	Warn   func(warnings []string) // shows warnings

	want []int      // the indices of Tasks
	kept batch.Logs // the output that the cluster keeps
}

// Show writes what the tasks have written so far or, if follow is set, the output of one task, or of all steps of a
// workflow, as it grows.
func (l *Logs) Show(ctx context.Context, follow bool) error {
	l.kept = l.Job.Logs()
	defer l.kept.Close()
	for _, name := range l.Tasks {
		k, err := strconv.Atoi(name)
		if err != nil {
			if err := l.step(name); err != nil {
				return err
			}
			continue
		}
		l.want = append(l.want, k)
	}
	if !follow {
		return l.show(ctx)
	}
	if len(l.want) == 0 && l.hasSteps() {
		if l.Tail >= 0 {
			return text.Usagef("--follow with --tail follows one step").Hint("hpcc logs -f --tail %d %s STEP", l.Tail, l.Name)
		}
		return l.followSteps(ctx)
	}
	if len(l.want) == 0 && l.Job.Job.Count() == 1 {
		l.want = slices.Collect(l.Job.Job.Array.All())
		if len(l.want) == 0 {
			l.want = []int{0}
		}
	}
	if len(l.want) != 1 {
		return text.Usagef("--follow follows one task").Hint("hpcc logs -f %s TASK", l.Name)
	}
	tasks, err := l.read()
	if err != nil {
		return err
	}
	if err := l.checkWanted(tasks); err != nil {
		return err
	}
	if l.Job.Target.Pods() {
		return l.followPod(ctx)
	}
	return l.follow(ctx)
}

// hasSteps reports whether the job is a workflow, or has steps that begin one after the other.
func (l *Logs) hasSteps() bool { return l.Job.Job.Workflow != nil || len(l.Job.Job.Steps) > 0 }

// home returns the directory of the job.
func (l *Logs) home() string { return filepath.Join(l.Dir, l.Job.ID) }

// read returns the records of the tasks, but only of the shown ones if the job is packed: it may have a million tasks.
func (l *Logs) read() ([]job.Task, error) {
	var r job.Records
	var err error
	switch {
	case len(l.want) > 0:
		err = r.Select(l.home(), l.want)
	case l.Failed:
		err = r.Survey(l.home())
	default:
		err = r.Read(l.home(), false)
	}
	return r.Last, l.readable(cmp.Or(err, r.Err()))
}

// readable shows a warning about unreadable records, and returns any other error.
func (l *Logs) readable(err error) error {
	warning, err := job.Readable(err)
	if warning != "" {
		l.Warn([]string{warning})
	}
	return err
}

// readAll returns the records of all tasks.
func (l *Logs) readAll() ([]job.Task, error) {
	tasks, err := job.Tasks(l.home())
	return tasks, l.readable(err)
}

// step selects the tasks of a workflow's step.
func (l *Logs) step(name string) error {
	tasks, err := l.readAll()
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
		return text.Usagef("%q is neither the index of a task nor a step that has started", name)
	}
	return nil
}

func (l *Logs) show(ctx context.Context) error {
	if l.Job.Target.Pods() {
		if err := l.fetch(ctx); err != nil {
			return err
		}
	}
	tasks, err := l.read()
	if err != nil {
		return err
	}
	if err := l.checkWanted(tasks); err != nil {
		return err
	}
	for _, k := range l.want {
		if !slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Index == k }) {
			l.Note(fmt.Sprintf("task %d has not started", k))
		}
	}
	list := slices.DeleteFunc(tasks, func(t job.Task) bool { return !l.selects(&t) })
	for _, t := range list {
		if len(list) > 1 {
			terminal.Rowf(l.Out, "==> task %d%s: %s  %s\n", t.Index, stepOf(&t), progressOf(&t), t.Output)
		}
		if _, err := l.write(ctx, &t); err != nil {
			return err
		}
	}
	return nil
}

// fetch saves the records and the output of the selected tasks, which the cluster keeps. Without an answer, the records
// decide.
func (l *Logs) fetch(ctx context.Context) error {
	if len(l.want) > 0 {
		warnings, err := l.Job.Update(ctx, l.Dir, l.want)
		l.Warn(warnings)
		return err
	}
	_, warnings, err := dispatch.Statuses(ctx, l.Dir, []string{l.Job.ID})
	if err != nil {
		return err
	}
	tasks, err := l.readAll()
	if err != nil {
		return err
	}
	indices := []int{}
	for i := range tasks {
		if l.selects(&tasks[i]) {
			indices = append(indices, tasks[i].Index)
		}
	}
	if err := l.Job.SaveLogs(ctx, l.Dir, indices); err != nil && len(warnings) == 0 {
		warnings = append(warnings, err.Error())
	}
	l.Warn(warnings)
	return nil
}

// selects reports whether to show the output of a task.
func (l *Logs) selects(t *job.Task) bool {
	named := len(l.want) == 0 || slices.Contains(l.want, t.Index)
	return named && !(l.Failed && t.OK()) && l.recent(t)
}

// recent reports whether a task wrote output within Since. If the cluster keeps the output, it uses the time at which
// the task ended.
func (l *Logs) recent(t *job.Task) bool {
	if l.Since == 0 {
		return true
	}
	last := time.Now()
	if fi, err := os.Stat(t.Output); err == nil {
		last = fi.ModTime()
	} else if t.Ended() {
		last = t.End
	}
	return time.Since(last) <= l.Since
}

// write writes what a task has written so far, or its last lines, and returns the size of the output.
func (l *Logs) write(ctx context.Context, t *job.Task) (size int64, err error) {
	tail := &lineTail{lines: l.Tail, out: l.Out}
	kept, err := l.kept.Follow(ctx, t, false, tail)
	if !kept {
		return l.copy(t, -1)
	}
	return tail.size, errors.Join(err, tail.flush())
}

// checkWanted refuses an index that is not one of the job's tasks.
func (l *Logs) checkWanted(tasks []job.Task) error {
	array := l.Job.Job.Array
	for _, k := range l.want {
		recorded := slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Index == k })
		if recorded || array.Has(k) || (array.IsZero() && k == 0) || l.hasSteps() {
			continue
		}
		m := text.Usagef("job %s has no task %d", l.Job.ID, k)
		if array.IsZero() {
			return m.Hint("it is not an array; its only task is 0")
		}
		all, _, _ := strings.Cut(fmt.Sprint(array), "%")
		return m.Hint("its tasks are %s", all)
	}
	return nil
}

// copy writes the output in a task's file, starting at offset from, and returns the offset of the end. If from is -1,
// it writes the last lines, as Tail says.
func (l *Logs) copy(t *job.Task, from int64) (end int64, err error) {
	if t.Output == "" && t.Host == "" { // the task never started
		return 0, nil
	}
	if t.Gone {
		l.Note(fmt.Sprintf("task %d: the cluster has deleted its output", t.Index))
		return 0, nil
	}
	if t.Output == "" {
		l.Note(fmt.Sprintf("task %d on %s: hpcc does not know which file holds its output", t.Index, t.Host))
		return 0, nil
	}
	f, out, err := openOutput(t)
	if err != nil {
		return 0, fmt.Errorf("showing the output of task %d: %w", t.Index, err)
	}
	defer f.Close()
	if from < 0 {
		if from, err = tailOffset(out, l.Tail); err != nil {
			return 0, fmt.Errorf("showing the output of task %d: %w", t.Index, err)
		}
	}
	if _, err := out.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.Copy(l.Out, out)
	return from + n, err
}

// openOutput opens the file with a task's output, and returns the part of it that is the task's.
func openOutput(t *job.Task) (f *os.File, out *io.SectionReader, err error) {
	if f, err = os.Open(t.Output); err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	from, size := int64(0), fi.Size()
	if t.Part != nil {
		if from, size = t.Part.From, size-t.Part.From; t.Part.Size >= 0 {
			size = t.Part.Size
		}
	}
	return f, io.NewSectionReader(f, from, max(0, size)), nil
}

// hpcc reads the output of a followed task once per pollInterval. After every pollsPerQuery reads,
// it asks the scheduler whether the task still runs.
const (
	pollInterval  = 300 * time.Millisecond
	pollsPerQuery = 30
)

// follow writes a task's output as it grows, until the task has ended.
func (l *Logs) follow(ctx context.Context) error {
	k, at, waited, lost := l.want[0], int64(-1), false, 0
	for n := 1; ; n++ {
		var r job.Records
		if err := r.Select(l.home(), l.want); err != nil {
			return err
		}
		i := slices.IndexFunc(r.Last, func(t job.Task) bool { return t.Index == k })
		if i < 0 && !waited {
			l.Note(fmt.Sprintf("task %d has not started yet", k))
			waited = true
		}
		if i >= 0 {
			if t := &r.Last[i]; t.Output != "" || t.Ended() {
				var err error
				if at, err = l.copy(t, at); err != nil || t.Ended() {
					return err
				}
			}
		}
		if lost == 2 {
			return fmt.Errorf("task %d of job %s is lost: it did not record its end, and the scheduler no longer knows it", k, l.Job.ID)
		}
		if n%pollsPerQuery == 0 { // on a shared file system, the task's record may arrive late
			if st, err := l.Job.Status(ctx, l.Dir, true); err == nil && !st.Active() {
				lost++
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// followPod writes the log of a task's pod as it grows. If the task has ended, it writes the log of the last attempt.
func (l *Logs) followPod(ctx context.Context) error {
	t, err := l.Job.RunningTask(ctx, l.Dir, l.want[0], l.Note)
	if err != nil && ctx.Err() == nil { // it has ended
		return l.show(ctx)
	}
	if err != nil {
		return err
	}
	skip := int64(0)
	if l.Tail >= 0 {
		if skip, err = l.write(ctx, t); err != nil {
			return err
		}
	}
	_, err = l.kept.Follow(ctx, t, true, &skipWriter{out: l.Out, skip: skip})
	return err
}

// followSteps writes the output of all steps of a workflow as it grows, with the step's name before each line.
func (l *Logs) followSteps(ctx context.Context) error {
	var lock sync.Mutex
	var g sync.WaitGroup
	defer g.Wait()
	begun := map[string]bool{}
	return l.Job.Follow(ctx, l.Dir, func(st *dispatch.Status, warnings []string) bool {
		l.Warn(warnings)
		for _, t := range st.Tasks {
			if key := fmt.Sprint(t.Index, t.Attempt); !begun[key] {
				begun[key] = true
				g.Go(func() {
					w := &stepWriter{out: l.Out, lock: &lock, name: cmp.Or(t.Step, fmt.Sprint(t.Index))}
					if err := l.copyStep(ctx, &t, w); err != nil && ctx.Err() == nil {
						l.Note(fmt.Sprintf("warning: %v", err))
					}
					w.flush()
				})
			}
		}
		return st.Active()
	})
}

// copyStep writes the output of a step until it ends.
func (l *Logs) copyStep(ctx context.Context, t *job.Task, w io.Writer) error {
	kept, err := l.kept.Follow(ctx, t, true, w)
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
