// Package prepare completes a job for its target: it looks up the image, translates scripts, and fills in paths,
// settings of pods and site defaults.
//
//	flags ─► Request ─► Resolve ─► job ─► Ready ─► job/dispatch submits it, or says when it would start
//	                     ├─ job/translate: a script, and the flags that replace its directives
//	                     ├─ store: the digest of the image, its configuration for pods
//	                     └─ build/code: files that pods take along
//
// Resolve asks neither the scheduler nor a registry, and changes nothing outside the store. So a script, an explanation
// and a dry run use the same job as a submission.
package prepare

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/job/translate"
	"hpcc/runtime/explain"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
)

// A Request is a job as a command line describes it.
type Request struct {
	Verb    string // the command: submit, script or kernel
	Store   string // directory of the store; "" for the default
	Image   string // as given; "" without an image
	HasArgs bool   // arguments follow the image
	Chdir   string // as given
	// Job holds the values of flags and the arguments. Resolve completes it.
	Job      job.Job
	Run      []string         // flags of "hpcc run" for the script, with paths of binds as given
	Env      []envfile.Change // changes of the program's environment
	NoExpand bool             // Env does not expand variables in values

	Set      map[string]bool // first names of the given flags
	RunFlags []string        // the given flags of "hpcc run", by their first names
	PodFlag  string          // the first given flag that has an effect on pods only; ""
	ArgoFlag string          // the first given flag that has an effect on Argo only; ""

	Context, Namespace string
	Pod                job.Pod // without image, user and environment
	GPUType            string
	UID                int
	BuiltImage         bool   // the cluster has the image, or builds it
	CodeDir            string // directory with files for the program; ""

	Argo Argo
	From From

	Backfill bool          // shorten the time limit to a free window
	TimeMin  time.Duration // shortest limit of Backfill; 0 for a quarter of the limit

	At       site.Choice
	Version  string // of this hpcc
	Terminal bool   // the user can answer a prompt of ssh
	Received bool   // hpcc on another machine sends the job on standard input, which replaces all of the above
	Write    bool   // the program may change the image's directory
	DryRun   bool   // nothing leaves this machine

	Logf    func(format string, a ...any) // prints a note
	Report  io.Writer                     // receives the reports of translations
	Sources explain.Sources               // of the settings of the job; nil without an explanation
}

// From names the scripts of other schedulers that the job is translated from.
type From struct {
	Files   []string   // scripts, manifests or submit commands; - is standard input
	Dialect job.Target // "" to detect it by the directives
	Report  string     // format of the report: table, json or none
	Strict  bool       // a directive that cannot be translated is an error
}

// Resolve finds the destination of the job and completes the job for it.
func Resolve(ctx context.Context, r *Request) (*job.Job, *Destination, error) {
	if r.Received {
		return r.receive(ctx)
	}
	to, err := r.destination(ctx)
	if err != nil {
		return nil, nil, err
	}
	j, err := r.complete(ctx, to)
	return j, to, err
}

// complete completes the job for its destination.
func (r *Request) complete(ctx context.Context, to *Destination) (j *job.Job, err error) {
	if r.Set["workflow"] {
		return r.resolveWorkflow(ctx, to)
	}
	j = &r.Job
	if !r.Set["name"] { // it comes from the program
		r.known("hpcc", &job.Job{Name: j.Name})
	}
	r.known("flag", j)
	var source *translate.Translation
	if len(r.From.Files) == 1 {
		if source, err = r.translate(ctx, r.From.Files[0], to); err != nil {
			return nil, err
		}
		r.takeManifest(source, to)
	}
	if err := r.fillPaths(j, to); err != nil {
		return nil, err
	}
	if err := r.fillPod(ctx, j, to); err != nil {
		return nil, err
	}
	switch {
	case source != nil:
		j, err = r.merge(source, j)
	case r.Set["from"]:
		j, err = r.readSteps(ctx, j, to)
	}
	if err != nil {
		return nil, err
	}
	r.known("hpcc", j)
	r.notes(to.Site.Apply(j))
	r.known("site "+to.Site.Name, j)
	return j, nil
}

func (r *Request) notes(list []string) {
	for _, n := range list {
		r.Logf("note: %s", n)
	}
}

// fillPaths fills in absolute paths, because a job starts in another directory.
func (r *Request) fillPaths(j *job.Job, to *Destination) (err error) {
	j.Image = r.Image
	if to.Remote != nil {
		return r.fillRemotePaths(j, to)
	}
	if err := FillProgram(j, r.Store, to.Site); err != nil {
		return err
	}
	if j.Dir, err = filepath.Abs(cmp.Or(r.Chdir, to.Site.Dir)); err != nil {
		return err
	}
	if err := absoluteImage(j); err != nil {
		return err
	}
	base, err := filepath.Abs("")
	if err != nil {
		base = j.Dir
	}
	j.Run = AbsoluteSources(base, r.Run)
	if to.Target.Pods() { // the nodes pull the image
		return nil
	}
	return PinImage(j, r.Store)
}

// fillRemotePaths fills in the paths of a job for a remote site.
func (r *Request) fillRemotePaths(j *job.Job, to *Destination) error {
	if ready.NamesImageFile(j.Image) {
		return text.Usagef("%s is a file on this machine, not at site %s", j.Image, to.Site.Name).
			Hint("load it with hpcc load %s NAME and submit NAME: hpcc sends images of the store", j.Image)
	}
	to.Remote.Complete(j, r.Chdir)
	j.Run = AbsoluteSources(j.Dir, r.Run)
	return nil
}

