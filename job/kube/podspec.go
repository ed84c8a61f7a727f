package kube

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/jobscript"
	"hpcc/text"
)

// Names within a pod.
const (
	MainContainer = "main"
	jobLabel      = "hpcc/job" // hpcc's job ID
	labelBy       = "app.kubernetes.io/managed-by"
	labelName     = "app.kubernetes.io/name"
	labelQueue    = "kueue.x-k8s.io/queue-name"
	resourceGPU   = "nvidia.com/gpu" // NVIDIA's device plugin
	resourceAMD   = "amd.com/gpu"    // AMD's device plugin
	typeAMD       = "amd"            // the type of GPUs of that plugin, whose model no label names
)

// gpuResource returns the resource of the job's GPUs.
func gpuResource(j *job.Job) string {
	if j.GPUType == typeAMD {
		return resourceAMD
	}
	return resourceGPU
}

// Labels returns the labels of a job's objects.
func Labels(j *job.Job, id string) map[string]string {
	return map[string]string{labelName: job.Label(j.Name), labelBy: "hpcc", jobLabel: job.Label(id)}
}

// QueueLabels returns the labels of the object itself, with the queue of Kueue.
func QueueLabels(j *job.Job, name string) map[string]string {
	labels := Labels(j, name)
	if j.Queue != "" {
		labels[labelQueue] = j.Queue
	}
	return labels
}

// labelText formats labels as a selector.
func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// NewPod returns a pod that runs one process, or the processes of one node, of the job. nth is the variable
// with the position of the task in the array, from 0.
func NewPod(j *job.Job, to job.Target, nth string) PodSpec {
	p := &j.Pod
	c := Container{
		Name: MainContainer, Image: imageOf(j), ImagePullPolicy: p.Pull, WorkingDir: expandable(p.Dir),
		Env: envOf(j), Resources: resourcesOf(j),
		SecurityContext: containerSecurity{Capabilities: capabilities{Drop: []string{"ALL"}}},
	}
	if c.Command, c.Args = commandOf(j, to, nth); j.Measured() && c.Command == nil {
		c.Command = expandAll(j.Entrypoint())
	}
	if p.Command && c.Command == nil {
		c.Command, c.Args = c.Args, nil
	}
	for _, o := range p.Ports {
		c.Ports = append(c.Ports, containerPort{o.Name, o.Number})
	}
	s := PodSpec{
		RestartPolicy: "Never", ActiveDeadlineSeconds: fullSeconds(j.Time), ServiceAccountName: p.ServiceAccount,
		SecurityContext: SecurityOf(j, to),
		NodeSelector:    nodeSelector(j), Affinity: affinityOf(j),
		// as process 1 the program would ignore SIGTERM and not reap its orphans; the pause container is process 1 instead
		ShareProcessNamespace: true,
	}
	if no := false; p.ServiceAccount == "" {
		s.AutomountServiceAccountToken = &no
	}
	if p.PullSecret != "" {
		s.ImagePullSecrets = []Named{{p.PullSecret}}
	}
	if j.GPUs > 0 { // nodes with GPUs often have a taint
		s.Tolerations = []Toleration{{gpuResource(j), "Exists", "NoSchedule"}}
	}
	mount(j, &s, &c)
	s.Containers = []Container{c}
	s.native, _ = readNative(j.Native) // Check has reported errors
	if p.Hostname != "" {
		s.native.set("hostname", p.Hostname)
	}
	if p.CleanEnv {
		s.native.set("enableServiceLinks", false)
	}
	if j.Tensorboard != "" {
		s.InitContainers = []Container{tensorboardContainer(j, c)}
	}
	return s
}

// imageOf returns the image reference for the nodes.
func imageOf(j *job.Job) string {
	if j.Pod.Image != "" {
		return j.Pod.Image
	}
	return j.Image
}

