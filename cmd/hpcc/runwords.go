package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
)

// runSources are the flags of one run: those of the command line, and below them
// those of the files of defaults. Of a flag that has one value the command
// line's wins; of a repeatable one all count, the command line's last.
type runSources struct {
	line     *cli.Context
	defaults *defaults // nil: there are none
}

// parseRunSources reads the files of defaults and refuses flags that contradict
// each other on the command line.
func parseRunSources(c *cli.Context) (*runSources, error) {
	pairs := [][2]string{{"home", "no-home"}, {"write", "write-fake"}, {"pid", "join-pid"}}
	for _, join := range []string{"join", "join-ct", "join-tag"} {
		pairs = append(pairs, [2]string{"pid", join}, [2]string{join, "join-pid"})
	}
	for _, pair := range pairs {
		if c.IsSet(pair[0]) && c.IsSet(pair[1]) {
			return nil, usagef("--%s and --%s contradict each other", pair[0], pair[1]).hint("give one of them")
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

// source is the command line or the defaults, whichever says something about a
// flag; rivals are flags that, on the command line, silence the defaults.
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

func (w *runSources) given(name string) bool { return w.source(name).IsSet(name) }
func (w *runSources) text(name string) string {
	return w.source(name).String(name)
}
func (w *runSources) yes(name string, rivals ...string) bool {
	return w.source(name, rivals...).Bool(name)
}

func (w *runSources) list(name string) []string {
	if w.defaults == nil {
		return w.line.StringSlice(name)
	}
	return append(slices.Clone(w.defaults.context.StringSlice(name)), w.line.StringSlice(name)...)
}

// env are the changes of the environment, the defaults' first.
func (w *runSources) env() []envfile.Change {
	line := envOf(w.line).list
	if w.defaults == nil {
		return line
	}
	return append(slices.Clone(envOf(w.defaults.context).list), line...)
}

// blame adds to an error the line of the defaults that it may come from.
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

// maxID is the largest id that user_namespaces(7) maps.
const maxID = 1<<32 - 2

// options are the runtime's, for a program with these arguments.
func (w *runSources) options(args []string) (runtime.Options, error) {
	o := runtime.Options{
		Args: args, Dir: w.text("cd"), Binds: w.list("bind"), Mounts: w.list("mount"),
		Write: w.yes("write", "write-fake"), NoHome: w.yes("no-home", "home"), PrivateTmp: w.yes("private-tmp"),
		FakeRoot: w.yes("seccomp"), NoPasswd: w.yes("no-passwd"), CleanEnv: w.yes("clean-env"),
		Hostname: w.text("hostname"), OwnPIDs: w.yes("pid", "join", "join-ct", "join-tag", "join-pid"),
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
			return o, usagef("--%s %d: ids go from 0 to %d", id.name, n, maxID)
		}
		if w.given(id.name) || o.FakeRoot {
			*id.to = &n
		}
	}
	switch n := w.text("network"); n {
	case "", "host":
	case "none":
		o.NoNetwork = true
	default:
		return o, usagef("--network %q is neither host nor none", n).hint("networks of its own need an administrator; programs see the host's")
	}
	if h := o.Hostname; w.given("hostname") && (h == "" || len(h) > 64 || strings.ContainsAny(h, "/ \t\n")) {
		return o, usagef("--hostname %q is no host name", h).hint("at most 64 letters, digits, dots and hyphens")
	}
	return o, w.join(&o)
}

// join fills in which tasks share namespaces. The flags are the command line's
// alone: what a file says is read too late.
func (w *runSources) join(o *runtime.Options) error {
	c := w.line
	if o.JoinPID = c.Int("join-pid"); c.IsSet("join-pid") {
		if o.JoinPID < 1 {
			return usagef("--join-pid %d is no process", o.JoinPID)
		}
		return nil
	}
	if !c.Bool("join") && !c.IsSet("join-ct") && !c.IsSet("join-tag") {
		return nil
	}
	tag, count, err := runtime.Peers(os.Getenv)
	if c.IsSet("join-ct") {
		if count, err = c.Int("join-ct"), nil; count < 1 {
			return usagef("--join-ct %d: at least 1", count)
		}
	}
	if err != nil {
		return err
	}
	if c.IsSet("join-tag") {
		if tag = c.String("join-tag"); tag == "" {
			return usagef("--join-tag is empty").hint("give the tasks of one job the same word")
		}
	}
	o.JoinTag, o.JoinCount = tag, count
	return nil
}

// sizeFlag is the value of -W, which may stand without one.
type sizeFlag struct{ size string }

func (f *sizeFlag) Set(arg string) error {
	if f.size = arg; arg == "true" {
		f.size = runtime.DefaultFake
	}
	if arg == "" {
		return fmt.Errorf("the size is empty")
	}
	return nil
}
func (f *sizeFlag) String() string   { return f.size }
func (f *sizeFlag) IsBoolFlag() bool { return true }
