package job

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hpcc/files"
	"hpcc/testdata/helpers/testenv"
)

// TestOddRecords checks that a pipe, a device and an oversized file are not read as records.
func TestOddRecords(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, syscall.Mkfifo(filepath.Join(dir, "task.1.json"), 0o600))
	testenv.Check(t, os.Symlink("/dev/zero", filepath.Join(dir, "task.2.json")))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "task.3.json"), make([]byte, files.MaxSize+1), 0o600))
	var r Records
	err := r.Read(dir, false)
	if err != nil || len(r.Last) != 0 || len(r.Bad) != 3 {
		t.Fatalf("records %+v, %v; want three errors and no records", r, err)
	}
	for k, want := range []string{"not a regular file", "not a regular file", "has more than 1048576 bytes"} {
		if !strings.Contains(r.Bad[k].Error(), want) {
			t.Errorf("error %d: %v; want %q", k, r.Bad[k], want)
		}
	}
}

// TestAttempts checks that Records has the last and the earlier records of each task, reports damaged
// records, and ignores other files.
func TestAttempts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"task.10.json": `{"task":10}`, "task.2.json": `{"task":2,"attempt":1}`, "task.2.0.json": `{"task":2}`, "task.3.json": `{`, "task.2.jsonl": `x`, "task.x.json": `x`, "task.2.x.json": `x`, "other.json": `x`} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	var r Records
	err := r.Read(dir, true)
	if err != nil || len(r.Last) != 2 || r.Last[0].Index != 2 || r.Last[1].Index != 10 || len(r.Earlier) != 1 || r.Earlier[0].Attempt != 0 || len(r.Bad) != 1 || !strings.Contains(r.Bad[0].Error(), "task.3.json") {
		t.Errorf("records %+v, %v; want the last records of tasks 2 and 10, and an error for task 3", r, err)
	}
	if err := r.Read(dir, false); err != nil || len(r.Earlier) > 0 {
		t.Errorf("records %+v, %v; want no earlier attempts", r, err)
	}
	if _, err := Tasks(dir); err == nil || !strings.Contains(err.Error(), "task.3.json") {
		t.Errorf("Tasks with a damaged record: %v; want an error that names it", err)
	}
	if list, err := Tasks(filepath.Join(dir, "none")); err != nil || len(list) > 0 {
		t.Errorf("Tasks of a missing directory: %v, %v", list, err)
	}
	for name, want := range map[string][2]int{"task.3": {3, -1}, "task.3.0": {3, 0}, "task.0": {0, -1}} {
		if k, n, ok := TaskOf(name); !ok || [2]int{k, n} != want {
			t.Errorf("TaskOf(%q) = %d, %d, %v; want %v", name, k, n, ok, want)
		}
	}
	for _, name := range []string{"", "task", "task.", "task.x", "task.3.", "task.3.x", "task.3.-1", "task.3.0.0", "run"} {
		if k, n, ok := TaskOf(name); ok {
			t.Errorf("TaskOf(%q) = %d, %d; want none", name, k, n)
		}
	}
}
