package metrics

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"hpcc/testdata/testenv"
)

// TestBrink: no samples while the fullest cgroup has no memory left, but not forever.
func TestBrink(t *testing.T) {
	for version, names := range map[int][2]string{1: {"memory.limit_in_bytes", "memory.usage_in_bytes"}, 2: {"memory.max", "memory.current"}} {
		top := t.TempDir()
		own := filepath.Join(top, "job", "task")
		testenv.Check(t, os.MkdirAll(own, 0o755))
		put := func(dir, name, text string) {
			testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644))
		}
		put(own, names[0], strconv.Itoa(8<<30))
		put(own, names[1], "0")
		put(filepath.Dir(own), names[0], strconv.Itoa(1<<30))
		put(filepath.Dir(own), names[1], strconv.Itoa(1<<30-8192))
		var b brink
		b.watch(&cgroups{memory: controller{dir: own, top: top, version: version}})
		for i := range maxHeld {
			if !b.near() {
				t.Fatalf("version %d: look %d at a full cgroup was not put off", version, i)
			}
		}
		if b.near() {
			t.Errorf("version %d: %d looks in a row were put off", version, maxHeld+1)
		}
		if !b.near() {
			t.Errorf("version %d: the cgroup is still full", version)
		}
		put(filepath.Dir(own), names[1], strconv.Itoa(1<<30-2*brinkWidth))
		if b.near() {
			t.Errorf("version %d: there is room again", version)
		}
		b.end()
	}
	var none brink
	none.watch(&cgroups{})
	if none.near() {
		t.Error("without a limit")
	}
	none.end()
}
