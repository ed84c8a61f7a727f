package prepare

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"

	"hpcc/build/code"
	"hpcc/files"
	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/runtime/root"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A Destination is the cluster to which a job goes.
type Destination struct {
	dispatch.Cluster
	Site   *dispatch.Site // empty if the job has no site
	Remote *site.Remote   // nil for this machine

	imageFollows bool       // in a dry run: hpcc on another machine has the image, and would send it
	code         *codeImage // nil: a submission pushes no image
}

// destination finds the site and its scheduler. It asks a remote site for its directories, its scheduler and the
// digest of the job's image.
func (r *Request) destination(ctx context.Context) (*Destination, error) {
	at, err := r.At.Site()
	if err != nil {
		return nil, err
	}
	if at.SSH == "" {
		return &Destination{Cluster: r.At.Cluster(ctx, at), Site: at}, nil
	}
	to := &Destination{Site: at, Remote: &site.Remote{Site: at, Own: r.Version, Terminal: r.Terminal}}
	note, err := to.Remote.Describe(ctx, r.Image)
	if note != "" {
		r.Logf("%s", note)
	}
	to.Cluster = dispatch.Cluster{Target: cmp.Or(r.At.To, at.Scheduler, to.Remote.Target), Site: at.Name}
	return to, err
}

// setEnv sets a variable for the scheduler's commands, unless value is empty. It copies the environment first,
// because sites share it.
func (to *Destination) setEnv(name, value string) {
	if value == "" {
		return
	}
	env := map[string]string{}
	maps.Copy(env, to.Env)
	env[name] = value
	to.Env = env
}

