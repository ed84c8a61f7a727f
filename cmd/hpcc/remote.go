package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/prepare"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/text/terminal"
)

// hpccAt returns hpcc at a site that ssh reaches. Commands there may ask for a password on the terminal.
func hpccAt(s *dispatch.Site) *site.Remote {
	return &site.Remote{Site: s, Own: version, Terminal: onTerminal()}
}

// onTerminal reports whether the user can answer a prompt of ssh.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

// connect asks hpcc at a site for its directories, its scheduler and the digest of an image.
func connect(ctx context.Context, s *dispatch.Site, image string) (*site.Remote, error) {
	r := hpccAt(s)
	note, err := r.Describe(ctx, image)
	if note != "" {
		say("%s", note)
	}
	return r, err
}

// statusOf lets hpcc end with the exit status of a command at a site, which has printed its own message.
func statusOf(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// passOn runs a command of hpcc at the site, with the output of this process.
func passOn(ctx context.Context, s *dispatch.Site, argv ...string) error {
	return statusOf(hpccAt(s).Run(ctx, nil, os.Stdout, os.Stderr, argv...))
}

// message returns the job as hpcc at another machine gets it.
func (to *destination) message(j *job.Job) *site.Message {
	return &site.Message{Target: to.Target, Job: j, Follows: to.imageFollows}
}

// askRemote passes a job to a command of hpcc at the site and returns the output.
func askRemote(ctx context.Context, j *job.Job, to *destination, argv ...string) ([]byte, error) {
	out, err := to.remote.Pass(ctx, to.message(j), os.Stderr, argv...)
	return out, statusOf(err)
}

// interactRemote runs the script of an interactive job at the site on this terminal.
func interactRemote(ctx context.Context, j *job.Job, to *destination) error {
	return statusOf(to.remote.Interact(ctx, to.message(j)))
}

// receiveJob reads a job from standard input, as hpcc on another machine sent it, and
// completes it for this machine. dir is the directory of the store.
func receiveJob(ctx context.Context, dir string) (*job.Job, *destination, error) {
	m, err := site.Receive(files.Stdin(), version)
	if err != nil {
		return nil, nil, err
	}
	at, err := site.Default()
	if err != nil {
		return nil, nil, err
	}
	j, to := m.Job, &destination{Cluster: at.Cluster(ctx), site: at}
	if m.Target != to.Target {
		to = &destination{Cluster: dispatch.Cluster{Target: m.Target}, site: &dispatch.Site{}}
	}
	to.imageFollows = m.Follows
	if err := prepare.FillProgram(j, dir, to.site); err != nil {
		return nil, nil, err
	}
	s, err := store.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	if want := j.ImageDigest; !to.Target.Pods() && !to.imageFollows {
		err := prepare.PinImage(j, dir)
		if err == nil {
			err = m.CheckImage(s, want)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if err := m.KeepFiles(s.Jobs()); err != nil {
		return nil, nil, err
	}
	sayNotes(to.site.Apply(j))
	return j, to, nil
}

// prepareRemote checks a job for a remote site, and sends the image.
func (a *submitArgs) prepareRemote(ctx context.Context, j *job.Job, to *destination) error {
	for _, name := range []string{"backfill", "time-min"} {
		if a.Set[name] {
			return text.Usagef("--%s is not available for site %s, which is reached by ssh", name, to.site.Name).
				Hint("ssh %s hpcc submit --%s …", to.site.SSH, name)
		}
	}
	s, err := store.Open(a.Store)
	if err != nil || j.Image == "" || ready.IsPath(j.Image) {
		return err
	}
	here := *j
	if err := prepare.PinImage(&here, s.Dir()); err != nil {
		return err
	}
	missing, err := to.remote.Missing(s, j, here.ExactImage(), to.Target.Pods())
	switch {
	case err != nil || !missing:
		return err
	case a.dryRun:
		to.imageFollows = true
		say("note: hpcc submit sends image %s to site %s first", j.Image, to.site.Name)
		return nil
	}
	bar := terminal.NewBar("sending " + j.Image + " to " + to.site.Name)
	err = to.remote.Send(ctx, s, here.ExactImage(), j.Image, os.Stderr, func(n int64) { bar.Bytes(n, 0) })
	bar.End()
	if err == nil {
		say("image %s sent to site %s", j.Image, to.site.Name)
	}
	return statusOf(err)
}

// reportRemoteFit is reportFit at a remote site.
func (a *submitArgs) reportRemoteFit(ctx context.Context, j *job.Job, to *destination) error {
	argv := []string{"submit", "--job", "-", "--dry-run"}
	if a.json {
		argv = append(argv, "--json")
	}
	out, err := askRemote(ctx, j, to, argv...)
	_, werr := os.Stdout.Write(out)
	return cmp.Or(err, werr)
}

// sendRemote submits a prepared job at a remote site, and prints its ID.
func (a *submitArgs) sendRemote(ctx context.Context, j *job.Job, to *destination) (*dispatch.Submission, error) {
	s, err := store.Open(a.Store)
	if err != nil {
		return nil, err
	}
	sub, err := to.remote.Submit(ctx, to.message(j), os.Stderr)
	if err != nil {
		return nil, statusOf(err)
	}
	if err := to.site.Sent(s.Jobs(), sub); err != nil {
		say("warning: %v", err)
	}
	return sub, a.printSubmitted(sub, to.site.Name+" ("+string(to.Target)+")")
}

// A siteChoice holds --on and --to.
type siteChoice struct {
	on string     // the name of a site; "" for the default
	to job.Target // "" for the site's scheduler
}

func parseSiteChoice(c *cli.Context) (siteChoice, error) {
	return newSiteChoice(c.String("on"), c.String("to"))
}

func newSiteChoice(on, to string) (siteChoice, error) {
	w := siteChoice{on, job.Target(to)}
	if known := strings.Split(targetNames, ", "); w.to != "" && !slices.Contains(known, string(w.to)) {
		hint := "known targets: " + targetNames
		if near := text.Nearest(strings.ToLower(string(w.to)), known); near != "" {
			hint = "did you mean " + near + "?"
		}
		return w, text.Usagef("--to: unknown target %q", w.to).Hint("%s", hint)
	}
	return w, nil
}

// site returns the site of --on, or else the default site, unless --to names another
// scheduler. Without either it returns an empty site.
func (w siteChoice) site() (*dispatch.Site, error) {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, err
	}
	if w.on == "" && sites.Default != "" {
		if t, err := sites.Find(sites.Default); err == nil && (w.to == "" || w.to == t.Scheduler) {
			return t, nil
		}
	}
	if w.on == "" {
		return &dispatch.Site{}, nil
	}
	t, err := sites.Find(w.on)
	if err != nil {
		return nil, text.Usagef("--on: %w", err)
	}
	if w.to != "" && t.Scheduler != "" && w.to != t.Scheduler {
		return nil, text.Usagef("--to %s: site %s has %s", w.to, w.on, t.Scheduler).Hint("leave --to out")
	}
	return t, nil
}

// cluster returns the cluster of a local site, with the scheduler of --to.
func (w siteChoice) cluster(ctx context.Context, site *dispatch.Site) dispatch.Cluster {
	if w.to != "" {
		return dispatch.Cluster{Target: w.to, Site: site.Name, Env: site.Env}
	}
	return site.Cluster(ctx)
}

// onFlag is --on, which limits a command to the jobs of one site.
func onFlag() cli.Flag {
	return &cli.StringFlag{Name: "on", Usage: "ask only site `NAME`"}
}

func parseJobScope(c *cli.Context) site.Scope {
	return site.Scope{On: c.String("on"), Local: c.Bool("here"), Note: sayLine}
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

// each finds all jobs before it calls do for the first one, and calls it for all. For jobs of a remote site, hpcc at
// the site runs the same verb.
func (a *eachJob) each(ctx context.Context, do func(st *store.Store, s *dispatch.Submission) error) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	var list []site.Found
	for _, id := range a.ids {
		f, err := a.in.Find(ctx, s.Jobs(), id)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	ended := exitStatus(0)
	var failed error
	for _, f := range list {
		err := error(nil)
		if f.Site != nil {
			err = passOn(ctx, f.Site, slices.Concat([]string{a.verb}, a.switches, []string{f.ID})...)
		} else if _, err = readTasks(filepath.Join(s.Jobs(), f.ID)); err == nil {
			err = do(s, f.Submission)
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
