package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/build"
	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/kube"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
)

// fillPod fills in the settings of pods, from their own flags and the flags of "hpcc run". It
// refuses flags of "hpcc run" that need hpcc on the node. For a target without pods it refuses
// the flags of pods.
func (r *Request) fillPod(ctx context.Context, j *job.Job, to *Destination) error {
	j.GPUType = r.GPUType // some batch systems use it too
	if err := r.setServer(to); err != nil {
		return err
	}
	if !to.Target.Pods() {
		if r.PodFlag != "" {
			return text.Usagef("--%s applies only to kubernetes, openshift and argo, but the job goes to %s", r.PodFlag, to.Target).
				Hint("leave it out, or use --to kubernetes")
		}
		return r.fillDebug(j, to)
	}
	if len(r.From.Files) < 2 { // readSteps handles the artifacts of several scripts
		for _, x := range r.Argo.Artifacts {
			if x.Step != "" {
				return text.Usagef("--artifact %s/%s: the job has no steps; write %s:%s", x.Step, x.Name, x.Name, x.Path)
			}
		}
		j.Artifacts = r.Argo.Artifacts
	}
	j.Pod = r.Pod
	r.setContext(to)
	if r.Set["chdir"] {
		r.Logf("note: --chdir: pods start in the image's directory, or that of --cd; hpcc writes output files to %s", j.Dir)
	}
	if err := r.checkRunInPod(j, to); err != nil {
		return err
	}
	img, err := r.findPodImage(j)
	if err != nil {
		return err
	}
	if err := r.fillCode(ctx, j, to, img); err != nil {
		return err
	}
	j.ReadName(cmp.Or(j.Pod.Image, j.Image))
	if err := r.fillImageConfig(j, to, img); err != nil {
		return err
	}
	return r.fillDebug(j, to)
}

// setContext records --context and --namespace in the destination.
func (r *Request) setContext(to *Destination) {
	to.setEnv(kube.ContextVariable, r.Context)
	to.setEnv(kube.NamespaceVariable, r.Namespace)
}

