package job

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"hpcc/job/shellword"
)

// Names within a pod.
const (
	mainContainer = "main"
	labelJob      = "hpcc/job" // our id
	labelBy       = "app.kubernetes.io/managed-by"
	labelName     = "app.kubernetes.io/name"
	labelQueue    = "kueue.x-k8s.io/queue-name"
	LabelGPU      = "nvidia.com/gpu.product" // NVIDIA's GPU feature discovery
	resourceGPU   = "nvidia.com/gpu"         // NVIDIA's device plugin
)

// OrdinaryUser runs what would run as root, where nothing else is said.
const OrdinaryUser = 1000

// Pods says whether a target runs the image itself, in pods.
func (t Target) Pods() bool { return t == Kubernetes || t == OpenShift || t == Argo }

// labels are those of the objects of a job.
func (j *Job) labels(id string) map[string]string {
	return map[string]string{labelName: Label(j.Name), labelBy: "hpcc", labelJob: Label(id)}
}

// labelText are labels as a selector has them.
func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// podSpec is a pod that runs one process, or the processes of one node, of the job. nth is the variable
// that is the place of the task in the array, from 0.
func (j *Job) podSpec(to Target, nth string) podSpec {
	p := &j.Pod
	c := container{
		Name: mainContainer, Image: j.podImage(), ImagePullPolicy: p.Pull, WorkingDir: expandable(p.Dir), Env: j.podEnv(), Resources: j.podResources(),
		SecurityContext: containerSecurity{Capabilities: capabilities{Drop: []string{"ALL"}}},
	}
	if c.Command, c.Args = j.podCommand(to, nth); j.measured() && c.Command == nil {
		c.Command = expandAll(j.entrypoint())
	}
	for _, o := range p.Ports {
		c.Ports = append(c.Ports, containerPort{o.Name, o.Number})
	}
	s := podSpec{
		RestartPolicy: "Never", ActiveDeadlineSeconds: wholeSeconds(j.Time), ServiceAccountName: p.ServiceAccount, SecurityContext: j.podSecurity(to),
		NodeSelector: j.nodeSelector(), Affinity: j.affinity(),
		ShareProcessNamespace: true, // the pod's pause is the init: as one, the program would not hear SIGTERM, nor reap what it leaves behind
	}
	if no := false; p.ServiceAccount == "" {
		s.AutomountServiceAccountToken = &no
	}
	if p.PullSecret != "" {
		s.ImagePullSecrets = []named{{p.PullSecret}}
	}
	if j.GPUs > 0 { // nodes with GPUs are often kept for those who ask for them
		s.Tolerations = []toleration{{resourceGPU, "Exists", "NoSchedule"}}
	}
	j.mount(&s, &c)
	s.Containers = []container{c}
	if j.Tensorboard != "" {
		s.InitContainers = []container{j.podTensorboard(c)}
	}
	return s
}

// podImage is the reference that nodes pull.
func (j *Job) podImage() string {
	if j.Pod.Image != "" {
		return j.Pod.Image
	}
	return j.Image
}

// podEnv are the variables: ours, those of the job, then what --set-env said last.
func (j *Job) podEnv() []envVar {
	env := []envVar{{Name: "HPCC_JOB", ValueFrom: &envFrom{fieldRef{"metadata.labels['" + labelJob + "']"}}}}
	if !j.Array.IsZero() {
		env = append(env, envVar{Name: "HPCC_TASK_COUNT", Value: strconv.Itoa(j.whole())})
	}
	if j.GPUs > 0 { // which of the driver's files are put into the container; which GPUs, the device plugin says
		env = append(env, envVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "compute,utility"})
	}
	for _, e := range slices.Concat(j.Env, j.Pod.Env) {
		k, v, _ := strings.Cut(e, "=")
		env = slices.DeleteFunc(env, func(o envVar) bool { return o.Name == k })
		env = append(env, envVar{Name: k, Value: expandable(v)})
	}
	return env
}

