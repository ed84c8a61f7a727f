package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/dispatch"
	"hpcc/job/snakemake"
	"hpcc/store"
	"hpcc/text"
)

func snakemakeProfileCommand() *cli.Command {
	return &cli.Command{
		Name: "snakemake-profile", Usage: "write a Snakemake profile that submits through hpcc", ArgsUsage: "DIR",
		Description: `Writes a profile to DIR. With it, Snakemake 7 or later submits its jobs to any batch system that hpcc
knows, follows them, and cancels them when it is interrupted.

   hpcc snakemake-profile ~/.config/snakemake/hpcc
   snakemake --profile hpcc

Flags are defaults for rules that do not request other resources.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "submit to `TARGET`: " + dialects + ", local"},
			&cli.StringFlag{Name: "mem", Usage: "request `SIZE` of memory: 512M, 4G"},
			&cli.StringFlag{Name: "time", Usage: "limit the run time to `TIME`: 90m, 1h30m or 1-12:00:00"},
			&cli.StringFlag{Name: "queue", Aliases: []string{"p"}, Usage: "use queue or partition `QUEUE`"},
			&cli.StringFlag{Name: "account", Usage: "charge account `ACCOUNT`"},
			&cli.StringSliceFlag{Name: "native", Usage: "pass `OPTIONS` to the scheduler unchanged, for all rules"},
			&cli.IntFlag{Name: "jobs", Usage: "submit at most `N` jobs at a time (default: 100; local: one per CPU)"},
			storeFlag(),
		},
		Action: action(parseSnakemakeProfile),
	}
}

type snakemakeProfileArgs struct{ snakemake.Profile }

func parseSnakemakeProfile(c *cli.Context) (*snakemakeProfileArgs, error) {
	args, err := parseArguments(c, 1, 1, "DIR")
	if err != nil {
		return nil, err
	}
	to, err := newChoice("", c.String("to"))
	if err != nil {
		return nil, err
	}
	size, err := parseSize(c)
	if err != nil {
		return nil, err
	}
	a := &snakemakeProfileArgs{snakemake.Profile{To: to.To, Queue: c.String("queue"), Account: c.String("account"), Jobs: c.Int("jobs"),
		MemoryMB: int((size.Memory + 1<<20 - 1) >> 20), Minutes: int(math.Ceil(size.Time.Minutes()))}}
	for _, n := range c.StringSlice("native") {
		a.Submit = append(a.Submit, "--native="+n)
	}
	for _, name := range []string{"queue", "account"} {
		if v := c.String(name); v != "" && !job.WordText().MatchString(v) {
			return nil, text.Usagef("--%s %q: contains characters that directives cannot hold", name, v)
		}
	}
	if c.IsSet("jobs") && a.Jobs < 1 {
		return nil, text.Usagef("--jobs %d: not a positive number", a.Jobs)
	}
	if a.Dir, err = filepath.Abs(args[0]); err == nil && c.IsSet("store") {
		a.Store, err = filepath.Abs(c.String("store"))
	}
	return a, err
}

func (a *snakemakeProfileArgs) run(ctx context.Context) (err error) {
	if a.To == "" {
		a.To = dispatch.Detect(ctx)
	}
	if a.To.Pods() {
		return text.Usagef("the jobs of Snakemake need the files of this machine, and pods of %s do not see them", a.To).
			Hint("name another target with --to, or use Snakemake's own executor for Kubernetes")
	}
	if a.Jobs == 0 {
		a.Jobs = 100
		if a.To == job.Local {
			a.Jobs = runtime.NumCPU()
		}
	}
	known := dispatch.Translator()
	if i := slices.IndexFunc(known, func(d *dialect.Dialect) bool { return d.Target == a.To }); i >= 0 && known[i].NoExports {
		a.Submit = append(a.Submit, "--env=PATH")
	}
	if a.Program, err = os.Executable(); err != nil {
		return err
	}
	names, err := a.Write()
	if err != nil {
		return text.Hint(err, "give another directory, or remove the file")
	}
	for _, n := range names {
		fmt.Println(n)
	}
	say("to use it: snakemake --profile %s", a.Dir)
	return nil
}

func snakemakeStatusCommand() *cli.Command {
	return &cli.Command{
		Name: "snakemake-status", Hidden: true, Usage: "print running, success or failed (started by Snakemake)", ArgsUsage: "JOB",
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseSnakemakeStatus),
	}
}

type snakemakeStatusArgs struct{ id, store string }

func parseSnakemakeStatus(c *cli.Context) (*snakemakeStatusArgs, error) {
	ids, err := parseArguments(c, 1, 1, "JOB")
	if err != nil {
		return nil, err
	}
	return &snakemakeStatusArgs{ids[0], c.String("store")}, nil
}

// run prints an answer in any case: Snakemake stops if it gets none. A job whose state cannot be read
// now runs.
func (a *snakemakeStatusArgs) run(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // Ctrl-C is for Snakemake
	state, err := a.state(ctx)
	if err != nil {
		say("warning: job %s: %v", a.id, err)
	}
	_, err = fmt.Println(state)
	return err
}

func (a *snakemakeStatusArgs) state(ctx context.Context) (string, error) {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return "running", err
	}
	sub, err := dispatch.Find(s.Jobs(), a.id)
	var none *dispatch.NoJobError
	if errors.As(err, &none) {
		return "failed", err
	} else if err != nil {
		return "running", err
	}
	ended, failure, err := sub.Poll(ctx, s.Jobs())
	switch {
	case !ended:
		return "running", err
	case failure == "":
		return "success", err
	}
	say("job %s (%s %s) failed: %s; \"hpcc logs %s\" shows its output", sub.ID, sub.Target, cmp.Or(sub.Native, "-"), failure, sub.ID)
	return "failed", err
}

func snakemakeCancelCommand() *cli.Command {
	return &cli.Command{
		Name: "snakemake-cancel", Hidden: true, Usage: "cancel jobs (started by Snakemake)", ArgsUsage: "JOB...",
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseSnakemakeCancel),
	}
}

type snakemakeCancelArgs struct {
	ids   []string
	store string
}

func parseSnakemakeCancel(c *cli.Context) (*snakemakeCancelArgs, error) {
	return &snakemakeCancelArgs{c.Args().Slice(), c.String("store")}, nil
}

func (a *snakemakeCancelArgs) run(context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	return snakemake.Cancel(s.Jobs(), a.ids, "cancel", "--store="+s.Dir(), "--")
}
