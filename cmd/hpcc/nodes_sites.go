package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
)

// A nodeRow is a node, and where it is.
type nodeRow struct {
	Type   string     `json:"type"` // "node"
	Target job.Target `json:"target"`
	Site   string     `json:"site,omitempty"`
	capacity.Node
}

// clustersOf are those that the flags ask for: the one of --to or --on, else that of this
// machine and those of its sites; and the sites that ssh reaches.
func clustersOf(c *cli.Context) (here []dispatch.Cluster, far []*dispatch.Site, err error) {
	if c.String("on") != "" || c.String("to") != "" {
		site, err := siteOf(c)
		switch {
		case err != nil:
			return nil, nil, err
		case site.SSH != "":
			return nil, []*dispatch.Site{site}, nil
		}
		return []dispatch.Cluster{clusterHere(c, site)}, nil, nil
	}
	sites, err := readSites()
	if err != nil {
		return nil, nil, err
	}
	for _, t := range sites.All() {
		if t.SSH == "" {
			here = append(here, t.Cluster(c.Context))
		}
	}
	if !c.Bool("here") {
		far = sites.Remote()
	}
	own := dispatch.Cluster{Target: dispatch.Detect(c.Context)}
	same := func(o dispatch.Cluster) bool { return o.Target == own.Target && maps.Equal(o.Env, own.Env) }
	if !slices.ContainsFunc(here, same) && (own.Target != job.Local || len(here)+len(far) == 0) {
		here = slices.Insert(here, 0, own)
	}
	return here, far, nil
}

// allNodes asks clusters and sites at the same time. One of several that does not answer is
// a warning.
func allNodes(c *cli.Context, here []dispatch.Cluster, far []*dispatch.Site) (rows []nodeRow, notes []string, err error) {
	type answer struct {
		rows  []nodeRow
		notes []string
		err   error
	}
	answers := make([]answer, len(here)+len(far))
	var g sync.WaitGroup
	for i, to := range here {
		g.Go(func() {
			list, notes, err := dispatch.Nodes(to.Within(c.Context), to.Target, c.String("queue"))
			a := &answers[i]
			a.notes, a.err = notes, err
			for _, n := range list {
				a.rows = append(a.rows, nodeRow{"node", to.Target, to.Site, n})
			}
		})
	}
	for i, t := range far {
		g.Go(func() {
			a := &answers[len(here)+i]
			a.rows, a.err = siteNodes(c.Context, t, c.String("queue"))
		})
	}
	g.Wait()
	var failed []error
	for _, a := range answers {
		rows, notes = append(rows, a.rows...), append(notes, a.notes...)
		if a.err != nil {
			failed = append(failed, a.err)
		}
	}
	if len(failed) == len(answers) {
		return nil, nil, errors.Join(failed...)
	}
	for _, e := range failed {
		say("warning: %s", oneLine(e.Error()))
	}
	return rows, notes, nil
}

// siteNodes asks hpcc of a site that ssh reaches.
func siteNodes(ctx context.Context, t *dispatch.Site, queue string) ([]nodeRow, error) {
	words := []string{"nodes", "--here", "--json"}
	if queue != "" {
		words = append(words, "--queue="+queue)
	}
	out, err := t.Ask(ctx, onTerminal(), greetTime, words...)
	if err != nil {
		return nil, siteHint(err, t)
	}
	var rows []nodeRow
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var r nodeRow
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err == nil && (r.Type != "node" || strings.ContainsFunc(r.Name, func(c rune) bool { return c < ' ' })) {
			err = errors.New("it is no node")
		}
		if err != nil {
			return nil, fmt.Errorf("site %s: reading what its hpcc says of nodes: %w", t.Name, err)
		}
		r.Site = t.Name
		rows = append(rows, r)
	}
}
