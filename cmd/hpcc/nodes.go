package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/job/display"
	"hpcc/job/prepare"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func nodesCommand() *cli.Command {
	return &cli.Command{
		Name: "nodes", Usage: "show free nodes and where a job would start", ArgsUsage: "[--mine [JOB...]]",
		Description: `Lists the nodes of every cluster and site, the freest first, with the time until which they are
free.

   hpcc nodes
   hpcc nodes --queue gpu --json
   hpcc nodes --fits job.sh
   hpcc nodes --mine
   hpcc nodes --report --since 30d

--fits shows where and when a job would start: a job script of any scheduler or a submitted job.
"hpcc submit --dry-run" does the same for a new job. --mine compares what your jobs requested with
what they used. --report shows how much of each cluster was allocated over time, which of your
jobs held idle GPUs or CPUs, and what would start now.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "query `TARGET`: " + dialects + ", local"},
			&cli.StringFlag{Name: "queue", Usage: "show only nodes of queue or partition `QUEUE`"},
			&cli.StringFlag{Name: "fits", Usage: "show where and when `JOB`, a script or an ID, would start"},
			&cli.StringFlag{Name: "dialect", Usage: "read the script as `SCHEDULER`: " + dialects},
			&cli.BoolFlag{Name: "mine", Usage: "compare what your jobs requested with what they used"},
			&cli.BoolFlag{Name: "report", Usage: "report the cluster's use over time"},
			&cli.StringFlag{Name: "since", Usage: "with --report: cover the last `TIME` (default 7d)"},
			&cli.StringFlag{Name: "html", Usage: "with --report: write a page with charts to `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per node, job or cluster"},
			&cli.StringFlag{Name: "on", Usage: "show only nodes of site `NAME`"},
			&cli.BoolFlag{Name: "here", Usage: "show only this machine's schedulers; ask no site by ssh"},
			storeFlag(),
		},
		Action: action(parseNodes),
	}
}

type nodesArgs struct {
	at      siteChoice
	local   bool // --here: ask no site over ssh
	queue   string
	json    bool
	store   string
	mine    bool          // compare requests of jobs with their use
	ids     []string      // with mine: IDs of jobs; empty for all
	report  bool          // report the allocation over time
	since   time.Duration // with report
	html    string        // with report: the file for the page; - for standard output
	fits    string        // a script, a submit command or a job; "" without --fits
	dialect job.Target    // of the script
}

func parseNodes(c *cli.Context) (*nodesArgs, error) {
	a := &nodesArgs{local: c.Bool("here"), queue: c.String("queue"), json: c.Bool("json"), store: c.String("store"), mine: c.Bool("mine"),
		report: c.Bool("report"), html: c.String("html"), fits: c.String("fits"), dialect: job.Target(c.String("dialect"))}
	most, usage, exclude, verb := 0, "no arguments without --mine", []string(nil), ""
	switch {
	case a.report:
		exclude, verb = []string{"queue", "fits", "mine", "dialect"}, "report"
	case a.mine:
		most, usage, exclude, verb = 1000, "[JOB...]", []string{"to", "queue", "fits"}, "mine"
	}
	var err error
	if a.at, err = parseSiteChoice(c); err != nil {
		return nil, err
	}
	if a.ids, err = parseArguments(c, 0, most, usage); err != nil {
		return nil, err
	}
	for _, name := range exclude {
		if c.IsSet(name) {
			return nil, text.Usagef("--%s and --%s cannot be used together", name, verb)
		}
	}
	switch {
	case a.report:
		if a.since, err = parseSince(cmp.Or(c.String("since"), "7d")); err != nil {
			return nil, err
		}
		if a.html == "-" && a.json {
			return nil, text.Usagef("--html - and --json cannot be used together").Hint("name a file: --html report.html")
		}
	case a.mine:
	case c.IsSet("since") || c.IsSet("html"):
		return nil, text.Usagef("--since and --html need --report")
	case c.IsSet("fits") && a.fits == "":
		return nil, text.Usagef("--fits is empty").Hint("name a job script, a submit command or a job")
	case c.IsSet("fits") && c.IsSet("queue"):
		return nil, text.Usagef("--queue and --fits cannot be used together").Hint("set the queue in the job")
	}
	return a, nil
}

