package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/job"
	"hpcc/runtime"
	"hpcc/runtime/devices"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
	"hpcc/text"
)

// runFlags are the flags that "hpcc run" and jobs share. Names and letters that ch-run also
// has mean the same.
func runFlags(env *envChanges) []cli.Flag {
	home := new(bool)
	return slices.Concat(inSection(containerSection, env.flags()...), inSection(containerSection,
		&cli.StringFlag{Name: "cd", Aliases: []string{"c", "workdir"}, Usage: "start in directory `DIR` of the image"},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b", "v"}, Usage: "bind host path `SRC`[:DST[:ro]]"},
		&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "let the program modify the image directory"},
		&cli.GenericFlag{Name: "write-fake", Aliases: []string{"W"}, Value: &sizeFlag{},
			Usage: "let the program modify a temporary copy, at most `SIZE`"},
		&cli.BoolFlag{Name: "private-tmp", Aliases: []string{"t"}, Usage: "mount an empty /tmp"},
		&cli.GenericFlag{Name: "no-home", Value: &switchFlag{to: home, off: true}, Usage: "do not bind the home directory"},
	), inSection(containerSection, deviceFlags()...), inSection(isolationSection,
		&cli.BoolFlag{Name: "clean-env", Usage: "start from the image's environment instead of the caller's"},
		&cli.GenericFlag{Name: "home", Value: &switchFlag{to: home}, Usage: "bind the home directory (default)"},
		&cli.StringSliceFlag{Name: "mount", Usage: "mount `SPEC`: type=bind or tmpfs,source=SRC,target=DST[,readonly]"},
		&cli.StringFlag{Name: "entrypoint", Usage: "run `PROG` instead of the image's ENTRYPOINT and CMD"},
		&cli.IntFlag{Name: "uid", Aliases: []string{"u"}, Usage: "use user ID `N` in the container"},
		&cli.IntFlag{Name: "gid", Aliases: []string{"g"}, Usage: "use group ID `N` in the container"},
		&cli.BoolFlag{Name: "seccomp", Usage: "with --uid 0: pretend that chown and mknod succeed"},
		&cli.BoolFlag{Name: "no-passwd", Usage: "keep the image's /etc/passwd and /etc/group"},
		&cli.StringFlag{Name: "network", Usage: "use `NETWORK`: host (default) or none"},
		&cli.StringFlag{Name: "hostname", Usage: "set the host name to `NAME`"},
		&cli.BoolFlag{Name: "pid", Usage: "use a PID namespace with an init process"},
		&cli.BoolFlag{Name: "ipc", Usage: "use an IPC namespace: System V objects, message queues"},
	), inSection(isolationSection,
		&cli.BoolFlag{Name: "join", Aliases: []string{"j"}, Usage: "share namespaces with the job's other tasks on this node"},
		&cli.IntFlag{Name: "join-ct", Usage: "with --join: wait for `N` tasks (default: the launcher's)"},
		&cli.StringFlag{Name: "join-tag", Usage: "with --join: join the tasks with tag `TAG`"},
		&cli.IntFlag{Name: "join-pid", Usage: "join the namespaces of process `PID`"},
		&cli.BoolFlag{Name: "no-config", EnvVars: []string{"HPCC_NO_CONFIG"},
			Usage: "ignore /etc/hpcc/run.conf and ~/.config/hpcc/run.conf"},
	), inSection(isolationSection, stageFlag()))
}

// runSources are the flags of one run, from the command line and from the run.conf files.
// The command line overrides a flag with a single value. A repeatable flag has the values of both,
// the command line's last.
type runSources struct {
	line     *cli.Context
	defaults *cli.Context   // of all run.conf files; nil if they set no flags
	lines    []runconf.Line // of the run.conf files
}

