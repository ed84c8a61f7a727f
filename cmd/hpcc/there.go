package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
	"hpcc/store/wait"
)

// How hpcc of one machine speaks to that of another, over ssh: "hpcc here" says
// what the place is, and "hpcc submit --job -" takes a job as JSON, so that no
// word of it is read twice. Everything else is the commands that people use.

// protocol is the number of this language. What reads it refuses another one.
const protocol = 1

// A greeting is what hpcc says of the place where it is.
type greeting struct {
	Type     string     `json:"type"` // "place"
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"`
	Arch     string     `json:"arch"` // as GOARCH has it
	Home     string     `json:"home"`
	Store    string     `json:"store"`
	Program  string     `json:"program"`
	Target   job.Target `json:"target"`          // of its default site, or the scheduler that answers
	Image    string     `json:"image,omitempty"` // the digest of --image, for this architecture
}

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

func hereCommand() *cli.Command {
	return &cli.Command{
		Name: "here", Hidden: true, Usage: "say what this place is (hpcc of another machine asks)",
		Flags: []cli.Flag{&cli.StringFlag{Name: "image", Usage: "and which image `NAME` is"}, storeFlag()},
		Action: func(c *cli.Context) error {
			g, err := greet(c)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(g)
		},
	}
}

// greet describes this place.
func greet(c *cli.Context) (*greeting, error) {
	s, err := findStore(c)
	if err != nil {
		return nil, err
	}
	g := &greeting{Type: "place", Protocol: protocol, Version: version, Arch: goruntime.GOARCH, Store: s.Dir()}
	if g.Home, err = os.UserHomeDir(); err != nil {
		return nil, err
	}
	if g.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	site, err := placeSite(c)
	if err != nil {
		return nil, err
	}
	g.Target = site.Cluster(c.Context).Target
	if name := c.String("image"); name != "" {
		g.Image = digestOf(s, name, nil)
	}
	return g, nil
}

// placeSite is the default site of the place where a job came by ssh; it goes
// no farther.
func placeSite(c *cli.Context) (*dispatch.Site, error) {
	sites, err := readSites()
	if err != nil {
		return nil, err
	}
	if t, err := sites.Find(sites.Default); err == nil && t.SSH == "" {
		return t, nil
	}
	return &dispatch.Site{}, nil
}

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

// How long a site may take to say what it is.
const (
	greetTime  = 30 * time.Second
	typingTime = 3 * time.Minute // where somebody may have to type a password
)

// greetSite asks a site what it is. A refusal says what to do.
func greetSite(c *cli.Context, site *dispatch.Site, image string) (*greeting, error) {
	words, limit := []string{"here"}, greetTime
	if onTerminal() {
		limit = typingTime
	}
	if image != "" {
		words = append(words, "--image="+image)
	}
	out, err := site.Ask(c.Context, onTerminal(), limit, words...)
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

// siteHint gives advice to an error of a site.
func siteHint(err error, site *dispatch.Site) error {
	var none *dispatch.NoProgramError
	switch {
	case errors.As(err, &none):
		return (&message{err: err}).hint("hpcc sites --install %s puts this one there", site.Name)
	case strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "flag provided but not defined"):
		return (&message{err: err}).hint("its hpcc is an older one; hpcc sites --install %s", site.Name)
	}
	return err
}

// dir is where a job starts at a place that ssh reaches.
func (to *destination) dir(c *cli.Context) string {
	return pathBelow(pathBelow(to.there.Home, to.site.Dir), c.String("chdir"))
}

// pathBelow is a path there, from a directory on.
func pathBelow(dir, p string) string {
	p = strings.TrimPrefix(p, "~/")
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// placesThere fills in the paths of a job for a place that ssh reaches.
func placesThere(c *cli.Context, j *job.Job, to *destination) error {
	j.Store, j.Program, j.Dir = to.there.Store, to.there.Program, to.dir(c)
	if j.Image = c.Args().First(); namesSquashFS(j.Image) {
		return usagef("%s is a file of this machine, not of site %s", j.Image, to.site.Name).hint("hpcc load %s NAME, and submit NAME: images are sent", j.Image)
	}
	if isPath(j.Image) {
		j.Image = pathBelow(j.Dir, j.Image)
	}
	return nil
}

// stateJob states a job for hpcc there, with the files of this machine that it names.
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
		if len(b) == maxStdin {
			return nil, fmt.Errorf("%s: has more than %s, which is the most that is sent with a job", name, size(maxStdin))
		}
		h.Files = append(h.Files, handedFile{name, b})
	}
	var b bytes.Buffer
	return &b, json.NewEncoder(&b).Encode(h)
}

