package main

import (
	"bytes"
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
	"hpcc/job/quantity"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name: "logs", Usage: "show the output of tasks", ArgsUsage: "JOB [TASK...]",
		Description: `Shows the output of a job's tasks, or of the tasks with the given indices.

   hpcc logs main
   hpcc logs --failed --tail 20 main
   hpcc logs -f main 3`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "follow the output until the task ends"},
			&cli.BoolFlag{Name: "failed", Usage: "show only tasks that did not succeed"},
			&cli.IntFlag{Name: "tail", Aliases: []string{"n"}, Usage: "show only the last `N` lines of each task"},
			&cli.StringFlag{Name: "since", Usage: "show only tasks that wrote within the last `TIME`"},
			onFlag(), storeFlag(),
		},
		Action: action(parseLogs),
	}
}

type logsArgs struct {
	id             string
	tasks          []string // indices, or names of steps of a workflow
	follow, failed bool
	tail           int           // lines; -1 for all
	since          time.Duration // 0 for all tasks
	flags          []string      // the flags above as arguments, for hpcc at a site
	in             site.Scope
	store          string
}

func parseLogs(c *cli.Context) (*logsArgs, error) {
	args, err := parseArguments(c, 1, 1000, "JOB [TASK...]")
	if err != nil {
		return nil, err
	}
	a := &logsArgs{
		id: args[0], tasks: args[1:], follow: c.Bool("follow"), failed: c.Bool("failed"), tail: -1,
		flags: parseSwitches(c, "follow", "failed"), in: parseJobScope(c), store: c.String("store"),
	}
	if c.IsSet("tail") {
		if a.tail = c.Int("tail"); a.tail < 0 {
			return nil, text.Usagef("--tail %d: not a number of lines", a.tail)
		}
		a.flags = append(a.flags, fmt.Sprintf("--tail=%d", a.tail))
	}
	if c.IsSet("since") {
		if a.since, err = parseSince(c.String("since")); err != nil {
			return nil, err
		}
		a.flags = append(a.flags, fmt.Sprintf("--since=%d", int64(a.since.Seconds())))
	}
	return a, nil
}

// parseSince reads the value of --since.
func parseSince(s string) (time.Duration, error) {
	d, err := quantity.ParseTime(s)
	if err != nil || d <= 0 {
		return 0, text.Usagef("--since %q: not a duration", s).Hint("write --since 7d, 36h or 90m")
	}
	return d, nil
}

func (a *logsArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := a.in.Find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	if sub.Site != nil {
		return passOn(ctx, sub.Site, slices.Concat([]string{"logs"}, a.flags, []string{sub.ID}, a.tasks)...)
	}
	kept := sub.Submission.Logs()
	defer kept.Close()
	l := taskLogs{sub: sub.Submission, kept: kept, dir: s.Jobs(), failed: a.failed, tail: a.tail, since: a.since}
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
		if a.tail >= 0 {
			return text.Usagef("--follow with --tail follows one step").Hint("hpcc logs -f --tail %d %s STEP", a.tail, a.id)
		}
		return l.followSteps(ctx)
	}
	if len(l.want) == 0 && sub.Job.Count() == 1 {
		l.want = slices.Collect(sub.Job.Array.All())
		if len(l.want) == 0 {
			l.want = []int{0}
		}
	}
	if len(l.want) != 1 {
		return text.Usagef("--follow follows one task").Hint("hpcc logs -f %s TASK", a.id)
	}
	tasks, err := l.read()
	if err != nil {
		return err
	}
	if err := l.checkWanted(tasks); err != nil {
		return err
	}
	return l.follow(ctx, l.want[0])
}

// read returns the records of the tasks, but only of the shown ones if the job is packed: it may have a
// million tasks.
func (l *taskLogs) read() ([]job.Task, error) {
	var r job.Records
	var err error
	home := filepath.Join(l.dir, l.sub.ID)
	switch {
	case len(l.want) > 0:
		err = r.Select(home, l.want)
	case l.failed:
		err = r.Survey(home)
	default:
		err = r.Read(home, false)
	}
	if err == nil && len(r.Bad) > 0 {
		warn([]string{r.Err().Error()})
	}
	return r.Last, err
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
		return text.Usagef("%q is neither the index of a task nor a step that has started", name)
	}
	return nil
}

// taskLogs prints the output of tasks of one job.
type taskLogs struct {
	sub  *dispatch.Submission
	kept interface { // the output that the cluster keeps
		Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error)
	}
	dir    string // of all jobs
	want   []int  // indices; empty for all
	failed bool
	tail   int           // lines of each task; -1 for all
	since  time.Duration // only tasks that wrote within it; 0 for all
}

