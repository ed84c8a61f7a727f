package main

import (
	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/kube"
)

// aroundFlags say what "hpcc script --to openshift" writes beside the job.
func aroundFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "with", Usage: "openshift: also write `OBJECTS`: build (an image stream and what builds it), deploy (a Deployment in the place of the Job)"},
		&cli.StringFlag{Name: "git", Usage: "--with build: of repository `URL[#REF]` (default: what \"oc start-build --from-dir\" sends)"},
		&cli.StringFlag{Name: "context-dir", Usage: "--with build: of directory `DIR` of the repository"},
		&cli.StringFlag{Name: "dockerfile", Usage: "--with build: by `FILE` (default: Dockerfile)"},
		&cli.StringSliceFlag{Name: "build-arg", Usage: "--with build: set `NAME=VALUE` of an ARG (repeatable; everybody who may read the build sees it)"},
		&cli.StringFlag{Name: "arch", Usage: "--with build: build and run on nodes with processors `ARCH`: ppc64le, amd64"},
	}
}

// readAround reads what else is to be written; false for the job alone.
func readAround(c *cli.Context, to *destination) (a kube.Around, also bool, err error) {
	with := c.String("with")
	if with == "" {
		for _, f := range aroundFlags() {
			if n := f.Names()[0]; c.IsSet(n) {
				return a, false, usagef("--%s says how --with build builds, and there is no --with", n)
			}
		}
		return a, false, nil
	}
	if to.Target != job.OpenShift {
		return a, false, usagef("--with %s is of openshift, and the job goes to %s", with, to.Target).hint("say --to openshift")
	}
	if a, err = kube.ParseAround(with); err != nil {
		return a, false, usagef("--with: %w", err)
	}
	if a.Build == nil {
		return a, true, nil
	}
	*a.Build = kube.Build{Git: c.String("git"), ContextDir: c.String("context-dir"), Dockerfile: c.String("dockerfile"), Args: c.StringSlice("build-arg"), Arch: c.String("arch")}
	if a.Build.ContextDir != "" && a.Build.Git == "" {
		return a, false, usagef("--context-dir is a directory of the repository of --git")
	}
	return a, true, nil
}
