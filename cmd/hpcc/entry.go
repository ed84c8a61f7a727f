package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/runtime"
)

func entryCommand() *cli.Command {
	return &cli.Command{
		Name: "entry", Usage: "be the entry point of an image whose user the cluster chooses", ArgsUsage: "[--] CMD [ARG...]",
		Description: `Runs CMD as whoever this is, for images that OpenShift and Kubernetes start under a uid that the
image does not know. "hpcc build --entry" puts it there.

   ENTRYPOINT ["/usr/local/bin/hpcc-entry", "entry", "--"]

The program finds a user name (a line of /etc/passwd where that can be written, else
libnss_wrapper where the image has it, else $USER), a HOME that can be written to, places for
caches, and, in group 0, a umask that lets the next uid write, too. As the first process of a
container, hpcc passes signals on and reaps; elsewhere the program takes its place.

Exit status: the program's own (128+N for signal N); 125 hpcc failed, 126 not executable, 127 not found.`,
		Action: func(c *cli.Context) error { return atStatus(runtime.ExitFailed, enterImage(c.Args().Slice())) },
	}
}

// enterImage becomes the program of an image.
func enterImage(args []string) error {
	if len(args) == 0 {
		return usagef("entry needs a program: the image has no CMD, and nothing was given").hint(`put CMD ["prog", "arg"] into the Dockerfile, or args: into the pod`)
	}
	n, err := runtime.Welcome()
	if err != nil {
		return err
	}
	if n.Note != "" {
		fmt.Fprintf(os.Stderr, "hpcc: note: %s\n", cleaned(n.Note))
	}
	return n.Become(args)
}
