package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/runtime"
	"hpcc/runtime/probe"
	"hpcc/runtime/process"
	"hpcc/runtime/usertext"
	"hpcc/store"
	"hpcc/store/wait"
)

// Exit statuses; "run" adds the program's own and the runtime's 125 to 127.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // plus the number of the signal that ended hpcc, as in shells
)

// A message is an error with what the user should do next.
type message struct {
	err    error
	advice string
	status int
}

func (m *message) Error() string { return m.err.Error() }
func (m *message) Unwrap() error { return m.err }

func (m *message) hint(format string, args ...any) *message {
	m.advice = fmt.Sprintf(format, args...)
	return m
}

// usagef returns an error about the command line, with the exit status for wrong usage.
func usagef(format string, args ...any) *message {
	return &message{err: fmt.Errorf(format, args...), status: exitUsage}
}

// usageError is called by the parser of flags.
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
	if m := notRead().FindStringSubmatch(err.Error()); m != nil { // in the words of package flag
		if isDuration(c, m[2]) {
			return usagef("--%s %s: not a duration (for example 90s, 30m, 168h)", m[2], m[1]).hint("%q shows the flags", name+" --help")
		}
		return usagef("--%s %s: not a whole number", m[2], m[1]).hint("%q shows the flags", name+" --help")
	}
	if m := refused().FindStringSubmatch(err.Error()); m != nil {
		return usagef("--%s: %s", m[1], m[2]).hint("%q shows the flags", name+" --help")
	}
	return usagef("%w", err).hint("%q shows the flags", name+" --help")
}

// refused matches the error of package flag around that of a flag's own type.
var refused = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^invalid (?:boolean )?value ".*?" for (?:flag )?-([\w-]+): (.*)$`)
})

// notRead matches the error of package flag for a value of the wrong type.
var notRead = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^invalid value (".*") for flag -([a-z-]+): parse error$`)
})

// isDuration says whether a command's flag takes a time.
func isDuration(c *cli.Context, flag string) bool {
	return c != nil && c.Command != nil && slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool {
		_, is := f.(*cli.DurationFlag)
		return is && slices.Contains(f.Names(), flag)
	})
}

// onDisk says, of an error that a full disk made, which one that is: a file
// system is known by a directory on it.
func onDisk(err error, dir string) error {
	if (!errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT)) || strings.Contains(err.Error(), "free space") {
		return err
	}
	return (&message{err: err}).hint("free space on the file system of %s, or name a place on another; \"hpcc doctor\" shows what is left of the store's", dir)
}

// onReadOnly gives advice to an error that came from writing below a directory
// that the user cannot write to.
func onReadOnly(err error, dir, advice string) error {
	var pe *fs.PathError
	if !errors.As(err, &pe) || !strings.HasPrefix(pe.Path, dir+"/") || (!errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrPermission)) {
		return err
	}
	return (&message{err: err}).hint("%s", advice)
}

// tellError says what went wrong, what to do next, and returns the exit status.
func tellError(err error) int {
	if err == nil {
		return 0
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	text := fmt.Sprintf("hpcc: error: %s\n", usertext.Printable(err.Error()))
	advice, code := adviceFor(err)
	if advice != "" {
		text += fmt.Sprintf("hpcc: hint: %s\n", usertext.Printable(advice))
	}
	fmt.Fprint(os.Stderr, text) // in one piece: many tasks may write to one file
	return code
}

// A stopped is the error of a command that a signal ended.
type stopped struct {
	err   error // for people
	cause error // a [context.Canceled]; it may name the signal
}

func (s *stopped) Error() string   { return s.err.Error() }
func (s *stopped) Unwrap() []error { return []error{s.err, s.cause} }

// withSignal adds to the error of a cancelled command the signal that cancelled it.
func withSignal(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return &stopped{err, context.Cause(ctx)}
}

// exitStatus ends hpcc with a program's status, without a word of its own.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// adviceFor maps an error to what to do next and to the exit status: the only
// place that knows either.
func adviceFor(err error) (advice string, status int) {
	var signal wait.Interrupted
	switch { // the user knows why
	case errors.As(err, &signal):
		return "", exitSignal + int(signal.Signal)
	case errors.Is(err, context.Canceled):
		return "", exitSignal + int(syscall.SIGINT)
	}
	status = exitFailure
	var m *message
	var ns *runtime.NamespaceError
	var re *process.Error
	var missing *store.NotFoundError
	var local *store.NotPushedError
	var damaged *store.DamagedError
	var name *store.DamagedRefError
	if errors.As(err, &re) {
		status = re.Status
	}
	if errors.As(err, &m) {
		advice = m.advice
		if m.status != 0 {
			status = m.status
		}
	}
	switch limit := usertext.LimitAdvice(err); {
	case limit != "": // the cause of what else is advised, and not the command line's fault
		advice = limit
		if status == exitUsage {
			status = exitFailure
		}
	case advice != "":
	case errors.As(err, &missing):
		advice = fmt.Sprintf("%q lists them; %q fetches it from a registry", "hpcc images", "hpcc pull "+missing.Name)
	case errors.As(err, new(*dispatch.NoJobError)):
		advice = `"hpcc status" lists the jobs`
	case errors.As(err, &damaged):
		advice = cureFor(damaged)
	case errors.As(err, &name):
		advice = name.Cure + " makes it again"
	case errors.As(err, &local):
		advice = fmt.Sprintf("%q, or %q, sends it", "hpcc deploy -r NAME "+local.Name, "hpcc push "+local.Name+" REF")
	case errors.As(err, &ns):
		advice = probe.Cure(ns) + `; "hpcc doctor" shows what was tried`
	}
	return advice, status
}

// cureFor says how a damaged blob is replaced.
func cureFor(e *store.DamagedError) string {
	switch {
	case len(e.Cures) == 0:
		return "repeat what made it: the same hpcc build, load or pull; a layout or archive has to be copied again"
	case len(e.Cures) == 1:
		return e.Cures[0] + " replaces it; hpcc gc --verify checks everything else"
	}
	return "each of these replaces it: " + strings.Join(e.Cures, "; ") + "; hpcc gc --verify checks everything else"
}
