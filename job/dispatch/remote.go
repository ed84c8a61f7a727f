package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/invoke"
	"hpcc/text"
)

// sitesDir, below the jobs directory, caches the last answer of each site: a file NAME.json
// with one line per job, in the format of "hpcc status --json".
const sitesDir = ".sites"

// remoteTime limits a status query of a remote site, which includes the login and the answer
// of its scheduler.
const remoteTime = 10 * time.Second

// A Selection chooses the jobs of [Selection.Statuses].
type Selection struct {
	IDs      []string              // IDs, beginnings of IDs or names; empty for all jobs
	Local    bool                  // jobs of this machine
	Sites    []*Site               // and those of remote sites
	Site     string                // of the jobs of this machine, only those of a local site; "" for all
	All      bool                  // all jobs that have ended, not only the newest
	Running  bool                  // only jobs that have not ended
	User     string                // only jobs of this user; "" for all users
	Progress func(done, total int) // see [Overview]
}

// shownEnded is the number of jobs that have ended in a list of all jobs without All.
const shownEnded = 100

// Statuses queries the schedulers of this machine and the sites, all at the same time. It returns jobs like
// [Statuses], newest first; hidden is a note about older jobs that have ended and are left out, or "".
func (q *Selection) Statuses(ctx context.Context, dir string) (list []*Status, hidden string, warnings []string, err error) {
	absent := q.IDs // from this machine
	if q.Local {
		if absent, err = missing(dir, q.IDs); err != nil {
			return nil, "", nil, err
		}
	}
	var g sync.WaitGroup
	var remote []*Status
	var remoteWarnings []string
	if len(q.IDs) == 0 || len(absent) > 0 {
		g.Go(func() { remote, remoteWarnings = remoteStatuses(ctx, dir, q.Sites, q.All, absent) })
	}
	present := slices.DeleteFunc(slices.Clone(q.IDs), func(id string) bool { return slices.Contains(absent, id) })
	switch {
	case q.Local && len(present) > 0:
		list, warnings, err = Statuses(ctx, dir, present)
	case q.Local && len(q.IDs) == 0:
		list, warnings, err = Overview(ctx, dir, q.Progress)
	}
	if g.Wait(); err != nil {
		return nil, "", nil, err
	}
	if list, err = merge(dir, list, remote, absent); err != nil {
		return nil, "", remoteWarnings, err
	}
	list = slices.DeleteFunc(list, func(st *Status) bool {
		return (q.Site != "" && st.Site != q.Site) || (q.Running && !st.Active()) || (q.User != "" && st.User != q.User)
	})
	list, hidden = q.newest(list)
	return list, hidden, append(warnings, remoteWarnings...), nil
}

// newest leaves out the older jobs that have ended, and returns a note about them.
func (q *Selection) newest(list []*Status) (shown []*Status, hidden string) {
	if q.All || len(q.IDs) > 0 {
		return list, ""
	}
	ended, remote := 0, false
	for _, st := range list {
		if !st.Active() {
			ended++
		}
		if st.Active() || ended <= shownEnded {
			shown = append(shown, st)
		}
		remote = remote || st.Site != ""
	}
	switch n := len(list) - len(shown); {
	case remote && ended >= shownEnded: // sites send only the newest
		return shown, "older jobs that have ended are not shown"
	case n > 0:
		return shown, text.Count(n, "older job that has ended is", "older jobs that have ended are") + " not shown"
	}
	return shown, ""
}

// remoteStatuses queries the remote sites concurrently and caches their answers below dir.
// For a site that does not answer it returns the cached ones, with [Status.AsOf], and a
// warning. The answers have the jobs that have not ended and the newest others; with all, each job.
// It queries older jobs that ids name separately.
func remoteStatuses(ctx context.Context, dir string, sites []*Site, all bool, ids []string) (list []*Status, warnings []string) {
	var flags []string
	if all {
		flags = []string{"--all"}
	}
	for _, a := range askStatuses(ctx, sites, flags...) {
		if a.err == nil {
			a.site.cacheStatuses(dir, a.text)
			list = append(list, a.list...)
			continue
		}
		cached, at := a.site.cachedStatuses(dir)
		list = append(list, cached...)
		why := a.err.Error()
		if !at.IsZero() {
			why += "; its jobs are as of " + at.Local().Format(time.DateTime)
		}
		warnings = append(warnings, why)
	}
	for _, id := range ids {
		if len(matchStatuses(list, id)) > 0 {
			continue
		}
		for _, a := range askStatuses(ctx, sites, "--", id) { // a site that does not know it, or does not answer, has none
			list = append(list, a.list...)
		}
	}
	return list, warnings
}

