package job

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/job/quantity"
)

// TestFits counts on four nodes of four processors and 4G, of which n3 and n4 have two
// GPUs, at noon. n1 is full until 13:00, n2 half so until 14:00, n4 is kept for a job
// that waits from 12:30 to 15:00, and all from 20:00 on for maintenance.
func TestFits(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	at := func(hours float64) time.Time { return noon.Add(time.Duration(hours * float64(time.Hour))) }
	c := &cluster{queue: "cpu", limits: map[string]time.Duration{"cpu": 24 * time.Hour}}
	for i := range 4 {
		n := Node{Name: fmt.Sprintf("n%d", i+1), CPUs: 4, FreeCPUs: 4, Memory: 4 << 30, FreeMemory: 4 << 30, Queues: []string{"cpu"}}
		if i > 1 {
			n.GPUs, n.FreeGPUs, n.GPUType = 2, 2, "a100"
		}
		c.nodes = append(c.nodes, n)
	}
	c.nodes = append(c.nodes, Node{Name: "n5", CPUs: 4, Memory: 4 << 30, FreeCPUs: 4, FreeMemory: 4 << 30, State: Off})
	c.nodes[0].FreeCPUs, c.nodes[0].holds = 0, []hold{{from: at(-1), to: at(1), cpus: 4}}
	c.nodes[1].FreeCPUs, c.nodes[1].FreeMemory, c.nodes[1].holds = 2, 2<<30, []hold{{from: at(-1), to: at(2), cpus: 2, memory: 2 << 30}}
	c.nodes[3].holds = []hold{{from: at(0.5), to: at(3), whole: true, by: "job 9"}}
	for i := range c.nodes {
		c.nodes[i].holds = append(c.nodes[i].holds, hold{from: at(8), to: at(10), whole: true, by: "reservation maint"})
		c.nodes[i].settle(noon)
	}
	for _, x := range []struct {
		name string
		job  Job
		want string // when, start, nodes, why, instead
	}{
		{"one", Job{Time: time.Hour}, "now 00:00 n2"},
		{"a node's processors", Job{CPUs: 4, Time: time.Hour}, "now 00:00 n3"},
		{"beside what runs", Job{CPUs: 2, Memory: 2 << 30, Time: time.Hour}, "now 00:00 n2"},
		{"a short hole", Job{Nodes: 2, CPUs: 4, Time: 30 * time.Minute}, "now 00:00 n3,n4"},
		{"longer than the hole", Job{Nodes: 2, CPUs: 4, Time: time.Hour}, `later 13:00 n1,n3 what is free is taken at 12:30:00, by job 9, and 1h are asked for | --time 30m, --nodes 1`},
		{"before maintenance", Job{CPUs: 4, Time: 9 * time.Hour}, "later 22:00 n1 what is free is taken at 20:00:00, by reservation maint, and 9h are asked for | --time 8h"},
		{"all nodes", Job{Nodes: 4, CPUs: 4, Time: time.Hour}, "later 15:00 n1,n2,n3,n4 now there is room for 1 of 4 nodes with 4 processors | --nodes 1"},
		{"GPUs of two nodes", Job{Nodes: 2, GPUs: 2, Time: 2 * time.Hour}, "later 15:00 n3,n4 what is free is taken at 12:30:00, by job 9, and 2h are asked for | --time 30m, --nodes 1"},
		{"processes anywhere", Job{Tasks: 7, Time: time.Hour}, "later 13:00 n1,n2,n3 what is free is taken at 12:30:00, by job 9, and 1h are asked for | --time 30m, --tasks 6"},
		{"alone on a node", Job{Exclusive: true, Time: 7 * time.Hour}, "now 00:00 n3"},
		{"its hosts", Job{Time: time.Hour, Wishes: Wishes{Hosts: []string{"n1"}}}, "later 13:00 n1 now there is room for 0 of 1 processes with a processor |"},
		{"more memory", Job{Memory: 64 << 30}, "never no node has 64G of memory: the largest, n1, has 4G of memory"},
		{"more GPUs", Job{GPUs: 8}, "never no node has 8 GPUs: the largest, n3, has 2 GPUs"},
		{"GPUs of another kind", Job{GPUs: 1, Wishes: Wishes{GPUType: "h100"}}, "never no node has GPUs of kind h100"},
		{"more nodes", Job{Nodes: 9}, "never 9 nodes are asked for, and there are 5"},
		{"more nodes with GPUs", Job{Nodes: 3, GPUs: 1}, "never 3 nodes with 1 GPUs are asked for, and 2 have that"},
		{"more processes", Job{Tasks: 99}, "never 99 processes with a processor each are asked for, and all nodes together have room for 20"},
		{"longer than the queue lets", Job{Time: 25 * time.Hour}, "never jobs of queue cpu end after 24h at most, and 25h are asked for"},
	} {
		f := needs(&x.job, 0, slurm{}.adjust).fit(c, "cpu", noon)
		got := string(f.When)
		if f.When != Never {
			if f.Start.IsZero() {
				got += " 00:00"
			} else {
				got += f.Start.Format(" 15:04")
			}
			got += " " + strings.Join(f.Nodes, ",")
		}
		if f.Why != "" {
			got += " " + f.Why
		}
		if f.When == Later {
			got += strings.TrimRight(" | "+strings.Join(f.Instead, ", "), " ")
		}
		if got != x.want {
			t.Errorf("%s:\ngot  %s\nwant %s", x.name, got, x.want)
		}
		for _, flag := range f.Instead { // what is advised would start now
			j := x.job
			kind, value, _ := strings.Cut(flag, " ")
			switch kind {
			case "--time":
				j.Time, _ = quantity.ParseTime(value)
			case "--nodes":
				fmt.Sscan(value, &j.Nodes)
			case "--tasks":
				fmt.Sscan(value, &j.Tasks)
			case "--cpus":
				fmt.Sscan(value, &j.CPUs)
			case "--mem":
				j.Memory, _ = quantity.ParseMemory(value)
			}
			if again := needs(&j, 0, slurm{}.adjust).fit(c, "cpu", noon); again.When != Now {
				t.Errorf("%s: with %s it starts %s, %s", x.name, flag, again.When, again.Why)
			}
		}
	}
}

