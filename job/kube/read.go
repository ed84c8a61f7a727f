package kube

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// This file reads manifests of users: a Pod, or the pods of a Job or a deployment. Every field
// becomes a row of the report, with the path of the field as its text.

// maxManifestFields limits the fields of a manifest, including those of references (*name).
const maxManifestFields = 2000

// runnable lists the kinds that hpcc reads as a job. A pod template makes the pods of the others.
var runnable = map[string]bool{ // true: keeps its pods running
	"v1 Pod": false, "batch/v1 Job": false, "apps/v1 Deployment": true, "apps.openshift.io/v1 DeploymentConfig": true,
	"v1 DeploymentConfig": true,
}

// A podReader converts one manifest.
type podReader struct {
	*dialect.Reader
	pods          bool // the target runs the job in pods
	seen          int  // fields so far
	volumes       map[string]*yaml.Node
	env           map[string]string // literal variables of the container, for $(NAME)
	command, args []string
	completions   int
	parallelism   int
}

// A fieldRule converts a field that has its own row, and returns its fate.
type fieldRule func(r *podReader, n *yaml.Node) (field.Fate, string)

// readManifest fills in a job from the documents of a manifest.
func readManifest(r *dialect.Reader, name, text string) error {
	var jobs []*yaml.Node
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc yaml.Node
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
			continue
		}
		root := doc.Content[0]
		if _, ok := runnable[kindOf(root)]; ok {
			jobs = append(jobs, root)
		} else {
			r.Add(root.Line, "kind: "+scalarAt(root, "kind")).Become(field.Refused, "not a job; create it with kubectl create -f")
		}
	}
	switch {
	case len(jobs) == 0:
		return fmt.Errorf("%s does not contain a Pod, Job, Deployment or DeploymentConfig; \"hpcc submit --workflow FILE\" runs a Workflow", name)
	case len(jobs) > 1:
		return fmt.Errorf("%s:%d: a second job starts here, after line %d; write each to a separate file", name, jobs[1].Line, jobs[0].Line)
	}
	p := &podReader{Reader: r, pods: r.To.Target.Pods(), volumes: map[string]*yaml.Node{}, env: map[string]string{}}
	return p.read(name, jobs[0])
}

// kindOf returns apiVersion and kind of a document.
func kindOf(root *yaml.Node) string {
	return scalarAt(root, "apiVersion") + " " + scalarAt(root, "kind")
}

// read converts a document.
func (r *podReader) read(name string, root *yaml.Node) error {
	pod := root
	if kindOf(root) != "v1 Pod" {
		pod = nodeAt(root, "spec", "template")
	}
	containers := elements(nodeAt(pod, "spec", "containers"))
	if len(containers) == 0 {
		return fmt.Errorf("%s:%d: the %s has no containers", name, root.Line, scalarAt(root, "kind"))
	}
	r.Job.Name = job.CleanName(job.BaseName(name))
	for _, v := range elements(nodeAt(pod, "spec", "volumes")) {
		r.volumes[scalarAt(v, "name")] = v
	}
	for _, e := range elements(nodeAt(containers[0], "env")) {
		if nodeAt(e, "valueFrom") == nil {
			r.env[scalarAt(e, "name")] = r.expand(scalarAt(e, "value"))
		}
	}
	if pod == root {
		r.walk(podRules(), "", "", root)
	} else {
		r.walk(ownerRules(), "", "", root)
	}
	if r.seen > maxManifestFields {
		return fmt.Errorf("%s has more than %d fields", name, maxManifestFields)
	}
	r.Job.Args, r.Job.Pod.Command = append(r.command, r.args...), len(r.command) > 0
	if r.completions > 1 {
		array := "0-" + strconv.Itoa(r.completions-1)
		if r.parallelism > 0 && r.parallelism < r.completions {
			array += "%" + strconv.Itoa(r.parallelism)
		}
		var err error
		if r.Job.Array, err = job.ParseArray(array); err != nil {
			return fmt.Errorf("%s: %d completions: %w", name, r.completions, err)
		}
	}
	return nil
}

