// Package invoke runs the commands of batch systems.
//
// Every command has a time limit, an environment that selects its cluster (see [Within])
// and a bounded place for its output. Its error carries what the command printed.
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

// How long a scheduler may take to list its jobs. Slurm's own commands give up
// after 10 s and more (slurm.conf(5), MessageTimeout).
const (
	Glance   = 5 * time.Second  // where the records tell the most
	Patience = 30 * time.Second // where something depends on the answer
)

// MaxListing bounds what a scheduler's listing may have, in bytes.
const MaxListing = 256 << 20

// answerTime is how long a scheduler may take to answer.
const answerTime = 2 * time.Second

// Probe is what a command says on both its streams.
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

// CommandTime bounds a command of a scheduler where the caller has no bound of its
// own: three minutes by default. Slurm's give up by themselves after
// MessageTimeout, which sites set to 60 s and more.
func CommandTime(ctx context.Context) time.Duration { return 3 * wait.Limits(ctx).Header }

// A SilentError is a command of a scheduler that did not end in time.
type SilentError struct {
	Command string
	After   time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s did not answer within %v and was ended; see by hand what it waits for. What it was asked to do may have been done", e.Command, e.After)
}

// Call runs a command of a scheduler; see [run].
func Call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return Feed(ctx, dir, nil, nil, name, args...)
}

// Feed runs a command of a scheduler with standard input and more variables.
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

// Run gives what a command says; standard error comes with the output only when
// the command fails.
func Run(cmd *exec.Cmd) ([]byte, error) {
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return append(words.Bytes(), out.Bytes()...), err
	}
	return out.Bytes(), nil
}

// Error makes an error of what a scheduler said; err where it said nothing.
func Error(out []byte, err error) error {
	if text := strings.Join(strings.Fields(string(out)), " "); text != "" {
		return errors.New(text)
	}
	return err
}
