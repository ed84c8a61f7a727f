// Package site reaches hpcc on other machines over ssh, and describes this machine for them and for "hpcc doctor".
//
//	hpcc submit --on SITE ─► Describe ─► ssh SITE hpcc here
//	                      ─► Send     ─► ssh SITE hpcc load - IMAGE
//	                      ─► Pass     ─► ssh SITE hpcc submit --job -
//
// A job travels as JSON (see [Message]), so that no shell interprets its arguments. Everything else uses the public
// commands of hpcc at the site. A command that fails there has printed its own message; its error is a
// [text.ExitStatus].
package site

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
	goruntime "runtime"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/results"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
)

// protocol is the version of the messages between hpcc on two machines. hpcc refuses messages
// of another version.
const protocol = 1

// An Info describes the machine on which hpcc runs, for hpcc on another machine.
type Info struct {
	Type     string     `json:"type"` // "place"
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"`
	Arch     string     `json:"arch"` // a GOARCH
	Home     string     `json:"home"`
	Store    string     `json:"store"`
	Program  string     `json:"program"`
	Target   job.Target `json:"target"`          // of the default site, or else the detected scheduler
	Image    string     `json:"image,omitempty"` // the digest of the image in question, for this architecture
}

// Here describes this machine and an image of its store, if image is not empty. version is that of this hpcc.
func Here(ctx context.Context, s *store.Store, image, version string) (*Info, error) {
	g := &Info{Type: "place", Protocol: protocol, Version: version, Arch: goruntime.GOARCH, Store: s.Dir()}
	var err error
	if g.Home, err = os.UserHomeDir(); err != nil {
		return nil, fmt.Errorf("finding the home directory: %w", err)
	}
	if g.Program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	site, err := Default()
	if err != nil {
		return nil, err
	}
	g.Target = site.Cluster(ctx).Target
	if image != "" {
		g.Image = digestOf(s, image, nil)
	}
	return g, nil
}

// Default returns the default site of a machine that received a job over ssh, or an empty site if that is not local:
// hpcc does not forward a job to a third machine.
func Default() (*dispatch.Site, error) {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, err
	}
	if t, err := sites.Find(sites.Default); err == nil && t.SSH == "" {
		return t, nil
	}
	return &dispatch.Site{}, nil
}

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

// A Remote is hpcc at a site that ssh reaches.
type Remote struct {
	Site     *dispatch.Site
	Own      string // version of this hpcc
	Terminal bool   // the user can answer a prompt of ssh
	Info            // the answer of the site; see [Remote.Describe]
}

// Timeouts for the answer of a site.
const (
	AnswerTimeout   = 30 * time.Second
	passwordTimeout = 3 * time.Minute // when the user may have to type a password
)

// Describe asks the site for its directories, its scheduler and the digest of an image, if image is not empty. note is
// a message for the user.
func (r *Remote) Describe(ctx context.Context, image string) (note string, err error) {
	argv := []string{"here"}
	if image != "" {
		argv = append(argv, "--image="+image)
	}
	out, err := r.Ask(ctx, argv...)
	if err != nil {
		return "", err
	}
	install := "hpcc sites --install " + r.Site.Name
	if json.Unmarshal(out, &r.Info) != nil || r.Protocol != protocol || !filepath.IsAbs(r.Home) {
		return "", text.Hint(fmt.Errorf("site %s: its hpcc does not understand this version (%s)", r.Site.Name, r.Own), "%s", install)
	}
	if r.Version != r.Own {
		note = fmt.Sprintf("site %s has hpcc %s, this is %s; %q installs this version", r.Site.Name, r.Version, r.Own, install)
	}
	return note, nil
}

// Ask runs hpcc at the site and returns its standard output.
func (r *Remote) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	limit := AnswerTimeout
	if r.Terminal {
		limit = passwordTimeout
	}
	return r.Site.Ask(ctx, r.Terminal, limit, argv...)
}

// Run runs hpcc at the site with these standard streams. A nil stream is empty.
func (r *Remote) Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) error {
	cmd := r.Site.Command(ctx, r.Terminal, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	return r.fault(cmd.Run())
}

// fault returns the error of a command at the site: nil, or why ssh could not run it, or the command's own exit status.
func (r *Remote) fault(err error) error {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	if fault := r.Site.Fault(err, ""); fault != nil {
		return r.Site.Hint(fault)
	}
	return exitStatus(err)
}

// exitStatus returns the exit status of a command that has printed its own message, or err itself.
func exitStatus(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return text.ExitStatus(exit.ExitCode())
	}
	return err
}

// Dir returns the directory in which a job with --chdir starts at the site.
func (r *Remote) Dir(chdir string) string { return pathBelow(pathBelow(r.Home, r.Site.Dir), chdir) }