// contradictions are pairs of flags that cannot be used together.
var contradictions = [][2]string{
	{"home", "no-home"}, {"write", "write-fake"},
	{"pid", "join-pid"}, {"pid", "join"}, {"pid", "join-ct"}, {"pid", "join-tag"},
	{"join", "join-pid"}, {"join-ct", "join-pid"}, {"join-tag", "join-pid"},
}

// notJoined are the flags that have no effect in the namespaces of another run, which has its own.
var notJoined = []string{"bind", "mount", "write", "write-fake", "private-tmp", "no-home", "uid", "gid", "no-passwd",
	"network", "hostname", "ipc", "device", "gpu", "only"}

// parseOn reports whether a command line has a flag and does not switch it off, as --pid=false does.
func parseOn(c *cli.Context, name string) bool {
	if !c.IsSet(name) {
		return false
	}
	switch v := c.Generic(name).(type) {
	case *sizeFlag:
		return v.size != ""
	case *switchFlag:
		return true
	}
	v, isBool := c.Value(name).(bool)
	return v || !isBool
}

// parseRunCheck refuses flags of "hpcc run" that no machine could fulfil. Commands that write the
// flags to a job script or a wrapper call it, so that the error does not come later on a node.
func parseRunCheck(c *cli.Context) error {
	w, err := parseRunLine(c)
	if err != nil {
		return err
	}
	o, err := w.options(nil)
	if err == nil {
		err = o.Check()
	}
	if err == nil {
		err = w.devices().Check()
	}
	var m *text.Error
	if err != nil && !errors.As(err, &m) {
		err = text.Usagef("%w", err)
	}
	return err
}

// parseRunLine returns the flags of a command line. It refuses those that contradict each other.
func parseRunLine(c *cli.Context) (*runSources, error) {
	for _, pair := range contradictions {
		if parseOn(c, pair[0]) && parseOn(c, pair[1]) {
			return nil, text.Usagef("--%s and --%s contradict each other", pair[0], pair[1]).Hint("use only one of them")
		}
	}
	for _, name := range notJoined {
		if parseOn(c, "join-pid") && parseOn(c, name) && !c.Bool("ch-run") { // ch-run ignores them
			return nil, text.Usagef("--%s cannot be used with --join-pid: the program sees the mounts, IDs and namespaces of process %d",
				name, c.Int("join-pid")).Hint("leave one of them out")
		}
	}
	return &runSources{line: c}, nil
}

// parseRunSources reads the flags of a command line and of the run.conf files, whose lines read
// returns.
func parseRunSources(c *cli.Context, read func() ([]runconf.Line, error)) (*runSources, error) {
	w, err := parseRunLine(c)
	if err != nil {
		return nil, err
	}
	if c.Bool("no-config") {
		return w, nil
	}
	return w, w.readDefaults(read)
}

// source returns the command line if it sets a flag, or else the defaults. A rival flag on
// the command line also overrides the defaults.
func (w *runSources) source(name string, rivals ...string) *cli.Context {
	if w.line.IsSet(name) || w.defaults == nil {
		return w.line
	}
	for _, r := range rivals {
		if parseOn(w.line, r) {
			return w.line
		}
	}
	return w.defaults
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
	return append(slices.Clone(w.defaults.StringSlice(name)), w.line.StringSlice(name)...)
}

// env returns the changes of the environment, the defaults first.
func (w *runSources) env() []envfile.Change {
	line := envOf(w.line).List
	if w.defaults == nil {
		return line
	}
	return append(slices.Clone(envOf(w.defaults).List), line...)
}

// blame adds a hint to an error that a line of a run.conf file may have caused.
func blame(lines []runconf.Line, err error) error {
	l := runconf.Blame(lines, err)
	if l == nil {
		return err
	}
	m := &text.Error{Err: err, Status: process.ExitFailed}
	if re := new(process.Error); errors.As(err, &re) {
		m.Status = re.Status
	}
	return m.Hint("%s", l.Hint())
}

// maxID is the largest ID that user_namespaces(7) maps.
const maxID = 1<<32 - 2

