package dispatch

import (
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// TestTimeMin checks the directives for the time that a scheduler may cut the limit to.
func TestTimeMin(t *testing.T) {
	j := &job.Job{Name: "a", Image: "sci", Dir: "/w", Program: "/bin/hpcc", Store: "/s", Args: []string{"x"}, Time: 2 * time.Hour, TimeMin: 30 * time.Minute}
	for to, want := range map[job.Target]string{"slurm": "#SBATCH --time=2:00:00\n|#SBATCH --time-min=0:30:00\n", "pbs": "#PBS -l min_walltime=0:30:00,max_walltime=2:00:45\n"} {
		script, _, err := Render(j, to)
		testenv.Check(t, err)
		for line := range strings.SplitSeq(want, "|") {
			if !strings.Contains(script, line) {
				t.Errorf("%s: no line %q in\n%s", to, line, script)
			}
		}
		if strings.Contains(script, "-l walltime") {
			t.Errorf("%s: a fixed limit next to a flexible one:\n%s", to, script)
		}
	}
}

// TestBend checks what each scheduler may change, and what the user is informed of.
func TestBend(t *testing.T) {
	for _, x := range []struct {
		to      job.Target
		least   time.Duration
		timeMin time.Duration
		notice  string
	}{
		{"slurm", time.Hour, time.Hour, "may cut the limit down to 1h"}, {"pbs", time.Hour, time.Hour, "may cut the limit down to 1h"},
		{"lsf", time.Hour, 0, "does not cut limits itself"}, {"gridengine", time.Hour, 0, "does not cut limits itself"}, {"slurm", 2 * time.Hour, 0, "requeued"},
	} {
		j := &job.Job{Time: 2 * time.Hour}
		cuts := descriptionOf(x.to).CutsTime
		changes := strings.Join(bend(j, cuts, x.least), "; ")
		if j.TimeMin != x.timeMin || j.Requeue != "yes" || !strings.Contains(changes, x.notice) {
			t.Errorf("%s: at least %v, requeue %q, said %q", x.to, j.TimeMin, j.Requeue, changes)
		}
	}
}
