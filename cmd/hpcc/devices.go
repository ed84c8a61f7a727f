package main

import (
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"hpcc/runtime/devices"
)

// deviceFlags name the hardware that a run is given.
func deviceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "gpu", Usage: "give the program this machine's GPUs and the libraries of their driver"},
		&cli.StringSliceFlag{Name: "device", Usage: "give the program the `VENDOR/CLASS=NAME` that a CDI spec of this machine describes; NAME may be all (repeatable)"},
		&cli.StringFlag{Name: "mpi", Usage: "use `PROFILE`: pmix (the image's MPI under the host's launcher) or host (the host's MPI library)"},
	}
}

// devices returns what the flags of deviceFlags ask for.
func (w *runSources) devices() devices.Request {
	return devices.Request{
		GPU: w.yes("gpu"), Names: w.list("device"), MPI: w.text("mpi"),
		SpecDirs:   filepath.SplitList(os.Getenv("HPCC_CDI_DIRS")),
		DriverRoot: os.Getenv("NVIDIA_DRIVER_ROOT"), DevRoot: os.Getenv("NVIDIA_DEV_ROOT"),
	}
}