// podResources are limits, and requests of the same size: what the job is given is what it may use.
func (j *Job) podResources() resources {
	limits := map[string]string{}
	n := j.ProcessesPerNode()
	if j.CPUs > 0 {
		limits["cpu"] = strconv.Itoa(j.CPUs * n)
	} else if n > 1 {
		limits["cpu"] = strconv.Itoa(n)
	}
	switch {
	case j.Memory > 0:
		limits["memory"] = podQuantity(j.Memory)
	case j.MemoryPerCPU > 0:
		limits["memory"] = podQuantity(j.MemoryPerCPU * int64(max(j.CPUs, 1)*n))
	}
	if j.GPUs > 0 {
		limits[resourceGPU] = strconv.Itoa(j.GPUs)
	}
	if j.Pod.Scratch > 0 {
		limits["ephemeral-storage"] = podQuantity(j.Pod.Scratch)
	}
	if len(limits) == 0 {
		return resources{}
	}
	return resources{Requests: limits, Limits: limits}
}

// podQuantity writes bytes as Kubernetes does.
func podQuantity(n int64) string {
	for i, unit := range []string{"Ti", "Gi", "Mi", "Ki"} {
		if size := int64(1) << (40 - 10*i); n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// podSecurity is what the profile "restricted" of the Pod Security Standards asks for. OpenShift gives each
// namespace user ids of its own and refuses others; elsewhere an image that would run as
// root needs one. It is in group 0 then, as it would be on OpenShift.
func (j *Job) podSecurity(to Target) podSecurity {
	s := podSecurity{RunAsNonRoot: true, SeccompProfile: &seccompProfile{"RuntimeDefault"}}
	if to == OpenShift || j.Pod.AnyUID {
		return s
	}
	if s.RunAsUser = j.Pod.UID; s.RunAsUser > 0 {
		root := int64(0)
		s.RunAsGroup = &root
	}
	if len(j.Pod.Volumes) > 0 {
		s.FSGroup = max(s.RunAsUser, OrdinaryUser)
	}
	return s
}

// nodeSelector are labels that the node must have.
func (j *Job) nodeSelector() map[string]string {
	labels := map[string]string{}
	for _, l := range slices.Concat(j.Features, j.Pod.NodeLabels) {
		k, v, _ := strings.Cut(l, "=")
		labels[k] = v
	}
	if j.GPUType != "" {
		labels[LabelGPU] = j.GPUType
	}
	return labels
}

// affinity says which nodes the pod may have, and with whom.
func (j *Job) affinity() *affinity {
	a := &affinity{}
	var terms []requirement
	const host = "kubernetes.io/hostname"
	if len(j.Hosts) > 0 {
		terms = append(terms, requirement{host, "In", j.Hosts})
	}
	if len(j.NotHosts) > 0 {
		terms = append(terms, requirement{host, "NotIn", j.NotHosts})
	}
	if len(terms) > 0 {
		a.NodeAffinity = &nodeAffinity{nodeTerms{[]nodeTerm{{terms}}}}
	}
	if j.Exclusive { // services of the cluster are no Jobs, and stay
		a.PodAntiAffinity = &podAffinity{[]podTerm{{
			LabelSelector:     labelSelector{MatchExpressions: []requirement{{Key: "batch.kubernetes.io/job-name", Operator: "Exists"}}},
			NamespaceSelector: &struct{}{}, TopologyKey: host,
		}}}
	}
	if a.NodeAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	return a
}

// mount puts volumes and secrets into the pod and its container.
func (j *Job) mount(s *podSpec, c *container) {
	claims := map[string]string{}
	for i, v := range j.Pod.Volumes {
		name := claims[v.Claim]
		if name == "" || v.Claim == "" {
			name = "volume-" + strconv.Itoa(i+1)
			vol := volume{Name: name, EmptyDir: &emptyDir{}}
			if v.Claim != "" {
				claims[v.Claim] = name
				vol.EmptyDir, vol.PersistentVolumeClaim = nil, &claimSource{ClaimName: v.Claim}
			} else if j.Pod.Scratch > 0 {
				vol.EmptyDir.SizeLimit = podQuantity(j.Pod.Scratch)
			}
			s.Volumes = append(s.Volumes, vol)
		}
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{name, v.Path, v.ReadOnly})
	}
	for i, e := range j.Pod.Secrets {
		if e.Path == "" {
			c.EnvFrom = append(c.EnvFrom, envSource{named{e.Name}})
			continue
		}
		name := "secret-" + strconv.Itoa(i+1)
		s.Volumes = append(s.Volumes, volume{Name: name, Secret: &secretSource{e.Name}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{name, e.Path, true})
	}
	taken := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool { return m.MountPath == path })
	}
	if !taken("/tmp") { // there and open to the user, as "hpcc run" has it
		s.Volumes = append(s.Volumes, volume{Name: "tmp", EmptyDir: &emptyDir{}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: "tmp", MountPath: "/tmp"})
	}
	if (j.ProcessesPerNode() > 1 || j.GPUs > 0) && !taken("/dev/shm") { // processes of a node, and loaders of data, share memory; 64 MB is what runtimes give
		s.Volumes = append(s.Volumes, volume{Name: "shm", EmptyDir: &emptyDir{Medium: "Memory"}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: "shm", MountPath: "/dev/shm"})
	}
}

