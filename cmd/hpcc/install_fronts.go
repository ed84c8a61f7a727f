package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/front"
	"hpcc/text"
)

func installFrontsCommand() *cli.Command {
	return &cli.Command{
		Name: "install-fronts", Usage: "install hpcc under the names of other container programs", ArgsUsage: "DIR [NAME...]",
		Description: `Links the names docker, apptainer, singularity, ch-run, ch-image and ch-convert, or only
those given, in DIR to this hpcc. Workflow tools that call these programs then run containers with hpcc:

   hpcc install-fronts ~/fronts
   PATH=~/fronts:$PATH snakemake --use-singularity

hpcc translates their options to its own. It refuses an option whose meaning it cannot keep.`,
		Action: action(parseInstallFronts),
	}
}

type installFrontsArgs struct {
	dir   string
	names []string
}

func parseInstallFronts(c *cli.Context) (*installFrontsArgs, error) {
	args, err := parseArguments(c, 1, 1+len(front.Names()), "DIR [NAME...]")
	if err != nil {
		return nil, err
	}
	return &installFrontsArgs{dir: args[0], names: args[1:]}, front.CheckNames(args[1:])
}

func (a *installFrontsArgs) run(context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	links, err := front.Install(self, a.dir, a.names)
	for _, l := range links {
		fmt.Println(l)
	}
	return err
}

// isFront reports whether hpcc was called by the name of another program.
func isFront(argv0 string) bool { return slices.Contains(front.Names(), filepath.Base(argv0)) }

// runFront executes a command line of another program.
func runFront(ctx context.Context, args []string) error {
	r, err := front.Read(filepath.Base(args[0]), args[1:], os.Environ())
	var no *front.Refusal
	if errors.As(err, &no) {
		return &text.Error{Err: err, Status: cmp.Or(no.Status, text.StatusUsage), Advice: no.Advice}
	}
	if err != nil {
		return err
	}
	if _, err = io.WriteString(os.Stdout, r.Output); err == nil {
		for _, n := range r.Notes {
			say("%s", n)
		}
		err = r.Run(ctx, hasImage)
	}
	var ended *exec.ExitError // it has printed its error
	switch {
	case errors.As(err, &ended):
		return exitStatus(cmp.Or(r.Failed, ended.ExitCode())) // a failure must not look like that of the last command
	case r.Failed != 0:
		return atStatus(r.Failed, err)
	}
	return err
}

// hasImage reports whether the store has an image for a platform; "" is any.
func hasImage(name, platform string) bool {
	var p *v1.Platform
	if platform != "" {
		var err error
		if p, err = v1.ParsePlatform(platform); err != nil {
			return false
		}
	}
	s, err := defaultStore()
	if err == nil {
		_, err = s.Get(name, p)
	}
	return err == nil
}
