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

// openTunnel opens a tunnel to a port on the node of a running task, by the first route that
// works or by the one named via. program is the path of hpcc on the nodes. openTunnel calls
// report with each failed attempt.
func (s *Submission) openTunnel(ctx context.Context, t *job.Task, port int, program, via string,
	report func(string)) (*tunnel.Tunnel, error) {
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
			tun.Route, tun.Ends = w.name, w.name == string(s.Target) && descriptionOf(s.Target).EndsExec
			return tun, nil
		}
		problems = append(problems, fmt.Sprintf("%s: %v", w.name, err))
		if ctx.Err() != nil {
			break
		}
		report(fmt.Sprintf("cannot reach %[2]s by %[1]s: %[3]v", w.name, t.Host, err))
	}
	return nil, fmt.Errorf("reaching %s, where task %d runs: %s", t.Host, t.Index, strings.Join(problems, "; "))
}

// outsideJob returns an environment without the variables that make a batch system's
// commands believe that they run within a job.
func outsideJob(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return insideJob(name)
	})
}

// insideJob reports whether a variable makes the commands of a batch system act as part of a job.
func insideJob(name string) bool {
	return slices.ContainsFunc(describe(), func(d *batch.Description) bool { return d.InJob != nil && d.InJob(name) })
}
