// Package invoke runs the commands of batch systems.
//
// Every command has a time limit and an environment that selects its cluster (see
// [Within]). Its error carries what the command printed. The output is kept in memory;
// who parses it reads at most [MaxListing] bytes.
package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"hpcc/store/wait"
)

// Time limits for listing jobs. The batch systems' own commands give up after 10 s or more.
const (
	Glance   = 5 * time.Second  // where the records report most
	Patience = 30 * time.Second // where something depends on the answer
)

// MaxListing is the largest listing that is parsed, in bytes.
const MaxListing = 256 << 20

// answerTime limits a probe.
const answerTime = 2 * time.Second

// Probe returns what a command prints on both streams; it has two seconds.
func Probe(ctx context.Context, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = answerTime / 4 // children of it may keep its output open
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// CommandTime returns the time limit of a command, by default three minutes. Commands of some batch systems only give up
// after a minute or more.
func CommandTime(ctx context.Context) time.Duration { return 3 * wait.Limits(ctx).Header }

// A SilentError reports a command that did not end in time.
type SilentError struct {
	Command string
	After   time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s did not answer within %v and was ended; run it by hand to see what it waits for. The request may have been carried out", e.Command, e.After)
}

// Call runs a command in dir; see [Run].
func Call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return Feed(ctx, dir, nil, nil, name, args...)
}

// Feed is [Call] with standard input and further variables NAME=VALUE.
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
	cmd.WaitDelay = answerTime // children of it may keep its output open
	return cmd
}

// Run returns what a command prints. Standard error precedes the output, and only if
// the command fails.
func Run(cmd *exec.Cmd) ([]byte, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return append(stderr.Bytes(), out.Bytes()...), err
	}
	return out.Bytes(), nil
}

// Error returns the message of a command as an error, or err if it printed nothing.
func Error(out []byte, err error) error {
	if text := strings.Join(strings.Fields(string(out)), " "); text != "" {
		return errors.New(text)
	}
	return err
}
