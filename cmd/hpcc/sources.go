package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
)

// Bounds of what a directory of runs may hold.
const (
	maxRunDepth   = 8
	maxRunRecords = 400_000 // with directories; a measured task has two
)

// recordEnd is how files of measured runs end.
const recordEnd = ".jsonl"

// A sourceFinder finds the measured runs that arguments of a report name.
type sourceFinder struct {
	scope    jobScope
	store    string
	attempts bool // count earlier attempts of tasks, too
}

// all finds the systems [NAME=]RUN.
func (f sourceFinder) all(ctx context.Context, words []string) (list []report.Source, err error) {
	used := map[string]int{}
	for _, w := range words {
		name, what := splitSystem(w)
		s, err := f.one(ctx, what)
		if err != nil {
			return nil, err
		}
		if name != "" {
			s.Name = name
		}
		if used[s.Name]++; used[s.Name] > 1 {
			s.Name = fmt.Sprintf("%s (%d)", s.Name, used[s.Name])
		}
		list = append(list, s)
	}
	return list, nil
}

// splitSystem takes NAME=RUN apart. A file whose name has the sign is itself.
func splitSystem(word string) (name, what string) {
	name, what, ok := strings.Cut(word, "=")
	if _, err := os.Lstat(word); err == nil || !ok || name == "" || what == "" || strings.Contains(name, "/") {
		return "", word
	}
	return name, what
}

// one finds one system: a file, a directory, or a job.
func (f sourceFinder) one(ctx context.Context, what string) (report.Source, error) {
	fi, err := os.Stat(what)
	switch {
	case err == nil && fi.IsDir():
		return runsBelow(what, f.attempts)
	case err == nil:
		return report.Source{Name: strings.TrimSuffix(filepath.Base(what), recordEnd), Runs: []report.Run{{File: what}}}, nil
	case strings.ContainsRune(what, '/') || strings.HasSuffix(what, recordEnd):
		return report.Source{}, fmt.Errorf("reading a measured run: %w", err)
	}
	return f.ofJob(ctx, what)
}

// ofJob finds a job as "hpcc status" does; targets that keep their records are asked
// for them.
func (f sourceFinder) ofJob(ctx context.Context, id string) (src report.Source, err error) {
	s, err := store.OpenToRead(f.store)
	if err != nil {
		return src, err
	}
	found, err := f.scope.find(ctx, s.Jobs(), id)
	if err != nil {
		if errors.As(err, new(*dispatch.NoJobError)) {
			err = (&message{err: fmt.Errorf("%q is not a file, a directory or a job", id)}).hint(`"hpcc status" lists the jobs`)
		}
		return src, err
	}
	if found.site != nil {
		return src, (&message{err: fmt.Errorf("job %s is of site %s, whose records are there", found.id, found.site.Name)}).hint("ssh %s hpcc report %s, or copy its directory here from below the store's jobs/", found.site.SSH, found.id)
	}
	// Its error is of a record that cannot be read, which is told of below.
	list, warnings, _ := dispatch.Statuses(ctx, s.Jobs(), []string{found.ID})
	warn(warnings)
	src, err = runsBelow(filepath.Join(s.Jobs(), found.ID), f.attempts)
	for _, st := range list {
		if st.ID == found.ID && st.Job.Workflow == nil {
			src.Missing = max(0, st.Total-len(st.Tasks))
		}
	}
	return src, err
}

// runsBelow finds the measured runs, and the records of tasks, in a directory and
// those below it. It follows no links but that which the directory itself may be.
func runsBelow(root string, attempts bool) (src report.Source, err error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return src, err
	}
	src.Name = filepath.Base(abs)
	dirs, files, err := recordsBelow(root, maxRunRecords)
	if err != nil {
		return src, err
	}
	for _, dir := range dirs {
		runsIn(&src, dir, files[filepath.Clean(dir)], attempts)
	}
	return src, nil
}

