package store

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"hpcc/web"
)

// push sends an image or an index. A broken upload starts again; the library's own retries
// would neither end with ctx nor honour Retry-After.
func (c *call) push(ctx context.Context, what remote.Taggable) error {
	c.doing = "push"
	pusher, err := remote.NewPusher(c.options(ctx)...)
	if err != nil {
		return err
	}
	blobs, err := blobsOf(what)
	if err != nil {
		return err
	}
	t := &transferred{progress: c.Progress}
	for _, b := range blobs {
		size, err := b.Size()
		if err != nil {
			return err
		}
		t.total += size
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, b := range blobs {
		g.Go(func() error { return c.upload(gctx, pusher, b, t) })
	}
	if err := g.Wait(); err != nil {
		return c.worded(ctx, err)
	}
	return pusher.Push(ctx, c.ref, what) // remembers which blobs it has sent
}

// worded returns the registry's words instead of the error of a HEAD request, whose answer has
// none.
func (c *call) worded(ctx context.Context, err error) error {
	var te, asked *transport.Error
	bare := errors.As(err, &te) && te.Request != nil && te.Request.Method == http.MethodHead
	if bare && errors.As(c.mayPush(ctx), &asked) {
		return asked
	}
	return err
}

// upload sends one blob unless the registry has it.
func (c *call) upload(ctx context.Context, pusher *remote.Pusher, b v1.Layer, t *transferred) error {
	size, err := b.Size()
	if err != nil {
		return err
	}
	return web.Retry(ctx, c.ref.Context().RegistryStr(), func(ctx context.Context) error {
		counted := &countedLayer{Layer: b, t: t}
		if err := pusher.Upload(ctx, c.ref.Context(), counted); err != nil {
			counted.end(0)
			return err
		}
		counted.end(size)
		return nil
	})
}

// blobsOf returns the layers and configurations of an image, or of all images of
// an index, each once.
func blobsOf(what any) ([]v1.Layer, error) {
	var out []v1.Layer
	seen := map[v1.Hash]bool{}
	var walk func(what any) error
	walk = func(what any) error {
		switch w := what.(type) {
		case v1.Image:
			layers, err := w.Layers()
			if err != nil {
				return err
			}
			config, err := partial.ConfigLayer(w)
			if err != nil {
				return err
			}
			for _, l := range append(layers, config) {
				if err := walk(l); err != nil {
					return err
				}
			}
		case v1.ImageIndex:
			children, err := partial.Manifests(w)
			if err != nil {
				return err
			}
			for _, child := range children {
				if err := walk(child); err != nil {
					return err
				}
			}
		case v1.Layer:
			h, err := w.Digest()
			if err != nil {
				return err
			}
			if !seen[h] {
				seen[h] = true
				out = append(out, w)
			}
		}
		return nil
	}
	return out, walk(what)
}

// A countedLayer counts the bytes that are read from it for sending.
type countedLayer struct {
	v1.Layer
	t *transferred

	mu    sync.Mutex
	sent  int64
	ended bool // a transport may go on reading after it has reported an error
}

// Compressed implements [v1.Layer].
func (l *countedLayer) Compressed() (io.ReadCloser, error) {
	r, err := l.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	return readCloser{io.TeeReader(r, l), r}, nil
}

// Write counts bytes read for sending.
func (l *countedLayer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.sent += int64(len(p))
		l.t.add(int64(len(p)))
	}
	return len(p), nil
}

// end ends the counting, with n bytes counted in total.
func (l *countedLayer) end(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.t.add(n - l.sent)
}
