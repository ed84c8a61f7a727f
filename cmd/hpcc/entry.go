package main

import (
	"context"
	"errors"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/metrics"
	"hpcc/runtime/foreign"
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

With --measure hpcc stays the program's parent and keeps a record of what it uses, in FILE (usually
` + metrics.PodFile + `); what matters most of it also goes to the kubelet's termination
message, which stays with the pod. "hpcc submit --measure" does so.

Exit status: the program's own (128+N for signal N); 125 hpcc failed, 126 not executable, 127 not found.`,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "measure", Value: &fileFlag{usual: metrics.PodFile}, Usage: "keep a record of what the program uses; --measure=`FILE` says where"},
			&cli.GenericFlag{Name: "tail", Hidden: true, Value: &fileFlag{usual: metrics.PodFile}, Usage: "print the head and the end of such a record"},
		},
		Action: programAction(parseEntry),
	}
}

// entryArgs is the command line of "hpcc entry".
type entryArgs struct {
	argv    []string
	measure string // file of the record; "" for none
	tail    string // print the head and the end of this record, and run nothing
}

func parseEntry(c *cli.Context) (*entryArgs, error) {
	return &entryArgs{argv: c.Args().Slice(), measure: c.Generic("measure").(*fileFlag).file, tail: c.Generic("tail").(*fileFlag).file}, nil
}

// fileFlag is --flag and --flag=FILE.
type fileFlag struct{ usual, file string }

func (f *fileFlag) IsBoolFlag() bool { return true }

func (f *fileFlag) Set(s string) error {
	switch f.file = s; s {
	case "true":
		f.file = f.usual
	case "false":
		f.file = ""
	case "":
		return errors.New("a file has a name")
	}
	return nil
}

func (f *fileFlag) String() string { return "" }

// run becomes the program of an image, or its parent if it is measured.
func (a *entryArgs) run(ctx context.Context) error {
	if a.tail != "" {
		return metrics.WriteTail(os.Stdout, a.tail)
	}
	if len(a.argv) == 0 {
		return usagef("entry needs a program: the image has no CMD, and nothing was given").hint(`put CMD ["prog", "arg"] into the Dockerfile, or args: into the pod`)
	}
	n, err := foreign.NewUser()
	if err != nil {
		return err
	}
	if n.Note != "" {
		say("note: %s", n.Note)
	}
	if a.measure == "" {
		return n.Become(a.argv)
	}
	child, err := n.Child(a.argv)
	if err != nil {
		return err
	}
	run, err := metrics.MeasurePod(ctx, child, metrics.Options{File: a.measure, Header: metrics.Header{Hpcc: version}})
	if run.Unkept != nil {
		say("warning: %v", run.Unkept)
	}
	if err != nil && child.Process == nil {
		return n.NotBegun(child, err)
	}
	if err != nil {
		return err
	}
	return exitStatus(run.Status())
}
