package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/build/attest"
	"hpcc/files"
	"hpcc/runtime"
	"hpcc/runtime/probe"
	"hpcc/runtime/process"
	"hpcc/text"
)

// Exit statuses; [build.StatusDegraded] is another, and "run" adds the program's own and the runtime's 125 to 127.
const (
	exitFailure = 1
	exitSignal  = 128 // plus the number of the signal that ended hpcc, as in shells
)

// usageError turns an error of the flag parser into a message. The parser calls it.
func usageError(c *cli.Context, err error, _ bool) error {
	if err := interruptedFlag(c); err != nil {
		return err
	}
	if flag, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: "); ok && c != nil && c.Command != nil {
		return unknownFlag(c.Command, flag)
	}
	name := "hpcc"
	if c != nil && c.Command != nil && c.Command.Name != "" && c.Command.Name != "hpcc" {
		name += " " + c.Command.Name
	}
	if m := wrongType().FindStringSubmatch(err.Error()); m != nil {
		if isDuration(c, m[2]) {
			return text.Usagef("%s %s: not a duration (for example 90s, 30m, 168h)", dashed(m[2]), m[1]).
				Hint("%q shows the flags", name+" --help")
		}
		return text.Usagef("%s %s: not a whole number", dashed(m[2]), m[1]).Hint("%q shows the flags", name+" --help")
	}
	if m := wrongValue().FindStringSubmatch(err.Error()); m != nil {
		return text.Usagef("%s: %s", dashed(m[1]), m[2]).Hint("%q shows the flags", name+" --help")
	}
	return text.Usagef("%w", err).Hint("%q shows the flags", name+" --help")
}

// wrongValue matches the error of package flag that wraps the error of a flag's own type.
var wrongValue = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^invalid (?:boolean )?value ".*?" for (?:flag )?-([\w-]+): (.*)$`)
})

// wrongType matches the error of package flag for a value of the wrong type.
var wrongType = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^invalid value (".*") for flag -([a-z-]+): parse error$`)
})

// isDuration reports whether a flag of the command takes a duration.
func isDuration(c *cli.Context, flag string) bool {
	return c != nil && c.Command != nil && slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool {
		_, is := f.(*cli.DurationFlag)
		return is && slices.Contains(f.Names(), flag)
	})
}

// printError prints an error and its hint to standard error, and returns the exit status.
func printError(err error) int {
	if err == nil {
		return 0
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	lines := fmt.Sprintf("hpcc: error: %s\n", text.Printable(attest.PublicText(err.Error())))
	advice, code := adviceFor(err)
	if advice != "" {
		lines += fmt.Sprintf("hpcc: hint: %s\n", text.Printable(attest.PublicText(advice)))
	}
	fmt.Fprint(os.Stderr, lines) // a single write, because many tasks may share one file
	return code
}

// A canceledError is the error of a command that a signal ended.
type canceledError struct {
	err   error // the text
	cause error // a [context.Canceled], which may name the signal
}

func (e *canceledError) Error() string   { return e.err.Error() }
func (e *canceledError) Unwrap() []error { return []error{e.err, e.cause} }

// withSignal adds the signal to the error of a command that the signal cancelled.
func withSignal(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return &canceledError{err, context.Cause(ctx)}
}

// exitStatus is an error that ends hpcc with the status of a program and prints nothing.
type exitStatus = text.ExitStatus

// adviceFor returns the hint and the exit status for an error. No other function chooses them.
func adviceFor(err error) (advice string, status int) {
	var signal files.Interrupted
	switch { // the user caused these, and needs no hint
	case errors.As(err, &signal):
		return "", exitSignal + int(signal.Signal)
	case errors.Is(err, context.Canceled):
		return "", exitSignal + int(syscall.SIGINT)
	}
	status = exitFailure
	var m *text.Error
	var ns *runtime.NamespaceError
	var re *process.Error
	if errors.As(err, &re) {
		status = re.Status
	}
	if errors.As(err, &m) && m.Status != 0 {
		status = m.Status
	}
	advice = text.Advice(err)
	limit, similar := process.LimitAdvice(err), similarFile(err, os.Args[1:])
	switch {
	case limit != "": // a resource limit is the cause, so neither the usage nor other advice applies
		advice = limit
		if status == text.StatusUsage {
			status = exitFailure
		}
	case similar != "":
		advice = fmt.Sprintf("did you mean %s?", similar)
	case advice != "":
	case errors.As(err, &ns):
		advice = probe.Cure(ns) + `; "hpcc doctor" shows what was tried`
	}
	return advice, status
}
