package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
)

// fits is "hpcc nodes --fits": JOB is a file, or a job that was handed in.
func fits(c *cli.Context) error {
	name := c.String("fits")
	site, err := siteOf(c)
	switch {
	case err != nil:
		return err
	case c.IsSet("queue"):
		return usagef("--queue chooses nodes to list; the job says its queue itself")
	case site.SSH != "":
		return usagef("--fits asks a scheduler of this machine, and site %s is reached by ssh", site.Name).hint("ssh %s hpcc nodes --fits …", site.SSH)
	}
	if fi, err := os.Stat(name); (err == nil && !fi.IsDir()) || dispatch.Translator().IsSubmitCommand(name) {
		to := clusterHere(c, site)
		j, err := scriptToFit(c, name, to.Target)
		if err != nil {
			return err
		}
		f, err := dispatch.Fits(to.Within(c.Context), j, to.Target)
		if err != nil {
			return err
		}
		return tellFit(c, f, time.Now())
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	sub, err := dispatch.Find(s.Jobs(), name)
	if err != nil {
		return (&message{err: fmt.Errorf("--fits %s: neither a file nor a job: %w", name, err)}).hint("\"hpcc submit --dry-run\" takes the flags of a job")
	}
	if t := job.Target(c.String("to")); t != "" && t != sub.Target {
		return usagef("--to %s: job %s was handed in to %s", t, sub.ID, sub.Target)
	}
	f, err := sub.Fits(c.Context, s.Jobs())
	if err != nil {
		return err
	}
	return tellFit(c, f, time.Now())
}

// scriptToFit reads a script as "hpcc submit --from" does, and what it loses on the
// way is told.
func scriptToFit(c *cli.Context, name string, t job.Target) (*job.Job, error) {
	src, err := source(c, name, &destination{})
	if err != nil {
		return nil, err
	}
	tr, err := dispatch.Translator().Translate(src, t)
	if err != nil {
		return nil, err
	}
	s, err := findStore(c)
	if err != nil {
		return nil, err
	}
	if tr.Job.Store, err = filepath.Abs(s.Dir()); err != nil {
		return nil, err
	}
	if tr.Job.Program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	tr.Fit()
	if n := tr.Lost(); n > 0 {
		say("note: %s refused for %s, and the job is looked at without; \"hpcc script --from %s\" tells which", counted(n, "directive is", "directives are"), t, name)
	}
	if _, err := os.Stat(tr.Job.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("directory %q of the job: not there", tr.Job.Dir)
	}
	return tr.Job, nil
}

// tellFit tells where and when a job would start; one that never would is a failure.
func tellFit(c *cli.Context, f *capacity.Fit, now time.Time) error {
	if c.Bool("json") {
		if err := json.NewEncoder(os.Stdout).Encode(struct {
			Type string `json:"type"`
			*capacity.Fit
		}{"fit", f}); err != nil {
			return err
		}
	} else {
		if _, err := rowf(os.Stdout, "%s\n", fitLine(f, now)); err != nil {
			return err
		}
		if f.Why != "" && f.When == capacity.Later {
			rowf(os.Stdout, "why: %s\n", f.Why)
		}
		if len(f.Instead) > 0 {
			rowf(os.Stdout, "now with: %s\n", strings.Join(f.Instead, ", or "))
		}
		say("so says %s", f.By)
	}
	tell(f.Notes)
	if f.When == capacity.Never {
		return exitStatus(exitFailure)
	}
	return nil
}

// fitLine is the answer in one line.
func fitLine(f *capacity.Fit, now time.Time) string {
	where := ""
	if len(f.Nodes) > 0 {
		where = " on " + names(f.Nodes)
	}
	switch {
	case f.When == capacity.Now:
		return "starts now" + where
	case f.When == capacity.Running:
		return "has started"
	case f.When == capacity.Never:
		return "never starts: " + f.Why
	case f.Start.IsZero():
		return "starts later; when is not known: jobs that run have no limits that are known, others go first, or nodes are off"
	}
	return "starts at " + moment(f.Start, now) + where
}