// A statusAnswer is what "hpcc status" prints at a site.
type statusAnswer struct {
	site *Site
	list []*Status
	text []byte // the same, as printed
	err  error
}

// askStatuses runs "hpcc status" with more arguments at all sites.
func askStatuses(ctx context.Context, sites []*Site, args ...string) []statusAnswer {
	answers := make([]statusAnswer, len(sites))
	var g sync.WaitGroup
	for i, t := range sites {
		g.Go(func() {
			a := statusAnswer{site: t}
			if a.text, a.err = t.Ask(ctx, false, remoteTime, append([]string{"status", "--here", "--json"}, args...)...); a.err == nil {
				if a.list, a.err = t.readStatuses(bytes.NewReader(a.text)); a.err != nil {
					a = statusAnswer{site: t, err: fmt.Errorf("site %s: reading the output of its \"hpcc status\": %w", t.Name, a.err)}
				}
			}
			answers[i] = a
		})
	}
	g.Wait()
	return answers
}

// WriteStatuses writes the line of "hpcc status --json" for each job. There can be a million tasks, so it reads the tasks
// of some jobs at a time, and clears the list. progress gets the number of jobs read, of a total.
func WriteStatuses(w io.Writer, dir string, list []*Status, progress func(done, total int)) error {
	type object struct {
		Type  string `json:"type"`
		State string `json:"state"`
		*Status
		Tasks []job.Task `json:"tasks"`
	}
	done, enc := 0, json.NewEncoder(w)
	for some := range slices.Chunk(list, 64) {
		progress(done, len(list))
		done += len(some)
		var g sync.WaitGroup
		for _, st := range some {
			g.Go(func() { st.complete(dir) })
		}
		g.Wait()
		for _, st := range some {
			shown := *st
			shown.Submission = st.Submission.Redacted()
			if err := enc.Encode(object{"job", st.State(), &shown, st.Tasks}); err != nil {
				return err
			}
		}
		clear(some)
	}
	return nil
}

// readStatuses reads lines of "hpcc status --json".
func (t *Site) readStatuses(r io.Reader) (list []*Status, err error) {
	d := json.NewDecoder(r)
	for {
		line := struct {
			*Status
			Tasks []job.Task `json:"tasks"`
		}{Status: &Status{Submission: &Submission{}}}
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		st := line.Status
		if st == nil || st.Submission == nil || st.Job == nil || st.ID == "" {
			return nil, errors.New("a line does not describe a job")
		}
		st.Tasks, st.Site = line.Tasks, t.Name
		list = append(list, st)
	}
}

// cacheStatuses caches an answer if the jobs directory exists. It ignores errors, because
// the cache is only a fallback.
func (t *Site) cacheStatuses(dir string, lines []byte) {
	if _, err := os.Stat(dir); err != nil || os.MkdirAll(filepath.Join(dir, sitesDir), 0o700) != nil {
		return
	}
	_ = files.Write(t.cacheFile(dir), files.SealText(lines))
}

// cacheFile returns the path of the cached answer.
func (t *Site) cacheFile(dir string) string { return filepath.Join(dir, sitesDir, t.Name+".json") }

// cachedStatuses returns the jobs of the cached answer and its time. The time is zero if
// the cache has no valid answer.
func (t *Site) cachedStatuses(dir string) ([]*Status, time.Time) {
	lines, at, err := t.readCache(dir)
	if err != nil {
		return nil, time.Time{}
	}
	list, err := t.readStatuses(bytes.NewReader(lines))
	if err != nil {
		return nil, time.Time{}
	}
	for _, st := range list {
		st.AsOf = at
	}
	return list, at
}