// recordsBelow lists directories, and the files of measured runs in each. One that cannot
// be read is listed: who reads its records finds that out.
func recordsBelow(root string, most int) (dirs []string, files map[string][]string, err error) {
	if !strings.HasSuffix(root, "/") {
		root += "/" // of a link what it names
	}
	files = map[string][]string{}
	n := 0
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if e == nil {
				return err
			}
			return fs.SkipDir
		}
		switch name, known := strings.CutSuffix(e.Name(), ".json"); {
		case e.IsDir():
			if rel, _ := filepath.Rel(root, path); strings.Count(rel, "/") >= maxRunDepth {
				return fs.SkipDir
			}
			if _, attempt, ok := job.TaskOf(e.Name()); ok && attempt < 0 && path != root { // its results
				return fs.SkipDir
			}
			dirs = append(dirs, path)
		case e.Type().IsRegular() && strings.HasSuffix(path, recordEnd):
			files[filepath.Dir(path)] = append(files[filepath.Dir(path)], path)
		case !known || !isTask(name):
			return nil
		}
		if n++; n > most {
			return (&message{err: fmt.Errorf("looking for measured runs: %s has more than %d records and directories", root, most)}).hint("name directories below it, each as a system, or one job")
		}
		return nil
	})
	return dirs, files, err
}

// isTask says whether a file is of a task, by its name without the ending.
func isTask(name string) bool {
	_, _, ok := job.TaskOf(name)
	return ok
}

// runsIn joins the measured runs of one directory with its records of tasks.
func runsIn(src *report.Source, dir string, files []string, attempts bool) {
	last, earlier, bad, err := job.Attempts(dir, attempts)
	if err != nil {
		bad = append(bad, err)
	}
	for _, err := range bad {
		src.Warnings = append(src.Warnings, err.Error())
	}
	sub, err := dispatch.ReadJob(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		src.Warnings = append(src.Warnings, err.Error())
	}
	measured := map[string]string{}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), recordEnd)
		if _, attempt, ok := job.TaskOf(name); ok && attempt >= 0 && !attempts {
			continue
		}
		measured[name] = f
	}
	for _, t := range last {
		src.Runs = append(src.Runs, runOf(measured, fmt.Sprintf("task.%d", t.Index), sub, &t))
	}
	for _, t := range earlier {
		src.Runs = append(src.Runs, runOf(measured, fmt.Sprintf("task.%d.%d", t.Index, t.Attempt), sub, &t))
	}
	for _, f := range files { // those without a record
		if name := strings.TrimSuffix(filepath.Base(f), recordEnd); measured[name] != "" {
			src.Runs = append(src.Runs, report.Run{File: f})
		}
	}
}

// runOf is the run of a task's record, with its measured run where there is one; that
// is then taken.
func runOf(measured map[string]string, name string, sub *dispatch.Submission, t *job.Task) report.Run {
	run := report.Run{File: measured[name], Known: known(sub, t)}
	if sub != nil {
		run.Ranks = sub.Job.Slots() / max(sub.Job.CPUs, 1)
	}
	delete(measured, name)
	return run
}

// known is what a job and the record of one of its tasks say, in the words of a
// measured run.
func known(sub *dispatch.Submission, t *job.Task) metrics.Record {
	r := metrics.Record{Header: metrics.Header{Start: t.Start, Machine: metrics.Machine{Host: t.Host},
		Job: &metrics.JobOf{Task: t.Index, Attempt: t.Attempt, Params: t.Params}}}
	if sub != nil {
		h, j := &r.Header, sub.Job
		h.Image, h.Command = j.Image, t.Fill(j.Args)
		if j.Script != nil {
			h.Command = append([]string{j.Script.Name}, j.Script.Args...)
		}
		h.Job.ID, h.Job.Name, h.Job.Target, h.Job.Submitted = sub.ID, j.Name, string(sub.Target), sub.HandedInFor(t)
		a := j.Request()
		h.Asked = metrics.Asked{CPUs: a.CPUs, Memory: a.Memory, GPUs: a.GPUs, Time: a.Time.Seconds()}
	}
	if !t.Ended() {
		return r
	}
	f := &metrics.Footer{End: t.End, Wall: max(0, t.End.Sub(t.Start).Seconds()), Exit: t.Exit, Signal: t.Signal, Problem: t.Problem}
	if json.Unmarshal(t.Usage, &f.Usage) != nil {
		f.Usage = metrics.Usage{}
	}
	f.Memory, f.MemoryFrom = f.Usage.MaxRSS, "process"
	r.Footer = f
	return r
}