// inPods maps the flags of "hpcc run" that pods support to "", because fillImageConfig translates them or
// because a pod is always like that: it has its own empty /tmp, processes and shared memory, the files of
// its image, and nothing of the host. The other flags have a hint.
var inPods = map[string]string{
	"env": "", "env0": "", "set-env": "", "set-env0": "", "unset-env": "", "env-no-expand": "", "clean-env": "",
	"cd": "", "hostname": "", "uid": "",
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

// checkRunInPod refuses flags of "hpcc run" that pods do not support.
func (r *Request) checkRunInPod(j *job.Job, to *Destination) error {
	for _, n := range r.RunFlags {
		do, known := inPods[n]
		translated := (n == "entrypoint" && r.Pod.Command) || (n == "gpu" && (j.GPUs > 0 || r.Set["from"]))
		if (do != "" || !known) && !translated {
			return text.Usagef("--%s cannot be used for pods of %s", n, to.Target).Hint("%s", cmp.Or(do, "leave it out"))
		}
	}
	perTask := func(w string) bool { return strings.HasPrefix(w, "--set-env") && strings.Contains(w, job.Placeholder) }
	if slices.ContainsFunc(r.Run, perTask) {
		return text.Usagef("--set-env with {task} in the file name: pods cannot read files on this machine").
			Hint("use --params FILE.csv, which gives each task one row")
	}
	if dir := r.Pod.Dir; dir != "" && !filepath.IsAbs(dir) {
		return text.Usagef("--cd %q: not an absolute path, which pods need", dir).
			Hint("leave it out to start in the image's WORKDIR")
	}
	return nil
}

// findPodImage finds the image that the nodes pull. It returns the image's configuration, or
// nil if this machine does not have the image.
func (r *Request) findPodImage(j *job.Job) (*v1.ConfigFile, error) {
	if j.Image == "" || r.BuiltImage {
		return nil, nil
	}
	if ready.IsPath(j.Image) || ready.NamesImageFile(j.Image) {
		return nil, text.Usagef("image %s is a file on this machine, which pods cannot read", j.Image).
			Hint("load it with \"hpcc load\", and push it with \"hpcc deploy -r REGISTRY\"")
	}
	s, err := store.OpenToRead(r.Store)
	if err != nil {
		return nil, err
	}
	img, err := s.Get(j.Image, nil)
	if err != nil {
		if !errors.As(err, new(*store.NotFoundError)) {
			r.Logf("note: image %s: %v", j.Image, err)
		}
		if !namesRegistry(j.Image) {
			return nil, text.Hint(fmt.Errorf("image %s is not in the store, and its name has no registry", j.Image),
				"\"hpcc images\" lists the store; or add the registry to the name: registry.example.org/%s", j.Image)
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
	case r.Verb == "submit":
		return nil, text.Hint(fmt.Errorf("image %s: the nodes of the cluster cannot pull it: %w", j.Image, err),
			"push it with \"hpcc deploy -r REGISTRY %s\", or use --pull never if the nodes have it", j.Image)
	default:
		r.Logf("note: image %s: %v; push it with \"hpcc deploy -r REGISTRY %s\" to get its digest into the job", j.Image, err, j.Image)
	}
	return cfg, nil
}

// namesRegistry reports whether the name of an image begins with a registry.
func namesRegistry(image string) bool {
	host, _, ok := strings.Cut(image, "/")
	return ok && (strings.ContainsAny(host, ".:") || host == "localhost")
}

// fillImageConfig applies the image's configuration to the job: its entry point precedes the program, and its user
// must not be root.
func (r *Request) fillImageConfig(j *job.Job, to *Destination, cfg *v1.ConfigFile) error {
	var has []string // the variables of the image
	uid, uidSet := int64(r.UID), r.Set["uid"]
	if cfg != nil {
		has, j.Pod.Entrypoint = cfg.Config.Env, cfg.Config.Entrypoint
		user, _, _ := strings.Cut(cfg.Config.User, ":")
		if n, err := strconv.ParseInt(user, 10, 64); err == nil && n > 0 && !uidSet {
			uid = -1 // keep the image's user
		}
	}
	if j.Measure {
		if err := r.fillMeasurer(j, cfg); err != nil {
			return err
		}
	}
	if j.Pod.Command {
		j.Pod.Entrypoint = nil
	}
	switch {
	case uidSet && uid <= 0:
		return text.Usagef("--uid %d: pods do not run as root", uid).
			Hint("leave it out: hpcc runs an image whose user is root as user %d", job.OrdinaryUser)
	case to.Target == job.OpenShift && uidSet:
		return text.Usagef("--uid: OpenShift assigns user IDs to each project and refuses others").
			Hint("leave it out; \"hpcc check --openshift %s\" checks that the image runs with any user ID", j.Image)
	case j.Pod.AnyUID && uidSet:
		return text.Usagef("--uid and --any-uid contradict each other")
	case uid >= 0 && !j.Pod.AnyUID:
		j.Pod.UID = cmp.Or(uid, job.OrdinaryUser)
	}
	if cfg == nil && to.Target == job.Argo && j.Image != "" {
		r.Logf("note: image %s is not in the store: if it has an ENTRYPOINT, write that before the program, because Argo ignores it", j.Image)
	}
	if j.StartsProcesses() && j.Nodes <= 1 && len(j.Pod.Entrypoint) > 0 && !startsEntry(j.Pod.Entrypoint) {
		r.Logf("note: the image's ENTRYPOINT %s gets mpirun as its arguments; if it does not run them, use --entrypoint=",
			text.Arguments(j.Pod.Entrypoint))
	}
	if err := r.fillPodEnv(j, has, cfg != nil); err != nil {
		return err
	}
	j.Run = nil
	if r.CodeDir == "" {
		r.noteMissingFile(j)
	}
	return nil
}

// fillPodEnv applies the changes of the environment to the variables of the image. It refuses changes that pods
// cannot make. known reports whether this machine has the image.
func (r *Request) fillPodEnv(j *job.Job, has []string, known bool) error {
	own := userVariables(j, slices.Concat(has, j.Env))
	after, err := envfile.Apply(slices.Concat(has, own), r.Env, !r.NoExpand)
	if err != nil {
		return err
	}
	for _, e := range after {
		if !slices.Contains(has, e) {
			j.Pod.Env = append(j.Pod.Env, e)
		}
	}
	if r.Set["unset-env"] && !known {
		return text.Usagef("--unset-env: the variables of the image are not known, and pods cannot unset them").
			Hint("leave it out: IMAGE -- env -u NAME CMD")
	}
	// The node's runtime sets HOME and HOSTNAME, and Kubernetes the addresses of services.
	fixed := slices.Concat(has, own, []string{"HOSTNAME=", "KUBERNETES_SERVICE_HOST="})
	left, err := envfile.Apply(slices.Clone(fixed), r.Env, !r.NoExpand)
	if err != nil {
		return err
	}
	for _, e := range fixed {
		k, _, _ := strings.Cut(e, "=")
		if !sets(left, k) {
			return text.Usagef("--unset-env: the image or Kubernetes sets %s, and pods cannot unset it", k).
				Hint("make it empty with --set-env %s=, or write IMAGE -- env -u %s CMD", k, k)
		}
	}
	return nil
}

// sets reports whether a list of variables has one with this name.
func sets(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}

// fillMeasurer fills in the argv of "hpcc entry --measure", which measures the program in a pod.
// "hpcc build --entry" puts hpcc entry into images.
func (r *Request) fillMeasurer(j *job.Job, cfg *v1.ConfigFile) error {
	has := j.Pod.Entrypoint
	switch {
	case j.Image == "" || r.BuiltImage:
		return text.Usagef("--measure: the image is not known").Hint("write IMAGE after the flags")
	case cfg == nil:
		r.Logf("note: image %s is not in the store: build it with \"hpcc build --entry\"; "+
			"if it has another ENTRYPOINT, write that before the program", j.Image)
	case !startsEntry(has):
		return text.Hint(fmt.Errorf("--measure: image %s lacks the program that measures in pods", j.Image),
			"add it with hpcc build --entry -t %s …", j.Image)
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
	return slices.DeleteFunc([]string{"HOME=/tmp", "USER=hpcc", "LOGNAME=hpcc"}, func(e string) bool {
		k, _, _ := strings.Cut(e, "=")
		return sets(has, k)
	})
}

// noteMissingFile warns if an argument names a file of this machine, which pods do not have.
func (r *Request) noteMissingFile(j *job.Job) {
	for _, w := range j.Args {
		if strings.HasPrefix(w, "-") || filepath.IsAbs(w) || !strings.Contains(w, ".") {
			continue
		}
		if fi, err := os.Stat(filepath.Join(j.Dir, w)); err == nil && fi.Mode().IsRegular() {
			r.Logf("note: %s is a file in %s, which pods cannot read: COPY it into the image, "+
				"or mount a volume with --volume CLAIM:PATH and --cd PATH", w, j.Dir)
			return
		}
	}
}
