package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build/code"
	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/quantity"
	"hpcc/metrics"
	"hpcc/runtime"
	"hpcc/runtime/runconf"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/unpack"
)

func submitCommand() *cli.Command {
	return &cli.Command{
		Name: "submit", Usage: "submit a job", ArgsUsage: jobUsage,
		Description: `Submits CMD in IMAGE to the scheduler of this machine, or to another target. Prints the job's ID.
Every task leaves a record, which "hpcc status" reads.

   hpcc submit --array 1-8 sci -- python main.py --id={task}
   hpcc submit --to local --wait --array 1-8 sci -- python main.py --id={task}
   hpcc submit -N 2 --tasks-per-node 4 --time 2h sci -- python mpi.py
   hpcc submit --interactive --gpus 1 sci -- bash
   hpcc submit --dry-run -N 4 --time 2h sci -- python mpi.py

The program finds its index in HPCC_TASK_ID and as {task} in CMD, and the number of tasks in
HPCC_TASK_COUNT. Exit status with --wait: 1 if a task failed.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "wait for the job; exit with 1 if a task failed"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show where and when the job would start, and exit"},
			&cli.BoolFlag{Name: "explain", Usage: "print the job and what its program would see, and exit"},
		}, jobFlags(), inSection(scheduleSection,
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "backfill", Usage: "shorten --time to fit into idle slots"},
			&cli.StringFlag{Name: "time-min", Usage: "with --backfill: keep at least `TIME` (default: a quarter of --time)"},
		)),
		Action: action(parseSubmit),
	}
}

type submitArgs struct {
	*jobArgs
	write      bool // --write: checked before the job starts
	wait, json bool
	record     bool // print the record, for hpcc on another machine
	backfill   bool
	explain    bool
	timeMin    time.Duration // the shortest limit that --backfill may choose; 0 for a quarter of --time
}

func parseSubmit(c *cli.Context) (verb, error) {
	choices, err := parseSiteChoices(c)
	if err != nil {
		return nil, err
	}
	if len(choices) > 1 {
		return parseSeveral(c, choices)
	}
	return parseSubmitTo(c, choices[0])
}

func parseSubmitTo(c *cli.Context, at siteChoice) (*submitArgs, error) {
	j, err := parseJob(c, at)
	if err != nil {
		return nil, err
	}
	a := &submitArgs{jobArgs: j, write: c.Bool("write"), wait: c.Bool("wait"), json: c.Bool("json"), record: c.Bool("record"), backfill: c.Bool("backfill"), explain: c.Bool("explain")}
	if a.explain {
		a.known = &sources{}
	}
	if s := c.String("time-min"); s != "" && a.backfill {
		if a.timeMin, err = quantity.ParseTime(s); err != nil {
			return nil, text.Usagef("--time-min: %w", err)
		}
	}
	return a, nil
}

func (a *submitArgs) run(ctx context.Context) error {
	j, to, err := a.prepare(ctx)
	switch {
	case err != nil:
		return err
	case a.explain:
		return a.explainJob(ctx, j, to)
	case a.dryRun:
		return a.reportFit(ctx, j, to)
	case j.Interactive && to.remote != nil:
		return interactRemote(ctx, j, to)
	case j.Interactive:
		s, err := store.Open(a.store)
		if err != nil {
			return err
		}
		return interactive(ctx, s.Jobs(), j, to.Cluster)
	}
	sub, err := a.send(ctx, j, to)
	if err != nil || !a.wait {
		return err
	}
	return a.await(ctx, sub, to)
}

// prepare completes and checks the job, unpacks its image or sends it to the site, and does all
// else that comes before the submission.
func (a *submitArgs) prepare(ctx context.Context) (*job.Job, *destination, error) {
	j, to, err := a.resolve(ctx)
	if err != nil {
		return nil, nil, err
	}
	if to.remote != nil {
		return j, to, a.prepareRemote(ctx, j, to)
	}
	if err := pinCluster(ctx, to); err != nil {
		return nil, nil, err
	}
	if err := a.fitTime(ctx, j, to.Cluster); err != nil {
		return nil, nil, err
	}
	s, err := store.Open(a.store)
	if err != nil {
		return nil, nil, err
	}
	// Unpack the image now, or else every node would unpack it at the same time.
	if j.Image != "" && !namesSquashFS(j.Image) && !to.Target.Pods() && !to.imageFollows {
		at := rootArgs{image: j.ExactImage(), store: a.store, write: a.write}
		dir, err := at.imageDir(ctx)
		if err == nil {
			err = a.checkProgram(dir, j)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	j.After, err = nativeIDs(ctx, s.Jobs(), j.After)
	return j, to, err
}

// waitFor waits for the end of a job and returns an error if it did not succeed.
func waitFor(ctx context.Context, st *store.Store, s *dispatch.Submission) error {
	if err := waitEnd(ctx, st, s); err != nil {
		return err
	}
	return verdict(ctx, st.Jobs(), s.ID)
}

// waitEnd waits for the end of a job.
func waitEnd(ctx context.Context, st *store.Store, s *dispatch.Submission) error {
	lock := func(ctx context.Context) func() { return lockJob(ctx, st, s.ID) }
	return s.Wait(ctx, st.Jobs(), lock, func(text string) { say("%s", text) })
}

// programFlags are the flags that can change which program a name means.
var programFlags = []string{"from", "workflow", "entrypoint", "set-env", "set-env0", "unset-env", "clean-env", "bind", "mount", "device", "mpi", "gpu", "ray"}

// checkProgram refuses a job whose program is not in the image's PATH, because every task would
// fail. It skips jobs whose program depends on flags, on run.conf or on an ENTRYPOINT.
func (a *submitArgs) checkProgram(dir string, j *job.Job) error {
	argv := j.Args
	for _, name := range programFlags {
		if a.set[name] {
			return nil
		}
	}
	if lines, err := runconf.Read(); len(argv) == 0 || strings.ContainsAny(argv[0], "/{") || (!a.set["no-config"] && (err != nil || len(lines) > 0)) {
		return nil
	}
	img, err := runtime.ReadImage(dir, unpack.ConfigFile)
	if err != nil || len(img.Config.Entrypoint) > 0 {
		return nil // the run reports the error
	}
	vars, err := envfile.Apply(img.Config.Env, a.env.list, false)
	path := cmp.Or(envfile.Lookup(vars, "PATH"), runtime.StandardPath)
	if err != nil || strings.Contains(path, "{") {
		return nil
	}
	home := os.Getenv("HOME") + "/"
	var dirs []string
	for _, d := range filepath.SplitList(path) {
		inside, err := securejoin.SecureJoin(dir, filepath.Join(d, argv[0]))
		if err != nil {
			return nil
		}
		if _, err := os.Stat(inside); err == nil {
			return nil
		}
		if _, err := os.Stat(filepath.Join(d, argv[0])); err == nil && strings.HasPrefix(d, home) { // the home directory is bound
			return nil
		}
		dirs = append(dirs, filepath.Dir(inside))
	}
	image := cmp.Or(a.image, j.Image)
	m := text.Usagef("image %s has no program %q in its PATH (%s)", image, argv[0], path)
	if like := text.NearestEntry(argv[0], dirs...); like != "" {
		return m.Hint("did you mean %q?", like)
	}
	return m.Hint("the program comes after IMAGE: hpcc %s %s -- CMD", a.verb, image)
}

// fitTime shortens the job's time limit to a free window, with --backfill.
func (a *submitArgs) fitTime(ctx context.Context, j *job.Job, to dispatch.Cluster) error {
	if !a.backfill {
		if a.set["time-min"] {
			return text.Usagef("--time-min needs --backfill").Hint("to pass it to Slurm, write --native --time-min=1:00:00")
		}
		return nil
	}
	notes, err := dispatch.Backfill(to.Within(ctx), j, to.Target, a.timeMin)
	if err != nil {
		return fmt.Errorf("--backfill: %w", err)
	}
	for _, n := range notes {
		say("backfill: %s", n)
	}
	return nil
}

// reportFit is send for --dry-run: it prints where and when the job would start.
func (a *submitArgs) reportFit(ctx context.Context, j *job.Job, to *destination) error {
	if to.remote != nil {
		return a.reportRemoteFit(ctx, j, to)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	f, err := dispatch.Fits(ctx, s.Jobs(), j, to.Cluster)
	if err != nil {
		return readOnlyHint(err, s.Jobs(), storeHint)
	}
	return printFit(f, a.json)
}

// storeHint is the hint for a job whose records cannot be written.
const storeHint = "jobs keep their records in the store; set HPCC_STORE to a directory that you can write to"

// manyFiles is the number of tasks above which submit warns about their output files.
const manyFiles = 100

// printSubmitted prints the ID of a submitted job.
func (a *submitArgs) printSubmitted(sub *dispatch.Submission, where string) error {
	var err error
	switch {
	case a.record:
		return json.NewEncoder(os.Stdout).Encode(sub.Redacted())
	case a.json:
		answer := withImage(map[string]any{"type": "job", "id": sub.ID, "native": sub.Native, "target": sub.Target, "tasks": sub.Job.Count()}, sub.Job)
		if sub.Site != "" {
			answer["site"] = sub.Site
		}
		err = json.NewEncoder(os.Stdout).Encode(answer)
	default:
		_, err = fmt.Println(sub.ID)
	}
	if sub.Job.Workflow != nil {
		say("submitted workflow %s to %s; \"hpcc status %s\" shows its state", sub.Native, where, sub.ID)
	} else if n := sub.Job.Count(); sub.Target == job.Local && sub.Site == "" && n > manyFiles && sub.Job.Output == "" && !sub.Job.Packed() {
		say("each of the %d tasks writes a file to %s; \"--output logs/{task}.out\" writes them to a subdirectory", n, sub.Job.Dir)
	} else if sub.Target != job.Local || sub.Site != "" {
		say("submitted job %s to %s, %s; \"hpcc status %s\" shows its state", sub.Native, where, text.Count(sub.Job.Count(), "task", "tasks"), sub.ID)
	}
	return err
}

// withImage adds the image of a job to an object.
func withImage(object map[string]any, j *job.Job) map[string]any {
	for name, value := range map[string]string{"image": j.Image, "image_digest": j.ImageDigest, "image_file": j.ImageFile} {
		if value != "" {
			object[name] = value
		}
	}
	return object
}

// verdict returns an error if a job that has ended did not succeed.
func verdict(ctx context.Context, dir, id string) error {
	list, warnings, err := dispatch.Statuses(ctx, dir, []string{id})
	if err != nil {
		return err
	}
	warn(warnings)
	st := list[0]
	if st.Done == st.Total {
		return nil
	}
	line := fmt.Sprintf("%d of %s did not succeed", st.Total-st.Done, text.Count(st.Total, "task", "tasks"))
	if st.Stopped > 0 {
		line += fmt.Sprintf(", %d of them because the job was cancelled", st.Stopped)
	}
	if n := len(st.Failed); n > 0 {
		line += ": " + indices(st.Failed)
		for _, t := range st.Tasks {
			if !t.OK() && t.Part != nil {
				return text.Hint(fmt.Errorf("job %s: %s", id, line), "hpcc logs %s %d shows the output of task %d", id, t.Index, t.Index)
			}
			if !t.OK() && t.Output != "" {
				return text.Hint(fmt.Errorf("job %s: %s", id, line), "see the output of task %d in %s", t.Index, t.Output)
			}
		}
	}
	return fmt.Errorf("job %s: %s", id, line)
}

// indices lists a few task indices.
func indices(list []int) string {
	const most = 20
	text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list[:min(len(list), most)])), ","), "[]")
	if len(list) > most {
		text += ",…"
	}
	return text
}

// nativeIDs converts IDs of hpcc to the IDs of the scheduler. It keeps numbers, which are already
// IDs of the scheduler.
func nativeIDs(ctx context.Context, dir string, ids []string) ([]string, error) {
	var out []string
	for _, id := range ids {
		if strings.Trim(id, "0123456789") == "" {
			out = append(out, id)
			continue
		}
		list, _, err := dispatch.Statuses(ctx, dir, []string{id})
		if err != nil {
			return nil, err
		}
		for _, st := range list {
			out = append(out, st.Native)
		}
	}
	return out, nil
}

// interactive runs the script that "hpcc script --interactive" prints on this terminal, and ends
// with the program's status. It removes the record of a job that the scheduler refused.
func interactive(ctx context.Context, dir string, j *job.Job, to dispatch.Cluster) error {
	sub, script, notes, err := dispatch.Interact(ctx, dir, j, to)
	if err != nil {
		return readOnlyHint(err, dir, storeHint)
	}
	sayNotes(notes)
	cmd := exec.Command("bash", script, sub.ID)
	cmd.Env = to.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	run, err := metrics.Measure(ctx, cmd, metrics.Options{})
	home := filepath.Dir(script)
	tasks, terr := readTasks(home)
	if err == nil {
		err = terr
	}
	if err == nil && len(tasks) == 0 {
		err = os.RemoveAll(home)
	}
	if err != nil {
		return fmt.Errorf("running an interactive job: %w", err)
	}
	return exitStatus(run.Status())
}

// sayNotes prints notes to standard error.
func sayNotes(notes []string) {
	for _, n := range notes {
		say("note: %s", n)
	}
}

// parseRepeated returns the values of a flag that may be given several times, or once.
func parseRepeated(c *cli.Context, name string) []string {
	switch v := c.Value(name).(type) {
	case string:
		if v != "" {
			return []string{v}
		}
	case cli.StringSlice:
		return v.Value()
	}
	return nil
}

// parseSiteChoices reads --to and --on of a job: one choice, or one for each of several targets
// or sites.
func parseSiteChoices(c *cli.Context) (list []siteChoice, err error) {
	targets, sites := parseRepeated(c, "to"), parseRepeated(c, "on")
	if len(targets) <= 1 && len(sites) <= 1 {
		w, err := newSiteChoice(strings.Join(sites, ""), strings.Join(targets, ""))
		return []siteChoice{w}, err
	}
	if len(targets) > 0 && len(sites) > 0 {
		return nil, text.Usagef("--to and --on cannot be combined for several targets").Hint("name only sites, --on A --on B, or only targets, --to A --to B")
	}
	for _, name := range slices.Concat(targets, sites) {
		w := siteChoice{on: name}
		if len(targets) > 0 {
			if w, err = newSiteChoice("", name); err != nil {
				return nil, err
			}
		}
		if slices.Contains(list, w) {
			return nil, text.Usagef("%s is named twice", name).Hint("name each target once; --array runs a program several times on one target")
		}
		list = append(list, w)
	}
	return list, nil
}

// String returns the choice for messages.
func (w siteChoice) String() string {
	if w.on != "" {
		return w.on
	}
	return string(w.to)
}

// target returns the target according to the choice itself and the site files; "" if it must be detected.
func (w siteChoice) target() job.Target {
	if site, err := w.site(); err == nil && w.to == "" {
		return site.Scheduler
	}
	return w.to
}

// submitSeveral submits one job to several targets.
type submitSeveral []*submitArgs

// parseSeveral parses the same command line for each target.
func parseSeveral(c *cli.Context, choices []siteChoice) (verb, error) {
	for _, name := range []string{"interactive", "after", "workflow", "job"} {
		if c.IsSet(name) {
			return nil, text.Usagef("--%s applies to one target, but the job goes to %d", name, len(choices)).Hint("submit the job to each target by itself")
		}
	}
	var list submitSeveral
	for _, w := range choices {
		a, err := parseSubmitTo(c, w)
		if err != nil {
			return nil, err
		}
		a.targetChoices = choices
		list = append(list, a)
	}
	return list, nil
}

// run submits the job to all targets, after it has checked the job for each of them. If one
// refuses the job later, the others keep theirs.
func (list submitSeveral) run(ctx context.Context) error {
	jobs, to := make([]*job.Job, len(list)), make([]*destination, len(list))
	for i, a := range list {
		var err error
		if jobs[i], to[i], err = a.prepare(ctx); err == nil && to[i].remote == nil {
			err = to[i].Check(ctx, jobs[i])
		}
		if err != nil {
			return atTarget(err, "checking the job for", a.at)
		}
	}
	if list[0].explain {
		for i, a := range list {
			if err := a.explainJob(ctx, jobs[i], to[i]); err != nil {
				return atTarget(err, "explaining the job for", a.at)
			}
		}
		return nil
	}
	if list[0].dryRun {
		return list.reportFits(ctx, jobs, to)
	}
	var failed []error
	sent := make([]*dispatch.Submission, len(list))
	var ids, named []string
	for i, a := range list {
		sub, err := a.send(ctx, jobs[i], to[i])
		if err != nil {
			failed = append(failed, atTarget(err, "submitting to", a.at))
		}
		if sub != nil {
			sent[i], ids, named = sub, append(ids, sub.ID), append(named, a.at.String()+"="+sub.ID)
		}
	}
	if len(failed) > 0 {
		return partly(failed, ids, len(list))
	}
	say("\"hpcc report %s\" compares their runs", text.Arguments(named))
	return list.wait(ctx, sent, to)
}

// reportFits prints where and when the job would start at each target.
func (list submitSeveral) reportFits(ctx context.Context, jobs []*job.Job, to []*destination) error {
	var failed []error
	var never exitStatus
	for i, a := range list {
		say("%s:", a.at)
		if err := a.reportFit(ctx, jobs[i], to[i]); err != nil && !errors.As(err, &never) {
			failed = append(failed, atTarget(err, "submitting to", a.at))
		}
	}
	if len(failed) == 0 && never != 0 {
		return never
	}
	return errors.Join(failed...)
}

// partly returns the error of a job that some targets have not taken. ids are the submitted jobs.
func partly(failed []error, ids []string, total int) error {
	if len(ids) == 0 {
		return errors.Join(failed...)
	}
	m := &text.Error{Err: fmt.Errorf("the job was submitted to %d of %d targets: %w", len(ids), total, errors.Join(failed...))}
	return m.Hint("submit it again with --to or --on of the others only, or end the submitted jobs with hpcc cancel %s", strings.Join(ids, " "))
}

// wait waits for all jobs with --wait. It returns the errors of those that did not succeed.
func (list submitSeveral) wait(ctx context.Context, sent []*dispatch.Submission, to []*destination) error {
	var failed []error
	for i, a := range list {
		if !a.wait {
			continue
		}
		if err := a.await(ctx, sent[i], to[i]); err != nil {
			failed = append(failed, atTarget(err, "waiting for", a.at))
		}
	}
	return errors.Join(failed...)
}

// atTarget adds the target to an error, and keeps its hint and status.
func atTarget(err error, doing string, at siteChoice) error {
	wrapped := &text.Error{Err: fmt.Errorf("%s %s: %w", doing, at, err)}
	if m := (*text.Error)(nil); errors.As(err, &m) {
		wrapped.Advice, wrapped.Status = m.Advice, m.Status
	}
	return wrapped
}

// send submits a prepared job, and prints its ID.
func (a *submitArgs) send(ctx context.Context, j *job.Job, to *destination) (*dispatch.Submission, error) {
	if to.remote != nil {
		return a.sendRemote(ctx, j, to)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return nil, err
	}
	sub, notes, err := dispatch.Submit(ctx, s.Jobs(), j, to.Cluster)
	if err != nil {
		return nil, readOnlyHint(err, s.Jobs(), storeHint)
	}
	sayNotes(notes)
	return sub, a.printSubmitted(sub, to.String())
}

// await waits for the end of a submitted job, and returns an error if it did not succeed.
func (a *submitArgs) await(ctx context.Context, sub *dispatch.Submission, to *destination) error {
	if to.remote != nil {
		return passOn(ctx, to.site, "wait", sub.ID)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	return waitFor(ctx, s, sub)
}

// codeDir is the directory of --with-code in images without a working directory.
const codeDir = "/code"

// fillCode adds the files of --with-code to the job. cfg is the configuration of the
// image, or nil if this machine does not have it.
func (a *jobArgs) fillCode(ctx context.Context, j *job.Job, to *destination, cfg *v1.ConfigFile) error {
	dir := a.inPod.withCode
	if dir == "" {
		return nil
	}
	if to.remote != nil || a.inPod.built {
		return text.Usagef("--with-code: only for jobs that this machine submits, with an image of a registry")
	}
	d, err := code.Read(dir, secretFiles("")...)
	if err != nil {
		return text.Usagef("--with-code %w", err)
	}
	defer d.Close()
	at, own := j.Pod.Dir, false // own: hpcc chose the directory
	if at == "" && cfg != nil && cfg.Config.WorkingDir != "/" {
		at = path.Clean("/" + cfg.Config.WorkingDir)
	}
	if at == "" || at == "/" {
		at, own = codeDir, true
	}
	for _, m := range append([]job.Volume{{Path: "/tmp"}}, j.Pod.Volumes...) {
		if at == m.Path || strings.HasPrefix(at, m.Path+"/") {
			return text.Usagef("--with-code: the directory %s is on a volume, which would hide the files", at).Hint("name another one with --cd DIR")
		}
	}
	j.Pod.Dir = at
	if d.FitsMap() && to.Target != job.Argo && !j.Interactive {
		j.Pod.CodeEmpty = own
		return keepCode(a.store, j, d)
	}
	return a.pushCode(ctx, j, d, cfg != nil, own || a.set["cd"])
}

// keepCode stores the files for a config map next to the records of jobs: reruns need them too.
func keepCode(dir string, j *job.Job, d *code.Directory) error {
	var b bytes.Buffer
	if err := d.Write(&b, "", false); err != nil {
		return err
	}
	s, err := store.Open(dir)
	if err != nil {
		return err
	}
	j.Pod.CodeFiles = d.Modes()
	j.Pod.CodeFile, err = job.KeepFile(s.Jobs(), "code.tar", b.Bytes())
	return err
}

// pushCode pushes the image with the files as its last layer, at the working directory of the pods.
// known: this machine has the image.
func (a *jobArgs) pushCode(ctx context.Context, j *job.Job, d *code.Directory, known, withDir bool) error {
	switch {
	case !known:
		return text.Hint(fmt.Errorf("--with-code %s: image %s is not in the store, and the files (%s) are too many or too large for a config map", d.Dir, j.Image, text.Size(d.Bytes)), "fetch the image with \"hpcc pull %s\", and submit again", j.Image)
	case a.verb != "submit":
		return text.Usagef("--with-code %s: these files (%s) need an image layer, which only \"hpcc submit\" pushes", d.Dir, text.Size(d.Bytes))
	case j.Pod.Pull == "Never":
		return text.Usagef("--with-code %s: these files (%s) need an image layer, and --pull never forbids pulling it", d.Dir, text.Size(d.Bytes))
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	base, err := s.Get(j.Image, nil)
	if err != nil {
		return err
	}
	img, err := d.Layer(ctx, s, base, j.Pod.Dir, withDir)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	repository, _, _ := strings.Cut(cmp.Or(j.Pod.Image, j.Image), "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	j.Pod.Image = store.ByDigest(repository, digest)
	if config, err := img.ConfigName(); err == nil && j.Measure {
		j.Pod.Measurer.Config, j.Pod.Measurer.Digest = config.String(), digest.String()
	}
	if a.dryRun {
		say("note: hpcc submit pushes %s as a layer of %s first", d.Dir, j.Pod.Image)
		return nil
	}
	bar := terminal.NewBar("pushing " + d.Dir)
	err = s.Send(ctx, img, repository+":code-"+digest.Hex[:12], store.Remote{Progress: bar.Bytes})
	bar.End()
	if err != nil {
		advice, _ := adviceFor(err)
		return text.Hint(fmt.Errorf("--with-code %s: %w", d.Dir, err), "%s; or make the directory smaller with .dockerignore: a config map holds %d files of %s", cmp.Or(advice, "repeat the command"), code.MaxMapFiles, text.Size(code.MaxMapBytes))
	}
	say("pushed %s as a layer of %s", d.Dir, j.Pod.Image)
	return nil
}
