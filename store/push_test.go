package store

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// TestPushTells: all is told when Push returns, and nothing after it.
func TestPushTells(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx := open(t), context.Background()
	img, err := random.Image(1<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "x", img); err != nil {
		t.Fatal(err)
	}
	var done, total int64 // not guarded: told by one goroutine, before the return
	o := Remote{Progress: func(d, n int64) { done, total = d, n }}
	if _, err := s.Push(ctx, "x", strings.TrimPrefix(server.URL, "http://")+"/x", o); err != nil {
		t.Fatal(err)
	}
	if done != total || total < 3<<20 {
		t.Errorf("%d of %d bytes are told", done, total)
	}
	server.Close()
	if _, err := s.Push(ctx, "x", strings.TrimPrefix(server.URL, "http://")+"/x", o); err == nil {
		t.Error("Push to nobody: no error")
	}
}
