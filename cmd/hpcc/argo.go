package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/dispatch"
	"hpcc/job/kube"
	"hpcc/job/translate"
)

// argoFlags say where Argo is, and what only its workflows have.
func argoFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "server", EnvVars: []string{argo.ServerVariable}, Usage: "hand workflows to the Argo server at `URL`, with the token in $ARGO_TOKEN (default: by kubectl)"},
		&cli.StringFlag{Name: "token-file", EnvVars: []string{argo.TokenFileVariable}, Usage: "read the token for the Argo server from `FILE`"},
		&cli.StringFlag{Name: "ca-file", EnvVars: []string{argo.CAFileVariable}, Usage: "trust the certificates in `FILE` as well, for the Argo server"},
		&cli.BoolFlag{Name: "insecure-skip-verify", EnvVars: []string{argo.UnverifiedVariable}, Usage: "take any certificate of the Argo server: whoever stands between reads the token"},
		&cli.StringFlag{Name: "workflow", Usage: "run the workflow of Argo in `FILE`, or, as template/NAME, a template that the cluster has"},
		&cli.StringSliceFlag{Name: "parameter", Usage: "set a parameter of the workflow: `NAME=VALUE` (repeatable); --params takes an object of JSON"},
		&cli.StringSliceFlag{Name: "artifact", Usage: "keep file or directory PATH that step STEP leaves, for those that come after it: `[STEP/]NAME:PATH` (repeatable)"},
		&cli.BoolFlag{Name: "debug", Usage: "have a Python program in a pod wait for a debugger (debugpy) on port debug, which \"hpcc forward JOB debug\" brings here"},
	}
}

// readArgo notes where Argo is, and refuses flags that are for it alone.
func readArgo(c *cli.Context, to *destination) error {
	if to.Target != job.Argo {
		for _, name := range []string{"workflow", "parameter", "artifact"} {
			if c.IsSet(name) {
				return usagef("--%s is for argo, and the job goes to %s", name, to.Target).hint("say --to argo")
			}
		}
		return nil
	}
	for _, f := range []struct{ flag, name string }{{"server", argo.ServerVariable}, {"token-file", argo.TokenFileVariable}, {"ca-file", argo.CAFileVariable}} {
		v := c.String(f.flag)
		if v == "" {
			continue
		}
		if f.flag != "server" { // it is read again from wherever "hpcc status" is called
			var err error
			if v, err = filepath.Abs(v); err != nil {
				return err
			}
		}
		to.Env = withVariable(to.Env, f.name, v)
	}
	if c.Bool("insecure-skip-verify") {
		to.Env = withVariable(to.Env, argo.UnverifiedVariable, "true")
	}
	if v := os.Getenv(argo.SecureVariable); v != "" {
		to.Env = withVariable(to.Env, argo.SecureVariable, v)
	}
	if to.Env[argo.ServerVariable] != "" && to.Env[kube.NamespaceVariable] == "" {
		to.Env = withVariable(to.Env, kube.NamespaceVariable, cmp.Or(os.Getenv("ARGO_NAMESPACE"), "default"))
	}
	return nil
}

// pinPods writes down which cluster kubectl speaks to, where it is what speaks.
func pinPods(c *cli.Context, to *destination) error {
	if !to.Target.Pods() || to.Env[argo.ServerVariable] != "" {
		return nil
	}
	return to.Pin(c.Context)
}

