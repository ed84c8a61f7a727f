package main

import (
	"cmp"
	"errors"
	"fmt"
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
	"hpcc/job/kube"
	"hpcc/job/quantity"
	"hpcc/store"
)

// podFlags say what targets want to know that run the image themselves.
func podFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "context", EnvVars: []string{kube.ContextVariable}, Usage: "use context `NAME` of kubectl (default: the current one)"},
		&cli.StringFlag{Name: "namespace", EnvVars: []string{kube.NamespaceVariable}, Usage: "use namespace or project `NAME` (default: the context's)"},
		&cli.StringSliceFlag{Name: "volume", Usage: "mount a persistent volume claim as `CLAIM:PATH[:ro]`, or an empty directory as scratch:PATH (repeatable)"},
		&cli.StringSliceFlag{Name: "port", Usage: "the program listens on `NAME=NUMBER`, which \"hpcc forward JOB NAME\" brings here (repeatable)"},
		&cli.StringSliceFlag{Name: "secret", Usage: "set the keys of secret `NAME` as variables, or, as NAME:PATH, have them as files (repeatable)"},
		&cli.StringFlag{Name: "scratch", Usage: "ask for `SIZE` of the node's own storage"},
		&cli.StringSliceFlag{Name: "node-label", Usage: "run only on nodes with label `KEY=VALUE` (repeatable)"},
		&cli.StringFlag{Name: "gpu-type", Usage: "ask for GPUs of model `NAME`"},
		&cli.BoolFlag{Name: "any-uid", Usage: "write no user id: the cluster gives one (as openshift always has it; for argo on OpenShift)"},
		&cli.StringFlag{Name: "service-account", Usage: "run as service account `NAME`, with its token"},
		&cli.StringFlag{Name: "pull", Usage: "fetch the image on the node `WHEN`: always, missing, never (default: the cluster's way)"},
		&cli.StringFlag{Name: "pull-secret", Usage: "fetch the image with the login in secret `NAME`"},
	}
}

// readPod fills in what pods want to know. The flags of run say it where they can; those that need hpcc on
// the node are refused.
func readPod(c *cli.Context, env *envChanges, j *job.Job, to *destination) error {
	if err := readArgo(c, to); err != nil {
		return err
	}
	if !to.Target.Pods() {
		for _, f := range podFlags() {
			if n := f.Names()[0]; n != "gpu-type" && n != "context" && n != "namespace" && c.IsSet(n) {
				return usagef("--%s is for kubernetes, openshift and argo, and the job goes to %s", n, to.Target).hint("leave it out, or say --to kubernetes")
			}
		}
		return nil
	}
	if err := readArtifacts(c, j); err != nil {
		return err
	}
	p := &j.Pod
	if err := parseEach(c, "volume", &p.Volumes, job.ParseVolume); err != nil {
		return err
	}
	if err := parseEach(c, "port", &p.Ports, job.ParsePort); err != nil {
		return err
	}
	if err := parseEach(c, "secret", &p.Secrets, job.ParseSecret); err != nil {
		return err
	}
	p.AnyUID = c.Bool("any-uid")
	p.PullSecret, p.ServiceAccount, p.NodeLabels = c.String("pull-secret"), c.String("service-account"), c.StringSlice("node-label")
	if s := c.String("scratch"); s != "" {
		var err error
		if p.Scratch, err = quantity.ParseMemory(s); err != nil {
			return usagef("--scratch: %w", err)
		}
	}
	var ok bool
	if p.Pull, ok = map[string]string{"": "", "always": "Always", "missing": "IfNotPresent", "never": "Never"}[c.String("pull")]; !ok {
		return usagef("--pull %q: give always, missing or never", c.String("pull"))
	}
	for _, v := range []struct{ flag, name string }{{"context", kube.ContextVariable}, {"namespace", kube.NamespaceVariable}} {
		if s := c.String(v.flag); s != "" {
			to.Env = withVariable(to.Env, v.name, s)
		}
	}
	return podRunFlags(c, env, j, to)
}

// parseEach reads the words of a repeatable flag.
func parseEach[T any](c *cli.Context, flag string, into *[]T, parse func(string) (T, error)) error {
	for _, s := range c.StringSlice(flag) {
		v, err := parse(s)
		if err != nil {
			return usagef("--%s: %w", flag, err)
		}
		*into = append(*into, v)
	}
	return nil
}

