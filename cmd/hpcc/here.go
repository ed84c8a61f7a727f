package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
)

func hereCommand() *cli.Command {
	return &cli.Command{
		Name: "here", Hidden: true, Usage: "describe this machine (started by hpcc on another machine)",
		Flags:  []cli.Flag{&cli.StringFlag{Name: "image", Usage: "describe image `NAME` as well"}, storeFlag()},
		Action: action(parseHere),
	}
}

type hereArgs struct{ image, store string }

func parseHere(c *cli.Context) (*hereArgs, error) {
	return &hereArgs{image: c.String("image"), store: c.String("store")}, nil
}

func (a *hereArgs) run(ctx context.Context) error {
	g, err := a.describe(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(g)
}

// protocol is the version of the messages between hpcc on two machines. hpcc refuses messages
// of another version.
const protocol = 1

// A siteInfo describes the machine on which hpcc runs, for hpcc on another machine.
type siteInfo struct {
	Type     string     `json:"type"` // "place"
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"`
	Arch     string     `json:"arch"` // a GOARCH
	Home     string     `json:"home"`
	Store    string     `json:"store"`
	Program  string     `json:"program"`
	Target   job.Target `json:"target"`          // of the default site, or else the detected scheduler
	Image    string     `json:"image,omitempty"` // the digest of --image, for this architecture
}

// describe returns the description of this machine.
func (a *hereArgs) describe(ctx context.Context) (*siteInfo, error) {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return nil, err
	}
	g := &siteInfo{Type: "place", Protocol: protocol, Version: version, Arch: goruntime.GOARCH, Store: s.Dir()}
	if g.Home, err = os.UserHomeDir(); err != nil {
		return nil, fmt.Errorf("finding the home directory: %w", err)
	}
	if g.Program, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	site, err := defaultSite()
	if err != nil {
		return nil, err
	}
	g.Target = site.Cluster(ctx).Target
	if a.image != "" {
		g.Image = digestOf(s, a.image, nil)
	}
	return g, nil
}

// defaultSite returns the default site of a machine that received a job over ssh, if the site is
// local. hpcc does not forward a job to a third machine.
func defaultSite() (*dispatch.Site, error) {
	sites, err := readSites()
	if err != nil {
		return nil, err
	}
	if t, err := sites.Find(sites.Default); err == nil && t.SSH == "" {
		return t, nil
	}
	return &dispatch.Site{}, nil
}
