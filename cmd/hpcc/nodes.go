package main

import (
	"bytes"
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

--fits shows where and when a job would start: a job script of any scheduler or a submitted job.
"hpcc submit --dry-run" does the same for a new job. --mine compares what your jobs requested with
what they used.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "query `TARGET`: " + dialects + ", local"},
			&cli.StringFlag{Name: "queue", Usage: "show only nodes of queue or partition `QUEUE`"},
			&cli.StringFlag{Name: "fits", Usage: "show where and when `JOB`, a script or an ID, would start"},
			&cli.StringFlag{Name: "dialect", Usage: "read the script as `SCHEDULER`: " + dialects},
			&cli.BoolFlag{Name: "mine", Usage: "compare what your jobs requested with what they used"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per node or job"},
			&cli.StringFlag{Name: "on", Usage: "show only nodes of site `NAME`"},
			&cli.BoolFlag{Name: "here", Usage: "show only this machine's schedulers; ask no site by ssh"},
			storeFlag(),
		},
		Action: action(parseNodes),
	}
}

type nodesArgs struct {
	at      site.Choice
	local   bool // --here: ask no site over ssh
	queue   string
	json    bool
	store   string
	mine    bool       // compare requests of jobs with their use
	ids     []string   // with mine: IDs of jobs; empty for all
	fits    string     // a script, a submit command or a job; "" without --fits
	dialect job.Target // of the script
}

func parseNodes(c *cli.Context) (*nodesArgs, error) {
	a := &nodesArgs{local: c.Bool("here"), queue: c.String("queue"), json: c.Bool("json"), store: c.String("store"), mine: c.Bool("mine"),
		fits: c.String("fits"), dialect: job.Target(c.String("dialect"))}
	most, usage := 0, "no arguments without --mine"
	if a.mine {
		most, usage = 1000, "[JOB...]"
	}
	var err error
	if a.at, err = newChoice(c.String("on"), c.String("to")); err != nil {
		return nil, err
	}
	if a.ids, err = parseArguments(c, 0, most, usage); err != nil {
		return nil, err
	}
	for _, name := range []string{"to", "queue", "fits"} {
		if a.mine && c.IsSet(name) {
			return nil, text.Usagef("--%s and --mine cannot be used together", name)
		}
	}
	switch {
	case c.IsSet("fits") && a.fits == "":
		return nil, text.Usagef("--fits is empty").Hint("name a job script, a submit command or a job")
	case c.IsSet("fits") && c.IsSet("queue"):
		return nil, text.Usagef("--queue and --fits cannot be used together").Hint("set the queue in the job")
	}
	return a, nil
}

func (a *nodesArgs) run(ctx context.Context) error {
	switch {
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
	if a.at != (site.Choice{}) {
		site, err := a.at.Site()
		switch {
		case err != nil:
			return nil, nil, err
		case site.SSH != "":
			return nil, []*dispatch.Site{site}, nil
		}
		return []dispatch.Cluster{a.at.Cluster(ctx, site)}, nil, nil
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

// nodes lists the nodes of clusters and sites, which it asks at the same time. It warns about
// those that do not answer, and fails if no cluster or site answers.
func (a *nodesArgs) nodes(ctx context.Context, local []dispatch.Cluster,
	remote []*dispatch.Site) (rows []display.NodeRow, notes []string, err error) {
	type answer struct {
		rows  []display.NodeRow
		notes []string
		err   error
	}
	answers := make([]answer, len(local)+len(remote))
	var g sync.WaitGroup
	for i, to := range local {
		x := &answers[i]
		g.Go(func() { x.rows, x.notes, x.err = clusterNodes(ctx, to, a.queue) })
	}
	for i, t := range remote {
		x := &answers[len(local)+i]
		g.Go(func() { x.rows, x.err = siteNodes(ctx, t, a.queue) })
	}
	g.Wait()
	var failed []error
	for _, x := range answers {
		if x.err != nil {
			failed = append(failed, x.err)
			continue
		}
		rows, notes = append(rows, x.rows...), append(notes, x.notes...)
	}
	if len(failed) == len(answers) {
		return nil, nil, errors.Join(failed...)
	}
	for _, err := range failed {
		say("warning: %s", terminal.ShortCell(err.Error()))
	}
	return rows, notes, nil
}

// clusterNodes lists the nodes of a scheduler that this machine reaches.
func clusterNodes(ctx context.Context, to dispatch.Cluster, queue string) (rows []display.NodeRow, notes []string, err error) {
	list, notes, err := dispatch.Nodes(to.Within(ctx), to.Target, queue)
	for _, n := range list {
		rows = append(rows, display.NodeRow{Type: "node", Target: to.Target, Site: to.Site, Node: n})
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
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		r := display.NodeRow{}
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err == nil && (r.Type != "node" || strings.ContainsFunc(r.Name, func(c rune) bool { return c < ' ' })) {
			err = errors.New("not a node")
		}
		if err != nil {
			return nil, fmt.Errorf("site %s: reading the output of its hpcc: %w", t.Name, err)
		}
		r.Site = t.Name
		rows = append(rows, r)
	}
}

// printFits runs "hpcc nodes --fits" for a script or a submitted job.
func (a *nodesArgs) printFits(ctx context.Context) error {
	name := a.fits
	site, err := a.at.Site()
	switch {
	case err != nil:
		return err
	case site.SSH != "":
		return text.Usagef("--fits is not available for site %s, which is reached by ssh", site.Name).
			Hint("ssh %s hpcc nodes --fits …", site.SSH)
	}
	if fi, err := os.Stat(name); (err == nil && !fi.IsDir()) || dispatch.Translator().IsSubmitCommand(name) {
		to := a.at.Cluster(ctx, site)
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
	if t := a.at.To; t != "" && t != sub.Target {
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
