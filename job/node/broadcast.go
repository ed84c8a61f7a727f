package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hpcc/text"
)

// A Broadcast sends a file to the local storage of all nodes of a job, with commands of the
// scheduler.
type Broadcast struct {
	Each []string // argv that runs the arguments after it once on each node, and passes on their outputs
	Send []string // argv that copies a file to the same path on each node: the arguments FILE PATH follow
	Self []string // argv for Each that prepares a node: "receive" or "refuse" follows
}

// received marks the lines with which nodes report to [Broadcast.Prepare]. Sites may add other
// lines to the output of processes.
const received = "hpcc-stage"

// Received returns the line with which a node reports the directory for the file, and whether it
// has the image already.
func Received(dir string, has bool) string {
	return fmt.Sprintf("%s %s %s", received, map[bool]string{true: "has", false: "needs"}[has], dir)
}

// prepareTime limits the commands that run on each node. They take seconds if the scheduler is
// busy.
const prepareTime = 2 * time.Minute

// slowest is the rate, in bytes per second, below which a broadcast is ended.
const slowest = 4 << 20

// Prepare creates a directory for the file on each node, and returns its path. needed is false if
// all nodes have the image already.
func (b *Broadcast) Prepare(ctx context.Context) (dir string, needed bool, err error) {
	out, err := b.call(ctx, prepareTime, slices.Concat(b.Each, b.Self, []string{"receive"}))
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(out) {
		w := strings.SplitN(strings.TrimSpace(line), " ", 3)
		switch {
		case len(w) < 3 || w[0] != received || !filepath.IsAbs(w[2]):
		case dir != "" && w[2] != dir:
			stage := func(dir string) string { return filepath.Dir(filepath.Dir(dir)) }
			return "", false, fmt.Errorf("the nodes keep their copies in different directories, %s and %s", text.OneLine(stage(dir)), text.OneLine(stage(w[2])))
		default:
			dir, needed = w[2], needed || w[1] != "has"
		}
	}
	if dir == "" {
		return "", false, errors.New("no node answered")
	}
	return dir, needed, nil
}

// To sends a file of size bytes to path on each node.
func (b *Broadcast) To(ctx context.Context, file, path string, size int64) error {
	limit := prepareTime + time.Duration(size/slowest)*time.Second
	_, err := b.call(ctx, limit, slices.Concat(b.Send, []string{file, path}))
	return err
}

// Refuse removes the directories and files of a failed broadcast.
func (b *Broadcast) Refuse(ctx context.Context) error {
	_, err := b.call(ctx, prepareTime, slices.Concat(b.Each, b.Self, []string{"refuse"}))
	return err
}

// call runs a command and returns its output. The error has its first message.
func (b *Broadcast) call(ctx context.Context, limit time.Duration, argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	var out, reply bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &reply
	err := cmd.Run()
	switch {
	case err == nil:
		return out.String(), nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("%s did not end within %v", argv[0], limit)
	case reply.Len() > 0:
		line, _, _ := strings.Cut(strings.TrimSpace(reply.String()), "\n") // later lines report the end of the step
		return "", fmt.Errorf("%s: %w: %s", argv[0], err, text.OneLine(line))
	}
	return "", fmt.Errorf("%s: %w", argv[0], err)
}