// translate translates one script, submit command or manifest.
func (r *Request) translate(ctx context.Context, file string, to *Destination) (*translate.Translation, error) {
	dir, home := r.Chdir, ""
	if to.Remote != nil {
		dir, home = to.Remote.Dir(r.Chdir), to.Remote.Home
	}
	src, err := dispatch.Translator().Open(file, r.From.Dialect, dir, home)
	if err != nil {
		return nil, err
	}
	if to.Remote == nil {
		src.AskHost(ctx)
	}
	return dispatch.Translator().Translate(src, to.Target)
}

// takeManifest takes the image of a script or manifest, and the variables and the settings of pods of a manifest,
// before the image is looked up. Flags replace them.
func (r *Request) takeManifest(tr *translate.Translation, to *Destination) {
	m := tr.Job
	r.Image = cmp.Or(r.Image, m.Image)
	if !tr.Dialect.Pods() {
		r.Pod.Dir = cmp.Or(r.Pod.Dir, m.Pod.Dir)
		return
	}
	r.precede(m.Env)
	m.Env = nil
	m.Pod.Command = m.Pod.Command && !r.HasArgs
	if to.Target.Pods() {
		if m.Pod.UID > 0 && !r.Set["uid"] {
			r.UID, r.Set["uid"] = int(m.Pod.UID), true
		}
		r.Pod.Inherit(&m.Pod)
		return
	}
	if m.Pod.Command {
		r.Run = append(r.Run, "--entrypoint=")
	}
	if m.Pod.Dir != "" && !r.Set["cd"] {
		r.Run = append(r.Run, "--cd="+m.Pod.Dir)
	}
}

// precede adds the variables of a manifest to the changes of the environment, before those of flags.
func (r *Request) precede(vars []string) {
	var list []envfile.Change
	var argv []string
	for _, e := range vars {
		if c, err := envfile.Exact(e); err == nil { // the reader of manifests has checked it
			list, argv = append(list, c), append(argv, "--env="+e)
		}
	}
	r.Env, r.Run = append(list, r.Env...), append(argv, r.Run...)
}

// merge completes a translated job with the flags, reduces it to what the target supports, and reports what became
// of the directives. Directives named in except take precedence over flags.
func (r *Request) merge(tr *translate.Translation, flags *job.Job, except ...string) (*job.Job, error) {
	tr.Merge(translate.Flags{Job: flags, Set: r.Set, HasArgs: r.HasArgs}, except...)
	j := tr.Job
	for _, name := range r.RunFlags {
		if j.Image == "" && name != "no-config" && !job.ChangesEnv("--"+name) {
			return nil, text.Usagef("--%s needs an image, but the script runs on the host", name).
				Hint("name IMAGE after the flags, or leave out --%s", name)
		}
	}
	if r.Set["gpu"] && tr.To.Pods() && j.GPUs == 0 {
		return nil, text.Usagef("--gpu cannot be used for pods of %s, and the script requests no GPUs", tr.To).
			Hint("%s", inPods["gpu"])
	}
	tr.Fit()
	if err := tr.Report(r.Report, r.From.Report); err != nil {
		return nil, err
	}
	if err := tr.Refused(r.From.Report == "none"); r.From.Strict && err != nil {
		return nil, err
	}
	return j, nil
}

// readSteps combines several scripts into one workflow.
func (r *Request) readSteps(ctx context.Context, flags *job.Job, to *Destination) (*job.Job, error) {
	if to.Target != job.Argo {
		return nil, text.Usagef("--from names %d scripts, but only argo runs several as one job", len(r.From.Files)).
			Hint("use --to argo, or submit them one by one with --after")
	}
	var list []*translate.Translation
	var names []string
	for _, file := range r.From.Files {
		tr, err := r.translate(ctx, file, to)
		if err != nil {
			return nil, err
		}
		if tr.Dialect.Pods() {
			return nil, text.Usagef("--from %s: a manifest cannot be a step of a workflow", file).
				Hint("translate it alone, or write a job script for the step")
		}
		names = append(names, tr.Job.Name)
		list = append(list, tr)
	}
	before := map[string][]string{}
	for _, after := range flags.After {
		step, other, _ := strings.Cut(after, ":")
		if other == "" || strings.Contains(other, ":") || !slices.Contains(names, step) {
			return nil, text.Usagef("--after %s: several scripts need STEP:OTHER", after).
				Hint("write --after STEP:OTHER with steps of: %s", strings.Join(names, ", "))
		}
		before[step] = append(before[step], other)
	}
	var steps []*job.Job
	for i, tr := range list {
		tr.Among(names)
		tr.Job.After = append(tr.Job.After, before[tr.Job.Name]...)
		r.Logf("%s:", r.From.Files[i])
		j, err := r.merge(tr, flags, "name", "after")
		if err != nil {
			return nil, err
		}
		steps = append(steps, j)
	}
	return job.NewSteps(cmp.Or(flags.Name, names[0]), steps, r.Argo.Artifacts)
}

// FillProgram fills in the paths of hpcc and of the store. dir is the directory of the store, or "".
func FillProgram(j *job.Job, dir string, site *dispatch.Site) error {
	s, err := store.OpenToRead(dir)
	if err != nil {
		return err
	}
	if j.Store, err = filepath.Abs(s.Dir()); err != nil {
		return err
	}
	if j.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	if site.Program != "" {
		j.Program = site.Program
	}
	return nil
}
