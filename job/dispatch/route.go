package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// A way wraps a command so that it runs on a task's node, with the caller's standard streams
// and the command's exit status.
type way struct {
	name    string
	command func(Error []string) []string
}

// The routes that do not need a scheduler.
const (
	wayDirect = "direct" // the node is this machine
	waySSH    = "ssh"
)

// ways returns the routes to a task's node, best first, or only the one named via. With
// terminal, they pass on the caller's terminal.
func (s *Submission) ways(t *job.Task, via string, terminal bool) ([]way, error) {
	var list []way
	if t.Host == tunnel.Host() {
		list = append(list, way{wayDirect, func(argv []string) []string { return argv }})
		if via == "" {
			return list, nil
		}
	}
	ssh := way{waySSH, func(argv []string) []string { return sshArgv(t.Host, terminal, argv) }}
	if to, ok := systemOf(s.Target).(batch.Execer); ok {
		wrap, slow := to.ExecOn(t, terminal)
		own := way{string(s.Target), wrap}
		if slow {
			list = append(list, ssh, own)
		} else {
			list = append(list, own, ssh)
		}
	} else {
		list = append(list, ssh)
	}
	if via == "" {
		return list, nil
	}
	if i := slices.IndexFunc(list, func(w way) bool { return w.name == via }); i >= 0 {
		return list[i : i+1], nil
	}
	var names []string
	for _, w := range list {
		names = append(names, w.name)
	}
	return nil, fmt.Errorf("no route %q to %s, where task %d runs; known routes: %s", via, t.Host, t.Index, strings.Join(names, ", "))
}

// sshTimeout is the connection timeout of ssh to a node, in seconds.
const sshTimeout = 10

// sshArgv returns the argv that runs a command by ssh without asking for a password. The
// user's shell on the host reads them as one quoted line.
func sshArgv(host string, terminal bool, argv []string) []string {
	tty := "-T"
	if terminal {
		tty = "-t"
	}
	return []string{"ssh", tty, "-o", "BatchMode=yes", "-o", fmt.Sprintf("ConnectTimeout=%d", sshTimeout),
		"--", host, "exec " + text.CommandLine(argv)}
}

// sshAllowed reports whether ssh to a host works.
func sshAllowed(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, (sshTimeout+2)*time.Second)
	defer cancel()
	w := sshArgv(host, false, []string{"true"})
	_, err := invoke.Call(ctx, "/", w[0], w[1:]...)
	return err == nil
}
