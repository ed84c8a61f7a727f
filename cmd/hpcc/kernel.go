package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/front/kernel"
	"hpcc/front/wrapper"
	"hpcc/job/dispatch"
	"hpcc/job/jupyter"
	"hpcc/job/prepare"
	"hpcc/runtime/root"
	"hpcc/store"
	"hpcc/text"
)

func kernelCommand() *cli.Command {
	return &cli.Command{
		Name: "kernel", Usage: "install a Jupyter kernel that runs in an image", ArgsUsage: kernelUsage,
		Description: `Writes a kernelspec for Jupyter, which starts the kernel of IMAGE with hpcc: here, or in a job for
each notebook if a flag of jobs is given. The image needs a kernel (ipykernel, IRkernel), not Jupyter.
CMD replaces the command of the image's kernelspec.

   hpcc kernel sci
   hpcc kernel --name sci-gpu --gpus 1 --mem 32G --time 8h sci

The job starts in the notebook's directory and ends with the kernel. Other users of its node cannot
connect to the kernel. "jupyter kernelspec remove NAME" removes a kernelspec.`,
		Flags:  kernelFlags(),
		Action: action(parseKernel),
	}
}

const kernelUsage = "IMAGE [-- CMD [ARG...]]"

// kernelJobFlags are the flags of "hpcc submit" that apply to a kernel. Any of them makes it a job.
var kernelJobFlags = []string{"to", "cpus", "mem", "gpus", "time", "queue", "output", "account", "exclusive", "native",
	"context", "namespace", "volume", "secret", "scratch", "node-label", "gpu-type", "any-uid", "service-account", "pull", "pull-secret"}

// notKernelFlags are the flags of runs that do not apply to a kernel, which could not change IMAGE
// safely or would have no client.
var notKernelFlags = []string{"write", "uid", "gid", "seccomp", "network", "pid", "join", "join-ct", "join-tag", "join-pid"}

func kernelFlags() []cli.Flag {
	var common []cli.Flag
	run := namesOf(runFlags(new(envChanges)))
	for _, f := range jobFlags() {
		name := f.Names()[0]
		isRun := slices.Contains(run, name) && !slices.Contains(notKernelFlags, name)
		if isRun || slices.Contains(kernelJobFlags, name) || name == "store" {
			common = append(common, f)
		}
	}
	return slices.Concat([]cli.Flag{
		&cli.StringFlag{Name: "name", Usage: "name the kernelspec `NAME` (default: after IMAGE and TARGET)"},
		&cli.StringFlag{Name: "display-name", Usage: "show `TEXT` in Jupyter"},
		&cli.StringFlag{Name: "spec", Usage: "use kernelspec `NAME` of the image"},
		&cli.StringFlag{Name: "prefix", Usage: "write to `DIR`/share/jupyter (default: of the user)"},
		&cli.StringFlag{Name: "connection-file", Hidden: true, Usage: "run the kernel for Jupyter's `FILE`"},
	}, common)
}

func namesOf(flags []cli.Flag) []string {
	var names []string
	for _, f := range flags {
		names = append(names, f.Names()[0])
	}
	return names
}

// kernelArgs is the command line of "hpcc kernel".
type kernelArgs struct {
	root    root.Image
	argv    []string // of the kernel; empty for that of the image's kernelspec
	spec    string   // name of the image's kernelspec
	install kernel.Installation
	job     *submitArgs // nil: the kernel runs on this machine
}

func parseKernel(c *cli.Context) (verb, error) {
	if c.NArg() == 0 {
		return nil, text.Usagef("kernel needs %s", kernelUsage).Hint(`"hpcc images" lists the images`)
	}
	image, argv := c.Args().First(), trimDashes(c.Args().Tail())
	if err := checkOrder("kernel", image, c.Args().Tail(), false); err != nil {
		return nil, err
	}
	if c.IsSet("connection-file") {
		return parseKernelJob(c, argv)
	}
	a := &kernelArgs{root: newRoot(image, c.String("store")), argv: argv, spec: c.String("spec"),
		install: kernel.Installation{Name: c.String("name"), Title: c.String("display-name"), Prefix: c.String("prefix")}}
	if len(argv) > 0 {
		if _, err := kernel.Command(argv); err != nil {
			return nil, err
		}
		if a.spec != "" {
			return nil, text.Usagef("--spec and CMD contradict each other").Hint("use only one of them")
		}
	}
	if err := parseRunCheck(c); err != nil {
		return nil, err
	}
	var err error
	set, at := parseFlagSet(c), ""
	flags := runFlags(new(envChanges))
	if slices.ContainsFunc(kernelJobFlags, func(n string) bool { return set[n] }) {
		if a.job, err = parseKernelSubmit(c); err != nil {
			return nil, err
		}
		at = string(a.job.At.To)
		flags = slices.DeleteFunc(kernelFlags(), func(f cli.Flag) bool {
			return slices.Contains([]string{"name", "display-name", "spec", "prefix", "connection-file", "store"}, f.Names()[0])
		})
	}
	if a.install.Flags, err = parseAbsolute(c, flags); err != nil {
		return nil, err
	}
	if a.install.Name == "" {
		a.install.Name = strings.Trim(kernelName(image)+"-"+at, "-")
	}
	return a, kernel.CheckName(a.install.Name)
}