// walk applies the rules to a value and the values below it. path has [] for every index, shown
// has the index.
func (r *podReader) walk(rules map[string]fieldRule, path, shown string, n *yaml.Node) {
	n = resolved(n)
	if r.seen++; r.seen > maxManifestFields || n.ShortTag() == "!!null" {
		return
	}
	rule := rules[path]
	switch {
	case path == "spec.template" && rule == nil:
		r.walk(podRules(), "", shown, n)
	case rule != nil:
		text := shown
		if n.Kind == yaml.ScalarNode {
			text += ": " + n.Value
		}
		r.Add(n.Line, text)
		r.Row.Become(rule(r, n))
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			r.walk(rules, strings.TrimPrefix(path+"."+key, "."), strings.TrimPrefix(shown+"."+key, "."), n.Content[i+1])
		}
	case n.Kind == yaml.SequenceNode:
		for i, c := range n.Content {
			at := fmt.Sprintf("%s[%d]", shown, i)
			if path == "spec.containers" && i > 0 {
				r.Add(c.Line, at).Become(field.Refused, "a job has one container; submit its program as a job of its own")
				continue
			}
			r.walk(rules, path+"[]", at, c)
		}
	default:
		r.Add(n.Line, shown+": "+n.Value).Become(field.Refused, r.unknown())
	}
}

// unknown explains why a field without a rule is refused.
func (r *podReader) unknown() string {
	if r.pods {
		return "use --native; add what --native refuses to the manifest that \"hpcc script\" prints"
	}
	return "only pods have this setting"
}

// Rules that do not depend on the value.
func byHpcc(how string) fieldRule {
	return func(*podReader, *yaml.Node) (field.Fate, string) { return field.Changed, how }
}

func cannot(how string) fieldRule {
	return func(*podReader, *yaml.Node) (field.Fate, string) { return field.Refused, how }
}

// ifDefault keeps a field that has the API's default value, and refuses others.
func ifDefault(values ...string) fieldRule {
	return func(r *podReader, n *yaml.Node) (field.Fate, string) {
		if slices.Contains(values, n.Value) {
			return field.Kept, "the default"
		}
		return field.Refused, r.unknown()
	}
}

// onPods applies a rule if the target runs the job in pods; other targets refuse the field.
func onPods(how string, rule fieldRule) fieldRule {
	return func(r *podReader, n *yaml.Node) (field.Fate, string) {
		if !r.pods {
			return field.Refused, how
		}
		return rule(r, n)
	}
}

// number parses a positive number into a field of the job.
func number(set func(r *podReader, n int)) fieldRule {
	return func(r *podReader, n *yaml.Node) (field.Fate, string) {
		v, err := strconv.Atoi(n.Value)
		if err != nil || v < 0 || v > math.MaxInt32 {
			return field.Refused, fmt.Sprintf("%q is not a number", text.Short(n.Value))
		}
		set(r, v)
		return field.Kept, ""
	}
}

// ownerRules are the rules for the fields of a Job or a deployment outside its pod template.
var ownerRules = sync.OnceValue(func() map[string]fieldRule {
	rules := metadataRules()
	once := byHpcc("a job runs its program once; --with deploy keeps it running on OpenShift")
	for _, f := range []string{"replicas", "selector", "strategy", "triggers", "test", "paused", "revisionHistoryLimit",
		"minReadySeconds", "progressDeadlineSeconds"} {
		rules["spec."+f] = once
	}
	rules["spec.completions"] = number(func(r *podReader, n int) {
		r.completions = n
		r.Row.Fills(field.Array)
		if n > 1 {
			r.Changed("an array; the index is HPCC_TASK_ID on every target")
		}
	})
	rules["spec.parallelism"] = number(func(r *podReader, n int) { r.parallelism = n; r.Row.Fills(field.Array) })
	rules["spec.completionMode"] = byHpcc("hpcc chooses it")
	rules["spec.backoffLimit"] = number(func(r *podReader, n int) { r.Job.Retry.Times = n; r.Row.Fills(field.Retry) })
	rules["spec.backoffLimitPerIndex"] = rules["spec.backoffLimit"]
	rules["spec.activeDeadlineSeconds"] = limit("of each pod, not of all together")
	rules["spec.ttlSecondsAfterFinished"] = byHpcc("hpcc keeps the Job for a week")
	rules["spec.podFailurePolicy"] = cannot("use --retry-on")
	rules["spec.suspend"] = func(r *podReader, n *yaml.Node) (field.Fate, string) {
		r.Job.Hold = n.Value == "true"
		r.Row.Fills(field.Hold)
		return field.Kept, ""
	}
	return rules
})

