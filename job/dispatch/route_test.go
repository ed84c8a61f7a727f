package dispatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

// TestWays: what is tried, in which order, and with which words.
func TestWays(t *testing.T) {
	t.Setenv("SLURMD_NODENAME", "login")
	for _, tt := range []struct {
		target    job.Target
		host, via string
		terminal  bool
		want      string // ways with their words, or the error
	}{
		{"slurm", "login", "", false, "direct: hpcc relay"},
		{"slurm", "n1", "", false, "slurm: srun --jobid=17 --overlap --quiet --nodes=1 --ntasks=1 --nodelist=n1 --unbuffered hpcc relay | ssh: ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- n1 'exec hpcc relay'"},
		{"slurm", "n1", "", true, "slurm: srun --jobid=17 --overlap --quiet --nodes=1 --ntasks=1 --nodelist=n1 --pty hpcc relay | ssh: ssh -t -o BatchMode=yes -o ConnectTimeout=10 -- n1 'exec hpcc relay'"},
		{"gridengine", "n1", "", false, "ssh: ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- n1 'exec hpcc relay' | gridengine: qrsh -now no -pty no -N hpcc-exec -q '*@n1' 'exec hpcc relay'"},
		{"gridengine", "login", "gridengine", true, "gridengine: qrsh -now no -pty yes -N hpcc-exec -q '*@login' 'exec hpcc relay'"},
		{"lsf", "n1", "", false, "ssh: ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- n1 'exec hpcc relay' | lsf: env BSUB_QUIET=y LSF_INTERACTIVE_STDERR=y bsub -I -J hpcc-exec -m n1 'exec hpcc relay'"},
		{"pbs", "n1", "", false, "ssh: ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- n1 'exec hpcc relay'"},
		{job.Local, "other", "", false, "ssh: ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- other 'exec hpcc relay'"},
		{"slurm", "n1", "direct", false, `no route "direct" to n1, where task 3 runs; known routes: slurm, ssh`},
		{"pbs", "n1", "pbs", false, `no route "pbs" to n1, where task 3 runs; known routes: ssh`},
	} {
		s := &Submission{Cluster: Cluster{Target: tt.target}}
		ways, err := s.ways(&job.Task{Index: 3, Native: "17", Host: tt.host}, tt.via, tt.terminal)
		var got []string
		for _, w := range ways {
			got = append(got, w.name+": "+text.CommandLine(w.command([]string{"hpcc", "relay"})))
		}
		text := strings.Join(got, " | ")
		if err != nil {
			text = err.Error()
		}
		if text != tt.want {
			t.Errorf("%s on %s, via %q: %s; want %s", tt.target, tt.host, tt.via, text, tt.want)
		}
	}
}

func TestOutsideJob(t *testing.T) {
	got := outsideJob([]string{"PATH=/bin", "SLURM_JOB_ID=3", "SLURM_CONF=/c", "SRUN_DEBUG=3", "SLURM_CLUSTERS=a", "SLURM_NTASKS=9"})
	if want := []string{"PATH=/bin", "SLURM_CONF=/c", "SLURM_CLUSTERS=a"}; !slices.Equal(got, want) {
		t.Errorf("outsideJob = %q; want %q", got, want)
	}
}

