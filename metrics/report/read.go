package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"hpcc/metrics"
	"hpcc/text"
)

// DigestError reports that two systems, or two runs of one, used different images.
type DigestError struct {
	Systems [2]string
	Digests [2]string
}

func (e *DigestError) Error() string {
	if e.Systems[0] == e.Systems[1] {
		return fmt.Sprintf("runs of %s used different images: %s and %s", plain(e.Systems[0]), plain(e.Digests[0]), plain(e.Digests[1]))
	}
	return fmt.Sprintf("%s and %s used different images: %s and %s", plain(e.Systems[0]),
		plain(e.Systems[1]), plain(e.Digests[0]), plain(e.Digests[1]))
}

// ErrNothing reports that a system has no readable run.
var ErrNothing = errors.New("no readable run")

// Read reads the files of the sources, some in parallel, and compares them. An unreadable
// file is a warning, unless its system has no other run. Systems with different images are a
// [DigestError], unless the options allow them.
func Read(sources []Source, o Options) (*Report, error) {
	r := &Report{Type: "report", Version: version}
	for i := range sources {
		s, warnings, err := readSystem(&sources[i], o.Prices)
		if err != nil {
			return nil, fmt.Errorf("comparing %s: %w", plain(sources[i].Name), err)
		}
		r.Systems = append(r.Systems, s)
		r.Warnings = append(r.Warnings, warnings...)
	}
	if err := r.images(o.Different); err != nil {
		return nil, err
	}
	if o.Prices != nil {
		r.Currency = o.Prices.Currency
		r.Notes = append(r.Notes, o.Prices.notes(r.Systems)...)
		r.Sections = o.Prices.ownershipSection(r.Systems)
	}
	r.Properties = properties(r.Systems)
	for _, s := range r.Systems[1:] {
		r.Comparisons = append(r.Comparisons, compare(r, r.Systems[0], s))
	}
	for _, s := range r.Systems {
		s.Advice = advise(s)
	}
	return r, nil
}

// maxWarnings bounds the number of warnings about unreadable files.
const maxWarnings = 10