// metadataRules are the rules for kind, metadata and status.
func metadataRules() map[string]fieldRule {
	rules := map[string]fieldRule{
		"apiVersion": byHpcc("hpcc chooses it"),
		"kind": func(_ *podReader, n *yaml.Node) (field.Fate, string) {
			if n.Value == "Pod" || n.Value == "Job" {
				return field.Kept, ""
			}
			return field.Changed, "a job runs its program once; --with deploy keeps it running on OpenShift"
		},
		"metadata.name": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			r.Job.Name = job.CleanName(n.Value)
			r.Row.Fills(field.Name)
			return field.Kept, ""
		},
		"metadata.namespace": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			if !r.pods {
				return field.Changed, "only pods have namespaces"
			}
			return field.Changed, "that of your login, or --namespace " + text.Short(n.Value)
		},
		"metadata.labels": byHpcc("hpcc sets its own labels"), "metadata.annotations": byHpcc("hpcc sets its own annotations"),
	}
	for _, f := range []string{"metadata.uid", "metadata.resourceVersion", "metadata.creationTimestamp",
		"metadata.generation", "metadata.managedFields", "metadata.ownerReferences",
		"metadata.selfLink", "metadata.generateName", "status"} {
		rules[f] = byHpcc("the cluster sets it")
	}
	return rules
}

// limit sets the time limit from seconds.
func limit(how string) fieldRule {
	set := number(func(r *podReader, n int) { r.Job.Time = time.Duration(n) * time.Second; r.Row.Fills(field.Time) })
	return func(r *podReader, n *yaml.Node) (field.Fate, string) {
		if fate, why := set(r, n); fate != field.Kept || how == "" {
			return fate, why
		}
		return field.Changed, how
	}
}

// podRules are the rules for the fields of a Pod or a pod template.
var podRules = sync.OnceValue(func() map[string]fieldRule {
	rules := metadataRules()
	for path, rule := range containerRules() {
		rules["spec.containers[]."+path] = rule
	}
	secure := byHpcc("hpcc sets what the profile \"restricted\" requires")
	for path, rule := range map[string]fieldRule{
		"restartPolicy": func(_ *podReader, n *yaml.Node) (field.Fate, string) {
			if n.Value == "Never" {
				return field.Kept, ""
			}
			return field.Changed, "the program is not restarted; --retry N repeats it after a failure"
		},
		"activeDeadlineSeconds": limit(""),
		"serviceAccountName":    serviceAccount, "serviceAccount": serviceAccount,
		"automountServiceAccountToken": byHpcc("only with --service-account"), "terminationGracePeriodSeconds": byHpcc("hpcc sets it"),
		"nodeSelector": onPods("nodes of a batch system have other names for their properties; use --native", nodeLabels),
		"tolerations": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			if all := elements(n); len(all) > 0 && !slices.ContainsFunc(all,
				func(t *yaml.Node) bool { key := scalarAt(t, "key"); return key != resourceGPU && key != resourceAMD }) {
				return field.Kept, "set for jobs with GPUs"
			}
			return field.Refused, r.unknown()
		},
		"affinity":       cannot("use --node-label KEY=VALUE or --exclusive"),
		"initContainers": cannot("run these commands first in the program"),
		"imagePullSecrets[]": onPods("hpcc login saves credentials", func(r *podReader, n *yaml.Node) (field.Fate, string) {
			if r.Job.Pod.PullSecret != "" {
				return field.Refused, "a job has one pull secret"
			}
			r.Job.Pod.PullSecret = scalarAt(n, "name")
			return field.Kept, ""
		}),
		"volumes[]": func(r *podReader, n *yaml.Node) (field.Fate, string) { return r.volume(n) },
		"securityContext": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			if id, err := strconv.ParseInt(scalarAt(n, "runAsUser"), 10, 32); err == nil && id > 0 &&
				r.To.Target != job.OpenShift && r.pods {
				r.Job.Pod.UID = id
			}
			return secure(r, n)
		},
		"dnsPolicy": ifDefault("ClusterFirst"), "schedulerName": ifDefault("default-scheduler"),
		"enableServiceLinks": byHpcc("the default"), "preemptionPolicy": ifDefault("PreemptLowerPriority"),
		"priority": byHpcc("the cluster sets it"), "nodeName": cannot("the scheduler chooses the node"),
	} {
		rules["spec."+path] = rule
	}
	return rules
})

func serviceAccount(r *podReader, n *yaml.Node) (field.Fate, string) {
	switch {
	case n.Value == "default":
		return field.Changed, "the default, without its token"
	case !r.pods:
		return field.Refused, "only pods have service accounts"
	}
	r.Job.Pod.ServiceAccount = n.Value
	return field.Kept, ""
}

func nodeLabels(r *podReader, n *yaml.Node) (field.Fate, string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		r.Job.Pod.NodeLabels = append(r.Job.Pod.NodeLabels, n.Content[i].Value+"="+n.Content[i+1].Value)
	}
	return field.Kept, ""
}

