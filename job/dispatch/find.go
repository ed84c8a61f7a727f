package dispatch

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/text"
)

// A NoJobError reports an ID that no job has.
type NoJobError struct {
	ID  string
	dir string // of the jobs of this machine
}

func (e *NoJobError) Error() string {
	return fmt.Sprintf("no job %q", e.ID)
}

// Advice names a job of this machine that was probably meant, or says how to list the jobs.
func (e *NoJobError) Advice() string {
	var known []string
	if e.dir != "" {
		known, _ = jobDirs(e.dir)
	}
	names := map[string]bool{}
	for _, id := range known {
		if p := strings.Split(id, "-"); len(p) > 2 { // NAME-DATE-TIME
			names[strings.Join(p[:len(p)-2], "-")] = true
		}
	}
	if near := text.Nearest(e.ID, append(known, slices.Sorted(maps.Keys(names))...)); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return `"hpcc status" lists the jobs`
}

// missing returns the ids that no job below dir has.
func missing(dir string, ids []string) (list []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	f, err := newFinder(dir)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		var unreadable *unreadableJobError
		if len(f.find(id)) == 0 && !errors.As(f.none(id), &unreadable) {
			list = append(list, id)
		}
	}
	return list, nil
}

// Find returns the job below dir with an ID, a prefix of it, or a native ID. An ambiguous
// id is an error.
func Find(dir, id string) (*Submission, error) {
	f, err := newFinder(dir)
	if err != nil {
		return nil, err
	}
	found := f.find(id)
	if isUnreadable(id, f.bad) {
		return nil, f.none(id)
	}
	for _, s := range found {
		if s.ID == id {
			return s, nil
		}
	}
	switch len(found) {
	case 0:
		return nil, f.none(id)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, s := range found[:min(len(found), 3)] {
		names = append(names, s.ID)
	}
	return nil, fmt.Errorf("%q is the beginning of %d jobs (%s …); give more of the id", id, len(found), strings.Join(names, ", "))
}

// jobDirs lists the directories of jobs below dir: all entries but hpcc's own files, which begin
// with a dot.
func jobDirs(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the jobs: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// A finder finds jobs by the IDs and names that users type. A store can have ten thousands of jobs,
// so it looks at the names of directories first and reads only jobs that can be meant.
type finder struct {
	dir  string
	all  []string // directories
	seen map[string]*Submission
	bad  []*unreadableJobError // of the jobs that were read
}

func newFinder(dir string) (*finder, error) {
	all, err := jobDirs(dir)
	return &finder{dir: dir, all: all, seen: map[string]*Submission{}}, err
}

// find returns the job with an ID or native ID, else the newest job with that name, else the jobs
// whose IDs begin with id, newest first.
func (f *finder) find(id string) []*Submission {
	if id == "" {
		return nil
	}
	if slices.Contains(f.all, id) {
		if found := matchOne(f.read([]string{id}), id); len(found) > 0 || isUnreadable(id, f.bad) {
			return found
		}
	}
	if found := matchOne(f.read(jobsOfNative(f.dir, id)), id); len(found) > 0 && slices.Contains(found[0].natives(), id) {
		return found
	}
	if newest := f.newest(id); newest != nil {
		return []*Submission{newest}
	}
	beginning := slices.DeleteFunc(slices.Clone(f.all), func(name string) bool { return !strings.HasPrefix(name, id) })
	if found := matchOne(f.read(beginning), id); len(found) > 0 {
		return found
	}
	return matchOne(f.read(f.unlisted()), id)
}

// findAll returns the jobs below dir that ids name, newest first. Each must name a job.
func findAll(dir string, ids []string) (list []*Submission, err error) {
	f, err := newFinder(dir)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		found := f.find(id)
		if len(found) == 0 || isUnreadable(id, f.bad) {
			return nil, f.none(id)
		}
		list = append(list, slices.DeleteFunc(found, func(s *Submission) bool { return slices.Contains(list, s) })...)
	}
	sortJobs(list)
	return list, nil
}

// NativeIDs converts IDs and names of jobs below dir to the IDs of the scheduler. It keeps numbers, which are already
// IDs of the scheduler.
func NativeIDs(dir string, ids []string) (natives []string, err error) {
	for _, id := range ids {
		if strings.Trim(id, "0123456789") == "" {
			natives = append(natives, id)
			continue
		}
		found, err := findAll(dir, []string{id})
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			natives = append(natives, s.Native)
		}
	}
	return natives, nil
}

