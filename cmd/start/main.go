// How many processors the cgroup allows does not matter before a start is over.
//go:debug containermaxprocs=0

// Command start is "hpcc run" and nothing else, made to begin quickly: of what
// hpcc imports, it imports what a run needs. cmd/weld puts it into the one file
// that users have; there, hpcc's entry point leads "hpcc run" here.
//
// It runs what it is sure of. Everything else — help, mistakes, images that
// must be unpacked first, other machines' programs — it leaves to the rest of
// hpcc by executing the file again, so there is one place that knows words. The
// usual run does not even come to main: see package bare.
package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"hpcc/cmd/start/bare"
	"hpcc/metrics"
	"hpcc/runtime"
)

// version is set by the linker, as that of cmd/hpcc.
var version = "0.1.0-dev"

// ociName is the name under which "run" is that of "hpcc oci" (cmd/hpcc).
const ociName = "hpcc-oci"

func main() {
	if image, args, env, cwd, failed := bare.Failed(); failed {
		tell(image, runtime.Launch(args, env, cwd), nil)
	}
	if _, err := runtime.Init(); err != nil {
		fmt.Fprintf(os.Stderr, "hpcc: error: %s\n", runtime.Printable(err.Error()))
		hinted := limitHint(err)
		if e, ok := err.(*runtime.Error); ok {
			os.Exit(e.Status)
		}
		if hinted {
			os.Exit(runtime.ExitFailed)
		}
		fmt.Fprintln(os.Stderr, `hpcc: hint: "hpcc doctor" shows why, and what to ask the administrator for`)
		os.Exit(runtime.ExitFailed)
	}
	if len(os.Args) > 1 && os.Args[1] == "entry" {
		enter(os.Args[2:])
	}
	if os.Args[0] == runtime.Full || len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "hpcc: error: this program is a part of hpcc; alone it knows: entry [--measure[=FILE]] [--] CMD [ARG...]")
		os.Exit(runtime.ExitFailed)
	}
	args := append([]string{runtime.Full}, os.Args[1:]...)
	if path.Base(os.Args[0]) == ociName {
		args = append([]string{runtime.Full, "oci"}, os.Args[1:]...)
	} else if lines, err := runtime.Defaults(); err == nil && os.Getenv("HPCC_STAGE") == "" && os.Getenv("HPCC_NO_CONFIG") == "" {
		if w, ok := parse(os.Args[2:], lines); ok {
			if spec, ok := w.spec(); ok {
				tell(w.image, runtime.Exec(spec), lines)
			}
		}
	}
	err := syscall.Exec("/proc/self/exe", args, os.Environ())
	fmt.Fprintf(os.Stderr, "hpcc: error: executing hpcc again: %v\n", err)
	os.Exit(runtime.ExitFailed)
}

// enter is "hpcc entry". It returns when there is no program to be, or a word
// that only the rest of hpcc knows.
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
	n, err := runtime.Welcome()
	if err != nil {
		end(0, err)
	}
	if n.Note != "" {
		fmt.Fprintf(os.Stderr, "hpcc: note: %s\n", runtime.Printable(n.Note))
	}
	if measured != "" {
		end(measure(n, args, measured))
	}
	end(0, n.Become(args))
}

// measure is the parent of a program that is measured; it returns the program's status.
func measure(n *runtime.Newcomer, args []string, file string) (int, error) {
	child, err := n.Child(args)
	if err != nil {
		return 0, err
	}
	run, err := metrics.MeasurePod(context.Background(), child, metrics.Options{File: file, Header: metrics.Header{Hpcc: version}})
	if run.Unkept != nil {
		fmt.Fprintf(os.Stderr, "hpcc: warning: %s\n", runtime.Printable(run.Unkept.Error()))
	}
	if err != nil && child.Process == nil {
		err = n.NotBegun(child, err)
	}
	return run.Status(), err
}

// end ends hpcc, with a status where nothing went wrong.
func end(status int, err error) {
	if err == nil {
		os.Exit(status)
	}
	fmt.Fprintf(os.Stderr, "hpcc: error: %s\n", runtime.Printable(err.Error()))
	limitHint(err)
	if e, ok := err.(*runtime.Error); ok {
		os.Exit(e.Status)
	}
	os.Exit(runtime.ExitFailed)
}

// tell says why the program did not begin, and ends with the status for that.
// It returns when the rest of hpcc can say it better.
func tell(image string, err error, defaults []runtime.DefaultLine) {
	e, ok := err.(*runtime.Error)
	if !ok {
		return
	}
	fmt.Fprintf(os.Stderr, "hpcc: error: %s\n", runtime.Printable(fmt.Sprintf("running %s: %v", image, e)))
	if limitHint(e) {
		os.Exit(e.Status)
	}
	if l := runtime.Blame(defaults, e); l != nil {
		fmt.Fprintf(os.Stderr, "hpcc: hint: %s\n", runtime.Printable(l.Hint()))
	}
	os.Exit(e.Status)
}

// limitHint prints what to do about an error that a resource limit caused. It
// reports whether it was one.
func limitHint(err error) bool {
	advice := runtime.LimitAdvice(err)
	if advice != "" {
		fmt.Fprintf(os.Stderr, "hpcc: hint: %s\n", advice)
	}
	return advice != ""
}