// containerRules are the rules for the fields of the container.
func containerRules() map[string]fieldRule {
	rules := map[string]fieldRule{
		"name":  byHpcc(MainContainer),
		"image": func(r *podReader, n *yaml.Node) (field.Fate, string) { r.Job.Image = n.Value; return field.Kept, "" },
		"imagePullPolicy": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			r.Job.Pod.Pull = n.Value
			if !r.pods {
				return field.Changed, "hpcc pulls the image before the job starts"
			}
			return field.Kept, ""
		},
		"command":    func(r *podReader, n *yaml.Node) (field.Fate, string) { return r.arguments(n, &r.command) },
		"args":       func(r *podReader, n *yaml.Node) (field.Fate, string) { return r.arguments(n, &r.args) },
		"workingDir": func(r *podReader, n *yaml.Node) (field.Fate, string) { r.Job.Pod.Dir = n.Value; return field.Kept, "" },
		"env[]": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			name := scalarAt(n, "name")
			value, ok := r.env[name]
			r.Row.Text += ": " + name
			if !ok {
				return field.Refused, "its value comes from the cluster; use --secret NAME, or --env"
			}
			r.Row.Text += "=" + value
			r.Job.Env = append(r.Job.Env, name+"="+value)
			return field.Kept, ""
		},
		"envFrom[]": onPods("only pods read secrets of the cluster", func(r *podReader, n *yaml.Node) (field.Fate, string) {
			if name := scalarAt(nodeAt(n, "secretRef"), "name"); name != "" && nodeAt(n, "prefix") == nil {
				r.Job.Pod.Secrets = append(r.Job.Pod.Secrets, job.Secret{Name: name})
				return field.Kept, ""
			}
			return field.Refused, "use --secret NAME, or --set-env FILE"
		}),
		"ports[]": func(r *podReader, n *yaml.Node) (field.Fate, string) {
			number := scalarAt(n, "containerPort")
			name := scalarAt(n, "name")
			if name == "" {
				name = "port-" + number
			}
			port, err := job.ParsePort(name + "=" + number)
			switch {
			case err != nil:
				return field.Refused, err.Error()
			case !r.pods:
				return field.Changed, "hpcc forward JOB " + number + " reaches it"
			}
			r.Job.Pod.Ports = append(r.Job.Pod.Ports, port)
			return field.Kept, ""
		},
		"volumeMounts[]": onPods("a batch job sees the cluster's file systems; use --bind DIR:PATH",
			func(r *podReader, n *yaml.Node) (field.Fate, string) { return r.mount(n) }),
		"securityContext":        byHpcc("hpcc sets what the profile \"restricted\" requires"),
		"terminationMessagePath": ifDefault("/dev/termination-log"), "terminationMessagePolicy": ifDefault("File"),
		"livenessProbe":  cannot("a job is not restarted when it hangs; use --time"),
		"readinessProbe": byHpcc("a job serves no clients"), "startupProbe": byHpcc("a job serves no clients"),
	}
	for _, of := range []string{"limits", "requests"} {
		for name, rule := range resourceRules() {
			rules["resources."+of+"."+name] = rule
		}
	}
	return rules
}

// resourceRules are the rules for resources. hpcc requests what it limits, so the larger value of
// both counts.
func resourceRules() map[string]fieldRule {
	amount := func(f field.Field, set func(j *job.Job, n float64)) fieldRule {
		return func(r *podReader, n *yaml.Node) (field.Fate, string) {
			v, ok := parseQuantity(n.Value)
			if !ok || v <= 0 || v > 1<<62 {
				return field.Refused, fmt.Sprintf("%q is not a quantity", text.Short(n.Value))
			}
			set(r.Job, v)
			if f != "" {
				r.Row.Fills(f)
			}
			if f == field.CPUs && v != math.Ceil(v) {
				return field.Changed, fmt.Sprintf("rounded up to %.0f", math.Ceil(v))
			}
			return field.Kept, ""
		}
	}
	return map[string]fieldRule{
		"cpu":       amount(field.CPUs, func(j *job.Job, n float64) { j.CPUs = max(j.CPUs, int(math.Ceil(n))) }),
		"memory":    amount(field.Memory, func(j *job.Job, n float64) { j.Memory = max(j.Memory, int64(n)) }),
		resourceGPU: amount(field.GPUs, func(j *job.Job, n float64) { j.GPUs = max(j.GPUs, int(n)) }),
		resourceAMD: amount(field.GPUs, func(j *job.Job, n float64) { j.GPUs, j.GPUType = max(j.GPUs, int(n)), typeAMD }),
		"ephemeral-storage": onPods("use --native",
			amount("", func(j *job.Job, n float64) { j.Pod.Scratch = max(j.Pod.Scratch, int64(n)) })),
	}
}

