package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/devices"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
	"hpcc/store/wait"
)

// runFlags are the flags that "hpcc run" and jobs share. Names and letters that ch-run also
// has mean the same.
func runFlags(env *envChanges) []cli.Flag {
	return slices.Concat(inSection(containerSection, env.flags()...), inSection(containerSection,
		&cli.StringFlag{Name: "cd", Aliases: []string{"c", "workdir"}, Usage: "start in directory `DIR` of the image"},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b", "v"}, Usage: "bind host path `SRC`[:DST[:ro]]"},
		&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "let the program modify the image directory"},
		&cli.GenericFlag{Name: "write-fake", Aliases: []string{"W"}, Value: &sizeFlag{}, Usage: "let the program modify a temporary copy, at most `SIZE`"},
		&cli.BoolFlag{Name: "private-tmp", Aliases: []string{"t"}, Usage: "mount an empty /tmp"},
		&cli.BoolFlag{Name: "no-home", Usage: "do not bind the home directory"},
	), inSection(containerSection, deviceFlags()...), inSection(isolationSection,
		&cli.BoolFlag{Name: "clean-env", Usage: "start from the image's environment instead of the caller's"},
		&cli.BoolFlag{Name: "home", Usage: "bind the home directory (default)"},
		&cli.StringSliceFlag{Name: "mount", Usage: "mount `SPEC`: type=bind or tmpfs,source=SRC,target=DST[,readonly]"},
		&cli.StringFlag{Name: "entrypoint", Usage: "run `PROG` instead of the image's ENTRYPOINT and CMD"},
		&cli.IntFlag{Name: "uid", Aliases: []string{"u"}, Usage: "use user ID `N` in the container"},
		&cli.IntFlag{Name: "gid", Aliases: []string{"g"}, Usage: "use group ID `N` in the container"},
		&cli.BoolFlag{Name: "seccomp", Usage: "with --uid 0: pretend that chown and mknod succeed"},
		&cli.BoolFlag{Name: "no-passwd", Usage: "keep the image's /etc/passwd and /etc/group"},
		&cli.StringFlag{Name: "network", Usage: "use `NETWORK`: host (default) or none"},
		&cli.StringFlag{Name: "hostname", Usage: "set the host name to `NAME`"},
		&cli.BoolFlag{Name: "pid", Usage: "use a PID namespace with an init process"},
		&cli.BoolFlag{Name: "ipc", Usage: "use an IPC namespace: no shared memory segments of the host"},
	), inSection(isolationSection,
		&cli.BoolFlag{Name: "join", Aliases: []string{"j"}, Usage: "share namespaces with the job's other tasks on this node"},
		&cli.IntFlag{Name: "join-ct", Usage: "with --join: wait for `N` tasks (default: the launcher's)"},
		&cli.StringFlag{Name: "join-tag", Usage: "with --join: join the tasks with tag `TAG`"},
		&cli.IntFlag{Name: "join-pid", Usage: "join the namespaces of process `PID`"},
		&cli.BoolFlag{Name: "no-config", EnvVars: []string{"HPCC_NO_CONFIG"}, Usage: "ignore /etc/hpcc/run.conf and ~/.config/hpcc/run.conf"},
	), inSection(isolationSection, stageFlag()))
}

// runSources are the flags of one run, from the command line and from the run.conf files.
// The command line overrides a flag with a single value. A repeatable flag has the values of both,
// the command line's last.
type runSources struct {
	line     *cli.Context
	defaults *defaults // nil without defaults
}

// parseRunSources reads the run.conf files and refuses flags that contradict each other on the
// command line.
func parseRunSources(c *cli.Context) (*runSources, error) {
	pairs := [][2]string{{"home", "no-home"}, {"write", "write-fake"}, {"pid", "join-pid"}}
	for _, join := range []string{"join", "join-ct", "join-tag"} {
		pairs = append(pairs, [2]string{"pid", join}, [2]string{join, "join-pid"})
	}
	for _, pair := range pairs {
		if c.IsSet(pair[0]) && c.IsSet(pair[1]) {
			return nil, usagef("--%s and --%s contradict each other", pair[0], pair[1]).hint("use only one of them")
		}
	}
	w := &runSources{line: c}
	if c.Bool("no-config") {
		return w, nil
	}
	var err error
	w.defaults, err = readDefaults()
	return w, err
}

