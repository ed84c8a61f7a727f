package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/tunnel"
)

// OpenTunnel opens a tunnel to a port of the node of a task that runs, by the
// first way that works; via, when not "", is the one to take. program is hpcc, as it is called on the
// nodes. Words about what is tried go to tell.
func (s *Submission) OpenTunnel(ctx context.Context, t *job.Task, port int, program, via string, tell func(string)) (*tunnel.Tunnel, error) {
	if k := s.keeper(); k != nil {
		return k.Forward(s.Within(ctx), t, port)
	}
	ways, err := s.ways(t, via, false)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, w := range ways {
		var link *tunnel.Link
		if w.name == wayDirect {
			link = tunnel.Direct(ctx, port)
		} else if link, err = tunnel.Start(ctx, s.OutsideJob(), w.command([]string{program, "relay", strconv.Itoa(port)})); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", w.name, err))
			continue
		}
		tun, err := tunnel.New(ctx, link)
		if err == nil {
			tun.Way, tun.Ends = w.name, w.name == string(s.Target) && descriptionOf(s.Target).EndsExec
			return tun, nil
		}
		problems = append(problems, fmt.Sprintf("%s: %v", w.name, err))
		if ctx.Err() != nil {
			break
		}
		tell(fmt.Sprintf("%s does not lead to %s: %v", w.name, t.Host, err))
	}
	return nil, fmt.Errorf("reaching %s, where task %d runs: %s", t.Host, t.Index, strings.Join(problems, "; "))
}

// outsideJob returns an environment without the variables that make a batch system's
// commands believe that they run within a job.
func outsideJob(env []string) []string {
	known := describe()
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.ContainsFunc(known, func(d *batch.Description) bool { return d.InJob != nil && d.InJob(name) })
	})
}
