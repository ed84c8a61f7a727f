package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/front/kernel"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/sshd"
	"hpcc/job/tunnel"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
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
	root          rootArgs
	argv          []string // of the kernel; empty for that of the image's kernelspec
	name, display string
	spec          string
	dir           string      // of kernelspecs
	shared        bool        // other users may read dir
	given         []string    // flags for "hpcc run", or for "hpcc kernel" in a job
	job           *submitArgs // nil: the kernel runs on this machine
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
	if len(argv) > 0 && !slices.ContainsFunc(argv, func(a string) bool { return strings.Contains(a, kernel.ConnectionFile) }) {
		return nil, text.Usagef("CMD has no argument %s, from which the kernel reads its addresses", kernel.ConnectionFile).
			Hint("write it as in a kernel.json: -- python -m ipykernel_launcher -f %s", kernel.ConnectionFile)
	}
	a := &kernelArgs{root: rootArgs{image: image, store: c.String("store")}, argv: argv, name: c.String("name"), display: c.String("display-name"), spec: c.String("spec"), shared: c.String("prefix") != ""}
	if len(argv) > 0 && a.spec != "" {
		return nil, text.Usagef("--spec and CMD contradict each other").Hint("use only one of them")
	}
	var err error
	if a.dir, err = kernelDir(c.String("prefix")); err != nil {
		return nil, err
	}
	if err := parseRunCheck(c); err != nil {
		return nil, err
	}
	set, at := parseFlagSet(c), ""
	isJob := slices.ContainsFunc(kernelJobFlags, func(n string) bool { return set[n] })
	flags := runFlags(new(envChanges))
	if isJob {
		if a.job, err = parseKernelSubmit(c); err != nil {
			return nil, err
		}
		at = string(a.job.at.to)
		flags = slices.DeleteFunc(kernelFlags(), func(f cli.Flag) bool {
			return slices.Contains([]string{"name", "display-name", "spec", "prefix", "connection-file", "store"}, f.Names()[0])
		})
	}
	if a.given, err = parseAbsolute(c, flags); err != nil {
		return nil, err
	}
	if a.name == "" {
		a.name = strings.Trim(kernelName(image)+"-"+at, "-")
	}
	if err := kernel.CheckName(a.name); err != nil {
		return nil, text.Usagef("%w", err).Hint("use letters, digits and . _ -: --name NAME")
	}
	return a, nil
}

// kernelName derives the name of a kernelspec from that of an image.
func kernelName(image string) string {
	name := strings.ReplaceAll(strings.TrimSuffix(defaultModule(image), "/latest"), "/", "-")
	return cmp.Or(strings.Trim(strings.ToLower(name), "-"), "image")
}

// kernelDir returns the directory of kernelspecs below a prefix, or the user's own.
func kernelDir(prefix string) (string, error) {
	if prefix != "" {
		return filepath.Abs(filepath.Join(prefix, kernel.Dir))
	}
	data, err := jupyterData()
	return filepath.Join(data, "kernels"), err
}

// jupyterData returns the directory of the user's data for Jupyter.
func jupyterData() (string, error) {
	if d := os.Getenv("JUPYTER_DATA_DIR"); d != "" {
		return filepath.Abs(d)
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "jupyter"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding Jupyter's directory: %w", err)
	}
	return filepath.Join(home, ".local/share/jupyter"), nil
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
	spec, store, err := a.kernelspec(ctx)
	if err != nil {
		return err
	}
	if a.job != nil {
		if err := a.check(ctx, spec.Argv); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Env)) { // for the kernel, not for hpcc
		a.given = append([]string{"--env=" + name + "=" + spec.Env[name]}, a.given...)
	}
	spec.Env = hideValues(a.given)
	if store != "" {
		a.given = append([]string{"--store=" + store}, a.given...)
	}
	start := []string{self, "run", "--bind=" + kernel.ConnectionFile}
	if a.job != nil {
		start = []string{self, "kernel", "--connection-file=" + kernel.ConnectionFile, "--name=" + a.name}
	}
	spec.Argv = slices.Concat(start, a.given, []string{a.root.image, "--"}, spec.Argv)
	spec.Name = a.name
	spec.DisplayName = cmp.Or(a.display, a.name+" ("+spec.DisplayName+")")
	dir, err := spec.Write(a.dir, a.root.image, a.shared)
	if occupied := new(kernel.OccupiedError); errors.As(err, &occupied) {
		return text.Hint(err, "use another name: --name NAME; or remove it: jupyter kernelspec remove %s", a.name)
	}
	if err != nil {
		return fmt.Errorf("writing the kernelspec: %w", err)
	}
	fmt.Println(dir)
	return nil
}

// hideValues moves values of --env from arguments, which all users can see while the kernel runs, to
// the variables with which Jupyter starts hpcc. It keeps variables that change hpcc itself, and values
// that Jupyter would expand.
func hideValues(argv []string) map[string]string {
	env := map[string]string{}
	for i, arg := range argv {
		v, isEnv := strings.CutPrefix(arg, "--env=")
		name, value, hasValue := strings.Cut(v, "=")
		own := name == "PATH" || name == "HOME" || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "HPCC_")
		if isEnv && hasValue && !own && !strings.Contains(value, "$") {
			env[name], argv[i] = value, "--env="+name
		}
	}
	return env
}

