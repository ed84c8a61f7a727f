package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
)

// The variables that select kubectl's cluster, in addition to KUBECONFIG. A submitted job keeps them.
const (
	ContextVariable   = "HPCC_KUBE_CONTEXT"
	NamespaceVariable = "HPCC_KUBE_NAMESPACE"
)

// Detect always returns false: kubectl on a login node does not mean that jobs should leave it.
func (System) Detect(context.Context) bool { return false }

// commandName returns the target's command: oc for OpenShift, which has its logins, or kubectl if oc
// is missing.
func commandName(t job.Target) string {
	if t == job.OpenShift {
		if _, err := exec.LookPath("oc"); err == nil {
			return "oc"
		}
	}
	return "kubectl"
}

// Argv returns the argv of the command with the flags that select the cluster.
func Argv(ctx context.Context, t job.Target, argv ...string) []string {
	w := []string{commandName(t)}
	if v := invoke.Getenv(ctx, ContextVariable); v != "" {
		w = append(w, "--context="+v)
	}
	if v := invoke.Getenv(ctx, NamespaceVariable); v != "" {
		w = append(w, "--namespace="+v)
	}
	return append(w, argv...)
}

// kube runs the command.
func (k System) kube(ctx context.Context, argv ...string) ([]byte, error) {
	w := Argv(ctx, k.Target, argv...)
	out, err := invoke.Call(ctx, "/", w[0], w[1:]...)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, missing(w[0])
	}
	return out, err
}

// missing returns the error for a missing kubectl.
func missing(command string) error {
	return fmt.Errorf("%s is not on PATH; install the cluster's client tools, or the single file from its web page", command)
}

// readError converts kubectl's message to an error, without its prefixes and its log, and with advice.
func readError(out []byte, err error) error {
	text := strings.NewReplacer("Error from server: ", "", "error: ", "", "Warning: ",
		"").Replace(kubectlNoise().ReplaceAllString(string(out), ""))
	if i := strings.LastIndex(text, "Error from server ("); i >= 0 {
		if _, rest, ok := strings.Cut(text[i:], "): "); ok {
			text = rest
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	if explained, rank := explain(fact{from: answer, message: text}); rank < len(rules) {
		text = explained
	}
	return invoke.Error([]byte(text), err)
}

// kubectlNoise matches a line of kubectl's own log, and its words around an error of the request for the
// API's schema, which comes first: "error validating "FILE": error validating data: failed to download
// openapi: ERROR; if you choose to ignore these errors, turn validation off with --validate=false".
var kubectlNoise = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[EWI][0-9]{4} [0-9:.]+ .*\n|error validating "[^"\n]*": error validating data: ` +
		`failed to download openapi: |; if you choose to ignore these errors, turn validation off.*`)
})

// objectName returns the name of the Job of a submission. A rerun's script has its number.
func objectName(r *batch.Request) string {
	return job.Label(r.ID + strings.ReplaceAll(filepath.Ext(r.Script), ".", "-r"))
}

// Find implements [batch.Finder].
func (k System) Find(ctx context.Context, r *batch.Request, _ []string) (natives []string, err error) {
	out, err := k.kube(ctx, "get", "job", objectName(r), "--ignore-not-found",
		"--output=jsonpath={.metadata.name} {.metadata.deletionTimestamp}")
	if err != nil {
		return nil, fmt.Errorf("looking for job %s in %s: %w", r.ID, title(k.Target), readError(out, err))
	}
	if f := strings.Fields(string(out)); len(f) == 1 { // it is not being deleted
		return f, nil
	}
	return nil, nil
}