// pathBelow resolves a path at the site, relative to dir.
func pathBelow(dir, p string) string {
	p = strings.TrimPrefix(p, "~/")
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// Complete fills in the paths of a job for the site.
func (r *Remote) Complete(j *job.Job, chdir string) {
	j.Store, j.Program, j.Dir = r.Store, r.Program, r.Dir(chdir)
	if ready.IsPath(j.Image) {
		j.Image = pathBelow(j.Dir, j.Image)
	}
}

// Missing reports whether the site lacks an image of the store: the one that exact names, which the job calls j.Image.
// Unless pods run it, the job then has the image's digest for the site's architecture.
func (r *Remote) Missing(s *store.Store, j *job.Job, exact string, pods bool) (bool, error) {
	platform := &v1.Platform{OS: "linux", Architecture: r.Arch}
	local := digestOf(s, exact, platform)
	if !pods {
		j.ImageDigest = cmp.Or(local, r.Image)
	}
	if local != "" || r.Image != "" {
		return local != "" && local != r.Image, nil
	}
	_, err := s.Get(j.Image, platform)
	err = fmt.Errorf("site %s does not have image %q, and this machine cannot send it: %w", r.Site.Name, j.Image, err)
	return false, text.Hint(err, "build or pull it with --platform linux/%s", r.Arch)
}

// Send sends an image of the store to the site, which calls it name. progress gets the number of bytes sent so far.
func (r *Remote) Send(ctx context.Context, s *store.Store, image, name string, stderr io.Writer, progress func(sent int64)) error {
	cmd := r.Site.Command(ctx, r.Terminal, "load", "-", name)
	cmd.Stderr = stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sending %s to site %s: %w", name, r.Site.Name, err)
	}
	sent := s.SaveTo(ctx, image, &countedWriter{w: pipe, report: progress})
	pipe.Close()
	err = cmd.Wait()
	if sent != nil && !errors.Is(sent, syscall.EPIPE) { // a broken pipe means that the command at the site failed
		return sent
	}
	if err := r.fault(err); err != nil {
		return err
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

// Pass passes a job to a command of hpcc at the site, and returns the command's standard output.
func (r *Remote) Pass(ctx context.Context, m *Message, stderr io.Writer, argv ...string) ([]byte, error) {
	in, err := r.encode(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = r.Run(ctx, in, &out, stderr, argv...)
	return out.Bytes(), err
}

// Submit submits a prepared job at the site.
func (r *Remote) Submit(ctx context.Context, m *Message, stderr io.Writer) (*dispatch.Submission, error) {
	out, err := r.Pass(ctx, m, stderr, "submit", "--job", "-", "--json", "--record")
	if err != nil {
		return nil, err
	}
	var sub dispatch.Submission
	if err := json.Unmarshal(out, &sub); err != nil || sub.ID == "" || sub.Job == nil {
		return nil, fmt.Errorf("site %[1]s: its hpcc answered %[2]q, which is not a job; \"hpcc status --on %[1]s\" shows whether it was submitted",
			r.Site.Name, out[:min(len(out), 100)])
	}
	sub.Site = r.Site.Name
	return &sub, nil
}

// Interact runs the script of an interactive job at the site, with the standard streams of this process.
func (r *Remote) Interact(ctx context.Context, m *Message) error {
	script, err := r.Pass(ctx, m, os.Stderr, "script", "--job", "-", "--keep")
	if err != nil {
		return err
	}
	cmd := r.Site.Shell(ctx, r.Terminal, r.Terminal, string(script))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = exitStatus(cmd.Run())
	if errors.As(err, new(text.ExitStatus)) { // of the program, or of ssh, which has printed the reason
		return err
	}
	return r.fault(err)
}

// Fetch returns a tar stream with a file or directory of a job of the site; see [dispatch.Submission.Fetch].
func (r *Remote) Fetch(ctx context.Context, id, path, image string) (io.ReadCloser, error) {
	argv := []string{"fetch", "--tar"}
	if image != "" {
		argv = append(argv, "--image="+image)
	}
	if argv = append(argv, id); path != "" {
		argv = append(argv, path)
	}
	cmd := r.Site.Command(ctx, r.Terminal, argv...)
	cmd.Stderr = os.Stderr
	stream, err := results.Run(cmd, r.fault)
	if err != nil {
		return nil, fmt.Errorf("site %s: %w", r.Site.Name, err)
	}
	return stream, nil
}

// Usage asks for the current resource usage of a job of the site.
func (r *Remote) Usage(ctx context.Context, id string) (*dispatch.Usage, error) {
	out, err := r.Ask(ctx, "top", "--json", id)
	if err != nil {
		return nil, err
	}
	now := &dispatch.Usage{}
	if err := json.Unmarshal(out, now); err != nil || now.Type != "top" {
		return nil, fmt.Errorf("site %s: its hpcc answered %q, which is not the state of a job", r.Site.Name, out[:min(len(out), 100)])
	}
	now.Site = r.Site.Name
	return now, nil
}
