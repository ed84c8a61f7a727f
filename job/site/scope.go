package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/text"
)

// A Scope limits where a command looks for jobs: on this machine and at the sites that ssh reaches.
type Scope struct {
	On       string            // the name of a site; "" for all
	Local    bool              // ask no site over ssh
	Own      string            // version of this hpcc
	Terminal bool              // the user can answer a prompt of ssh
	Note     func(line string) // shows a message to the user
}

// Sites returns the remote sites in the scope. local reports whether the jobs of this machine are in it.
func (w Scope) Sites() (sites []*dispatch.Site, local bool, err error) {
	if w.Local {
		return nil, true, nil
	}
	s, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, false, err
	}
	if w.On == "" {
		return s.Remote(), true, nil
	}
	t, err := s.Find(w.On)
	if err != nil {
		return nil, false, text.Usagef("--on: %w", err)
	}
	if t.SSH == "" {
		return nil, true, nil
	}
	return []*dispatch.Site{t}, false, nil
}

// A Found is a job of this machine, or the ID of a job of a remote site.
type Found struct {
	*dispatch.Submission         // nil for a job of a site
	Remote               *Remote // hpcc at the site; nil for a job of this machine
	ID                   string
}

// Find finds a job by its ID, a prefix of it or its name. dir is the directory of all jobs.
func (w Scope) Find(ctx context.Context, dir, id string) (Found, error) {
	sites, local, err := w.Sites()
	if err != nil {
		return Found{}, err
	}
	none := error(&dispatch.NoJobError{ID: id})
	if local {
		sub, err := dispatch.Find(dir, id)
		if err == nil {
			if n := sub.Namesakes(); n > 1 {
				w.Note(fmt.Sprintf("%s is %s, the newest of %d jobs with this name", id, sub.ID, n))
			}
			return Found{Submission: sub, ID: sub.ID}, nil
		}
		if none = err; !errors.As(err, new(*dispatch.NoJobError)) {
			return Found{}, err
		}
	}
	site, full, err := dispatch.Owner(ctx, dir, sites, id)
	if err == nil && site == nil {
		err = none
	}
	return Found{Remote: &Remote{Site: site, Own: w.Own, Terminal: w.Terminal}, ID: full}, err
}

// Each finds all jobs before it calls do for the first one. For a job of a remote site, it runs the command argv of
// hpcc there instead, with the ID as the last argument. If all other calls succeed, it returns the exit status of the
// last such command that failed.
func (w Scope) Each(ctx context.Context, dir string, ids, argv []string, do func(*dispatch.Submission) error) error {
	var list []Found
	for _, id := range ids {
		f, err := w.Find(ctx, dir, id)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	var ended text.ExitStatus
	var failed error
	for _, f := range list {
		var err error
		if f.Remote != nil {
			err = f.Remote.Run(ctx, nil, os.Stdout, os.Stderr, slices.Concat(argv, []string{f.ID})...)
		} else {
			err = do(f.Submission)
		}
		if errors.As(err, &ended) { // hpcc at the site has printed the reason; go on with the other jobs
			continue
		}
		if failed = errors.Join(failed, err); ctx.Err() != nil {
			return err
		}
	}
	if failed == nil && ended != 0 {
		return ended
	}
	return failed
}

// FindTask finds JOB or JOB.TASK of this machine. If a remote site has the job, the error contains the command to run
// there: "hpcc VERB". A proxy is a command whose streams are not for a terminal.
func FindTask(ctx context.Context, verb string, proxy bool, dir, name string) (*dispatch.Submission, int, error) {
	sub, index, err := dispatch.FindTask(dir, name)
	if !errors.As(err, new(*dispatch.NoJobError)) {
		return sub, index, err
	}
	sites, _, serr := Scope{}.Sites()
	if serr != nil {
		return nil, 0, serr
	}
	id := name
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		id = name[:i]
	}
	if site, _, oerr := dispatch.Owner(ctx, dir, sites, id); oerr == nil && site != nil {
		err = fmt.Errorf("job %s belongs to site %s, whose nodes are reachable only from that site", id, site.Name)
		if proxy {
			return nil, 0, text.Hint(err, "ProxyCommand ssh %s hpcc %s %%n", site.SSH, verb)
		}
		return nil, 0, text.Hint(err, "ssh -t %s hpcc %s …", site.SSH, verb)
	}
	return nil, 0, err
}

// A Choice is a site and a scheduler, as --on and --to name them.
type Choice struct {
	On string     // the name of a site; "" for the default
	To job.Target // "" for the site's scheduler
}

// Site returns the site that On names, or else the default site, unless To names another scheduler. Without either it
// returns an empty site.
func (c Choice) Site() (*dispatch.Site, error) {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, err
	}
	if c.On == "" && sites.Default != "" {
		if t, err := sites.Find(sites.Default); err == nil && (c.To == "" || c.To == t.Scheduler) {
			return t, nil
		}
	}
	if c.On == "" {
		return &dispatch.Site{}, nil
	}
	t, err := sites.Find(c.On)
	if err != nil {
		return nil, text.Usagef("--on: %w", err)
	}
	if c.To != "" && t.Scheduler != "" && c.To != t.Scheduler {
		return nil, text.Usagef("--to %s: site %s has %s", c.To, c.On, t.Scheduler).Hint("leave --to out")
	}
	return t, nil
}

// String returns the choice for messages.
func (c Choice) String() string { return cmp.Or(c.On, string(c.To)) }

// Target returns the target according to the choice and the site files; "" if it must be detected.
func (c Choice) Target() job.Target {
	if site, err := c.Site(); err == nil && c.To == "" {
		return site.Scheduler
	}
	return c.To
}

// Cluster returns the cluster of a local site, with the scheduler To.
func (c Choice) Cluster(ctx context.Context, site *dispatch.Site) dispatch.Cluster {
	if c.To != "" {
		return dispatch.Cluster{Target: c.To, Site: site.Name, Env: site.Env}
	}
	return site.Cluster(ctx)
}