// TestRunning: which task is meant, whether it runs, and what is said where it does not.
func TestRunning(t *testing.T) {
	now := time.Now()
	begun := func(k int) job.Task { return job.Task{Index: k, Start: now, Host: "n1"} }
	over := func(k, exit int, signal string) job.Task {
		return job.Task{Index: k, Start: now, End: now, Exit: exit, Signal: signal}
	}
	three, err := job.ParseArray("1-3")
	testenv.Check(t, err)
	for _, tt := range []struct {
		what    string
		total   int
		tasks   []job.Task
		answer  job.Answer
		index   int
		want    int    // index of the task; -1: none yet
		refused string // or a part of the error
	}{
		{"the only one", 1, []job.Task{begun(0)}, job.Silent, 0, 0, ""},
		{"not begun", 1, nil, job.Silent, 0, -1, ""},
		{"ended", 1, []job.Task{over(0, 3, "")}, job.Silent, 0, 0, "task 0 of job j ended at"},
		{"killed", 1, []job.Task{over(0, -1, "SIGKILL")}, job.Silent, 0, 0, "SIGKILL"},
		{"lost", 1, []job.Task{begun(0)}, job.Listed, 0, 0, "lost: it started on n1"},
		{"lost before it began", 1, nil, job.Listed, 0, 0, "job j has ended: lost"},
		{"one of three runs", 3, []job.Task{over(1, 0, ""), begun(2)}, job.Silent, AnyTask, 2, ""},
		{"two of three run", 3, []job.Task{begun(1), begun(3)}, job.Silent, AnyTask, 0, "2 tasks of job j are running; name one, such as j.1"},
		{"named, and the other waits", 3, []job.Task{begun(1)}, job.Silent, 2, -1, ""},
		{"none of three yet", 3, nil, job.Silent, AnyTask, -1, ""},
		{"all ended", 3, []job.Task{over(1, 0, ""), over(2, 0, ""), over(3, 1, "")}, job.Silent, AnyTask, 0, "job j has ended: failed"},
	} {
		s := &Status{Submission: &Submission{ID: "j", Job: &job.Job{}}, Tasks: tt.tasks, answer: tt.answer}
		if tt.total == 3 {
			s.Job.Array = three
		}
		s.judge(now)
		got, err := s.running(tt.index)
		switch {
		case tt.refused != "":
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v; want %q", tt.what, err, tt.refused)
			}
		case err != nil || (got == nil) != (tt.want < 0) || (got != nil && got.Index != tt.want):
			t.Errorf("%s: %+v, %v; want %d", tt.what, got, err, tt.want)
		}
	}
}

// TestFindTask: a job's name may have dots, and so may the name of a task of it.
func TestFindTask(t *testing.T) {
	dir := t.TempDir()
	three, err := job.ParseArray("1-3")
	testenv.Check(t, err)
	for _, id := range []string{"v1.2-261121-120000", "plain-261121-120000"} {
		s := &Submission{ID: id, Native: "17", Job: &job.Job{Array: three}}
		testenv.Check(t, os.Mkdir(filepath.Join(dir, id), 0o755))
		if id[0] == 'p' {
			s.Native = "18"
		}
		testenv.Check(t, s.write(filepath.Join(dir, id)))
	}
	for _, tt := range []struct {
		name, id string
		index    int
	}{
		{"v1.2-261121-120000", "v1.2-261121-120000", AnyTask},
		{"v1.2", "v1.2-261121-120000", AnyTask},
		{"v1.2.3", "v1.2-261121-120000", 3},
		{"plain.1", "plain-261121-120000", 1},
		{"18.2", "plain-261121-120000", 2},
		{"plain.4", "", 0},
		{"plain.x", "", 0},
		{"none.1", "", 0},
		{"", "", 0},
	} {
		s, k, err := FindTask(dir, tt.name)
		if (err != nil) != (tt.id == "") || (err == nil && (s.ID != tt.id || k != tt.index)) {
			t.Errorf("FindTask(%q) = %v %d %v; want %s %d", tt.name, s, k, err, tt.id, tt.index)
		}
	}
}

// TestRunningWaits checks that the reason for waiting is reported once, and that the user can end it.
func TestRunningWaits(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Native: "elsewhere/1/1", Cluster: Cluster{Target: job.Local}, Job: &job.Job{}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	reported := ""
	_, err := s.RunningTask(ctx, dir, AnyTask, func(w string) { reported += w })
	if !errors.Is(err, context.DeadlineExceeded) || reported != "job j has not started; waiting" {
		t.Errorf("%v, reported %q", err, reported)
	}
}
