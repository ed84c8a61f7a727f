package store

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/helpers/testenv"
)

// TestPushed: a name's digest in a registry is known while the name refers to the pushed
// image, and GC removes no more than it should.
func TestPushed(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx, host := open(t), context.Background(), strings.TrimPrefix(server.URL, "http://")
	put := func(n string) v1.Hash {
		t.Helper()
		img, err := random.Image(1000, 1)
		testenv.Check(t, err)
		d, err := s.Put(ctx, n, img)
		testenv.Check(t, err)
		return d
	}
	want := func(n, ref string) {
		t.Helper()
		if got, err := s.Pushed(n); err != nil || got != ref {
			t.Errorf("Pushed(%q) = %q, %v; want %q", n, got, err, ref)
		}
	}
	notPushed := func(n, last string) {
		t.Helper()
		var no *NotPushedError
		if _, err := s.Pushed(n); !errors.As(err, &no) || no.Name != n || no.Last != last {
			t.Errorf("Pushed(%q): %v; want that the last push was %q", n, err, last)
		}
	}
	collect := func() {
		t.Helper()
		_, err := s.GC(ctx, GCOptions{Age: -1})
		testenv.Check(t, err)
	}
	push := func(n, to string) string {
		t.Helper()
		p, err := s.Push(ctx, n, host+"/"+to, Remote{})
		testenv.Check(t, err)
		if p.NotNoted != nil {
			t.Errorf("Push(%q): %v", n, p.NotNoted)
		}
		return p.Reference
	}

	var missing *NotFoundError
	if _, err := s.Pushed("base"); !errors.As(err, &missing) {
		t.Errorf("Pushed of a name that there is not: %v", err)
	}
	first := put("base")
	notPushed("base", "")
	ref := push("base", "team/base:1")
	if ref != host+"/team/base@"+first.String() {
		t.Errorf("pushed as %q", ref)
	}
	want("docker.io/library/base:latest", ref)
	want(first.String(), ref)
	collect()
	want("base", ref)

	// The same image under another name, which is pushed elsewhere later.
	img, err := s.Get("base", nil)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "other:2", img)
	testenv.Check(t, err)
	want("other:2", ref)
	elsewhere := push("other:2", "elsewhere")
	want("other:2", elsewhere)
	want("base", ref)

	// Another image under the name: the earlier push does not apply.
	put("base")
	notPushed("base", ref)
	collect()
	notPushed("base", ref)
	again := push("base", "team/base:2")
	want("base", again)

	// rm removes the record of that name only.
	testenv.Check(t, s.Remove("base"))
	_, err = s.Put(ctx, "base", img)
	testenv.Check(t, err)
	want("base", elsewhere)

	// Pushed by digest: a record without a name, which lives as long as the image.
	last := put("base")
	byDigest := push(last.String(), "bare")
	collect()
	want("base", byDigest)
	testenv.Check(t, errors.Join(s.Remove("base"), s.Remove("other:2")))
	collect()
	if left, err := os.ReadDir(s.path("pushed")); err != nil || len(left) != 0 {
		t.Errorf("gc left notes of images that are gone: %v, %v", left, err)
	}
}

// TestPushedIndex: for several platforms, the index is recorded.
func TestPushedIndex(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx := open(t), context.Background()
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	d, err := s.PutIndex(ctx, "multi", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}))
	testenv.Check(t, err)
	host := strings.TrimPrefix(server.URL, "http://")
	_, err = s.Push(ctx, "multi", host+"/multi", Remote{})
	testenv.Check(t, err)
	if ref, err := s.Pushed("multi"); err != nil || ref != host+"/multi@"+d.String() {
		t.Errorf("Pushed = %q, %v", ref, err)
	}
}

// TestPushedBroken: a damaged record is an error with its file. A read-only store does not
// make the push fail.
func TestPushedBroken(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	s, ctx := open(t), context.Background()
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "x", img)
	testenv.Check(t, err)
	other, err := random.Image(100, 1)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "other", other)
	testenv.Check(t, err)
	to := strings.TrimPrefix(server.URL, "http://") + "/x"
	if err := os.WriteFile(s.path("pushed"), nil, 0o644); err != nil { // no directory
		t.Fatal(err)
	}
	if p, err := s.Push(ctx, "x", to, Remote{}); err != nil || p.NotNoted == nil {
		t.Errorf("Push where nothing can be noted: %v, %v", p, err)
	}
	testenv.Check(t, os.Remove(s.path("pushed")))
	_, err = s.Push(ctx, "x", to, Remote{})
	testenv.Check(t, err)
	for _, damage := range []string{"", "{", `{"digest":"sha256:00","reference":"a"}`, `{"digest":"sha256:` + strings.Repeat("0", 64) + `","reference":"a@sha256:1"}`} {
		testenv.Check(t, os.WriteFile(s.path("pushed/x"), []byte(damage), 0o644))
		if ref, err := s.Pushed("x"); err == nil || !strings.Contains(err.Error(), s.path("pushed/x")) {
			t.Errorf("note %q: %q, %v", damage, ref, err)
		}
		if ref, err := s.Pushed("other"); !errors.As(err, new(*NotPushedError)) {
			t.Errorf("note %q of another image: %q, %v", damage, ref, err)
		}
	}
}

// TestByDigestIn: clusters use one name for Docker Hub.
func TestByDigestIn(t *testing.T) {
	d := v1.Hash{Algorithm: "sha256", Hex: "ab"}
	for in, want := range map[string]string{
		"debian": "docker.io/library/debian@sha256:ab", "registry.example:5000/a/b:1": "registry.example:5000/a/b@sha256:ab",
	} {
		r, err := name.ParseReference(in)
		testenv.Check(t, err)
		if got := byDigestIn(r.Context(), d); got != want {
			t.Errorf("byDigestIn(%q) = %q; want %q", in, got, want)
		}
	}
}
