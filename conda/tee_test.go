package conda

import (
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Each layer that is made is told with its tar, once, and those that are found are not.
func TestTee(t *testing.T) {
	pkgs := many()
	s, log := newStore(t), &teeLog{tars: map[v1.Hash]string{}}
	o := Options{Channels: []string{newChannel(t, pkgs...)}, Tee: log.tee}
	r, err := install(t, s, export(pkgs...), o)
	if err != nil {
		t.Fatal(err)
	}
	if log.begun != len(r.layers) || len(log.tars) != len(r.layers) || log.none != 0 {
		t.Errorf("told of %d layers, %d with an end, %d of nothing; there are %d", log.begun, len(log.tars), log.none, len(r.layers))
	}
	for _, l := range r.layers {
		id, err := l.DiffID()
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != log.tars[id] {
			t.Errorf("layer %s has %d bytes (%v), told were %d", id, len(b), err, len(log.tars[id]))
		}
	}
	log.begun = 0
	if _, err := install(t, s, export(pkgs...), o); err != nil || log.begun != 1 { // the history
		t.Errorf("of layers that are there %d were told, %v; want one", log.begun, err)
	}
}

// A layer that fails has an end too, and no name.
func TestTeeFails(t *testing.T) {
	p := &testPkg{name: "a", files: []testFile{{path: "share/x", text: "x"}, {path: "share/y", text: "y", list: map[string]any{"sha256": strings.Repeat("0", 64)}}}}
	log := &teeLog{tars: map[v1.Hash]string{}}
	_, err := install(t, newStore(t), export(p), Options{Channels: []string{newChannel(t, p)}, Tee: log.tee})
	if err == nil || log.begun != 1 || log.none != 1 || len(log.tars) != 0 {
		t.Errorf("begun %d, of nothing %d, whole %d, error %v; want one of nothing", log.begun, log.none, len(log.tars), err)
	}
}
