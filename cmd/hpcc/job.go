package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/kube"
	"hpcc/job/quantity"
	"hpcc/job/shellword"
	"hpcc/metrics"
)

const jobArgs = "[JOB FLAGS] [RUN FLAGS] IMAGE [--] CMD [ARG...] | --from FILE [JOB FLAGS] [RUN FLAGS] [IMAGE [-- ARG...]]"

// jobFlags state a job; they mean the same on every target.
func jobFlags(env *envChanges) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "on", Usage: "use site `NAME` of site.toml (default: the one that it says)"},
		&cli.StringFlag{Name: "job", Hidden: true, Usage: "- takes the job as hpcc of another machine states it"},
		&cli.BoolFlag{Name: "record", Hidden: true, Usage: "print the job's record, for hpcc of another machine"},
		&cli.StringFlag{Name: "to", Usage: "write for `TARGET`: slurm, lsf, gridengine, pbs, kubernetes, openshift, argo, local (default: the scheduler of this machine)"},
		&cli.StringFlag{Name: "name", Usage: "call the job `NAME` (default: after the program)"},
		&cli.StringFlag{Name: "array", Aliases: []string{"a"}, Usage: "run a task for each index of `1-8[:2][%4] | 1,3,7`; {task} in CMD is the index"},
		&cli.IntFlag{Name: "nodes", Usage: "ask for `N` nodes"},
		&cli.IntFlag{Name: "tasks", Usage: "start `N` processes over all nodes"},
		&cli.IntFlag{Name: "tasks-per-node", Usage: "start `N` processes on each node"},
		&cli.IntFlag{Name: "cpus", Usage: "give each process `N` processors"},
		&cli.StringFlag{Name: "mem", Usage: "ask for `SIZE` of memory on each node: 512M, 4G"},
		&cli.IntFlag{Name: "gpus", Usage: "ask for `N` GPUs on each node"},
		&cli.StringFlag{Name: "time", Usage: "end the job after `TIME`: 90m, 1h30m, 1:30:00, 1-12:00:00"},
		&cli.StringFlag{Name: "signal", Usage: "send `SIGNAL@TIME` so long before the time limit: USR1@5m"},
		&cli.StringFlag{Name: "queue", Usage: "use queue or partition `Q`"},
		&cli.StringFlag{Name: "account", Usage: "charge `ACCOUNT`"},
		&cli.BoolFlag{Name: "exclusive", Usage: "share the nodes with nobody"},
		&cli.StringSliceFlag{Name: "after", Usage: "start when `JOB` has succeeded (repeatable)"},
		&cli.StringFlag{Name: "output", Usage: "write output to `FILE`; {name}, {job}, {task} are filled in"},
		&cli.StringFlag{Name: "error", Usage: "write standard error to `FILE` (default: with the output)"},
		&cli.StringFlag{Name: "mail", Usage: "write to `ADDRESS` when the job ends or fails"},
		&cli.StringFlag{Name: "chdir", Usage: "start in `DIR` of the host (default: here)"},
		&cli.StringSliceFlag{Name: "env", Usage: "set `NAME=VALUE` for the job; NAME alone takes its value from here (repeatable)"},
		&cli.StringSliceFlag{Name: "native", Usage: "pass `OPTIONS` to the target as they are (repeatable)"},
		&cli.StringSliceFlag{Name: "sweep", Usage: "run a task for each combination of `NAME=0.1,0.01` and NAME=1..4; {NAME} in CMD is the value (repeatable)"},
		&cli.StringFlag{Name: "params", Usage: "run a task for each row of `FILE`.csv or FILE.json; {NAME} in CMD is the column NAME"},
		&cli.IntFlag{Name: "retry", Usage: "run a task that fails again, `N` times"},
		&cli.StringFlag{Name: "retry-on", Usage: "retry only after `exit=99,signal=SIGKILL,preempted,node-fail`"},
		&cli.BoolFlag{Name: "ray", Usage: "run CMD as the driver of a Ray, with a node of it on each of --nodes"},
		&cli.BoolFlag{Name: "measure", Usage: "keep a record of what each task uses, task.INDEX.jsonl in the job's directory: processor, memory, storage, network, GPUs"},
		&cli.StringFlag{Name: "tensorboard", Usage: "run tensorboard on the logs in `DIR` beside the (first) task, in the same image; \"hpcc forward JOB tensorboard\" brings it here"},
		&cli.BoolFlag{Name: "interactive", Usage: "run CMD on a node with this terminal"},
		storeFlag(),
	}, slices.Concat(podFlags(), argoFlags(), fromFlags(), runFlags(env))...)
}

