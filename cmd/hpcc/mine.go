package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/capacity"
	"hpcc/job/dispatch"
)

// mine is "hpcc nodes --mine": what jobs asked for, and what they used of it.
func mine(c *cli.Context) error {
	ids, err := parseArguments(c, 0, 1000, "[JOB...]")
	if err != nil {
		return err
	}
	for _, name := range []string{"to", "queue", "fits"} {
		if c.IsSet(name) {
			return usagef("--%s and --mine do not go together", name)
		}
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	list, warnings, err := dispatch.Uses(c.Context, s.Jobs(), ids)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		say("warning: %s", w)
	}
	if c.Bool("json") {
		enc := json.NewEncoder(os.Stdout)
		for _, u := range list {
			if err := enc.Encode(struct {
				Type string `json:"type"`
				*capacity.Use
				Busy float64 `json:"busy"`
			}{"use", u, u.Busy()}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "JOB\tTARGET\tSTATE\tTASKS\tCPUS\tBUSY\tMEMORY\tPEAK\tTIME\tLONGEST")
	for _, u := range list {
		busy, memory, limit := fmt.Sprintf("%.0f%%", 100*u.Busy()), "", ""
		if u.CPUUnknown {
			busy = "unknown"
		}
		if u.Memory > 0 {
			memory = gigabytes(u.Memory)
		}
		if u.Time > 0 {
			limit = u.Time.String()
		}
		rowf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", u.ID, u.Target, u.State, u.Tasks, u.CPUs, busy, memory, gigabytes(u.PeakMemory), limit, u.Longest.Round(time.Second))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, u := range list {
		for _, a := range u.Advice {
			if _, err := rowf(os.Stdout, "%s: %s\n", u.ID, a); err != nil {
				return err
			}
		}
	}
	return nil
}
