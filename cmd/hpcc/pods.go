package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/kube"
	"hpcc/job/quantity"
	"hpcc/job/translate"
	"hpcc/store"
	"hpcc/text"
)

// Flags for the targets that run the image themselves: Kubernetes, OpenShift and Argo.

// podFlags are the flags of jobs that run as pods.
func podFlags() []cli.Flag {
	return inSection(podSection,
		&cli.StringFlag{Name: "context", EnvVars: []string{kube.ContextVariable}, Usage: "use kubectl context `NAME`"},
		&cli.StringFlag{Name: "namespace", EnvVars: []string{kube.NamespaceVariable}, Usage: "use namespace or project `NAME`"},
		&cli.StringSliceFlag{Name: "volume", Usage: "mount volume claim `CLAIM:PATH`[:ro], or scratch:PATH"},
		&cli.StringSliceFlag{Name: "port", Usage: "declare port `NAME=NUMBER` for hpcc forward"},
		&cli.StringSliceFlag{Name: "secret", Usage: "expose secret `NAME` as variables, or NAME:PATH as files"},
		&cli.StringFlag{Name: "with-code", Usage: "put the files of `DIR` into the directory of the program"},
		&cli.StringFlag{Name: "scratch", Usage: "request `SIZE` of the node's local storage"},
		&cli.StringSliceFlag{Name: "node-label", Usage: "run only on nodes with label `KEY=VALUE`"},
		&cli.StringFlag{Name: "gpu-type", Usage: "request GPUs of model `NAME`, or amd on Kubernetes"},
		&cli.BoolFlag{Name: "any-uid", Usage: "set no user ID; the cluster assigns one (default on openshift)"},
		&cli.StringFlag{Name: "service-account", Usage: "run as service account `NAME`"},
		&cli.StringFlag{Name: "pull", Usage: "pull the image `WHEN`: always, missing or never"},
		&cli.StringFlag{Name: "pull-secret", Usage: "pull the image with the credentials in secret `NAME`"},
	)
}

// podArgs holds the flags of jobs that run as pods.
type podArgs struct {
	context, namespace string
	pod                job.Pod // without image, user and environment, which resolve fills in
	gpuType            string
	withCode           string // a directory of this machine
	uid                int
	built              bool // --with: the cluster has the image, or builds it
	env                *envChanges
}

func parsePod(c *cli.Context, env *envChanges) (in podArgs, err error) {
	in = podArgs{context: c.String("context"), namespace: c.String("namespace"), gpuType: c.String("gpu-type"), withCode: c.String("with-code"), uid: c.Int("uid"), built: c.String("with") != "", env: env}
	p := &in.pod
	p.Command = c.IsSet("entrypoint") && c.String("entrypoint") == ""
	p.AnyUID, p.PullSecret, p.ServiceAccount, p.NodeLabels, p.Dir = c.Bool("any-uid"), c.String("pull-secret"), c.String("service-account"), c.StringSlice("node-label"), c.String("cd")
	p.CleanEnv, p.Hostname = c.Bool("clean-env"), c.String("hostname")
	if p.Volumes, err = parseEach(c, "volume", job.ParseVolume); err != nil {
		return in, err
	}
	if p.Ports, err = parseEach(c, "port", job.ParsePort); err != nil {
		return in, err
	}
	if p.Secrets, err = parseEach(c, "secret", job.ParseSecret); err != nil {
		return in, err
	}
	if s := c.String("scratch"); s != "" {
		if p.Scratch, err = quantity.ParseMemory(s); err != nil {
			return in, text.Usagef("--scratch: %w", err)
		}
	}
	var ok bool
	if p.Pull, ok = map[string]string{"": "", "always": "Always", "missing": "IfNotPresent", "never": "Never"}[c.String("pull")]; !ok {
		return in, text.Usagef("--pull %q is not always, missing or never", c.String("pull"))
	}
	return in, nil
}

