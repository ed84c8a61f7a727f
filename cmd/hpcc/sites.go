package main

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
)

// readSites reads the files of sites.
func readSites() (*dispatch.Sites, error) {
	s, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, (&message{err: err, status: exitUsage}).hint("docs/jobs.md, \"Sites\", has an example")
	}
	return s, nil
}

// siteOf is the site of --on, or the default of the files, unless --to asks for
// another scheduler; an empty one when there is none.
func siteOf(c *cli.Context) (*dispatch.Site, error) {
	sites, err := readSites()
	if err != nil {
		return nil, err
	}
	to := job.Target(c.String("to"))
	name := c.String("on")
	if name == "" && sites.Default != "" {
		if t, err := sites.Find(sites.Default); err == nil && (to == "" || to == t.Scheduler) {
			return t, nil
		}
	}
	if name == "" {
		return &dispatch.Site{}, nil
	}
	t, err := sites.Find(name)
	if err != nil {
		return nil, usagef("--on: %w", err)
	}
	if to != "" && t.Scheduler != "" && to != t.Scheduler {
		return nil, usagef("--to %s: site %s has %s", to, name, t.Scheduler).hint("leave --to out")
	}
	return t, nil
}

// A destination is where a job goes.
type destination struct {
	dispatch.Cluster
	site  *dispatch.Site // without a name when there is none
	there *greeting      // of a site that ssh reaches; else nil
}

// destinationOf is where the command line sends a job. A site that ssh reaches
// is asked what it is.
func destinationOf(c *cli.Context) (*destination, error) {
	site, err := siteOf(c)
	if err != nil {
		return nil, err
	}
	to := &destination{site: site}
	if site.SSH == "" {
		to.Cluster = clusterHere(c, site)
		return to, nil
	}
	if to.there, err = greetSite(c, site, c.Args().First()); err != nil {
		return nil, err
	}
	to.Cluster = dispatch.Cluster{Target: cmp.Or(job.Target(c.String("to")), site.Scheduler, to.there.Target), Site: site.Name}
	return to, nil
}

// clusterHere is the cluster of a site of this machine, with the scheduler of --to where
// that is given.
func clusterHere(c *cli.Context, site *dispatch.Site) dispatch.Cluster {
	if to := job.Target(c.String("to")); to != "" {
		return dispatch.Cluster{Target: to, Site: site.Name, Env: site.Env}
	}
	return site.Cluster(c.Context)
}

// base is where relative paths of a job's words begin.
func (to *destination) base(j *job.Job) string {
	if to.there != nil {
		return j.Dir
	}
	dir, err := filepath.Abs("")
	if err != nil {
		return j.Dir
	}
	return dir
}

// readOrTake makes a job of the command line, or of what hpcc of another machine says.
func readOrTake(c *cli.Context, env *envChanges) (*job.Job, *destination, error) {
	if c.String("job") != "" {
		return takeOver(c)
	}
	return readJob(c, env)
}

// onFlag names the site of jobs that are there.
func onFlag() cli.Flag {
	return &cli.StringFlag{Name: "on", Usage: "of site `NAME` alone"}
}

// remoteSites are the sites that ssh reaches, or that of --on alone; all says that jobs of
// this machine are asked for as well.
func remoteSites(c *cli.Context) (sites []*dispatch.Site, all bool, err error) {
	if c.Bool("here") {
		return nil, true, nil
	}
	s, err := readSites()
	if err != nil {
		return nil, false, err
	}
	name := c.String("on")
	if name == "" {
		return s.Remote(), true, nil
	}
	t, err := s.Find(name)
	if err != nil {
		return nil, false, usagef("--on: %w", err)
	}
	if t.SSH == "" {
		return nil, true, nil
	}
	return []*dispatch.Site{t}, false, nil
}

// allStatuses asks the schedulers of this machine and the sites, at the same time.
func allStatuses(c *cli.Context, dir string, ids []string) (list []*dispatch.Status, warnings []string, err error) {
	sites, here, err := remoteSites(c)
	if err != nil {
		return nil, nil, err
	}
	missing := ids
	if here {
		if missing, err = dispatch.Missing(dir, ids); err != nil {
			return nil, nil, err
		}
	}
	var g sync.WaitGroup
	var far []*dispatch.Status
	var silent []string
	if len(ids) == 0 || len(missing) > 0 {
		g.Go(func() { far, silent = dispatch.RemoteStatuses(c.Context, dir, sites) })
	}
	if mine := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(missing, id) }); here && (len(ids) == 0 || len(mine) > 0) {
		list, warnings, err = dispatch.Statuses(c.Context, dir, mine)
	}
	if g.Wait(); err != nil {
		return nil, nil, err
	}
	if list, err = dispatch.Merge(list, far, missing); err != nil {
		for _, w := range silent {
			say("warning: %s", w)
		}
		return nil, nil, err
	}
	if name := c.String("on"); here && name != "" {
		list = slices.DeleteFunc(list, func(st *dispatch.Status) bool { return st.Site != name })
	}
	return list, append(warnings, silent...), nil
}

// siteColumn gives the part of a row of the table of jobs that names the site,
// nil for the head: nothing where there is one site.
func siteColumn(list []*dispatch.Status) func(*dispatch.Status) string {
	several := slices.ContainsFunc(list, func(st *dispatch.Status) bool { return st.Site != list[0].Site })
	return func(st *dispatch.Status) string {
		switch {
		case !several:
			return ""
		case st == nil:
			return "SITE\t"
		case st.Site == "":
			return "-\t"
		}
		return st.Site + "\t"
	}
}