func scriptCommand() *cli.Command {
	env := envChanges{later: true}
	return &cli.Command{
		Name: "script", Usage: "print the job as a script of a scheduler", ArgsUsage: jobArgs,
		Description: `Prints the very script that "hpcc submit" with the same words hands in; only the values of --env and
--set-env, which stand in this one, are kept in private files by "hpcc submit". --from FILE takes the
job from a script or a submit command of Slurm, LSF, Grid Engine or PBS, and tells what became of each
of its directives; with IMAGE, the script runs in it. Other flags overrule what FILE says.

   hpcc script --to slurm --array 1-8 --time 2h sci -- python main.py --id={task}
   hpcc script --from job.lsf --to slurm --queue gpu sci
   hpcc script --from job.lsf --to kubernetes --volume data:/data registry.example.org/team/sci:1
   hpcc script --from job.lsf --to openshift --with build --arch ppc64le sci`,
		Flags: slices.Concat(jobFlags(&env), aroundFlags(), []cli.Flag{
			&cli.BoolFlag{Name: "keep", Hidden: true, Usage: "keep the script in the store and print commands that run it (hpcc of another machine asks)"},
		}),
		Action: func(c *cli.Context) error {
			j, to, err := readOrTake(c, &env)
			if err != nil {
				return err
			}
			more, also, err := readAround(c, to)
			if err != nil {
				return err
			}
			if to.there != nil {
				text, err := askThere(c, j, to, "script", "--job", "-")
				if err == nil {
					_, err = os.Stdout.Write(text)
				}
				return err
			}
			if c.Bool("keep") {
				return keepScript(c, j, to)
			}
			text, notes, err := "", []string(nil), error(nil)
			if also {
				text, notes, err = kube.RenderAround(j, more)
			} else {
				text, notes, err = dispatch.Render(j, to.Target)
			}
			if err != nil {
				return err
			}
			if j.CarriesValues() && !to.Target.Pods() {
				notes = append(notes, "the script holds the values of --env and --set-env, and other users can see the scripts of a scheduler's jobs; \"hpcc submit\" keeps them in a private file")
			}
			tell(notes)
			_, err = os.Stdout.WriteString(text)
			return err
		},
	}
}

// keepScript writes the script of an interactive job into the store and prints
// commands that run it. So no value of the job stands in the command line that
// hpcc of another machine gives to ssh.
func keepScript(c *cli.Context, j *job.Job, to *destination) error {
	s, err := openStore(c)
	if err != nil {
		return err
	}
	sub, script, notes, err := dispatch.Keep(s.Jobs(), j, to.Cluster)
	if err != nil {
		return onReadOnly(err, s.Jobs(), recordsNeed)
	}
	tell(notes)
	remove := append([]string{script}, sub.Job.ValueFiles()...)
	_, err = fmt.Printf("bash %s; status=$?\nrm -f -- %s\nrmdir %s 2>/dev/null\nexit $status\n",
		shellword.Join([]string{script, sub.ID}), shellword.Join(remove), shellword.Join([]string{filepath.Dir(script)}))
	return err
}

func submitCommand() *cli.Command {
	env := envChanges{later: true}
	return &cli.Command{
		Name: "submit", Usage: "hand a job in", ArgsUsage: jobArgs,
		Description: `Hands CMD in IMAGE to the scheduler of this machine, or runs it here with --to local.
Prints the job's id. Every task leaves a record, which "hpcc status" reads.

   hpcc submit --array 1-8 --set-env config.env sci -- python main.py --id={task}
   hpcc submit --to local --wait --array 1-8 sci -- python main.py --id={task}
   hpcc submit --nodes 2 --tasks-per-node 4 --time 2h --mem 16G sci -- python mpi.py
   hpcc submit --interactive --gpus 1 sci -- bash
   hpcc submit --dry-run --nodes 4 --time 2h sci -- python mpi.py
   hpcc submit --backfill --time 8h --time-min 1h sci -- python main.py

In the program's environment: HPCC_TASK_ID, HPCC_TASK_COUNT. Exit status: 0; with --wait 1 when a task failed.`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "wait", Usage: "return when the job has ended, with status 1 when a task failed"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say where and when the job would start, and hand nothing in; exit status 1: never"},
			&cli.BoolFlag{Name: "backfill", Usage: "shorten the time limit to what is free now, and say what was chosen; --time is the wish"},
			&cli.StringFlag{Name: "time-min", Usage: "with --backfill: not to less than `TIME` (default: a quarter of --time)"},
		}, jobFlags(&env)...),
		Action: func(c *cli.Context) error { return submit(c, &env) },
	}
}