// kernelName derives the name of a kernelspec from that of an image.
func kernelName(image string) string {
	name := strings.ReplaceAll(strings.TrimSuffix(wrapper.DefaultModule(image), "/latest"), "/", "-")
	return cmp.Or(strings.Trim(strings.ToLower(name), "-"), "image")
}

// parseKernelSubmit parses the flags of a kernel's job.
func parseKernelSubmit(c *cli.Context) (*submitArgs, error) {
	choices, err := parseSiteChoices(c)
	if err != nil {
		return nil, err
	}
	if len(choices) > 1 {
		return nil, text.Usagef("a kernel runs on one target, but --to names %d", len(choices)).Hint("install a kernelspec for each target")
	}
	return parseSubmitTo(c, choices[0])
}

func (a *kernelArgs) run(ctx context.Context) error {
	spec, err := a.kernelspec(ctx)
	if err == nil && a.job != nil {
		err = a.check(ctx, spec.Argv)
	}
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a.install.Image, a.install.Command = a.root.Name, []string{self, "run", "--bind=" + kernel.ConnectionFile}
	if a.job != nil {
		a.install.Command = []string{self, "kernel", "--connection-file=" + kernel.ConnectionFile, "--name=" + a.install.Name}
	}
	dir, err := spec.Install(a.install)
	if err == nil {
		fmt.Println(dir)
	}
	return err
}

// kernelspec returns the kernelspec of the image, or one for CMD. It finds the store of the image.
func (a *kernelArgs) kernelspec(ctx context.Context) (kernel.Spec, error) {
	if len(a.argv) > 0 && a.job != nil && a.job.At.Target().Pods() { // the nodes pull the image
		return kernel.Command(a.argv)
	}
	tree, store, done, err := readable(ctx, &a.root)
	if err != nil {
		return kernel.Spec{}, err
	}
	defer done()
	if a.install.Store = store; len(a.argv) > 0 {
		return kernel.Command(a.argv)
	}
	return kernel.Choose(tree, a.root.Name, a.spec)
}

// check refuses a job that the target would not accept, before Jupyter submits it.
func (a *kernelArgs) check(ctx context.Context, argv []string) error {
	a.job.Job.Name = a.install.Name
	a.job.Job.Args = jupyter.TaskArgv("/tmp", kernel.ConnectionFile, argv)
	j, to, err := prepare.Ready(ctx, &a.job.Request)
	if err != nil {
		return err
	}
	if to.Remote != nil {
		return text.Usagef("a kernel cannot run on the remote site %s, whose nodes are reachable only from there", to.Site.Name).
			Hint("run Jupyter and hpcc kernel on %s", to.Site.SSH)
	}
	_, _, err = dispatch.Render(j, to.Target)
	return err
}

// kernelJob runs a kernel in a job, for Jupyter.
type kernelJob struct {
	*submitArgs
	kernel jupyter.Kernel
}

func parseKernelJob(c *cli.Context, argv []string) (*kernelJob, error) {
	a, err := parseKernelSubmit(c)
	if err != nil {
		return nil, err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	// The path of a socket has at most 107 bytes. The name is new for each kernel.
	k := &kernelJob{a, jupyter.Kernel{
		File: c.String("connection-file"), Dir: "/tmp/hpcc-kernel-" + hex.EncodeToString(b[:]), KeepOutput: a.Set["output"], Say: sayLine,
	}}
	k.Job.Args = jupyter.TaskArgv(k.kernel.Dir, k.kernel.File, argv)
	if k.Job.Output == "" {
		data, err := kernel.DataDir()
		if err != nil {
			return nil, err
		}
		k.Job.Output = filepath.Join(data, "runtime", "{name}-{job}.out")
	}
	return k, nil
}

func (k *kernelJob) run(ctx context.Context) error {
	k.kernel.Submit = k.submit
	return k.kernel.Run(ctx)
}

// submit submits the job of the kernel.
func (k *kernelJob) submit(ctx context.Context) (jobs string, sub *dispatch.Submission, err error) {
	j, to, err := prepare.Ready(ctx, &k.Request)
	if err != nil {
		return "", nil, err
	}
	s, err := store.Open(k.Store)
	if err != nil {
		return "", nil, err
	}
	if sub, err = to.Submit(ctx, &k.Request, j); err != nil {
		return "", nil, err
	}
	say("submitted the kernel as job %s to %s", sub.ID, to)
	return s.Jobs(), sub, nil
}
