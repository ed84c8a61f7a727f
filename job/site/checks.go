package site

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hpcc/job/dispatch"
	"hpcc/runtime/probe"
)

// Checks returns the checks of the schedulers of this machine and of the other machines, for "hpcc doctor".
// own is the version of this hpcc.
func Checks(own string) []probe.Check {
	return []probe.Check{
		{Name: "schedulers", Look: schedulersFeature},
		{Name: "sites", Look: func(ctx context.Context) probe.Feature { return sitesFeature(ctx, own) }},
	}
}

// schedulersFeature reports the schedulers of this host and whether they answer.
func schedulersFeature(ctx context.Context) probe.Feature {
	var why []string
	f := probe.Feature{State: probe.OK}
	for _, s := range dispatch.Schedulers(ctx) {
		text := s.Name
		if s.Version != "" {
			text += " (" + s.Version + ")"
		}
		if s.Err != nil {
			f.State, text = probe.Limited, fmt.Sprintf("%s does not answer: %v", text, s.Err)
		}
		why = append(why, text)
	}
	if f.Why = strings.Join(why, "; "); f.Why == "" {
		return probe.Feature{State: probe.No, Why: "not found on PATH; jobs run on this host (--to local)"}
	}
	return f
}

// doctorTimeout is the time of a site to answer. It is short, because the other checks take milliseconds.
const doctorTimeout = 2 * time.Second

// sitesFeature asks the sites.
func sitesFeature(ctx context.Context, own string) probe.Feature {
	sites, err := dispatch.ReadSites(dispatch.SiteFiles())
	if err != nil {
		return probe.Feature{State: probe.No, Why: err.Error(), Do: "correct the file; \"hpcc sites --help\" shows an example"}
	}
	if len(sites.Files) == 0 {
		return probe.Feature{State: probe.OK, Why: "not configured: jobs go to the scheduler of this machine"}
	}
	f := probe.Feature{State: probe.OK, Why: strings.Join(sites.Files, ", ")}
	for _, st := range States(ctx, sites, doctorTimeout) {
		if st.Problem != "" {
			f.State, f.Do = probe.Limited, "hpcc sites"
		}
		f.Why += fmt.Sprintf("; %s (%s) %s", st.Name, strings.TrimPrefix(st.Scheduler+", "+st.Access(), ", "), st.Text(own))
	}
	return f
}