// envOf returns the variables: hpcc's, the job's, then those of --set-env.
func envOf(j *job.Job) []EnvVar {
	env := []EnvVar{{Name: "HPCC_JOB", ValueFrom: &envFrom{fieldRef{"metadata.labels['" + jobLabel + "']"}}}}
	if !j.Array.IsZero() {
		env = append(env, EnvVar{Name: "HPCC_TASK_COUNT", Value: strconv.Itoa(j.FullCount())})
	}
	if j.GPUs > 0 && gpuResource(j) == resourceGPU { // selects the driver's files in the container; the device plugin selects the GPUs
		env = append(env, EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "compute,utility"})
	}
	for _, e := range slices.Concat(j.Env, j.Pod.Env) {
		k, v, _ := strings.Cut(e, "=")
		env = slices.DeleteFunc(env, func(o EnvVar) bool { return o.Name == k })
		env = append(env, EnvVar{Name: k, Value: expandable(v)})
	}
	return env
}

// resourcesOf returns limits and equal requests, so that the job may use exactly what it reserves.
func resourcesOf(j *job.Job) resources {
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
		limits[gpuResource(j)] = strconv.Itoa(j.GPUs)
	}
	if j.Pod.Scratch > 0 {
		limits["ephemeral-storage"] = podQuantity(j.Pod.Scratch)
	}
	if len(limits) == 0 {
		return resources{}
	}
	return resources{Requests: limits, Limits: limits}
}

// podQuantity formats bytes as a Kubernetes quantity.
func podQuantity(n int64) string {
	for i, unit := range []string{"Ti", "Gi", "Mi", "Ki"} {
		if size := int64(1) << (40 - 10*i); n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// SecurityOf returns the settings of the profile "restricted" of the Pod Security Standards. OpenShift
// assigns user IDs to each namespace and rejects others. Elsewhere an image that would run as root
// gets an ordinary user in group 0, as on OpenShift.
func SecurityOf(j *job.Job, to job.Target) PodSecurity {
	s := PodSecurity{RunAsNonRoot: true, SeccompProfile: &seccompProfile{"RuntimeDefault"}}
	// CRI-O and containerd before 2.0 keep them for root
	if slices.ContainsFunc(j.Pod.Ports, func(p job.Port) bool { return p.Number < 1024 }) {
		s.Sysctls = []EnvVar{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	if to == job.OpenShift || j.Pod.AnyUID {
		return s
	}
	if s.RunAsUser = j.Pod.UID; s.RunAsUser > 0 {
		root := int64(0)
		s.RunAsGroup = &root
	}
	if len(j.Pod.Volumes) > 0 {
		s.FSGroup = max(s.RunAsUser, job.OrdinaryUser)
	}
	return s
}

// nodeSelector returns the labels that the node must have.
func nodeSelector(j *job.Job) map[string]string {
	labels := map[string]string{}
	for _, l := range slices.Concat(j.Features, j.Pod.NodeLabels) {
		k, v, _ := strings.Cut(l, "=")
		labels[k] = v
	}
	if j.GPUType != "" && j.GPUType != typeAMD {
		labels[labelGPU] = j.GPUType
	}
	return labels
}

// affinityOf returns the constraints on nodes, and on other pods on them.
func affinityOf(j *job.Job) *Affinity {
	a := &Affinity{}
	var terms []Requirement
	const host = "kubernetes.io/hostname"
	if len(j.Hosts) > 0 {
		terms = append(terms, Requirement{host, "In", j.Hosts})
	}
	if len(j.NotHosts) > 0 {
		terms = append(terms, Requirement{host, "NotIn", j.NotHosts})
	}
	if len(terms) > 0 {
		a.NodeAffinity = &nodeAffinity{nodeTerms{[]nodeTerm{{terms}}}}
	}
	if j.Exclusive { // services of the cluster are not Jobs and may stay
		a.PodAntiAffinity = &podAffinity{[]podTerm{{
			LabelSelector:     labelSelector{MatchExpressions: []Requirement{{Key: "batch.kubernetes.io/job-name", Operator: "Exists"}}},
			NamespaceSelector: &struct{}{}, TopologyKey: host,
		}}}
	}
	if a.NodeAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	return a
}

// mount adds volumes and secrets to the pod and its container.
func mount(j *job.Job, s *PodSpec, c *Container) {
	claims := map[string]string{}
	for i, v := range j.Pod.Volumes {
		name := claims[v.Claim]
		if name == "" || v.Claim == "" {
			name = "volume-" + strconv.Itoa(i+1)
			vol := Volume{Name: name, EmptyDir: &emptyDir{}}
			if v.Claim != "" {
				claims[v.Claim] = name
				vol.EmptyDir, vol.PersistentVolumeClaim = nil, &claimSource{ClaimName: v.Claim}
			} else if j.Pod.Scratch > 0 {
				vol.EmptyDir.SizeLimit = podQuantity(j.Pod.Scratch)
			}
			s.Volumes = append(s.Volumes, vol)
		}
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: name, MountPath: v.Path, ReadOnly: v.ReadOnly})
	}
	for i, e := range j.Pod.Secrets {
		if e.Path == "" {
			c.EnvFrom = append(c.EnvFrom, envSource{Named{e.Name}})
			continue
		}
		name := "secret-" + strconv.Itoa(i+1)
		s.Volumes = append(s.Volumes, Volume{Name: name, Secret: &secretSource{e.Name}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: name, MountPath: e.Path, ReadOnly: true})
	}
	taken := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool { return m.MountPath == path })
	}
	if !taken("/tmp") { // writable, as with "hpcc run"
		s.Volumes = append(s.Volumes, Volume{Name: "tmp", EmptyDir: &emptyDir{}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: "tmp", MountPath: "/tmp"})
	}
	if (j.ProcessesPerNode() > 1 || j.GPUs > 0) && !taken("/dev/shm") { // MPI processes and data loaders share memory; the default is 64 MB
		s.Volumes = append(s.Volumes, Volume{Name: "shm", EmptyDir: &emptyDir{Medium: "Memory"}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: "shm", MountPath: "/dev/shm"})
	}
}

