package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job/tunnel"
)

// The variables that say which cluster kubectl speaks to, beside KUBECONFIG, which
// is its own. A job that was handed in keeps them.
const (
	KubeContext   = "HPCC_KUBE_CONTEXT"
	KubeNamespace = "HPCC_KUBE_NAMESPACE"

	kubeConfig = "KUBECONFIG" // a list of files
)

// here is never so: kubectl on a login node does not say that jobs are to leave it.
func (kubernetes) here(context.Context) bool { return false }

// kubeCommand is the target's own command: oc has the logins of OpenShift, and
// kubectl does where it is missing.
func kubeCommand(t Target) string {
	if t == OpenShift {
		if _, err := exec.LookPath("oc"); err == nil {
			return "oc"
		}
	}
	return "kubectl"
}

// kubeWords are the command with what chooses the cluster.
func kubeWords(ctx context.Context, t Target, words ...string) []string {
	w := []string{kubeCommand(t)}
	if v := getenv(ctx, KubeContext); v != "" {
		w = append(w, "--context="+v)
	}
	if v := getenv(ctx, KubeNamespace); v != "" {
		w = append(w, "--namespace="+v)
	}
	return append(w, words...)
}

// kube runs the command.
func (k kubernetes) kube(ctx context.Context, words ...string) ([]byte, error) {
	w := kubeWords(ctx, k.target, words...)
	out, err := call(ctx, "/", w[0], w[1:]...)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, kubeMissing(w[0])
	}
	return out, err
}

// kubeMissing says that there is no kubectl, and where it comes from.
func kubeMissing(command string) error {
	return fmt.Errorf("%s is not on this machine; it comes with the cluster's client tools, or as one file from its web page", command)
}

// PinKube finds out which context and namespace kubectl uses now, where the cluster
// does not say, so that a job that was handed in is asked for there later, too.
func (c *Cluster) PinKube(ctx context.Context) error {
	var config struct {
		Current  string `json:"current-context"`
		Contexts []struct {
			Name    string
			Context struct{ Namespace string }
		}
	}
	ctx = c.Within(ctx)
	w := []string{"config", "view", "--minify", "-o", "json"}
	if v := getenv(ctx, KubeContext); v != "" {
		w = append(w, "--context="+v)
	}
	out, err := call(ctx, "/", kubeCommand(c.Target), w...)
	if err == nil {
		err = json.Unmarshal(out, &config)
	}
	if err != nil {
		return fmt.Errorf("finding the cluster of %s: %w", kubeCommand(c.Target), kubeWordsError(out, err))
	}
	env := map[string]string{KubeNamespace: "default"}
	for _, x := range config.Contexts {
		env[KubeContext] = x.Name
		if x.Context.Namespace != "" {
			env[KubeNamespace] = x.Context.Namespace
		}
	}
	if v := getenv(ctx, kubeConfig); v != "" {
		env[kubeConfig] = absolute(v)
	}
	for name := range env {
		if v := getenv(ctx, name); v != "" {
			env[name] = v
		}
	}
	for name, v := range c.Env {
		env[name] = v
	}
	c.Env = env
	return nil
}

// kubeWordsError makes an error of what kubectl said, without its prefixes, and with what to do.
func kubeWordsError(out []byte, err error) error {
	said := strings.NewReplacer("Error from server: ", "", "error: ", "", "Warning: ", "").Replace(string(out))
	if i := strings.LastIndex(said, "Error from server ("); i >= 0 {
		if _, rest, ok := strings.Cut(said[i:], "): "); ok {
			said = rest
		}
	}
	said = strings.Join(strings.Fields(said), " ")
	for _, a := range kubeAdvice {
		if strings.Contains(said, a.said) {
			said += "; " + a.advice
			break
		}
	}
	return words([]byte(said), err)
}

// kubeAdvice is what to do about what clusters say.
var kubeAdvice = []struct{ said, advice string }{
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

// submit hands the manifest in under the job's id, after the server has looked at all of it.
func (k kubernetes) submit(ctx context.Context, r *request) error {
	name := Label(r.ID + strings.ReplaceAll(filepath.Ext(r.Script), ".", "-r")) // a rerun's r.Script has its number
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
		return fmt.Errorf("handing job %q to %s: %w", r.Job.Name, k.target.Title(), kubeWordsError(out, err))
	}
	r.Native = name
	if r.Job.acrossPods() {
		k.tie(ctx, name)
	}
	return nil
}

