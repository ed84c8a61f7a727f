package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
)

// A Broadcast sends an image as one file to the local storage of all nodes of a job, with commands of
// the scheduler.
type Broadcast struct {
	Image string   // a name in the store, or a SquashFS or SIF file
	Store string   // the directory of the store; "" for the default
	Each  []string // argv that runs the arguments after it once on each node, and passes on their outputs
	Send  []string // argv that copies a file to the same path on each node: the arguments FILE PATH follow
	Self  []string // argv for Each that prepares a node: "receive" or "refuse" follows
}

// Run sends the image from this node, whose stage is s, to the nodes that lack it. It returns the
// directory that each node prepared, and the bytes of the file that it sent, or 0.
func (b *Broadcast) Run(ctx context.Context, s *store.Stage) (dir string, sent int64, err error) {
	img, err := b.sent()
	if err != nil {
		return "", 0, err
	}
	dir, needed, err := b.prepare(ctx)
	if err == nil && needed {
		sent, err = img.size, b.send(ctx, s, img, dir)
	}
	if err == nil {
		return dir, sent, nil
	}
	if ctx.Err() == nil { // a job that was cancelled cannot start steps
		if rerr := b.refuse(ctx); rerr != nil {
			err = fmt.Errorf("%w (cleaning up: %w)", err, rerr)
		}
	}
	return "", 0, err
}

// Receive prepares this node, whose stage is s, for the broadcast with this name. It returns the line
// for the standard output that [Broadcast.Run] reads.
func (b *Broadcast) Receive(ctx context.Context, s *store.Stage, name string) (line string, err error) {
	img, err := b.sent()
	if err != nil {
		return "", err
	}
	has, need := slices.ContainsFunc(img.copies, s.Has), img.need
	if has {
		need = 0
	}
	dir, err := s.Receive(ctx, name, need)
	return receivedLine(dir, has), err
}

// A sentImage is an image that a job sends to its nodes as one file.
type sentImage struct {
	image  v1.Image // whose layers are joined; nil for a SquashFS or SIF file
	key    string   // of the file
	copies []string // keys of the node's copies of the image
	size   int64    // of the file, in bytes
	need   int64    // required free space of a node, in bytes
}

// sent describes the image as a file to send.
func (b *Broadcast) sent() (*sentImage, error) {
	if ready.NamesImageFile(b.Image) {
		key, err := files.Key(b.Image)
		if err != nil {
			return nil, err
		}
		fi, err := os.Stat(b.Image)
		if err != nil {
			return nil, err
		}
		return &sentImage{key: key, copies: []string{"file-" + key, key}, size: fi.Size(), need: fi.Size()}, nil
	}
	if ready.IsPath(b.Image) {
		return nil, errors.New("only images of the store and SquashFS files are sent")
	}
	s, err := store.OpenToRead(b.Store)
	if err != nil {
		return nil, err
	}
	img, err := s.Get(b.Image, nil)
	if err != nil {
		return nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := store.LayersSize(img)
	return &sentImage{image: img, key: d.Hex, copies: []string{d.Hex}, size: size, need: 2 * size}, err
}

// send sends the file to the directory dir of each node.
func (b *Broadcast) send(ctx context.Context, s *store.Stage, img *sentImage, dir string) error {
	file := b.Image
	if img.image != nil {
		var err error
		if file, err = s.Join(ctx, img.image); err != nil {
			return err
		}
		defer os.Remove(file)
	}
	to := filepath.Join(dir, store.SentName(img.key))
	if err := b.to(ctx, file, to, img.size); err != nil || img.image != nil {
		return err
	}
	if key, err := files.Key(file); err != nil || store.SentName(key) != store.SentName(img.key) {
		return errors.New("the file changed while it was sent")
	}
	return nil
}

// received marks the lines with which nodes report to [Broadcast.Run]. Sites may add other lines to
// the output of processes.
const received = "hpcc-stage"

// receivedLine returns the line with which a node reports the directory for the file, and whether it
// has the image already.
func receivedLine(dir string, has bool) string {
	return fmt.Sprintf("%s %s %s", received, map[bool]string{true: "has", false: "needs"}[has], dir)
}

// prepareTime limits the commands that run on each node. They take seconds if the scheduler is
// busy.
const prepareTime = 2 * time.Minute

// slowest is the rate, in bytes per second, below which a broadcast is ended.
const slowest = 4 << 20

// prepare creates a directory for the file on each node, and returns its path. needed is false if
// all nodes have the image already.
func (b *Broadcast) prepare(ctx context.Context) (dir string, needed bool, err error) {
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
			return "", false, fmt.Errorf("the nodes keep their copies in different directories, %s and %s",
				text.OneLine(stage(dir)), text.OneLine(stage(w[2])))
		default:
			dir, needed = w[2], needed || w[1] != "has"
		}
	}
	if dir == "" {
		return "", false, errors.New("no node answered")
	}
	return dir, needed, nil
}

// to sends a file of size bytes to path on each node.
func (b *Broadcast) to(ctx context.Context, file, path string, size int64) error {
	limit := prepareTime + time.Duration(size/slowest)*time.Second
	_, err := b.call(ctx, limit, slices.Concat(b.Send, []string{file, path}))
	return err
}

// refuse removes the directories and files of a failed broadcast.
func (b *Broadcast) refuse(ctx context.Context) error {
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
