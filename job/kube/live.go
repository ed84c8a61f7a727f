package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// The variables that say which cluster kubectl speaks to, beside KUBECONFIG, which
// is its own. A job that was handed in keeps them.
const (
	ContextVariable   = "HPCC_KUBE_CONTEXT"
	NamespaceVariable = "HPCC_KUBE_NAMESPACE"
)

// Detect is never so: kubectl on a login node does not say that jobs are to leave it.
func (System) Detect(context.Context) bool { return false }

// commandName is the target's own command: oc has the logins of OpenShift, and
// kubectl does where it is missing.
func commandName(t job.Target) string {
	if t == job.OpenShift {
		if _, err := exec.LookPath("oc"); err == nil {
			return "oc"
		}
	}
	return "kubectl"
}

// Argv are the command with what chooses the cluster.
func Argv(ctx context.Context, t job.Target, words ...string) []string {
	w := []string{commandName(t)}
	if v := invoke.Getenv(ctx, ContextVariable); v != "" {
		w = append(w, "--context="+v)
	}
	if v := invoke.Getenv(ctx, NamespaceVariable); v != "" {
		w = append(w, "--namespace="+v)
	}
	return append(w, words...)
}

// kube runs the command.
func (k System) kube(ctx context.Context, words ...string) ([]byte, error) {
	w := Argv(ctx, k.Target, words...)
	out, err := invoke.Call(ctx, "/", w[0], w[1:]...)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, missing(w[0])
	}
	return out, err
}

// missing says that there is no kubectl, and where it comes from.
func missing(command string) error {
	return fmt.Errorf("%s is not on this machine; it comes with the cluster's client tools, or as one file from its web page", command)
}

// readError makes an error of what kubectl said, without its prefixes, and with what to do.
func readError(out []byte, err error) error {
	said := strings.NewReplacer("Error from server: ", "", "error: ", "", "Warning: ", "").Replace(string(out))
	if i := strings.LastIndex(said, "Error from server ("); i >= 0 {
		if _, rest, ok := strings.Cut(said[i:], "): "); ok {
			said = rest
		}
	}
	said = strings.Join(strings.Fields(said), " ")
	for _, a := range advice {
		if strings.Contains(said, a.said) {
			said += "; " + a.advice
			break
		}
	}
	return invoke.Error([]byte(said), err)
}

// advice is what to do about what clusters say.
var advice = []struct{ said, advice string }{
	{"unable to validate against any security context constraint", "the project refuses what the pod asks for: leave --uid and host directories out; \"hpcc check --openshift IMAGE\" says what the image needs"},
	{"violates PodSecurity", "\"hpcc check --restricted IMAGE\" says what the image needs"},
	{"exceeded quota", "ask for less with --cpus, --mem and --gpus, or for fewer tasks at once (--array 1-100%10)"},
	{"must be logged in to the server", "log in again (oc login, or what your site has for kubectl)"},
	{"Unauthorized", "log in again (oc login, or what your site has for kubectl)"},
	{"forbidden", "\"kubectl auth can-i --list\" shows what you may do; --namespace NAME chooses another namespace"},
	{"cannot locate context", "\"kubectl config get-contexts\" lists them"},
	{"current-context must exist", "kubectl knows no cluster: log in (oc login, or what your site has), or set KUBECONFIG"},
	{"connection refused", "is the cluster of this context there? \"kubectl config get-contexts\" lists them"},
	{"already exists", "another job of the namespace has this name: hand it in again, or give it another --name"},
	{"unknown flag", "this kubectl is too old: 1.25 or later is needed"},
}

// Submit hands the manifest in under the job's id, after the server has looked at all of it.
func (k System) Submit(ctx context.Context, r *batch.Request) error {
	name := job.Label(r.ID + strings.ReplaceAll(filepath.Ext(r.Script), ".", "-r")) // a rerun's r.Script has its number
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
	out, err := k.kube(ctx, "create", "--filename="+r.Script, "--output=name")
	if err != nil {
		k.takeBack(ctx, out)
		return fmt.Errorf("handing job %q to %s: %w", r.Job.Name, title(k.Target), readError(out, err))
	}
	r.Native = name
	if r.Job.AcrossPods() {
		k.tie(ctx, name)
	}
	return nil
}

// tie gives the Service of a job of several nodes to the Job, with which it goes away. A user who may not is
// left with a Service that "hpcc cancel" takes away.
func (k System) tie(ctx context.Context, name string) {
	uid, err := k.kube(ctx, "get", "job", name, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")
	if err != nil || len(uid) == 0 {
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"uid":%q}]}}`, name, uid)
	_, _ = k.kube(ctx, "patch", "service", name, "--type=merge", "--patch="+patch)
}

// takeBack deletes what was made of a manifest before the server refused the rest: just that, since what has the
// name may be somebody else's.
func (k System) takeBack(ctx context.Context, said []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invoke.Patience)
	defer cancel()
	for line := range strings.Lines(string(said)) {
		if made := strings.TrimSpace(line); madeObject().MatchString(made) {
			_, _ = k.kube(ctx, "delete", made, "--ignore-not-found", "--wait=false")
		}
	}
}

// madeObject is how kubectl names one that it has made: job.batch/name.
var madeObject = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z.]+/[a-z0-9.-]+$`) })

