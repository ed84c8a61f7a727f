package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/job"
	"hpcc/job/argo"
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

// argoArgs say where the Argo server is, and what only its workflows have.
type argoArgs struct {
	server, tokenFile, caFile string
	unverified                bool
	workflow                  string // a file, or template/NAME
	parameters                []string
	object                    string // --params of a workflow: JSON, or a file of it
	artifacts                 []job.Artifact
	debug                     bool // programs wait for a debugger
}

func parseArgo(c *cli.Context) (argoArgs, error) {
	artifacts, err := parseEach(c, "artifact", job.ParseArtifact)
	return argoArgs{server: c.String("server"), tokenFile: c.String("token-file"), caFile: c.String("ca-file"), unverified: c.Bool("insecure-skip-verify"),
		workflow: c.String("workflow"), parameters: c.StringSlice("parameter"), object: c.String("params"), artifacts: artifacts, debug: c.Bool("debug")}, err
}

// setServer records in the destination where Argo is, and refuses flags for Argo alone
// where the job goes to another target.
func (a *jobArgs) setServer(to *destination) error {
	if to.Target != job.Argo {
		for _, name := range []string{"workflow", "parameter", "artifact"} {
			if a.set[name] {
				return usagef("--%s is for argo, and the job goes to %s", name, to.Target).hint("say --to argo")
			}
		}
		return nil
	}
	files := []string{a.argo.tokenFile, a.argo.caFile} // "hpcc status" reads them again, from any directory
	for i, f := range files {
		var err error
		if f == "" {
			continue
		}
		if files[i], err = filepath.Abs(f); err != nil {
			return err
		}
	}
	unverified := ""
	if a.argo.unverified {
		unverified = "true"
	}
	to.setEnv(argo.ServerVariable, a.argo.server)
	to.setEnv(argo.TokenFileVariable, files[0])
	to.setEnv(argo.CAFileVariable, files[1])
	to.setEnv(argo.UnverifiedVariable, unverified)
	to.setEnv(argo.SecureVariable, os.Getenv(argo.SecureVariable))
	if to.Env[argo.ServerVariable] != "" && to.Env[kube.NamespaceVariable] == "" {
		to.setEnv(kube.NamespaceVariable, cmp.Or(os.Getenv("ARGO_NAMESPACE"), "default"))
	}
	return nil
}

// pinCluster records which cluster kubectl speaks to, where kubectl submits the job.
func pinCluster(ctx context.Context, to *destination) error {
	if !to.Target.Pods() || to.Env[argo.ServerVariable] != "" {
		return nil
	}
	return to.PinKube(ctx)
}

// checkWorkflow refuses what cannot be used with --workflow, and sends it to Argo.
func (a *jobArgs) checkWorkflow(arguments int) error {
	if arguments > 0 || a.set["from"] {
		return usagef("--workflow names all that runs; an image, a program and --from have no place beside it")
	}
	if a.job.Measure {
		return usagef("--measure: who wrote the workflow says what its pods run").hint("command: [%s, entry, --measure, --, …] in a template, of an image of \"hpcc build --entry\"", build.EntryFile)
	}
	if !a.set["to"] && !a.set["on"] {
		a.at.to = job.Argo
	}
	return nil
}

// resolveWorkflow is resolve with --workflow.
func (a *jobArgs) resolveWorkflow(ctx context.Context) (*job.Job, *destination, error) {
	to, err := a.destination(ctx)
	if err != nil {
		return nil, nil, err
	}
	if to.remote != nil {
		return nil, nil, usagef("--workflow: workflows are handed in from this machine, not by site %s", to.Site)
	}
	a.inPod.setContext(to)
	if err := a.setServer(to); err != nil {
		return nil, nil, err
	}
	w, err := a.openWorkflow(ctx, to)
	if err != nil {
		return nil, nil, err
	}
	j := &a.job
	if j.Workflow, err = w.Record(); err != nil {
		return nil, nil, err
	}
	j.Name, j.Pod = cmp.Or(j.Name, w.JobName()), job.Pod{Ports: w.Ports()}
	if j.Dir, err = filepath.Abs(cmp.Or(a.chdir, to.site.Dir)); err != nil {
		return nil, nil, err
	}
	return j, to, fillProgram(j, a.store, to.site)
}

// openWorkflow reads the workflow and fills in its parameters.
func (a *jobArgs) openWorkflow(ctx context.Context, to *destination) (*argo.File, error) {
	object, file := a.argo.object, a.argo.workflow
	if object != "" && !strings.HasPrefix(strings.TrimSpace(object), "{") {
		b, err := readBounded(object)
		if err != nil {
			return nil, usagef("--params: %w", err).hint(`write --params '{"batch_size": 2}', or name a file with such an object`)
		}
		object = string(b)
	}
	given, err := argo.ParseParameters(object, a.argo.parameters)
	if err != nil {
		return nil, usagef("%w", err)
	}
	var w *argo.File
	if name, ok := strings.CutPrefix(file, "template/"); ok {
		w, err = argo.Template(to.Within(ctx), name)
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
		if have := a.inPod.namespace; have != "" && have != n {
			return nil, usagef("--namespace %s: %s says namespace %s", have, file, n).hint("take one of them away")
		}
		to.setEnv(kube.NamespaceVariable, n)
	}
	if a.argo.debug {
		steps, err := w.Debug()
		if err != nil {
			return nil, err
		}
		noteDebug("the steps of " + strings.Join(steps, ", ") + " wait")
	}
	return w, nil
}

func noteDebug(who string) {
	say("note: %s for a debugger: \"hpcc forward JOB %s\" brings its port here, and the image needs debugpy", who, job.DebugPort.Name)
}

// fillDebug has the job's program wait for a debugger.
func (a *jobArgs) fillDebug(j *job.Job, to *destination) error {
	if !a.argo.debug {
		return nil
	}
	if !to.Target.Pods() {
		return usagef("--debug is for kubernetes, openshift and argo, and the job goes to %s", to.Target).hint("\"hpcc attach\" enters a task that runs")
	}
	if err := j.Debug(); err != nil {
		return usagef("--debug: %w", err)
	}
	noteDebug("the program waits")
	return nil
}

// readSteps makes one workflow of several scripts.
func (a *jobArgs) readSteps(flags *job.Job, to *destination) (*job.Job, error) {
	files := a.from.files
	if to.Target != job.Argo {
		return nil, usagef("--from names %d scripts, and only argo makes one job of several", len(files)).hint("say --to argo, or hand them in one by one with --after")
	}
	var list []*translate.Translation
	var names []string
	for _, file := range files {
		tr, _, err := a.translate(file, to)
		if err != nil {
			return nil, err
		}
		names = append(names, tr.Job.Name)
		list = append(list, tr)
	}
	before := map[string][]string{}
	for _, after := range flags.After {
		step, other, _ := strings.Cut(after, ":")
		if other == "" || strings.Contains(other, ":") || !slices.Contains(names, step) {
			return nil, usagef("--after %s: of several scripts, say which waits for which", after).hint("--after STEP:OTHER, of %s", strings.Join(names, ", "))
		}
		before[step] = append(before[step], other)
	}
	var steps []*job.Job
	for i, tr := range list {
		tr.Among(names)
		a.overrule(tr, flags, "name", "after")
		tr.Job.After = append(tr.Job.After, before[tr.Job.Name]...)
		say("%s:", files[i])
		j, err := a.fit(tr, flags, to, files[i])
		if err != nil {
			return nil, err
		}
		steps = append(steps, j)
	}
	return job.NewSteps(cmp.Or(flags.Name, names[0]), steps, a.argo.artifacts)
}
