package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
)

// How verbs find the jobs that their arguments name: on this machine, else at the sites
// that ssh reaches.

// eachJob is the command line of a verb that does the same to several jobs.
type eachJob struct {
	verb     string
	ids      []string
	switches []string // for hpcc of a site
	in       jobScope
	store    string
}

func parseEachJob(c *cli.Context, switches ...string) (*eachJob, error) {
	ids, err := parseArguments(c, 1, 1000, "JOB...")
	if err != nil {
		return nil, err
	}
	return &eachJob{c.Command.Name, ids, parseSwitches(c, switches...), parseJobScope(c), c.String("store")}, nil
}

// parseSwitches returns those of the named boolean flags that the command line sets.
func parseSwitches(c *cli.Context, names ...string) (argv []string) {
	for _, n := range names {
		if c.Bool(n) {
			argv = append(argv, "--"+n)
		}
	}
	return argv
}

// each finds all jobs before it calls do for the first. hpcc of a site that ssh reaches
// does the same verb to the jobs there.
func (a *eachJob) each(ctx context.Context, do func(s *dispatch.Submission, dir string) error) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	var list []foundJob
	for _, id := range a.ids {
		f, err := a.in.find(ctx, s.Jobs(), id)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	ended := exitStatus(0)
	for _, f := range list {
		err := error(nil)
		if f.site != nil {
			err = passOn(ctx, f.site, slices.Concat([]string{a.verb}, a.switches, []string{f.id})...)
		} else if _, err = readTasks(filepath.Join(s.Jobs(), f.ID)); err == nil {
			err = do(f.Submission, s.Jobs())
		}
		if errors.As(err, &ended) { // hpcc of the site has printed why; the other jobs have their turn
			continue
		}
		if err != nil {
			return err
		}
	}
	if ended != 0 {
		return ended
	}
	return nil
}

// readTasks reads the records of a job, and warns of those that cannot be read.
func readTasks(home string) ([]job.Task, error) {
	tasks, err := job.Tasks(home)
	var bad *job.RecordsError
	if errors.As(err, &bad) {
		warn([]string{bad.Error()})
		err = nil
	}
	return tasks, err
}

// A foundJob is a job of this machine, or the id of one of a site.
type foundJob struct {
	*dispatch.Submission
	site *dispatch.Site
	id   string
}

// find finds a job by its id or the beginning of it. dir is the directory of all jobs.
func (w jobScope) find(ctx context.Context, dir, id string) (foundJob, error) {
	sites, here, err := w.remote()
	if err != nil {
		return foundJob{}, err
	}
	none := error(&dispatch.NoJobError{ID: id})
	if here {
		sub, err := dispatch.Find(dir, id)
		if err == nil {
			return foundJob{Submission: sub}, nil
		}
		if none = err; !errors.As(err, new(*dispatch.NoJobError)) {
			return foundJob{}, err
		}
	}
	site, full, err := dispatch.Owner(ctx, dir, sites, id)
	if err == nil && site == nil {
		err = none
	}
	return foundJob{site: site, id: full}, err
}

// findTask finds JOB or JOB.TASK of this machine for a verb. If a site that ssh reaches has
// the job, its error has the command to run there.
func findTask(ctx context.Context, verb, dir, name string) (*dispatch.Submission, int, error) {
	sub, index, err := dispatch.FindTask(dir, name)
	if !errors.As(err, new(*dispatch.NoJobError)) {
		return sub, index, err
	}
	sites, _, serr := jobScope{}.remote()
	if serr != nil {
		return nil, 0, serr
	}
	id := name
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		id = name[:i]
	}
	if site, _, oerr := dispatch.Owner(ctx, dir, sites, id); oerr == nil && site != nil {
		return nil, 0, (&message{err: fmt.Errorf("job %s is of site %s, whose nodes are reached from there", id, site.Name)}).hint("ssh -t %s hpcc %s …", site.SSH, verb)
	}
	return nil, 0, err
}
