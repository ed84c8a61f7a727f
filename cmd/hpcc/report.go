package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/job/measured"
	"hpcc/metrics/report"
	"hpcc/store"
	"hpcc/text"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name: "report", Usage: "compare measured runs on several systems", ArgsUsage: "[NAME=]RUN...",
		Description: `Shows how long runs took, what they used of what they requested, how much they vary, what they
cost, and what probably made one system slower. RUN is one system: a resource usage file ("hpcc
run --measure"), a directory of such files, or a job. NAME is its title. The other systems are
compared with the first.

   hpcc report power=main pod=main-261122
   hpcc report --html report.html before.jsonl after.jsonl
   hpcc report --price prices.toml --csv sweep > runs.csv

A file for --price or --power:

   currency = "EUR"
   kwh = 0.28                  # price per kWh
   [node.power]                # a system, or a pattern of host names
   hour = 2.40                 # price per hour of a node, or capital, staff, …
   idle_watts = 400
   max_watts = 900

Exit status: 1 if nothing can be read, or if the images differ and --different is not given.`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "csv", Usage: "print one row per run"},
			&cli.BoolFlag{Name: "markdown", Usage: "print Markdown"},
			&cli.StringFlag{Name: "html", Usage: "write a page with charts to `FILE`; - prints it"},
			&cli.StringFlag{Name: "price", Usage: "compute cost and energy with the prices in `FILE`"},
			&cli.StringFlag{Name: "power", Usage: "compute energy with the power figures in `FILE`"},
			&cli.BoolFlag{Name: "different", Usage: "compare runs of different images"},
			&cli.BoolFlag{Name: "attempts", Usage: "include earlier attempts of tasks"},
			onFlag(), storeFlag(),
		}, sweepFlags()...),
		Action: action(parseReport),
	}
}

type reportArgs struct {
	systems   []string // [NAME=]RUN
	find      measured.Finder
	options   report.Options
	form      string // text, json, csv, markdown or html
	html      string // file of the page; - with the form html
	sweep     measured.Sweeps
	sweepOnly bool // --sweep: only parameters and results
}

func parseReport(c *cli.Context) (*reportArgs, error) {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // reading may wait for file servers, so they end the process
	names, err := parseArguments(c, 1, maxSystems, "[NAME=]RUN...")
	if err != nil {
		return nil, err
	}
	a := &reportArgs{systems: names, html: c.String("html"), sweepOnly: c.Bool("sweep")}
	a.options.Different = c.Bool("different")
	a.find = measured.Finder{Scope: parseJobScope(c), Store: c.String("store"), Attempts: c.Bool("attempts"), Warn: warn}
	a.sweep = measured.Sweeps{Wanted: a.sweepOnly || c.IsSet("best") || c.IsSet("metric") || c.IsSet("results"), Best: c.String("best"),
		Metrics: c.StringSlice("metric"), Results: c.String("results"), Store: a.find.Store, Warn: warn, Note: sayLine}
	if a.form, err = parseReportForm(c); err != nil {
		return nil, err
	}
	a.options.Prices, err = readAllPrices(c.String("price"), c.String("power"))
	return a, err
}

func (a *reportArgs) run(ctx context.Context) error {
	r, err := a.find.Read(ctx, a.systems, a.options)
	if err != nil {
		return err
	}
	warn(r.Warnings)
	sweeps, err := a.sweep.Find(r)
	if err != nil {
		return err
	}
	write := r.Write
	if a.sweepOnly {
		write = func(w io.Writer, form string) error { return report.WriteSweeps(w, form, sweeps) }
	} else {
		for _, s := range sweeps {
			r.Sections = append(r.Sections, s.Section(a.html != ""))
		}
	}
	if err := writePage(a.html, func(f *os.File) error { return write(f, "html") }); err != nil {
		return err
	}
	defer notePage(a.html)
	return write(os.Stdout, a.form)
}

// maxSystems bounds the systems of a report, so that a page can show them.
const maxSystems = 20

// parseReportForm returns the output format.
func parseReportForm(c *cli.Context) (form string, err error) {
	form = "text"
	for _, f := range []string{"json", "csv", "markdown"} {
		if !c.Bool(f) {
			continue
		}
		if form != "text" {
			return "", text.Usagef("--%s and --%s cannot be used together", form, f).
				Hint("run hpcc report twice; --html can be added to either")
		}
		form = f
	}
	switch html := c.String("html"); {
	case html == "-" && form != "text":
		return "", text.Usagef("--html - and --%s cannot be used together", form).Hint("name a file: --html report.html")
	case html == "-":
		form = "html"
	case html == "" && c.IsSet("html"):
		return "", text.Usagef("--html needs the name of a file")
	}
	return form, nil
}

// writePage writes a page to the file of --html, if there is one.
func writePage(file string, page func(*os.File) error) error {
	if file == "" || file == "-" {
		return nil
	}
	if err := store.NewFile(file, page); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// notePage prints the name of the page's file, if there is one.
func notePage(file string) {
	if file != "" && file != "-" {
		say("wrote the page to %s", file)
	}
}

// readAllPrices reads the files of --price and --power. The power figures of --power replace those
// of --price. It returns nil without either flag.
func readAllPrices(prices, powers string) (*report.Prices, error) {
	p, err := readPrices("price", prices)
	if err != nil {
		return nil, err
	}
	power, err := readPrices("power", powers)
	if p == nil || err != nil {
		return power, err
	}
	p.Draws = power
	return p, nil
}

// readPrices reads the file of a flag; it returns nil without one.
func readPrices(flag, file string) (*report.Prices, error) {
	if file == "" {
		return nil, nil
	}
	p, err := measured.ReadPrices(file)
	if err != nil {
		return nil, text.Usagef("--%s: %w", flag, err).Hint("\"hpcc report --help\" shows an example")
	}
	return p, nil
}

// sweepFlags are the flags of "hpcc report" about the results of tasks.
func sweepFlags() []cli.Flag {
	return inSection(sweepSection,
		&cli.BoolFlag{Name: "sweep", Usage: "show only parameters and results of tasks, best first"},
		&cli.StringFlag{Name: "best", Usage: "rank tasks by result `NAME`, lowest first; +NAME: highest first"},
		&cli.StringSliceFlag{Name: "metric", Usage: "show result `NAME`"},
		&cli.StringFlag{Name: "results", Usage: "read results from `PATH`, such as out/{task} or runs/{lr}"},
	)
}
