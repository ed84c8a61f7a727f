package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/capacity"
)

func nodesCommand() *cli.Command {
	return &cli.Command{
		Name: "nodes", Usage: "show what of the nodes is free, and where a job would start", ArgsUsage: "[--mine [JOB...]]",
		Description: `Lists the nodes of each cluster, those of sites too, what is most free first, and until when.
With --fits says where and when a job would start: a script of any scheduler, or a job
of "hpcc submit". "hpcc submit --dry-run" says so of a job that flags state. With --mine
compares what jobs of "hpcc submit" asked for with what they used. With --report says how
much of each cluster was given out over time, which of your jobs held GPUs and processors
that they did not use, and what would start now.

   hpcc nodes
   hpcc nodes --queue gpu --json
   hpcc nodes --fits job.sh
   hpcc nodes --fits main-261121-090000
   hpcc nodes --mine
   hpcc nodes --report --since 30d`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "ask `TARGET`: slurm, lsf, gridengine, pbs, local (default: the scheduler of this machine)"},
			&cli.StringFlag{Name: "queue", Usage: "only nodes of queue or partition `Q`"},
			&cli.StringFlag{Name: "fits", Usage: "say where and when `JOB`, a script or an id, would start; exit status 1: never"},
			&cli.StringFlag{Name: "dialect", Usage: "the script is written for `SCHEDULER`: slurm, lsf, gridengine, pbs (default: by its directives)"},
			&cli.BoolFlag{Name: "mine", Usage: "say what my jobs asked for and what of it they used"},
			&cli.BoolFlag{Name: "report", Usage: "say how much was given out over time, what of it was idle, and what is free"},
			&cli.StringFlag{Name: "since", Usage: "with --report: over the last `TIME`, such as 7d or 36h (default: 7d)"},
			&cli.StringFlag{Name: "html", Usage: "with --report: write a page with charts to `FILE`; - prints it"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object for each node, job or cluster"},
			&cli.StringFlag{Name: "on", Usage: "only nodes of site `NAME`"},
			&cli.BoolFlag{Name: "here", Usage: "only nodes of this machine's schedulers: ask no site over ssh"},
			storeFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.Bool("mine") && !c.Bool("report") {
				return mine(c)
			}
			if _, err := parseArguments(c, 0, 0, "no arguments but with --mine"); err != nil {
				return err
			}
			switch {
			case c.Bool("report"):
				return nodesReport(c)
			case c.IsSet("since") || c.IsSet("html"):
				return usagef("--since and --html are of --report, and there is no --report")
			case c.IsSet("fits"):
				return fits(c)
			}
			here, far, err := clustersOf(c)
			if err != nil {
				return err
			}
			rows, notes, err := allNodes(c, here, far)
			if err != nil {
				return err
			}
			tell(notes)
			if c.Bool("json") {
				return nodesJSON(rows)
			}
			return nodesTable(os.Stdout, rows, time.Now())
		},
	}
}

func nodesJSON(rows []nodeRow) error {
	enc := json.NewEncoder(os.Stdout)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// nodesTable shows a line for each node that takes jobs, and below how many do not,
// by reason. Where there are several sites a column names them.
func nodesTable(out io.Writer, list []nodeRow, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	several := slices.ContainsFunc(list, func(r nodeRow) bool { return r.Site != list[0].Site || r.Target != list[0].Target })
	site := func(name string) string {
		if !several {
			return ""
		}
		return name + "\t"
	}
	fmt.Fprintln(w, site("SITE")+"NODE\tSTATE\tCPUS\tMEMORY\tGPUS\tQUEUES\tUNTIL")
	off := map[string][]string{}
	var reasons []string
	for _, n := range list {
		if n.State == capacity.Off {
			if off[n.Reason] == nil {
				reasons = append(reasons, n.Reason)
			}
			off[n.Reason] = append(off[n.Reason], n.Name)
			continue
		}
		gpus := ""
		if n.GPUs > 0 {
			gpus = strings.TrimSpace(fmt.Sprintf("%d/%d %s", n.FreeGPUs, n.GPUs, n.GPUType))
		}
		rowf(w, "%s%s\t%s\t%d/%d\t%s/%s\t%s\t%s\t%s\n", columns(site(cell(cmp.Or(n.Site, string(n.Target))))), n.Name, n.State, n.FreeCPUs, n.CPUs, gigabytes(n.FreeMemory), gigabytes(n.Memory), gpus, strings.Join(n.Queues, ","), until(&n.Node, now))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range reasons {
		if _, err := rowf(out, "%s no jobs: %s: %s\n", counted(len(off[r]), "node takes", "nodes take"), names(off[r]), oneLine(r)); err != nil {
			return err
		}
	}
	return nil
}

// until tells how long a node stays as it is.
func until(n *capacity.Node, now time.Time) string {
	switch {
	case !n.FreeUntil.IsZero():
		return "free until " + moment(n.FreeUntil, now) + ", " + n.For
	case n.NoLimit:
		return "some jobs have no limit"
	case !n.BusyUntil.IsZero():
		return "jobs end by " + moment(n.BusyUntil, now)
	}
	return ""
}

// moment tells a time as shortly as is clear today.
func moment(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// gigabytes tells an amount of memory in whole G, less than that in M.
func gigabytes(n int64) string {
	if n < 1<<30 {
		return strconv.FormatInt(n>>20, 10) + "M"
	}
	return strconv.FormatInt(n>>30, 10) + "G"
}

// names lists a few names.
func names(list []string) string {
	const most = 12
	text := strings.Join(slices.Clone(list[:min(len(list), most)]), ",")
	if len(list) > most {
		text += ",…"
	}
	return text
}