// readCache reads the lines of the cached answer and its time.
func (t *Site) readCache(dir string) ([]byte, time.Time, error) {
	f, err := os.Open(t.cacheFile(dir))
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, invoke.MaxListing+1024))
	if err != nil {
		return nil, time.Time{}, err
	}
	lines, err := files.CheckText(b)
	return lines, fi.ModTime(), err
}

// Sent adds a job that was submitted at the site to the cached answer.
func (t *Site) Sent(dir string, s *Submission) error {
	line, err := json.Marshal(&Status{Submission: s, Counts: job.Counts{Total: s.Job.Count(), Waiting: s.Job.Count()}})
	if err != nil {
		return err
	}
	before, _, err := t.readCache(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, files.ErrDamaged) && !errors.Is(err, files.ErrNoSum) {
		return fmt.Errorf("recording job %s of site %s: %w", s.ID, t.Name, err)
	}
	if err = os.MkdirAll(filepath.Join(dir, sitesDir), 0o700); err == nil {
		err = files.WriteSynced(t.cacheFile(dir), files.SealText(append(append(line, '\n'), before...)))
	}
	if err != nil {
		return fmt.Errorf("recording job %s of site %s: %w", s.ID, t.Name, err)
	}
	return nil
}

// Owner returns the site that has a job, and the job's full ID; nil if there is none. id is
// the job's ID, the start of it, or its native ID. Owner searches the cached answers first
// and queries the sites only if the job is not in these answers.
func Owner(ctx context.Context, dir string, sites []*Site, id string) (*Site, string, error) {
	var cached []*Status
	for _, t := range sites {
		list, _ := t.cachedStatuses(dir)
		cached = append(cached, list...)
	}
	if found, err := pick(cached, id); found != nil || err != nil || len(sites) == 0 {
		return found.at(sites), found.id(), err
	}
	list, _ := remoteStatuses(ctx, dir, sites, false, []string{id})
	found, err := pick(list, id)
	return found.at(sites), found.id(), err
}

// pick returns the job of the list that an id names, or nil if there is none.
func pick(list []*Status, id string) (*Status, error) {
	found := matchStatuses(list, id)
	if len(found) > 1 && found[0].ID == id {
		return found[0], nil
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q names %d jobs (%s of %s, %s of %s …); give more characters of the ID, or use --on",
		id, len(found), found[0].ID, found[0].Site, found[1].ID, found[1].Site)
}

// matchStatuses is matchOne for jobs with their states, newest first.
func matchStatuses(list []*Status, id string) (found []*Status) {
	var subs []*Submission
	for _, st := range list {
		subs = append(subs, st.Submission)
	}
	for _, s := range matchOne(subs, id) {
		found = append(found, list[slices.Index(subs, s)])
	}
	return found
}

func (s *Status) id() string {
	if s == nil {
		return ""
	}
	return s.ID
}

// at returns the site of the job.
func (s *Status) at(sites []*Site) *Site {
	for _, t := range sites {
		if s != nil && t.Name == s.Site {
			return t
		}
	}
	return nil
}

// merge combines the jobs of remote sites with those of this machine, newest first. If ids
// are given, it keeps only the remote jobs that they name; an ID without a job is an error.
// A job is in both lists if the site shares this store; merge keeps the remote entry. dir has this
// machine's jobs.
func merge(dir string, local, remote []*Status, ids []string) ([]*Status, error) {
	if len(ids) > 0 {
		var chosen []*Status
		for _, id := range ids {
			found := matchStatuses(remote, id)
			if len(found) == 0 {
				return nil, &NoJobError{ID: id, dir: dir}
			}
			chosen = append(chosen, found...)
		}
		remote = chosen
	}
	isRemote := map[string]bool{}
	for _, st := range remote {
		isRemote[st.ID+"\x00"+st.Native] = true
	}
	list := slices.DeleteFunc(slices.Clone(local), func(st *Status) bool { return isRemote[st.ID+"\x00"+st.Native] })
	list = append(list, remote...)
	slices.SortStableFunc(list, func(a, b *Status) int { return b.Submitted.Compare(a.Submitted) })
	return list, nil
}