// receive reads a job from standard input, as hpcc on another machine sent it, and completes it for this machine.
func (r *Request) receive(ctx context.Context) (*job.Job, *Destination, error) {
	m, err := site.Receive(files.Stdin(), r.Version)
	if err != nil {
		return nil, nil, err
	}
	at, err := site.Default()
	if err != nil {
		return nil, nil, err
	}
	j, to := m.Job, &Destination{Cluster: at.Cluster(ctx), Site: at}
	if m.Target != to.Target {
		to = &Destination{Cluster: dispatch.Cluster{Target: m.Target}, Site: &dispatch.Site{}}
	}
	to.imageFollows = m.Follows
	if err := FillProgram(j, r.Store, to.Site); err != nil {
		return nil, nil, err
	}
	s, err := store.Open(r.Store)
	if err != nil {
		return nil, nil, err
	}
	if want := j.ImageDigest; !to.Target.Pods() && !to.imageFollows {
		err := PinImage(j, r.Store)
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
	r.notes(to.Site.Apply(j))
	return j, to, nil
}

// Ready resolves and checks a job, unpacks its image or sends it to the site, and does all else that comes before the
// submission.
func Ready(ctx context.Context, r *Request) (*job.Job, *Destination, error) {
	j, to, err := Resolve(ctx, r)
	if err == nil {
		err = r.pushCode(ctx, to.code)
	}
	switch {
	case err != nil:
	case to.Remote != nil:
		err = r.sendImage(ctx, j, to)
	default:
		err = r.readyHere(ctx, j, to)
	}
	if err != nil {
		return nil, nil, err
	}
	return j, to, nil
}

// pushCode pushes the image that has the files of CodeDir. It does nothing if c is nil.
func (r *Request) pushCode(ctx context.Context, c *codeImage) error {
	if c == nil {
		return nil
	}
	if r.DryRun {
		r.Logf("note: hpcc submit pushes %s as a layer of %s first", c.dir, c.ref)
		return nil
	}
	s, err := store.Open(r.Store)
	if err != nil {
		return err
	}
	bar := terminal.NewBar("pushing " + c.dir)
	err = s.Send(ctx, c.image, c.tag, store.Remote{Progress: bar.Bytes})
	bar.End()
	if err != nil {
		return text.Hint(fmt.Errorf("--with-code %s: %w", c.dir, err),
			"%s; or make the directory smaller with .dockerignore: a config map holds %d files of %s",
			cmp.Or(text.Advice(err), "repeat the command"), code.MaxMapFiles, text.Size(code.MaxMapBytes))
	}
	r.Logf("pushed %s as a layer of %s", c.dir, c.ref)
	return nil
}

// sendImage checks a job for a remote site, and sends its image.
func (r *Request) sendImage(ctx context.Context, j *job.Job, to *Destination) error {
	for _, name := range []string{"backfill", "time-min"} {
		if r.Set[name] {
			return text.Usagef("--%s is not available for site %s, which is reached by ssh", name, to.Site.Name).
				Hint("ssh %s hpcc submit --%s …", to.Site.SSH, name)
		}
	}
	s, err := store.Open(r.Store)
	if err != nil || j.Image == "" || ready.IsPath(j.Image) {
		return err
	}
	here := *j
	if err := PinImage(&here, s.Dir()); err != nil {
		return err
	}
	missing, err := to.Remote.Missing(s, j, here.ExactImage(), to.Target.Pods())
	switch {
	case err != nil || !missing:
		return err
	case r.DryRun:
		to.imageFollows = true
		r.Logf("note: hpcc submit sends image %s to site %s first", j.Image, to.Site.Name)
		return nil
	}
	bar := terminal.NewBar("sending " + j.Image + " to " + to.Site.Name)
	err = to.Remote.Send(ctx, s, here.ExactImage(), j.Image, os.Stderr, func(n int64) { bar.Bytes(n, 0) })
	bar.End()
	if err == nil {
		r.Logf("image %s sent to site %s", j.Image, to.Site.Name)
	}
	return err
}

// readyHere makes a job ready for its submission from this machine: it selects the cluster of kubectl, shortens the
// job's time limit with Backfill, replaces the IDs of jobs to wait for by those of the scheduler, and unpacks the image.
func (r *Request) readyHere(ctx context.Context, j *job.Job, to *Destination) error {
	s, err := store.Open(r.Store)
	if err != nil {
		return err
	}
	if to.Target.Pods() && !usesServer(to.Cluster) {
		if err := to.Pin(ctx); err != nil {
			return err
		}
	}
	switch {
	case r.Backfill:
		notes, err := dispatch.Backfill(to.Within(ctx), j, to.Target, r.TimeMin)
		if err != nil {
			return fmt.Errorf("--backfill: %w", err)
		}
		for _, n := range notes {
			r.Logf("backfill: %s", n)
		}
	case r.Set["time-min"]:
		return text.Usagef("--time-min needs --backfill").Hint("to pass it to Slurm, write --native --time-min=1:00:00")
	}
	if j.After, err = dispatch.NativeIDs(s.Jobs(), j.After); err != nil {
		return err
	}
	if j.Image == "" || ready.NamesImageFile(j.Image) || to.Target.Pods() || to.imageFollows {
		return nil
	}
	// Unpack the image now, or else every node would unpack it at the same time.
	at := root.Image{Name: j.ExactImage(), Store: r.Store, Write: r.Write, Say: func(line string) { r.Logf("%s", line) }}
	dir, err := at.Tree(ctx)
	if err != nil {
		return err
	}
	return r.checkProgram(dir, j)
}

// atJobs calls do with the directory of all jobs, and adds a hint to its error if the directory cannot be written.
func (r *Request) atJobs(do func(dir string) error) error {
	s, err := store.Open(r.Store)
	if err != nil {
		return err
	}
	return files.ReadOnlyHint(do(s.Jobs()), s.Jobs(),
		"jobs keep their records in the store; set HPCC_STORE to a directory that you can write to")
}

// Submit submits a job that is ready.
func (to *Destination) Submit(ctx context.Context, r *Request, j *job.Job) (sub *dispatch.Submission, err error) {
	err = r.atJobs(func(dir string) error {
		if to.Remote == nil {
			var notes []string
			sub, notes, err = dispatch.Submit(ctx, dir, j, to.Cluster)
			r.notes(notes)
			return err
		}
		if sub, err = to.Remote.Submit(ctx, to.message(j), os.Stderr); err != nil {
			return err
		}
		if err := to.Site.Sent(dir, sub); err != nil {
			r.Logf("warning: %v", err)
		}
		return nil
	})
	return sub, err
}

// Interact runs an interactive job that is ready on this terminal. It returns the job's [text.ExitStatus], or another
// error.
func (to *Destination) Interact(ctx context.Context, r *Request, j *job.Job) error {
	if to.Remote != nil {
		return to.Remote.Interact(ctx, to.message(j))
	}
	return r.atJobs(func(dir string) error {
		status, err := dispatch.Interact(ctx, dir, j, to.Cluster, r.Logf)
		if err != nil {
			return err
		}
		return text.ExitStatus(status)
	})
}

// Keep writes the script of an interactive job into the store, and returns commands that run it. So the command line of
// ssh on the other machine contains no values of the job.
func (to *Destination) Keep(ctx context.Context, r *Request, j *job.Job) (commands string, err error) {
	err = r.atJobs(func(dir string) error {
		var notes []string
		commands, notes, err = dispatch.Keep(ctx, dir, j, to.Cluster)
		r.notes(notes)
		return err
	})
	return commands, err
}

// Fits reports where and when a job that is ready would start from this machine.
func (to *Destination) Fits(ctx context.Context, r *Request, j *job.Job) (f *capacity.Fit, err error) {
	err = r.atJobs(func(dir string) error {
		f, err = dispatch.Fits(ctx, dir, j, to.Cluster)
		return err
	})
	return f, err
}

// Ask passes the job to a command of hpcc at the remote site, and returns its output.
func (to *Destination) Ask(ctx context.Context, j *job.Job, argv ...string) ([]byte, error) {
	return to.Remote.Pass(ctx, to.message(j), os.Stderr, argv...)
}

// message returns the job as hpcc at another machine gets it.
func (to *Destination) message(j *job.Job) *site.Message {
	return &site.Message{Target: to.Target, Job: j, Follows: to.imageFollows}
}
