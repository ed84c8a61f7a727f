package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/metrics"
	"hpcc/runtime/foreign"
	"hpcc/text"
)

func entryCommand() *cli.Command {
	return &cli.Command{
		Name: "entry", Usage: "run as the entry point of an image, under any user ID", ArgsUsage: "[--] CMD [ARG...]",
		Description: `Runs CMD under any user ID, for images that OpenShift and Kubernetes start with a user ID that the
image does not know. "hpcc build --entry" makes it the entry point.

   ENTRYPOINT ["/usr/local/bin/hpcc-entry", "entry", "--"]

Gives the program a user name (in /etc/passwd if that is writable, else through libnss_wrapper if
the image has it, else in $USER), a writable HOME, cache directories, and in group 0 a umask that
lets the next user ID write as well. As the first process of a container, hpcc forwards signals
and reaps processes; elsewhere the program replaces it.

With --measure, hpcc stays the program's parent and writes its resource usage to FILE (default
` + metrics.PodFile + `) and a summary to the termination message of the container.

Exit status: the program's, or 128+N for signal N; 125 if hpcc failed, 126 if the program is not
executable, 127 if it was not found.`,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "measure", Value: &fileFlag{defaultFile: metrics.PodFile}, Usage: "write resource usage to `FILE`"},
			&cli.GenericFlag{Name: "tail", Hidden: true, Value: &fileFlag{defaultFile: metrics.PodFile},
				Usage: "print the start and the end of a resource usage record"},
		},
		Action: programAction(parseEntry),
	}
}

// entryArgs is the command line of "hpcc entry".
type entryArgs struct {
	argv    []string
	measure string // file of the record; "" to measure nothing
	tail    string // print the start and the end of this record instead of running argv
}

func parseEntry(c *cli.Context) (*entryArgs, error) {
	file := func(flag string) string { return c.Generic(flag).(*fileFlag).file }
	return &entryArgs{argv: c.Args().Slice(), measure: file("measure"), tail: file("tail")}, nil
}

// fileFlag is the value of a flag that is written as --flag or --flag=FILE.
type fileFlag struct {
	defaultFile string // value of --flag
	file        string
}

func (f *fileFlag) IsBoolFlag() bool { return true }

func (f *fileFlag) Set(s string) (err error) {
	f.file, err = optionalValue(s, f.defaultFile, "file name")
	return err
}

func (f *fileFlag) String() string { return f.file }

// optionalValue returns the value of a flag that is written as --flag, --flag=false or --flag=VALUE. The
// parser passes "true" for --flag, which stands for preset.
func optionalValue(s, preset, what string) (string, error) {
	switch s {
	case "true":
		return preset, nil
	case "false":
		return "", nil
	case "":
		return "", fmt.Errorf("the %s is empty", what)
	}
	return s, nil
}

// run replaces hpcc with the image's program, or runs it as a child process to measure it.
func (a *entryArgs) run(ctx context.Context) error {
	if a.tail != "" {
		return metrics.WriteTail(os.Stdout, a.tail)
	}
	if len(a.argv) == 0 {
		return text.Usagef("entry needs a program: the image has no CMD and no arguments were given").
			Hint(`put CMD ["prog", "arg"] into the Dockerfile, or args: into the pod`)
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
	if run.RecordErr != nil {
		say("warning: %v", run.RecordErr)
	}
	if err != nil && child.Process == nil {
		return n.StartError(child, err)
	}
	if err != nil {
		return err
	}
	return exitStatus(run.Status())
}
