package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
)

// onTerminal reports whether the user can answer a prompt of ssh.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

// newChoice returns the choice of --on and --to, whose target must be known.
func newChoice(on, to string) (site.Choice, error) {
	if known := strings.Split(targetNames, ", "); to != "" && !slices.Contains(known, to) {
		hint := "known targets: " + targetNames
		if near := text.Nearest(strings.ToLower(to), known); near != "" {
			hint = "did you mean " + near + "?"
		}
		return site.Choice{}, text.Usagef("--to: unknown target %q", to).Hint("%s", hint)
	}
	return site.Choice{On: on, To: job.Target(to)}, nil
}

// onFlag is --on, which limits a command to the jobs of one site.
func onFlag() cli.Flag {
	return &cli.StringFlag{Name: "on", Usage: "ask only site `NAME`"}
}

func parseJobScope(c *cli.Context) site.Scope {
	return site.Scope{On: c.String("on"), Local: c.Bool("here"), Own: version, Terminal: onTerminal(), Note: sayLine}
}

// eachJob is the command line of a verb that handles several jobs in the same way.
type eachJob struct {
	verb     string
	ids      []string
	switches []string // flags for hpcc at a site
	in       site.Scope
	store    string
}

func parseEachJob(c *cli.Context, switches ...string) (*eachJob, error) {
	ids, err := parseArguments(c, 1, 1000, "JOB...")
	if err != nil {
		return nil, err
	}
	return &eachJob{verb: c.Command.Name, ids: ids, switches: parseSwitches(c, switches...), in: parseJobScope(c),
		store: c.String("store")}, nil
}

// parseSwitches returns, as arguments, the named boolean flags that the command line sets.
func parseSwitches(c *cli.Context, names ...string) (argv []string) {
	for _, n := range names {
		if c.Bool(n) {
			argv = append(argv, "--"+n)
		}
	}
	return argv
}

// each calls do for all jobs; see [site.Scope.Each].
func (a *eachJob) each(ctx context.Context, do func(st *store.Store, s *dispatch.Submission) error) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	return a.in.Each(ctx, s.Jobs(), a.ids, append([]string{a.verb}, a.switches...), func(sub *dispatch.Submission) error {
		if _, err := readTasks(filepath.Join(s.Jobs(), sub.ID)); err != nil {
			return err
		}
		return do(s, sub)
	})
}

// alone reads the job again, and keeps other processes from changing it until release is called.
func alone(ctx context.Context, st *store.Store, s *dispatch.Submission) (fresh *dispatch.Submission, release func(), err error) {
	release = lockJob(ctx, st, s.ID)
	if fresh, err = dispatch.ReadJob(filepath.Join(st.Jobs(), s.ID)); err != nil {
		release()
	}
	return fresh, release, err
}

// lockJob keeps other processes from changing a job until release is called.
func lockJob(ctx context.Context, st *store.Store, id string) (release func()) {
	return st.Alone(ctx, "job", id)
}

// readTasks reads the task records of a job and warns about unreadable ones.
func readTasks(home string) ([]job.Task, error) {
	tasks, err := job.Tasks(home)
	warning, err := job.Readable(err)
	if warning != "" {
		warn([]string{warning})
	}
	return tasks, err
}
