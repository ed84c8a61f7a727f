package dispatch

import (
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
)

// TestLostUse checks that the run time of a lost task and the usage of a running one count
// as unknown.
func TestLostUse(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	began := now.AddDate(-1, 0, 0)
	st := &Status{Submission: &Submission{Job: &job.Job{CPUs: 8}}, Tasks: []job.Task{{Start: began}}, Counts: job.Counts{Total: 1, Lost: 1}}
	if u := st.use(nil, now); u.Wall != 0 || !u.Ended.Equal(began) {
		t.Errorf("lost job: wall %s, ended at %s; want 0s and %s", u.Wall, u.Ended, began)
	}
	st.Tasks[0].Start = now.Add(-time.Hour)
	st.Lost, st.Running = 0, 1
	u := st.use(nil, now)
	if !u.CPUUnknown || u.Wall != time.Hour || u.CPUTime != 0 || !u.Ended.IsZero() {
		t.Errorf("use of a running job = %+v", u)
	}
	st.Native = "7"
	u = st.use(map[string]capacity.Usage{"7": {CPU: time.Hour}}, now)
	if u.CPUUnknown || u.CPUTime != time.Hour {
		t.Errorf("use of a running job with the scheduler's figures = %+v", u)
	}
}

// TestContendedUse recognises tasks that shared their processors, and jobs without a success.
func TestContendedUse(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		usage             string
		done              int
		contended, failed bool
	}{
		{`{"user_s":10,"system_s":0,"involuntary_switches":100}`, 1, false, false},
		{`{"user_s":10,"system_s":0,"involuntary_switches":9000}`, 1, true, false},
		{`{"user_s":10,"system_s":0,"involuntary_switches":100}`, 0, false, true},
	} {
		task := job.Task{Start: now.Add(-time.Hour), End: now, Usage: []byte(c.usage)}
		st := &Status{Submission: &Submission{Job: &job.Job{CPUs: 8}}, Tasks: []job.Task{task}, Counts: job.Counts{Total: 1, Done: c.done}}
		if u := st.use(nil, now); u.Contended != c.contended || u.Failed != c.failed {
			t.Errorf("%s, %d done: contended %v, failed %v", c.usage, c.done, u.Contended, u.Failed)
		}
	}
}