// parseEach parses the values of a repeatable flag.
func parseEach[T any](c *cli.Context, flag string, parse func(string) (T, error)) (list []T, err error) {
	for _, s := range c.StringSlice(flag) {
		v, err := parse(s)
		if err != nil {
			return nil, text.Usagef("--%s: %w", flag, err)
		}
		list = append(list, v)
	}
	return list, nil
}

// fillPod fills in the settings of pods, from their own flags and the flags of "hpcc run". It
// refuses flags of "hpcc run" that need hpcc on the node. For a target without pods it refuses
// the flags of pods.
func (a *jobArgs) fillPod(ctx context.Context, j *job.Job, to *destination) error {
	j.GPUType = a.inPod.gpuType // some batch systems use it too
	if err := a.setServer(to); err != nil {
		return err
	}
	if !to.Target.Pods() {
		own := slices.DeleteFunc(podFlags(), func(f cli.Flag) bool { return f.Names()[0] == "gpu-type" })
		if n := a.set.first(own); n != "" && !a.goesTo(job.Target.Pods) {
			return text.Usagef("--%s applies only to kubernetes, openshift and argo, but the job goes to %s", n, to.Target).Hint("leave it out, or use --to kubernetes")
		}
		return a.fillDebug(j, to)
	}
	if len(a.from.files) < 2 { // readSteps handles the artifacts of several scripts
		for _, x := range a.argo.artifacts {
			if x.Step != "" {
				return text.Usagef("--artifact %s/%s: the job has no steps; write %s:%s", x.Step, x.Name, x.Name, x.Path)
			}
		}
		j.Artifacts = a.argo.artifacts
	}
	j.Pod = a.inPod.pod
	a.inPod.setContext(to)
	if a.set["chdir"] {
		say("note: --chdir: pods start in the image's directory, or that of --cd; hpcc writes output files to %s", j.Dir)
	}
	if err := a.fillRunInPod(ctx, j, to); err != nil {
		return err
	}
	return a.fillDebug(j, to)
}

// goesTo reports whether the job goes to another target of this kind, too.
func (a *jobArgs) goesTo(kind func(job.Target) bool) bool {
	return slices.ContainsFunc(a.targetChoices, func(w siteChoice) bool { return kind(w.target()) })
}

// setContext records --context and --namespace in the destination.
func (in *podArgs) setContext(to *destination) {
	to.setEnv(kube.ContextVariable, in.context)
	to.setEnv(kube.NamespaceVariable, in.namespace)
}

// setEnv sets a variable for the scheduler's commands, unless value is empty. It copies the
// environment first, because sites share it.
func (to *destination) setEnv(name, value string) {
	if value == "" {
		return
	}
	env := map[string]string{}
	maps.Copy(env, to.Env)
	env[name] = value
	to.Env = env
}

// inPods maps the flags of "hpcc run" that pods support to "", because fillRunInPod translates them or
// because a pod is always like that: it has its own empty /tmp, processes and shared memory, the files of
// its image, and nothing of the host. The other flags have a hint.
var inPods = map[string]string{
	"env": "", "env0": "", "set-env": "", "set-env0": "", "unset-env": "", "env-no-expand": "", "clean-env": "", "cd": "", "hostname": "", "uid": "",
	"private-tmp": "", "no-home": "", "no-passwd": "", "pid": "", "ipc": "", "no-config": "", "stage": "",
	"bind":       "mount a persistent volume claim with --volume CLAIM:PATH, or COPY files into the image",
	"mount":      "mount a persistent volume claim with --volume CLAIM:PATH",
	"home":       "mount a persistent volume claim with --volume CLAIM:PATH",
	"write":      "leave it out: changes of a pod to its image are lost; keep files with --volume CLAIM:PATH",
	"write-fake": "mount an empty directory at the path that the program writes to: --volume scratch:PATH",
	"device":     "request GPUs with --gpus",
	"gpu":        "request GPUs with --gpus 1",
	"mpi":        "leave it out: --tasks starts processes with the image's mpirun",
	"seccomp":    "pods run as ordinary users; do the steps that need root in the Dockerfile",
	"network":    "use a network policy of the cluster",
	"join":       "leave it out: the processes that --tasks starts share a pod",
	"join-ct":    "leave it out: the processes that --tasks starts share a pod",
	"join-tag":   "leave it out: the processes that --tasks starts share a pod",
	"join-pid":   "start several processes with --tasks",
	"entrypoint": "write the program after IMAGE; --entrypoint= leaves out the image's ENTRYPOINT",
	"gid":        "leave it out: pods run in group 0, as on OpenShift",
}

