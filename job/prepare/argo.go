package prepare

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/dispatch"
	"hpcc/job/kube"
	"hpcc/text"
)

// Argo holds the flags for the Argo server and for features of its workflows.
type Argo struct {
	Server, TokenFile, CAFile string
	Unverified                bool   // do not verify the server's certificate
	Workflow                  string // a file, or template/NAME
	Parameters                []string
	Object                    string // parameters of a workflow: a JSON object, or a file with one
	Artifacts                 []job.Artifact
	Debug                     bool // let programs wait for a debugger
}

// usesServer reports whether the jobs of a cluster go to an Argo server, not through kubectl.
func usesServer(c dispatch.Cluster) bool { return c.Env[argo.ServerVariable] != "" }

// setServer records the Argo server in the destination. For another target it refuses flags of Argo.
func (r *Request) setServer(to *Destination) error {
	if to.Target != job.Argo {
		if r.ArgoFlag != "" {
			return text.Usagef("--%s applies only to argo, but the job goes to %s", r.ArgoFlag, to.Target).Hint("use --to argo")
		}
		return nil
	}
	if r.Set["parameter"] && !r.Set["workflow"] {
		return text.Usagef("--parameter needs --workflow").Hint("give the parameters of a program as its arguments")
	}
	for _, f := range []*string{&r.Argo.TokenFile, &r.Argo.CAFile} { // "hpcc status" reads them again, from any directory
		var err error
		if *f == "" {
			continue
		}
		if *f, err = filepath.Abs(*f); err != nil {
			return err
		}
	}
	unverified := ""
	if r.Argo.Unverified {
		unverified = "true"
	}
	to.setEnv(argo.ServerVariable, r.Argo.Server)
	to.setEnv(argo.TokenFileVariable, r.Argo.TokenFile)
	to.setEnv(argo.CAFileVariable, r.Argo.CAFile)
	to.setEnv(argo.UnverifiedVariable, unverified)
	to.setEnv(argo.SecureVariable, os.Getenv(argo.SecureVariable))
	server := usesServer(to.Cluster)
	for _, name := range []string{"token-file", "ca-file", "insecure-skip-verify"} {
		if r.Set[name] && !server {
			return text.Usagef("--%s needs --server", name).Hint("name the Argo server: --server URL")
		}
	}
	if r.Set["context"] && server {
		return text.Usagef("--context is for kubectl, but the job goes to the Argo server %s", to.Env[argo.ServerVariable]).
			Hint("use only one of them")
	}
	if server && to.Env[kube.NamespaceVariable] == "" {
		to.setEnv(kube.NamespaceVariable, cmp.Or(os.Getenv("ARGO_NAMESPACE"), "default"))
	}
	return nil
}

// resolveWorkflow is Resolve for a job with --workflow.
func (r *Request) resolveWorkflow(ctx context.Context, to *Destination) (*job.Job, error) {
	if to.Remote != nil {
		return nil, text.Usagef("--workflow: workflows are submitted from this machine, not through site %s", to.Site.Name)
	}
	r.setContext(to)
	if err := r.setServer(to); err != nil {
		return nil, err
	}
	w, err := r.openWorkflow(ctx, to)
	if err != nil {
		return nil, err
	}
	j := &r.Job
	if j.Workflow, err = w.Record(); err != nil {
		return nil, err
	}
	j.Name, j.Pod = cmp.Or(j.Name, w.JobName()), job.Pod{Ports: w.Ports()}
	if j.Dir, err = filepath.Abs(cmp.Or(r.Chdir, to.Site.Dir)); err != nil {
		return nil, err
	}
	return j, FillProgram(j, r.Store, to.Site)
}

// maxWorkflow is the maximum size of a workflow or its parameters, in bytes.
const maxWorkflow = 16 << 20

// openWorkflow reads the workflow and fills in its parameters.
func (r *Request) openWorkflow(ctx context.Context, to *Destination) (*argo.File, error) {
	object, file := r.Argo.Object, r.Argo.Workflow
	if object != "" && !strings.HasPrefix(strings.TrimSpace(object), "{") {
		b, err := files.ReadFile(object, maxWorkflow)
		if err != nil {
			return nil, text.Usagef("--params: %w", err).Hint(`write --params '{"batch_size": 2}', or name a file with such an object`)
		}
		object = string(b)
	}
	given, err := argo.ParseParameters(object, r.Argo.Parameters)
	if err != nil {
		return nil, text.Usagef("%w", err)
	}
	var w *argo.File
	if name, ok := strings.CutPrefix(file, "template/"); ok {
		w, err = argo.Template(to.Within(ctx), name)
	} else {
		text, rerr := files.ReadFile(file, maxWorkflow)
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
		if have := r.Namespace; have != "" && have != n {
			return nil, text.Usagef("--namespace %s: %s sets namespace %s", have, file, n).Hint("remove one of them")
		}
		to.setEnv(kube.NamespaceVariable, n)
	}
	if r.Argo.Debug {
		steps, err := w.Debug()
		if err != nil {
			return nil, err
		}
		r.noteDebug("the steps of " + strings.Join(steps, ", ") + " wait")
	}
	return w, nil
}

// noteDebug prints how to attach a debugger. waiting names the program that waits for it, as in "the
// program waits".
func (r *Request) noteDebug(waiting string) {
	r.Logf("note: %s for a debugger: forward its port with \"hpcc forward JOB %s\"; the image needs debugpy", waiting, job.DebugPort.Name)
}

// fillDebug makes the job's program wait for a debugger.
func (r *Request) fillDebug(j *job.Job, to *Destination) error {
	if !r.Argo.Debug {
		return nil
	}
	if !to.Target.Pods() {
		return text.Usagef("--debug applies only to kubernetes, openshift and argo, but the job goes to %s", to.Target).
			Hint("enter a running task with \"hpcc attach\"")
	}
	if err := j.Debug(); err != nil {
		return text.Usagef("--debug: %w", err)
	}
	r.noteDebug("the program waits")
	return nil
}