// tie gives the Service of a job of several nodes to the Job, with which it goes away. A user who may not is
// left with a Service that "hpcc cancel" takes away.
func (k kubernetes) tie(ctx context.Context, name string) {
	uid, err := k.kube(ctx, "get", "job", name, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")
	if err != nil || len(uid) == 0 {
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"uid":%q}]}}`, name, uid)
	_, _ = k.kube(ctx, "patch", "service", name, "--type=merge", "--patch="+patch)
}

// takeBack deletes what was made of a manifest before the server refused the rest: just that, since what has the
// name may be somebody else's.
func (k kubernetes) takeBack(ctx context.Context, said []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
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
func (k kubernetes) dryRun(ctx context.Context, j *Job, file string) error {
	out, err := k.kube(ctx, "create", "--dry-run=server", "--validate=strict", "--filename="+file, "--output=name")
	if err != nil {
		return fmt.Errorf("asking %s whether it takes job %q: %w", k.target.Title(), j.Name, kubeRefusal(out, err))
	}
	return nil
}

// kubeRefusal is an error of kubectl about something that was sent: the server's, or a [noAnswer].
func kubeRefusal(out []byte, err error) error {
	said := kubeWordsError(out, err)
	if bytes.Contains(out, []byte("Error from server")) || bytes.Contains(out, []byte("error validating")) || bytes.Contains(out, []byte("no matches for kind")) {
		return said
	}
	return &noAnswer{said}
}

// namedThere looks whether there is what the job names: without a claim or a secret its pods
// would wait for ever, and so would a job of a queue without Kueue. What the user may not see is believed.
func (k kubernetes) namedThere(ctx context.Context, j *Job) error {
	if j.Queue != "" {
		if out, err := k.kube(ctx, "get", "localqueues.kueue.x-k8s.io", j.Queue, "--output=name"); err != nil {
			return fmt.Errorf("looking for queue %s, a LocalQueue of Kueue: %w; \"kubectl get localqueues\" lists those of the namespace, and without --queue the job begins at once", j.Queue, kubeWordsError(out, err))
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

// estimate is the server's refusal, or nothing: when a pod finds a place, nobody says.
func (k kubernetes) estimate(ctx context.Context, j *Job, script string) (*estimate, error) {
	return nil, k.dryRun(ctx, j, script)
}

// cancel takes the job away, and with it its pods: their records are kept here.
func (k kubernetes) cancel(ctx context.Context, id string) error {
	if out, err := k.kube(ctx, "delete", "jobs.batch,services", "--selector="+labelJob+"="+id, "--ignore-not-found", "--wait=false"); err != nil {
		return fmt.Errorf("ending job %s: %w", id, kubeWordsError(out, err))
	}
	return nil
}

// EnterPod are the words of a command that runs words in the container of a task that runs, nil
// where the target has no pods; without words a shell.
func (s *Submission) EnterPod(ctx context.Context, t *Task, words []string, terminal bool) []string {
	if !s.Target.Pods() {
		return nil
	}
	w := []string{"exec", "--stdin"}
	if terminal {
		w = append(w, "--tty")
	}
	if len(words) == 0 {
		words = []string{"sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}
	}
	w = append(w, t.Native, "--container="+mainContainer, "--")
	return kubeWords(s.Within(ctx), s.Target, append(w, words...)...)
}

// InPod runs words in the container of a task that runs, and returns what they write, at most so
// many bytes of it.
func (s *Submission) InPod(ctx context.Context, t *Task, most int64, words ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.Within(ctx), glance)
	defer cancel()
	w := kubeWords(ctx, s.Target, append([]string{"exec", t.Native, "--container=" + mainContainer, "--"}, words...)...)
	cmd, said := command(ctx, "/", w[0], w[1:]...), &tunnel.Tail{}
	cmd.Stderr = said
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(pipe, most+1))
	if int64(len(out)) > most {
		cancel()
		_ = cmd.Wait()
		return nil, fmt.Errorf("pod %s says more than %d bytes", t.Native, most)
	}
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("pod %s: %w", t.Native, kubeWordsError([]byte(said.String()), werr))
	}
	return out, err
}

// kubeList asks the server for objects of the namespace, page by page.
func kubeList[T any](ctx context.Context, api *kubeAPI, resource, query string) ([]T, error) {
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

// ask reads the jobs and pods of hpcc in the namespace. The pods tell what on other
// targets the records do.
func (k kubernetes) ask(ctx context.Context, ids []string) (map[string]standing, error) {
	api, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.close()
	selector := "labelSelector=" + url.QueryEscape(labelBy+"=hpcc")
	if len(ids) == 1 {
		selector = "labelSelector=" + url.QueryEscape(labelJob+"="+ids[0])
	}
	jobs, err := kubeList[kubeJob](ctx, api, "/apis/batch/v1/"+api.place("jobs"), selector)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its jobs: %w", k.target.Title(), err)
	}
	list, err := kubeList[kubePod](ctx, api, "/api/v1/"+api.place("pods"), selector)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its pods: %w", k.target.Title(), err)
	}
	of := map[string][]kubePod{}
	for _, p := range list {
		of[p.Metadata.Labels[labelJob]] = append(of[p.Metadata.Labels[labelJob]], p)
	}
	known := map[string]standing{}
	for _, o := range jobs {
		id := o.Metadata.Labels[labelJob]
		s := o.standing(of[id])
		if !s.gone() && len(of[id]) == 0 {
			s.reason = api.whyNone(ctx, o.Metadata.Name)
		}
		known[id] = s
	}
	for _, id := range ids {
		if _, ok := known[id]; ok {
			continue
		}
		if len(of[id]) > 0 { // the job is gone, and its pods are ending
			s := standing{waiting: 1}
			s.learn(of[id], func(int) bool { return true })
			if len(s.tasks) > 0 {
				s.waiting = 0
			}
			known[id] = s
		}
	}
	return known, nil
}

// whyNone is what kept the cluster from making pods, by its events.
func (a *kubeAPI) whyNone(ctx context.Context, name string) string {
	events, err := kubeList[struct{ Reason, Message string }](ctx, a, "/api/v1/"+a.place("events"), "fieldSelector="+url.QueryEscape("involvedObject.kind=Job,involvedObject.name="+name))
	if err != nil {
		return ""
	}
	for _, e := range slices.Backward(events) {
		if e.Reason == "FailedCreate" && strings.TrimSpace(e.Message) != "" {
			return kubeWordsError([]byte(e.Message), nil).Error()
		}
	}
	return ""
}
