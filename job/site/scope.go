package site

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"hpcc/job/dispatch"
	"hpcc/text"
)

// A Scope limits where a command looks for jobs: on this machine and at the sites that ssh reaches.
type Scope struct {
	On    string            // the name of a site; "" for all
	Local bool              // ask no site over ssh
	Note  func(line string) // shows a message to the user
}

// Remote returns the remote sites in the scope. local reports whether the jobs of this machine are in it.
func (w Scope) Remote() (sites []*dispatch.Site, local bool, err error) {
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
	*dispatch.Submission                // nil for a job of a site
	Site                 *dispatch.Site // nil for a job of this machine
	ID                   string
}

// Find finds a job by its ID, a prefix of it or its name. dir is the directory of all jobs.
func (w Scope) Find(ctx context.Context, dir, id string) (Found, error) {
	sites, local, err := w.Remote()
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
	return Found{Site: site, ID: full}, err
}

// FindTask finds JOB or JOB.TASK of this machine. If a remote site has the job, the error contains the command to run
// there: "hpcc VERB". A proxy is a command whose streams are not for a terminal.
func FindTask(ctx context.Context, verb string, proxy bool, dir, name string) (*dispatch.Submission, int, error) {
	sub, index, err := dispatch.FindTask(dir, name)
	if !errors.As(err, new(*dispatch.NoJobError)) {
		return sub, index, err
	}
	sites, _, serr := Scope{}.Remote()
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