func submit(c *cli.Context, env *envChanges) error {
	j, to, err := readOrTake(c, env)
	if err != nil {
		return err
	}
	if to.there != nil {
		return submitThere(c, j, to)
	}
	if err := pinPods(c, to); err != nil {
		return err
	}
	if err := backfill(c, j, to.Cluster); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		return dryRun(c, j, to.Cluster)
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	// Made here once, rather than on every node at the same time.
	if j.Image != "" && !namesSquashFS(j.Image) && !to.Target.Pods() {
		at := rootArgs{image: j.Image, store: c.String("store"), write: c.Bool("write")}
		if _, err := at.imageDir(c.Context); err != nil {
			return err
		}
	}
	if j.After, err = nativeIDs(c.Context, s.Jobs(), j.After); err != nil {
		return err
	}
	if j.Interactive {
		return interactive(c.Context, s.Jobs(), j, to.Cluster)
	}
	sub, notes, err := dispatch.Submit(c.Context, s.Jobs(), j, to.Cluster, c.Bool("wait"))
	if err != nil {
		return onReadOnly(err, s.Jobs(), recordsNeed)
	}
	tell(notes)
	if err := tellSubmitted(c, sub, to.String()); err != nil || !c.Bool("wait") {
		return err
	}
	return verdict(c.Context, s.Jobs(), sub.ID)
}

// backfill fits the job into what is free, where that is asked for.
func backfill(c *cli.Context, j *job.Job, to dispatch.Cluster) error {
	if !c.Bool("backfill") {
		if c.IsSet("time-min") {
			return usagef("--time-min is the least that --backfill may choose, and there is no --backfill").hint("Slurm itself takes it with --native --time-min=1:00:00")
		}
		return nil
	}
	least := time.Duration(0)
	if s := c.String("time-min"); s != "" {
		var err error
		if least, err = quantity.ParseTime(s); err != nil {
			return usagef("--time-min: %w", err)
		}
	}
	said, err := dispatch.Backfill(to.Within(c.Context), j, to.Target, least)
	if err != nil {
		return fmt.Errorf("--backfill: %w", err)
	}
	for _, s := range said {
		say("backfill: %s", s)
	}
	return nil
}

// dryRun tells where and when the job would start.
func dryRun(c *cli.Context, j *job.Job, to dispatch.Cluster) error {
	s, err := findStore(c)
	if err != nil {
		return err
	}
	if j.After, err = nativeIDs(c.Context, s.Jobs(), j.After); err != nil {
		return err
	}
	f, err := dispatch.Fits(to.Within(c.Context), j, to.Target)
	if err != nil {
		return err
	}
	return tellFit(c, f, time.Now())
}

const recordsNeed = "jobs keep their records in the store; set HPCC_STORE to a directory that you can write to"

// tellSubmitted prints the id of a job that was handed in.
func tellSubmitted(c *cli.Context, sub *dispatch.Submission, where string) error {
	var err error
	switch {
	case c.Bool("record"):
		return json.NewEncoder(os.Stdout).Encode(sub.Redacted())
	case c.Bool("json"):
		answer := map[string]any{"type": "job", "id": sub.ID, "native": sub.Native, "target": sub.Target, "tasks": sub.Job.Count()}
		if sub.Site != "" {
			answer["site"] = sub.Site
		}
		err = json.NewEncoder(os.Stdout).Encode(answer)
	default:
		_, err = fmt.Println(sub.ID)
	}
	if sub.Job.Workflow != nil {
		say("workflow %s of %s; \"hpcc status %s\" tells how it goes", sub.Native, where, sub.ID)
	} else if sub.Target != job.Local || sub.Site != "" {
		say("job %s of %s, %d tasks; \"hpcc status %s\" tells how it goes", sub.Native, where, sub.Job.Count(), sub.ID)
	}
	return err
}