// source returns the command line if it sets a flag, or else the defaults. A rival flag on
// the command line also overrides the defaults.
func (w *runSources) source(name string, rivals ...string) *cli.Context {
	if w.line.IsSet(name) || w.defaults == nil {
		return w.line
	}
	for _, r := range rivals {
		if w.line.IsSet(r) {
			return w.line
		}
	}
	return w.defaults.context
}

func (w *runSources) isSet(name string) bool { return w.source(name).IsSet(name) }
func (w *runSources) text(name string) string {
	return w.source(name).String(name)
}
func (w *runSources) boolean(name string, rivals ...string) bool {
	return w.source(name, rivals...).Bool(name)
}

func (w *runSources) list(name string) []string {
	if w.defaults == nil {
		return w.line.StringSlice(name)
	}
	return append(slices.Clone(w.defaults.context.StringSlice(name)), w.line.StringSlice(name)...)
}

// env returns the changes of the environment, the defaults first.
func (w *runSources) env() []envfile.Change {
	line := envOf(w.line).list
	if w.defaults == nil {
		return line
	}
	return append(slices.Clone(envOf(w.defaults.context).list), line...)
}

// blame adds a hint to an error that a line of a run.conf file may have caused.
func blame(lines []runconf.Line, err error) error {
	l := runconf.Blame(lines, err)
	if l == nil {
		return err
	}
	m := &message{err: err, status: process.ExitFailed}
	if re := new(process.Error); errors.As(err, &re) {
		m.status = re.Status
	}
	return m.hint("%s", l.Hint())
}

// maxID is the largest ID that user_namespaces(7) maps.
const maxID = 1<<32 - 2

// options returns the options of the runtime for a program with these arguments.
func (w *runSources) options(args []string) (runtime.Options, error) {
	o := runtime.Options{
		Args: args, Dir: w.text("cd"), Binds: w.list("bind"), Mounts: w.list("mount"),
		Write: w.boolean("write", "write-fake"), NoHome: w.boolean("no-home", "home"), PrivateTmp: w.boolean("private-tmp"),
		FakeRoot: w.boolean("seccomp"), NoPasswd: w.boolean("no-passwd"), CleanEnv: w.boolean("clean-env"),
		Hostname: w.text("hostname"), OwnPIDs: w.boolean("pid", "join", "join-ct", "join-tag", "join-pid"),
		OwnIPC: w.boolean("ipc"),
	}
	if c := w.source("write-fake", "write"); c.IsSet("write-fake") {
		o.WriteFake = c.Generic("write-fake").(*sizeFlag).size
	}
	for _, id := range []struct {
		name string
		to   **int
	}{{"uid", &o.UID}, {"gid", &o.GID}} {
		n := w.source(id.name).Int(id.name)
		if n < 0 || n > maxID {
			return o, usagef("--%s %d: not an ID from 0 to %d", id.name, n, maxID)
		}
		if w.isSet(id.name) || o.FakeRoot {
			*id.to = &n
		}
	}
	switch n := w.text("network"); n {
	case "", "host":
	case "none":
		o.NoNetwork = true
	default:
		return o, usagef("--network %q is not host or none", n).hint("leave it out: only an administrator can create networks")
	}
	if h := o.Hostname; w.isSet("hostname") && (h == "" || len(h) > 64 || strings.ContainsAny(h, "/ \t\n")) {
		return o, usagef("--hostname %q is not a valid host name", h).hint("use at most 64 letters, digits, dots and hyphens")
	}
	return o, w.join(&o)
}

// join sets the tasks that share namespaces. It reads the command line only, because the run.conf
// files are read too late.
func (w *runSources) join(o *runtime.Options) error {
	c := w.line
	if o.JoinPID = c.Int("join-pid"); c.IsSet("join-pid") {
		if o.JoinPID < 1 {
			return usagef("--join-pid %d is not a process ID", o.JoinPID)
		}
		return nil
	}
	if !c.Bool("join") && !c.IsSet("join-ct") && !c.IsSet("join-tag") {
		return nil
	}
	tag, count, err := runtime.Peers(os.Getenv)
	if c.IsSet("join-ct") {
		if count, err = c.Int("join-ct"), nil; count < 1 {
			return usagef("--join-ct %d: not a positive number", count)
		}
	}
	if err != nil {
		return err
	}
	if c.IsSet("join-tag") {
		if tag = c.String("join-tag"); tag == "" {
			return usagef("--join-tag is empty").hint("give all tasks of the job the same tag")
		}
	}
	o.JoinTag, o.JoinCount = tag, count
	return nil
}