func (l *taskLogs) show(ctx context.Context) error {
	if l.sub.Target.Pods() {
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
	list := slices.DeleteFunc(slices.Clone(tasks), func(t job.Task) bool { return !l.selects(&t) })
	for _, k := range l.want {
		if !slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Index == k }) {
			say("task %d has not started", k)
		}
	}
	for _, t := range list {
		if len(list) > 1 {
			terminal.Rowf(os.Stdout, "==> task %d%s: %s  %s\n", t.Index, stepOf(&t), progressOf(&t), t.Output)
		}
		if _, err := l.print(ctx, &t); err != nil {
			return err
		}
	}
	return nil
}

// fetch saves the records and the output of the selected tasks, which the cluster keeps. Without an
// answer, the records decide.
func (l *taskLogs) fetch(ctx context.Context) error {
	if len(l.want) > 0 {
		warnings, err := l.sub.Update(ctx, l.dir, l.want)
		warn(warnings)
		return err
	}
	_, warnings, err := dispatch.Statuses(ctx, l.dir, []string{l.sub.ID})
	if err != nil {
		return err
	}
	tasks, err := readTasks(filepath.Join(l.dir, l.sub.ID))
	if err != nil {
		return err
	}
	indices := []int{}
	for i := range tasks {
		if l.selects(&tasks[i]) {
			indices = append(indices, tasks[i].Index)
		}
	}
	if err := l.sub.SaveLogs(ctx, l.dir, indices); err != nil && len(warnings) == 0 {
		warnings = append(warnings, err.Error())
	}
	warn(warnings)
	return nil
}

// selects reports whether to show the output of a task.
func (l *taskLogs) selects(t *job.Task) bool {
	named := len(l.want) == 0 || slices.Contains(l.want, t.Index)
	return named && !(l.failed && t.OK()) && l.recent(t)
}

// recent reports whether a task wrote output within the time of --since. If the cluster keeps
// the output, it uses the time at which the task ended.
func (l *taskLogs) recent(t *job.Task) bool {
	if l.since == 0 {
		return true
	}
	last := time.Now()
	if fi, err := os.Stat(t.Output); err == nil {
		last = fi.ModTime()
	} else if t.Ended() {
		last = t.End
	}
	return time.Since(last) <= l.since
}

// print prints what a task has written so far, or its last lines, and returns the size of
// the output.
func (l *taskLogs) print(ctx context.Context, t *job.Task) (size int64, err error) {
	tail := &lineTail{lines: l.tail, out: os.Stdout}
	kept, err := l.kept.Follow(ctx, t, false, tail)
	if !kept {
		return copyLog(t, -1, l.tail)
	}
	return tail.size, errors.Join(err, tail.flush())
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
			return text.Usagef("job %s has no task %d", l.sub.ID, k).Hint("it is not an array; its only task is 0")
		}
		tasks, _, _ := strings.Cut(fmt.Sprint(j.Array), "%")
		return text.Usagef("job %s has no task %d", l.sub.ID, k).Hint("its tasks are %s", tasks)
	}
	return nil
}