// verdict is the end of a job that was waited for.
func verdict(ctx context.Context, dir, id string) error {
	list, warnings, err := dispatch.Statuses(ctx, dir, []string{id})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		say("warning: %s", w)
	}
	st := list[0]
	if st.Done == st.Total {
		return nil
	}
	text := fmt.Sprintf("%d of %d tasks did not succeed", st.Total-st.Done, st.Total)
	if st.Stopped > 0 {
		text += fmt.Sprintf(", of which %d because it was cancelled", st.Stopped)
	}
	if n := len(st.Failed); n > 0 {
		text += ": " + indices(st.Failed)
		for _, t := range st.Tasks {
			if !t.OK() && t.Output != "" {
				return (&message{err: fmt.Errorf("job %s: %s", id, text)}).hint("the output of task %d is in %s", t.Index, t.Output)
			}
		}
	}
	return fmt.Errorf("job %s: %s", id, text)
}

// indices lists a few task indices.
func indices(list []int) string {
	const most = 20
	text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list[:min(len(list), most)])), ","), "[]")
	if len(list) > most {
		text += ",…"
	}
	return text
}

// nativeIDs gives the schedulers' ids of jobs that the user names by ours.
func nativeIDs(ctx context.Context, dir string, ids []string) ([]string, error) {
	var out []string
	for _, id := range ids {
		if strings.Trim(id, "0123456789") == "" {
			out = append(out, id)
			continue
		}
		list, _, err := dispatch.Statuses(ctx, dir, []string{id})
		if err != nil {
			return nil, err
		}
		for _, st := range list {
			out = append(out, st.Native)
		}
	}
	return out, nil
}

// interactive runs the very script that "hpcc script --interactive" prints, with
// hpcc's terminal, and ends with the program's status. A job that never began, because the
// scheduler refused it, leaves nothing behind.
func interactive(ctx context.Context, dir string, j *job.Job, to dispatch.Cluster) error {
	sub, script, notes, err := dispatch.Interact(dir, j, to)
	if err != nil {
		return onReadOnly(err, dir, recordsNeed)
	}
	tell(notes)
	cmd := exec.Command("bash", script, sub.ID)
	cmd.Env = to.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	run, err := metrics.Measure(ctx, cmd, metrics.Options{})
	home := filepath.Dir(script)
	tasks, terr := readTasks(home)
	if err == nil {
		err = terr
	}
	if err == nil && len(tasks) == 0 {
		err = os.RemoveAll(home)
	}
	if err != nil {
		return fmt.Errorf("running an interactive job: %w", err)
	}
	return exitStatus(run.Status())
}

func tell(notes []string) {
	for _, n := range notes {
		say("note: %s", n)
	}
}

// readJob makes a job of the command line.
func readJob(c *cli.Context, env *envChanges) (*job.Job, *destination, error) {
	if c.IsSet("workflow") {
		return readWorkflow(c)
	}
	var to *destination
	from := c.IsSet("from")
	for _, f := range fromFlags() {
		if name := f.Names()[0]; !from && c.IsSet(name) {
			return nil, to, usagef("--%s says how a script is read, and there is no --from", name)
		}
	}
	if !from && (c.NArg() < 2 || (c.NArg() == 2 && c.Args().Get(1) == "--")) {
		return nil, to, usagef("%s needs an image and a program", c.Command.Name).hint("hpcc %s --array 1-8 IMAGE -- CMD, or --from FILE", c.Command.Name)
	}
	a := c.Args().Tail()
	if len(a) > 0 && a[0] == "--" {
		a = a[1:]
	}
	j := &job.Job{
		Name: c.String("name"), Nodes: c.Int("nodes"), Tasks: c.Int("tasks"), TasksPerNode: c.Int("tasks-per-node"), CPUs: c.Int("cpus"), GPUs: c.Int("gpus"),
		Queue: c.String("queue"), Account: c.String("account"), Exclusive: c.Bool("exclusive"), After: c.StringSlice("after"),
		Output: c.String("output"), Error: c.String("error"), Mail: c.String("mail"), Native: c.StringSlice("native"),
		Interactive: c.Bool("interactive"), Ray: c.Bool("ray"), Measure: c.Bool("measure"), Tensorboard: c.String("tensorboard"), Args: a,
	}
	var err error
	if j.Env, err = jobEnv(c.StringSlice("env")); err != nil {
		return nil, to, err
	}
	if j.Array, err = job.ParseArray(c.String("array")); err != nil {
		return nil, to, usagef("--array: %w", err).hint("write --array 1-8, 0-99:10%%4 or 1,3,7")
	}
	if s := c.String("time"); s != "" {
		if j.Time, err = quantity.ParseTime(s); err != nil {
			return nil, to, usagef("--time: %w", err)
		}
	}
	if s := c.String("mem"); s != "" {
		if j.Memory, err = quantity.ParseMemory(s); err != nil {
			return nil, to, usagef("--mem: %w", err)
		}
	}
	if j.Warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return nil, to, usagef("--signal: %w", err)
	}
	if j.Warning.Signal != "" && j.Time == 0 && !from {
		return nil, to, usagef("--signal needs --time: the limit that it warns of")
	}
	if err := readParams(c, j); err != nil {
		return nil, to, err
	}
	j.Retry.Times = c.Int("retry")
	if j.Retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return nil, to, usagef("--retry-on: %w", err)
	}
	if len(j.Retry.Endings) > 0 && j.Retry.Times == 0 {
		return nil, to, usagef("--retry-on needs --retry N: how often")
	}
	if j.Name == "" && !from {
		j.Name = jobName(a)
	}
	if to, err = destinationOf(c); err != nil {
		return nil, to, err
	}
	if err := jobPlaces(c, j, to); err != nil {
		return nil, to, err
	}
	j.Run = wordsAgain(c, env, to.base(j))
	if err := readPod(c, env, j, to); err != nil {
		return nil, to, err
	}
	if err := debugged(c, j, to); err != nil {
		return nil, to, err
	}
	if from {
		if j, err = readFrom(c, j, to); err != nil {
			return nil, to, err
		}
	}
	tell(to.site.Apply(j))
	return j, to, nil
}

