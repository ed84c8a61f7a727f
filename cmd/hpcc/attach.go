package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/text"
)

const attachUsage = "JOB[.TASK] [--] [CMD [ARG...]]"

func attachCommand() *cli.Command {
	return &cli.Command{
		Name: "attach", Usage: "open a shell in the container of a running task", ArgsUsage: attachUsage,
		Description: `Opens a shell, or runs CMD, in the container of a running task: with the same files, /tmp,
environment and directory. Waits until the task runs.

   hpcc attach main
   hpcc attach main.3 nvidia-smi
   hpcc attach main -- sh -c 'tail -n 5 /tmp/progress'
   ssh -o ProxyCommand='hpcc attach --ssh %n' main

With --ssh, it is a ProxyCommand for ssh, scp, sftp, rsync and VS Code, which then work in the
container. The image needs no ssh server, and nothing listens on a port.

Exit status: the program's; 125 if hpcc failed, 126 if the program is not executable, 127 if it
was not found.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "ssh", Usage: "serve the ssh that runs hpcc as its ProxyCommand"},
			viaFlag(), storeFlag(),
		},
		Action: action(parseAttach),
	}
}

type attachArgs struct {
	task       string   // JOB[.TASK]
	argv       []string // empty for a shell
	ssh        bool     // serve SSH on the standard streams
	via, store string
}

func parseAttach(c *cli.Context) (*attachArgs, error) {
	if c.NArg() == 0 || strings.HasPrefix(c.Args().First(), "-") {
		return nil, atStatus(process.ExitFailed, text.Usagef("attach needs %s", attachUsage).Hint(`"hpcc attach --help" shows examples`))
	}
	a := &attachArgs{task: c.Args().First(), argv: trimDashes(c.Args().Tail()), ssh: c.Bool("ssh"),
		via: c.String("via"), store: c.String("store")}
	if !a.ssh {
		return a, nil
	}
	a.task = strings.TrimSuffix(a.task, sshSuffix)
	switch {
	case len(a.argv) > 0:
		return nil, atStatus(process.ExitFailed, text.Usagef("attach --ssh takes no CMD").
			Hint("pass the command to ssh: ssh %s%s %s", a.task, sshSuffix, text.Arguments(a.argv)))
	case term.IsTerminal(int(os.Stdin.Fd())):
		return nil, atStatus(process.ExitFailed, text.Usagef("attach --ssh speaks the SSH protocol on its standard streams, which are a terminal").
			Hint("ssh -o ProxyCommand='hpcc attach --ssh %%n' %s%s", a.task, sshSuffix))
	}
	return a, nil
}

// sshSuffix may follow the task's name in the host names of ssh, so that one block of ~/.ssh/config
// applies to all tasks.
const sshSuffix = ".hpcc"

// trimDashes removes a leading --.
func trimDashes(argv []string) []string {
	if len(argv) > 0 && argv[0] == "--" {
		return argv[1:]
	}
	return argv
}

func (a *attachArgs) run(ctx context.Context) error {
	return atStatus(process.ExitFailed, a.attach(ctx))
}

func (a *attachArgs) attach(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(s.Dir())
	if err != nil {
		return err
	}
	verb := "attach"
	if a.ssh {
		verb = "attach --ssh"
	}
	sub, index, err := site.FindTask(ctx, verb, a.ssh, s.Jobs(), a.task)
	if err != nil {
		return err
	}
	t, err := sub.RunningTask(ctx, s.Jobs(), index, sayLine)
	if ctx.Err() != nil {
		return exitStatus(128 + int(syscall.SIGINT))
	}
	if err != nil {
		return err
	}
	if a.ssh {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // from ssh when it ends
		defer stop()
		return sub.ServeSSH(ctx, t, dir, a.via, stdio{os.Stdin, os.Stdout})
	}
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	w, err := sub.Attach(ctx, t, a.argv, dir, a.via, os.Getenv("TERM"), terminal)
	if err != nil {
		return err
	}
	return execArgv(sub, t, w)
}

// execArgv replaces hpcc with a command that reaches the task.
func execArgv(sub *dispatch.Submission, t *job.Task, argv []string) error {
	file, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("reaching the task's node %s: %w", t.Host, err)
	}
	return fmt.Errorf("executing %s: %w", file, inherit.Exec(file, argv, sub.OutsideJob()))
}
