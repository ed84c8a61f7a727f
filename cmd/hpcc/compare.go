package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/metrics/report"
	"hpcc/store"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name: "report", Usage: "compare measured runs of one image on several systems", ArgsUsage: "[NAME=]RUN...",
		Description: `Says how long the runs took, what they used of what was asked for, how they spread, what they
cost, and what probably explains why one system took longer. RUN is a system: the file of a
measured run ("hpcc run --measure"), a directory of such files, or a job of "hpcc submit", by its
id or the beginning of it. NAME is what it is called. A job that was not measured tells times,
processor time and memory. The first system is the one that the others are compared with; one
alone is reported of. docs/report.md explains the figures, and the files of prices.

   hpcc report power=jobs/main-261121 pod=main-261122
   hpcc report --html report.html before.jsonl after.jsonl
   hpcc report --price prices.toml --csv sweep-261121-090000 > runs.csv

Exit status: 0; 1 when the images differ and --different is not given, or nothing can be read.`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "csv", Usage: "print a row for each run"},
			&cli.BoolFlag{Name: "markdown", Usage: "print Markdown"},
			&cli.StringFlag{Name: "html", Usage: "write a page with charts to `FILE`; - prints it"},
			&cli.StringFlag{Name: "price", Usage: "count costs and energy by the prices of `FILE`"},
			&cli.StringFlag{Name: "power", Usage: "count energy by what nodes draw by `FILE`, which has the form of that of --price"},
			&cli.BoolFlag{Name: "different", Usage: "compare runs of different images, and say so"},
			&cli.BoolFlag{Name: "attempts", Usage: "count earlier attempts of tasks too, not only the last"},
			onFlag(), storeFlag(),
		}, sweepFlags()...),
		Action: compareRuns,
	}
}

func compareRuns(c *cli.Context) error {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // they end it: reading may wait for file servers
	words, err := parseArguments(c, 1, maxSystems, "[NAME=]RUN...")
	if err != nil {
		return err
	}
	form, err := reportForm(c)
	if err != nil {
		return err
	}
	o := report.Options{Different: c.Bool("different")}
	if o.Prices, err = pricesOf(c); err != nil {
		return err
	}
	sources, err := reportSources(c, words)
	if err != nil {
		return err
	}
	r, err := report.Read(sources, o)
	if err != nil {
		return onReport(err)
	}
	for _, s := range r.Systems {
		s.Advice = append(requestAdvice(s), s.Advice...)
	}
	warn(r.Warnings)
	if c.Bool("sweep") {
		return writeSweeps(c, r, form)
	}
	if err := addSweeps(c, r); err != nil {
		return err
	}
	return writeReport(c, r, form)
}

// maxSystems bounds how many systems one report has: what a page can show.
const maxSystems = 20

// reportForm is what the command line wants printed.
func reportForm(c *cli.Context) (form string, err error) {
	form = "text"
	for _, f := range []string{"json", "csv", "markdown"} {
		if !c.Bool(f) {
			continue
		}
		if form != "text" {
			return "", usagef("--%s and --%s do not go together", form, f).hint("run it twice; --html writes a page beside either")
		}
		form = f
	}
	switch html := c.String("html"); {
	case html == "-" && form != "text":
		return "", usagef("--html - and --%s do not go together", form).hint("name a file: --html report.html")
	case html == "-":
		form = "html"
	case html == "" && c.IsSet("html"):
		return "", usagef("--html wants the name of a file")
	}
	return form, nil
}

// writeReport prints the report, and writes the page where one is wanted.
func writeReport(c *cli.Context, r *report.Report, form string) error {
	if file := c.String("html"); file != "" && file != "-" {
		if err := store.NewFile(file, func(f *os.File) error { return r.HTML(f) }); err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
		defer say("the page is in %s", file)
	}
	switch form {
	case "json":
		b, err := r.JSON()
		if err == nil {
			_, err = os.Stdout.Write(b)
		}
		return err
	case "csv":
		return r.CSV(os.Stdout)
	case "markdown":
		return r.Markdown(os.Stdout)
	case "html":
		return r.HTML(os.Stdout)
	}
	return r.Text(os.Stdout)
}