// sizeFlag is the value of -W, which is optional.
type sizeFlag struct{ size string }

func (f *sizeFlag) Set(arg string) error {
	if f.size = arg; arg == "true" {
		f.size = runtime.DefaultFake
	}
	if arg == "" {
		return errors.New("the size is empty")
	}
	return nil
}
func (f *sizeFlag) String() string   { return f.size }
func (f *sizeFlag) IsBoolFlag() bool { return true }

// commandLineOnly are flags that a run.conf file cannot set: they would change images unnoticed, or
// are read too late.
var commandLineOnly = []string{"write", "join", "join-ct", "join-tag", "join-pid", "no-config", "entrypoint", "stage"}

// defaults are the flags of all run.conf files.
type defaults struct {
	lines   []runconf.Line
	context *cli.Context
}

// readDefaults reads the run.conf files. It returns nil if they set no flags.
func readDefaults() (*defaults, error) {
	lines, err := runconf.Read()
	if err != nil {
		m := &message{err: err}
		if closed := new(fs.PathError); !errors.As(err, &closed) {
			m.status = exitUsage
		}
		return nil, m.hint("use --no-config to ignore the run.conf files")
	}
	if len(lines) == 0 {
		return nil, nil
	}
	d := &defaults{lines: lines}
	var all []string
	for _, l := range lines {
		if err := checkDefaults(l.Argv); err != nil {
			return nil, usagef("%s:%d: %w", l.File, l.Number, err).hint(`write only flags of "hpcc run" in it, or ignore it with --no-config`)
		}
		all = append(all, l.Argv...)
	}
	d.context, err = parseRunFlags(all)
	return d, err
}

// checkDefaults refuses arguments that are not flags of "hpcc run".
func checkDefaults(argv []string) error {
	if !strings.HasPrefix(argv[0], "-") {
		return fmt.Errorf("%q is not a flag", argv[0])
	}
	c, err := parseRunFlags(argv)
	if err != nil {
		return err
	}
	if c.Args().Present() {
		return fmt.Errorf("%q is not the value of a flag", c.Args().First())
	}
	for _, name := range commandLineOnly {
		if c.IsSet(name) && (name != "no-config" || c.Bool(name)) { // its variable may be set but empty
			return fmt.Errorf("--%s is allowed on the command line only", name)
		}
	}
	return nil
}

// parseRunFlags parses arguments as flags of "hpcc run".
func parseRunFlags(argv []string) (*cli.Context, error) {
	var parsed *cli.Context
	a := &cli.App{
		Name: "run", Flags: runFlags(new(envChanges)), HideHelp: true, HideVersion: true, DisableSliceFlagSeparator: true, Writer: io.Discard, ErrWriter: io.Discard,
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return err },
		ExitErrHandler: func(*cli.Context, error) {},
		Action:         func(c *cli.Context) error { parsed = c; return nil },
	}
	err := a.Run(append([]string{"run"}, argv...))
	if err == nil && parsed == nil {
		err = errors.New("not flags of hpcc run")
	}
	return parsed, err
}

// envChanges collects --set-env, --set-env0 and --unset-env in the order of the command line,
// in which they apply.
type envChanges struct {
	list     []envfile.Change
	argv     []string // the flags as given, for a job script that repeats them
	image    []int    // positions in list of the image's own variables (--image-env)
	noExpand bool
	deferred bool // do not read files whose names contain {task}, because each task reads its own
}

func (e *envChanges) flags() []cli.Flag {
	return []cli.Flag{
		&cli.GenericFlag{Name: "set-env", Value: &envFlag{e: e, name: "set-env", parse: e.setFile(false)},
			Usage: "set variables from `FILE`, or one from NAME=VALUE"},
		&cli.GenericFlag{Name: "set-env0", Value: &envFlag{e: e, name: "set-env0", parse: e.setFile(true)},
			Usage: "set variables from `FILE` with NUL-terminated records"},
		&cli.GenericFlag{Name: "unset-env", Value: &envFlag{e: e, name: "unset-env", parse: e.unset},
			Usage: "unset variables whose names match `GLOB`"},
		&cli.BoolFlag{Name: "env-no-expand", Usage: "do not expand $NAME in values", Destination: &e.noExpand},
	}
}

// envOf returns the changes of the environment that a command line requests.
func envOf(c *cli.Context) *envChanges { return c.Generic("set-env").(*envFlag).e }