// withVariable is a copy of variables with one more.
func withVariable(env map[string]string, name, value string) map[string]string {
	out := map[string]string{name: value}
	for k, v := range env {
		if k != name {
			out[k] = v
		}
	}
	return out
}

// notInPods are flags of run that ask for what is the host's, and what to do instead.
var notInPods = map[string]string{
	"bind":       "mount a persistent volume claim with --volume CLAIM:PATH, or COPY files into the image",
	"mount":      "mount a persistent volume claim with --volume CLAIM:PATH",
	"home":       "mount a persistent volume claim with --volume CLAIM:PATH",
	"device":     "ask for GPUs with --gpus",
	"seccomp":    "pods run as ordinary users; do in the Dockerfile what needs root",
	"network":    "the cluster's network policies say whom a pod may speak to",
	"join-pid":   "name the processes with --tasks",
	"runtime":    "the cluster chooses it",
	"entrypoint": "write the program behind the image",
	"gid":        "pods are in group 0, as OpenShift has it",
}

// podRunFlags translates the flags of run. Of those that are not named here pods have what they ask for:
// a /tmp and a process namespace of their own, files that can be written, no home directory.
func podRunFlags(c *cli.Context, env *envChanges, j *job.Job, to *destination) error {
	for _, f := range runFlags(new(envChanges)) {
		n := f.Names()[0]
		if do := notInPods[n]; do != "" && c.IsSet(n) {
			return usagef("--%s is of this machine, and pods of %s have nothing of it", n, to.Target).hint("%s", do)
		}
	}
	if slices.ContainsFunc(env.words, func(w string) bool { return strings.HasPrefix(w, "--set-env") && strings.Contains(w, "{task}") }) {
		return usagef("--set-env with {task} in the file's name: pods do not see the file").hint("use --params FILE.csv, of which each task gets its row")
	}
	if d := c.String("cd"); d != "" && !filepath.IsAbs(d) {
		return usagef("--cd %q: in a pod it has to be absolute", d).hint("pods start in the WORKDIR of the image without it")
	}
	j.Pod.Dir = c.String("cd")
	j.GPUType = c.String("gpu-type")
	img, err := podImage(c, j, to)
	if err != nil {
		return err
	}
	return podConfig(c, env, j, to, img)
}

// podImage finds what the nodes are to pull, and the image's configuration where this machine has it: nil where not.
func podImage(c *cli.Context, j *job.Job, to *destination) (*v1.ConfigFile, error) {
	if j.Image == "" {
		return nil, nil
	}
	if c.String("with") != "" { // the cluster has it, or makes it
		return nil, nil
	}
	if isPath(j.Image) || namesSquashFS(j.Image) {
		return nil, usagef("image %s is a file of this machine, which pods do not see", j.Image).hint("\"hpcc load\" takes it into the store, \"hpcc deploy -r REGISTRY\" pushes it")
	}
	s, err := findStore(c)
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
			return nil, (&message{err: fmt.Errorf("image %s: it is not in the store, and names no registry", j.Image)}).hint("\"hpcc images\" lists those of the store; write the registry's name before it: registry.example.org/%s", j.Image)
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
	case namesRegistry(j.Image) && lost.Last == "": // pulled from there: its tag stands for all architectures
	case j.Pod.Pull == "Never":
	case c.Command.Name == "submit":
		return nil, (&message{err: fmt.Errorf("image %s: the nodes of the cluster cannot pull it: %w", j.Image, err)}).hint("\"hpcc deploy -r REGISTRY %s\" pushes it; --pull never, when somebody has loaded it on the nodes", j.Image)
	default:
		say("note: image %s: %v; \"hpcc deploy -r REGISTRY %s\" pushes it, and its digest stands here then", j.Image, err, j.Image)
	}
	return cfg, nil
}

// namesRegistry says whether a name of an image begins with that of a registry.
func namesRegistry(image string) bool {
	host, _, ok := strings.Cut(image, "/")
	return ok && (strings.ContainsAny(host, ".:") || host == "localhost")
}

