package metrics

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestMemoryGuard checks that samples are postponed while the cgroup with the smallest limit is
// nearly full, but not forever.
func TestMemoryGuard(t *testing.T) {
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
		var b memoryGuard
		b.watch(&cgroups{memory: controller{dir: own, top: top, version: version}})
		for i := range maxPostponed {
			if !b.shouldPostpone() {
				t.Fatalf("version %d: sample %d in a full cgroup was not postponed", version, i)
			}
		}
		if b.shouldPostpone() {
			t.Errorf("version %d: %d consecutive samples were postponed", version, maxPostponed+1)
		}
		if !b.shouldPostpone() {
			t.Errorf("version %d: no sample was postponed, although the cgroup is still full", version)
		}
		put(filepath.Dir(own), names[1], strconv.Itoa(1<<30-2*guardWidth))
		if b.shouldPostpone() {
			t.Errorf("version %d: a sample was postponed, although the cgroup is not full", version)
		}
		b.end()
	}
	var none memoryGuard
	none.watch(&cgroups{})
	if none.shouldPostpone() {
		t.Error("a sample was postponed, although there is no memory limit")
	}
	none.end()
}