// jobEnv reads --env: NAME=VALUE, or NAME for a variable of this process. Other
// users can read the values on a command line, and not those of variables.
func jobEnv(list []string) ([]string, error) {
	var env []string
	for _, e := range list {
		if !strings.Contains(e, "=") {
			v, ok := os.LookupEnv(e)
			if !ok {
				return nil, usagef("--env %s: there is no such variable here", e).hint("export it first, or write --env %s=VALUE", e)
			}
			e += "=" + v
		}
		env = append(env, e)
	}
	return env, nil
}

// readParams reads --sweep and --params: an array of all of their tasks, unless
// --array names some.
func readParams(c *cli.Context, j *job.Job) error {
	var err error
	if j.Params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), ""); err != nil {
		return usagef("%w", err).hint("write --sweep lr=0.1,0.01 --sweep seed=1..4, or --params FILE.csv")
	}
	switch {
	case j.Params.IsZero():
	case j.Array.IsZero():
		j.Array, err = job.ParseArray(fmt.Sprintf("1-%d", j.Params.Count()))
	default:
		j.Whole = j.Params.Count()
	}
	return err
}

// jobPlaces fills in the paths, all absolute: a job starts elsewhere.
func jobPlaces(c *cli.Context, j *job.Job, to *destination) error {
	if to.there != nil {
		return placesThere(c, j, to)
	}
	err := jobProgram(c, j, to.site)
	if err != nil {
		return err
	}
	if j.Dir, err = filepath.Abs(cmp.Or(c.String("chdir"), to.site.Dir)); err != nil {
		return err
	}
	j.Image = c.Args().First()
	if fi, serr := os.Stat(j.Image); namesSquashFS(j.Image) || (isPath(j.Image) && serr == nil && fi.IsDir()) {
		j.Image, err = filepath.Abs(j.Image)
	}
	return err
}

// jobProgram fills in where hpcc and the store are.
func jobProgram(c *cli.Context, j *job.Job, site *dispatch.Site) error {
	s, err := findStore(c)
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

// wordsAgain says the flags of run again, for the script. base is where their
// paths begin.
func wordsAgain(c *cli.Context, env *envChanges, base string) []string {
	w := slices.Clone(env.words)
	for _, f := range runFlags(new(envChanges)) {
		name := f.Names()[0]
		if !c.IsSet(name) {
			continue
		}
		switch f := f.(type) {
		case *cli.BoolFlag:
			switch {
			case c.Bool(name):
				w = append(w, "--"+name)
			case name != "no-config": // its variable may be set, and empty
				w = append(w, "--"+name+"=false") // against a file of defaults
			}
		case *cli.StringFlag:
			w = append(w, "--"+name+"="+c.String(name))
		case *cli.IntFlag:
			w = append(w, fmt.Sprintf("--%s=%d", name, c.Int(name)))
		case *cli.StringSliceFlag:
			for _, v := range c.StringSlice(name) {
				w = append(w, "--"+name+"="+absoluteSource(base, name, v))
			}
		case *cli.GenericFlag:
			if size, ok := c.Generic(name).(*sizeFlag); ok && f.Value != nil {
				w = append(w, "--"+name+"="+size.size)
			}
		}
	}
	return w
}

// absoluteSource makes the source of a bind or mount absolute: a job starts in
// another directory.
func absoluteSource(base, flag, v string) string {
	abs := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(base, p)
	}
	if flag != "bind" && flag != "mount" {
		return v
	}
	if flag == "bind" {
		src, rest, ok := strings.Cut(v, ":")
		if src = abs(src); ok {
			src += ":" + rest
		}
		return src
	}
	items := strings.Split(v, ",")
	for i, item := range items {
		if k, p, ok := strings.Cut(item, "="); ok && (k == "source" || k == "src") {
			items[i] = k + "=" + abs(p)
		}
	}
	return strings.Join(items, ",")
}

