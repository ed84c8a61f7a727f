package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/job/display"
	"hpcc/job/site"
	"hpcc/store"
)

// A capacityReport collects the content of "hpcc nodes --report".
type capacityReport struct{ display.CapacityReport }

// printReport runs "hpcc nodes --report".
func (a *nodesArgs) printReport(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	r := &capacityReport{display.CapacityReport{To: time.Now().Truncate(time.Second)}}
	r.From = r.To.Add(-a.since)
	local, remote, err := a.clusters(ctx)
	if err != nil {
		return err
	}
	if err := r.clusters(ctx, s.Jobs(), local, remote); err != nil {
		return err
	}
	if len(local) > 0 {
		warnings, err := r.jobs(ctx, s.Jobs(), a.at.to)
		if err != nil {
			return err
		}
		warn(warnings)
	}
	slices.SortStableFunc(r.Jobs, func(a, b *display.JobWaste) int {
		return cmp.Or(-cmp.Compare(a.WastedCPU, b.WastedCPU), -cmp.Compare(a.WastedMemory, b.WastedMemory))
	})
	return r.print(a.html, a.json)
}

// print prints the report and writes the page of --html. A page on standard output replaces the
// report.
func (r *capacityReport) print(html string, asJSON bool) error {
	page := func(f *os.File) error { return r.Sections(true).HTML(f, "Allocated and idle") }
	if html == "-" {
		return page(os.Stdout)
	}
	if err := writePage(html, page); err != nil {
		return err
	}
	defer notePage(html)
	if asJSON {
		if err := printObjects(r.Clusters); err != nil {
			return err
		}
		return printObjects(r.Jobs)
	}
	return r.Sections(false).Text(os.Stdout)
}

// clusters asks clusters and sites, and adds their answers to the report.
func (r *capacityReport) clusters(ctx context.Context, dir string, local []dispatch.Cluster, remote []*dispatch.Site) error {
	answers, err := askAll(local, remote, func(to dispatch.Cluster) (x capacityReport, err error) {
		u, err := dispatch.Utilise(ctx, dir, to, r.From)
		x.Clusters = []*display.ClusterReport{{Type: "utilisation", Target: to.Target, Site: to.Site, Utilisation: u}}
		return x, err
	}, func(t *dispatch.Site) (x capacityReport, err error) {
		out, err := t.Ask(ctx, onTerminal(), site.AnswerTimeout, "nodes", "--report", "--here",
			"--json", "--since="+r.To.Sub(r.From).String())
		if err != nil {
			return x, err
		}
		return x, eachObject(t, out, func(line []byte) error { return x.take(line, t.Name) })
	})
	for _, x := range answers {
		r.Clusters, r.Jobs = append(r.Clusters, x.Clusters...), append(r.Jobs, x.Jobs...)
	}
	return err
}

// take adds one object that hpcc at a site printed.
func (r *capacityReport) take(line []byte, site string) error {
	var header struct{ Type string }
	if err := json.Unmarshal(line, &header); err != nil {
		return err
	}
	c, w := &display.ClusterReport{Utilisation: &capacity.Utilisation{}}, &display.JobWaste{Use: &capacity.Use{}}
	switch header.Type {
	case "utilisation":
		r.Clusters = append(r.Clusters, c)
		err := json.Unmarshal(line, c)
		c.Site = site
		return err
	case "waste":
		r.Jobs = append(r.Jobs, w)
		err := json.Unmarshal(line, w)
		w.Site = site
		return err
	}
	return fmt.Errorf("%q is not a section of the report", header.Type)
}

// jobs adds the user's jobs that ended in the period of the report or still run. to limits it to
// jobs of that target, unless it is "".
func (r *capacityReport) jobs(ctx context.Context, dir string, to job.Target) (warnings []string, err error) {
	uses, warnings, err := dispatch.Uses(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		if (!u.Ended.IsZero() && u.Ended.Before(r.From)) || (to != "" && u.Target != to) {
			continue
		}
		w := &display.JobWaste{Type: "waste", Use: u, Waste: u.Waste()}
		if u.GPUs > 0 {
			w.GPU = display.GPUsOf(filepath.Join(dir, u.ID))
		}
		r.Jobs = append(r.Jobs, w)
	}
	return warnings, nil
}