// read reads jobs, newest first, each of them once.
func (f *finder) read(names []string) (out []*Submission) {
	fresh := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := f.seen[name]; return ok })
	subs, bad := readJobs(f.dir, fresh)
	f.bad = append(f.bad, bad...)
	for _, name := range fresh {
		f.seen[name] = nil
	}
	for _, s := range subs {
		f.seen[s.ID] = s
	}
	for _, name := range names {
		if s := f.seen[name]; s != nil {
			out = append(out, s)
		}
	}
	sortJobs(out)
	return out
}

// newest returns the newest job with a name, or nil. IDs have the local time of the machine that
// submitted the job, so it reads those of a day before its choice, too.
func (f *finder) newest(name string) (newest *Submission) {
	at := map[string]time.Time{}
	for _, id := range f.all {
		if t, ok := timeInID(id, name); ok {
			at[id] = t
		}
	}
	ids := slices.SortedFunc(maps.Keys(at), func(a, b string) int { return cmp.Or(at[b].Compare(at[a]), strings.Compare(b, a)) })
	for _, id := range ids {
		if newest != nil && at[id].Add(24*time.Hour).Before(newest.Submitted) {
			break
		}
		for _, s := range f.read([]string{id}) {
			if s.Job.Name == name && (newest == nil || s.Submitted.After(newest.Submitted)) {
				newest = s
			}
		}
	}
	if newest != nil {
		newest.namesakes = len(ids)
	}
	return newest
}

// timeInID returns the time in the ID of a job with a name (see [Submission.directory]), as if it
// were in UTC.
func timeInID(id, name string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(id, name+"-")
	if !ok || len(rest) < len(idTime) {
		return time.Time{}, false
	}
	stamp, n := rest[:len(idTime)], rest[len(idTime):]
	t, err := time.Parse(idTime, stamp)
	if n != "" {
		k, kerr := strconv.Atoi(n)
		err = errors.Join(err, kerr)
		ok = k < 0
	}
	return t, ok && err == nil
}

// none returns the error for an ID that no readable job has.
func (f *finder) none(id string) error {
	for _, b := range f.bad {
		if strings.HasPrefix(b.ID, id) {
			return b
		}
	}
	return &NoJobError{ID: id, dir: f.dir}
}

// parallelJobs is the number of jobs that are read in parallel: most of the time, a network file
// system is waited for.
const parallelJobs = 8

// readJobs reads the jobs in directories below dir, newest first, and lists the unreadable ones.
// It skips a directory without job.json, whose script was submitted by hand.
func readJobs(dir string, names []string) (out []*Submission, bad []*unreadableJobError) {
	read := make([]*Submission, len(names))
	errs := make([]error, len(names))
	inParallel(len(names), func(i int) { read[i], errs[i] = readJobIn(dir, names[i]) })
	for i, err := range errs {
		switch {
		case err == nil:
			out = append(out, read[i])
		case !errors.Is(err, fs.ErrNotExist):
			bad = append(bad, &unreadableJobError{names[i], filepath.Join(dir, names[i]), err})
		}
	}
	sortJobs(out)
	return out, bad
}

// readJobIn reads the job in a directory below dir.
func readJobIn(dir, name string) (*Submission, error) {
	home := filepath.Join(dir, name)
	s, err := ReadJob(home)
	if err == nil && s.ID != name {
		err = fmt.Errorf("reading %q: the job has another ID", filepath.Join(home, "job.json"))
	}
	return s, err
}

// inParallel calls do for 0 to n-1, some of them in parallel.
func inParallel(n int, do func(i int)) {
	var g errgroup.Group
	g.SetLimit(parallelJobs)
	for i := range n {
		g.Go(func() error { do(i); return nil })
	}
	_ = g.Wait() // do returns no error
}

