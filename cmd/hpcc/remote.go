package main

import (
	"bytes"
	"cmp"
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
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

// hpcc reaches hpcc on another machine over ssh. "hpcc here" describes that machine, and
// "hpcc submit --job -" reads a job as JSON, so that no shell interprets its arguments.
// Everything else uses the public commands.

// A jobMessage is a job for hpcc on another machine.
type jobMessage struct {
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"`
	Target   job.Target `json:"target"`
	Job      *job.Job   `json:"job"`
	Files    []jobFile  `json:"files,omitempty"`         // files that the arguments of the job name
	Follows  bool       `json:"image_follows,omitempty"` // destination.imageFollows
}

// A jobFile is a file on this machine that a job needs.
type jobFile struct {
	Name string `json:"name"` // absolute path, as in the job
	Data []byte `json:"data"`
}

// maxJobMessage is the maximum size of a job with its files, in bytes of JSON.
const maxJobMessage = 256 << 20

// digestOf returns the digest of an image, or "" if the store does not have it.
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

// Timeouts for the answer of a site.
const (
	answerTimeout   = 30 * time.Second
	passwordTimeout = 3 * time.Minute // when the user may have to type a password
)

// answerTime returns the timeout for the answer of a site. It is longer on a terminal.
func answerTime() time.Duration {
	if onTerminal() {
		return passwordTimeout
	}
	return answerTimeout
}

// describeSite asks a site for its directories, its scheduler and the digest of an image.
func describeSite(ctx context.Context, site *dispatch.Site, image string) (*siteInfo, error) {
	argv := []string{"here"}
	if image != "" {
		argv = append(argv, "--image="+image)
	}
	out, err := site.Ask(ctx, onTerminal(), answerTime(), argv...)
	if err != nil {
		return nil, siteHint(err, site)
	}
	g := &siteInfo{}
	if err := json.Unmarshal(out, g); err != nil || g.Protocol != protocol || !filepath.IsAbs(g.Home) {
		return nil, text.Hint(fmt.Errorf("site %s: its hpcc does not understand this version (%s)", site.Name, version), "hpcc sites --install %s", site.Name)
	}
	if g.Version != version {
		say("site %s has hpcc %s, this is %s; \"hpcc sites --install %s\" installs this version", site.Name, g.Version, version, site.Name)
	}
	return g, nil
}

// siteHint adds a hint to an error of a site.
func siteHint(err error, site *dispatch.Site) error {
	var none *dispatch.NoProgramError
	switch {
	case errors.As(err, &none):
		return text.Hint(err, "hpcc sites --install %s installs it", site.Name)
	case strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "unknown flag"):
		return text.Hint(err, "the site has an older hpcc; update it with hpcc sites --install %s", site.Name)
	}
	return err
}

// dir returns the directory in which a job with --chdir starts at a remote site.
func (to *destination) dir(chdir string) string {
	return pathBelow(pathBelow(to.remote.Home, to.site.Dir), chdir)
}

// pathBelow resolves a path at the site, relative to dir.
func pathBelow(dir, p string) string {
	p = strings.TrimPrefix(p, "~/")
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// fillRemotePaths fills in the paths of a job for a remote site.
func (a *jobArgs) fillRemotePaths(j *job.Job, to *destination) error {
	j.Store, j.Program, j.Dir = to.remote.Store, to.remote.Program, to.dir(a.chdir)
	if j.Image = a.image; namesSquashFS(j.Image) {
		return text.Usagef("%s is a file on this machine, not at site %s", j.Image, to.site.Name).Hint("load it with hpcc load %s NAME and submit NAME: hpcc sends images of the store", j.Image)
	}
	if isPath(j.Image) {
		j.Image = pathBelow(j.Dir, j.Image)
	}
	return nil
}

// encodeJob encodes a job for hpcc at the site, with the files on this machine that it names.
func encodeJob(j *job.Job, to *destination) (*bytes.Buffer, error) {
	h := jobMessage{Protocol: protocol, Version: version, Target: to.Target, Job: j, Follows: to.imageFollows}
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
			return nil, text.Usagef("%s: files that are named after the task are not sent to site %s", name, to.site.Name).Hint("copy them to the site and let the program read them")
		}
		b, err := readBounded(name)
		if err != nil {
			return nil, fmt.Errorf("reading a file for site %s: %w", to.site.Name, err)
		}
		if len(b) == maxInput {
			return nil, fmt.Errorf("%s: larger than %s, the limit for files that are sent with a job", name, text.Size(maxInput))
		}
		h.Files = append(h.Files, jobFile{name, b})
	}
	var b bytes.Buffer
	return &b, json.NewEncoder(&b).Encode(h)
}

