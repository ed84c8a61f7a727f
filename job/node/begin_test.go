package node

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// TestMeasuredMoves checks that an attempt's measurements are renamed along with its record.
func TestMeasuredMoves(t *testing.T) {
	dir := t.TempDir()
	task := Schedulers(nil).Begin(dir, 3)
	write := func(text string) {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, task.Measured()), []byte(text), 0o644))
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	write("first")
	task.Write(dir)
	testenv.Check(t, task.WriteEarlier(dir))
	if got := read("task.3.0.jsonl"); got != "first" {
		t.Errorf("measurements of the first attempt: %q; want first", got)
	}
	if err := task.Last(dir); err != nil || read("task.3.jsonl") != "first" {
		t.Errorf("measurements of the last attempt: %q, %v; want first", read("task.3.jsonl"), err)
	}
	task.Write(dir)
	undo := (&job.Task{Index: 3}).Retire(dir)
	if read("task.3.0.jsonl") != "first" {
		t.Error("a rerun lost the earlier measurements")
	}
	undo()
	if read("task.3.jsonl") != "first" {
		t.Error("a rerun that was refused lost the earlier measurements")
	}
	if next := Schedulers(nil).Begin(dir, 3); next.Attempt != 1 || read(next.EarlierMeasured(0)) != "first" {
		t.Errorf("Begin after a rerun: attempt %d, earlier measurements %q; want 1, first", next.Attempt, read(next.EarlierMeasured(0)))
	}
	if list, err := job.Tasks(dir); err != nil || len(list) != 0 {
		t.Errorf("Tasks = %v, %v; want none before the attempt has a record", list, err)
	}
}
