package store

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// TestPushTells: all progress is reported when Push returns, and none afterwards.
func TestPushTells(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx := open(t), web.With(context.Background(), web.Limits{Backoff: time.Millisecond})
	img, err := random.Image(1<<20, 3)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "x", img)
	testenv.Check(t, err)
	var done, total int64 // not guarded: called by one goroutine, before the return
	o := Remote{Progress: func(d, n int64) { done, total = d, n }}
	_, err = s.Push(ctx, "x", strings.TrimPrefix(server.URL, "http://")+"/x", o)
	testenv.Check(t, err)
	if done != total || total < 3<<20 {
		t.Errorf("%d of %d bytes are reported", done, total)
	}
	server.Close()
	if _, err := s.Push(ctx, "x", strings.TrimPrefix(server.URL, "http://")+"/x", o); err == nil {
		t.Error("Push to nobody: no error")
	}
}

// Blobs that a registry has are not sent again.
func TestPushCounts(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx, ref := open(t), context.Background(), strings.TrimPrefix(server.URL, "http://")+"/x"
	const layer = 1 << 20
	img, err := random.Image(layer, 3)
	testenv.Check(t, err)
	more, err := random.Layer(layer/4, types.OCILayer)
	testenv.Check(t, err)
	second, err := mutate.AppendLayers(img, more)
	testenv.Check(t, err)
	const slack = layer / 100 // heads of archives, manifest, configuration
	for i, c := range []struct {
		img              v1.Image
		least, most, all int64
	}{
		{img, 3 * layer, 3*layer + slack, 3 * layer}, {img, 0, slack, 3 * layer},
		{second, layer / 4, layer/4 + slack, 3*layer + layer/4},
	} {
		_, err := s.Put(ctx, "x", c.img)
		testenv.Check(t, err)
		p, err := s.Push(ctx, "x", ref, Remote{})
		testenv.Check(t, err)
		if p.Sent < c.least || p.Sent > c.most || p.Size < c.all || p.Size > c.all+slack {
			t.Errorf("push %d: sent %d of %d bytes; want %d to %d of about %d", i, p.Sent, p.Size, c.least, c.most, c.all)
		}
	}
}