// receiveJob reads a job from standard input, as hpcc on another machine encoded it, and
// completes it for this machine. dir is the directory of the store.
func receiveJob(ctx context.Context, dir string) (*job.Job, *destination, error) {
	d := json.NewDecoder(io.LimitReader(files.Stdin(), maxJobMessage))
	d.DisallowUnknownFields()
	var h jobMessage
	err := d.Decode(&h)
	if err == nil && (h.Protocol != protocol || h.Job == nil) {
		err = fmt.Errorf("protocol version %d, not %d", h.Protocol, protocol)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading a job from hpcc %s on another machine (this is %s): %w", h.Version, version, err)
	}
	site, err := defaultSite()
	if err != nil {
		return nil, nil, err
	}
	j, to := h.Job, &destination{Cluster: site.Cluster(ctx), site: site}
	if h.Target != to.Target {
		to = &destination{Cluster: dispatch.Cluster{Target: h.Target}, site: &dispatch.Site{}}
	}
	to.imageFollows = h.Follows
	if err := fillProgram(j, dir, to.site); err != nil {
		return nil, nil, err
	}
	s, err := store.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	if want := j.ImageDigest; !to.Target.Pods() && !to.imageFollows {
		if err := pinImage(j, dir); err != nil {
			return nil, nil, err
		}
		if want != "" && digestOf(s, j.ExactImage(), nil) != want {
			return nil, nil, fmt.Errorf("the name %s refers to another image at this site since the job was sent; submit the job again", j.Image)
		}
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
	sayNotes(to.site.Apply(j))
	return j, to, nil
}

// prepareRemote checks a job for a remote site, and sends the image.
func (a *submitArgs) prepareRemote(ctx context.Context, j *job.Job, to *destination) error {
	for _, name := range []string{"backfill", "time-min"} {
		if a.set[name] {
			return text.Usagef("--%s is not available for site %s, which is reached by ssh", name, to.site.Name).Hint("ssh %s hpcc submit --%s …", to.site.SSH, name)
		}
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	image, err := missingImage(s, j, to)
	switch {
	case err != nil || image == "":
		return err
	case a.dryRun:
		to.imageFollows = true
		say("note: hpcc submit sends image %s to site %s first", j.Image, to.site.Name)
		return nil
	}
	return sendImage(ctx, s, image, j, to)
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
	s, err := store.Open(a.store)
	if err != nil {
		return nil, err
	}
	out, err := askRemote(ctx, j, to, "submit", "--job", "-", "--json", "--record")
	if err != nil {
		return nil, err
	}
	var sub dispatch.Submission
	if err := json.Unmarshal(out, &sub); err != nil || sub.ID == "" || sub.Job == nil {
		return nil, fmt.Errorf("site %s: its hpcc answered %q, which is not a job; \"hpcc status --on %s\" shows whether it was submitted", to.site.Name, out[:min(len(out), 100)], to.site.Name)
	}
	sub.Site = to.site.Name
	if err := to.site.Sent(s.Jobs(), &sub); err != nil {
		say("warning: %v", err)
	}
	return &sub, a.printSubmitted(&sub, to.site.Name+" ("+string(to.Target)+")")
}

// askRemote passes a job to a command of hpcc at the site and returns the output.
func askRemote(ctx context.Context, j *job.Job, to *destination, argv ...string) ([]byte, error) {
	text, err := encodeJob(j, to)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := to.site.Command(ctx, onTerminal(), argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = text, &out, os.Stderr
	err = remoteError(cmd.Run(), to.site)
	return out.Bytes(), err
}

// remoteError converts the error of a command at a site. That command has already printed its
// own message.
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

// onTerminal reports whether the user can answer a prompt of ssh.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

// interactRemote runs the script of an interactive job at the site on this terminal.
func interactRemote(ctx context.Context, j *job.Job, to *destination) error {
	script, err := askRemote(ctx, j, to, "script", "--job", "-", "--keep")
	if err != nil {
		return err
	}
	cmd := to.site.Shell(ctx, onTerminal(), onTerminal(), string(script))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() { // of the program, or of ssh, which has printed the reason
		return exitStatus(exit.ExitCode())
	}
	return remoteError(err, to.site)
}

// passOn runs a command of hpcc at the site and returns its exit status.
func passOn(ctx context.Context, site *dispatch.Site, argv ...string) error {
	cmd := site.Command(ctx, onTerminal(), argv...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return remoteError(cmd.Run(), site)
}

// missingImage returns the exact image to send to the site, or "" if the site has an image of that digest. It records
// the digest for the site's architecture in the job.
func missingImage(s *store.Store, j *job.Job, to *destination) (string, error) {
	if j.Image == "" || isPath(j.Image) {
		return "", nil
	}
	here := *j
	if err := pinImage(&here, s.Dir()); err != nil {
		return "", err
	}
	image := here.ExactImage()
	local := digestOf(s, image, &v1.Platform{OS: "linux", Architecture: to.remote.Arch})
	if !to.Target.Pods() {
		j.ImageDigest = cmp.Or(local, to.remote.Image)
	}
	switch {
	case local == to.remote.Image && local != "", local == "" && to.remote.Image != "":
		return "", nil
	case local == "":
		_, err := s.Get(j.Image, &v1.Platform{OS: "linux", Architecture: to.remote.Arch})
		return "", text.Hint(fmt.Errorf("site %s does not have image %q, and this machine cannot send it: %w", to.site.Name, j.Image, err), "build or pull it with --platform linux/%s", to.remote.Arch)
	}
	return image, nil
}

// sendImage sends an image to the site, which names it as the job does.
func sendImage(ctx context.Context, s *store.Store, image string, j *job.Job, to *destination) error {
	b := terminal.NewBar("sending " + j.Image + " to " + to.site.Name)
	defer b.End()
	cmd := to.site.Command(ctx, onTerminal(), "load", "-", j.Image)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sending %s to site %s: %w", j.Image, to.site.Name, err)
	}
	sent := s.SaveTo(ctx, image, &countedWriter{w: pipe, report: func(n int64) { b.Bytes(n, 0) }})
	pipe.Close()
	err = cmd.Wait()
	if sent != nil && !errors.Is(sent, syscall.EPIPE) { // a broken pipe means that the command at the site failed
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

// A countedWriter reports the number of bytes written so far.
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

// readSites reads the files that define sites.
func readSites() (*dispatch.Sites, error) {
	s, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, (&text.Error{Err: err, Status: text.StatusUsage}).Hint("\"hpcc sites --help\" shows an example")
	}
	return s, nil
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

// A jobScope limits where a command looks for jobs.
type jobScope struct {
	on    string // the name of a site; "" for all
	local bool   // --here: ask no site over ssh
}

func parseJobScope(c *cli.Context) jobScope { return jobScope{c.String("on"), c.Bool("here")} }

// remote returns the remote sites, or only the site of --on. includeLocal reports whether the jobs of
// this machine are in the scope.
func (w jobScope) remote() (sites []*dispatch.Site, includeLocal bool, err error) {
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
		return nil, false, text.Usagef("--on: %w", err)
	}
	if t.SSH == "" {
		return nil, true, nil
	}
	return []*dispatch.Site{t}, false, nil
}

// eachJob is the command line of a verb that handles several jobs in the same way.
type eachJob struct {
	verb     string
	ids      []string
	switches []string // flags for hpcc at a site
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
	var list []foundJob
	for _, id := range a.ids {
		f, err := a.in.find(ctx, s.Jobs(), id)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	ended := exitStatus(0)
	var failed error
	for _, f := range list {
		err := error(nil)
		if f.site != nil {
			err = passOn(ctx, f.site, slices.Concat([]string{a.verb}, a.switches, []string{f.id})...)
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
	var bad *job.RecordsError
	if errors.As(err, &bad) {
		warn([]string{bad.Error()})
		err = nil
	}
	return tasks, err
}

// A foundJob is a job of this machine, or the ID of a job of a site.
type foundJob struct {
	*dispatch.Submission
	site *dispatch.Site
	id   string
}

// find finds a job by its ID, a prefix of it or its name. dir is the directory of all jobs.
func (w jobScope) find(ctx context.Context, dir, id string) (foundJob, error) {
	sites, includeLocal, err := w.remote()
	if err != nil {
		return foundJob{}, err
	}
	none := error(&dispatch.NoJobError{ID: id})
	if includeLocal {
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

// findTask finds JOB or JOB.TASK of this machine for a verb. If a remote site has the job, the
// error contains the command to run there.
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
		m := &text.Error{Err: fmt.Errorf("job %s belongs to site %s, whose nodes are reachable only from that site", id, site.Name)}
		if verb == sshVerb { // its streams are not for a terminal
			return nil, 0, m.Hint("ProxyCommand ssh %s hpcc %s %%n", site.SSH, verb)
		}
		return nil, 0, m.Hint("ssh -t %s hpcc %s …", site.SSH, verb)
	}
	return nil, 0, err
}