// TestFitsSmaller: of a node that is partly taken, what is left is advised.
func TestFitsSmaller(t *testing.T) {
	c := &cluster{nodes: []Node{{Name: "a", CPUs: 8, FreeCPUs: 3, Memory: 8 << 30, FreeMemory: 2 << 30, holds: []hold{{cpus: 5, memory: 6 << 30}}}}}
	now := time.Now()
	c.nodes[0].settle(now)
	for _, x := range []struct {
		job  Job
		want string
	}{
		{Job{CPUs: 4}, "[--cpus 3]"}, {Job{Memory: 4 << 30}, "[--mem 2048M]"}, {Job{Exclusive: true}, "[]"},
	} {
		f := needs(&x.job, 0, nil).fit(c, "", now)
		if f.When != Later || !f.Start.IsZero() || fmt.Sprint(f.Instead) != x.want {
			t.Errorf("%+v: %s %v %v; want later, nobody knows when, %s", x.job, f.When, f.Start, f.Instead, x.want)
		}
	}
}

// TestFitsGridEngine: what a script for Grid Engine asks for in its words counts.
func TestFitsGridEngine(t *testing.T) {
	for _, c := range []struct {
		native            []string
		units, cpus, gpus int
	}{
		{[]string{"-pe smp 4", "-l gpu=2"}, 1, 4, 8}, {[]string{"-pe mpi 12"}, 12, 1, 0}, {[]string{"-l h_vmem=4G", "-pe x"}, 1, 1, 0},
	} {
		if x := needs(&Job{Native: c.native}, 0, gridEngine{}.adjust); x.units != c.units || x.cpus != c.cpus || x.gpus != c.gpus {
			t.Errorf("%q: %d of %d processors, %d GPUs; want %d of %d, %d", c.native, x.units, x.cpus, x.gpus, c.units, c.cpus, c.gpus)
		}
	}
}