// Submit submits the manifest under the job's ID, after the server has validated all of it.
func (k System) Submit(ctx context.Context, r *batch.Request) error {
	name := objectName(r)
	text, _, err := k.manifest(r.Job, name)
	if err != nil {
		return err
	}
	if err := r.Rewrite(text); err != nil {
		return fmt.Errorf("writing the manifest of job %q: %w", r.Job.Name, err)
	}
	if err := k.namedThere(ctx, r.Job); err != nil {
		return err
	}
	if err := k.dryRun(ctx, r.Job, r.Script); err != nil {
		return err
	}
	r.Sent = true
	out, err := k.kube(ctx, "create", "--filename="+r.Script, "--output=name")
	if err != nil {
		k.takeBack(ctx, out)
		r.Sent = !bytes.Contains(out, []byte("(AlreadyExists)")) // the object of another store with the same ID
		return fmt.Errorf("submitting job %q to %s: %w", r.Job.Name, title(k.Target), readError(out, err))
	}
	r.Native = name
	if r.Job.AcrossPods() {
		k.tie(ctx, name, "service", name)
	}
	if r.Job.Pod.CodeFile != "" {
		k.tie(ctx, name, "configmap", codeName(name))
	}
	return nil
}

// tie makes the Job the owner of another object, so that both are deleted together. If the user may
// not do that, "hpcc cancel" deletes a Service.
func (k System) tie(ctx context.Context, name, kind, object string) {
	uid, err := k.kube(ctx, "get", "job", name, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")
	if err != nil || len(uid) == 0 {
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"uid":%q}]}}`, name, uid)
	_, _ = k.kube(ctx, "patch", kind, object, "--type=merge", "--patch="+patch)
}

// takeBack deletes the objects that were created before the server refused the rest. It deletes only
// those, because others with the job's name may belong to someone else.
func (k System) takeBack(ctx context.Context, answer []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invoke.LongTimeout)
	defer cancel()
	for line := range strings.Lines(string(answer)) {
		if made := strings.TrimSpace(line); madeObject().MatchString(made) {
			_, _ = k.kube(ctx, "delete", made, "--ignore-not-found", "--wait=false")
		}
	}
}

// madeObject matches kubectl's output for a created object: job.batch/name.
var madeObject = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z.]+/[a-z0-9.-]+$`) })

// dryRun lets the server validate a manifest strictly, without creating anything.
func (k System) dryRun(ctx context.Context, j *job.Job, file string) error {
	out, err := k.kube(ctx, "create", "--dry-run=server", "--validate=strict", "--filename="+file, "--output=name")
	if err != nil {
		return fmt.Errorf("validating job %[2]q with %[1]s: %[3]w", title(k.Target), j.Name, Refusal(out, err))
	}
	return nil
}

// Refusal converts an error of kubectl for a sent object: the server's refusal, or a [batch.NoAnswer].
func Refusal(out []byte, err error) error {
	answer := readError(out, err)
	unreached := bytes.Contains(out, []byte("failed to download openapi"))
	for _, refused := range []string{"Error from server", "error validating", "no matches for kind", " is invalid: "} {
		if !unreached && bytes.Contains(out, []byte(refused)) {
			return answer
		}
	}
	return &batch.NoAnswer{Err: answer}
}

// namedThere checks that the objects that the job names exist. Without a claim or a secret its pods would
// wait forever, and so would a job with a queue but no Kueue. Objects that the user may not read are
// assumed to exist.
func (k System) namedThere(ctx context.Context, j *job.Job) error {
	if j.Queue != "" {
		if out, err := k.kube(ctx, "get", "localqueues.kueue.x-k8s.io", j.Queue, "--output=name"); err != nil {
			return fmt.Errorf("getting queue %s, a LocalQueue of Kueue: %w; \"kubectl get localqueues\" lists those of the "+
				"namespace; without --queue the job starts immediately", j.Queue, readError(out, err))
		}
	}
	named := map[string][]string{}
	for _, v := range j.Pod.Volumes {
		if v.Claim != "" {
			named["persistentvolumeclaim"] = append(named["persistentvolumeclaim"], v.Claim)
		}
	}
	for _, e := range j.Pod.Secrets {
		named["secret"] = append(named["secret"], e.Name)
	}
	if j.Pod.PullSecret != "" {
		named["secret"] = append(named["secret"], j.Pod.PullSecret)
	}
	if j.Pod.ServiceAccount != "" {
		named["serviceaccount"] = []string{j.Pod.ServiceAccount}
	}
	for kind, names := range named {
		out, err := k.kube(ctx, append([]string{"get", kind, "--output=name", "--ignore-not-found"}, names...)...)
		if err != nil {
			continue
		}
		there := strings.Fields(string(out))
		for _, n := range names {
			if !slices.Contains(there, kind+"/"+n) {
				return fmt.Errorf("%s %s does not exist in the namespace; \"kubectl get %s\" lists them", kind, n, kind)
			}
		}
	}
	return nil
}