// arguments appends a list of arguments.
func (r *podReader) arguments(n *yaml.Node, to *[]string) (field.Fate, string) {
	for _, w := range elements(n) {
		if w.Kind != yaml.ScalarNode {
			return field.Refused, "not a list of arguments"
		}
		*to = append(*to, r.expand(w.Value))
	}
	r.Row.Text += ": " + strings.Join(*to, " ")
	return field.Kept, ""
}

// variableText matches a reference to a variable, or an escaped dollar sign.
var variableText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\$|\$\([A-Za-z_][A-Za-z0-9_.-]*\)`) })

// expand replaces $(NAME), as the kubelet does.
func (r *podReader) expand(s string) string {
	return variableText().ReplaceAllStringFunc(s, func(m string) string {
		if m == "$$" {
			return "$"
		}
		if v, ok := r.env[m[2:len(m)-1]]; ok {
			return v
		}
		return m
	})
}

// volume returns the fate of a volume, which mount mounts.
func (r *podReader) volume(n *yaml.Node) (field.Fate, string) {
	r.Row.Text += ": " + scalarAt(n, "name")
	switch {
	case !r.pods:
		return field.Refused, "a batch job sees the cluster's file systems; use --bind DIR:PATH"
	case nodeAt(n, "persistentVolumeClaim") != nil, nodeAt(n, "secret") != nil:
		return field.Kept, ""
	case nodeAt(n, "emptyDir") != nil:
		return field.Kept, "an empty directory"
	}
	return field.Refused, "hpcc mounts claims, secrets and empty directories; COPY configuration files into the image"
}

// mount adds a volume or a secret to the job.
func (r *podReader) mount(n *yaml.Node) (field.Fate, string) {
	name, at := scalarAt(n, "name"), scalarAt(n, "mountPath")
	r.Row.Text += ": " + name + " at " + at
	v := r.volumes[name]
	suffix := ""
	if scalarAt(n, "readOnly") == "true" || scalarAt(nodeAt(v, "persistentVolumeClaim"), "readOnly") == "true" {
		suffix = ":ro"
	}
	claim, secret := scalarAt(nodeAt(v, "persistentVolumeClaim"), "claimName"), scalarAt(nodeAt(v, "secret"), "secretName")
	empty := nodeAt(v, "emptyDir") != nil
	switch {
	case nodeAt(n, "subPath") != nil || nodeAt(n, "subPathExpr") != nil:
		return field.Refused, "hpcc mounts the claim itself; use a link in it"
	case secret != "":
		s, err := job.ParseSecret(secret + ":" + at)
		if err != nil {
			return field.Refused, err.Error()
		}
		r.Job.Pod.Secrets = append(r.Job.Pod.Secrets, s)
		return field.Kept, ""
	case empty && at == "/dev/shm":
		return field.Kept, "set for jobs with GPUs or several processes"
	case empty:
		claim = "scratch"
	case claim == "":
		return field.Refused, "hpcc cannot mount this volume"
	}
	parsed, err := job.ParseVolume(claim + ":" + at + suffix)
	if err != nil {
		return field.Refused, err.Error()
	}
	r.Job.Pod.Volumes = append(r.Job.Pod.Volumes, parsed)
	return field.Kept, ""
}

// nodeAt returns the value below a mapping at a path of keys, or nil.
func nodeAt(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		if n = resolved(n); n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var found *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

// scalarAt returns the text of a scalar below a mapping, or "".
func scalarAt(n *yaml.Node, key string) string {
	if v := resolved(nodeAt(n, key)); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() != "!!null" {
		return v.Value
	}
	return ""
}

// elements returns the elements of a list.
func elements(n *yaml.Node) (list []*yaml.Node) {
	if n = resolved(n); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	for _, e := range n.Content {
		list = append(list, resolved(e))
	}
	return list
}

// resolved returns the value of a reference (*name).
func resolved(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// isManifest reports whether a text begins like a manifest in YAML or JSON.
func isManifest(text string) bool {
	for line := range strings.Lines(text) {
		t := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(t, "#!"):
			return false
		case t == "" || t[0] == '#' || t == "---":
			continue
		case t[0] == '{':
			return strings.Contains(text, `"apiVersion"`)
		}
		return manifestStart().MatchString(t)
	}
	return false
}

var manifestStart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(apiVersion|kind|metadata|spec|status)\s*:(\s|$)`) })
