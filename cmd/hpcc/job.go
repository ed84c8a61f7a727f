package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/prepare"
	"hpcc/job/quantity"
	"hpcc/job/site"
	"hpcc/text"
)

// The flags that define a job, which "hpcc submit" and "hpcc script" share.

const jobUsage = "IMAGE [--] CMD [ARG...] | --from FILE [IMAGE [-- ARG...]]"

// jobFlags are the flags that define a job. They mean the same on every target.
func jobFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringSliceFlag{Name: "to", Usage: "use `TARGET`: " + targetNames},
		&cli.StringSliceFlag{Name: "on", Usage: "submit to site `NAME` in site.toml"},
		&cli.StringFlag{Name: "name", Usage: "name the job `NAME` (default: after the program)"},
		&cli.StringFlag{Name: "array", Aliases: []string{"a"}, Usage: "run a task per index of `RANGE`: 1-8, 0-99:10%4 or 1,3,7"},
		&cli.IntFlag{Name: "nodes", Aliases: []string{"N"}, Usage: "request `N` nodes"},
		&cli.IntFlag{Name: "tasks", Aliases: []string{"n"}, Usage: "start `N` processes over all nodes"},
		&cli.IntFlag{Name: "tasks-per-node", Usage: "start `N` processes per node"},
		&cli.IntFlag{Name: "cpus", Usage: "request `N` CPUs per process"},
		&cli.StringFlag{Name: "mem", Usage: "request `SIZE` of memory per node: 512M, 4G"},
		&cli.IntFlag{Name: "gpus", Usage: "request `N` GPUs per node"},
		&cli.StringFlag{Name: "time", Usage: "limit the run time to `TIME`: 90m, 1h30m or 1-12:00:00"},
		&cli.StringFlag{Name: "queue", Aliases: []string{"p"}, Usage: "use queue or partition `QUEUE`"},
		&cli.StringFlag{Name: "output", Usage: "write output to `FILE`; {name}, {job} and {task} expand"},
		&cli.BoolFlag{Name: "interactive", Usage: "run the program on a node with this terminal"},
		&cli.BoolFlag{Name: "measure", Usage: "record the resource usage of each task"},
	}, inSection(arraySection,
		&cli.StringSliceFlag{Name: "sweep", Usage: "run a task per value: `NAME=0.1,0.01` or NAME=1..4"},
		&cli.StringFlag{Name: "params", Usage: "run a task per row of `FILE`, CSV or JSON"},
		&cli.GenericFlag{Name: "pack", Value: &packFlag{}, Usage: "run all tasks in one allocation, on --nodes N"},
		&cli.IntFlag{Name: "retry", Usage: "run a failed task again up to `N` times"},
		&cli.StringFlag{Name: "retry-on", Usage: "retry only after `ENDINGS`: exit=99, preempted, …"},
	), fromFlags(), inSection(scheduleSection,
		&cli.StringFlag{Name: "retry-mem", Usage: "after running out of memory, request more: `x2,64G`"},
		&cli.StringFlag{Name: "retry-time", Usage: "after reaching the time limit, request more: `x2,24h`"},
		&cli.StringFlag{Name: "account", Usage: "charge account `ACCOUNT`"},
		&cli.StringSliceFlag{Name: "after", Usage: "start when `JOB` has succeeded"},
		&cli.BoolFlag{Name: "exclusive", Usage: "do not share the nodes"},
		&cli.StringFlag{Name: "signal", Usage: "send `SIGNAL@TIME` before the time limit: USR1@5m"},
		&cli.StringFlag{Name: "mail", Usage: "send mail to `ADDRESS` when the job ends or fails"},
		&cli.StringFlag{Name: "error", Usage: "write standard error to `FILE` (default: with the output)"},
		&cli.StringFlag{Name: "chdir", Usage: "start in `DIR` of the host (default: current directory)"},
		&cli.StringSliceFlag{Name: "native", Usage: "pass `OPTIONS` to the scheduler unchanged; for pods, fields as YAML"},
	), inSection(programSection,
		&cli.StringFlag{Name: "tensorboard", Usage: "run TensorBoard on the logs in `DIR` next to the first task"},
	), podFlags(), argoFlags(), runFlags(jobEnv()), inSection(generalSection, storeFlag()), []cli.Flag{
		&cli.StringFlag{Name: "job", Hidden: true, Usage: "read the job from standard input (-), as another hpcc wrote it"},
		&cli.BoolFlag{Name: "record", Hidden: true, Usage: "print the job's record, for another hpcc"},
	})
}

