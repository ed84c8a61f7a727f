package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job/shellword"
	"hpcc/job/tunnel"
)

// A way gets a command to a task's node, with the caller's standard streams and
// the command's status.
type way struct {
	name    string
	command func(words []string) []string
}

// The ways that belong to no scheduler. Kubernetes, which hands a port on by
// itself, will be one more.
const (
	wayDirect = "direct" // the node is this machine
	waySSH    = "ssh"
)

// ways are those to a task's node, the best first; via, when not "", is the name of the one to take. With
// terminal they hand the caller's on.
func (s *Submission) ways(t *Task, via string, terminal bool) ([]way, error) {
	var list []way
	if t.Host == tunnel.Host() {
		list = append(list, way{wayDirect, func(words []string) []string { return words }})
		if via == "" {
			return list, nil
		}
	}
	ssh := way{waySSH, func(words []string) []string { return sshWords(t.Host, terminal, words) }}
	if to, ok := schedulers[s.Target].(execer); ok {
		wrap, slow := to.execOn(t, terminal)
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
	return nil, fmt.Errorf("no way %q leads to %s, where task %d runs; there are %s", via, t.Host, t.Index, strings.Join(names, ", "))
}

// sshPatience is how long ssh may take to reach a node, in seconds.
const sshPatience = 10

// sshWords are a command by ssh, which asks nobody for a password. It joins words
// to a line for the user's shell there.
func sshWords(host string, terminal bool, words []string) []string {
	tty := "-T"
	if terminal {
		tty = "-t"
	}
	return []string{"ssh", tty, "-o", "BatchMode=yes", "-o", fmt.Sprintf("ConnectTimeout=%d", sshPatience), "--", host, "exec " + shellword.Join(words)}
}

// EnterCommand are the words of a command that runs words on a task's node by the
// first way that works, with this process's streams; terminal says that they are one.
func (s *Submission) EnterCommand(ctx context.Context, t *Task, words []string, via string, terminal bool) ([]string, error) {
	ways, err := s.ways(t, via, terminal)
	if err != nil {
		return nil, err
	}
	if ways[0].name == waySSH && len(ways) > 1 && !sshAllowed(ctx, t.Host) {
		ways = ways[1:]
	}
	return ways[0].command(words), nil
}

// sshAllowed tries whether ssh leads to a host.
func sshAllowed(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, (sshPatience+2)*time.Second)
	defer cancel()
	w := sshWords(host, false, []string{"true"})
	_, err := call(ctx, "/", w[0], w[1:]...)
	return err == nil
}

// execOn runs a command as a step of the task's job, on its node and on resources
// that the job's other steps use. Without --unbuffered srun would keep back what
// has no end of a line; with it, and with no terminal, bytes arrive as they are.
func (slurm) execOn(t *Task, terminal bool) (wrap func([]string) []string, slow bool) {
	w := []string{"srun", "--jobid=" + t.Native, "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=" + t.Host}
	if terminal {
		w = append(w, "--pty")
	} else {
		w = append(w, "--unbuffered")
	}
	return func(argv []string) []string { return slices.Concat(w, argv) }, false
}

// execOn runs a command as a small job of its own on the task's node: "qrsh
// -inherit" is for the job itself alone. It takes a slot, which may be long in coming.
func (gridEngine) execOn(t *Task, terminal bool) (wrap func([]string) []string, slow bool) {
	pty := "no"
	if terminal {
		pty = "yes"
	}
	return func(argv []string) []string {
		return []string{"qrsh", "-now", "no", "-pty", pty, "-N", "hpcc-beside", "-q", "*@" + t.Host, "exec " + shellword.Join(argv)}
	}, true
}
