package store

import (
	"strings"
	"testing"

	"hpcc/store/ready"
)

// sameCanonical compares package ready with this package, and reports whether ready returned
// a name.
func sameCanonical(t *testing.T, name string) bool {
	t.Helper()
	got, ok := ready.Canonical(name)
	if want, err := Canonical(name); ok && (err != nil || got != want) {
		t.Errorf("ready.Canonical(%q) = %q; the store says %q, %v", name, got, want, err)
	}
	return ok
}

// Package ready returns the same as the store, and handles usual names.
func TestReadyCanonical(t *testing.T) {
	for n, answers := range map[string]bool{
		"a": true, "debian:12": true, "a.b-c_d:x.y": true, "2": true, "a:latest": true, "lab/a": true, "lab/a:1.0": true, "host.example:5000/lab/a": true, "ghcr.io/org/tool:V1": true, "localhost/x/y/z": true,
		"": false, "../a": false, "..": false, "a:": false, ":12": false, "A": false, "a@sha256:00": false, "a:b:c": false, "a//b": false, "/a": false, "a/": false,
		"library/a": false, "docker.io/a": false, "index.docker.io/library/a": false, "h:/a": false, "h:x/a": false, "a/b:1/c": false,
	} {
		if ok := sameCanonical(t, n); ok != answers {
			t.Errorf("ready.Canonical(%q) answers: %v; want %v", n, ok, answers)
		}
	}
}

func FuzzReadyCanonical(f *testing.F) {
	for _, n := range []string{"lab/a:1.0", "host.example:5000/lab/a", "localhost:1/x:latest"} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, name string) { sameCanonical(t, name) })
}

func TestReadyDigest(t *testing.T) {
	hex := strings.Repeat("0f", 32)
	for n, answers := range map[string]bool{
		"a@sha256:" + hex: true, "lab/a:1@sha256:" + hex: true, "sha256:" + hex: true,
		hex: false, "a@sha256:" + hex[1:]: false, "a@sha256:" + hex + "0": false, "a@sha256:" + strings.ToUpper(hex): false, "a@sha512:" + hex: false, "a": false, "": false,
	} {
		if got, ok := ready.Digest(n); ok != answers || (ok && got != hex) {
			t.Errorf("ready.Digest(%q) = %q, %v; want %v", n, got, ok, answers)
		}
	}
}