// onReport says what to do about runs that cannot be compared.
func onReport(err error) error {
	switch d := new(report.DigestError); {
	case errors.As(err, &d):
		return (&message{err: err}).hint("--different compares them all the same, and says so; builds of one Dockerfile for two architectures have one digest only where --platform named both")
	case errors.Is(err, report.ErrNothing):
		return (&message{err: err}).hint("\"hpcc run --measure\" and \"hpcc submit --measure\" leave records; jobs have them in their directories below the store's jobs/")
	}
	return err
}

// pricesOf are those of --price, or those of --power; of both the draws are those of --power. Without either nil.
func pricesOf(c *cli.Context) (*report.Prices, error) {
	p, err := readPrices(c, "price")
	if err != nil {
		return nil, err
	}
	power, err := readPrices(c, "power")
	if p == nil || err != nil {
		return power, err
	}
	p.Draws = power
	return p, nil
}

// readPrices reads the file of a flag; nil without one.
func readPrices(c *cli.Context, flag string) (*report.Prices, error) {
	file := c.String(flag)
	if file == "" {
		return nil, nil
	}
	bad := func(err error) error {
		return (&message{err: fmt.Errorf("--%s: %w", flag, err), status: exitUsage}).hint("docs/report.md, \"Costs\", has an example")
	}
	p := &report.Prices{}
	f, err := dispatch.ReadTables(file, p)
	if err != nil {
		return nil, bad(err)
	}
	if key, err := p.Check(); err != nil {
		return nil, bad(f.At(key, err))
	}
	return p, nil
}

// requestAdvice is what records of jobs advise, of a system whose runs have all ended and asked
// for the same. What runs that were killed for want of something used of it says nothing, nor does
// what one process used of several.
func requestAdvice(s *report.System) []string {
	if s.Endings[report.Open]+s.Missing > 0 {
		return nil
	}
	asked := s.Tasks[0].Header.Asked
	u := &capacity.Use{CPUs: asked.CPUs, Memory: asked.Memory, Time: duration(asked.Time)}
	var wall, cpu, longest float64
	largest, first := false, false // memory of the largest process alone, processor time of the first
	for _, t := range s.Tasks {
		if t.Header.Asked != asked {
			return nil // what one used of much says nothing of one that asked for little
		}
		wall, longest = wall+t.Figures["wall_s"], max(longest, t.Figures["wall_s"])
		c, told := t.Figures["cpu_s"]
		cpu, u.CPUUnknown = cpu+c, u.CPUUnknown || (!told && t.Figures["wall_s"] > 0)
		u.PeakMemory = max(u.PeakMemory, int64(t.Figures["memory_peak_bytes"]))
		alone := t.Footer.MemoryFrom == "" || t.Footer.MemoryFrom == "process"
		largest = largest || (alone && (asked.CPUs > 1 || t.Ranks > 1))
		first = first || (!t.Measured && t.Ranks > 1)
	}
	fits := min(1, mostSeconds/max(wall, cpu, 1)) // of both, so that as many processors are busy
	u.Wall, u.CPUTime, u.Longest = duration(wall*fits), duration(cpu*fits), duration(longest)
	if first || s.Figures["throttled"].Median >= report.MuchThrottled { // it would have used more
		u.CPUs = 0
	}
	if largest || s.Endings[report.NoMemory] > 0 {
		u.Memory = 0
	}
	if s.Endings[report.TimeLimit] > 0 {
		u.Time = 0
	}
	return u.Advise()
}

// mostSeconds is what a duration holds.
const mostSeconds = 9e9

func duration(v float64) time.Duration {
	return time.Duration(max(0, min(v, mostSeconds)) * float64(time.Second))
}