// options returns the options of the runtime for a program with these arguments.
func (w *runSources) options(args []string) (runtime.Options, error) {
	o := runtime.Options{
		Args: args, Dir: w.text("cd"), Binds: w.list("bind"), Mounts: w.list("mount"),
		Write: w.boolean("write", "write-fake"), NoHome: w.noHome(), PrivateTmp: w.boolean("private-tmp"),
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
			return o, text.Usagef("--%s %d: not an ID from 0 to %d", id.name, n, maxID)
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
		return o, text.Usagef("--network %q is not host or none", n).Hint("leave it out: only an administrator can create networks")
	}
	if h := o.Hostname; w.isSet("hostname") && (h == "" || len(h) > 64 || strings.ContainsAny(h, "/ \t\n")) {
		return o, text.Usagef("--hostname %q is not a valid host name", h).Hint("use at most 64 letters, digits, dots and hyphens")
	}
	// These three only count on the command line, because the run.conf files are read too late.
	c := w.line
	o.JoinPID, o.JoinCount, o.JoinTag = c.Int("join-pid"), c.Int("join-ct"), c.String("join-tag")
	switch {
	case c.IsSet("join-pid") && o.JoinPID < 1:
		return o, text.Usagef("--join-pid %d is not a process ID", o.JoinPID)
	case c.IsSet("join-ct") && o.JoinCount < 1:
		return o, text.Usagef("--join-ct %d: not a positive number", o.JoinCount)
	}
	return o, nil
}

// join completes the options of a program that shares namespaces with others, with the tag and
// number of tasks that the launcher has set.
func (w *runSources) join(o *runtime.Options) error {
	if c := w.line; !c.Bool("join") && !c.IsSet("join-ct") && !c.IsSet("join-tag") {
		return nil
	}
	tag, count, err := runtime.Peers(os.Getenv)
	if err != nil && o.JoinCount == 0 {
		return err
	}
	o.JoinTag, o.JoinCount = cmp.Or(o.JoinTag, tag), cmp.Or(o.JoinCount, count)
	return nil
}

// noHome reports whether the home directory is hidden.
func (w *runSources) noHome() bool {
	name := "no-home"
	if w.line.IsSet("home") {
		name = "home"
	}
	home, ok := w.source(name).Generic("home").(*switchFlag) // "hpcc wrap" lacks the flag
	return ok && !home.isOn()
}

// A switchFlag is one of two flags without an argument that switch the same setting on and off. The
// last of them counts.
type switchFlag struct {
	to  *bool // false, unless the last flag was that with off
	off bool
}

func (f *switchFlag) Set(arg string) error {
	on, err := strconv.ParseBool(arg)
	*f.to = on == f.off
	return err
}
func (f *switchFlag) String() string   { return "" }
func (f *switchFlag) IsBoolFlag() bool { return true }

// isOn reports whether this flag's setting counts, not that of the other flag.
func (f *switchFlag) isOn() bool { return *f.to == f.off }

// sizeFlag is the value of -W, which is optional.
type sizeFlag struct{ size string }

func (f *sizeFlag) Set(arg string) (err error) {
	f.size, err = optionalValue(arg, runtime.DefaultFake, "size")
	return err
}
func (f *sizeFlag) String() string   { return f.size }
func (f *sizeFlag) IsBoolFlag() bool { return true }

// commandLineOnly are flags that a run.conf file cannot set: they would change images unnoticed, or
// are read too late.
var commandLineOnly = []string{"write", "join", "join-ct", "join-tag", "join-pid", "no-config", "entrypoint", "stage"}

