package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/store/ready"
)

// What package ready answers is what the store answers, and it answers the usual.
func TestReady(t *testing.T) {
	s := open(t)
	put := func(name string, tree bool) {
		t.Helper()
		img, err := random.Image(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		var d v1.Hash
		if d, err = s.Put(context.Background(), name, img); err != nil {
			t.Fatal(err)
		}
		if tree {
			if err := os.Mkdir(filepath.Join(s.dir, "trees", d.Hex), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []string{"a", "debian:12", "a.b-c_d:x.y", "host.example:5000/lab/a", "lab/a", "a:latest", "2"} {
		put(n, true)
	}
	put("flat", false)
	if err := os.WriteFile(filepath.Join(s.dir, "refs", "torn"), []byte(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":4`), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "refs", "a")); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(filepath.Join(s.dir, "refs", "torn2"), b[:len(b)-2], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "refs", "climbs"), []byte(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":4,"digest":"sha256:../../../../../../../../../../../../../../../../../../../../../etc"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for n, answers := range map[string]bool{
		"a": true, "debian:12": true, "a.b-c_d:x.y": true, "2": true,
		"flat": false, "torn": false, "torn2": false, "climbs": false, "none": false, "": false, "a:latest": false, "lab/a": false, "host.example:5000/lab/a": false,
		"../a": false, "..": false, "a:": false, ":12": false, "A": false, "a@sha256:00": false, "a:b:c": false, "version": false,
	} {
		got, ok := ready.Tree(s.dir, n)
		if ok != answers {
			t.Errorf("ready.Tree(%q) = %q, %v; want %v", n, got, ok, answers)
		}
		if want, err := s.TreeOf(n); ok && (err != nil || got != want) {
			t.Errorf("ready.Tree(%q) = %q; the store says %q, %v", n, got, want, err)
		}
	}
	// What may be a directory's name is no image's.
	for n, absent := range map[string]bool{
		"none": true, "none:1": true, "deadbeef": true, "deadbeef0000x": true,
		"a": false, "flat": false, "torn": false, "deadbeef0000": false, "a:latest": false, "none:latest": false, "lab/none": false, "": false, "None": false,
	} {
		if got := ready.Absent(s.dir, n); got != absent {
			t.Errorf("ready.Absent(%q) = %v; want %v", n, got, absent)
		}
		var missing *NotFoundError
		if _, err := s.TreeOf(n); absent && !errors.As(err, &missing) {
			t.Errorf("ready.Absent(%q), and the store says %v", n, err)
		}
	}
	if !ready.Absent(filepath.Join(s.dir, "nostore"), "none") || ready.Absent(filepath.Join(s.dir, "refs"), "none") {
		t.Error("a directory that is there counts as no store, or one that is not as a store")
	}
	if err := os.WriteFile(filepath.Join(s.dir, "version"), []byte("2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok := ready.Tree(s.dir, "a"); ok {
		t.Error("a store of another version is read")
	}
	if ready.Absent(s.dir, "none") {
		t.Error("a store of another version has no images")
	}
}
