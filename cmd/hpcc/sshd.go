package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/job/sshd"
	"hpcc/text"
)

// sshdCommand returns the command that serves "hpcc attach --ssh" in the container of a task.
func sshdCommand() *cli.Command {
	return &cli.Command{
		Name: "sshd", Hidden: true, Usage: "serve the SSH protocol on the standard streams (started by hpcc enter)",
		Action: action(parseSSHD),
	}
}

type sshdArgs struct{}

func parseSSHD(c *cli.Context) (*sshdArgs, error) {
	_, err := parseArguments(c, 0, 0, "")
	return &sshdArgs{}, err
}

// inherited is one more than the largest descriptor that the server may inherit.
const inherited = 64

// run reads the host key, and serves the client.
func (*sshdArgs) run(context.Context) error {
	for fd := 3; fd < inherited; fd++ { // the programs of the sessions must not inherit them
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	key, err := sshd.ReceiveKey(os.Stdin)
	if err != nil {
		return text.Hint(err, "use hpcc attach --ssh, which starts this command")
	}
	return sshd.Serve(stdio{os.Stdin, os.Stdout}, key)
}
