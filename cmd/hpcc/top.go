package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"hpcc/build"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/store"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name: "top", Usage: "show what the tasks of a job use now", ArgsUsage: "JOB",
		Description: `Shows the tasks that run, of a job that was handed in with --measure: processors that are busy, of
those granted; memory, its peak and limit; what is read and written in a second; threads; GPUs; processors
that the quota holds back; the part of the time that tasks wait for processors, memory or storage. On a
terminal until the job has ended, elsewhere once.

   hpcc top main-261121-090000
   hpcc top --sort mem main
   hpcc top --json main

With --json one object, with the tasks in it.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "sort", Value: "cpu", Usage: "the largest first, by `COLUMN`: " + strings.Join(topColumns(), ", ")},
			&cli.Float64Flag{Name: "every", Value: topEvery, Usage: "look every `SECONDS`"},
			&cli.BoolFlag{Name: "once", Usage: "look once"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object, once"},
			onFlag(), storeFlag(),
		},
		Action: top,
	}
}

// topEvery is how often top looks, in seconds.
const topEvery = 2

// A topState is how the tasks of a job that run stand at a moment.
type topState struct {
	Type    string     `json:"type"` // "top"
	ID      string     `json:"id"`
	Site    string     `json:"site,omitempty"`
	Target  job.Target `json:"target"`
	State   string     `json:"state"`
	Total   int        `json:"total"`
	Done    int        `json:"done"`
	Failed  int        `json:"failed"`
	Running int        `json:"running"`
	Waiting int        `json:"waiting"`
	Silent  int        `json:"silent,omitempty"` // that run and have no record yet
	Unseen  int        `json:"unseen,omitempty"` // that run and were not looked at yet, being many
	Sum     topTask    `json:"sum"`
	Tasks   []topTask  `json:"tasks"`
	Words   []string   `json:"words,omitempty"` // what could not be read, and why
}

func top(c *cli.Context) error {
	a, err := parseArguments(c, 1, 1, "JOB")
	if err != nil {
		return err
	}
	if !slices.Contains(topColumns(), c.String("sort")) {
		return usagef("--sort %q: give one of %s", c.String("sort"), strings.Join(topColumns(), ", "))
	}
	every := c.Float64("every")
	if !(every >= watchLeast.Seconds() && every <= 86400) {
		return usagef("--every %g: give a number of seconds from %g on", every, watchLeast.Seconds())
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	f, err := findJob(c, s.Jobs(), a[0])
	if err != nil {
		return err
	}
	once := c.Bool("once") || c.Bool("json") || !term.IsTerminal(int(os.Stdout.Fd()))
	look := func() (*topState, error) { return topThere(c, f.site, f.id) }
	if f.site == nil {
		here := &topper{sub: f.Submission, dir: s.Jobs(), all: once, tasks: map[int]*watchedTask{}}
		look = func() (*topState, error) { return here.look(c.Context) }
	}
	for drawn := 0; ; {
		now, err := look()
		if err != nil {
			return err
		}
		sortTop(now.Tasks, c.String("sort"))
		switch {
		case c.Bool("json"):
			return json.NewEncoder(os.Stdout).Encode(now)
		case once:
			warn(now.Words)
			_, err := os.Stdout.WriteString(topText(now, len(now.Tasks)))
			return err
		}
		_, rows := terminalSize()
		if drawn, err = repaint(drawn, topWarnings(now.Words)+topText(now, rows)); err != nil || now.Running+now.Waiting == 0 {
			return err
		}
		if err := pause(c.Context, time.Duration(every*float64(time.Second))); err != nil {
			return err
		}
	}
}

// topThere asks hpcc of the site where the job is.
func topThere(c *cli.Context, site *dispatch.Site, id string) (*topState, error) {
	limit := greetTime
	if onTerminal() {
		limit = typingTime
	}
	out, err := site.Ask(c.Context, onTerminal(), limit, "top", "--json", id)
	if err != nil {
		return nil, siteHint(err, site)
	}
	now := &topState{}
	if err := json.Unmarshal(out, now); err != nil || now.Type != "top" {
		return nil, fmt.Errorf("site %s: its hpcc answered %q, which is no state of a job", site.Name, out[:min(len(out), 100)])
	}
	now.Site = site.Name
	return now, nil
}

// A topper looks at the records of a job of this machine.
type topper struct {
	sub   *dispatch.Submission
	dir   string // of all jobs
	all   bool   // to look at every task each time, however many they are
	asked time.Time
	tasks map[int]*watchedTask
}

// A watchedTask is what is known of one task from the looks before.
type watchedTask struct {
	task job.Task
	tail metrics.Tail
	peak int64     // of memory that was seen
	seen time.Time // when it was looked at
	err  error
}

// Bounds of one look: how many records are read at the same time, and, in pods, at all.
const (
	topAtOnce     = 16
	topPodsAtOnce = 8
	topPods       = 64
)

// How often the scheduler is asked; the one that keeps the records more often.
const (
	topAsk     = 10 * time.Second
	topAskPods = 4 * time.Second
)

// look looks once. The job may have been cancelled or handed in again since the last time.
func (p *topper) look(ctx context.Context) (*topState, error) {
	var err error
	if p.sub, err = dispatch.ReadJob(filepath.Join(p.dir, p.sub.ID)); err != nil {
		return nil, err
	}
	each := topAsk
	if p.sub.Target.Pods() {
		each = topAskPods
	}
	ask := time.Since(p.asked) >= each
	st, err := p.sub.Look(ctx, p.dir, ask)
	if err != nil {
		return nil, err
	}
	if ask {
		p.asked = time.Now()
	}
	open := st.Total - st.Done - len(st.Failed) - st.Stopped - st.Lost
	st.Waiting = max(0, open-st.Running)
	now := &topState{Type: "top", ID: st.ID, Site: st.Site, Target: st.Target, State: st.State(), Tasks: []topTask{},
		Total: st.Total, Done: st.Done, Failed: len(st.Failed), Running: st.Running, Waiting: st.Waiting}
	if ask && st.Running == 0 { // whoever ran the tasks without an end is gone
		st.Tasks = nil
	}
	p.keep(st.Tasks)
	p.read(ctx)
	return now, p.fill(now)
}

// keep keeps in mind the tasks that run, and no others.
func (p *topper) keep(list []job.Task) {
	runs := map[int]bool{}
	for _, t := range list {
		if t.Ended() {
			continue
		}
		runs[t.Index] = true
		if k := p.tasks[t.Index]; k == nil || k.task.Attempt != t.Attempt || k.task.Native != t.Native {
			p.tasks[t.Index] = &watchedTask{}
		}
		p.tasks[t.Index].task = t
	}
	for k := range p.tasks {
		if !runs[k] {
			delete(p.tasks, k)
		}
	}
}

// read looks at the records of all; of pods, in each of which a program has to be
// started for that, at some that were not looked at for the longest time, unless all are wanted.
func (p *topper) read(ctx context.Context) {
	var list []*watchedTask
	for _, k := range p.tasks {
		list = append(list, k)
	}
	var g errgroup.Group
	g.SetLimit(store.AtOnce(topAtOnce, 4))
	if p.sub.Target.Pods() {
		g.SetLimit(topPodsAtOnce)
		slices.SortFunc(list, func(a, b *watchedTask) int { return a.seen.Compare(b.seen) })
		if !p.all {
			list = list[:min(len(list), topPods)]
		}
	}
	for _, k := range list {
		g.Go(func() error {
			k.err = p.one(ctx, k)
			k.seen = time.Now()
			return nil
		})
	}
	_ = g.Wait()
}

// one looks at the record of one task.
func (p *topper) one(ctx context.Context, k *watchedTask) error {
	if !p.sub.Target.Pods() {
		return k.tail.Look(filepath.Join(p.dir, p.sub.ID, k.task.Measured()))
	}
	out, err := p.sub.Read(ctx, &k.task, metrics.MaxTail, build.EntryFile, "entry", "--tail")
	if err != nil {
		return err
	}
	tail, err := metrics.ReadTail(strings.NewReader(string(out)))
	if err == nil {
		k.tail = *tail
	}
	return err
}

// fill makes rows of what was read. A job of which no task has a record was not measured.
func (p *topper) fill(now *topState) error {
	for _, i := range slices.Sorted(maps.Keys(p.tasks)) {
		k := p.tasks[i]
		switch {
		case k.seen.IsZero():
			now.Unseen++
		case errors.Is(k.err, fs.ErrNotExist), k.err == nil && len(k.tail.Samples) == 0:
			now.Silent++
		case k.err != nil:
			now.Silent++
			now.Words = append(now.Words, fmt.Sprintf("task %d: %v", i, k.err))
		case k.tail.Footer == nil:
			row := k.row(time.Now())
			now.Tasks = append(now.Tasks, row)
			now.Sum.add(&row)
		}
	}
	now.Sum.Limit = max(0, now.Sum.Limit)
	if len(now.Tasks) == 0 && now.Running > 0 && !p.sub.Job.Measure {
		return (&message{err: fmt.Errorf("job %s is not measured", p.sub.ID)}).hint("hand it in with hpcc submit --measure …")
	}
	return nil
}
