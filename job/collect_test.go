package job

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// success returns the record of a successful task.
func success(index int, host string) *Task {
	now := time.Now()
	return &Task{Index: index, Native: "7", Host: host, Start: now, End: now}
}

// TestCollect checks that the records of many tasks, which end at the same time on several hosts, are complete and take
// few files.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	const n = 1000
	var g sync.WaitGroup
	for part := range 10 {
		g.Go(func() {
			for k := part; k < n; k += 10 {
				task := success(k, fmt.Sprintf("n%d", k%3))
				begun := *task
				begun.End = time.Time{}
				testenv.Check(t, begun.Write(dir))
				switch {
				case k == 17:
					task.Exit = 3
					testenv.Check(t, task.Write(dir))
				default:
					testenv.Check(t, task.Collect(dir))
				}
			}
		})
	}
	reading := make(chan struct{})
	go func() { // a reader meanwhile sees no damaged record and never misses a task that has begun
		defer close(reading)
		for seen := 0; seen < n; {
			list, err := Tasks(dir)
			if err != nil || len(list) < seen {
				t.Errorf("Tasks while records are collected: %d tasks, %v; want at least %d", len(list), err, seen)
				return
			}
			seen = len(list)
		}
	}()
	g.Wait()
	<-reading
	list, err := Tasks(dir)
	testenv.Check(t, err)
	for k, task := range list {
		if task.Index != k || task.OK() != (k != 17) {
			t.Fatalf("record %d: %+v", k, task)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 {
		t.Errorf("%d files, %v; want one for each host and one for the failure", len(entries), err)
	}
	one := &Task{Index: 500}
	if !one.Collected(dir) || one.Host != "n2" {
		t.Errorf("Collected: %+v; want the record of task 500", one)
	}
	if one := (&Task{Index: 17}); one.Collected(dir) {
		t.Errorf("Collected: %+v; want none of a failed task", one)
	}
}

// TestCollectCut cuts the file of collected records at any byte, as a crash does, and continues it. No complete record is
// lost, and the task whose line was cut keeps the record of its start.
func TestCollectCut(t *testing.T) {
	source := t.TempDir()
	for k := range 3 {
		testenv.Check(t, success(k, "n").Collect(source))
	}
	b, err := os.ReadFile(filepath.Join(source, collectedName("n")))
	testenv.Check(t, err)
	second := strings.Index(string(b), "\n\n") + 1
	for cut := second; cut < len(b); cut += 1 + rand.IntN(3) {
		dir := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, collectedName("n")), b[:cut], 0o644))
		testenv.Check(t, success(9, "n").Collect(dir))
		list, _ := Tasks(dir)
		if n := len(list); n < 2 || list[0].Index != 0 || list[n-1].Index != 9 {
			t.Fatalf("cut at %d of %d: %+v; want the records 0 and 9", cut, len(b), list)
		}
	}
	dir := t.TempDir()
	begun := success(1, "n")
	begun.End = time.Time{}
	testenv.Check(t, begun.Write(dir))
	line, _ := os.ReadFile(filepath.Join(source, collectedName("n")))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, collectedName("n")), line[:len(line)-9], 0o644))
	if list, err := Tasks(dir); err != nil || len(list) != 2 {
		t.Errorf("records with a line that is being written: %+v, %v; want those of tasks 0 and 1", list, err)
	}
	// Killed between the line and the removal of the task's file: the line counts.
	begun.Index = 0
	testenv.Check(t, begun.Write(dir))
	if list, err := Tasks(dir); err != nil || len(list) != 2 || !list[0].OK() {
		t.Errorf("records with both: %+v, %v; want task 0 as a success", list, err)
	}
}

// TestCollectHostile checks that a pipe, or a line of unlimited length, instead of collected records is an error in time.
func TestCollectHostile(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, collectedName("long")), make([]byte, 2*maxCollected), 0o644))
	testenv.Check(t, os.Mkdir(filepath.Join(dir, collectedName("dir")), 0o755))
	testenv.Check(t, success(3, "n").Collect(dir))
	list, err := Tasks(dir)
	if warning, other := Readable(err); warning == "" || other != nil || len(list) != 1 {
		t.Errorf("Tasks: %+v, %q, %v; want one record and a warning", list, warning, other)
	}
}

func FuzzCollected(f *testing.F) {
	dir := f.TempDir()
	testenv.Check(f, success(3, "n").Collect(dir))
	b, err := os.ReadFile(filepath.Join(dir, collectedName("n")))
	testenv.Check(f, err)
	f.Add(b)
	f.Add([]byte("\n\n{}\n{\"task\":-1}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "f")
		testenv.Check(t, os.WriteFile(file, b, 0o644))
		list, _, _ := readCollected(file)
		for i := range list {
			if !list[i].OK() {
				t.Errorf("%+v is not a success", list[i])
			}
		}
	})
}

func BenchmarkCollected(b *testing.B) {
	dir := b.TempDir()
	for k := range 100_000 {
		testenv.Check(b, success(k, "n").Collect(dir))
	}
	for b.Loop() {
		if list, err := Tasks(dir); err != nil || len(list) != 100_000 {
			b.Fatal(len(list), err)
		}
	}
}
