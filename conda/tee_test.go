package conda

import (
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/testdata/condatest"
	"hpcc/testdata/testenv"
)

// TestTee passes the tar of each written layer to the tee once, and cached layers never.
func TestTee(t *testing.T) {
	pkgs := many()
	s, log := condatest.NewStore(t), &condatest.TeeLog{Tars: map[v1.Hash]string{}}
	o := Options{Channels: []string{newChannel(t, pkgs...)}, Tee: log.Tee}
	r, err := install(t, s, export(pkgs...), o)
	testenv.Check(t, err)
	if log.Begun != len(r.layers) || len(log.Tars) != len(r.layers) || log.None != 0 {
		t.Errorf("the tee got %d layers, %d complete, %d without a name; want %d complete", log.Begun, len(log.Tars), log.None, len(r.layers))
	}
	for _, l := range r.layers {
		id, err := l.DiffID()
		testenv.Check(t, err)
		f, err := l.Uncompressed()
		testenv.Check(t, err)
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != log.Tars[id] {
			t.Errorf("layer %s has %d bytes (%v), the tee got %d", id, len(b), err, len(log.Tars[id]))
		}
	}
	log.Begun = 0
	if _, err := install(t, s, export(pkgs...), o); err != nil || log.Begun != 1 { // the history
		t.Errorf("the tee got %d layers although all but one are cached, %v; want one", log.Begun, err)
	}
}

// TestTeeFails ends the tee of a failed layer without a name.
func TestTeeFails(t *testing.T) {
	p := &testPkg{name: "a", files: []testFile{{path: "share/x", text: "x"}, {path: "share/y", text: "y", list: map[string]any{"sha256": strings.Repeat("0", 64)}}}}
	log := &condatest.TeeLog{Tars: map[v1.Hash]string{}}
	_, err := install(t, condatest.NewStore(t), export(p), Options{Channels: []string{newChannel(t, p)}, Tee: log.Tee})
	if err == nil || log.Begun != 1 || log.None != 1 || len(log.Tars) != 0 {
		t.Errorf("begun %d, without a name %d, complete %d, error %v; want one without a name", log.Begun, log.None, len(log.Tars), err)
	}
}