func (a *nodesArgs) run(ctx context.Context) error {
	switch {
	case a.report:
		return a.printReport(ctx)
	case a.mine:
		return a.printUses(ctx)
	case a.fits != "":
		return a.printFits(ctx)
	}
	local, remote, err := a.clusters(ctx)
	if err != nil {
		return err
	}
	rows, notes, err := a.nodes(ctx, local, remote)
	if err != nil {
		return err
	}
	sayNotes(notes)
	if a.json {
		return printObjects(rows)
	}
	return display.Nodes(os.Stdout, rows, time.Now())
}

// clusters returns the cluster of --to or --on. Without these flags it returns the cluster of
// this machine, those of local sites, and the remote sites.
func (a *nodesArgs) clusters(ctx context.Context) (local []dispatch.Cluster, remote []*dispatch.Site, err error) {
	if a.at != (siteChoice{}) {
		site, err := a.at.site()
		switch {
		case err != nil:
			return nil, nil, err
		case site.SSH != "":
			return nil, []*dispatch.Site{site}, nil
		}
		return []dispatch.Cluster{a.at.cluster(ctx, site)}, nil, nil
	}
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return nil, nil, err
	}
	for _, t := range sites.All() {
		if t.SSH == "" {
			local = append(local, t.Cluster(ctx))
		}
	}
	if !a.local {
		remote = sites.Remote()
	}
	own := dispatch.Cluster{Target: dispatch.Detect(ctx)}
	same := func(o dispatch.Cluster) bool { return o.Target == own.Target && maps.Equal(o.Env, own.Env) }
	if !slices.ContainsFunc(local, same) && (own.Target != job.Local || len(local)+len(remote) == 0) {
		local = slices.Insert(local, 0, own)
	}
	return local, remote, nil
}

// askAll asks clusters and sites at the same time. It warns about those that do not answer, and
// fails if no cluster or site answers.
func askAll[T any](local []dispatch.Cluster, remote []*dispatch.Site, askCluster func(dispatch.Cluster) (T, error),
	askSite func(*dispatch.Site) (T, error)) (answers []T, err error) {
	all, failed := make([]T, len(local)+len(remote)), make([]error, len(local)+len(remote))
	var g sync.WaitGroup
	for i, to := range local {
		g.Go(func() { all[i], failed[i] = askCluster(to) })
	}
	for i, t := range remote {
		g.Go(func() { all[len(local)+i], failed[len(local)+i] = askSite(t) })
	}
	g.Wait()
	for i, err := range failed {
		if err == nil {
			answers = append(answers, all[i])
		}
	}
	if len(answers) == 0 {
		return nil, errors.Join(failed...)
	}
	for _, err := range failed {
		if err != nil {
			say("warning: %s", terminal.ShortCell(err.Error()))
		}
	}
	return answers, nil
}

// nodes lists the nodes of clusters and sites.
func (a *nodesArgs) nodes(ctx context.Context, local []dispatch.Cluster,
	remote []*dispatch.Site) (rows []display.NodeRow, notes []string, err error) {
	type answer struct {
		rows  []display.NodeRow
		notes []string
	}
	answers, err := askAll(local, remote, func(to dispatch.Cluster) (x answer, err error) {
		list, notes, err := dispatch.Nodes(to.Within(ctx), to.Target, a.queue)
		for _, n := range list {
			x.rows = append(x.rows, display.NodeRow{Type: "node", Target: to.Target, Site: to.Site, Node: n})
		}
		x.notes = notes
		return x, err
	}, func(t *dispatch.Site) (x answer, err error) {
		x.rows, err = siteNodes(ctx, t, a.queue)
		return x, err
	})
	for _, x := range answers {
		rows, notes = append(rows, x.rows...), append(notes, x.notes...)
	}
	return rows, notes, err
}

// siteNodes asks hpcc at a remote site for its nodes.
func siteNodes(ctx context.Context, t *dispatch.Site, queue string) ([]display.NodeRow, error) {
	argv := []string{"nodes", "--here", "--json"}
	if queue != "" {
		argv = append(argv, "--queue="+queue)
	}
	out, err := t.Ask(ctx, onTerminal(), site.AnswerTimeout, argv...)
	if err != nil {
		return nil, err
	}
	var rows []display.NodeRow
	err = eachObject(t, out, func(line []byte) error {
		var r display.NodeRow
		err := json.Unmarshal(line, &r)
		if err == nil && (r.Type != "node" || strings.ContainsFunc(r.Name, func(c rune) bool { return c < ' ' })) {
			err = errors.New("not a node")
		}
		r.Site = t.Name
		rows = append(rows, r)
		return err
	})
	return rows, err
}

