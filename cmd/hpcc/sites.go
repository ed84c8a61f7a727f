package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/text"
	"hpcc/text/terminal"
)

func sitesCommand() *cli.Command {
	return &cli.Command{
		Name: "sites", Usage: "list the sites that jobs can be submitted to", ArgsUsage: " ",
		Description: `Lists the sites of /etc/hpcc/site.toml and ~/.config/hpcc/site.toml (or of the file that HPCC_SITE
names), and checks that each one answers. --install copies this program to a site that ssh
reaches.

   hpcc sites
   hpcc sites --install satori

A file of sites:

   default = "satori"          # for jobs without --on
   [site.satori]
   queue = "normal"            # for jobs without --queue
   account = "proj"
   [site.power]
   ssh = "you@login.example.org"
   dir = "runs"                # where jobs start, below the home directory`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "install", Usage: "install this program at site `NAME`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per site"},
		},
		Action: action(parseSites),
	}
}

type sitesArgs struct {
	install string // the name of a site; "" to list all
	json    bool
}

func parseSites(c *cli.Context) (*sitesArgs, error) {
	_, err := parseArguments(c, 0, 0, "no arguments")
	return &sitesArgs{install: c.String("install"), json: c.Bool("json")}, err
}

func (a *sitesArgs) run(ctx context.Context) error {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return err
	}
	if a.install != "" {
		t, err := sites.Find(a.install)
		if err != nil {
			return text.Usagef("--install: %w", err)
		}
		file, err := (&site.Remote{Site: t, Own: version, Terminal: onTerminal()}).Install(ctx, os.Stderr)
		if err == nil {
			say("site %s now has %s", t.Name, file)
		}
		return err
	}
	return a.list(ctx, sites)
}

// siteTimeout is the time of a site to answer.
const siteTimeout = 10 * time.Second

func (a *sitesArgs) list(ctx context.Context, sites *dispatch.Sites) error {
	states := site.States(ctx, sites, siteTimeout)
	if a.json {
		return printObjects(states)
	}
	if len(states) == 0 {
		say("no site is defined in %s", strings.Join(dispatch.SiteFiles(), ", "))
		return nil
	}
	t := terminal.NewTable("SITE", "SCHEDULER", "ACCESS", "STATE", "FILE")
	for _, st := range states {
		t.Row(st.Name, st.Scheduler, st.Access(), st.Text(version), st.File)
	}
	return t.Write(os.Stdout)
}