// kernelspec returns the kernelspec of the image, or one for CMD. store is the directory of the store
// that has the image, if any.
func (a *kernelArgs) kernelspec(ctx context.Context) (spec kernel.Spec, store string, err error) {
	if len(a.argv) > 0 && a.job != nil && a.job.at.target().Pods() { // the nodes pull the image
		return kernel.Spec{Argv: a.argv, DisplayName: filepath.Base(a.argv[0])}, "", nil
	}
	tree, store, done, err := a.root.readable(ctx)
	if err != nil {
		return spec, "", err
	}
	defer done()
	if len(a.argv) > 0 {
		return kernel.Spec{Argv: a.argv, DisplayName: filepath.Base(a.argv[0])}, store, nil
	}
	img, err := runtime.ReadImage(tree, unpack.ConfigFile)
	if err != nil {
		return spec, "", err
	}
	found, err := kernel.Find(tree, filepath.SplitList(cmp.Or(envfile.Lookup(img.Config.Env, "PATH"), runtime.StandardPath)))
	if err != nil {
		return spec, "", fmt.Errorf("reading the kernels of %s: %w", a.root.image, err)
	}
	spec, err = a.choose(found)
	return spec, store, err
}

// defaultSpec is the name of ipykernel's kernelspec.
const defaultSpec = "python3"

// choose returns the kernelspec that --spec names, or the only one, or that of Python.
func (a *kernelArgs) choose(found []kernel.Spec) (kernel.Spec, error) {
	var names []string
	for _, s := range found {
		if s.Name == a.spec || (a.spec == "" && (len(found) == 1 || s.Name == defaultSpec)) {
			return s, nil
		}
		names = append(names, s.Name)
	}
	switch {
	case len(found) == 0:
		return kernel.Spec{}, text.Hint(fmt.Errorf("image %s has no Jupyter kernel", a.root.image), "add ipykernel to its environment and build it again (for R: r-irkernel); a kernel without a kernelspec: hpcc kernel %s -- CMD %s", a.root.image, kernel.ConnectionFile)
	case a.spec == "":
		return kernel.Spec{}, text.Usagef("image %s has several kernels", a.root.image).Hint("choose one with --spec: %s", strings.Join(names, ", "))
	}
	m := text.Usagef("image %s has no kernelspec %q", a.root.image, a.spec)
	if like := text.Nearest(a.spec, names); like != "" {
		return kernel.Spec{}, m.Hint("did you mean %q?", like)
	}
	return kernel.Spec{}, m.Hint("it has %s", strings.Join(names, ", "))
}

// check refuses a job that the target would not accept, before Jupyter submits it.
func (a *kernelArgs) check(ctx context.Context, argv []string) error {
	a.job.Job.Name = a.name
	a.job.Job.Args = kernel.TaskArgv("/tmp", kernel.ConnectionFile, argv)
	j, to, err := a.job.prepare(ctx)
	if err != nil {
		return err
	}
	if to.remote != nil {
		return text.Usagef("a kernel cannot run on the remote site %s, whose nodes are reachable only from there", to.site.Name).
			Hint("run Jupyter and hpcc kernel on %s", to.site.SSH)
	}
	_, _, err = dispatch.Render(j, to.Target)
	return err
}

// kernelJob runs a kernel in a job, for Jupyter. It ends with the kernel, and the kernel with it.
type kernelJob struct {
	*submitArgs
	file string // connection file
	dir  string // of the kernel on its node
}

func parseKernelJob(c *cli.Context, argv []string) (*kernelJob, error) {
	a, err := parseKernelSubmit(c)
	if err != nil {
		return nil, err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	// The path of a socket has at most 107 bytes. The name is new for each kernel.
	k := &kernelJob{submitArgs: a, file: c.String("connection-file"), dir: "/tmp/hpcc-kernel-" + hex.EncodeToString(b[:])}
	k.Job.Args = kernel.TaskArgv(k.dir, k.file, argv)
	if k.Job.Output == "" {
		data, err := jupyterData()
		if err != nil {
			return nil, err
		}
		k.Job.Output = filepath.Join(data, "runtime", "{name}-{job}.out")
	}
	return k, nil
}

// jupyterVariables name Jupyter's own process for kernels on the same machine.
var jupyterVariables = []string{"JPY_PARENT_PID", "JPY_INTERRUPT_EVENT"}

func (k *kernelJob) run(ctx context.Context) error {
	for _, name := range jupyterVariables {
		os.Unsetenv(name)
	}
	// SIGINT interrupts the kernel's program; it does not end hpcc.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	interrupts, ends := make(chan os.Signal, 8), make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ends
		cancel()
	}()
	connection, err := kernel.ReadConnection(k.file)
	if err != nil {
		return err
	}
	listeners, err := connection.Listen()
	if err != nil {
		return text.Hint(err, "start the kernel again")
	}
	defer closeListeners(listeners)
	s, sub, err := k.submit(context.WithoutCancel(ctx)) // to know the ID of a job that is then cancelled
	if err != nil {
		return err
	}
	t, err := k.serve(ctx, s, sub, connection, listeners, interrupts)
	return k.end(context.WithoutCancel(ctx), s, sub, t, ctx.Err() != nil, err)
}