// copyLog prints a task's output, starting at offset from, and returns the offset of the end. If
// from is -1, it prints the last tail lines, or everything if tail is -1.
func copyLog(t *job.Task, from int64, tail int) (end int64, err error) {
	if t.Output == "" && t.Host == "" { // the task never started
		return 0, nil
	}
	if t.Gone {
		say("task %d: the cluster has deleted its output", t.Index)
		return 0, nil
	}
	if t.Output == "" {
		say("task %d on %s: hpcc does not know which file holds its output", t.Index, t.Host)
		return 0, nil
	}
	f, out, err := openOutput(t)
	if err != nil {
		return 0, fmt.Errorf("showing the output of task %d: %w", t.Index, err)
	}
	defer f.Close()
	if from < 0 {
		if from, err = tailOffset(out, tail); err != nil {
			return 0, fmt.Errorf("showing the output of task %d: %w", t.Index, err)
		}
	}
	if _, err := out.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.Copy(os.Stdout, out)
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

// follow prints a task's output as it grows, until the task has ended.
func (l *taskLogs) follow(ctx context.Context, k int) error {
	at, announced, lost := int64(-1), false, 0
	if l.sub.Target.Pods() {
		return l.followPod(ctx, k)
	}
	for n := 1; ; n++ {
		var r job.Records
		if err := r.Select(filepath.Join(l.dir, l.sub.ID), []int{k}); err != nil {
			return err
		}
		if len(r.Bad) > 0 && n == 1 {
			warn([]string{r.Err().Error()})
		}
		tasks := r.Last
		i := slices.IndexFunc(tasks, func(t job.Task) bool { return t.Index == k })
		if i < 0 {
			if !announced {
				say("task %d has not started yet", k)
				announced = true
			}
		} else if t := &tasks[i]; t.Output != "" || t.Ended() {
			var err error
			if at, err = copyLog(t, at, l.tail); err != nil || t.Ended() {
				return err
			}
		}
		if lost == 2 {
			return fmt.Errorf("task %d of job %s is lost: it did not record its end, and the scheduler no longer knows it", k, l.sub.ID)
		}
		if n%pollsPerQuery == 0 { // on a shared file system, the task's record may arrive late
			if st, err := l.sub.Status(ctx, l.dir, true); err == nil && st.Running+st.Waiting == 0 {
				lost++
			}
		}
		if err := pause(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// followPod prints the log of a task's pod as it grows. If the task has ended, it prints the log of
// the last attempt.
func (l *taskLogs) followPod(ctx context.Context, k int) error {
	l.want = []int{k}
	t, err := l.sub.Running(ctx, l.dir, k, sayLine)
	if err != nil && ctx.Err() == nil { // it has ended
		return l.show(ctx)
	}
	if err != nil {
		return err
	}
	skip := int64(0)
	if l.tail >= 0 {
		if skip, err = l.print(ctx, t); err != nil {
			return err
		}
	}
	_, err = l.kept.Follow(ctx, t, true, &skipWriter{out: os.Stdout, skip: skip})
	return err
}

// followSteps prints the output of all steps of a workflow as it grows, with the step's name
// before each line.
func (l *taskLogs) followSteps(ctx context.Context) error {
	var lock sync.Mutex
	var g sync.WaitGroup
	defer g.Wait()
	begun := map[string]bool{}
	return l.sub.Follow(ctx, l.dir, func(st *dispatch.Status, warnings []string) bool {
		warn(warnings)
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
		return st.Active()
	})
}

// copyStep prints the output of a step until it ends.
func (l *taskLogs) copyStep(ctx context.Context, t *job.Task, w io.Writer) error {
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

// A stepWriter writes complete lines, with a name before each.
type stepWriter struct {
	out  io.Writer
	lock *sync.Mutex // of out
	name string
	rest []byte
}

// maxLine is the number of bytes of an unfinished line that a stepWriter holds back.
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

// lastLines returns the last n lines of b. A final newline does not begin another line.
func lastLines(b []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	end := len(bytes.TrimSuffix(b, []byte("\n")))
	for ; n > 0; n-- {
		if end = bytes.LastIndexByte(b[:end], '\n'); end < 0 {
			return b
		}
	}
	return b[end+1:]
}

// tailOffset returns the offset of the last n lines of an output; 0 if n is negative.
func tailOffset(f *io.SectionReader, n int) (int64, error) {
	if n < 0 {
		return 0, nil
	}
	for size := int64(64 << 10); ; size *= 4 {
		size = min(size, f.Size(), maxTail)
		b := make([]byte, size)
		if _, err := f.ReadAt(b, f.Size()-size); err != nil && err != io.EOF {
			return 0, err
		}
		last := lastLines(b, n)
		if int64(len(last)) < size || size == f.Size() || size == maxTail {
			return f.Size() - int64(len(last)), nil
		}
	}
}

// maxTail limits the memory of --tail, in bytes. Longer output is cut at its start.
const maxTail = 64 << 20

// A lineTail keeps the last lines that are written to it, until flush writes them to out. If lines
// is negative, it writes everything to out immediately.
type lineTail struct {
	lines int
	out   io.Writer
	size  int64 // bytes that were written
	kept  []byte
}

func (t *lineTail) Write(p []byte) (int, error) {
	t.size += int64(len(p))
	if t.lines < 0 {
		return t.out.Write(p)
	}
	if t.kept = append(t.kept, p...); len(t.kept) > maxTail {
		t.kept = bytes.Clone(lastLines(t.kept[len(t.kept)-maxTail/2:], t.lines))
	}
	return len(p), nil
}

func (t *lineTail) flush() error {
	_, err := t.out.Write(lastLines(t.kept, t.lines))
	return err
}

// A skipWriter drops the first bytes that are written to it.
type skipWriter struct {
	out  io.Writer
	skip int64
}

func (w *skipWriter) Write(p []byte) (int, error) {
	drop := int(min(w.skip, int64(len(p))))
	w.skip -= int64(drop)
	if drop == len(p) {
		return drop, nil
	}
	n, err := w.out.Write(p[drop:])
	return drop + n, err
}
