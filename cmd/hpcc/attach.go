package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
)

const attachArgs = "JOB[.TASK] [--] [CMD [ARG...]]"

func attachCommand() *cli.Command {
	return &cli.Command{
		Name: "attach", Usage: "open a shell, or run a program, where a task runs", ArgsUsage: attachArgs,
		Description: `Enters the container of a task that runs, on its node: the same files, /tmp, environment and
directory. Waits until the task runs. CMD is a shell unless it is given.

   hpcc attach main-261121-090000
   hpcc attach main.3 nvidia-smi
   hpcc attach main -- sh -c 'tail -n 5 /tmp/progress'

Exit status: the program's own; 125 hpcc failed, 126 not executable, 127 not found.`,
		Flags:  []cli.Flag{viaFlag(), storeFlag()},
		Action: func(c *cli.Context) error { return atStatus(125, attach(c)) },
	}
}

func attach(c *cli.Context) error {
	if c.NArg() == 0 || strings.HasPrefix(c.Args().First(), "-") {
		return usagef("attach takes %s", attachArgs).hint(`"hpcc attach --help" shows examples`)
	}
	cmd := c.Args().Tail()
	if len(cmd) > 0 && cmd[0] == "--" {
		cmd = cmd[1:]
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	store, err := filepath.Abs(s.Dir())
	if err != nil {
		return err
	}
	sub, index, err := findTask(c, s.Jobs(), c.Args().First())
	if err != nil {
		return err
	}
	t, err := sub.Running(c.Context, s.Jobs(), index, words)
	if c.Context.Err() != nil {
		return exitStatus(128 + int(syscall.SIGINT))
	}
	if err != nil {
		return err
	}
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	if w := sub.Enter(c.Context, t, cmd, terminal); w != nil {
		return execWords(sub, t, w)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	enter := []string{program, "enter", "--store", store, "--job", sub.ID, "--task", strconv.Itoa(t.Index), "--term", os.Getenv("TERM"), "--"}
	w, err := sub.EnterCommand(c.Context, t, append(enter, cmd...), c.String("via"), terminal)
	if err != nil {
		return err
	}
	return execWords(sub, t, w)
}

// execWords becomes a command that reaches the task.
func execWords(sub *dispatch.Submission, t *job.Task, w []string) error {
	file, err := exec.LookPath(w[0])
	if err != nil {
		return fmt.Errorf("reaching %s, where the task runs: %w", t.Host, err)
	}
	return fmt.Errorf("executing %s: %w", file, syscall.Exec(file, w, sub.OutsideJob()))
}

// enterCommand is the end of attach on the task's node.
func enterCommand() *cli.Command {
	return &cli.Command{
		Name: "enter", Hidden: true, Usage: "run a program where a task of this node runs (hpcc attach starts this)", ArgsUsage: "[--] [CMD [ARG...]]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Required: true, Usage: "of job `ID`"},
			&cli.IntFlag{Name: "task", Usage: "the task `INDEX`"},
			&cli.StringFlag{Name: "term", Usage: "on a terminal of `KIND`"},
			storeFlag(),
		},
		Action: func(c *cli.Context) error { return atStatus(125, enter(c)) },
	}
}

func enter(c *cli.Context) error {
	s, err := findStore(c)
	if err != nil {
		return err
	}
	sub, err := dispatch.Find(s.Jobs(), c.String("job"))
	if err != nil {
		return err
	}
	t, err := sub.Running(c.Context, s.Jobs(), c.Int("task"), words)
	if err != nil {
		return err
	}
	p, err := dispatch.OnNode().Inside(t)
	if err != nil {
		return err
	}
	cmd := c.Args().Slice()
	if len(cmd) > 0 && cmd[0] == "--" {
		cmd = cmd[1:]
	}
	if len(cmd) == 0 {
		cmd = []string{p.Shell()}
	}
	env := p.Env
	if kind := c.String("term"); kind != "" {
		env = append(without(env, "TERM"), "TERM="+kind)
	}
	if !p.Contained { // the task has the host's files
		if err := os.Chdir(p.Dir); err != nil {
			return fmt.Errorf("entering the directory of task %d: %w", t.Index, err)
		}
		return execHere(cmd, env)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	// The task's own root is the image: its name may be another's by now.
	run := []string{"hpcc", "run", "--no-config", "--env-no-expand", "--set-env0", p.EnvFile(), "--join-pid", strconv.Itoa(p.PID), "--cd", p.Dir, "--entrypoint="}
	if kind := c.String("term"); kind != "" {
		run = append(run, "--set-env", "TERM="+kind)
	}
	run = append(append(run, p.Root(), "--"), cmd...)
	return fmt.Errorf("executing hpcc again: %w", syscall.Exec(self, run, env))
}

// execHere becomes a program of this node.
func execHere(cmd, env []string) error {
	file, err := exec.LookPath(cmd[0])
	if err != nil {
		m := &message{err: err, status: 127}
		if errors.Is(err, os.ErrPermission) {
			m.status = 126
		}
		return m
	}
	return fmt.Errorf("executing %s: %w", file, syscall.Exec(file, cmd, env))
}