// dryRun has the server look at a manifest, strictly, and make nothing.
func (k System) dryRun(ctx context.Context, j *job.Job, file string) error {
	out, err := k.kube(ctx, "create", "--dry-run=server", "--validate=strict", "--filename="+file, "--output=name")
	if err != nil {
		return fmt.Errorf("asking %s whether it takes job %q: %w", title(k.Target), j.Name, Refusal(out, err))
	}
	return nil
}

// Refusal is an error of kubectl about something that was sent: the server's, or a [batch.NoAnswer].
func Refusal(out []byte, err error) error {
	said := readError(out, err)
	if bytes.Contains(out, []byte("Error from server")) || bytes.Contains(out, []byte("error validating")) || bytes.Contains(out, []byte("no matches for kind")) {
		return said
	}
	return &batch.NoAnswer{Err: said}
}

// namedThere looks whether there is what the job names: without a claim or a secret its pods
// would wait for ever, and so would a job of a queue without Kueue. What the user may not see is believed.
func (k System) namedThere(ctx context.Context, j *job.Job) error {
	if j.Queue != "" {
		if out, err := k.kube(ctx, "get", "localqueues.kueue.x-k8s.io", j.Queue, "--output=name"); err != nil {
			return fmt.Errorf("looking for queue %s, a LocalQueue of Kueue: %w; \"kubectl get localqueues\" lists those of the namespace, and without --queue the job begins at once", j.Queue, readError(out, err))
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
				return fmt.Errorf("the namespace has no %s %s; \"kubectl get %s\" lists those that there are", kind, n, kind)
			}
		}
	}
	return nil
}

// Estimate is the server's refusal, or nothing: when a pod finds a place, nobody says.
func (k System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	return nil, k.dryRun(ctx, j, script)
}

// Cancel takes the job away, and with it its pods: their records are kept here.
func (k System) Cancel(ctx context.Context, id string) error {
	if out, err := k.kube(ctx, "delete", "jobs.batch,services", "--selector="+jobLabel+"="+id, "--ignore-not-found", "--wait=false"); err != nil {
		return fmt.Errorf("ending job %s: %w", id, readError(out, err))
	}
	return nil
}

// listOf asks the server for objects of the namespace, page by page.
func listOf[T any](ctx context.Context, api *Proxy, resource, query string) ([]T, error) {
	var all []T
	for more := ""; ; {
		var page struct {
			Metadata struct{ Continue string }
			Items    []T
		}
		if err := api.get(ctx, resource+"?limit=500&"+query+"&continue="+url.QueryEscape(more), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if more = page.Metadata.Continue; more == "" {
			return all, nil
		}
	}
}

// Query reads the jobs and pods of hpcc in the namespace. The pods tell what on other
// targets the records do.
func (k System) Query(ctx context.Context, ids []string) (map[string]batch.QueueState, error) {
	api, err := k.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	selector := "labelSelector=" + url.QueryEscape(labelBy+"=hpcc")
	if len(ids) == 1 {
		selector = "labelSelector=" + url.QueryEscape(jobLabel+"="+ids[0])
	}
	jobs, err := listOf[jobState](ctx, api, "/apis/batch/v1/"+api.Place("jobs"), selector)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its jobs: %w", title(k.Target), err)
	}
	list, err := listOf[podState](ctx, api, "/api/v1/"+api.Place("pods"), selector)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its pods: %w", title(k.Target), err)
	}
	of := map[string][]podState{}
	for _, p := range list {
		of[p.Metadata.Labels[jobLabel]] = append(of[p.Metadata.Labels[jobLabel]], p)
	}
	known := map[string]batch.QueueState{}
	for _, o := range jobs {
		id := o.Metadata.Labels[jobLabel]
		s := o.standing(of[id])
		if !s.Gone() && len(of[id]) == 0 {
			s.Reason = api.whyNone(ctx, o.Metadata.Name)
		}
		known[id] = s
	}
	for _, id := range ids {
		if _, ok := known[id]; ok {
			continue
		}
		if len(of[id]) > 0 { // the job is gone, and its pods are ending
			s := batch.QueueState{Waiting: 1}
			learnPods(&s, of[id], func(int) bool { return true })
			if len(s.Tasks) > 0 {
				s.Waiting = 0
			}
			known[id] = s
		}
	}
	return known, nil
}

// whyNone is what kept the cluster from making pods, by its events.
func (a *Proxy) whyNone(ctx context.Context, name string) string {
	events, err := listOf[struct{ Reason, Message string }](ctx, a, "/api/v1/"+a.Place("events"), "fieldSelector="+url.QueryEscape("involvedObject.kind=Job,involvedObject.name="+name))
	if err != nil {
		return ""
	}
	for _, e := range slices.Backward(events) {
		if e.Reason == "FailedCreate" && strings.TrimSpace(e.Message) != "" {
			return readError([]byte(e.Message), nil).Error()
		}
	}
	return ""
}
