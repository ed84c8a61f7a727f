// Package measured reads what the runs of jobs left: measured runs and task records for "hpcc report", and the
// results that tasks wrote.
//
//	[NAME=]RUN ─► Finder.Read ─► report.Report ─► Sweeps.Find ─► report.Sweep
package measured

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
	"hpcc/job/site"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
	"hpcc/text"
)

// Limits for a directory of runs.
const (
	maxRunDepth   = 8
	maxRunRecords = 400_000 // files and directories; a measured task has two files
)

// ext is the file name extension of measured runs.
const ext = ".jsonl"

// A Finder finds the measured runs that the arguments of "hpcc report" name.
type Finder struct {
	Scope    site.Scope // where to look for jobs
	Store    string     // directory of the store; "" for the usual one
	Attempts bool       // include earlier attempts of tasks
	Warn     func([]string)
}

// Read finds the systems of arguments of the form [NAME=]RUN, and compares their runs. RUN is a file, a directory or a
// job. The report starts its advice with that about requests. Errors have hints.
func (f Finder) Read(ctx context.Context, args []string, o report.Options) (*report.Report, error) {
	sources, err := f.all(ctx, args)
	if err != nil {
		return nil, err
	}
	r, err := report.Read(sources, o)
	switch {
	case errors.As(err, new(*report.DigestError)):
		return nil, text.Hint(err, "--different compares them anyway; "+
			"builds of one Dockerfile for two architectures have one digest only if --platform named both")
	case errors.Is(err, report.ErrNothing):
		return nil, text.Hint(err, "\"hpcc run --measure\" and \"hpcc submit --measure\" write records; those of jobs are in jobs/ of the store")
	case err != nil:
		return nil, err
	}
	for _, s := range r.Systems {
		s.Advice = append(adviseRequests(s), s.Advice...)
	}
	return r, nil
}

// all finds the systems of arguments of the form [NAME=]RUN.
func (f Finder) all(ctx context.Context, args []string) (list []report.Source, err error) {
	used := map[string]int{}
	for _, arg := range args {
		name, run := splitSystem(arg)
		s, err := f.one(ctx, run)
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

// splitSystem splits NAME=RUN. The name of an existing file is always a RUN.
func splitSystem(arg string) (name, run string) {
	name, run, ok := strings.Cut(arg, "=")
	if _, err := os.Lstat(arg); err == nil || !ok || name == "" || run == "" || strings.Contains(name, "/") {
		return "", arg
	}
	return name, run
}

// one finds the runs of one system: a file, a directory or a job.
func (f Finder) one(ctx context.Context, run string) (report.Source, error) {
	fi, err := os.Stat(run)
	switch {
	case err == nil && fi.IsDir():
		return runsBelow(run, f.Attempts)
	case err == nil:
		return report.Source{Name: strings.TrimSuffix(filepath.Base(run), ext), Runs: []report.Run{{File: run}}}, nil
	case strings.ContainsRune(run, '/') || strings.HasSuffix(run, ext):
		return report.Source{}, fmt.Errorf("reading a measured run: %w", err)
	}
	return f.ofJob(ctx, run)
}

// ofJob finds the runs of a job. It fetches records that the target keeps, as "hpcc status"
// does.
func (f Finder) ofJob(ctx context.Context, id string) (src report.Source, err error) {
	s, err := store.OpenToRead(f.Store)
	if err != nil {
		return src, err
	}
	found, err := f.Scope.Find(ctx, s.Jobs(), id)
	if err != nil {
		if errors.As(err, new(*dispatch.NoJobError)) {
			err = text.Hint(fmt.Errorf("%q is not a file, a directory or a job", id), `"hpcc status" lists the jobs`)
		}
		return src, err
	}
	if found.Remote != nil {
		at := found.Remote.Site
		err := fmt.Errorf("job %s belongs to site %s, which keeps its records", found.ID, at.Name)
		return src, text.Hint(err, "ssh %s hpcc report %s, or copy the directory of the job from jobs/ of that store",
			at.SSH, found.ID)
	}
	// Ignore the error: it is about unreadable records, which runsBelow reports as well.
	list, warnings, _ := dispatch.Statuses(ctx, s.Jobs(), []string{found.ID})
	f.Warn(warnings)
	src, err = runsBelow(filepath.Join(s.Jobs(), found.ID), f.Attempts)
	for _, st := range list {
		if st.ID == found.ID && st.Job.Workflow == nil {
			src.Missing = max(0, st.Total-st.Recorded())
		}
	}
	return src, err
}

// runsBelow finds the measured runs and the task records in a directory tree. root may be a
// symbolic link; links below it are not followed.
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

// recordsBelow lists the directories of a tree and the files of measured runs in each. It
// lists unreadable directories too, so that reading their records reports the error.
func recordsBelow(root string, most int) (dirs []string, files map[string][]string, err error) {
	if !strings.HasSuffix(root, "/") {
		root += "/" // walk the target of a symbolic link
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
			if _, attempt, ok := job.TaskOf(e.Name()); ok && attempt < 0 && path != root { // the directory of the task's results
				return fs.SkipDir
			}
			dirs = append(dirs, path)
		case strings.HasPrefix(e.Name(), "tasks."): // records of successful tasks, which job.Records reads
			return nil
		case e.Type().IsRegular() && strings.HasSuffix(path, ext):
			files[filepath.Dir(path)] = append(files[filepath.Dir(path)], path)
		case !known || !isTask(name):
			return nil
		}
		if n++; n > most {
			err := fmt.Errorf("looking for measured runs: %s has more than %d records and directories", root, most)
			return text.Hint(err, "name subdirectories, each as a system, or a single job")
		}
		return nil
	})
	return dirs, files, err
}