// podTensorboard runs beside the program, in the same image, and ends with it.
func (j *Job) podTensorboard(like container) container {
	port, _ := UsualPort("tensorboard")
	return container{
		Name: "tensorboard", Image: like.Image, ImagePullPolicy: like.ImagePullPolicy, RestartPolicy: "Always", WorkingDir: like.WorkingDir,
		Args:         []string{"tensorboard", "--logdir", expandable(j.Tensorboard), "--bind_all", "--port", strconv.Itoa(port)},
		Ports:        []containerPort{{"tensorboard", port}},
		VolumeMounts: like.VolumeMounts, SecurityContext: like.SecurityContext,
	}
}

// podCommand is what the container runs: the words alone, where they are the same for every
// task; else a shell that fills them in. An entry point of the image stays before them.
func (j *Job) podCommand(to Target, nth string) (command, args []string) {
	switch {
	case j.Script != nil:
		args = append([]string{j.podShell(to), "-c", j.podScript(to, nth), j.Script.Name}, j.Script.Args...)
		return nil, expandAll(args)
	case j.Array.IsZero():
		words := j.Args
		if j.multi() && j.Nodes <= 1 {
			words = append(mpirun(j), words...)
		}
		return nil, expandAll(words)
	}
	t := &text{}
	t.podTask(j, nth)
	words := slices.Concat(j.entrypoint(), j.Args)
	if j.multi() && j.Nodes <= 1 {
		words = slices.Concat(j.entrypoint(), mpirun(j), j.Args)
	}
	t.line("exec %s", j.liveWords(words))
	if len(j.entrypoint()) > 0 {
		return expandAll([]string{"/bin/sh", "-c", t.String()}), nil
	}
	return nil, expandAll([]string{"/bin/sh", "-c", t.String()})
}

// measured says whether the program of a pod is measured: what a person runs at a terminal
// leaves no pod that could tell.
func (j *Job) measured() bool { return j.Measure && !j.Interactive }

// entrypoint stands before the words of the program.
func (j *Job) entrypoint() []string {
	if j.measured() {
		return j.Pod.Measurer.Words
	}
	return j.Pod.Entrypoint
}

// podShell runs podScript: images without bash have scripts that need none.
func (j *Job) podShell(to Target) string {
	own := len(j.Script.Shell) > 0 && path.Base(j.Script.Shell[0]) == "bash"
	if own || strings.Contains(j.Script.prelude(j, to), "hpcc_hosts") { // an array of bash's
		return "bash"
	}
	return "sh"
}

// podScript is a translated script, for a shell with its name and arguments.
func (j *Job) podScript(to Target, nth string) string {
	t := &text{}
	if !j.Array.IsZero() {
		t.podTask(j, nth)
	}
	script := j.Script.render(j, to)
	if strings.Contains(script, "HPCC_TASK_TMP") {
		t.line("export HPCC_TASK_TMP=$(mktemp -d)")
	}
	t.WriteString(script)
	return t.String()
}

