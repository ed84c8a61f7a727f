package main

import (
	"context"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/kube"
	"hpcc/job/prepare"
	"hpcc/text"
)

func scriptCommand() *cli.Command {
	return &cli.Command{
		Name: "script", Usage: "print the job script for a scheduler", ArgsUsage: jobUsage,
		Description: `Prints the script that "hpcc submit" would submit for the same arguments. --from translates a job
script or submit command of Slurm, LSF, Grid Engine or PBS, and reports what became of each
directive; with IMAGE, the script runs in it. Other flags override the directives in FILE.

   hpcc script --to slurm --array 1-8 --time 2h sci -- python main.py
   hpcc script --from job.lsf --to slurm --queue gpu sci
   hpcc script --from job.lsf --to kubernetes --volume data:/data sci
   hpcc script --from job.lsf --to openshift --with build sci`,
		Flags: slices.Concat(jobFlags(), aroundFlags(), []cli.Flag{
			&cli.BoolFlag{Name: "keep", Hidden: true,
				Usage: "keep the script in the store and print commands to run it (for another hpcc)"},
		}),
		Action: action(parseScript),
	}
}

// aroundFlags are the flags for the objects that "hpcc script --to openshift" writes before the
// job.
func aroundFlags() []cli.Flag {
	return inSection(openShiftSection,
		&cli.StringFlag{Name: "with", Usage: "write more `OBJECTS` for openshift: build, deploy"},
		&cli.StringFlag{Name: "git", Usage: "with --with build: build from repository `URL`[#REF[:DIR]]"},
		&cli.StringFlag{Name: "context-dir", Usage: "with --with build: use directory `DIR` of the repository"},
		&cli.StringFlag{Name: "dockerfile", Usage: "with --with build: use `FILE` (default Dockerfile)"},
		&cli.StringFlag{Name: "base", Usage: "with --with build: replace FROM by `IMAGE` or istag/NAME:TAG"},
		&cli.BoolFlag{Name: "no-cache", Usage: "with --with build: execute every step again"},
		&cli.StringSliceFlag{Name: "build-env", Usage: "with --with build: set ENV `NAME=VALUE` in build and image"},
		&cli.StringSliceFlag{Name: "webhook", Usage: "with --with build: build after a push: `KIND=SECRET`"},
		&cli.StringSliceFlag{Name: "build-arg", Usage: "with --with build: set ARG `NAME=VALUE`; it is not secret"},
		&cli.StringFlag{Name: "arch", Usage: "with --with build: build and run on `ARCH`: ppc64le, amd64"},
	)
}

type scriptArgs struct {
	*jobArgs
	keep   bool
	with   string      // names of OpenShift objects to write before the job; "" for only the job
	around kube.Around // the objects of with
}

func parseScript(c *cli.Context) (*scriptArgs, error) {
	choices, err := parseSiteChoices(c)
	if err != nil {
		return nil, err
	}
	if len(choices) > 1 {
		return nil, text.Usagef("a script is for one target, not for %d", len(choices)).Hint("run hpcc script for each target")
	}
	j, err := parseJob(c, choices[0])
	if err != nil {
		return nil, err
	}
	a := &scriptArgs{jobArgs: j, keep: c.Bool("keep"), with: c.String("with")}
	return a, a.parseAround(c, parseFlagSet(c))
}

// parseAround reads the flags of --with.
func (a *scriptArgs) parseAround(c *cli.Context, set flagSet) (err error) {
	if a.with == "" {
		if n := set.first(aroundFlags()); n != "" {
			return text.Usagef("--%s needs --with build", n)
		}
		return nil
	}
	if a.around, err = kube.ParseAround(a.with); err != nil {
		return text.Usagef("--with: %w", err)
	}
	if a.around.Build == nil {
		return nil
	}
	b := kube.Build{Git: c.String("git"), ContextDir: c.String("context-dir"), Dockerfile: c.String("dockerfile"),
		Base: c.String("base"), NoCache: c.Bool("no-cache"),
		Args: c.StringSlice("build-arg"), Env: c.StringSlice("build-env"), Webhooks: c.StringSlice("webhook"), Arch: c.String("arch")}
	if *a.around.Build = b; b.ContextDir != "" && b.Git == "" {
		return text.Usagef("--context-dir needs --git").Hint("name the repository with --git URL")
	}
	return nil
}

func (a *scriptArgs) run(ctx context.Context) error {
	j, to, err := prepare.Resolve(ctx, &a.Request)
	if err != nil {
		return err
	}
	if a.with != "" && to.Target != job.OpenShift {
		return text.Usagef("--with %s applies only to openshift, but the job goes to %s", a.with, to.Target).Hint("use --to openshift")
	}
	var text string
	var notes []string
	switch {
	case to.Remote != nil:
		var out []byte
		if out, err = to.Ask(ctx, j, "script", "--job", "-"); err == nil {
			_, err = os.Stdout.Write(out)
		}
		return err
	case a.keep:
		if text, err = to.Keep(ctx, &a.Request, j); err == nil {
			_, err = os.Stdout.WriteString(text)
		}
		return err
	case a.with != "":
		text, notes, err = kube.RenderAround(j, a.around)
	default:
		text, notes, err = to.Script(j)
	}
	if err != nil {
		return err
	}
	if j.CarriesValues() && !to.Target.Pods() {
		notes = append(notes, "the script contains the values of --env and --set-env, and other users can read the scripts of a scheduler; \"hpcc submit\" keeps the values in a private file")
	}
	sayNotes(notes)
	_, err = os.Stdout.WriteString(text)
	return err
}