// eachObject calls take for each JSON object that hpcc at a site printed.
func eachObject(t *dispatch.Site, out []byte, take func(line []byte) error) error {
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var line json.RawMessage
		err := d.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = take(line)
		}
		if err != nil {
			return fmt.Errorf("site %s: reading the output of its hpcc: %w", t.Name, err)
		}
	}
}

// printFits runs "hpcc nodes --fits" for a script or a submitted job.
func (a *nodesArgs) printFits(ctx context.Context) error {
	name := a.fits
	site, err := a.at.site()
	switch {
	case err != nil:
		return err
	case site.SSH != "":
		return text.Usagef("--fits is not available for site %s, which is reached by ssh", site.Name).
			Hint("ssh %s hpcc nodes --fits …", site.SSH)
	}
	if fi, err := os.Stat(name); (err == nil && !fi.IsDir()) || dispatch.Translator().IsSubmitCommand(name) {
		to := a.at.cluster(ctx, site)
		j, err := a.openScript(ctx, name, to.Target)
		if err != nil {
			return err
		}
		f, err := dispatch.Fits(ctx, "", j, to)
		if err != nil {
			return err
		}
		return printFit(f, a.json)
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := dispatch.Find(s.Jobs(), name)
	if err != nil {
		return text.Hint(fmt.Errorf("--fits %s: neither a file nor a job: %w", name, err), "for a new job, use \"hpcc submit --dry-run\"")
	}
	if t := a.at.to; t != "" && t != sub.Target {
		return text.Usagef("--to %s: job %s was submitted to %s", t, sub.ID, sub.Target)
	}
	f, err := sub.Fits(ctx, s.Jobs())
	if err != nil {
		return err
	}
	return printFit(f, a.json)
}

// openScript reads a script as "hpcc submit --from" does, and prints the number of directives
// that the target does not support.
func (a *nodesArgs) openScript(ctx context.Context, name string, t job.Target) (*job.Job, error) {
	src, err := dispatch.Translator().Open(name, a.dialect, "", "")
	if err != nil {
		return nil, err
	}
	src.AskHost(ctx)
	tr, err := dispatch.Translator().Translate(src, t)
	if err != nil {
		return nil, err
	}
	if err := prepare.FillProgram(tr.Job, a.store, &dispatch.Site{}); err != nil {
		return nil, err
	}
	tr.Fit()
	if n := tr.Lost(); n > 0 {
		say("note: %s not supported by %s and will be ignored; \"hpcc script --from %s\" shows which",
			text.Count(n, "directive is", "directives are"), t, name)
	}
	if _, err := os.Stat(tr.Job.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("directory %q of the job does not exist", tr.Job.Dir)
	}
	return tr.Job, nil
}

// printFit prints where and when a job would start. It fails if the job would never start.
func printFit(f *capacity.Fit, asJSON bool) error {
	if asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(struct {
			Type string `json:"type"`
			*capacity.Fit
		}{"fit", f}); err != nil {
			return err
		}
	} else {
		if _, err := terminal.Rowf(os.Stdout, "%s\n", display.Fit(f, time.Now())); err != nil {
			return err
		}
		if f.Why != "" && f.When == capacity.Later {
			terminal.Rowf(os.Stdout, "why: %s\n", f.Why)
		}
		if len(f.Instead) > 0 {
			terminal.Rowf(os.Stdout, "starts now with: %s\n", strings.Join(f.Instead, ", or "))
		}
		say("source: %s", f.By)
	}
	sayNotes(f.Notes)
	if f.When == capacity.Never {
		return exitStatus(exitFailure)
	}
	return nil
}

// printUses runs "hpcc nodes --mine": it prints the requests of jobs and their use.
func (a *nodesArgs) printUses(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	list, warnings, err := dispatch.Uses(ctx, s.Jobs(), a.ids)
	if err != nil {
		return err
	}
	warn(warnings)
	if a.json {
		type use struct {
			Type string `json:"type"`
			*capacity.Use
			Busy float64 `json:"busy"`
		}
		var rows []use
		for _, u := range list {
			rows = append(rows, use{"use", u, u.Busy()})
		}
		return printObjects(rows)
	}
	return display.Uses(os.Stdout, list)
}