// readDefaults reads the run.conf files.
func (w *runSources) readDefaults(read func() ([]runconf.Line, error)) (err error) {
	w.lines, err = read()
	if err != nil {
		m := &text.Error{Err: err}
		if closed := new(fs.PathError); !errors.As(err, &closed) {
			m.Status = text.StatusUsage
		}
		return m.Hint("use --no-config to ignore the run.conf files")
	}
	var all []string
	for _, l := range w.lines {
		if err := checkDefaults(l.Argv); err != nil {
			return text.Usagef("%s:%d: %w", l.File, l.Number, err).
				Hint(`write only flags of "hpcc run" in it, or ignore it with --no-config`)
		}
		all = append(all, l.Argv...)
	}
	if len(all) > 0 {
		w.defaults, err = parseRunFlags(all)
	}
	return err
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
		if parseOn(c, name) || (name != "no-config" && c.IsSet(name)) { // its variable may be set but empty
			return fmt.Errorf("--%s is allowed on the command line only", name)
		}
	}
	return nil
}

// keepBlanks makes repeatable flags keep the blanks around their values.
func keepBlanks(flags []cli.Flag) []cli.Flag {
	for _, f := range flags {
		if list, ok := f.(*cli.StringSliceFlag); ok {
			list.KeepSpace = true
		}
	}
	return flags
}

// parseRunFlags parses arguments as flags of "hpcc run" that jobs share.
func parseRunFlags(argv []string) (*cli.Context, error) {
	return parseFlags(runFlags(new(envChanges)), argv)
}

func parseFlags(flags []cli.Flag, argv []string) (*cli.Context, error) {
	var parsed *cli.Context
	a := &cli.App{
		Name: "run", Flags: keepBlanks(flags), HideHelp: true, HideVersion: true, DisableSliceFlagSeparator: true,
		Writer: io.Discard, ErrWriter: io.Discard,
		Before:         parseNonEmpty,
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return err },
		ExitErrHandler: func(*cli.Context, error) {},
		Action:         func(c *cli.Context) error { parsed = c; return nil },
	}
	err := a.Run(uniform(append([]string{"run"}, argv...), 1, flags, nil))
	if err == nil && parsed == nil {
		err = errors.New("not flags of hpcc run")
	}
	return parsed, err
}

// envChanges collects --env, --set-env, --set-env0 and --unset-env in the order of the command
// line, in which they apply.
type envChanges struct {
	envfile.Changes
	image []int // positions in List of the image's own variables (--image-env)
}

func (e *envChanges) flags() []cli.Flag {
	flag := func(name, usage string) *cli.GenericFlag {
		return &cli.GenericFlag{Name: name, Value: &envFlag{e: e, name: name}, Usage: usage}
	}
	env := flag("env", "set `NAME=VALUE`; NAME alone copies a variable of the caller")
	env.Aliases = []string{"e"}
	env0 := flag("env0", "set variables as --env does, from `FILE` with NUL-terminated records")
	env0.Hidden = true // for the files of jobs
	return []cli.Flag{
		env, env0,
		flag("set-env", "set variables from `FILE`, or one from NAME=VALUE"),
		flag("set-env0", "set variables from `FILE` with NUL-terminated records"),
		flag("unset-env", "unset variables whose names match `GLOB`"),
		&cli.BoolFlag{Name: "env-no-expand", Usage: "do not expand $NAME in values", Destination: &e.NoExpand},
	}
}

// jobEnv returns the changes for a job, whose tasks read the files that are named after them.
func jobEnv() *envChanges { return &envChanges{Changes: envfile.Changes{Deferred: job.Placeholder}} }

// envOf returns the changes of the environment that a command line requests.
func envOf(c *cli.Context) *envChanges { return c.Generic("set-env").(*envFlag).e }

// envFlag is the parser's value of one of the flags above.
type envFlag struct {
	e    *envChanges
	name string
	err  error // of the last value
}

func (f *envFlag) Set(arg string) error {
	switch arg {
	case "": // the flag parser also sets the other name of a flag, to String()
		return errors.New("the value is empty")
	case bareSetEnv: // the image's own environment, which hpcc always sets; see joinBareSetEnv
		return nil
	}
	f.err = f.e.Add(f.name, arg)
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