// jobName is the program's name, or its script's when the program is an interpreter.
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

func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "say how jobs are doing", ArgsUsage: "[JOB...]",
		Description: `Reads the records of the tasks and asks the scheduler, once, for what it alone knows.
JOB is an id of "hpcc submit", its beginning, or the scheduler's id.

   hpcc status
   hpcc status --json main-261121-090000
   hpcc status --watch main

Jobs of sites that ssh reaches come with them; of one that does not answer, as they were when it did.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "one JSON object for each job, with its tasks"},
			&cli.GenericFlag{Name: "watch", Value: &watchFlag{}, Usage: "go on until all have ended; --watch=`SECONDS` looks so often (default 10)"},
			&cli.BoolFlag{Name: "here", Usage: "only jobs of this machine's schedulers: ask no site over ssh"},
			onFlag(), storeFlag(),
		},
		Action: func(c *cli.Context) error {
			ids, err := parseArguments(c, 0, 1000, "[JOB...]")
			if err != nil {
				return err
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			if w := c.Generic("watch").(*watchFlag); w.every > 0 {
				return watchStatus(c, s.Jobs(), ids, w.every)
			}
			list, warnings, err := allStatuses(c, s.Jobs(), ids)
			if err != nil {
				return err
			}
			warn(warnings)
			if c.Bool("json") {
				return statusJSON(list)
			}
			return statusTable(os.Stdout, list, len(ids) > 0)
		},
	}
}

func statusJSON(list []*dispatch.Status) error {
	enc := json.NewEncoder(os.Stdout)
	for _, st := range list {
		shown := *st
		shown.Submission = st.Submission.Redacted()
		if err := enc.Encode(struct {
			Type  string `json:"type"`
			State string `json:"state"`
			*dispatch.Status
			Tasks []job.Task `json:"tasks"`
		}{"job", st.State(), &shown, st.Tasks}); err != nil {
			return err
		}
	}
	return nil
}

// statusTable shows a line for each job; of jobs that were asked for by name
// also the tasks that did not end well.
func statusTable(out io.Writer, list []*dispatch.Status, detail bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	site := siteColumn(list)
	fmt.Fprintln(w, "JOB\t"+site(nil)+"TARGET\tSTATE\tTASKS\tDONE\tFAILED\tRUNNING\tWAITING\tWHY")
	for _, st := range list {
		why := st.Reason
		if st.Lost > 0 {
			why = fmt.Sprintf("%d tasks left no record and are gone", st.Lost)
		}
		if !st.AsOf.IsZero() {
			why = strings.TrimSpace("as of " + st.AsOf.Local().Format(time.DateTime) + " " + why)
		}
		rowf(w, "%s\t%s%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", st.ID, columns(site(st)), st.Target, st.State(), st.Total, st.Done, len(st.Failed), st.Running, st.Waiting, why)
	}
	if err := w.Flush(); err != nil || !detail {
		return err
	}
	for _, st := range list {
		if st.Job.Workflow != nil || len(st.Job.Steps) > 0 {
			stepLines(out, st)
			continue
		}
		for _, t := range st.Tasks {
			if slices.Contains(st.Failed, t.Index) {
				rowf(out, "task %d%s on %s: %s  %s\n", t.Index, params(t.Params), t.Host, t.Ending(), t.Output)
			}
		}
	}
	return nil
}

// params tells a task's parameters, in brackets.
func params(p map[string]string) string {
	if len(p) == 0 {
		return ""
	}
	var words []string
	for _, n := range slices.Sorted(maps.Keys(p)) {
		words = append(words, n+"="+p[n])
	}
	return " (" + strings.Join(words, ", ") + ")"
}
