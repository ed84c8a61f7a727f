package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/job/dispatch"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/text"
)

// enterCommand returns the command that "hpcc attach" starts on the task's node.
func enterCommand() *cli.Command {
	return &cli.Command{
		Name: "enter", Hidden: true, Usage: "run a program in the container of a task (started by hpcc attach)",
		ArgsUsage: "[--] [CMD [ARG...]]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Required: true, Usage: "select job `ID`"},
			&cli.IntFlag{Name: "task", Usage: "select task `INDEX`"},
			&cli.StringFlag{Name: "term", Usage: "set the terminal type to `TYPE`"},
			&cli.BoolFlag{Name: "ssh", Usage: "serve the SSH protocol on the standard streams"},
			storeFlag(),
		},
		Action: action(parseEnter),
	}
}

type enterArgs struct {
	job   string
	task  int
	term  string   // value of TERM; "" for the task's
	argv  []string // empty for a shell
	ssh   bool     // serve SSH instead
	store string
}

func parseEnter(c *cli.Context) (*enterArgs, error) {
	return &enterArgs{job: c.String("job"), task: c.Int("task"), term: c.String("term"), argv: trimDashes(c.Args().Slice()),
		ssh: c.Bool("ssh"), store: c.String("store")}, nil
}

func (a *enterArgs) run(ctx context.Context) error { return atStatus(process.ExitFailed, a.enter(ctx)) }

func (a *enterArgs) enter(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := dispatch.Find(s.Jobs(), a.job)
	if err != nil {
		return err
	}
	t, err := sub.RunningTask(ctx, s.Jobs(), a.task, sayLine)
	if err != nil {
		return err
	}
	p, err := dispatch.OnNode().Inside(t)
	if err != nil {
		return err
	}
	argv, env := a.argv, p.Env
	if len(argv) == 0 && !a.ssh {
		argv = []string{p.Shell()}
	}
	if a.term != "" {
		isTerm := func(e string) bool { return strings.HasPrefix(e, "TERM=") }
		env = append(slices.DeleteFunc(env, isTerm), "TERM="+a.term)
	}
	if a.ssh {
		self, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0) // for the container, which need not have hpcc
		if err != nil {
			return fmt.Errorf("finding hpcc itself: %w", err)
		}
		argv = []string{fmt.Sprintf("/proc/self/fd/%d", self), "sshd"}
	}
	if !p.Contained { // the task has the host's files
		if err := os.Chdir(p.Dir); err != nil {
			return fmt.Errorf("entering the directory of task %d: %w", t.Index, err)
		}
		return execLocal(argv, env)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	return fmt.Errorf("executing hpcc again: %w", inherit.Exec(self, p.Run(a.term, argv), env))
}

// execLocal replaces hpcc with a program of this node.
func execLocal(argv, env []string) error {
	file, err := exec.LookPath(argv[0])
	if err != nil {
		m := &text.Error{Err: err, Status: process.ExitNotFound}
		if errors.Is(err, os.ErrPermission) {
			m.Status = process.ExitNotExecutable
		}
		return m
	}
	return fmt.Errorf("executing %s: %w", file, inherit.Exec(file, argv, env))
}