// readWorkflow makes a job of --workflow.
func readWorkflow(c *cli.Context) (*job.Job, *destination, error) {
	if c.NArg() > 0 || c.IsSet("from") {
		return nil, nil, usagef("--workflow names all that runs; an image, a program and --from have no place beside it")
	}
	if c.Bool("measure") {
		return nil, nil, usagef("--measure: who wrote the workflow says what its pods run").hint("command: [%s, entry, --measure, --, …] in a template, of an image of \"hpcc build --entry\"", build.EntryFile)
	}
	if !c.IsSet("to") && !c.IsSet("on") {
		if err := c.Set("to", string(job.Argo)); err != nil {
			return nil, nil, err
		}
	}
	to, err := destinationOf(c)
	if err != nil {
		return nil, nil, err
	}
	if to.there != nil {
		return nil, nil, usagef("--workflow: workflows are handed in from this machine, not by site %s", to.Site)
	}
	for _, v := range []struct{ flag, name string }{{"context", kube.ContextVariable}, {"namespace", kube.NamespaceVariable}} {
		if s := c.String(v.flag); s != "" {
			to.Env = withVariable(to.Env, v.name, s)
		}
	}
	if err := readArgo(c, to); err != nil {
		return nil, nil, err
	}
	w, err := openWorkflow(c, to)
	if err != nil {
		return nil, nil, err
	}
	record, err := w.Record()
	if err != nil {
		return nil, nil, err
	}
	j := &job.Job{Name: cmp.Or(c.String("name"), w.JobName()), Workflow: record, Output: c.String("output"), Pod: job.Pod{Ports: w.Ports()}}
	if j.Dir, err = filepath.Abs(cmp.Or(c.String("chdir"), to.site.Dir)); err != nil {
		return nil, nil, err
	}
	return j, to, jobProgram(c, j, to.site)
}

// openWorkflow reads the workflow and fills in its parameters.
func openWorkflow(c *cli.Context, to *destination) (*argo.File, error) {
	object := c.String("params")
	if object != "" && !strings.HasPrefix(strings.TrimSpace(object), "{") {
		b, err := readBounded(object)
		if err != nil {
			return nil, usagef("--params: %w", err).hint(`write --params '{"batch_size": 2}', or name a file with such an object`)
		}
		object = string(b)
	}
	given, err := argo.ParseParameters(object, c.StringSlice("parameter"))
	if err != nil {
		return nil, usagef("%w", err)
	}
	var w *argo.File
	file := c.String("workflow")
	if name, ok := strings.CutPrefix(file, "template/"); ok {
		w, err = argo.Template(to.Within(c.Context), name)
	} else {
		text, rerr := readBounded(file)
		if rerr != nil {
			return nil, fmt.Errorf("--workflow: %w", rerr)
		}
		w, err = argo.Read(file, text)
	}
	if err == nil {
		err = w.Parameters(given)
	}
	if err != nil {
		return nil, err
	}
	if n := w.Namespace(); n != "" {
		if have := c.String("namespace"); have != "" && have != n {
			return nil, usagef("--namespace %s: %s says namespace %s", have, file, n).hint("take one of them away")
		}
		to.Env = withVariable(to.Env, kube.NamespaceVariable, n)
	}
	if c.Bool("debug") {
		steps, err := w.Debug()
		if err != nil {
			return nil, err
		}
		tellDebug("the steps of " + strings.Join(steps, ", ") + " wait")
	}
	return w, nil
}

func tellDebug(who string) {
	say("note: %s for a debugger: \"hpcc forward JOB %s\" brings its port here, and the image needs debugpy", who, job.DebugPort.Name)
}

// debugged has the job's program wait for a debugger.
func debugged(c *cli.Context, j *job.Job, to *destination) error {
	if !c.Bool("debug") {
		return nil
	}
	if !to.Target.Pods() {
		return usagef("--debug is for kubernetes, openshift and argo, and the job goes to %s", to.Target).hint("\"hpcc attach\" enters a task that runs")
	}
	if err := j.Debug(); err != nil {
		return usagef("--debug: %w", err)
	}
	tellDebug("the program waits")
	return nil
}

