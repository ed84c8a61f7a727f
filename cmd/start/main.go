// A start does not need the number of processors that the cgroup allows.
//go:debug containermaxprocs=0

// Command start is "hpcc entry" as a separate program, for use as the entry point of images. It
// starts faster than hpcc and is a seventh of the size. hpcc embeds it, and "hpcc build --entry"
// puts it into images.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"hpcc/metrics"
	"hpcc/runtime"
	"hpcc/runtime/foreign"
	"hpcc/runtime/process"
	"hpcc/text"
)

// version is set by the linker to the version of cmd/hpcc.
var version = "dev"

func main() {
	if _, err := runtime.Init(); err != nil {
		end(0, err)
	}
	if len(os.Args) > 1 && os.Args[1] == "entry" {
		enter(os.Args[2:])
	}
	fmt.Fprintln(os.Stderr, "hpcc: error: this program is the entry point of images; usage: hpcc-entry entry [--measure[=FILE]] [--] CMD [ARG...]")
	os.Exit(process.ExitFailed)
}

// enter runs "hpcc entry". It returns if the arguments do not name a program or have an unknown
// flag.
func enter(args []string) {
	measured, tail := "", ""
	for ; len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--"; args = args[1:] {
		name, file, given := strings.Cut(args[0], "=")
		if !given || file == "true" {
			file = metrics.PodFile
		}
		switch {
		case (name == "--measure" || name == "--tail") && file == "false":
		case name == "--measure" && file != "":
			measured = file
		case name == "--tail" && file != "":
			tail = file
		default:
			return
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if tail != "" && len(args) == 0 {
		end(0, metrics.WriteTail(os.Stdout, tail))
	}
	if tail != "" || len(args) == 0 {
		return
	}
	n, err := foreign.NewUser()
	if err != nil {
		end(0, err)
	}
	if n.Note != "" {
		fmt.Fprintf(os.Stderr, "hpcc: note: %s\n", text.Printable(n.Note))
	}
	if measured != "" {
		end(measure(n, args, measured))
	}
	end(0, n.Become(args))
}

// measure runs the program as a child process, measures it and returns its status.
func measure(n *foreign.User, args []string, file string) (int, error) {
	child, err := n.Child(args)
	if err != nil {
		return 0, err
	}
	run, err := metrics.MeasurePod(context.Background(), child, metrics.Options{File: file, Header: metrics.Header{Hpcc: version}})
	if run.RecordErr != nil {
		fmt.Fprintf(os.Stderr, "hpcc: warning: %s\n", text.Printable(run.RecordErr.Error()))
	}
	if err != nil && child.Process == nil {
		err = n.StartError(child, err)
	}
	return run.Status(), err
}

// end prints err and exits, or exits with status if err is nil.
func end(status int, err error) {
	if err == nil {
		os.Exit(status)
	}
	fmt.Fprintf(os.Stderr, "hpcc: error: %s\n", text.Printable(err.Error()))
	if advice := process.LimitAdvice(err); advice != "" {
		fmt.Fprintf(os.Stderr, "hpcc: hint: %s\n", advice)
	}
	if e, ok := err.(*process.Error); ok {
		os.Exit(e.Status)
	}
	os.Exit(process.ExitFailed)
}
