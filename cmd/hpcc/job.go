package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/util/suggest"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/quantity"
	"hpcc/job/shellword"
	"hpcc/job/translate"
	"hpcc/store"
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
		&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE`; NAME alone copies it"},
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
		&cli.BoolFlag{Name: "ray", Usage: "run the program as the driver of a Ray cluster on all nodes"},
		&cli.StringFlag{Name: "tensorboard", Usage: "run TensorBoard on the logs in `DIR` next to the first task"},
		pluginFlag(),
	), podFlags(), argoFlags(), runFlags(&envChanges{deferred: true}), inSection(generalSection, storeFlag()), []cli.Flag{
		&cli.StringFlag{Name: "job", Hidden: true, Usage: "read the job from standard input (-), as another hpcc wrote it"},
		&cli.BoolFlag{Name: "record", Hidden: true, Usage: "print the job's record, for another hpcc"},
	})
}

// A flagSet holds the names of the flags that the command line or the environment sets.
type flagSet map[string]bool

func parseFlagSet(c *cli.Context) flagSet {
	set := flagSet{}
	for _, name := range c.LocalFlagNames() { // IsSet would scan all flags for each name
		set[name] = true
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
	verb          string // submit or script
	set           flagSet
	store         string
	at            siteChoice
	podsElsewhere bool     // another target of the same command may run pods, so its flags are allowed
	received      bool     // hpcc on another machine sends the job on standard input
	image         string   // as given; "" without an image
	more          bool     // the image is followed by arguments
	chdir         string   // as given
	job           job.Job  // without paths, image and program, which resolve fills in
	runArgv       []string // the flags of "hpcc run" for the script, with bind paths as given
	inPod         podArgs
	argo          argoArgs
	plugin        bool        // --pyxis
	env           *envChanges // of the program, for --pyxis
	from          fromArgs
}

func parseJob(c *cli.Context, at siteChoice) (*jobArgs, error) {
	env := parseEnvChanges(c)
	a := &jobArgs{verb: c.Command.Name, at: at, set: parseFlagSet(c), store: c.String("store"), image: c.Args().First(), more: c.NArg() > 1, chdir: c.String("chdir"),
		runArgv: parseRunArgv(c, env), from: parseFrom(c), plugin: c.Bool("pyxis"), env: env}
	var err error
	if a.inPod, err = parsePod(c, env); err != nil {
		return nil, err
	}
	if a.argo, err = parseArgo(c); err != nil {
		return nil, err
	}
	if s := c.String("job"); s != "" {
		if s != "-" || c.NArg() > 0 {
			return nil, usagef("--job - reads the job from standard input and takes no arguments")
		}
		a.received = true
		return a, nil
	}
	if a.set["workflow"] {
		a.job = job.Job{Name: c.String("name"), Output: c.String("output"), Measure: c.Bool("measure")}
		return a, a.checkWorkflow(c.NArg())
	}
	if err := a.checkFrom(); err != nil {
		return nil, err
	}
	if err := checkOrder(a.verb, a.image, c.Args().Tail(), a.set["pack"]); err != nil {
		return nil, err
	}
	argv := trimDashes(c.Args().Tail())
	later := a.set["from"] || a.verb == "kernel" // the script, or the kernel's caller, has the program
	if len(argv) == 0 && !later {
		return nil, usagef("%s needs an image and a program", a.verb).hint("hpcc %s --array 1-8 IMAGE -- CMD, or --from FILE", a.verb)
	}
	j, err := parseJobFlags(c)
	if err != nil {
		return nil, err
	}
	if j.Warning.Signal != "" && j.Time == 0 && !a.set["from"] {
		return nil, usagef("--signal needs --time").hint("add the time limit that the signal warns of: --time 2h")
	}
	if err := j.CheckGrowth(); err != nil && !a.set["from"] { // the script may have the request
		return nil, usagef("%w", err)
	}
	if err := checkPlaceholders(argv, j); err != nil {
		return nil, err
	}
	if j.Args = argv; j.Name == "" && !later {
		j.Name = jobName(argv)
	}
	a.job = *j
	return a, nil
}

// checkOrder refuses flags after IMAGE, which would become the name of the program. With --pack, IMAGE may
// be meant as its value.
func checkOrder(verb, image string, rest []string, pack bool) error {
	if len(rest) == 0 || rest[0] == "--" || !strings.HasPrefix(rest[0], "-") {
		return nil
	}
	if _, err := strconv.Atoi(image); pack && err == nil {
		return usagef("--pack %s: --pack takes no number", image).hint("--tasks-per-node %s sets how many tasks run at once on a node", image)
	}
	if pack && image == "keep" {
		return usagef("--pack keep: the value needs an equals sign").hint("write --pack=keep")
	}
	end := slices.Index(rest, "--")
	if end < 0 {
		return usagef("flag %s comes after IMAGE", rest[0]).hint("write hpcc %s %s … %s -- CMD", verb, rest[0], image)
	}
	return usagef("flag %s comes after IMAGE", rest[0]).hint("write hpcc %s %s %s -- %s", verb, shellword.Join(rest[:end]), image, shellword.Join(rest[end+1:]))
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

// checkPlaceholders refuses misspelled placeholders such as {tsk} in the arguments of an array.
// Other names in braces belong to the program.
func checkPlaceholders(argv []string, j *job.Job) error {
	if j.Array.IsZero() {
		return nil
	}
	known := append(slices.Clone(j.Params.Names), strings.Trim(job.Placeholder, "{}"))
	for _, arg := range argv {
		for _, m := range placeholder.FindAllStringSubmatch(arg, -1) {
			if like, ok := suggest.Search(m[1], known, true); ok && len(m[1]) > 2 {
				return usagef("%q: unknown placeholder %s", arg, m[0]).hint("did you mean {%s}?", like)
			}
		}
	}
	return nil
}

// parseJobFlags reads the flags that every target supports.
func parseJobFlags(c *cli.Context) (*job.Job, error) {
	j := &job.Job{
		Name: c.String("name"), Nodes: c.Int("nodes"), Tasks: c.Int("tasks"), TasksPerNode: c.Int("tasks-per-node"), CPUs: c.Int("cpus"), GPUs: c.Int("gpus"),
		Queue: c.String("queue"), Account: c.String("account"), Exclusive: c.Bool("exclusive"), After: c.StringSlice("after"),
		Output: c.String("output"), Error: c.String("error"), Mail: c.String("mail"), Native: c.StringSlice("native"),
		Interactive: c.Bool("interactive"), Ray: c.Bool("ray"), Measure: c.Bool("measure"), Tensorboard: c.String("tensorboard"),
	}
	for _, name := range []string{"nodes", "tasks", "tasks-per-node", "cpus"} {
		if c.IsSet(name) && c.Int(name) < 1 {
			return nil, usagef("--%s %d: not a positive number", name, c.Int(name))
		}
	}
	var err error
	if j.Env, err = jobEnv(c.StringSlice("env")); err != nil {
		return nil, err
	}
	if j.Array, err = job.ParseArray(c.String("array")); err != nil {
		return nil, usagef("--array: %w", err).hint("write --array 1-8, 0-99:10%%4 or 1,3,7")
	}
	size, err := parseSize(c)
	if err != nil {
		return nil, err
	}
	j.Memory, j.Time = size.Memory, size.Time
	if j.Warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return nil, usagef("--signal: %w", err)
	}
	if err := parseParams(c, j); err != nil {
		return nil, err
	}
	if f, ok := c.Generic("pack").(*packFlag); ok && f.pack {
		j.SetPack(f.keep)
	}
	j.Retry.Times = c.Int("retry")
	if j.Retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return nil, usagef("--retry-on: %w", err)
	}
	if len(j.Retry.Endings) > 0 && j.Retry.Times == 0 {
		return nil, usagef("--retry-on needs --retry N")
	}
	if err := j.Retry.ParseGrowth(c.String("retry-mem"), c.String("retry-time")); err != nil {
		return nil, usagef("%w", err)
	}
	return j, nil
}

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
			return r, usagef("--time: %w", err)
		}
	}
	if s := c.String("mem"); s != "" {
		if r.Memory, err = quantity.ParseMemory(s); err != nil {
			return r, usagef("--mem: %w", err)
		}
	}
	return r, nil
}

// parseParams reads --sweep and --params. The array has a task for each combination or row,
// unless --array selects some of them.
func parseParams(c *cli.Context, j *job.Job) error {
	var err error
	if j.Params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), ""); err != nil {
		return usagef("%w", err).hint("write --sweep lr=0.1,0.01 --sweep seed=1..4, or --params FILE.csv")
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

// parseEnvChanges returns the changes of the environment that the flags of a command make.
func parseEnvChanges(c *cli.Context) *envChanges {
	for _, f := range c.Command.Flags {
		if g, ok := f.(*cli.GenericFlag); ok {
			if e, ok := g.Value.(*envFlag); ok {
				return e.e
			}
		}
	}
	return &envChanges{}
}

// parseRunArgv returns the flags of "hpcc run" that the job script passes on.
func parseRunArgv(c *cli.Context, env *envChanges) []string {
	return parseGiven(c, env, runFlags(new(envChanges)))
}

// parseGiven returns the given ones of some flags, and the changes of the environment, as arguments.
func parseGiven(c *cli.Context, env *envChanges, flags []cli.Flag) []string {
	argv := slices.Clone(env.argv)
	for _, f := range flags {
		name := f.Names()[0]
		if !c.IsSet(name) {
			continue
		}
		switch f := f.(type) {
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
			if size, ok := c.Generic(name).(*sizeFlag); ok && f.Value != nil {
				argv = append(argv, "--"+name+"="+size.size)
			}
		}
	}
	return argv
}

// A destination is the cluster and site of a job.
type destination struct {
	dispatch.Cluster
	site   *dispatch.Site // empty if the job has no site
	remote *siteInfo      // of a remote site; nil for a local one
}

// resolve finds the destination of the job and completes the job for it.
func (a *jobArgs) resolve(ctx context.Context) (*job.Job, *destination, error) {
	if a.received {
		return receiveJob(ctx, a.store)
	}
	if a.set["workflow"] {
		return a.resolveWorkflow(ctx)
	}
	to, err := a.destination(ctx)
	if err != nil {
		return nil, nil, err
	}
	j := &a.job
	var source *translate.Translation
	if len(a.from.files) == 1 {
		if source, err = a.translate(ctx, a.from.files[0], to); err != nil {
			return nil, nil, err
		}
		a.takeManifest(source, to)
	}
	if err := a.fillPaths(j, to); err != nil {
		return nil, nil, err
	}
	if err := a.fillPlugin(j, to); err != nil {
		return nil, nil, err
	}
	if err := a.fillPod(ctx, j, to); err != nil {
		return nil, nil, err
	}
	switch {
	case source != nil:
		a.overrule(source, j)
		j, err = a.fit(source, j, to)
	case a.set["from"]:
		j, err = a.readSteps(ctx, j, to)
	}
	if err != nil {
		return nil, nil, err
	}
	sayNotes(to.site.Apply(j))
	return j, to, nil
}

// destination finds the site and its scheduler. It asks a remote site for its directories, its
// scheduler and the digest of the job's image.
func (a *jobArgs) destination(ctx context.Context) (*destination, error) {
	site, err := a.at.site()
	if err != nil {
		return nil, err
	}
	to := &destination{site: site}
	if site.SSH == "" {
		to.Cluster = a.at.cluster(ctx, site)
		return to, nil
	}
	if to.remote, err = describeSite(ctx, site, a.image); err != nil {
		return nil, err
	}
	to.Cluster = dispatch.Cluster{Target: cmp.Or(a.at.to, site.Scheduler, to.remote.Target), Site: site.Name}
	return to, nil
}

// fillPaths fills in absolute paths, because a job starts in another directory.
func (a *jobArgs) fillPaths(j *job.Job, to *destination) error {
	if to.remote != nil {
		if err := a.fillRemotePaths(j, to); err != nil {
			return err
		}
		j.Run = absoluteSources(j.Dir, a.runArgv)
		return nil
	}
	err := fillProgram(j, a.store, to.site)
	if err != nil {
		return err
	}
	if j.Dir, err = filepath.Abs(cmp.Or(a.chdir, to.site.Dir)); err != nil {
		return err
	}
	j.Image = a.image
	if fi, serr := os.Stat(j.Image); namesSquashFS(j.Image) || (isPath(j.Image) && serr == nil && fi.IsDir()) {
		if j.Image, err = filepath.Abs(j.Image); err != nil {
			return err
		}
	}
	base, err := filepath.Abs("")
	if err != nil {
		base = j.Dir
	}
	j.Run = absoluteSources(base, a.runArgv)
	return nil
}

// fillProgram fills in the paths of hpcc and of the store.
func fillProgram(j *job.Job, dir string, site *dispatch.Site) error {
	s, err := store.OpenToRead(dir)
	if err != nil {
		return err
	}
	if j.Store, err = filepath.Abs(s.Dir()); err != nil {
		return err
	}
	if j.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	if site.Program != "" {
		j.Program = site.Program
	}
	return nil
}

// jobEnv reads --env: NAME=VALUE, or NAME for a variable of this process. Other users can
// read values on a command line, but not the variables of a process.
func jobEnv(list []string) ([]string, error) {
	var env []string
	for _, e := range list {
		if !strings.Contains(e, "=") {
			v, ok := os.LookupEnv(e)
			if !ok {
				return nil, usagef("--env %s: no such variable in the environment", e).hint("export it first, or write --env %s=VALUE", e)
			}
			e += "=" + v
		}
		env = append(env, e)
	}
	return env, nil
}

// absoluteFiles makes the files of --set-env and the sources of binds and mounts absolute, relative to
// base: other programs start wrappers and kernels in any directory.
func absoluteFiles(base string, argv []string) []string {
	for i, arg := range argv {
		name, file, _ := strings.Cut(arg, "=")
		isFile := file != "" && !strings.Contains(file, "=") && !filepath.IsAbs(file)
		if isFile && (name == "--set-env" || name == "--set-env0") {
			argv[i] = name + "=" + filepath.Join(base, file)
		}
	}
	return absoluteSources(base, argv)
}

// absoluteSources makes the sources of binds and mounts absolute, relative to base.
func absoluteSources(base string, argv []string) []string {
	abs := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(base, p)
	}
	for i, arg := range argv {
		if v, ok := strings.CutPrefix(arg, "--bind="); ok {
			src, rest, more := strings.Cut(v, ":")
			if src = abs(src); more {
				src += ":" + rest
			}
			argv[i] = "--bind=" + src
		}
		if v, ok := strings.CutPrefix(arg, "--mount="); ok {
			items := strings.Split(v, ",")
			for n, item := range items {
				if k, p, ok := strings.Cut(item, "="); ok && (k == "source" || k == "src") {
					items[n] = k + "=" + abs(p)
				}
			}
			argv[i] = "--mount=" + strings.Join(items, ",")
		}
	}
	return argv
}

// jobName derives a job name from the program, or from its script if the program is an interpreter.
func jobName(args []string) string {
	name := filepath.Base(args[0])
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") && slices.ContainsFunc([]string{"python", "bash", "sh", "Rscript", "julia", "perl", "ruby", "node"},
		func(p string) bool { return strings.HasPrefix(name, p) }) {
		name = strings.TrimSuffix(filepath.Base(args[1]), filepath.Ext(args[1]))
	}
	name = strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, name)
	if name = strings.TrimLeft(name, "._-0123456789"); name == "" {
		return "job"
	}
	return name[:min(len(name), 40)]
}

// pluginFlag lets a plugin of the site run the image instead of hpcc.
func pluginFlag() cli.Flag {
	return &cli.BoolFlag{Name: "pyxis", Usage: "run IMAGE with the site's plugin pyxis (enroot)"}
}

// fillPlugin completes a job whose image the site's plugin runs. The image is one of a registry or a file, because the
// plugin does not read the store; the files of --set-env become variables now, because hpcc does not run on the node.
func (a *jobArgs) fillPlugin(j *job.Job, to *destination) error {
	switch {
	case !a.plugin:
		return nil
	case a.set["from"]:
		return usagef("--pyxis cannot be used with --from").hint("without IMAGE, lines with options of pyxis stay as they are; or leave out --pyxis")
	case to.remote != nil:
		return usagef("--pyxis cannot be used for a remote site").hint("run hpcc on %s", to.site.Name)
	case to.Target.Pods():
		return usagef("--pyxis: target %s has no such plugin", to.Target).hint("leave it out: the nodes pull the image themselves")
	case a.image == "":
		return usagef("--pyxis needs an image").hint("hpcc %s --pyxis IMAGE -- CMD", a.verb)
	}
	j.Plugin = true
	if isPath(a.image) {
		var err error
		if j.Image, err = filepath.Abs(a.image); err != nil {
			return err
		}
	} else if err := a.checkPulled(); err != nil {
		return err
	}
	env, err := a.pluginEnv()
	if err != nil {
		return err
	}
	j.Env = append(env, j.Env...)
	for _, e := range j.Env {
		name, _, _ := strings.Cut(e, "=")
		j.Run = append(j.Run, "--env="+name)
	}
	return nil
}

// checkPulled refuses a name of the store, which enroot would look up at Docker Hub.
func (a *jobArgs) checkPulled() error {
	if namesRegistry(a.image) {
		return nil
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	_, err = s.Get(a.image, nil)
	if none := new(store.NotFoundError); err != nil && errors.As(err, &none) {
		return nil
	}
	return usagef("--pyxis: image %s is in hpcc's store, which enroot does not read", a.image).
		hint("push it with \"hpcc push %s REGISTRY/NAME\" and name that, or leave out --pyxis", a.image)
}

// pluginEnv returns the variables of --set-env, and removes its flags from those of "hpcc run".
func (a *jobArgs) pluginEnv() ([]string, error) {
	var others []string
	for _, flag := range a.job.Run {
		name, v, _ := strings.Cut(flag, "=")
		switch {
		case name == "--unset-env":
			return nil, usagef("--pyxis: the plugin cannot unset variables").hint("leave out --unset-env: IMAGE -- env -u NAME CMD")
		case (name == "--set-env" || name == "--set-env0") && strings.Contains(v, job.Placeholder):
			return nil, usagef("--pyxis: %s: variables with %s are not supported", flag, job.Placeholder).hint("read HPCC_TASK_ID in the program")
		case name != "--set-env" && name != "--set-env0" && name != "--env-no-expand":
			others = append(others, flag)
		}
	}
	a.job.Run = others
	vars, err := envfile.Apply(nil, a.env.list, false)
	if err != nil || a.env.noExpand {
		return vars, err
	}
	for _, e := range vars {
		name, value, _ := strings.Cut(e, "=")
		for item := range strings.SplitSeq(value, ":") {
			if len(item) > 1 && item[0] == '$' {
				return nil, usagef("--pyxis: the value of %s uses %s, which only hpcc on the node can expand", name, item).
					hint("write the value itself, use --env-no-expand, or set it in the image: IMAGE -- sh -c 'export %s=…; exec CMD'", name)
			}
		}
	}
	return vars, nil
}