// tensorboardContainer returns a sidecar with the program's image.
func tensorboardContainer(j *job.Job, like Container) Container {
	port, _ := job.UsualPort("tensorboard")
	return Container{
		Name: "tensorboard", Image: like.Image, ImagePullPolicy: like.ImagePullPolicy, RestartPolicy: "Always", WorkingDir: like.WorkingDir,
		Args:         []string{"tensorboard", "--logdir", expandable(j.Tensorboard), "--bind_all", "--port", strconv.Itoa(port)},
		Ports:        []containerPort{{"tensorboard", port}},
		VolumeMounts: like.VolumeMounts, SecurityContext: like.SecurityContext,
	}
}

// commandOf returns what the container runs: the arguments alone if they are the same for every task,
// else a shell that fills them in. The image's entry point is kept as a prefix.
func commandOf(j *job.Job, to job.Target, nth string) (command, args []string) {
	switch {
	case j.Script != nil:
		args = append([]string{shellOf(j, to), "-c", scriptOf(j, to, nth), j.Script.Name}, j.Script.Args...)
		return nil, expandAll(args)
	case j.Array.IsZero():
		argv := j.Args
		if j.StartsProcesses() && j.Nodes <= 1 {
			argv = append(jobscript.Mpirun(j), argv...)
		}
		return nil, expandAll(argv)
	}
	t := &jobscript.Writer{}
	writeTask(t, j, nth)
	argv := slices.Concat(j.Entrypoint(), j.Args)
	if j.StartsProcesses() && j.Nodes <= 1 {
		argv = slices.Concat(j.Entrypoint(), jobscript.Mpirun(j), j.Args)
	}
	t.Line("exec %s", expandArgv(j, argv))
	if len(j.Entrypoint()) > 0 {
		return expandAll([]string{"/bin/sh", "-c", t.String()}), nil
	}
	return nil, expandAll([]string{"/bin/sh", "-c", t.String()})
}

// shellOf returns the shell that runs the script of scriptOf. For images without bash the script is
// portable.
func shellOf(j *job.Job, to job.Target) string {
	own := len(j.Script.Shell) > 0 && path.Base(j.Script.Shell[0]) == "bash"
	if own || strings.Contains(jobscript.Prelude(j.Script, j, System{Target: to}.Describe().Dialect), "hpcc_hosts") { // a bash array
		return "bash"
	}
	return "sh"
}

// scriptOf returns a translated script, for a shell with its name and arguments.
func scriptOf(j *job.Job, to job.Target, nth string) string {
	t := &jobscript.Writer{}
	if !j.Array.IsZero() {
		writeTask(t, j, nth)
	}
	script := jobscript.Body(j.Script, j, System{Target: to}.Describe().Dialect)
	if strings.Contains(script, "HPCC_TASK_TMP") {
		t.Line("export HPCC_TASK_TMP=$(mktemp -d)")
	}
	t.WriteString(script)
	return t.String()
}

