package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/util/suggest"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
	"hpcc/store/wait"
)

// How hpcc of one machine speaks to that of another, over ssh: "hpcc here" describes
// the machine, and "hpcc submit --job -" takes a job as JSON, so that no shell reads
// its arguments. Everything else is the commands that people use.

// A handover is a job for hpcc of another machine.
type handover struct {
	Protocol int          `json:"protocol"`
	Version  string       `json:"version"`
	Target   job.Target   `json:"target"`
	Job      *job.Job     `json:"job"`
	Files    []handedFile `json:"files,omitempty"` // that its words name
}

// A handedFile is a file of this machine.
type handedFile struct {
	Name string `json:"name"` // absolute, as the job has it
	Data []byte `json:"data"`
}

// maxHandover bounds a job with its files, in bytes of JSON.
const maxHandover = 256 << 20

// digestOf is the digest of an image; "" when the store does not have it.
func digestOf(s *store.Store, name string, p *v1.Platform) string {
	img, err := s.Get(name, p)
	if err != nil {
		return ""
	}
	d, err := img.Digest()
	if err != nil {
		return ""
	}
	return d.String()
}

// How long a site may take to answer.
const (
	greetTime  = 30 * time.Second
	typingTime = 3 * time.Minute // where somebody may have to type a password
)

// answerTime is how long a site may take when the user may be at a terminal.
func answerTime() time.Duration {
	if onTerminal() {
		return typingTime
	}
	return greetTime
}

// greetSite asks a site for its directories and its scheduler. A refusal says what to do.
func greetSite(ctx context.Context, site *dispatch.Site, image string) (*greeting, error) {
	argv := []string{"here"}
	if image != "" {
		argv = append(argv, "--image="+image)
	}
	out, err := site.Ask(ctx, onTerminal(), answerTime(), argv...)
	if err != nil {
		return nil, siteHint(err, site)
	}
	g := &greeting{}
	if err := json.Unmarshal(out, g); err != nil || g.Protocol != protocol || !filepath.IsAbs(g.Home) {
		return nil, (&message{err: fmt.Errorf("site %s: its hpcc is of another kind than this one (%s)", site.Name, version)}).hint("hpcc sites --install %s", site.Name)
	}
	if g.Version != version {
		say("site %s has hpcc %s, this is %s; \"hpcc sites --install %s\" makes them the same", site.Name, g.Version, version, site.Name)
	}
	return g, nil
}

// siteHint adds a hint to an error of a site.
func siteHint(err error, site *dispatch.Site) error {
	var none *dispatch.NoProgramError
	switch {
	case errors.As(err, &none):
		return (&message{err: err}).hint("hpcc sites --install %s puts this one there", site.Name)
	case strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "unknown flag"):
		return (&message{err: err}).hint("its hpcc is an older one; hpcc sites --install %s", site.Name)
	}
	return err
}

// dir is where a job with a --chdir starts at a site that ssh reaches.
func (to *destination) dir(chdir string) string {
	return pathBelow(pathBelow(to.remote.Home, to.site.Dir), chdir)
}