var stepAfter = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([^:]+):([^:]+)$`) })

// readSteps makes one workflow of several scripts.
func readSteps(c *cli.Context, flags *job.Job, to *destination) (*job.Job, error) {
	if to.Target != job.Argo {
		return nil, usagef("--from names %d scripts, and only argo makes one job of several", len(c.StringSlice("from"))).hint("say --to argo, or hand them in one by one with --after")
	}
	var list []*translate.Translation
	var names []string
	for _, file := range c.StringSlice("from") {
		tr, _, err := translated(c, file, to)
		if err != nil {
			return nil, err
		}
		names = append(names, tr.Job.Name)
		list = append(list, tr)
	}
	before := map[string][]string{}
	for _, a := range c.StringSlice("after") {
		m := stepAfter().FindStringSubmatch(a)
		if m == nil || !slices.Contains(names, m[1]) {
			return nil, usagef("--after %s: of several scripts, say which waits for which", a).hint("--after STEP:OTHER, of %s", strings.Join(names, ", "))
		}
		before[m[1]] = append(before[m[1]], m[2])
	}
	var steps []*job.Job
	for i, tr := range list {
		tr.Among(names)
		overrule(c, tr, flags, "name", "after")
		tr.Job.After = append(tr.Job.After, before[tr.Job.Name]...)
		say("%s:", c.StringSlice("from")[i])
		j, err := fitted(c, tr, flags, to, c.StringSlice("from")[i])
		if err != nil {
			return nil, err
		}
		steps = append(steps, j)
	}
	artifacts, err := artifactsOf(c)
	if err != nil {
		return nil, err
	}
	return job.NewSteps(cmp.Or(c.String("name"), names[0]), steps, artifacts)
}

// readArtifacts are those of one job.
func readArtifacts(c *cli.Context, j *job.Job) (err error) {
	if len(c.StringSlice("from")) > 1 {
		return nil // of which readSteps knows the names
	}
	if j.Artifacts, err = artifactsOf(c); err != nil {
		return err
	}
	for _, a := range j.Artifacts {
		if a.Step != "" {
			return usagef("--artifact %s/%s: there are no steps; one job leaves %s:%s", a.Step, a.Name, a.Name, a.Path)
		}
	}
	return nil
}

func artifactsOf(c *cli.Context) (list []job.Artifact, err error) {
	return list, parseEach(c, "artifact", &list, job.ParseArtifact)
}

// stepOf names the step of a task, in brackets; "" of a job without steps.
func stepOf(t *job.Task) string {
	if t.Step == "" {
		return ""
	}
	return " (" + t.Step + ")"
}

// stepLines shows every step of a workflow.
func stepLines(out io.Writer, st *dispatch.Status) {
	for _, t := range st.Tasks {
		took := ""
		if t.Ended() && !t.Start.IsZero() {
			took = "  " + t.End.Sub(t.Start).Round(time.Second).String()
		}
		again := ""
		if t.Attempt > 0 {
			again = fmt.Sprintf("  (attempt %d)", t.Attempt+1)
		}
		rowf(out, "step %d%s: %s%s%s\n", t.Index, stepOf(&t), goes(&t), took, again)
	}
}

// followSteps prints what all steps of a workflow write, as they do, each line behind the step's name.
func (l *taskLogs) followSteps(ctx context.Context) error {
	var lock sync.Mutex
	var g sync.WaitGroup
	defer g.Wait()
	begun := map[string]bool{}
	for {
		list, warnings, err := dispatch.Statuses(ctx, l.dir, []string{l.sub.ID})
		if err != nil {
			return err
		}
		warn(warnings)
		st := list[0]
		for _, t := range st.Tasks {
			if key := fmt.Sprint(t.Index, t.Attempt); !begun[key] {
				begun[key] = true
				g.Go(func() {
					w := &stepWriter{out: os.Stdout, lock: &lock, name: cmp.Or(t.Step, fmt.Sprint(t.Index))}
					if err := l.copyStep(ctx, &t, w); err != nil && ctx.Err() == nil {
						say("warning: %v", err)
					}
					w.flush()
				})
			}
		}
		if st.Running+st.Waiting == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * looks):
		}
	}
}

// copyStep prints what a step writes, or wrote.
func (l *taskLogs) copyStep(ctx context.Context, t *job.Task, w io.Writer) error {
	kept, err := l.sub.Follow(ctx, t, true, w)
	if kept || t.Output == "" {
		return err
	}
	f, err := os.Open(t.Output)
	if err != nil {
		return fmt.Errorf("showing the output of step %s: %w", t.Step, err)
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// A stepWriter puts a name before each line, and writes whole lines.
type stepWriter struct {
	out  io.Writer
	lock *sync.Mutex // of out
	name string
	rest []byte
}

// maxLine is what of a line is held back for its end, in bytes.
const maxLine = 64 << 10

func (w *stepWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := slices.Index(w.rest, '\n')
		if i < 0 && len(w.rest) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		if err := w.line(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = w.rest[i+1:]
	}
}

func (w *stepWriter) line(text []byte) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	_, err := fmt.Fprintf(w.out, "%s: %s", w.name, text)
	return err
}

func (w *stepWriter) flush() {
	if len(w.rest) > 0 {
		_ = w.line(append(w.rest, '\n'))
	}
}