func closeListeners(list []net.Listener) {
	for _, l := range list {
		l.Close()
	}
}

// submit submits the job of the kernel.
func (k *kernelJob) submit(ctx context.Context) (*store.Store, *dispatch.Submission, error) {
	j, to, err := k.prepare(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := store.Open(k.Store)
	if err != nil {
		return nil, nil, err
	}
	sub, notes, err := dispatch.Submit(ctx, s.Jobs(), j, to.Cluster)
	if err != nil {
		return nil, nil, readOnlyHint(err, s.Jobs(), storeHint)
	}
	sayNotes(notes)
	say("submitted the kernel as job %s to %s", sub.ID, to)
	return s, sub, nil
}

// serve waits for the kernel's task, forwards connections to its sockets, and returns when the kernel
// has ended, or ctx.
func (k *kernelJob) serve(ctx context.Context, s *store.Store, sub *dispatch.Submission, c *kernel.Connection, listeners []net.Listener, interrupts <-chan os.Signal) (*job.Task, error) {
	t, err := sub.Running(ctx, s.Jobs(), dispatch.AnyTask, sayLine)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(s.Dir())
	if err != nil {
		return t, err
	}
	link, err := sub.StartSSH(ctx, t, dir, "")
	if err != nil {
		return t, err
	}
	defer link.Close()
	client, err := sshd.Dial(link)
	if err != nil {
		return t, fmt.Errorf("reaching %s, where the kernel runs: %s", t.Host, cmp.Or(link.Messages(), err.Error()))
	}
	defer client.Close()
	remote, err := c.Start(client, k.dir)
	if err != nil {
		return t, fmt.Errorf("starting the kernel on %s: %w", t.Host, err)
	}
	say("the kernel runs on %s", t.Host)
	for i, l := range listeners {
		go acceptKernel(remote, l, i)
	}
	for len(interrupts) > 0 { // of a kernel that did not run yet
		<-interrupts
	}
	ticker := time.NewTicker(kernelCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			remote.End()
			return t, nil
		case <-ticker.C:
			if !sub.Goes(ctx, s.Jobs(), t, true) {
				return t, nil
			}
		case <-remote.Ended():
			return t, nil
		case <-interrupts:
			if err := remote.Signal(syscall.SIGINT); err != nil {
				say("warning: interrupting the kernel: %v", err)
			}
		}
	}
}

// kernelCheck is the interval of checks that the task still runs, for a node that has failed.
const kernelCheck = 30 * time.Second

// acceptKernel forwards the connections of this user to port number i of the kernel.
func acceptKernel(remote *kernel.Remote, l net.Listener, i int) {
	g := &tunnel.Guard{Say: sayLine}
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		if !g.Admits(conn) {
			conn.Close()
			continue
		}
		go func() {
			defer conn.Close()
			_ = remote.Serve(conn.(sshd.HalfCloser), i) // after an error, ZeroMQ connects again
		}()
	}
}

// endTimeout is how long the job may take to record its end after its kernel's.
const endTimeout = 3 * time.Second

// end waits for the end of the job, or cancels it, and reports a kernel that has failed. t is the task of
// a kernel that ran, or nil.
func (k *kernelJob) end(ctx context.Context, s *store.Store, sub *dispatch.Submission, t *job.Task, asked bool, err error) error {
	var last job.Task
	if t != nil && err == nil {
		last = lastRecord(ctx, s, sub, t.Index)
	}
	if !last.Ended() {
		if _, cerr := sub.Cancel(ctx, s.Jobs()); cerr != nil {
			say("warning: cancelling job %s: %v", sub.ID, cerr)
		}
	}
	switch {
	case asked:
		return nil
	case err == nil && !last.Ended():
		err = fmt.Errorf("the connection to the kernel on %s has ended; its job %s was cancelled", t.Host, sub.ID)
	case err == nil && !last.OK():
		err = fmt.Errorf("the kernel on %s has ended: %s", t.Host, last.Ending())
	case err == nil:
		if !k.Set["output"] {
			os.Remove(last.Output)
		}
		return nil
	}
	return text.Hint(err, "hpcc logs %s", sub.ID)
}

// lastRecord returns the record of a task that ends within endTimeout, or an empty one.
func lastRecord(ctx context.Context, s *store.Store, sub *dispatch.Submission, index int) job.Task {
	for end := time.Now().Add(endTimeout); time.Now().Before(end); time.Sleep(endTimeout / 30) {
		st, err := sub.Status(ctx, s.Jobs(), sub.Target.Pods())
		if err != nil {
			continue
		}
		for _, t := range st.Tasks {
			if t.Index == index && t.Ended() {
				return t
			}
		}
	}
	return job.Task{}
}
