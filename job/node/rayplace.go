package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/metrics"
)

// rayFailed is the exit status of a Ray cluster that did not run the program to its end.
const rayFailed = 1

// A RayPlan describes a Ray cluster on nodes of a job, and its driver program.
type RayPlan struct {
	Nodes, CPUs, GPUs int      // CPUs and GPUs per node; 0 CPUs: all usable ones
	Memory            int64    // per node, in bytes; 0: the machine's
	Image             []string // argv of a "hpcc run" of the image, without the program
	Program           []string // argv of the driver
	Env               []string // of the task, because most launchers pass on little of it; set by StartRay
}

// StartRay starts a Ray node on each node of the job with the target's launcher, runs the program, and returns its
// exit status. dir is the job's directory. program is the argv of the command that calls JoinRay; it gets the shared
// directory as --dir, and --rank and --peer as described for PerNode.
//
// Rank 0 starts the head and, when all nodes have joined, the program. The others start a worker each. When the
// program or a node's Ray ends, everything ends.
func (known Schedulers) StartRay(ctx context.Context, to job.Target, dir string, plan RayPlan,
	program []string, logf func(format string, args ...any)) (int, error) {
	plan.Env = os.Environ()
	shared, err := newRayDir(dir, &plan)
	if err != nil {
		return 0, fmt.Errorf("creating the shared directory of the Ray nodes: %w", err)
	}
	steps, err := known.PerNode(to, plan.Nodes, plan.CPUs, false, append(slices.Clone(program), "--dir="+string(shared)), os.Getenv)
	if err != nil {
		return 0, errors.Join(err, os.RemoveAll(string(shared)))
	}
	status := shared.launch(ctx, steps, logf)
	if status == 0 {
		err = os.RemoveAll(string(shared))
	} else { // keep the logs of the nodes
		err = errors.Join(os.Remove(shared.file("token")), os.Remove(shared.file("plan")))
	}
	if err != nil {
		logf("warning: %v", err)
	}
	return status, nil
}

// A rayDir is the shared directory of the nodes of a Ray cluster, below the job's directory. Only its owner can
// read it, because a user with the token can run programs in the cluster. Its files appear complete, by rename:
//
//	plan     the RayPlan
//	token    the secret that Ray requires from its clients, from 2.52 on
//	address  the rayAddress, when the head answers
//	failed   why a worker ended before the program did
//	done     the program's status
//	stop     all nodes should end
//
// It also contains the output of "ray start": head.log and worker.N.log.
type rayDir string

func (p rayDir) file(name string) string { return filepath.Join(string(p), name) }

func (p rayDir) put(name string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = files.Replace(p.file(name), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing a file for the Ray nodes: %w", err)
	}
	return nil
}

// get reads a file, and returns false if it does not exist. It lists the directory first, because NFS caches
// failed lookups for a long time.
func (p rayDir) get(name string, v any) bool {
	if _, err := os.ReadDir(string(p)); err != nil {
		return false
	}
	b, err := os.ReadFile(p.file(name))
	return err == nil && json.Unmarshal(b, v) == nil
}

func (p rayDir) has(name string) bool { return p.get(name, new(any)) }

// newRayDir creates the directory below home, with the plan and the token.
func newRayDir(home string, plan *RayPlan) (rayDir, error) {
	dir, err := os.MkdirTemp(home, "ray-")
	if err != nil {
		return "", err
	}
	p := rayDir(dir)
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	if err = os.WriteFile(p.file("token"), []byte(hex.EncodeToString(token)), 0o600); err == nil {
		err = p.put("plan", plan)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// How long the program and Ray itself may take to end. The sum is less than [Grace], after which a
// [Runner] kills them.
const (
	programGrace = Grace / 2
	rayGrace     = Grace / 6
)

// launch runs the commands that start the nodes, and returns the job's exit status. When the first
// command ends, any fails or ctx is done, it ends the others.
func (p rayDir) launch(ctx context.Context, steps [][]string, logf func(string, ...any)) int {
	dropped := make(chan os.Signal, 1) // discarded: the node with the program passes them on
	signal.Notify(dropped, metrics.Passed()...)
	defer signal.Stop(dropped)
	type end struct{ step, status int }
	ended := make(chan end)
	var cmds []*exec.Cmd
	for i, s := range steps {
		cmd := exec.Command(s[0], s[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if i == 0 {
			cmd.Stdin = os.Stdin
		} else { // shield launchers from signals for the program
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		}
		cmds = append(cmds, cmd)
		err := cmd.Start()
		if err != nil {
			logf("ray: starting node %d: %v", i, err)
		}
		go func() {
			if err == nil {
				_ = cmd.Wait()
			}
			ended <- end{i, statusOf(cmd)}
		}()
	}
	bad := 0
	cancelled, late := ctx.Done(), (<-chan time.Time)(nil)
	stop := func() {
		if cancelled = nil; late == nil {
			late = time.After(programGrace + 2*rayGrace)
			_ = p.put("stop", true)
		}
	}
	for left := len(steps); left > 0; {
		select {
		case e := <-ended:
			if left--; e.status != 0 && bad == 0 {
				bad = e.status
			}
			if e.status != 0 || e.step == 0 {
				stop()
			}
		case <-cancelled:
			stop()
		case <-late:
			for _, cmd := range cmds {
				if cmd.Process != nil {
					_ = cmd.Process.Kill()
				}
			}
			late = nil
		}
	}
	return p.status(bad, logf)
}

// status returns the job's exit status: that of the program, if it is known, else at least rayFailed.
func (p rayDir) status(launcher int, logf func(string, ...any)) int {
	var why string
	done := 0
	switch {
	case p.get("failed", &why):
		logf("ray: %s; the logs are in %s", why, string(p))
		return rayFailed
	case p.get("done", &done):
		return done
	}
	logf("ray: the head did not record the status of the program; the logs of the nodes are in %s", string(p))
	return max(launcher, rayFailed)
}

// statusOf returns the exit status of a command, in shell notation.
func statusOf(cmd *exec.Cmd) int {
	if cmd.ProcessState == nil {
		return rayFailed
	}
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