// TestJudge puts what was counted and what the scheduler says together.
func TestJudge(t *testing.T) {
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	count := func(w When, at time.Time) *Fit { return &Fit{When: w, Start: at, By: byCount, Nodes: []string{"mine"}} }
	says := func(now bool, at time.Time) *estimate { return &estimate{now: now, start: at, nodes: []string{"its"}} }
	for _, x := range []struct {
		name    string
		counted *Fit
		said    *estimate
		refused string
		planned bool
		whole   bool
		want    string
	}{
		{"no dry run", count(Now, time.Time{}), nil, "", false, true, "now mine"},
		{"refused", count(Now, time.Time{}), nil, "no", false, true, "never "},
		{"both now", count(Now, time.Time{}), says(true, soon), "", false, true, "now its"},
		{"it takes what never fits", count(Never, time.Time{}), says(false, late), "", false, true, "never mine"},
		{"a hole before what waits", count(Now, time.Time{}), says(false, late), "", true, true, "now mine"},
		{"a hole, and something that is not counted", count(Now, time.Time{}), says(false, late), "", true, false, "later its"},
		{"nobody waits", count(Now, time.Time{}), says(false, late), "", false, true, "later its"},
		{"counted later than said", count(Later, late), says(false, soon), "", true, true, "later its"},
		{"not counted when", count(Later, time.Time{}), says(false, soon), "", true, true, "later its"},
		{"a dry run that tells no time", count(Later, soon), &estimate{}, "", false, true, "later mine"},
		{"a dry run that says no", count(Now, time.Time{}), &estimate{}, "", false, true, "later "},
		{"no nodes while some are drained", count(Later, late), nil, "busy", false, true, "later mine"},
		{"no nodes, ever", count(Never, time.Time{}), nil, "busy", false, true, "never "},
		{"no nodes, and something that is not counted", count(Later, late), nil, "busy", false, false, "never "},
		{"no nodes, though some are free", count(Now, time.Time{}), nil, "busy", false, true, "never "},
	} {
		var refusal error
		if x.refused != "" {
			refusal = errors.New(x.refused)
		}
		if x.refused == "busy" {
			refusal = &busyError{refusal}
		}
		f := (&need{whole: x.whole}).judge(x.counted, x.said, refusal, x.planned)
		if got := string(f.When) + " " + strings.Join(f.Nodes, ","); got != x.want {
			t.Errorf("%s: %s; want %s", x.name, got, x.want)
		}
	}
}

func TestSlurmStart(t *testing.T) {
	e := slurmStart(recorded(t, "slurm/test-only.txt"), time.Now())
	if e == nil || !e.start.Equal(slurmWhen("2026-11-21T00:41:17")) || strings.Join(e.nodes, " ") != "n1 n2 n3 n4" {
		t.Errorf("it starts %+v", e)
	}
	if !slurmStart(recorded(t, "slurm/test-only.txt"), e.start.Add(-time.Second)).now || slurmStart(recorded(t, "slurm/test-only.txt"), e.start.Add(-time.Minute)).now {
		t.Error("a start within seconds is one now, one in a minute is not")
	}
	if e := slurmStart("sbatch: warning: something", time.Now()); e != nil {
		t.Errorf("no answer is read as %+v", e)
	}
}