// fillRunInPod translates the flags of "hpcc run", and refuses those that inPods does not allow.
func (a *jobArgs) fillRunInPod(ctx context.Context, j *job.Job, to *destination) error {
	for _, f := range runFlags(new(envChanges)) {
		n := f.Names()[0]
		do, known := inPods[n]
		translated := (n == "entrypoint" && a.inPod.pod.Command) || (n == "gpu" && (j.GPUs > 0 || a.set["from"]))
		if a.set[n] && (do != "" || !known) && !translated {
			return text.Usagef("--%s cannot be used for pods of %s", n, to.Target).Hint("%s", cmp.Or(do, "leave it out"))
		}
	}
	in := &a.inPod
	if slices.ContainsFunc(in.env.argv, func(w string) bool { return strings.HasPrefix(w, "--set-env") && strings.Contains(w, "{task}") }) {
		return text.Usagef("--set-env with {task} in the file name: pods cannot read files on this machine").Hint("use --params FILE.csv, which gives each task one row")
	}
	if dir := in.pod.Dir; dir != "" && !filepath.IsAbs(dir) {
		return text.Usagef("--cd %q: not an absolute path, which pods need", dir).Hint("leave it out to start in the image's WORKDIR")
	}
	img, err := a.findPodImage(j)
	if err != nil {
		return err
	}
	if err := a.fillCode(ctx, j, to, img); err != nil {
		return err
	}
	j.ReadName(cmp.Or(j.Pod.Image, j.Image))
	return a.fillImageConfig(j, to, img)
}

