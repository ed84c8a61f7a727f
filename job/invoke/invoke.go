// Package invoke runs the commands of batch systems.
//
// Every command has a time limit and an environment that selects its cluster (see
// [Within]). Its error contains the output of the command. The output is kept in memory;
// callers parse at most [MaxListing] bytes of it.
package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"hpcc/text"
	"hpcc/web"
)

// Time limits for listing jobs. The batch systems' own commands give up after 10 s or more.
const (
	ShortTimeout = 5 * time.Second  // if the records of tasks already have most of the answer
	LongTimeout  = 30 * time.Second // if a decision depends on the answer
)

// MaxListing is the largest listing that is parsed, in bytes.
const MaxListing = 256 << 20

// answerTime limits a probe.
const answerTime = 2 * time.Second

// Probe runs a command for at most two seconds and returns its output on both streams.
func Probe(ctx context.Context, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = answerTime / 4 // its children may keep the output open
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// CommandTime returns the time limit of a command, by default three minutes. Commands of some batch systems only give up
// after a minute or more.
func CommandTime(ctx context.Context) time.Duration { return 3 * web.LimitsOf(ctx).Header }

// A SilentError reports a command that did not end in time.
type SilentError struct {
	Command string
	After   time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s did not answer within %v and was ended, but the batch system may have carried out the "+
		"request; run the command in a shell to see what it waits for", e.Command, e.After)
}

// Call runs a command in dir; see [Run].
func Call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return Feed(ctx, dir, nil, nil, name, args...)
}

// Feed is [Call] with standard input and additional variables NAME=VALUE.
func Feed(ctx context.Context, dir string, in io.Reader, env []string, name string, args ...string) ([]byte, error) {
	silent := &SilentError{name, CommandTime(ctx)}
	ctx, cancel := context.WithTimeoutCause(ctx, silent.After, silent)
	defer cancel()
	cmd := Command(ctx, dir, name, args...)
	cmd.Stdin, cmd.Env = in, append(cmd.Env, env...)
	out, err := Run(cmd)
	if err != nil && context.Cause(ctx) == error(silent) {
		return nil, silent
	}
	return out, err
}

// Command returns a command in the environment of the cluster of ctx.
func Command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(Environ(ctx), "LC_ALL=C", "SLURM_TIME_FORMAT=standard")
	cmd.WaitDelay = answerTime // its children may keep the output open
	return cmd
}

// Run returns the standard output of a command. If the command fails, its standard error
// precedes the output.
func Run(cmd *exec.Cmd) ([]byte, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return append(stderr.Bytes(), out.Bytes()...), err
	}
	return out.Bytes(), nil
}

// Error returns the message of a command as an error that wraps err, or err if it printed nothing.
func Error(out []byte, err error) error {
	if line := text.OneLine(string(out)); line != "" {
		return &commandError{line, err}
	}
	return err
}

// A commandError is the message of a command that failed.
type commandError struct {
	text string
	err  error
}

func (e *commandError) Error() string { return e.text }
func (e *commandError) Unwrap() error { return e.err }

// Unclear reports whether the error of a command leaves open if a server has carried out the request: the command
// was ended, or it lost the connection.
func Unclear(err error) bool {
	var exit *exec.ExitError
	switch {
	case errors.As(err, new(*SilentError)), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	case errors.As(err, &exit) && !exit.Exited():
		return true
	}
	return err != nil && lostConnection().MatchString(err.Error())
}

// lostConnection matches what commands of batch systems print when they do not get the answer of their server.
var lostConnection = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)tim(ed|e)[ -]?out|(cannot|unable to|failed to|could not) (connect|contact|communicate)|` +
		`connection (failure|refused|reset|closed|lost)|connect failure|zero bytes|broken pipe|\bEOF\b|end of file|` +
		`not responding|got (send|read) error|service ?unavailable`)
})