// pathBelow resolves a path of the site, relative to dir.
func pathBelow(dir, p string) string {
	p = strings.TrimPrefix(p, "~/")
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// fillRemotePaths fills in the paths of a job for a site that ssh reaches.
func (a *jobArgs) fillRemotePaths(j *job.Job, to *destination) error {
	j.Store, j.Program, j.Dir = to.remote.Store, to.remote.Program, to.dir(a.chdir)
	if j.Image = a.image; namesSquashFS(j.Image) {
		return usagef("%s is a file of this machine, not of site %s", j.Image, to.site.Name).hint("hpcc load %s NAME, and submit NAME: images are sent", j.Image)
	}
	if isPath(j.Image) {
		j.Image = pathBelow(j.Dir, j.Image)
	}
	return nil
}

// stateJob encodes a job for hpcc of the site, with the files of this machine that it names.
func stateJob(j *job.Job, to *destination) (*bytes.Buffer, error) {
	h := handover{Protocol: protocol, Version: version, Target: to.Target, Job: j}
	var names []string
	for _, w := range j.Run {
		for _, flag := range []string{"--set-env=", "--set-env0="} {
			if name, ok := strings.CutPrefix(w, flag); ok && !strings.Contains(name, "=") {
				names = append(names, name)
			}
		}
	}
	if j.Params.File != "" {
		names = append(names, j.Params.File)
	}
	for _, name := range names {
		if strings.ContainsAny(name, "{}") {
			return nil, usagef("%s: files that are named after the task are not sent to site %s", name, to.site.Name).hint("put them there, and have the program read them")
		}
		b, err := readBounded(name)
		if err != nil {
			return nil, fmt.Errorf("reading what goes to site %s: %w", to.site.Name, err)
		}
		if len(b) == maxInput {
			return nil, fmt.Errorf("%s: has more than %s, which is the most that is sent with a job", name, size(maxInput))
		}
		h.Files = append(h.Files, handedFile{name, b})
	}
	var b bytes.Buffer
	return &b, json.NewEncoder(&b).Encode(h)
}

// takeOver reads a job of another machine's hpcc from standard input, and completes it
// for this machine. dir is the store's.
func takeOver(ctx context.Context, dir string) (*job.Job, *destination, error) {
	d := json.NewDecoder(io.LimitReader(wait.Stdin(), maxHandover))
	d.DisallowUnknownFields()
	var h handover
	err := d.Decode(&h)
	if err == nil && (h.Protocol != protocol || h.Job == nil) {
		err = fmt.Errorf("it is of kind %d, this hpcc takes %d", h.Protocol, protocol)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading a job of another machine's hpcc (%s; this is %s): %w", h.Version, version, err)
	}
	site, err := defaultSite()
	if err != nil {
		return nil, nil, err
	}
	j, to := h.Job, &destination{Cluster: site.Cluster(ctx), site: site}
	if h.Target != to.Target {
		to = &destination{Cluster: dispatch.Cluster{Target: h.Target}, site: &dispatch.Site{}}
	}
	if err := fillProgram(j, dir, to.site); err != nil {
		return nil, nil, err
	}
	s, err := store.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range h.Files {
		file, err := job.KeepFile(s.Jobs(), filepath.Base(f.Name), f.Data)
		if err != nil {
			return nil, nil, err
		}
		for i, w := range j.Run {
			if flag, name, ok := strings.Cut(w, "="); ok && name == f.Name && (flag == "--set-env" || flag == "--set-env0") {
				j.Run[i] = flag + "=" + file
			}
		}
		if j.Params.File == f.Name {
			j.Params.File = file
		}
	}
	if err := j.Params.Reopen(); err != nil {
		return nil, nil, err
	}
	tell(to.site.Apply(j))
	return j, to, nil
}

// submitRemote submits a job at a site that ssh reaches.
func (a *submitArgs) submitRemote(ctx context.Context, j *job.Job, to *destination) error {
	for _, name := range []string{"dry-run", "backfill", "time-min"} {
		if a.set[name] {
			return usagef("--%s asks the scheduler of this machine, and site %s is reached by ssh", name, to.site.Name).hint("ssh %s hpcc submit --%s …", to.site.SSH, name)
		}
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	if err := sendImage(ctx, s, j, to); err != nil {
		return err
	}
	if j.Interactive {
		return interactRemote(ctx, j, to)
	}
	out, err := askRemote(ctx, j, to, "submit", "--job", "-", "--json", "--record")
	if err != nil {
		return err
	}
	var sub dispatch.Submission
	if err := json.Unmarshal(out, &sub); err != nil || sub.ID == "" || sub.Job == nil {
		return fmt.Errorf("site %s: its hpcc answered %q, which is not a job; \"hpcc status --on %s\" shows whether it is there", to.site.Name, out[:min(len(out), 100)], to.site.Name)
	}
	sub.Site = to.site.Name
	if err := to.site.Sent(s.Jobs(), &sub); err != nil {
		say("warning: %v", err)
	}
	if err := a.printSubmitted(&sub, to.site.Name+" ("+string(to.Target)+")"); err != nil || !a.wait {
		return err
	}
	return passOn(ctx, to.site, "wait", sub.ID)
}

// askRemote gives a job to a command of the site's hpcc, and returns its output.
func askRemote(ctx context.Context, j *job.Job, to *destination, argv ...string) ([]byte, error) {
	text, err := stateJob(j, to)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := to.site.Command(ctx, onTerminal(), argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = text, &out, os.Stderr
	err = remoteError(cmd.Run(), to.site)
	return out.Bytes(), err
}

// remoteError returns the error of a site's command that ended with err, after it has printed
// its own message.
func remoteError(err error, site *dispatch.Site) error {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	if fault := site.Fault(err, ""); fault != nil {
		return siteHint(fault, site)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// onTerminal reports whether a user could answer a question of ssh.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

// interactRemote runs the script of an interactive job at the site, with this terminal.
func interactRemote(ctx context.Context, j *job.Job, to *destination) error {
	script, err := askRemote(ctx, j, to, "script", "--job", "-", "--keep")
	if err != nil {
		return err
	}
	cmd := to.site.Shell(ctx, onTerminal(), onTerminal(), string(script))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() { // the program's own, or ssh's, which has said why
		return exitStatus(exit.ExitCode())
	}
	return remoteError(err, to.site)
}

// passOn runs a command of the site's hpcc, and returns its exit status.
func passOn(ctx context.Context, site *dispatch.Site, argv ...string) error {
	cmd := site.Command(ctx, onTerminal(), argv...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return remoteError(cmd.Run(), site)
}

// sendImage sends the job's image to the site, unless the site has the same one.
func sendImage(ctx context.Context, s *store.Store, j *job.Job, to *destination) error {
	if j.Image == "" || isPath(j.Image) {
		return nil
	}
	here := digestOf(s, j.Image, &v1.Platform{OS: "linux", Architecture: to.remote.Arch})
	switch {
	case here == to.remote.Image && here != "", here == "" && to.remote.Image != "":
		return nil
	case here == "":
		_, err := s.Get(j.Image, &v1.Platform{OS: "linux", Architecture: to.remote.Arch})
		return (&message{err: fmt.Errorf("site %s has no image %q, and here: %w", to.site.Name, j.Image, err)}).hint("build or pull it with --platform linux/%s", to.remote.Arch)
	}
	b := progress("sending " + j.Image + " to " + to.site.Name)
	defer b.end()
	cmd := to.site.Command(ctx, onTerminal(), "load", "-", j.Image)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sending %s to site %s: %w", j.Image, to.site.Name, err)
	}
	sent := s.SaveTo(ctx, j.Image, &countedWriter{w: pipe, report: func(n int64) { b.bytes(n, 0) }})
	pipe.Close()
	err = cmd.Wait()
	if sent != nil && !errors.Is(sent, syscall.EPIPE) { // the other end failed because of it
		return sent
	}
	if err := remoteError(err, to.site); err != nil {
		return err
	}
	if sent == nil {
		say("image %s sent to site %s", j.Image, to.site.Name)
	}
	return sent
}

// A countedWriter reports how much was written.
type countedWriter struct {
	w      io.Writer
	n      int64
	report func(int64)
}

func (c *countedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.report(c.n)
	return n, err
}

// readSites reads the files of sites.
func readSites() (*dispatch.Sites, error) {
	s, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, (&message{err: err, status: exitUsage}).hint("\"hpcc sites --help\" has an example")
	}
	return s, nil
}

// A siteChoice is --on and --to.
type siteChoice struct {
	on string     // the name of a site; "" for the default
	to job.Target // "" for the site's scheduler
}

func parseSiteChoice(c *cli.Context) (siteChoice, error) {
	w := siteChoice{c.String("on"), job.Target(c.String("to"))}
	if known := strings.Split(targetNames, ", "); w.to != "" && !slices.Contains(known, string(w.to)) {
		hint := "known targets: " + targetNames
		if near, ok := suggest.Search(string(w.to), known, false); ok {
			hint = "did you mean " + near + "?"
		}
		return w, usagef("--to: unknown target %q", w.to).hint("%s", hint)
	}
	return w, nil
}

// site finds the site of --on, or the default of the files, unless --to asks for
// another scheduler; without one it returns an empty site.
func (w siteChoice) site() (*dispatch.Site, error) {
	sites, err := readSites()
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
		return nil, usagef("--on: %w", err)
	}
	if w.to != "" && t.Scheduler != "" && w.to != t.Scheduler {
		return nil, usagef("--to %s: site %s has %s", w.to, w.on, t.Scheduler).hint("leave --to out")
	}
	return t, nil
}

// cluster returns the cluster of a site of this machine, with the scheduler of --to.
func (w siteChoice) cluster(ctx context.Context, site *dispatch.Site) dispatch.Cluster {
	if w.to != "" {
		return dispatch.Cluster{Target: w.to, Site: site.Name, Env: site.Env}
	}
	return site.Cluster(ctx)
}

// onFlag names the site whose jobs a command is about.
func onFlag() cli.Flag {
	return &cli.StringFlag{Name: "on", Usage: "ask only site `NAME`"}
}

// A jobScope says where jobs are looked for.
type jobScope struct {
	on    string // the name of a site; "" for all
	local bool   // --here: ask no site over ssh
}

func parseJobScope(c *cli.Context) jobScope { return jobScope{c.String("on"), c.Bool("here")} }

// remote returns the sites that ssh reaches, or that of --on alone. here reports whether
// the jobs of this machine are looked for as well.
func (w jobScope) remote() (sites []*dispatch.Site, here bool, err error) {
	if w.local {
		return nil, true, nil
	}
	s, err := readSites()
	if err != nil {
		return nil, false, err
	}
	if w.on == "" {
		return s.Remote(), true, nil
	}
	t, err := s.Find(w.on)
	if err != nil {
		return nil, false, usagef("--on: %w", err)
	}
	if t.SSH == "" {
		return nil, true, nil
	}
	return []*dispatch.Site{t}, false, nil
}

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
	return &eachJob{verb: c.Command.Name, ids: ids, switches: parseSwitches(c, switches...), in: parseJobScope(c), store: c.String("store")}, nil
}

// parseSwitches returns the named boolean flags that the command line sets, as arguments.
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

// readTasks reads the records of a job, and warns of unreadable ones.
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
			if n := sub.Namesakes(); n > 1 {
				say("%s is %s, the newest of %d jobs with this name", id, sub.ID, n)
			}
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
