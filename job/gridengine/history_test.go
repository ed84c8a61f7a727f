package gridengine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/jobtest"
	"hpcc/testdata/testenv"
)

// accountingLine is a line of accounting(5), of a job that ran for ten minutes.
func accountingLine(number int, start time.Time, task, category, slave string) string {
	f := make([]string, 45)
	for i := range f {
		f[i] = "0"
	}
	f[0], f[1], f[geOwner], f[geNumber], f[geTask] = "all.q", "n1", "alice", fmt.Sprint(number), task
	f[geStart], f[geEnd] = fmt.Sprint(start.Unix()), fmt.Sprint(start.Add(10*time.Minute).Unix())
	f[geSlots], f[geCategory], f[geSlave] = "4", category, slave
	return strings.Join(f, ":") + "\n"
}

func TestGridEngineAllocations(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	text := "# Version: 8.1.9\n" +
		accountingLine(1, noon, "0", "-l gpu=1,h_vmem=2G -pe smp 4", "NONE") +
		accountingLine(2, noon.Add(time.Hour), "3", "-u alice", "NONE") +
		accountingLine(2, noon.Add(time.Hour), "3", "-u alice", "1.n2") + // its part on another host
		accountingLine(3, time.Unix(0, 0), "0", "", "NONE") + // it never started
		"half a li"
	list, _, _, err := allocations(strings.NewReader(text), int64(len(text)), noon)
	testenv.Check(t, err)
	jobtest.CheckAllocations(t, list,
		"1 alice 12:00:00-12:10:00 cpus 4 memory 8192M gpus 4",
		"2.3 alice 13:00:00-13:10:00 cpus 4 memory 0M gpus 0")
}

// TestGridEngineTail checks that hpcc reads only the necessary end of a long accounting file.
func TestGridEngineTail(t *testing.T) {
	begin := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	const jobs = 30000
	var text bytes.Buffer
	for i := range jobs {
		text.WriteString(accountingLine(i, begin.Add(time.Duration(i)*time.Hour), "0", "-u alice", "NONE"))
	}
	r := &countingReader{Reader: bytes.NewReader(text.Bytes())}
	list, _, _, err := allocations(r, int64(text.Len()), begin.Add((jobs-5000)*time.Hour))
	if err != nil || len(list) != 5000 {
		t.Errorf("%d jobs, %v; want the 5000 that ended since then", len(list), err)
	}
	if r.read > int64(text.Len())*3/4 {
		t.Errorf("read %d of %d bytes; want at most three quarters", r.read, text.Len())
	}
}

// TestGridEngineGap checks that a long run of lines of jobs that never ran does not end the search.
func TestGridEngineGap(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	first := accountingLine(1, noon, "0", "", "NONE")
	text := first + strings.Repeat(accountingLine(2, time.Unix(0, 0), "0", "", "NONE"), 3*tailPiece/len(first))
	list, complete, _, err := allocations(strings.NewReader(text), int64(len(text)), noon)
	if err != nil || len(list) != 1 || !complete {
		t.Errorf("%d jobs, complete: %v, %v; want the one job before those that never ran", len(list), complete, err)
	}
	text = first + strings.Repeat("x", 3*tailPiece)
	if _, complete, _, err := allocations(strings.NewReader(text), int64(len(text)), noon); err != nil || complete {
		t.Errorf("an accounting with a line that is too long: complete: %v, %v; want false", complete, err)
	}
}

// TestGridEngineBegins checks that the time before the start of a rotated accounting file is unknown, not idle.
func TestGridEngineBegins(t *testing.T) {
	root := t.TempDir()
	t.Setenv("SGE_ROOT", root)
	t.Setenv("SGE_CELL", "c")
	testenv.Check(t, os.MkdirAll(filepath.Join(root, "c", "common"), 0o700))
	now := time.Now().Truncate(time.Second)
	old, late, later := accountingLine(1, now.AddDate(0, 0, -30), "0", "", "NONE"), accountingLine(2, now.Add(-2*time.Hour), "0", "", "NONE"), accountingLine(3, now.Add(-time.Hour), "0", "", "NONE")
	for _, test := range []struct {
		text   string
		begins time.Time
		note   string
	}{
		{old + late, time.Time{}, ""},
		{late + later, now.Add(-2 * time.Hour), "starts on " + now.Add(-110*time.Minute).Format("2006-01-02 15:04")},
		{"# Version: 8.1.9\n", time.Time{}, "has no jobs"},
	} {
		testenv.Check(t, os.WriteFile(filepath.Join(root, "c", "common", "accounting"), []byte(test.text), 0o600))
		h, err := System{}.History(t.Context(), now.AddDate(0, 0, -7))
		testenv.Check(t, err)
		notes := strings.Join(h.Notes, "\n")
		if !h.Begins.Equal(test.begins) || !strings.Contains(notes, test.note) || (test.note == "" && strings.Contains(notes, "starts on")) {
			t.Errorf("%q begins %v with notes %q; want %v and %q", test.text, h.Begins, notes, test.begins, test.note)
		}
	}
}

type countingReader struct {
	*bytes.Reader
	read int64
}

func (r *countingReader) ReadAt(b []byte, off int64) (int, error) {
	r.read += int64(len(b))
	return r.Reader.ReadAt(b, off)
}

func FuzzGridEngineAllocations(f *testing.F) {
	f.Add(accountingLine(1, time.Unix(1700000000, 0), "1", "-l gpu=1", "NONE"))
	f.Fuzz(func(t *testing.T, text string) {
		list, _, _, err := allocations(strings.NewReader(text), int64(len(text)), time.Time{})
		testenv.Check(t, err)
		for _, s := range list {
			if s.Start.IsZero() || s.CPUs < 0 || s.Memory < 0 || s.GPUs < 0 {
				t.Errorf("a job has %+v", s)
			}
		}
	})
}