// podTask is shell that finds out which task this is, and what its parameters are.
func (t *text) podTask(j *Job, nth string) {
	t.line("# The task's index, of the array %s:", j.Array)
	t.line("k=$%s", nth)
	t.line("%s", j.Array.podIndex())
	t.line(`export HPCC_TASK_ID SLURM_ARRAY_TASK_ID="$HPCC_TASK_ID" LSB_JOBINDEX="$HPCC_TASK_ID" SGE_TASK_ID="$HPCC_TASK_ID" PBS_ARRAY_INDEX="$HPCC_TASK_ID"`)
	t.podParams(&j.Params, j.Array)
}

// podIndex is shell that sets HPCC_TASK_ID to the k-th index, from 0.
func (a Array) podIndex() string {
	var b strings.Builder
	before := 0
	for i, r := range a.ranges {
		value := "HPCC_TASK_ID=" + strconv.Itoa(r.first)
		if r.first != r.last {
			nth := "k"
			if r.step > 1 {
				nth = fmt.Sprintf("%d * k", r.step)
			}
			value = fmt.Sprintf("HPCC_TASK_ID=$((%s + %d))", nth, r.first-r.step*before)
		}
		before += (r.last-r.first)/r.step + 1
		switch {
		case len(a.ranges) == 1:
			b.WriteString(value)
		case i == len(a.ranges)-1:
			fmt.Fprintf(&b, "else %s; fi", value)
		default:
			if i > 0 {
				b.WriteString("el")
			}
			fmt.Fprintf(&b, `if [ "$k" -lt %d ]; then %s`+"\n", before, value)
		}
	}
	return b.String()
}

// podParams is shell that sets hpcc_NAME to each parameter of the task: lists are
// counted off, rows of a file stand there, those of this array alone.
func (t *text) podParams(p *Params, a Array) {
	if p.IsZero() {
		return
	}
	if p.File != "" {
		set := make([]string, len(p.names))
		for i, n := range p.names {
			set[i] = fmt.Sprintf("hpcc_%s=${%d}", n, i+1)
		}
		t.line("row() { %s; }", strings.Join(set, " "))
		t.line("case $HPCC_TASK_ID in")
		for k := range a.All() {
			row := p.Row(k)
			words := make([]string, len(p.names))
			for i, n := range p.names {
				words[i] = row[n]
			}
			t.line("%d) row %s ;;", k, shellword.Join(words))
		}
		t.line("esac")
		return
	}
	t.line(`pick() { shift "$1"; picked=$1; }`)
	stride := p.Count()
	for i, n := range p.names {
		values := p.rows[i]
		stride /= len(values)
		t.line("pick $(((HPCC_TASK_ID - 1) / %d %% %d + 1)) %s; hpcc_%s=$picked", stride, len(values), shellword.Join(values), n)
	}
}

// liveWords are words of a command line for the shell, in which {task} and the parameters
// are its variables.
func (j *Job) liveWords(words []string) string {
	names := map[string]string{Placeholder: "HPCC_TASK_ID"}
	for _, n := range j.Params.names {
		names["{"+n+"}"] = "hpcc_" + n
	}
	var out []string
	for _, w := range words {
		var b strings.Builder
		for w != "" || b.Len() == 0 {
			at, what := len(w), ""
			for p := range names {
				if i := strings.Index(w, p); i >= 0 && i < at {
					at, what = i, p
				}
			}
			if at > 0 || what == "" {
				b.WriteString(shellword.Quote(w[:at]))
			}
			if what != "" {
				fmt.Fprintf(&b, `"$%s"`, names[what])
			}
			w = w[at+len(what):]
		}
		out = append(out, b.String())
	}
	return strings.Join(out, " ")
}

// expandable writes text so that Kubernetes, which puts variables in the place of
// $(NAME) and $ in that of $$, leaves it as it is.
func expandable(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteByte(s[i])
		if s[i] == '$' && i+1 < len(s) && (s[i+1] == '$' || s[i+1] == '(') {
			b.WriteByte('$')
		}
	}
	return b.String()
}

func expandAll(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = expandable(w)
	}
	return out
}
