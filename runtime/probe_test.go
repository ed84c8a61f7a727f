package runtime

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// A check that hangs, as a system call on a dead mount does, is told of, and
// keeps no other.
func TestProbeHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	fs := Probe(ctx, []Check{
		{"dead", true, func(context.Context) Feature { select {} }},
		{"alive", false, func(context.Context) Feature { return Feature{State: OK, Why: "it is"} }},
	})
	if d := time.Since(begun); d > checkTime {
		t.Errorf("Probe took %v", d)
	}
	if f := fs[0]; f.Name != "dead" || !f.Vital || f.State != No || !strings.Contains(f.Why, "no answer") {
		t.Errorf("the check that hangs gives %+v", f)
	}
	if f := fs[1]; f != (Feature{Name: "alive", State: OK, Why: "it is"}) {
		t.Errorf("the other gives %+v", f)
	}
}

// On every host each check has an answer with a reason, and leaves nothing.
func TestChecks(t *testing.T) {
	dir := t.TempDir()
	for _, f := range Probe(context.Background(), Checks(dir+"/not/there")) {
		if f.Name == "" || f.Why == "" || (f.State != OK && f.State != Limited && f.State != No) || (f.State == OK && f.Ask != "") {
			t.Errorf("Probe says %+v", f)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the checks leave %v (%v)", left, err)
	}
}