// readSystem reads the runs of one system.
func readSystem(src *Source, prices *Prices) (*System, []string, error) {
	s := &System{Name: plain(src.Name), Missing: src.Missing, Endings: map[Ending]int{}}
	s.Tasks = make([]*Task, len(src.Runs))
	failed := make([]error, len(src.Runs))
	var g errgroup.Group
	g.SetLimit(2 * goruntime.GOMAXPROCS(0)) // the files may be on slow storage
	for i := range src.Runs {
		g.Go(func() error {
			s.Tasks[i], failed[i] = readTask(&src.Runs[i])
			return nil
		})
	}
	_ = g.Wait()
	warnings := slices.Clone(src.Warnings)
	for _, err := range failed {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	first := errors.Join(failed...)
	if s.Tasks = slices.DeleteFunc(s.Tasks, func(t *Task) bool { return t == nil }); len(s.Tasks) == 0 {
		if len(src.Runs) == 1 && first != nil {
			return nil, nil, first
		}
		if len(warnings) > 0 {
			return nil, nil, fmt.Errorf("%w: %s", ErrNothing, warnings[0])
		}
		return nil, nil, ErrNothing
	}
	if n := len(warnings); n > maxWarnings {
		warnings = append(warnings[:maxWarnings],
			fmt.Sprintf("%s: %s of this kind", s.Name, text.Count(n-maxWarnings, "more warning", "more warnings")))
	}
	slices.SortStableFunc(s.Tasks, before)
	for _, t := range s.Tasks {
		s.Endings[t.Ending]++
		prices.add(s.Name, t)
	}
	s.count()
	s.choose()
	return s, warnings, nil
}

// readTask reads one run. If the file cannot be read, it uses the job's record if that has
// an end.
func readTask(run *Run) (*Task, error) {
	rec, err := &run.Known, error(nil)
	var soFar *metrics.Footer // usage of a run whose file has no footer
	if run.File != "" {
		var file *metrics.Record
		if file, err = readRun(run.File); err == nil {
			if file.Footer == nil {
				soFar = file.SoFar()
			}
			fill(file, &run.Known)
			rec = file
		} else if run.Known.Footer == nil {
			return nil, err
		}
	}
	if soFar != nil && rec.Footer != nil {
		rec.Footer = extend(rec.Footer, soFar)
	}
	t := &Task{File: run.File, Header: rec.Header, Footer: rec.Footer, soFar: soFar, Ending: ending(&rec.Header, rec.Footer),
		Ranks: run.Ranks, Measured: rec.Footer != nil && rec.Footer != run.Known.Footer}
	t.Figures = figures(&rec.Header, t.used())
	return t, err
}

// readRun reads the record of a run, with its samples only if it has no footer and they are valid.
func readRun(file string) (*metrics.Record, error) {
	r, err := metrics.ReadRecord(file, false)
	if err != nil || r.Footer != nil {
		return r, err
	}
	if sampled, err := metrics.ReadRecord(file, true); err == nil {
		return sampled, nil
	}
	return r, nil
}

// extend returns the end of a run, which its job's record has, with the usage that the samples of
// its file have in addition.
func extend(end, soFar *metrics.Footer) *metrics.Footer {
	f := *soFar
	f.End, f.Wall, f.Exit, f.Signal, f.Problem = end.End, max(end.Wall, f.Wall), end.Exit, end.Signal, end.Problem
	f.Usage = end.Usage
	f.Usage.User, f.Usage.System = max(f.Usage.User, soFar.Usage.User), max(f.Usage.System, soFar.Usage.System)
	if end.Memory > f.Memory {
		f.Memory, f.MemoryFrom = end.Memory, end.MemoryFrom
	}
	return &f
}

// fill completes the measured record from the job's record.
func fill(r *metrics.Record, known *metrics.Record) {
	h, k := &r.Header, &known.Header
	set(&h.Image, k.Image)
	set(&h.Digest, k.Digest)
	set(&h.Config, k.Config)
	set(&h.Machine.Host, k.Machine.Host)
	set(&h.Asked.CPUs, k.Asked.CPUs)
	set(&h.Asked.Memory, k.Asked.Memory)
	set(&h.Asked.GPUs, k.Asked.GPUs)
	set(&h.Asked.Time, k.Asked.Time)
	if len(h.Command) == 0 {
		h.Command = k.Command
	}
	switch {
	case h.Job == nil:
		h.Job = k.Job
	case k.Job != nil:
		set(&h.Job.Name, k.Job.Name)
		set(&h.Job.Target, k.Job.Target)
		set(&h.Job.Attempt, k.Job.Attempt)
		set(&h.Job.Submitted, k.Job.Submitted)
		set(&h.Job.Pulled, k.Job.Pulled)
		if len(h.Job.Params) == 0 {
			h.Job.Params = maps.Clone(k.Job.Params)
		}
	}
	switch {
	case r.Footer == nil:
		r.Footer = known.Footer
	case known.Footer != nil:
		set(&r.Footer.Problem, known.Footer.Problem)
	}
}

// set sets an unset value.
func set[T comparable](to *T, v T) {
	if *to == *new(T) {
		*to = v
	}
}

// count computes the figures of the successful runs. Without any, those of the ended runs count,
// or else those of runs without an end, up to their last sample.
func (s *System) count() {
	of := func(want func(*Task) bool) (list []*Task) {
		for _, t := range s.Tasks {
			if want(t) {
				list = append(list, t)
			}
		}
		return list
	}
	list := of(func(t *Task) bool { return t.Ending == Done })
	s.Counted = "successful runs"
	switch ended := len(s.Tasks) - s.Endings[Open]; {
	case len(list) == len(s.Tasks):
		s.Counted = allRuns
	case len(list) == 0:
		list = of(func(t *Task) bool { return t.Ending != Open })
		s.Counted = "ended runs; none succeeded"
		if ended > 0 {
			break
		}
		s.Counted = "none; no run has ended"
		if list = of(func(t *Task) bool { return t.soFar != nil }); len(list) > 0 {
			s.Counted = "runs without an end, up to their last sample"
		}
	}
	s.included = len(list)
	s.Figures = map[string]spread{}
	for _, m := range measures {
		var values []float64
		for _, t := range list {
			if v, ok := t.Figures[m.name]; ok {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			s.Figures[m.name] = spreadOf(values)
		}
	}
}

// allRuns describes the counted runs if all were successful.
const allRuns = "all"

// figure returns a figure if most of the counted runs have it.
func (s *System) figure(name string) (spread, bool) {
	f := s.Figures[name]
	if !enough(f.N, s.included) {
		return spread{}, false
	}
	return f, true
}

// total returns the sum of a figure over all runs, including failed ones, and the number of
// runs that have it.
func (s *System) total(name string) (sum float64, n int) {
	for _, t := range s.Tasks {
		if v, known := t.Figures[name]; known {
			sum, n = sum+v, n+1
		}
	}
	return sum, n
}

// maxChosen is the number of files in which samples are searched.
const maxChosen = 16

// choose reads the samples of the run whose wall clock is nearest to the median, for the
// charts. A curve needs two samples; without them the system has no charts.
func (s *System) choose() {
	median := s.Figures[wallName].Median
	off := func(t *Task) float64 { return max(t.Figures[wallName]-median, median-t.Figures[wallName]) }
	var list []*Task
	for _, t := range s.Tasks {
		if t.File != "" && (t.Ending == Done || s.Endings[Done] == 0) {
			list = append(list, t)
		}
	}
	slices.SortStableFunc(list, func(a, b *Task) int { return cmp.Compare(off(a), off(b)) })
	for _, t := range list[:min(len(list), maxChosen)] {
		if rec, err := metrics.ReadRecord(t.File, true); err == nil && len(rec.Samples) > 1 {
			fill(rec, &metrics.Record{Header: t.Header, Footer: t.Footer})
			s.chosen = rec
			return
		}
	}
}