// A flagSet holds the first names of the flags that the command line sets. Flags that only a variable
// sets may be meant for other commands.
type flagSet map[string]bool

func parseFlagSet(c *cli.Context) flagSet {
	line, command := *c, *c.Command
	command.Flags, line.Command = nil, &command // through which LocalFlagNames finds the variables
	given, set := line.LocalFlagNames(), flagSet{}
	for _, f := range c.Command.Flags {
		if slices.ContainsFunc(f.Names(), func(name string) bool { return slices.Contains(given, name) }) {
			set[f.Names()[0]] = true
		}
	}
	return set
}

// first returns the name of the first of the given flags that is set, or "".
func (s flagSet) first(flags []cli.Flag) string {
	for _, f := range flags {
		if name := f.Names()[0]; s[name] {
			return name
		}
	}
	return ""
}

// jobArgs are the flags and arguments that define a job.
type jobArgs struct {
	prepare.Request
}

func parseJob(c *cli.Context, at site.Choice) (*jobArgs, error) {
	env, set, run := envOf(c), parseFlagSet(c), runFlags(new(envChanges))
	a := &jobArgs{prepare.Request{
		Verb: c.Command.Name, Store: c.String("store"), Image: c.Args().First(), HasArgs: c.NArg() > 1, Chdir: c.String("chdir"),
		Run: append(env.ForJob(), parseGiven(c, run)...), Env: env.List, NoExpand: env.NoExpand, From: parseFrom(c),
		At: at, Set: set, Write: c.Bool("write"), DryRun: c.Bool("dry-run") || c.Bool("explain"), Version: version, Terminal: onTerminal(),
		Logf: say, Report: os.Stderr,
	}}
	for _, f := range run {
		if name := f.Names()[0]; set[name] {
			a.RunFlags = append(a.RunFlags, name)
		}
	}
	if err := parseRunCheck(c); err != nil {
		return nil, err
	}
	if err := a.parsePod(c, set); err != nil {
		return nil, err
	}
	if err := a.parseArgo(c, set); err != nil {
		return nil, err
	}
	if s := c.String("job"); s != "" {
		if s != "-" || c.NArg() > 0 {
			return nil, text.Usagef("--job - reads the job from standard input and takes no arguments")
		}
		a.Received = true
		return a, nil
	}
	if set["workflow"] {
		a.Job = job.Job{Name: c.String("name"), Output: c.String("output"), Measure: c.Bool("measure")}
		return a, a.checkWorkflow(c.NArg(), set)
	}
	if name := set.first(fromFlags()); name != "" && !set["from"] {
		return nil, text.Usagef("--%s needs --from", name).Hint("name a job script with --from FILE")
	}
	if err := checkOrder(a.Verb, a.Image, c.Args().Tail(), set["pack"]); err != nil {
		return nil, err
	}
	argv := trimDashes(c.Args().Tail())
	later := set["from"] || a.Verb == "kernel" // the script, or the kernel's caller, has the program
	if len(argv) == 0 && !later {
		return nil, text.Usagef("%s needs an image and a program", a.Verb).Hint("hpcc %s --array 1-8 IMAGE -- CMD, or --from FILE", a.Verb)
	}
	j, err := parseJobFlags(c)
	if err != nil {
		return nil, err
	}
	if j.Warning.Signal != "" && j.Time == 0 && !set["from"] {
		return nil, text.Usagef("--signal needs --time").Hint("add the time limit that the signal warns of: --time 2h")
	}
	if j.Time > 0 && j.Warning.Lead >= j.Time {
		return nil, text.Usagef("--signal %s: the warning comes before the job starts, because --time is %s",
			c.String("signal"), c.String("time")).
			Hint("give a time that is shorter than --time: --signal %s@%ds", j.Warning.Signal, max(1, int(j.Time.Seconds()/10)))
	}
	if j.Tasks > 0 && j.Nodes > j.Tasks {
		return nil, text.Usagef("--nodes %d with --tasks %d: some nodes would have no process", j.Nodes, j.Tasks).
			Hint("leave --nodes out, or request more tasks")
	}
	if j.Interactive && (j.Output != "" || j.Error != "") {
		return nil, text.Usagef("an interactive job writes to the terminal, not to --output or --error").
			Hint("leave them out, or let the program write the file")
	}
	if set["gpu-type"] && j.GPUs == 0 && !set["from"] {
		return nil, text.Usagef("--gpu-type needs --gpus").Hint("add the number of GPUs: --gpus 1")
	}
	if err := j.CheckGrowth(); err != nil && !set["from"] { // the script may have the request
		return nil, text.Usagef("%w", err)
	}
	j.Args = argv
	if err := j.CheckPlaceholders(); err != nil {
		return nil, err
	}
	if j.Name == "" && !later {
		j.Name = job.NameOf(argv)
	}
	a.Job = *j
	return a, nil
}