// writeTask writes shell code that sets the task's index and its parameters.
func writeTask(t *jobscript.Writer, j *job.Job, nth string) {
	t.Line("# The task's index, of the array %s:", j.Array)
	t.Line("k=$%s", nth)
	t.Line("%s", indexOf(j.Array))
	t.Line(`export HPCC_TASK_ID SLURM_ARRAY_TASK_ID="$HPCC_TASK_ID" LSB_JOBINDEX="$HPCC_TASK_ID" ` +
		`SGE_TASK_ID="$HPCC_TASK_ID" PBS_ARRAY_INDEX="$HPCC_TASK_ID"`)
	writeParams(t, &j.Params, j.Array)
}

// indexOf returns shell code that sets HPCC_TASK_ID to the k-th index, from 0.
func indexOf(a job.Array) string {
	var b strings.Builder
	before := 0
	for i, r := range a.Ranges {
		value := "HPCC_TASK_ID=" + strconv.Itoa(r.First)
		if r.First != r.Last {
			nth := "k"
			if r.Step > 1 {
				nth = fmt.Sprintf("%d * k", r.Step)
			}
			value = fmt.Sprintf("HPCC_TASK_ID=$((%s + %d))", nth, r.First-r.Step*before)
		}
		before += (r.Last-r.First)/r.Step + 1
		switch {
		case len(a.Ranges) == 1:
			b.WriteString(value)
		case i == len(a.Ranges)-1:
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

// writeParams writes shell code that sets hpcc_NAME to each parameter of the task. Lists are computed
// from the index; rows of a file are included for the indices of this array.
func writeParams(t *jobscript.Writer, p *job.Params, a job.Array) {
	if p.IsZero() {
		return
	}
	if p.File != "" {
		set := make([]string, len(p.Names))
		for i, n := range p.Names {
			set[i] = fmt.Sprintf("hpcc_%s=${%d}", n, i+1)
		}
		t.Line("row() { %s; }", strings.Join(set, " "))
		t.Line("case $HPCC_TASK_ID in")
		for k := range a.All() {
			row := p.Row(k)
			argv := make([]string, len(p.Names))
			for i, n := range p.Names {
				argv[i] = row[n]
			}
			t.Line("%d) row %s ;;", k, text.Arguments(argv))
		}
		t.Line("esac")
		return
	}
	t.Line(`pick() { shift "$1"; picked=$1; }`)
	stride := p.Count()
	for i, n := range p.Names {
		values := p.Rows[i]
		stride /= len(values)
		t.Line("pick $(((HPCC_TASK_ID - 1) / %d %% %d + 1)) %s; hpcc_%s=$picked", stride, len(values), text.Arguments(values), n)
	}
}

// expandArgv quotes arguments for the shell, with shell variables for {task} and the parameters.
func expandArgv(j *job.Job, argv []string) string {
	names := map[string]string{job.Placeholder: "HPCC_TASK_ID"}
	for _, n := range j.Params.Names {
		names["{"+n+"}"] = "hpcc_" + n
	}
	var out []string
	for _, w := range argv {
		var b strings.Builder
		for w != "" || b.Len() == 0 {
			at, what := len(w), ""
			for p := range names {
				if i := strings.Index(w, p); i >= 0 && i < at {
					at, what = i, p
				}
			}
			if at > 0 || what == "" {
				b.WriteString(text.Quote(w[:at]))
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

// StartWith sets the command explicitly, because without one Argo's controller would fetch the image's
// configuration from the registry.
func (c *Container) StartWith(entrypoint []string) {
	switch {
	case len(c.Command) > 0:
	case len(entrypoint) > 0:
		c.Command = expandAll(entrypoint)
	case len(c.Args) > 0:
		c.Command, c.Args = c.Args[:1], c.Args[1:]
	}
}

// labelGPU is the node label with the GPU model.
const labelGPU = "nvidia.com/gpu.product" // NVIDIA's GPU feature discovery

// expandable escapes text for Kubernetes, which replaces $(NAME) by a variable and $$ by $.
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

// expandAll calls expandable for each argument.
func expandAll(argv []string) []string {
	out := make([]string, len(argv))
	for i, w := range argv {
		out[i] = expandable(w)
	}
	return out
}
