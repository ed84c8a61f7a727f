package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// packedTask returns the record of a packed task that took a while.
func packedTask(index, attempt, exit int) *Task {
	start := time.UnixMicro(1795723469222463 + int64(index))
	t := &Task{Index: index, Attempt: attempt, Start: start, End: start.Add(20 * time.Millisecond), Exit: exit}
	t.SetPart(3, int64(10*index), 7)
	return t
}

// writePacked writes the records of a worker.
func writePacked(t *testing.T, dir, run string, rank int, lines ...string) {
	t.Helper()
	file, _ := (&Task{}).PackedFile(dir, run, rank)
	header := (&Task{Host: "n1", Native: "7"}).PackedHeader([]string{"--sweep=x=1..100"})
	testenv.Check(t, os.WriteFile(file, []byte("\n"+string(header)+strings.Join(lines, "")), 0o600))
}

func packedLineOf(t *Task) string {
	return string(t.AppendPacked(nil, 1500*time.Microsecond, 2*time.Millisecond, 4096))
}

// TestPacked checks which record of a packed task counts, what damages cost, and what a survey keeps.
func TestPacked(t *testing.T) {
	dir := t.TempDir()
	problem := packedTask(5, 0, 125)
	problem.Problem = "starting \"x\": no such file"
	signal := packedTask(6, 0, -1)
	signal.Signal = "SIGKILL"
	running := packedTask(7, 0, 0)
	running.End = time.Time{}
	damaged := packedLineOf(packedTask(8, 0, 0))
	writePacked(t, dir, "aa", 0, packedLineOf(packedTask(1, 0, 0)), packedLineOf(packedTask(2, 0, 3)), packedLineOf(packedTask(2, 1, 0)), packedLineOf(packedTask(3, 0, 3)),
		strings.Replace(damaged, "20000", "20001", 1), "\n", packedLineOf(packedTask(9, 0, 0))[:40]+"\n", packedLineOf(problem), packedLineOf(signal), packedLineOf(running))
	writePacked(t, dir, "bb", 1, packedLineOf(packedTask(3, 2, 4)), packedLineOf(packedTask(1, 2, 9)), packedLineOf(packedTask(10, 0, 0))+"11 0 cut off")
	var r Records
	testenv.Check(t, r.Read(dir, true))
	got := ""
	for _, task := range r.Last {
		got += fmt.Sprintf("%d/%d:%d ", task.Index, task.Attempt, task.Exit)
	}
	if want := "1/0:0 2/1:0 3/2:4 5/0:125 6/0:-1 7/0:0 10/0:0 "; got != want || len(r.Earlier) != 3 || r.Runs != 2 || len(r.Bad) != 2 || !strings.Contains(r.Bad[0].Error(), "packed.aa.0:7") {
		t.Errorf("records %s, %d earlier, %d runs, %v; want %s", got, len(r.Earlier), r.Runs, r.Bad, want)
	}
	one := r.Last[0]
	if one.Host != "n1" || one.Native != "7" || !one.OK() || one.End.Sub(one.Start) != 20*time.Millisecond || one.Part.From != 10 || one.Part.Size != 7 ||
		one.Output != filepath.Join(dir, "output.aa.0.3") || one.Params["x"] != "1" || string(one.Usage) != `{"user_s":0.0015,"system_s":0.002,"max_rss_bytes":4096}` {
		t.Errorf("record of task 1: %+v", one)
	}
	if r.Last[3].Problem != problem.Problem || r.Last[4].Signal != "SIGKILL" || r.Last[5].Ended() {
		t.Errorf("records %+v", r.Last[3:6])
	}
	testenv.Check(t, r.Survey(dir))
	if s := r.Succeeded; s.Count != 3 || !s.Has(1) || !s.Has(2) || !s.Has(10) || s.Has(3) || s.Has(100) || s.Has(-1) || len(r.Last) != 4 || s.Start.IsZero() || s.End.IsZero() || s.Wall != 60*time.Millisecond || s.CPU != 10500*time.Microsecond || s.Peak != 4096 {
		t.Errorf("survey %+v, %+v", s, r.Last)
	}
	testenv.Check(t, r.Select(dir, []int{2, 3}))
	if len(r.Last) != 2 || !r.Last[0].OK() || r.Last[1].Index != 3 {
		t.Errorf("selection %+v", r.Last)
	}
}

// FuzzPacked parses arbitrary lines, and checks that accepted ones are written the same way.
func FuzzPacked(f *testing.F) {
	f.Add(packedLineOf(packedTask(1, 0, 0)))
	problem := packedTask(5, 1, 125)
	problem.Problem, problem.Signal = "a \"b\"\nc", "SIGTERM"
	f.Add(packedLineOf(problem))
	f.Add("1 2 3 4 5 - 6 7 8 9 10 11 00000000\n")
	f.Fuzz(func(t *testing.T, line string) {
		var l packedLine
		if l.parse([]byte(strings.TrimSuffix(line, "\n"))) != nil {
			return
		}
		task := l.task(&packedHeader{}, &Params{}, "out.")
		if !task.Ended() || strings.ContainsAny(task.Signal, "\n") {
			return
		}
		again := task.AppendPacked(nil, time.Duration(l.user)*time.Microsecond, time.Duration(l.system)*time.Microsecond, l.rss)
		var second packedLine
		if err := second.parse(again[:len(again)-1]); err != nil || second.index != l.index || second.took != l.took || second.exit != l.exit {
			t.Errorf("%q becomes %q: %v", line, again, err)
		}
	})
}