// Estimate returns the server's refusal, if any. The cluster cannot estimate a start time.
func (k System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	return nil, k.dryRun(ctx, j, script)
}

// Cancel deletes the job and its pods. Their records have been saved before.
func (k System) Cancel(ctx context.Context, id string) error {
	if out, err := k.kube(ctx, "delete", "jobs.batch,services", "--selector="+jobLabel+"="+id, "--ignore-not-found",
		"--wait=false"); err != nil {
		return fmt.Errorf("cancelling job %s: %w", id, readError(out, err))
	}
	return nil
}

// listOf lists objects of the namespace, page by page.
func listOf[T any](ctx context.Context, api *Proxy, resource, query string) ([]T, error) {
	return pagesOf[T](ctx, api, resource, query, math.MaxInt)
}

// pagesOf lists objects of the namespace, at most the given number of pages.
func pagesOf[T any](ctx context.Context, api *Proxy, resource, query string, pages int) (all []T, err error) {
	err = eachPage(ctx, api, resource, query, "", func(items []T, token, _ string) error {
		if token == "" {
			all = nil
		}
		all = append(all, items...)
		if pages--; pages <= 0 {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return all, err
}

// jobsSelector returns the query for objects of jobs by their IDs; of all hpcc's jobs for none or many.
func jobsSelector(ids []string) string {
	labels := labelBy + "=hpcc"
	if n := len(ids); n > 0 && n <= maxSelected {
		labels = jobLabel + " in (" + strings.Join(ids, ",") + ")"
	}
	return "labelSelector=" + url.QueryEscape(labels)
}

// maxSelected is the number of jobs that a request names. Some proxies limit requests to 16 KiB.
const maxSelected = 100

// Query reads jobs and their pods. The pods replace the records of other targets.
func (k System) Query(ctx context.Context, ids []string) (map[string]batch.State, error) {
	api, err := k.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return k.query(ctx, api, ids)
}

func (k System) query(ctx context.Context, api *Proxy, ids []string) (map[string]batch.State, error) {
	selector := jobsSelector(ids)
	jobs, err := listOf[jobState](ctx, api, "/apis/batch/v1/"+api.Path("jobs"), selector)
	if err != nil {
		return nil, fmt.Errorf("querying %s for jobs: %w", title(k.Target), err)
	}
	list, err := listOf[podState](ctx, api, "/api/v1/"+api.Path("pods"), selector)
	if err != nil {
		return nil, fmt.Errorf("querying %s for pods: %w", title(k.Target), err)
	}
	of := map[string][]podState{}
	for _, p := range list {
		of[p.Metadata.Labels[jobLabel]] = append(of[p.Metadata.Labels[jobLabel]], p)
	}
	known, why := map[string]batch.State{}, newReader(ctx, api, jobs)
	for _, o := range jobs {
		id := o.Metadata.Labels[jobLabel]
		s := o.queueState(of[id])
		s.Reason = why.job(&o, of[id], &s)
		known[id] = s
	}
	for _, id := range ids {
		if _, ok := known[id]; ok {
			continue
		}
		if len(of[id]) > 0 { // the job is deleted and its pods are ending
			s := batch.State{Waiting: 1}
			learnPods(&s, of[id], func(int) bool { return true })
			s.Reason = why.job(&jobState{}, of[id], &s)
			if len(s.Tasks) > 0 {
				s.Waiting = 0
			}
			known[id] = s
		}
	}
	return known, nil
}