// podConfig takes over what the image says: its variables are what --set-env changes, its entry point stands before
// the words, and its user must not be root.
func podConfig(c *cli.Context, env *envChanges, j *job.Job, to *destination, cfg *v1.ConfigFile) error {
	var has []string
	uid := int64(c.Int("uid"))
	if cfg != nil {
		has, j.Pod.Entrypoint = cfg.Config.Env, cfg.Config.Entrypoint
		user, _, _ := strings.Cut(cfg.Config.User, ":")
		if n, err := strconv.ParseInt(user, 10, 64); err == nil && n > 0 && !c.IsSet("uid") {
			uid = -1 // the image's own will do
		}
	}
	if j.Measure {
		if err := podMeasurer(c, j, cfg); err != nil {
			return err
		}
	}
	switch {
	case c.IsSet("uid") && uid <= 0:
		return usagef("--uid %d: pods do not run as root", uid).hint("leave it out: an image that would run as root runs as %d", job.OrdinaryUser)
	case to.Target == job.OpenShift && c.IsSet("uid"):
		return usagef("--uid: OpenShift gives each project user ids of its own, and refuses others").hint("leave it out; \"hpcc check --openshift %s\" says whether the image runs as any", j.Image)
	case j.Pod.AnyUID && c.IsSet("uid"):
		return usagef("--uid and --any-uid contradict each other")
	case uid >= 0 && !j.Pod.AnyUID:
		j.Pod.UID = cmp.Or(uid, job.OrdinaryUser)
	}
	if cfg == nil && to.Target == job.Argo && j.Image != "" {
		say("note: Argo starts programs itself, and image %s is not in the store: if it has an ENTRYPOINT, write that before the program", j.Image)
	}
	after, err := envfile.Apply(slices.Clone(has), env.list, !env.noExpand)
	if err != nil {
		return err
	}
	for _, e := range after {
		if !slices.Contains(has, e) {
			j.Pod.Env = append(j.Pod.Env, e)
		}
	}
	for _, e := range has {
		k, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(after, func(a string) bool { return strings.HasPrefix(a, k+"=") }) {
			j.Pod.Env = append(j.Pod.Env, k+"=") // the cluster cannot take a variable away
		}
	}
	j.Pod.Env = append(j.Pod.Env, homeless(j, slices.Concat(has, j.Pod.Env, j.Env))...)
	j.Run = nil
	tellNotThere(c, j)
	return nil
}

// podMeasurer are the words of the program that measures a pod's, which "hpcc build --entry" puts into images.
func podMeasurer(c *cli.Context, j *job.Job, cfg *v1.ConfigFile) error {
	program := []string{build.EntryFile, "entry"}
	has := j.Pod.Entrypoint
	switch {
	case j.Image == "" || c.String("with") != "":
		return usagef("--measure: the image is not known").hint("name it behind the flags")
	case cfg == nil:
		say("note: image %s is not in the store: it needs the program of \"hpcc build --entry\", and another ENTRYPOINT that it has stands before the program of the job only when you write it there", j.Image)
	case len(has) < len(program) || !slices.Equal(has[:len(program)], program):
		return (&message{err: fmt.Errorf("--measure: image %s lacks the program that measures in pods", j.Image)}).hint("hpcc build --entry -t %s … puts it there", j.Image)
	}
	j.Pod.Measurer.Words = slices.Concat(program, []string{"--measure", "--"}, behindFlags(has[min(len(has), len(program)):]))
	return nil
}

// behindFlags are the words of "hpcc entry" behind its own flags: an image may measure already.
func behindFlags(words []string) []string {
	for i, w := range words {
		switch {
		case w == "--":
			return words[i+1:]
		case !strings.HasPrefix(w, "-"):
			return words[i:]
		}
	}
	return nil
}

// homeless are the variables of a user of whom no file knows, for programs that ask for a name and a home
// (getpwuid fails for such a user, and / cannot be written). An image with "hpcc entry" sees to it itself.
func homeless(j *job.Job, has []string) []string {
	if len(j.Pod.Entrypoint) > 1 && j.Pod.Entrypoint[1] == "entry" {
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

// tellNotThere warns of a program's file that stands here, and which pods do not have.
func tellNotThere(c *cli.Context, j *job.Job) {
	for _, w := range j.Args {
		if strings.HasPrefix(w, "-") || filepath.IsAbs(w) || !strings.Contains(w, ".") {
			continue
		}
		if fi, err := os.Stat(filepath.Join(j.Dir, w)); err == nil && fi.Mode().IsRegular() {
			say("note: %s stands in %s, of which pods have nothing: COPY it into the image, or mount a volume with --volume CLAIM:PATH and --cd PATH", w, j.Dir)
			return
		}
	}
}