// setFile reads one argument of --set-env: an assignment if it has a "=", else a file. The
// bare form means the image's own environment, which hpcc always sets; see joinBareSetEnv.
func (e *envChanges) setFile(nul bool) func(string) error {
	return func(arg string) error {
		if arg == bareSetEnv {
			return nil
		}
		if strings.Contains(arg, "=") {
			c, err := envfile.Literal(arg)
			e.list = append(e.list, c)
			return err
		}
		if arg == "" {
			return errors.New("the file name is empty")
		}
		if e.deferred && strings.Contains(arg, "{task}") {
			return nil
		}
		f, err := wait.Open(arg)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("file %q: %w; NAME=VALUE sets one variable", arg, syscall.ENOENT)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		cs, err := envfile.Read(f, arg, envfile.Options{NUL: nul})
		e.list = append(e.list, cs...)
		return err
	}
}

// setOne reads one argument of --env: an assignment, or the name of a variable of the
// caller. As with docker, the value is not expanded.
func (e *envChanges) setOne(arg string) error {
	name, value, ok := strings.Cut(arg, "=")
	if !ok {
		if value, ok = os.LookupEnv(name); !ok {
			return nil
		}
	}
	c, err := envfile.Exact(name, value)
	e.list = append(e.list, c)
	return err
}

func (e *envChanges) unset(glob string) error {
	c, err := envfile.Unset(glob)
	e.list = append(e.list, c)
	return err
}

// envFlag is the parser's value of one of the flags above.
type envFlag struct {
	e     *envChanges
	name  string
	parse func(string) error
	err   error // of parse
}

func (f *envFlag) Set(arg string) error {
	if arg != bareSetEnv {
		value := arg
		if f.name != "unset-env" && !strings.Contains(arg, "=") {
			value, _ = filepath.Abs(arg) // a job starts in another directory
		}
		f.e.argv = append(f.e.argv, "--"+f.name+"="+value)
	}
	f.err = f.parse(arg)
	return f.err
}

func (f *envFlag) String() string { return "" }

// interruptedFlag returns the error of an environment flag if a signal ended the wait for its
// file. The flag parser keeps only the text of that error.
func interruptedFlag(c *cli.Context) error {
	if c == nil || c.Command == nil {
		return nil
	}
	for _, f := range c.Command.Flags {
		g, ok := f.(*cli.GenericFlag)
		if !ok {
			continue
		}
		if e, ok := g.Value.(*envFlag); ok && errors.Is(e.err, context.Canceled) {
			return fmt.Errorf("--%s: %w", e.name, e.err)
		}
	}
	return nil
}

// bareSetEnv is the value of a --set-env without an argument.
const bareSetEnv = "\x00"

// joinBareSetEnv decides whether the argument after "--set-env" is the flag's value. Old
// ch-run always took a value; newer ch-run takes one only after "=". If a single argument is
// left before "--", it is the image, and --set-env has no value. It also has none before
// another flag.
func joinBareSetEnv(args []string) []string {
	end := slices.Index(args, "--")
	if end < 0 {
		return args
	}
	out := slices.Clone(args)
	for i := end - 1; i > 0; i-- {
		if (out[i] == "--set-env" || out[i] == "--set-env0") && (i+2 == end || (len(out[i+1]) > 1 && out[i+1][0] == '-')) {
			out[i] = fmt.Sprintf("%s=%s", out[i], bareSetEnv)
		}
	}
	return out
}

// deviceFlags are the flags for the hardware that a run uses.
func deviceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "gpu", Usage: "make the GPUs and their driver libraries available"},
		&cli.StringSliceFlag{Name: "device", Usage: "add CDI device `VENDOR/CLASS=NAME`; NAME may be all"},
		&cli.StringFlag{Name: "mpi", Usage: "use MPI `PROFILE`: pmix (the image's) or host (the host's library)"},
	}
}

// devices returns the hardware that the flags of deviceFlags request.
func (w *runSources) devices() devices.Request {
	return devices.Request{
		GPU: w.boolean("gpu"), Names: w.list("device"), MPI: w.text("mpi"),
		SpecDirs:   filepath.SplitList(os.Getenv("HPCC_CDI_DIRS")),
		DriverRoot: os.Getenv("NVIDIA_DRIVER_ROOT"), DevRoot: os.Getenv("NVIDIA_DEV_ROOT"),
	}
}
