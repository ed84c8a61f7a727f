package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/pack"
	"hpcc/metrics"
	"hpcc/store"
	"hpcc/text"
)

// taskCommand returns the command that job scripts call. It runs the program after "--",
// measures it and keeps the record of the task. The exit status is the program's.
func taskCommand() *cli.Command {
	a := &taskArgs{}
	w, r := &a.work, &a.work.Runner
	return &cli.Command{
		Name: "task", Hidden: true, Usage: "run a task of a job and record it (started by job scripts)", ArgsUsage: "-- CMD [ARG...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Required: true, Destination: &w.Job, Usage: "write the record to the directory of job `ID`"},
			&cli.StringFlag{Name: "name", Destination: &r.Name, Usage: "use job name `NAME` in file names"},
			&cli.StringFlag{Name: "array", Usage: "run the tasks `RANGE` one after the other"},
			&cli.IntFlag{Name: "nth", Usage: "run only the `N`th task of --array"},
			&cli.IntFlag{Name: "of", Usage: "set the size of the full array to `N` tasks"},
			&cli.IntFlag{Name: "pack", Destination: &a.pack.Slots, Usage: "run --array on all nodes of the job, `N` tasks at once on each"},
			&cli.IntFlag{Name: "image-words", Destination: &a.pack.Image,
				Usage: "with --pack: the first `N` arguments start the image, once on each node"},
			&cli.StringFlag{Name: "dir", Destination: &a.role.Dir, Usage: "join the packed job in `DIR`"},
			&cli.StringFlag{Name: "to", Usage: "with --pack: run under scheduler `TARGET`"},
			&cli.StringFlag{Name: "run", Destination: &a.role.Run, Usage: "join run `ID` of a packed job"},
			&cli.StringFlag{Name: "role", Destination: &a.role.Name, Usage: "act as `ROLE` of it: coordinator, node or worker"},
			&cli.IntFlag{Name: "rank", Value: -1, Destination: &a.role.Rank, Usage: "act as node `N` of it"},
			&cli.IntFlag{Name: "parallel", Value: 1, Destination: &w.Parallel, Usage: "run `N` tasks at the same time"},
			&cli.IntFlag{Name: "nodes", Destination: &r.Nodes, Usage: "run only if the job has `N` nodes"},
			&cli.StringFlag{Name: "needs", Usage: "run only if the native jobs `IDS` have succeeded"},
			&cli.StringSliceFlag{Name: "sweep", Usage: "expand {NAME} from `NAME=VALUES`"},
			&cli.StringFlag{Name: "params", Usage: "expand {NAME} from the rows of `FILE`"},
			&cli.StringFlag{Name: "params-sum", Usage: "require this `SHA256` of --params"},
			&cli.IntFlag{Name: "retry", Destination: &r.Retry.Times, Usage: "run a failed task again up to `N` times"},
			&cli.StringFlag{Name: "retry-on", Usage: "retry only after `ENDINGS`: exit=99,signal=SIGKILL"},
			&cli.BoolFlag{Name: "grow", Destination: &a.grow, Usage: "submit tasks that lack memory or time again"},
			&cli.BoolFlag{Name: "interactive", Destination: &r.Interactive, Usage: "leave the terminal to the task"},
			&cli.BoolFlag{Name: "stdin", Usage: "give each task a copy of standard input"},
			&cli.DurationFlag{Name: "limit", Destination: &r.Limit, Usage: "end each task after `TIME`"},
			&cli.StringFlag{Name: "signal", Usage: "send `SIGNAL@TIME` before the limit"},
			&cli.BoolFlag{Name: "measure", Destination: &a.measure, Usage: "record the resource usage of each task"},
			&cli.StringFlag{Name: "image", Destination: &w.Image, Usage: "record that the program runs in image `IMAGE`"},
			&cli.StringFlag{Name: "image-file", Usage: "fail if the image file is no longer `VERSION`"},
			&cli.StringFlag{Name: "asked", Usage: "record the request `cpus=N,memory=BYTES,gpus=N,time=TIME`"},
			&cli.StringFlag{Name: "beside", Usage: "run a companion of a task: `INDEX NAME ARGV`"},
			&cli.StringFlag{Name: "output", Destination: &r.Output, Usage: "write output to `FILE`"},
			&cli.StringFlag{Name: "error", Destination: &r.Errors, Usage: "write standard error to `FILE`"},
			storeFlag(),
		},
		Action: action(func(c *cli.Context) (*taskArgs, error) { return a, parseTask(c, a) }),
	}
}