// findPodImage finds the image that the nodes pull. It returns the image's configuration, or
// nil if this machine does not have the image.
func (a *jobArgs) findPodImage(j *job.Job) (*v1.ConfigFile, error) {
	if j.Image == "" || a.inPod.built {
		return nil, nil
	}
	if isPath(j.Image) || namesSquashFS(j.Image) {
		return nil, text.Usagef("image %s is a file on this machine, which pods cannot read", j.Image).Hint("load it with \"hpcc load\", and push it with \"hpcc deploy -r REGISTRY\"")
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return nil, err
	}
	img, err := s.Get(j.Image, nil)
	none := new(store.NotFoundError)
	if err != nil && !errors.As(err, &none) {
		say("note: image %s: %v", j.Image, err)
		img = nil
	}
	if img == nil || err != nil {
		if !namesRegistry(j.Image) {
			return nil, text.Hint(fmt.Errorf("image %s is not in the store, and its name has no registry", j.Image), "\"hpcc images\" lists the store; or add the registry to the name: registry.example.org/%s", j.Image)
		}
		return nil, nil
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config, err := img.ConfigName(); err == nil && j.Measure {
		j.Pod.Measurer = job.Measurer{Config: config.String(), Architecture: cfg.Architecture}
		if d, err := s.Digest(j.Image); err == nil {
			j.Pod.Measurer.Digest = d.String()
		}
	}
	ref, err := s.Pushed(j.Image)
	lost := new(store.NotPushedError)
	switch {
	case err == nil:
		j.Pod.Image = ref
	case !errors.As(err, &lost):
		return nil, err
	case namesRegistry(j.Image) && lost.Last == "": // pulled from that registry; the tag covers all architectures
	case j.Pod.Pull == "Never":
	case a.verb == "submit":
		return nil, text.Hint(fmt.Errorf("image %s: the nodes of the cluster cannot pull it: %w", j.Image, err), "push it with \"hpcc deploy -r REGISTRY %s\", or use --pull never if the nodes have it", j.Image)
	default:
		say("note: image %s: %v; push it with \"hpcc deploy -r REGISTRY %s\" to get its digest into the job", j.Image, err, j.Image)
	}
	return cfg, nil
}

// namesRegistry reports whether the name of an image begins with a registry.
func namesRegistry(image string) bool {
	host, _, ok := strings.Cut(image, "/")
	return ok && (strings.ContainsAny(host, ".:") || host == "localhost")
}

// fillImageConfig applies the image's configuration to the job. --set-env changes the image's
// variables, its entry point precedes the program, and its user must not be root.
func (a *jobArgs) fillImageConfig(j *job.Job, to *destination, cfg *v1.ConfigFile) error {
	var has []string
	env, uid, uidSet := a.inPod.env, int64(a.inPod.uid), a.set["uid"]
	if cfg != nil {
		has, j.Pod.Entrypoint = cfg.Config.Env, cfg.Config.Entrypoint
		user, _, _ := strings.Cut(cfg.Config.User, ":")
		if n, err := strconv.ParseInt(user, 10, 64); err == nil && n > 0 && !uidSet {
			uid = -1 // keep the image's user
		}
	}
	if j.Measure {
		if err := a.fillMeasurer(j, cfg); err != nil {
			return err
		}
	}
	if j.Pod.Command {
		j.Pod.Entrypoint = nil
	}
	switch {
	case uidSet && uid <= 0:
		return text.Usagef("--uid %d: pods do not run as root", uid).Hint("leave it out: hpcc runs an image whose user is root as user %d", job.OrdinaryUser)
	case to.Target == job.OpenShift && uidSet:
		return text.Usagef("--uid: OpenShift assigns user IDs to each project and refuses others").Hint("leave it out; \"hpcc check --openshift %s\" checks that the image runs with any user ID", j.Image)
	case j.Pod.AnyUID && uidSet:
		return text.Usagef("--uid and --any-uid contradict each other")
	case uid >= 0 && !j.Pod.AnyUID:
		j.Pod.UID = cmp.Or(uid, job.OrdinaryUser)
	}
	if cfg == nil && to.Target == job.Argo && j.Image != "" {
		say("note: image %s is not in the store: if it has an ENTRYPOINT, write that before the program, because Argo ignores it", j.Image)
	}
	if j.StartsProcesses() && j.Nodes <= 1 && len(j.Pod.Entrypoint) > 0 && !startsEntry(j.Pod.Entrypoint) {
		say("note: the image's ENTRYPOINT %s gets mpirun as its arguments; if it does not run them, use --entrypoint=", text.Arguments(j.Pod.Entrypoint))
	}
	own := userVariables(j, slices.Concat(has, j.Env))
	after, err := envfile.Apply(slices.Concat(has, own), env.list, !env.noExpand)
	if err != nil {
		return err
	}
	for _, e := range after {
		if !slices.Contains(has, e) {
			j.Pod.Env = append(j.Pod.Env, e)
		}
	}
	if a.set["unset-env"] && cfg == nil {
		return text.Usagef("--unset-env: the variables of the image are not known, and pods cannot unset them").Hint("leave it out: IMAGE -- env -u NAME CMD")
	}
	// The node's runtime sets HOME and HOSTNAME, and Kubernetes the addresses of services.
	fixed := slices.Concat(has, own, []string{"HOSTNAME=", "KUBERNETES_SERVICE_HOST="})
	left, err := envfile.Apply(slices.Clone(fixed), env.list, !env.noExpand)
	if err != nil {
		return err
	}
	for _, e := range fixed {
		k, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(left, func(a string) bool { return strings.HasPrefix(a, k+"=") }) {
			return text.Usagef("--unset-env: the image or Kubernetes sets %s, and pods cannot unset it", k).Hint("make it empty with --set-env %s=, or write IMAGE -- env -u %s CMD", k, k)
		}
	}
	j.Run = nil
	if a.inPod.withCode == "" {
		noteMissingFile(j)
	}
	return nil
}

// fillMeasurer fills in the argv of "hpcc entry --measure", which measures the program in a pod.
// "hpcc build --entry" puts hpcc entry into images.
func (a *jobArgs) fillMeasurer(j *job.Job, cfg *v1.ConfigFile) error {
	has := j.Pod.Entrypoint
	switch {
	case j.Image == "" || a.inPod.built:
		return text.Usagef("--measure: the image is not known").Hint("write IMAGE after the flags")
	case cfg == nil:
		say("note: image %s is not in the store: build it with \"hpcc build --entry\"; if it has another ENTRYPOINT, write that before the program", j.Image)
	case !startsEntry(has):
		return text.Hint(fmt.Errorf("--measure: image %s lacks the program that measures in pods", j.Image), "add it with hpcc build --entry -t %s …", j.Image)
	}
	if j.Pod.Command {
		has = nil
	}
	j.Pod.Measurer.Argv = append([]string{build.EntryFile, "entry", "--measure", "--"}, afterFlags(has[min(len(has), 2):])...)
	return nil
}

// startsEntry reports whether an ENTRYPOINT is hpcc entry, which "hpcc build --entry" puts into images.
func startsEntry(entrypoint []string) bool {
	return len(entrypoint) > 1 && entrypoint[0] == build.EntryFile && entrypoint[1] == "entry"
}

// afterFlags returns the arguments of "hpcc entry" after its flags, because the entry point of an
// image may already have --measure.
func afterFlags(argv []string) []string {
	for i, w := range argv {
		switch {
		case w == "--":
			return argv[i+1:]
		case !strings.HasPrefix(w, "-"):
			return argv[i:]
		}
	}
	return nil
}

// userVariables returns a name and a home for a user without a passwd entry, for whom getpwuid
// fails and / is not writable. An image with "hpcc entry" sets them itself.
func userVariables(j *job.Job, has []string) []string {
	if startsEntry(j.Pod.Entrypoint) {
		return nil
	}
	var out []string
	for _, e := range []string{"HOME=/tmp", "USER=hpcc", "LOGNAME=hpcc"} {
		k, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(has, func(h string) bool { return strings.HasPrefix(h, k+"=") }) {
			out = append(out, e)
		}
	}
	return out
}

// noteMissingFile warns if an argument names a file of this machine, which pods do not have.
func noteMissingFile(j *job.Job) {
	for _, w := range j.Args {
		if strings.HasPrefix(w, "-") || filepath.IsAbs(w) || !strings.Contains(w, ".") {
			continue
		}
		if fi, err := os.Stat(filepath.Join(j.Dir, w)); err == nil && fi.Mode().IsRegular() {
			say("note: %s is a file in %s, which pods cannot read: COPY it into the image, or mount a volume with --volume CLAIM:PATH and --cd PATH", w, j.Dir)
			return
		}
	}
}

// argoFlags are the flags for the Argo server and for features of its workflows.
func argoFlags() []cli.Flag {
	return inSection(argoSection,
		&cli.StringFlag{Name: "server", EnvVars: []string{argo.ServerVariable}, Usage: "submit to the Argo server at `URL` (default: through kubectl)"},
		&cli.StringFlag{Name: "token-file", EnvVars: []string{argo.TokenFileVariable}, Usage: "read the Argo server's token from `FILE`"},
		&cli.StringFlag{Name: "ca-file", EnvVars: []string{argo.CAFileVariable}, Usage: "trust the certificates in `FILE` for the Argo server"},
		&cli.BoolFlag{Name: "insecure-skip-verify", EnvVars: []string{argo.UnverifiedVariable}, Usage: "do not verify the Argo server's certificate"},
		&cli.StringFlag{Name: "workflow", Usage: "run the Argo workflow in `FILE`, or template/NAME"},
		&cli.StringSliceFlag{Name: "parameter", Usage: "set workflow parameter `NAME=VALUE`"},
		&cli.StringSliceFlag{Name: "artifact", Usage: "keep a path of a step for later steps: `STEP/NAME:PATH`"},
		&cli.BoolFlag{Name: "debug", Usage: "start the Python program under debugpy and wait for a debugger"},
	)
}

// argoArgs holds the flags for the Argo server and for features of its workflows.
type argoArgs struct {
	server, tokenFile, caFile string
	unverified                bool
	workflow                  string // a file, or template/NAME
	parameters                []string
	object                    string // --params of a workflow: a JSON object, or a file with one
	artifacts                 []job.Artifact
	debug                     bool // let programs wait for a debugger
}

func parseArgo(c *cli.Context) (argoArgs, error) {
	artifacts, err := parseEach(c, "artifact", job.ParseArtifact)
	return argoArgs{server: c.String("server"), tokenFile: c.String("token-file"), caFile: c.String("ca-file"), unverified: c.Bool("insecure-skip-verify"),
		workflow: c.String("workflow"), parameters: c.StringSlice("parameter"), object: c.String("params"), artifacts: artifacts, debug: c.Bool("debug")}, err
}

// setServer records the Argo server in the destination. For another target it refuses flags of
// Argo.
func (a *jobArgs) setServer(to *destination) error {
	if to.Target != job.Argo {
		own := slices.DeleteFunc(argoFlags(), func(f cli.Flag) bool { return f.Names()[0] == "debug" })
		if n := a.set.first(own); n != "" && !a.goesTo(func(t job.Target) bool { return t == job.Argo }) {
			return text.Usagef("--%s applies only to argo, but the job goes to %s", n, to.Target).Hint("use --to argo")
		}
		return nil
	}
	if a.set["parameter"] && !a.set["workflow"] {
		return text.Usagef("--parameter needs --workflow").Hint("give the parameters of a program as its arguments")
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
	server := to.Env[argo.ServerVariable] != ""
	for _, name := range []string{"token-file", "ca-file", "insecure-skip-verify"} {
		if a.set[name] && !server {
			return text.Usagef("--%s needs --server", name).Hint("name the Argo server: --server URL")
		}
	}
	if a.set["context"] && server {
		return text.Usagef("--context is for kubectl, but the job goes to the Argo server %s", to.Env[argo.ServerVariable]).Hint("use only one of them")
	}
	if to.Env[argo.ServerVariable] != "" && to.Env[kube.NamespaceVariable] == "" {
		to.setEnv(kube.NamespaceVariable, cmp.Or(os.Getenv("ARGO_NAMESPACE"), "default"))
	}
	return nil
}

// pinCluster records the current cluster of kubectl, if kubectl submits the job.
func pinCluster(ctx context.Context, to *destination) error {
	if !to.Target.Pods() || to.Env[argo.ServerVariable] != "" {
		return nil
	}
	return to.Pin(ctx)
}

// checkWorkflow refuses flags that contradict --workflow, and selects Argo as the target.
func (a *jobArgs) checkWorkflow(arguments int) error {
	if arguments > 0 || a.set["from"] {
		return text.Usagef("--workflow cannot be combined with an image, a program or --from")
	}
	if a.job.Measure {
		return text.Usagef("--measure cannot change the commands of a workflow").Hint("write command: [%s, entry, --measure, --, …] in a template, with an image of \"hpcc build --entry\"", build.EntryFile)
	}
	others := slices.DeleteFunc(jobFlags(), func(f cli.Flag) bool { return slices.Contains(withWorkflow, f.Names()[0]) })
	if name := a.set.first(others); name != "" {
		return text.Usagef("--%s cannot change a workflow", name).Hint("set it in the workflow, or as a --parameter that the workflow has")
	}
	if !a.set["to"] && !a.set["on"] {
		a.at.to = job.Argo
	}
	return nil
}

// withWorkflow are the flags of jobs that have an effect with --workflow.
var withWorkflow = []string{"workflow", "to", "on", "name", "output", "chdir", "params", "parameter", "debug", "context", "namespace", "server", "token-file", "ca-file",
	"insecure-skip-verify", "no-config", "store"}

// resolveWorkflow is resolve for a job with --workflow.
func (a *jobArgs) resolveWorkflow(ctx context.Context) (*job.Job, *destination, error) {
	to, err := a.destination(ctx)
	if err != nil {
		return nil, nil, err
	}
	if to.remote != nil {
		return nil, nil, text.Usagef("--workflow: workflows are submitted from this machine, not through site %s", to.Site)
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
			return nil, text.Usagef("--params: %w", err).Hint(`write --params '{"batch_size": 2}', or name a file with such an object`)
		}
		object = string(b)
	}
	given, err := argo.ParseParameters(object, a.argo.parameters)
	if err != nil {
		return nil, text.Usagef("%w", err)
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
			return nil, text.Usagef("--namespace %s: %s sets namespace %s", have, file, n).Hint("remove one of them")
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

// noteDebug prints how to attach a debugger. waiting names the program that waits for it, as in "the
// program waits".
func noteDebug(waiting string) {
	say("note: %s for a debugger: forward its port with \"hpcc forward JOB %s\"; the image needs debugpy", waiting, job.DebugPort.Name)
}

// fillDebug makes the job's program wait for a debugger.
func (a *jobArgs) fillDebug(j *job.Job, to *destination) error {
	if !a.argo.debug {
		return nil
	}
	if !to.Target.Pods() {
		return text.Usagef("--debug applies only to kubernetes, openshift and argo, but the job goes to %s", to.Target).Hint("enter a running task with \"hpcc attach\"")
	}
	if err := j.Debug(); err != nil {
		return text.Usagef("--debug: %w", err)
	}
	noteDebug("the program waits")
	return nil
}

// readSteps combines several scripts into one workflow.
func (a *jobArgs) readSteps(ctx context.Context, flags *job.Job, to *destination) (*job.Job, error) {
	files := a.from.files
	if to.Target != job.Argo {
		return nil, text.Usagef("--from names %d scripts, but only argo runs several as one job", len(files)).Hint("use --to argo, or submit them one by one with --after")
	}
	var list []*translate.Translation
	var names []string
	for _, file := range files {
		tr, err := a.translate(ctx, file, to)
		if err != nil {
			return nil, err
		}
		if tr.Dialect.Pods() {
			return nil, text.Usagef("--from %s: a manifest cannot be a step of a workflow", file).Hint("translate it alone, or write a job script for the step")
		}
		names = append(names, tr.Job.Name)
		list = append(list, tr)
	}
	before := map[string][]string{}
	for _, after := range flags.After {
		step, other, _ := strings.Cut(after, ":")
		if other == "" || strings.Contains(other, ":") || !slices.Contains(names, step) {
			return nil, text.Usagef("--after %s: several scripts need STEP:OTHER", after).Hint("write --after STEP:OTHER with steps of: %s", strings.Join(names, ", "))
		}
		before[step] = append(before[step], other)
	}
	var steps []*job.Job
	for i, tr := range list {
		tr.Among(names)
		a.overrule(tr, flags, "name", "after")
		tr.Job.After = append(tr.Job.After, before[tr.Job.Name]...)
		say("%s:", files[i])
		j, err := a.fit(tr, flags, to)
		if err != nil {
			return nil, err
		}
		steps = append(steps, j)
	}
	return job.NewSteps(cmp.Or(flags.Name, names[0]), steps, a.argo.artifacts)
}