// TestUsed reads what schedulers counted, and compares it with what was asked for.
func TestUsed(t *testing.T) {
	m := slurmUsed(map[string]usage{}, "3_1|01:00:00|\n3_1.batch|01:00:00|2097152K\n3_2|1-00:00:01.5|\n3_2.0|1-00:00:01|5G\n4.batch|00:30|12.5M\n")
	if u := m["3"]; u.cpu != 25*time.Hour+1500*time.Millisecond || u.peak != 5<<30 {
		t.Errorf("job 3 used %+v", u)
	}
	if u := m["4"]; u.cpu != 30*time.Second || u.peak != 12<<20+512<<10 {
		t.Errorf("job 4 used %+v", u)
	}
	if u := pbsUsed([]byte(recorded(t, "pbs/qstat-fxt.json"))); len(u) == 0 || u["12.h"].peak < 0 {
		t.Errorf("jobs of PBS used %+v", u)
	}
	if u := lsfUsed("17|1.5 second(s)|12.5 Mbytes\n17|2 second(s)|1 Gbytes\n18|-|-\n"); u["17"] != (usage{3500 * time.Millisecond, 1 << 30}) || u["18"] != (usage{}) {
		t.Errorf("jobs of LSF used %+v", u)
	}
	u := &Use{CPUs: 8, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 24 * time.Hour, Memory: 64 << 30, PeakMemory: 3 << 30}
	want := "1.5 of 8 processors were busy: ask for 2\n3G of 64G of memory were used: --mem 4608M would do\nit ran for 1h of 24h: --time 2h would do, and short jobs start sooner"
	if got := strings.Join(u.Advise(), "\n"); got != want {
		t.Errorf("advice is\n%s\nwant\n%s", got, want)
	}
	large := &Use{Memory: 64 << 30, PeakMemory: 9 << 30}
	if got := strings.Join(large.Advise(), "\n"); got != "9G of 64G of memory were used: --mem 14G would do" {
		t.Errorf("advice of much memory is %q", got)
	}
	fair := &Use{CPUs: 2, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 2 * time.Hour, Memory: 4 << 30, PeakMemory: 3 << 30}
	if got := fair.Advise(); len(got) > 0 {
		t.Errorf("a fair request is advised: %q", got)
	}
}

// TestTimeMin: what a scheduler may cut the limit down to, in its words.
func TestTimeMin(t *testing.T) {
	j := &Job{Name: "a", Image: "sci", Dir: "/w", Program: "/bin/hpcc", Store: "/s", Args: []string{"x"}, Time: 2 * time.Hour, TimeMin: 30 * time.Minute}
	for to, want := range map[Target]string{Slurm: "#SBATCH --time=2:00:00\n|#SBATCH --time-min=0:30:00\n", PBS: "#PBS -l min_walltime=0:30:00,max_walltime=2:00:45\n"} {
		script, _, err := Render(j, to)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(want, "|") {
			if !strings.Contains(script, line) {
				t.Errorf("%s: no line %q in\n%s", to, line, script)
			}
		}
		if strings.Contains(script, "-l walltime") {
			t.Errorf("%s: a fixed limit beside one that may shrink:\n%s", to, script)
		}
	}
}

// TestBend: what is left to a scheduler, and what is told of one that does nothing.
func TestBend(t *testing.T) {
	for _, x := range []struct {
		to      Target
		least   time.Duration
		timeMin time.Duration
		told    string
	}{
		{Slurm, time.Hour, time.Hour, "may cut the limit down to 1h"}, {PBS, time.Hour, time.Hour, "may cut the limit down to 1h"},
		{LSF, time.Hour, 0, "cuts no limits by itself"}, {GridEngine, time.Hour, 0, "cuts no limits by itself"}, {Slurm, 2 * time.Hour, 0, "begins again"},
	} {
		j := &Job{Time: 2 * time.Hour}
		_, cuts := schedulers[x.to].(timeCutter)
		said := strings.Join(j.bend(cuts, x.least), "; ")
		if j.TimeMin != x.timeMin || j.Requeue != "yes" || !strings.Contains(said, x.told) {
			t.Errorf("%s: at least %v, requeue %q, told %q", x.to, j.TimeMin, j.Requeue, said)
		}
	}
}