// taskArgs is the command line of "hpcc task". Most flags are bound to its fields.
type taskArgs struct {
	store         string
	work          dispatch.Work
	pack          pack.Plan
	role          pack.Role // of this process in a packed job; without a name: none
	measure, grow bool
}

// parseTask parses the flags that are not bound to fields.
func parseTask(c *cli.Context, a *taskArgs) (err error) {
	w, r := &a.work, &a.work.Runner
	a.store, a.role.Job, r.Logf = c.String("store"), w.Job, say
	if !filepath.IsLocal(w.Job) || filepath.Base(w.Job) != w.Job {
		return text.Usagef("--job %q is not a job ID", w.Job)
	}
	if a.role.Name != "" {
		if run := a.role.Run; !filepath.IsLocal(run) || filepath.Base(run) != run {
			return text.Usagef("--run %q is not a run", run)
		}
		if !slices.Contains([]string{"coordinator", "node", "worker"}, a.role.Name) {
			return text.Usagef("--role %q is not coordinator, node or worker", a.role.Name)
		}
		return nil
	}
	if r.Argv = trimDashes(c.Args().Slice()); len(r.Argv) == 0 {
		return errors.New("task needs a command after --")
	}
	if w.Array, err = job.ParseArray(c.String("array")); err != nil {
		return err
	}
	r.Count = max(c.Int("of"), w.Array.Count(), 1)
	if r.Params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), c.String("params-sum")); err != nil {
		return err
	}
	if r.Retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return err
	}
	if w.Request, err = job.ParseRequest(c.String("asked")); err != nil {
		return text.Usagef("--asked: %w", err)
	}
	if r.Companion.Task, r.Companion.Name, r.Companion.Argv, err = job.ParseCompanion(c.String("beside")); err != nil {
		return err
	}
	if ids := c.String("needs"); ids != "" {
		w.Needs = strings.Split(ids, ",")
	}
	if r.Warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return text.Usagef("--signal: %w", err)
	}
	if c.Bool("stdin") {
		if r.Stdin, err = files.ReadAll(files.Stdin(), maxScript); err != nil {
			return fmt.Errorf("reading the script of the task: %w", err)
		}
	}
	r.Image, r.Version.ImageFile = r.Version.ReadName(w.Image), c.String("image-file")
	if c.IsSet("pack") {
		w.Pack, w.PackTo = &a.pack, job.Target(c.String("to"))
	}
	if w.One = c.IsSet("nth"); w.One {
		var ok bool
		if w.Index, ok = w.Array.Nth(c.Int("nth")); !ok {
			return text.Usagef("--nth %d: the array %s has %d tasks", c.Int("nth"), w.Array, w.Array.Count())
		}
	}
	return nil
}

func (a *taskArgs) run(ctx context.Context) error {
	if a.role.Name != "" {
		return exitStatus(a.role.Act(ctx, dispatch.OnNode(), say))
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	w := &a.work
	w.Jobs = s.Jobs()
	if a.measure {
		w.Header = &metrics.Header{Hpcc: version}
		if w.Image != "" {
			nameImage(w.Header, s, w.Image)
		}
	}
	if a.grow {
		w.Lock = func(ctx context.Context) func() { return lockJob(ctx, s, w.Job) }
	}
	status, err := w.Run(ctx)
	if err != nil {
		return err
	}
	return exitStatus(status)
}

// maxScript is the maximum size of a script on standard input, in bytes.
const maxScript = 16 << 20
