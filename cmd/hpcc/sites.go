package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/runtime/probe"
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
	sites, err := readSites()
	if err != nil {
		return err
	}
	if a.install != "" {
		t, err := sites.Find(a.install)
		if err != nil {
			return text.Usagef("--install: %w", err)
		}
		return install(ctx, t)
	}
	return a.list(ctx, sites)
}

// A siteState is the answer of a site.
type siteState struct {
	Type      string `json:"type"` // "site"
	Name      string `json:"name"`
	Default   bool   `json:"default"`
	Scheduler string `json:"scheduler"`
	SSH       string `json:"ssh,omitempty"`
	File      string `json:"file"`
	Version   string `json:"version,omitempty"` // of hpcc at the site
	Problem   string `json:"problem,omitempty"`
}

// Timeouts for the answer of a site.
const (
	siteTimeout   = 10 * time.Second
	doctorTimeout = 2 * time.Second // short, because the other checks take milliseconds
)

// siteStates asks all sites at the same time.
func siteStates(ctx context.Context, sites *dispatch.Sites, limit time.Duration) []siteState {
	all := sites.All()
	states := make([]siteState, len(all))
	var g sync.WaitGroup
	for i, t := range all {
		g.Go(func() {
			states[i] = querySite(ctx, t, limit)
			states[i].Default = t.Name == sites.Default
		})
	}
	g.Wait()
	return states
}

// querySite asks one site for its state.
func querySite(ctx context.Context, t *dispatch.Site, limit time.Duration) siteState {
	st := siteState{Type: "site", Name: t.Name, Scheduler: string(t.Scheduler), SSH: t.SSH, File: t.File}
	if t.SSH == "" {
		to, err := t.Answers(ctx, limit)
		if st.Scheduler = string(to); err != nil {
			st.Problem = err.Error()
		}
		return st
	}
	var g siteInfo
	out, err := t.Ask(ctx, false, limit, "here")
	if err == nil && (json.Unmarshal(out, &g) != nil || g.Protocol != protocol) {
		err = errors.New("its hpcc does not understand this version")
	}
	if err != nil {
		st.Problem = strings.TrimPrefix(err.Error(), "site "+t.Name+": ")
		return st
	}
	if st.Version = g.Version; st.Scheduler == "" {
		st.Scheduler = string(g.Target)
	}
	return st
}

func (a *sitesArgs) list(ctx context.Context, sites *dispatch.Sites) error {
	states := siteStates(ctx, sites, siteTimeout)
	if a.json {
		return printObjects(states)
	}
	if len(states) == 0 {
		say("no site is defined in %s", strings.Join(dispatch.SiteFiles(), ", "))
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SITE\tSCHEDULER\tACCESS\tSTATE\tFILE")
	for _, st := range states {
		terminal.Rowf(w, "%s\t%s\t%s\t%s\t%s\n", st.Name, st.Scheduler, st.access(), st.text(), st.File)
	}
	return w.Flush()
}

// access describes how jobs reach the site.
func (st siteState) access() string {
	if st.SSH != "" {
		return "ssh " + st.SSH
	}
	return "this machine"
}

// text describes the state of the site.
func (st siteState) text() string {
	text := "answers"
	switch {
	case st.Problem != "":
		text = terminal.ShortCell(st.Problem)
	case st.Version != "" && st.Version != version:
		text = "answers; has hpcc " + st.Version
	}
	if st.Default {
		text = "default, " + text
	}
	return text
}

// sitesFeature returns the check of the sites for "hpcc doctor".
func sitesFeature(ctx context.Context) probe.Feature {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return probe.Feature{State: probe.No, Why: err.Error(), Do: "correct the file; \"hpcc sites --help\" shows an example"}
	}
	if len(sites.Files) == 0 {
		return probe.Feature{State: probe.OK, Why: "not configured: jobs go to the scheduler of this machine"}
	}
	f := probe.Feature{State: probe.OK, Why: strings.Join(sites.Files, ", ")}
	for _, st := range siteStates(ctx, sites, doctorTimeout) {
		if st.Problem != "" {
			f.State, f.Do = probe.Limited, "hpcc sites"
		}
		f.Why += fmt.Sprintf("; %s (%s) %s", st.Name, strings.TrimPrefix(st.Scheduler+", "+st.access(), ", "), st.text())
	}
	return f
}

// installTimeout is the timeout for copying hpcc, about 40 MB, to a site.
const installTimeout = 10 * time.Minute

// install copies this program to a site. The site renames the file when it is complete.
func install(ctx context.Context, t *dispatch.Site) error {
	if t.SSH == "" {
		return text.Usagef("--install: site %s is on this machine", t.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	machine, err := ssh(ctx, t, nil, "uname -s -m")
	if err != nil {
		return err
	}
	arch := map[string]string{"Linux x86_64": "amd64", "Linux aarch64": "arm64", "Linux ppc64le": "ppc64le"}[machine]
	if arch != goruntime.GOARCH {
		return text.Hint(fmt.Errorf("site %s is %s, but this hpcc is for linux/%s", t.Name, machine, goruntime.GOARCH), "copy hpcc-linux-%s of a release (or of \"make release\") to the site", arch)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("reading hpcc itself: %w", err)
	}
	defer self.Close()
	file := t.Program
	if file == "" || !strings.Contains(file, "/") {
		file = "~/.local/bin/hpcc"
	}
	answer, err := ssh(ctx, t, self, dispatch.Receive(file))
	if err != nil {
		return err
	}
	say("site %s now has %s", t.Name, answer)
	return nil
}

// ssh runs a script at the site and returns its output, which is one line.
func ssh(ctx context.Context, t *dispatch.Site, stdin *os.File, script string) (string, error) {
	var out bytes.Buffer
	cmd := t.Shell(ctx, onTerminal(), false, script)
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if fault := t.Fault(err, ""); fault != nil {
			return "", fault
		}
		return "", fmt.Errorf("copying hpcc to site %s: %w", t.Name, err)
	}
	return strings.TrimSpace(out.String()), nil
}