// isTask reports whether a file name without its extension is the name of a task record.
func isTask(name string) bool {
	_, _, ok := job.TaskOf(name)
	return ok
}

// runsIn joins the measured runs and the task records of one directory.
func runsIn(src *report.Source, dir string, files []string, attempts bool) {
	var r job.Records
	if err := r.Read(dir, attempts); err != nil {
		r.Bad = append(r.Bad, err)
	}
	for _, err := range r.Bad {
		src.Warnings = append(src.Warnings, err.Error())
	}
	sub, err := dispatch.ReadJob(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		src.Warnings = append(src.Warnings, err.Error())
	}
	measured := map[string]string{}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ext)
		if _, attempt, ok := job.TaskOf(name); ok && attempt >= 0 && !attempts {
			continue
		}
		measured[name] = f
	}
	for _, t := range r.Last {
		src.Runs = append(src.Runs, runOf(measured, fmt.Sprintf("task.%d", t.Index), sub, &t))
	}
	for _, t := range r.Earlier {
		src.Runs = append(src.Runs, runOf(measured, fmt.Sprintf("task.%d.%d", t.Index, t.Attempt), sub, &t))
	}
	for _, f := range files { // runs without a task record
		if name := strings.TrimSuffix(filepath.Base(f), ext); measured[name] != "" {
			src.Runs = append(src.Runs, report.Run{File: f})
		}
	}
}

// runOf returns the run of a task record. It adds the measured run of that name, if there is one,
// and removes it from measured.
func runOf(measured map[string]string, name string, sub *dispatch.Submission, t *job.Task) report.Run {
	run := report.Run{File: measured[name], Known: recordOf(sub, t)}
	if sub != nil {
		run.Ranks = sub.Job.Slots() / max(sub.Job.CPUs, 1)
	}
	delete(measured, name)
	return run
}

// recordOf converts a job and one of its task records to the record of a measured run.
func recordOf(sub *dispatch.Submission, t *job.Task) metrics.Record {
	r := metrics.Record{Header: metrics.Header{Start: t.Start, Machine: metrics.Machine{Host: t.Host},
		Job: &metrics.JobOf{Task: t.Index, Attempt: t.Attempt, Params: t.Params}}}
	if sub != nil {
		h, j := &r.Header, sub.Job
		h.Image, h.Digest, h.Command = j.Image, t.ImageDigest, t.Fill(j.Args)
		if now := sub.Imaged(); now.ImageVersion == t.ImageVersion {
			h.Image = now.Image
		}
		if j.Script != nil {
			h.Command = append([]string{j.Script.Name}, j.Script.Args...)
		}
		h.Job.ID, h.Job.Name, h.Job.Target, h.Job.Submitted = sub.ID, j.Name, string(sub.Target), sub.SubmissionTime(t)
		a := j.Alone().Request()
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

// ReadPrices reads the file of --price or --power. Errors about its content have the file's name and the line.
func ReadPrices(file string) (*report.Prices, error) {
	p := &report.Prices{}
	at, err := dispatch.ReadTables(file, p)
	if err != nil {
		return nil, err
	}
	if key, err := p.Check(); err != nil {
		return nil, at(key, err)
	}
	return p, nil
}