// sortJobs sorts jobs, newest first.
func sortJobs(list []*Submission) {
	slices.SortFunc(list, func(a, b *Submission) int {
		return cmp.Or(b.Submitted.Compare(a.Submitted), strings.Compare(b.ID, a.ID))
	})
}

// nativesFile is the file, in the directory of the jobs, by which a job is found by its native ID
// without reading all jobs. A line has the native ID, a tab and the job's ID. Lines can be
// missing or outdated: readers check the job.
const nativesFile = ".natives"

// noteNative adds the job to nativesFile in dir. Without it, finding the job takes longer.
func (s *Submission) noteNative(dir string) {
	noteNatives(dir, []*Submission{s})
}

// noteNatives adds jobs to nativesFile in dir.
func noteNatives(dir string, list []*Submission) {
	var lines strings.Builder
	for _, s := range list {
		for _, native := range s.natives() {
			if native != "" && !strings.ContainsAny(native+s.ID, "\t\n") {
				lines.WriteString(native + "\t" + s.ID + "\n")
			}
		}
	}
	if lines.Len() == 0 {
		return
	}
	f, err := files.Create(filepath.Join(dir, nativesFile), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(lines.String())
}

// isName reports whether a line's ID names an entry of a directory.
func isName(id string) bool { return filepath.IsLocal(id) && id != "." && !strings.Contains(id, "/") }

// maxNatives bounds the size of nativesFile that is read, in bytes: a million jobs.
const maxNatives = 100 << 20

// jobsOfNative returns the IDs of jobs that had a native ID, according to nativesFile in dir.
func jobsOfNative(dir, native string) (ids []string) {
	eachNative(dir, func(n, id string) {
		if n == native {
			ids = append(ids, id)
		}
	})
	return ids
}

// eachNative calls do for the lines of nativesFile in dir.
func eachNative(dir string, do func(native, id string)) {
	f, err := os.OpenFile(filepath.Join(dir, nativesFile), os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxNatives)); lines.Scan(); {
		if native, id, ok := strings.Cut(lines.Text(), "\t"); ok && isName(id) {
			do(native, id)
		}
	}
}

// unlisted returns the directories of the jobs that nativesFile lacks: those of an older hpcc, and
// scripts that were submitted by hand. It adds the former to the file, so that they are read once.
func (f *finder) unlisted() []string {
	listed := map[string]bool{}
	eachNative(f.dir, func(_, id string) { listed[id] = true })
	rest := slices.DeleteFunc(slices.Clone(f.all), func(name string) bool { return listed[name] })
	noteNatives(f.dir, f.read(rest))
	return rest
}

// matchOne returns the job with an ID or native ID, else the newest job with that name, else
// the jobs whose IDs begin with id.
func matchOne(subs []*Submission, id string) []*Submission {
	if id == "" {
		return nil
	}
	var exact, named, begins []*Submission
	for _, s := range subs {
		switch {
		case s.ID == id || slices.Contains(s.natives(), id):
			exact = append(exact, s)
		case s.Job != nil && s.Job.Name == id:
			named = append(named, s)
		case strings.HasPrefix(s.ID, id):
			begins = append(begins, s)
		}
	}
	switch {
	case len(exact) > 0:
		return exact
	case len(named) > 0:
		newest := slices.MaxFunc(named, func(a, b *Submission) int { return a.Submitted.Compare(b.Submitted) })
		newest.namesakes = len(named)
		return []*Submission{newest}
	}
	return begins
}

// An unreadableJobError reports a job whose job.json cannot be read.
type unreadableJobError struct {
	ID   string
	Home string // its directory
	Err  error
}

func (e *unreadableJobError) Error() string {
	return fmt.Sprintf("job %s: %v; its script and the records of its tasks are in %s: restore job.json, or remove the directory", e.ID, e.Err, e.Home)
}

func (e *unreadableJobError) Unwrap() error { return e.Err }

// isUnreadable reports whether an unreadable job has exactly this ID. A prefix does not count.
func isUnreadable(id string, bad []*unreadableJobError) bool {
	return slices.ContainsFunc(bad, func(b *unreadableJobError) bool { return b.ID == id })
}
