package main

import (
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/runtime"
)

// deviceFlags name the hardware that a run is given.
func deviceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "gpu", Usage: "give the program this machine's GPUs and the libraries of their driver"},
		&cli.StringSliceFlag{Name: "device", Usage: "give the program the `VENDOR/CLASS=NAME` that a CDI spec of this machine describes; NAME may be all (repeatable)"},
		&cli.StringFlag{Name: "mpi", Usage: "use `PROFILE`: pmix (the image's MPI under the host's launcher) or host (the host's MPI library)"},
	}
}

// addDevices gives the run the hardware of the flags.
func addDevices(c *cli.Context, spec *specs.Spec) error {
	notes, err := runtime.Devices{
		GPU: c.Bool("gpu"), Names: c.StringSlice("device"), MPI: c.String("mpi"),
		SpecDirs:   filepath.SplitList(os.Getenv("HPCC_CDI_DIRS")),
		DriverRoot: os.Getenv("NVIDIA_DRIVER_ROOT"), DevRoot: os.Getenv("NVIDIA_DEV_ROOT"),
	}.Add(spec)
	tell(notes)
	return err
}

// deviceWords says the flags again, for the script of a job.
func deviceWords(c *cli.Context) []string {
	var w []string
	if c.Bool("gpu") {
		w = append(w, "--gpu")
	}
	for _, d := range c.StringSlice("device") {
		w = append(w, "--device="+d)
	}
	if m := c.String("mpi"); m != "" {
		w = append(w, "--mpi="+m)
	}
	return w
}
