package main

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
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/node"
	"hpcc/metrics"
)

// rayCommand is what the task of a --ray job runs, in two parts. The first, once
// for the job, makes the place where the nodes meet and has the scheduler's
// launcher start the second once on each node: --dir. There rank 0 starts the head and, when
// all have come, the program; the others start a worker each. When the program ends,
// or a node's Ray does, everything ends.
func rayCommand() *cli.Command {
	return &cli.Command{
		Name: "ray", Hidden: true, Usage: "run a program as the driver of a Ray (job scripts call this)", ArgsUsage: "-- CMD [ARG...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "the job is one of `TARGET`"},
			&cli.IntFlag{Name: "nodes", Value: 1, Usage: "start a Ray of `N` nodes"},
			&cli.IntFlag{Name: "cpus", Usage: "of `N` processors on each (default: those that it may use)"},
			&cli.IntFlag{Name: "gpus", Usage: "and `N` GPUs"},
			&cli.Int64Flag{Name: "mem", Usage: "and `BYTES` of memory"},
			&cli.IntFlag{Name: "image-words", Usage: "the first `N` words are those that run the others in the image"},
			&cli.StringFlag{Name: "dir", Usage: "be a node of the Ray that meets in `DIR`"},
			&cli.StringFlag{Name: "peer", Usage: "have the address by which this node reaches `HOST`"},
			&cli.IntFlag{Name: "rank", Usage: "be node `N` (default: as srun says)"},
		},
		Action: func(c *cli.Context) error {
			if c.IsSet("dir") {
				return rayOnNode(c)
			}
			return startRay(c)
		},
	}
}

// A rayPlan is what the nodes of a Ray have to know.
type rayPlan struct {
	Nodes, CPUs, GPUs int
	Memory            int64    // in bytes; 0: that of the machine
	Image             []string // words that run those behind them in the image
	Program           []string
	Env               []string // of the task: launchers but srun hand little of it over
}

// A rayPlace is the directory where the nodes of a Ray meet, below the job's own
// and new for each Ray. Only its owner can read it: who has the token in it can have
// the Ray run programs. Its files appear whole, by rename:
//
//	plan     the rayPlan
//	token    what Ray asks of everybody who speaks to it, from 2.52 on
//	address  the rayAddress, when the head answers
//	failed   why a worker ended before the program
//	done     the program's status
//	stop     that all are to end
//
// and beside them what "ray start" said, head.log and worker.N.log.
type rayPlace string

func (p rayPlace) file(name string) string { return filepath.Join(string(p), name) }

func (p rayPlace) put(name string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(p.file("."+name), b, 0o600)
	}
	if err == nil {
		err = os.Rename(p.file("."+name), p.file(name))
	}
	if err != nil {
		return fmt.Errorf("telling the nodes of the Ray: %w", err)
	}
	return nil
}

// get reads what was put; false when nothing was. The directory is read anew
// each time: NFS keeps for long what it once did not find by name.
func (p rayPlace) get(name string, v any) bool {
	if _, err := os.ReadDir(string(p)); err != nil {
		return false
	}
	b, err := os.ReadFile(p.file(name))
	return err == nil && json.Unmarshal(b, v) == nil
}

func (p rayPlace) has(name string) bool { return p.get(name, new(any)) }

// startRay starts a Ray of all nodes of the job; its status is the program's.
func startRay(c *cli.Context) error {
	home := os.Getenv("HPCC_JOB_DIR")
	if home == "" {
		return usagef("ray is what the scripts of jobs call").hint("hpcc submit --ray --nodes 2 IMAGE -- python main.py")
	}
	words, n := c.Args().Slice(), c.Int("image-words")
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if n < 2 || n >= len(words) {
		return usagef("--image-words %d: there are %d words", n, len(words))
	}
	plan := rayPlan{Nodes: c.Int("nodes"), CPUs: c.Int("cpus"), GPUs: c.Int("gpus"), Memory: c.Int64("mem"), Image: words[:n], Program: words[n:], Env: os.Environ()}
	place, err := newRayPlace(home, &plan)
	if err != nil {
		return fmt.Errorf("making a place for the nodes of the Ray to meet: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	steps, err := dispatch.OnNode().PerNode(job.Target(c.String("to")), plan.Nodes, plan.CPUs, []string{self, "ray", "--dir=" + string(place)}, os.Getenv)
	if err != nil {
		return errors.Join(err, os.RemoveAll(string(place)))
	}
	status := place.launch(c.Context, steps)
	if status == 0 {
		err = os.RemoveAll(string(place))
	} else { // what its nodes said stays
		err = errors.Join(os.Remove(place.file("token")), os.Remove(place.file("plan")))
	}
	if err != nil {
		say("warning: %v", err)
	}
	return exitStatus(status)
}

// newRayPlace makes the directory with the plan and the token.
func newRayPlace(home string, plan *rayPlan) (rayPlace, error) {
	dir, err := os.MkdirTemp(home, "ray-")
	if err != nil {
		return "", err
	}
	p := rayPlace(dir)
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

// The nodes of a Ray that has to end get so long for the program, and so long
// for Ray itself: together less than [node.Grace], after which "hpcc task" kills.
const (
	programGrace = node.Grace / 2
	rayGrace     = node.Grace / 6
)

// launch runs the commands that start the nodes, to their end. When the first or
// a failing one ends, or this process is told to, the others have to.
func (p rayPlace) launch(ctx context.Context, steps [][]string) int {
	dropped := make(chan os.Signal, 1) // they are for the program, which has them from its node
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
		} else { // launchers would die of signals that are for the program
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		}
		cmds = append(cmds, cmd)
		err := cmd.Start()
		if err != nil {
			say("ray: starting node %d: %v", i, err)
		}
		go func() {
			if err == nil {
				_ = cmd.Wait()
			}
			ended <- end{i, statusOf(cmd)}
		}()
	}
	bad := 0
	told, late := ctx.Done(), (<-chan time.Time)(nil)
	stop := func() {
		if told = nil; late == nil {
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
		case <-told:
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
	return p.status(bad)
}

// status is the job's: the program's own, where it had one.
func (p rayPlace) status(steps int) int {
	var why string
	done := 0
	switch {
	case p.get("failed", &why):
		say("ray: %s; what it said is in %s", why, string(p))
		return exitFailure
	case p.get("done", &done):
		return done
	}
	say("ray: the head left no status; what the nodes said is in %s", string(p))
	return max(steps, exitFailure)
}

// statusOf is how a command ended, as a shell has it.
func statusOf(cmd *exec.Cmd) int {
	if cmd.ProcessState == nil {
		return exitFailure
	}
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
