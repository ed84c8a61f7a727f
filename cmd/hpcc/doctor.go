package main

import (
	"bufio"
	"context"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job/site"
	"hpcc/runtime/probe"
	"hpcc/store/ready"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "check what this host supports",
		Description: `Checks what runs and builds need. Every line is ok, limited (there is an alternative) or no, with
the reason, what you can do ("you:"), and the text to send to the administrator ("ask:"). Contacts
a registry only if you name it.

   hpcc doctor
   hpcc doctor --json | jq -r 'select(.ask != "") | .ask'
   hpcc doctor --registry ghcr.io

Exit status: 1 if no image can run on this host.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"},
			&cli.StringSliceFlag{Name: "registry", Usage: "check that registry `HOST` answers"},
			storeFlag(),
		},
		Action: action(parseDoctor),
	}
}

// doctorArgs is the command line of "hpcc doctor".
type doctorArgs struct {
	store      string
	registries []string // hosts
	json       bool
}

func parseDoctor(c *cli.Context) (*doctorArgs, error) {
	_, err := parseArguments(c, 0, 0, "no arguments")
	return &doctorArgs{store: c.String("store"), registries: c.StringSlice("registry"), json: c.Bool("json")}, err
}

func (a *doctorArgs) run(ctx context.Context) error {
	dir := a.store
	if dir == "" {
		var err error
		if dir, err = ready.Default(); err != nil {
			return err
		}
	}
	checks := probe.Checks(dir, site.Checks(version)...)
	for _, host := range a.registries {
		checks = append(checks, probe.Registry(host))
	}
	features := probe.Run(ctx, checks)
	w := bufio.NewWriter(os.Stdout)
	unusable := false // no image can run
	for _, f := range features {
		unusable = unusable || (f.Vital && f.State == probe.No)
		if err := f.Write(w, a.json); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if unusable {
		return exitStatus(exitFailure)
	}
	return nil
}
