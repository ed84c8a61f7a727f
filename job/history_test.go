package job

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stayed is a stay as a few words, its times without the day.
func stayed(s Stay) string {
	end := "runs"
	if !s.End.IsZero() {
		end = s.End.Format("15:04:05")
	}
	return fmt.Sprintf("%s %s %s-%s cpus %d memory %dM gpus %d", s.ID, s.User, s.Start.Format("15:04:05"), end, s.CPUs, s.Memory>>20, s.GPUs)
}

func checkStays(t *testing.T, list []Stay, want ...string) {
	t.Helper()
	var got []string
	for _, s := range list {
		got = append(got, stayed(s))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the jobs are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSlurmStays(t *testing.T) {
	list := slurmStays(recorded(t, "slurm/sacct-a.txt"))
	for _, s := range list {
		if s.ID == "29" || s.ID == "32" || s.ID == "35" {
			t.Errorf("job %s never began and counts", s.ID)
		}
	}
	checkStays(t, list[:3],
		"30 alice 00:00:23-00:00:23 cpus 16 memory 4096M gpus 8",
		"31 alice 00:00:33-00:00:42 cpus 1 memory 256M gpus 0",
		"34 alice 00:00:46-00:00:46 cpus 1 memory 256M gpus 0")
	checkStays(t, list[len(list)-1:], "56_1 alice 00:29:17-runs cpus 1 memory 256M gpus 0")
	checkStays(t, slurmStays("9|bob|2026-11-21T00:00:00|Unknown|NODE_FAIL|cpu=1\n10|bob|Unknown|Unknown|PENDING|\n\n|||||\nx"))
}

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

func TestGridEngineStays(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	text := "# Version: 8.1.9\n" +
		accountingLine(1, noon, "0", "-l gpu=1,h_vmem=2G -pe smp 4", "NONE") +
		accountingLine(2, noon.Add(time.Hour), "3", "-u alice", "NONE") +
		accountingLine(2, noon.Add(time.Hour), "3", "-u alice", "1.n2") + // a part of it
		accountingLine(3, time.Unix(0, 0), "0", "", "NONE") + // it never began
		"half a li"
	list, _, _, err := gridEngineStays(strings.NewReader(text), int64(len(text)), noon)
	if err != nil {
		t.Fatal(err)
	}
	checkStays(t, list,
		"1 alice 12:00:00-12:10:00 cpus 4 memory 8192M gpus 4",
		"2.3 alice 13:00:00-13:10:00 cpus 4 memory 0M gpus 0")
}

// TestGridEngineTail reads no more than the end of a long accounting, and all of that.
func TestGridEngineTail(t *testing.T) {
	begin := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	const jobs = 30000
	var text bytes.Buffer
	for i := range jobs {
		text.WriteString(accountingLine(i, begin.Add(time.Duration(i)*time.Hour), "0", "-u alice", "NONE"))
	}
	r := &countingReader{Reader: bytes.NewReader(text.Bytes())}
	list, _, _, err := gridEngineStays(r, int64(text.Len()), begin.Add((jobs-5000)*time.Hour))
	if err != nil || len(list) != 5000 {
		t.Errorf("%d jobs, %v; want the 5000 that ended since", len(list), err)
	}
	if r.read > int64(text.Len())*3/4 {
		t.Errorf("read %d of %d bytes", r.read, text.Len())
	}
}

// TestGridEngineGap reads on behind a long run of lines that do not count.
func TestGridEngineGap(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	first := accountingLine(1, noon, "0", "", "NONE")
	text := first + strings.Repeat(accountingLine(2, time.Unix(0, 0), "0", "", "NONE"), 3*tailPiece/len(first))
	list, whole, _, err := gridEngineStays(strings.NewReader(text), int64(len(text)), noon)
	if err != nil || len(list) != 1 || !whole {
		t.Errorf("%d jobs, whole: %v, %v; want the one before all those that never ran", len(list), whole, err)
	}
	text = first + strings.Repeat("x", 3*tailPiece)
	if _, whole, _, err := gridEngineStays(strings.NewReader(text), int64(len(text)), noon); err != nil || whole {
		t.Errorf("an accounting with a line that is too long is whole: %v, %v", whole, err)
	}
}

// TestGridEngineBegins: an accounting that was begun anew tells nothing of the time before it, which is not idle.
func TestGridEngineBegins(t *testing.T) {
	root := t.TempDir()
	t.Setenv("SGE_ROOT", root)
	t.Setenv("SGE_CELL", "c")
	if err := os.MkdirAll(filepath.Join(root, "c", "common"), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	old, late, later := accountingLine(1, now.AddDate(0, 0, -30), "0", "", "NONE"), accountingLine(2, now.Add(-2*time.Hour), "0", "", "NONE"), accountingLine(3, now.Add(-time.Hour), "0", "", "NONE")
	for _, test := range []struct {
		text   string
		begins time.Time
		note   string
	}{
		{old + late, time.Time{}, ""},
		{late + later, now.Add(-2 * time.Hour), "begins on " + now.Add(-110*time.Minute).Format("2006-01-02 15:04")},
		{"# Version: 8.1.9\n", time.Time{}, "has no job"},
	} {
		if err := os.WriteFile(filepath.Join(root, "c", "common", "accounting"), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := gridEngine{}.history(t.Context(), now.AddDate(0, 0, -7))
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(h.notes, "\n")
		if !h.begins.Equal(test.begins) || !strings.Contains(notes, test.note) || (test.note == "" && strings.Contains(notes, "begins")) {
			t.Errorf("%q begins %v and says %q; want %v and %q", test.text, h.begins, notes, test.begins, test.note)
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

func TestPBSStays(t *testing.T) {
	list, err := pbsStays(strings.NewReader(recorded(t, "pbs/qstat-fxt.json")), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var some []Stay
	for _, s := range list {
		if strings.Contains(s.ID, "[]") {
			t.Errorf("array %s counts as a whole and by its tasks", s.ID)
		}
		if s.ID == "0.h" || s.ID == "1[1].h" {
			some = append(some, s)
		}
	}
	checkStays(t, some,
		"0.h alice 00:23:38-00:23:39 cpus 4 memory 200M gpus 2",
		"1[1].h alice 00:23:38-00:23:39 cpus 1 memory 0M gpus 0")
	if list, err := pbsStays(strings.NewReader("no json"), time.Time{}); err == nil {
		t.Errorf("text that is no JSON gives %v", list)
	}
}

// The form of "bacct -l" is that of IBM's manual, and of the older LSF that names no years.
const bacctText = `
Accounting information about jobs that are:
  - submitted by all users.
------------------------------------------------------------------------------

Job <17>, User <alice>, Project <default>, Status <DONE>, Queue <normal>, Comma
                     nd <sleep 30>
Sat Nov 21 00:24:40 2026: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:24:47 2026: Dispatched 6 Task(s) on Host(s) <4*n1> <2*n2>, Alloca
                     ted 8 Slot(s) on Host(s) <4*n1> <4*n2>, Effective RES_REQ
                     <select[type == local] order[r15s:pg] >;
Sat Nov 21 00:25:17 2026: Completed <done>.

Accounting information about this job:
     CPU_T     WAIT     TURNAROUND   STATUS     HOG_FACTOR    MEM    SWAP
      0.19        7             37     done         0.0012     4M     5M
------------------------------------------------------------------------------

Job <18[2]>, User <bob>, Project <default>, Status <EXIT>, Queue <normal>, Command <x>
Sat Nov 21 00:26:00: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:26:10: Dispatched to <n1>;
Sat Nov 21 00:27:10: Exited with exit code 4.
------------------------------------------------------------------------------

Job <19>, User <bob>, Project <default>, Status <EXIT>, Queue <normal>, Command <x>
Sat Nov 21 00:28:00: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:29:00: Exited; TERM_OWNER: job killed by owner.
`

func TestLSFStays(t *testing.T) {
	checkStays(t, lsfStays(bacctText, time.Date(2026, 11, 22, 0, 0, 0, 0, time.Local)),
		"17 alice 00:24:47-00:25:17 cpus 8 memory 0M gpus 0",
		"18[2] bob 00:26:10-00:27:10 cpus 1 memory 0M gpus 0")
	at, _, ok := lsfEvent("Thu Dec 31 23:00:00: Dispatched to <n1>;", time.Date(2026, 1, 2, 0, 0, 0, 0, time.Local))
	if !ok || at.Year() != 2025 {
		t.Errorf("December, seen in January 2026, is %v", at)
	}
}

// TestLevels holds the levels to a sum of what each job had, second by second.
func TestLevels(t *testing.T) {
	from := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		u := &Utilisation{From: from, To: from.Add(time.Duration(1000+r.IntN(5000)) * time.Second), Step: time.Duration(7+r.IntN(900)) * time.Second}
		var stays []Stay
		seconds := make([]float64, int(u.To.Sub(from).Seconds()))
		for range 30 {
			a, b := r.IntN(9000)-2000, r.IntN(9000)-2000
			s := Stay{ID: fmt.Sprint(a), Start: from.Add(time.Duration(a) * time.Second), End: from.Add(time.Duration(b) * time.Second), CPUs: 1 + r.IntN(8)}
			if r.IntN(9) == 0 {
				s.End = time.Time{}
				b = len(seconds)
			}
			for i := max(a, 0); i < min(b, len(seconds)); i++ {
				seconds[i] += float64(s.CPUs)
			}
			stays = append(stays, s)
		}
		u.fill(stays)
		mean := 0.0
		for i, l := range u.Levels {
			want, n := 0.0, 0.0
			for k := int(l.From.Sub(from).Seconds()); k < int(u.until(i).Sub(from).Seconds()); k++ {
				want, n = want+seconds[k], n+1
			}
			if math.Abs(l.CPUs-want/n) > 1e-6 {
				t.Fatalf("level %d of %d has %g processors; want %g", i, len(u.Levels), l.CPUs, want/n)
			}
			mean += want
		}
		if mean /= float64(len(seconds)); math.Abs(u.Mean.CPUs-mean) > 1e-6 {
			t.Errorf("on average %g processors; want %g", u.Mean.CPUs, mean)
		}
	}
}

func TestHidden(t *testing.T) {
	u := &Utilisation{Now: Amounts{CPUs: 100}, Accounted: Amounts{CPUs: 95}}
	if u.Hidden() != "" {
		t.Errorf("95 of 100: %s", u.Hidden())
	}
	u.Accounted.CPUs = 8
	if want := "of 100 processors that are given out now it knows the jobs of 8: others' are hidden from you, and the figures are too low"; u.Hidden() != want {
		t.Errorf("8 of 100: %q; want %q", u.Hidden(), want)
	}
}

func TestHoles(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 30, 0, 0, time.Local)
	c := slurmAt(t)
	c.nodes[1].holds = append(c.nodes[1].holds, hold{from: now.Add(90 * time.Minute), whole: true, by: "job 99"})
	c.nodes[0].holds = append(c.nodes[0].holds, hold{from: now.Add(89 * time.Second), whole: true, by: "job 98"})
	for i := range c.nodes {
		c.nodes[i].settle(now)
	}
	var got []string
	for _, h := range holes(c, now) {
		got = append(got, strings.Join(h.Nodes, ",")+" "+h.Flags(now)+" "+h.For)
	}
	want := []string{
		"n4 --cpus 4 --mem 4096M --gpus 4 --time 24h ",
		"n3 --cpus 3 --mem 3840M --gpus 2 --time 24h ",
		"n2 --cpus 4 --mem 4096M --time 1h29m job 99",
	} // of n1 there is less than a minute
	if !slices.Equal(got, want) {
		t.Errorf("holes:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestHoleWithoutMemory: none of it is no room, but where the scheduler did not tell.
func TestHoleWithoutMemory(t *testing.T) {
	of := func(nodes []Node) string {
		c := &cluster{nodes: nodes}
		for i := range nodes {
			nodes[i].settle(time.Now())
		}
		var names []string
		for _, h := range holes(c, time.Now()) {
			names = append(names, h.Nodes...)
		}
		return strings.Join(names, " ")
	}
	if got := of([]Node{{Name: "full", CPUs: 4, FreeCPUs: 2, Memory: 1 << 30, FreeMemory: step - 1}, {Name: "some", CPUs: 4, FreeCPUs: 2, Memory: 1 << 30, FreeMemory: step}, {Name: "unknown", CPUs: 4, FreeCPUs: 2}}); got != "some unknown" {
		t.Errorf("room on %s; want some and unknown", got)
	}
	nodes := lsfHosts("HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\na ok - 4 2 2 0 0 0\nb ok - 4 2 2 0 0 0\n")
	at := nodeIndex(nodes)
	lsfStatic(at, "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\na X86_64 Intel 60.0 16 64G 4G Yes (mg)\nb X86_64 Intel 60.0 16 64G 4G Yes (mg)\n")
	if got := of(nodes); got != "a b" {
		t.Errorf("of LSF whose lsload does not answer there is room on %q; want a and b", got)
	}
	lsfLoad(at, "HOST_NAME status r15s mem\na ok 0.1 0M\nb ok 0.1 8G\n")
	if got := of(nodes); got != "b" {
		t.Errorf("of LSF there is room on %q; want b", got)
	}
}

func TestWaste(t *testing.T) {
	u := &Use{CPUs: 4, GPUs: 2, Nodes: 2, Wall: 3 * time.Hour, CPUTime: 2 * time.Hour, Memory: 8 << 30, PeakMemory: 2 << 30}
	if w, want := u.Waste(), (Waste{AskedCPU: 12, WastedCPU: 10, AskedMemory: 48, WastedMemory: 36, MemoryKnown: true, AskedGPU: 6}); w != want {
		t.Errorf("Waste = %+v; want %+v", w, want)
	}
	u.PeakMemory = 0
	if w := u.Waste(); w.MemoryKnown || w.WastedMemory != 0 {
		t.Errorf("without a peak Waste = %+v", w)
	}
}

// TestLostWaste: how long a lost task ran, and what one used that runs, nobody knows.
func TestLostWaste(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	began := now.AddDate(-1, 0, 0)
	st := &Status{Submission: &Submission{Job: &Job{CPUs: 8}}, Tasks: []Task{{Start: began}}, Total: 1, Lost: 1}
	if u := st.use(nil, now); u.Wall != 0 || u.Waste().AskedCPU != 0 || !u.Ended.Equal(began) {
		t.Errorf("a lost job had %s and ended at %s", u.Wall, u.Ended)
	}
	st.Tasks[0].Start = now.Add(-time.Hour)
	st.Lost, st.Running = 0, 1
	u := st.use(nil, now)
	if w := u.Waste(); !u.CPUUnknown || w.AskedCPU != 8 || w.WastedCPU != 0 || !u.Ended.IsZero() {
		t.Errorf("a job that runs wasted %+v", w)
	}
	st.Native = "7"
	u = st.use(map[string]usage{"7": {cpu: time.Hour}}, now)
	if w := u.Waste(); u.CPUUnknown || w.WastedCPU != 7 {
		t.Errorf("a job that runs and whose scheduler counts wasted %+v", w)
	}
}

func FuzzHistories(f *testing.F) {
	f.Add(bacctText)
	f.Add("30|alice|2026-11-21T00:00:23|2026-11-21T00:00:23|COMPLETED|billing=16,cpu=16,gres/gpu=8,mem=4G,node=4\n")
	f.Add(accountingLine(1, time.Unix(1700000000, 0), "1", "-l gpu=1", "NONE"))
	f.Add(`{"Jobs":{"1.h":{"stime":"Sat Nov 21 00:23:38 2026","job_state":"F","resources_used":{"walltime":"00:00:01"},"exec_vnode":"(n1:ncpus=1)"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		all := slurmStays(text)
		all = append(all, lsfStays(text, time.Now())...)
		ge, _, _, err := gridEngineStays(strings.NewReader(text), int64(len(text)), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		pbs, _ := pbsStays(strings.NewReader(text), time.Time{})
		u := &Utilisation{From: time.Unix(1700000000, 0), To: time.Unix(1800000000, 0)}
		u.Step = stepOf(u.To.Sub(u.From))
		u.fill(slices.Concat(all, ge, pbs))
		for _, l := range u.Levels {
			if !(l.CPUs >= 0 && l.Memory >= 0 && l.GPUs >= 0) {
				t.Errorf("a level of %+v", l)
			}
		}
	})
}

// TestTimeFormat: the form of times that a user prefers is not that which hpcc reads.
func TestTimeFormat(t *testing.T) {
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	out, err := call(t.Context(), "/", "sh", "-c", "echo $SLURM_TIME_FORMAT")
	if err != nil || string(out) != "standard\n" {
		t.Errorf("a command is told the format %q, %v", out, err)
	}
}
