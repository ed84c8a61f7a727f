package dispatch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/job"
)

// endedDir, in the directory of the jobs, has the file endedFile, which caches the states of jobs that
// have ended. A line has the state of a job, with a checksum; a later line replaces an earlier one.
// An older hpcc would take a file for an unreadable job, but it skips a directory without job.json.
//
// The records of the tasks decide. A line counts only while the modification time of the job's
// directory is the one in the line: every version of hpcc renames files in that directory when
// a task starts or ends, or when the job is cancelled or rerun. Removing the file is harmless.
const (
	endedDir  = ".ended"
	endedFile = "jobs.jsonl"
)

// maxEnded bounds the size of endedFile that is read, in bytes: a million jobs.
const maxEnded = 500 << 20

// settledAge is the age of the last change from which the state of an ended job is cached. Clocks
// differ, and some file systems keep times with a resolution of seconds.
const settledAge = time.Hour

// An endedJob is a line of endedFile: what an overview shows of a job.
type endedJob struct {
	ID        string     `json:"id"`
	Changed   int64      `json:"changed_ns"` // modification time of the job's directory
	Name      string     `json:"name"`
	Native    string     `json:"native,omitempty"`
	Target    job.Target `json:"target"`
	Site      string     `json:"site,omitempty"`
	Submitted time.Time  `json:"submitted"`
	Cancelled time.Time  `json:"cancelled,omitzero"`
	job.Counts
	Reason  string    `json:"reason,omitempty"`
	User    string    `json:"user,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
}

// status returns the state of the job, without its tasks. j has the name of the job and nothing else.
func (e *endedJob) status(j *job.Job) *Status {
	s := &Submission{ID: e.ID, Native: e.Native, Cluster: Cluster{Target: e.Target, Site: e.Site},
		Submitted: e.Submitted, Cancelled: e.Cancelled, Job: j}
	return &Status{brief: true, Submission: s, Counts: e.Counts, Reason: e.Reason, User: e.User, Started: e.Started, Ended: e.Ended}
}

// ended returns the cached form of a state.
func (s *Status) ended(changed int64) *endedJob {
	return &endedJob{ID: s.ID, Changed: changed, Name: s.Job.Name, Native: s.Native, Target: s.Target,
		Site: s.Site, Submitted: s.Submitted, Cancelled: s.Cancelled, Counts: s.Counts, Reason: s.Reason,
		User: s.User, Started: s.Started, Ended: s.Ended}
}

// Overview returns the states of all jobs below dir, newest first, of jobs that have ended without
// tasks and requests; see Status.complete. It reads only jobs that have changed, or were not over, at the
// last call. progress gets the number of jobs read, of a total; calls do not overlap. Warnings are
// those of [Statuses].
func Overview(ctx context.Context, dir string, progress func(done, total int)) (list []*Status, warnings []string, err error) {
	o, err := readOverview(ctx, dir, progress)
	if err != nil {
		return nil, nil, err
	}
	for _, err := range o.bad {
		o.unreadable = append(o.unreadable, err.Error())
	}
	slices.Sort(o.unreadable)
	return o.list, append(o.unreadable, o.warnings...), nil
}

// ActiveImages returns the digests of the images of jobs that have not ended. The error also lists jobs that
// cannot be read, which may need any image.
func ActiveImages(ctx context.Context, dir string) (digests, warnings []string, err error) {
	o, err := readOverview(ctx, dir, func(int, int) {})
	if err != nil {
		return nil, nil, err
	}
	for _, st := range o.list {
		if st.Active() {
			digests = append(digests, st.Images()...)
		}
	}
	return digests, append(o.unreadable, o.warnings...), errors.Join(o.bad...)
}

// readOverview reads the jobs below dir; see [Overview].
func readOverview(ctx context.Context, dir string, progress func(done, total int)) (*overview, error) {
	names, err := jobDirs(dir)
	if err != nil {
		return nil, err
	}
	o := &overview{dir: dir, open: map[string][]*Status{}, owners: owners{}, named: map[string]*job.Job{}}
	o.cached, o.lines = readEnded(dir)
	infos := make([]fs.FileInfo, len(names))
	inParallel(len(names), func(i int) { infos[i], _ = os.Stat(filepath.Join(dir, names[i])) })
	var rest []fs.FileInfo
	for i, name := range names {
		switch e := o.cached[name]; {
		case infos[i] == nil: // removed meanwhile
		case e != nil && e.Changed == infos[i].ModTime().UnixNano():
			o.list = append(o.list, o.status(e))
		default:
			rest = append(rest, infos[i])
		}
	}
	done := 0
	inParallel(len(rest), func(i int) {
		if ctx.Err() == nil {
			o.read(rest[i])
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		done++
		progress(done, len(rest))
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.settle(ctx)
	o.save(len(names))
	slices.SortFunc(o.list, func(a, b *Status) int { return cmp.Or(b.Submitted.Compare(a.Submitted), cmp.Compare(b.ID, a.ID)) })
	return o, nil
}

// An overview collects the states of all jobs.
type overview struct {
	dir    string
	cached map[string]*endedJob
	lines  int // of endedFile

	mu         sync.Mutex // protects the fields below while jobs are read
	list       []*Status
	bad        []error              // of jobs that cannot be read
	unreadable []string             // warnings about records
	warnings   []string             // other warnings
	open       map[string][]*Status // jobs whose records are incomplete, by cluster
	fresh      []*endedJob          // jobs for the cache
	owners     owners
	named      map[string]*job.Job // by name, for jobs that are not read
}

// status returns the state of a job in the cache.
func (o *overview) status(e *endedJob) *Status {
	if o.named[e.Name] == nil {
		o.named[e.Name] = &job.Job{Name: e.Name}
	}
	return e.status(o.named[e.Name])
}

// complete adds the tasks and requests to a state of [Overview]. It does nothing if the job was
// removed meanwhile, or if a site reported it.
func (s *Status) complete(dir string) {
	if !s.brief {
		return
	}
	if sub, err := readJobIn(dir, s.ID); err == nil {
		s.Submission, s.brief = sub, false
		_ = s.readTasks(dir) // Overview warns about unreadable ones
		s.readGrown()
	}
}

// read reads one job.
func (o *overview) read(dir fs.FileInfo) {
	s, err := readJobIn(o.dir, dir.Name())
	if errors.Is(err, fs.ErrNotExist) { // its script was submitted by hand
		return
	}
	var st *Status
	warning := ""
	if err == nil {
		st = &Status{Submission: s}
		if warning, err = job.Readable(st.read(o.dir)); err != nil {
			err = fmt.Errorf("skipping job %s: %w", s.ID, err)
		}
	} else {
		err = &unreadableJobError{dir.Name(), filepath.Join(o.dir, dir.Name()), err}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.bad = append(o.bad, err)
		return
	}
	st.User = o.owners.of(dir)
	if warning != "" {
		o.unreadable = append(o.unreadable, fmt.Sprintf("job %s: %s", s.ID, warning))
	}
	if st.unsettled(false) {
		o.open[s.key()] = append(o.open[s.key()], st)
		st.changed, st.damaged = dir.ModTime(), warning != ""
		return
	}
	o.add(st, dir.ModTime(), warning == "" && time.Since(dir.ModTime()) > settledAge)
}

// add adds a state to the list, and to the cache if it is final.
func (o *overview) add(st *Status, changed time.Time, final bool) {
	st.span()
	switch e := st.ended(changed.UnixNano()); {
	case final && len(e.Failed) <= maxFailed:
		o.fresh = append(o.fresh, e)
		st = o.status(e)
	case !st.Active():
		st = o.status(e)
	}
	o.list = append(o.list, st)
}

// maxFailed bounds the length of a line.
const maxFailed = 1000

// settle queries the clusters about the jobs that have not ended. A job whose tasks the scheduler
// has lost is over after a while, like a job with failed tasks.
func (o *overview) settle(ctx context.Context) {
	o.warnings = settleAll(ctx, o.dir, o.open)
	for _, list := range o.open {
		for _, st := range list {
			lost := !st.Active() && st.keeper() == nil && !st.Job.Interactive && time.Since(st.changed) > requeueTime
			o.add(st, st.changed, lost && !st.damaged)
		}
	}
}

// save adds jobs to the cache, or writes it again without outdated lines if there are many. Without
// the permission to write, the next call reads the jobs again.
func (o *overview) save(jobs int) {
	if len(o.fresh) == 0 {
		return
	}
	list, file := o.fresh, filepath.Join(o.dir, endedDir, endedFile)
	if files.MakeDir(filepath.Dir(file)) != nil {
		return
	}
	rewrite := o.lines+len(list) > 2*jobs+100
	if rewrite {
		for _, e := range o.fresh {
			o.cached[e.ID] = e
		}
		list = slices.Collect(maps.Values(o.cached))
	}
	b := []byte("\n") // not a continuation of a line that was cut off
	for _, e := range list {
		line, err := files.SealJSON(e)
		if err != nil {
			return
		}
		b = append(b, line...)
	}
	if rewrite {
		_ = files.Write(file, b)
		return
	}
	f, err := files.Create(file, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return
	}
	_, _ = f.Write(b)
	f.Close()
}

// readEnded reads endedFile in dir. It returns the last valid line of each job, and the number of lines.
func readEnded(dir string) (list map[string]*endedJob, lines int) {
	list = map[string]*endedJob{}
	f, err := os.OpenFile(filepath.Join(dir, endedDir, endedFile), os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return list, 0
	}
	defer f.Close()
	for r := bufio.NewReaderSize(io.LimitReader(f, maxEnded), 1<<16); ; {
		line, err := r.ReadSlice('\n')
		if err != nil { // the end, or a line that no hpcc wrote
			return list, lines
		}
		if len(line) == 1 {
			continue
		}
		e := &endedJob{}
		if lines++; files.CheckJSON(line) == nil && json.Unmarshal(line, e) == nil {
			list[e.ID] = e
		}
	}
}