// checkOrder refuses flags after IMAGE, which would become the name of the program. With --pack, IMAGE may
// be meant as its value.
func checkOrder(verb, image string, rest []string, pack bool) error {
	if len(rest) == 0 || rest[0] == "--" || !strings.HasPrefix(rest[0], "-") {
		return nil
	}
	if _, err := strconv.Atoi(image); pack && err == nil {
		return text.Usagef("--pack %s: --pack takes no number", image).
			Hint("--tasks-per-node %s sets how many tasks run at once on a node", image)
	}
	if pack && image == "keep" {
		return text.Usagef("--pack keep: the value needs an equals sign").Hint("write --pack=keep")
	}
	end := slices.Index(rest, "--")
	if end < 0 {
		return text.Usagef("flag %s comes after IMAGE", rest[0]).Hint("write hpcc %s %s … %s -- CMD", verb, rest[0], image)
	}
	return text.Usagef("flag %s comes after IMAGE", rest[0]).
		Hint("write hpcc %s %s %s -- %s", verb, text.Arguments(rest[:end]), image, text.Arguments(rest[end+1:]))
}

// nodeSettings are variables that configure hpcc itself on the nodes of a job. Not all schedulers
// pass on the caller's variables.
var nodeSettings = []string{"HPCC_PACK_LEASE"}

// parseJobFlags reads the flags that every target supports.
func parseJobFlags(c *cli.Context) (*job.Job, error) {
	j := &job.Job{
		Name: c.String("name"), Nodes: c.Int("nodes"), Tasks: c.Int("tasks"), TasksPerNode: c.Int("tasks-per-node"),
		CPUs: c.Int("cpus"), GPUs: c.Int("gpus"),
		Queue: c.String("queue"), Account: c.String("account"), Exclusive: c.Bool("exclusive"), After: c.StringSlice("after"),
		Output: c.String("output"), Error: c.String("error"), Mail: c.String("mail"), Native: c.StringSlice("native"),
		Interactive: c.Bool("interactive"), Measure: c.Bool("measure"), Tensorboard: c.String("tensorboard"),
	}
	for _, name := range nodeSettings {
		if v, ok := os.LookupEnv(name); ok {
			j.Env = append(j.Env, name+"="+v)
		}
	}
	for _, name := range []string{"nodes", "tasks", "tasks-per-node", "cpus", "gpus", "retry"} {
		mayBeZero := name == "gpus" || name == "retry"
		if n := c.Int(name); c.IsSet(name) && (n < 0 || (n == 0 && !mayBeZero)) {
			return nil, text.Usagef("--%s %d: not a positive number", name, c.Int(name))
		}
	}
	for _, file := range []string{j.Output, j.Error} {
		if p := schedulerPattern().FindString(file); p != "" {
			return nil, text.Usagef("output file %q: only some schedulers expand %s", file, p).
				Hint("{name}, {job} and {task} expand everywhere")
		}
	}
	var err error
	if j.Array, err = job.ParseArray(c.String("array")); err != nil {
		return nil, text.Usagef("--array: %w", err).Hint("write --array 1-8, 0-99:10%%4 or 1,3,7")
	}
	size, err := parseSize(c)
	if err != nil {
		return nil, err
	}
	j.Memory, j.Time = size.Memory, size.Time
	if j.Warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return nil, text.Usagef("--signal: %w", err)
	}
	if err := parseParams(c, j); err != nil {
		return nil, err
	}
	if f, ok := c.Generic("pack").(*packFlag); ok && f.pack {
		j.SetPack(f.keep)
	}
	j.Retry.Times = c.Int("retry")
	if j.Retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return nil, text.Usagef("--retry-on: %w", err)
	}
	if len(j.Retry.Endings) > 0 && j.Retry.Times == 0 {
		return nil, text.Usagef("--retry-on needs --retry N")
	}
	if err := j.Retry.ParseGrowth(c.String("retry-mem"), c.String("retry-time")); err != nil {
		return nil, text.Usagef("%w", err)
	}
	return j, nil
}

