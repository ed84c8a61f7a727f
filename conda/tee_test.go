package conda

import (
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestTee checks that the tee receives the tar of each written layer once, and that of a
// cached layer never.
func TestTee(t *testing.T) {
	pkgs := many()
	s, log := condatest.NewStore(t), &condatest.TeeLog{Tars: map[v1.Hash]string{}}
	o := Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}, Host: Host{Tee: log.Tee}}
	r, err := install(t, s, export(pkgs...), o)
	testenv.Check(t, err)
	if log.Begun != len(r.layers) || len(log.Tars) != len(r.layers) || log.Dropped != 0 {
		t.Errorf("the tee received %d layers, %d complete and %d dropped; want %d, all complete", log.Begun, len(log.Tars), log.Dropped, len(r.layers))
	}
	for _, l := range r.layers {
		id, err := l.DiffID()
		testenv.Check(t, err)
		f, err := l.Uncompressed()
		testenv.Check(t, err)
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != log.Tars[id] {
			t.Errorf("layer %s has %d bytes (%v); the tee received %d", id, len(b), err, len(log.Tars[id]))
		}
	}
	log.Begun = 0
	if _, err := install(t, s, export(pkgs...), o); err != nil || log.Begun != 1 { // conda-meta/history is always written
		t.Errorf("with all package layers cached, the tee received %d layers, error %v; want 1", log.Begun, err)
	}
}

// TestTeeFails checks that the tee of a failed layer ends with a zero diff ID.
func TestTeeFails(t *testing.T) {
	p := &testPkg{name: "a", files: []testFile{{path: "share/x", text: "x"}, {path: "share/y", text: "y", list: map[string]any{"sha256": strings.Repeat("0", 64)}}}}
	log := &condatest.TeeLog{Tars: map[v1.Hash]string{}}
	_, err := install(t, condatest.NewStore(t), export(p), Options{Request: Request{Channels: []string{newChannel(t, p)}}, Host: Host{Tee: log.Tee}})
	if err == nil || log.Begun != 1 || log.Dropped != 1 || len(log.Tars) != 0 {
		t.Errorf("the tee began %d layers, dropped %d and completed %d, error %v; want 1 dropped and an error", log.Begun, log.Dropped, len(log.Tars), err)
	}
}
