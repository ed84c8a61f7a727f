package dispatch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"hpcc/job/atomicfile"
	"hpcc/job/message"
)

// A NoJobError reports an ID that no job has.
type NoJobError struct {
	ID  string
	dir string // of the jobs of this machine
}

func (e *NoJobError) Error() string {
	return fmt.Sprintf("no job %q", e.ID)
}

// Similar returns the name or ID of a job of this machine that was probably meant, or "".
func (e *NoJobError) Similar() string {
	if e.dir == "" {
		return ""
	}
	var known []string
	entries, _ := os.ReadDir(e.dir)
	for _, entry := range entries {
		id := entry.Name()
		known = append(known, id)
		if p := strings.Split(id, "-"); len(p) > 2 { // NAME-DATE-TIME
			known = append(known, strings.Join(p[:len(p)-2], "-"))
		}
	}
	return message.Nearest(e.ID, known)
}

// Missing returns the ids that no job below dir has.
func Missing(dir string, ids []string) (missing []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	subs, bad, err := submissions(dir, ids)
	for _, id := range ids {
		var unreadable *unreadableJobError
		if len(match(subs, []string{id})) == 0 && !errors.As(noJob(dir, id, bad), &unreadable) {
			missing = append(missing, id)
		}
	}
	return missing, err
}

// Find returns the job below dir with an ID, a prefix of it, or a native ID. An ambiguous
// id is an error.
func Find(dir, id string) (*Submission, error) {
	subs, bad, err := submissions(dir, []string{id})
	if err != nil {
		return nil, err
	}
	if names(bad, id) {
		return nil, noJob(dir, id, bad)
	}
	found := match(subs, []string{id})
	for _, s := range found {
		if s.ID == id {
			return s, nil
		}
	}
	switch len(found) {
	case 0:
		return nil, noJob(dir, id, bad)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, s := range found[:min(len(found), 3)] {
		names = append(names, s.ID)
	}
	return nil, fmt.Errorf("%q is the beginning of %d jobs (%s …); give more of the id", id, len(found), strings.Join(names, ", "))
}

// submissions reads the jobs that ids can name, newest first, and lists the unreadable ones;
// without ids all jobs. It skips a directory without job.json, whose script was submitted by
// hand.
func submissions(dir string, ids []string) (out []*Submission, bad []*unreadableJobError, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("reading the jobs: %w", err)
	}
	var all []string
	for _, e := range entries {
		if e.Name() != nativesFile && e.Name() != pollFile {
			all = append(all, e.Name())
		}
	}
	if len(ids) > 0 {
		out, bad = readJobs(dir, likely(dir, all, ids))
		isMissing := func(id string) bool { return len(match(out, []string{id})) == 0 && !names(bad, id) }
		if !slices.ContainsFunc(ids, isMissing) {
			return out, bad, nil
		}
	}
	out, bad = readJobs(dir, all)
	return out, bad, nil
}

// readJobs reads the jobs in directories below dir, newest first, and lists the unreadable ones.
func readJobs(dir string, names []string) (out []*Submission, bad []*unreadableJobError) {
	for _, name := range names {
		home := filepath.Join(dir, name)
		s, err := ReadJob(home)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && s.ID != name {
			err = fmt.Errorf("reading %q: the job has another ID", filepath.Join(home, "job.json"))
		}
		if err != nil {
			bad = append(bad, &unreadableJobError{name, home, err})
			continue
		}
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool {
		if !out[i].Submitted.Equal(out[j].Submitted) {
			return out[i].Submitted.After(out[j].Submitted)
		}
		return out[i].ID > out[j].ID
	})
	return out, bad
}

// likely returns the directories, of all in dir, of the jobs that ids probably name: by their ID,
// which begins with the job's name, or by a native ID in nativesFile.
func likely(dir string, all, ids []string) (names []string) {
	for _, id := range ids {
		if slices.Contains(all, id) {
			names = append(names, id)
			continue
		}
		names = append(names, jobsOfNative(dir, id)...)
		for _, name := range all {
			if id != "" && strings.HasPrefix(name, id) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nativesFile is the file, in the directory of the jobs, by which a job is found by its native ID
// without reading all jobs. A line has the native ID, a tab and the job's ID. Lines can be
// missing or outdated: readers check the job.
const nativesFile = ".natives"

// noteNative adds the job to nativesFile in dir. Without it, finding the job takes longer.
func (s *Submission) noteNative(dir string) {
	if s.Native == "" || strings.ContainsAny(s.Native+s.ID, "\t\n") {
		return
	}
	f, err := atomicfile.Create(filepath.Join(dir, nativesFile), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(s.Native + "\t" + s.ID + "\n")
}

// isName reports whether a line's ID names an entry of a directory.
func isName(id string) bool { return filepath.IsLocal(id) && id != "." && !strings.Contains(id, "/") }

// maxNatives bounds the size of nativesFile that is read, in bytes: a million jobs.
const maxNatives = 100 << 20

// jobsOfNative returns the IDs of jobs that had a native ID, according to nativesFile in dir.
func jobsOfNative(dir, native string) (ids []string) {
	f, err := os.Open(filepath.Join(dir, nativesFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxNatives)); lines.Scan(); {
		if n, id, ok := strings.Cut(lines.Text(), "\t"); ok && n == native && isName(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// match returns the jobs that ids name, in the order of subs; all of them without ids.
func match(subs []*Submission, ids []string) []*Submission {
	if len(ids) == 0 {
		return subs
	}
	named := map[*Submission]bool{}
	for _, id := range ids {
		for _, s := range matchOne(subs, id) {
			named[s] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(subs), func(s *Submission) bool { return !named[s] })
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
		case s.ID == id || s.Native == id:
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

// names reports whether an unreadable job has exactly this ID. A prefix does not count.
func names(bad []*unreadableJobError, id string) bool {
	return slices.ContainsFunc(bad, func(b *unreadableJobError) bool { return b.ID == id })
}

// noJob returns the error for an ID that no readable job below dir has.
func noJob(dir, id string, bad []*unreadableJobError) error {
	for _, b := range bad {
		if strings.HasPrefix(b.ID, id) {
			return b
		}
	}
	return &NoJobError{ID: id, dir: dir}
}