// takeOver reads a job that hpcc of another machine states, and makes it one of
// this place.
func takeOver(c *cli.Context) (*job.Job, *destination, error) {
	if c.String("job") != "-" || c.NArg() > 0 {
		return nil, nil, usagef("--job - takes a job from standard input, and nothing else")
	}
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
	site, err := placeSite(c)
	if err != nil {
		return nil, nil, err
	}
	j, to := h.Job, &destination{Cluster: site.Cluster(c.Context), site: site}
	if h.Target != to.Target {
		to = &destination{Cluster: dispatch.Cluster{Target: h.Target}, site: &dispatch.Site{}}
	}
	if err := jobProgram(c, j, to.site); err != nil {
		return nil, nil, err
	}
	s, err := openStore(c)
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

// submitThere hands a job in at a site that ssh reaches.
func submitThere(c *cli.Context, j *job.Job, to *destination) error {
	for _, name := range []string{"dry-run", "backfill", "time-min"} {
		if c.IsSet(name) {
			return usagef("--%s asks the scheduler of this machine, and site %s is reached by ssh", name, to.site.Name).hint("ssh %s hpcc submit --%s …", to.site.SSH, name)
		}
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	if err := sendImage(c, s, j, to); err != nil {
		return err
	}
	if j.Interactive {
		return interactiveThere(c, j, to)
	}
	out, err := askThere(c, j, to, "submit", "--job", "-", "--json", "--record")
	if err != nil {
		return err
	}
	var sub dispatch.Submission
	if err := json.Unmarshal(out, &sub); err != nil || sub.ID == "" || sub.Job == nil {
		return fmt.Errorf("site %s: its hpcc answered %q, which is no job; \"hpcc status --on %s\" shows whether it is there", to.site.Name, out[:min(len(out), 100)], to.site.Name)
	}
	sub.Site = to.site.Name
	if err := to.site.Sent(s.Jobs(), &sub); err != nil {
		say("warning: %v", err)
	}
	if err := tellSubmitted(c, &sub, to.site.Name+" ("+string(to.Target)+")"); err != nil || !c.Bool("wait") {
		return err
	}
	return passOn(c, to.site, "wait", sub.ID)
}

// askThere hands a job over, and returns what hpcc there says.
func askThere(c *cli.Context, j *job.Job, to *destination, words ...string) ([]byte, error) {
	text, err := stateJob(j, to)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := to.site.Command(c.Context, onTerminal(), words...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = text, &out, os.Stderr
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, there(err, to.site)
	}
	return out.Bytes(), nil
}

// there is the error of a command of a site that has spoken for itself.
func there(err error, site *dispatch.Site) error {
	if fault := site.Fault(err, ""); fault != nil {
		return siteHint(fault, site)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// onTerminal says whether somebody could answer ssh.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

// interactiveThere runs the script of an interactive job there, with this terminal.
func interactiveThere(c *cli.Context, j *job.Job, to *destination) error {
	script, err := askThere(c, j, to, "script", "--job", "-", "--keep")
	if err != nil {
		return err
	}
	cmd := to.site.Shell(c.Context, onTerminal(), onTerminal(), string(script))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	case errors.As(err, &exit) && exit.Exited(): // the program's own, or ssh's, which has said why
		return exitStatus(exit.ExitCode())
	}
	return there(err, to.site)
}

// passOn has hpcc of a site do a command, and ends as it did.
func passOn(c *cli.Context, site *dispatch.Site, words ...string) error {
	cmd := site.Command(c.Context, onTerminal(), words...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return there(err, site)
	}
	return nil
}

// sendImage sends the job's image where it is not there, or another one is.
func sendImage(c *cli.Context, s *store.Store, j *job.Job, to *destination) error {
	if j.Image == "" || isPath(j.Image) {
		return nil
	}
	here := digestOf(s, j.Image, &v1.Platform{OS: "linux", Architecture: to.there.Arch})
	switch {
	case here == to.there.Image && here != "", here == "" && to.there.Image != "":
		return nil
	case here == "":
		_, err := s.Get(j.Image, &v1.Platform{OS: "linux", Architecture: to.there.Arch})
		return (&message{err: fmt.Errorf("site %s has no image %q, and here: %w", to.site.Name, j.Image, err)}).hint("build or pull it with --platform linux/%s", to.there.Arch)
	}
	b := progress("sending " + j.Image + " to " + to.site.Name)
	defer b.end()
	cmd := to.site.Command(c.Context, onTerminal(), "load", "-", j.Image)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sending %s to site %s: %w", j.Image, to.site.Name, err)
	}
	sent := s.SaveTo(c.Context, j.Image, &countedWriter{w: pipe, tell: func(n int64) { b.bytes(n, 0) }})
	pipe.Close()
	err = cmd.Wait()
	if sent != nil && !errors.Is(sent, syscall.EPIPE) { // the other end failed because of it
		return sent
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return there(err, to.site)
	}
	if sent == nil {
		say("image %s sent to site %s", j.Image, to.site.Name)
	}
	return sent
}

// countedWriter tells how much was written.
type countedWriter struct {
	w    io.Writer
	n    int64
	tell func(int64)
}

func (c *countedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.tell(c.n)
	return n, err
}