// schedulerPattern matches what some schedulers expand in the name of an output file.
var schedulerPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[0-9]*[A-Za-z%]|\$[A-Za-z_]+`) })

// packFlag is the flag --pack or --pack=keep.
type packFlag struct{ pack, keep bool }

func (f *packFlag) IsBoolFlag() bool { return true }

func (f *packFlag) Set(s string) error {
	if s != "true" && s != "false" && s != "keep" {
		return fmt.Errorf("%q is not keep; write --pack or --pack=keep; --tasks-per-node N sets how many tasks run at once on a node", s)
	}
	f.pack, f.keep = s != "false", s == "keep"
	return nil
}

func (f *packFlag) String() string { return "" }

// parseSize reads --mem and --time.
func parseSize(c *cli.Context) (r job.Request, err error) {
	if s := c.String("time"); s != "" {
		if r.Time, err = quantity.ParseTime(s); err != nil {
			return r, text.Usagef("--time: %w", err)
		}
	}
	if s := c.String("mem"); s != "" {
		if r.Memory, err = quantity.ParseMemory(s); err != nil {
			return r, text.Usagef("--mem: %w", err)
		}
	}
	return r, nil
}

// parseParams reads --sweep and --params. The array has a task for each combination or row,
// unless --array selects some of them.
func parseParams(c *cli.Context, j *job.Job) error {
	var err error
	if j.Params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), ""); err != nil {
		return text.Usagef("%w", err).Hint("write --sweep lr=0.1,0.01 --sweep seed=1..4, or --params FILE.csv")
	}
	switch {
	case j.Params.IsZero():
	case j.Array.IsZero():
		j.Array, err = job.ParseArray(fmt.Sprintf("1-%d", j.Params.Count()))
	default:
		j.ArraySize = j.Params.Count()
	}
	return err
}

// parseGiven returns the given ones of some flags as arguments, except those that change the
// environment.
func parseGiven(c *cli.Context, flags []cli.Flag) (argv []string) {
	for _, f := range flags {
		name := f.Names()[0]
		if !c.IsSet(name) {
			continue
		}
		switch f.(type) {
		case *cli.BoolFlag:
			switch {
			case c.Bool(name):
				argv = append(argv, "--"+name)
			case name != "no-config": // its variable may be set but empty
				argv = append(argv, "--"+name+"=false") // overrides a run.conf file
			}
		case *cli.StringFlag:
			argv = append(argv, "--"+name+"="+c.String(name))
		case *cli.IntFlag:
			argv = append(argv, fmt.Sprintf("--%s=%d", name, c.Int(name)))
		case *cli.StringSliceFlag:
			for _, v := range c.StringSlice(name) {
				argv = append(argv, "--"+name+"="+v)
			}
		case *cli.GenericFlag:
			switch v := c.Generic(name).(type) {
			case *sizeFlag:
				argv = append(argv, "--"+name+"="+cmp.Or(v.size, "false"))
			case *switchFlag:
				argv = append(argv, "--"+name)
				if !v.isOn() {
					argv[len(argv)-1] += "=false"
				}
			}
		}
	}
	return argv
}

// parseAbsolute returns the given ones of some flags of "hpcc run" as arguments, with absolute paths of
// the host: other programs start wrappers and kernels in any directory.
func parseAbsolute(c *cli.Context, flags []cli.Flag) ([]string, error) {
	wd, err := filepath.Abs("")
	return prepare.AbsoluteSources(wd, append(slices.Clone(envOf(c).Argv), parseGiven(c, flags)...)), err
}
