package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseGrowth(t *testing.T) {
	for _, c := range []struct {
		memory, time string
		want         string // both growths, or a part of the error
	}{
		{"", "", "{0 0} {0 0}"},
		{"x2", "×1.5", "{2 0} {1.5 0}"},
		{"×2,64G", "x3,24h", "{2 68719476736} {3 86400000000000}"},
		{"2", "", `--retry-mem: "2": not a factor with an optional maximum (for example x2,64G)`},
		{"x", "", "not a factor"},
		{"x2e1", "", "not a factor"},
		{"x-2", "", "not a factor"},
		{"xNaN", "", "not a factor"},
		{"x1", "", "the factor is not between 1.1 and 100"},
		{"x101", "", "the factor is not between"},
		{"x2,64", "", "--retry-mem: "},
		{"x2,", "", "--retry-mem: "},
		{"", "x2,8", "--retry-time: "},
		{"", "+2", `--retry-time: "+2": not a factor with an optional maximum (for example x2,24h)`},
	} {
		var r Retry
		err := r.ParseGrowth(c.memory, c.time)
		got := fmt.Sprint(r.Memory, r.Time)
		if err != nil {
			got = err.Error()
		}
		if (err == nil && got != c.want) || (err != nil && !strings.Contains(got, c.want)) {
			t.Errorf("ParseGrowth(%q, %q) = %s; want %s", c.memory, c.time, got, c.want)
		}
	}
}

func TestGrowthNext(t *testing.T) {
	for _, c := range []struct {
		g                       growth
		first, last, unit, want int64
	}{
		{growth{}, 10, 10, 1, 10},
		{growth{Factor: 2}, 10, 10, 1, 20},
		{growth{Factor: 2}, 10, 70, 1, 80},
		{growth{Factor: 2}, 10, 80, 1, 80},             // eight times the first request
		{growth{Factor: 2}, 10, 200, 1, 200},           // a rerun requested more
		{growth{Factor: 2, Max: 30}, 10, 20, 1, 30},    // up to the maximum
		{growth{Factor: 1.5, Max: 100}, 10, 13, 8, 24}, // rounded up to the unit
		{growth{Factor: 100}, 1 << 62, 1 << 62, 1, 1 << 62},
		{growth{Factor: 2}, 0, 0, 1, 0},
	} {
		if got := c.g.next(c.first, c.last, c.unit); got != c.want {
			t.Errorf("%+v: next(%d, %d, %d) = %d; want %d", c.g, c.first, c.last, c.unit, got, c.want)
		}
	}
}

// TestGrow checks which endings lead to a larger request.
func TestGrow(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ended := func(after time.Duration, exit int, signal, problem string, rss int64) *Task {
		return &Task{Start: start, End: start.Add(after), Exit: exit, Signal: signal, Problem: problem, Usage: json.RawMessage(fmt.Sprintf(`{"max_rss_bytes":%d}`, rss))}
	}
	oom := func(t *Task) *Task { t.OOMKills = 1; return t }
	const memory, limit = int64(1 << 30), time.Hour
	j := &Job{Memory: memory, Time: limit}
	j.Retry = Retry{Memory: growth{Factor: 2}, Time: growth{Factor: 3}}
	for _, c := range []struct {
		what string
		task *Task
		want string
	}{
		{"success", ended(limit, 0, "", "", memory), ""},
		{"success in spite of a killed child", oom(ended(0, 0, "", "", 0)), ""},
		{"no end", &Task{Start: start}, ""},
		{"failure", ended(0, 1, "", "", memory), ""},
		{"killed with little memory", ended(0, -1, "SIGKILL", "", memory/2), ""},
		{"killed with all memory", ended(0, -1, "SIGKILL", "", memory*98/100), "memory"},
		{"a shell whose program was killed", ended(0, 137, "", "", memory), "memory"},
		{"a child killed by the kernel", oom(ended(0, 1, "", "", 0)), "memory"},
		{"cancelled after a child was killed", oom(ended(0, -1, "SIGTERM", "", 0)), ""},
		{"cancelled with all memory", ended(0, -1, "SIGTERM", "", memory), ""},
		{"ended by hpcc at the limit", ended(0, -1, "SIGTERM", "ended after its time limit of 1h0m0s", 0), "time"},
		{"ended by the scheduler at the limit", ended(limit*98/100, -1, "SIGTERM", "", 0), "time"},
		{"cancelled before the limit", ended(limit/2, -1, "SIGTERM", "", 0), ""},
		{"did not run", ended(0, 125, "", "opening the output file: no space", 0), ""},
	} {
		last := Request{Memory: memory, Time: limit}
		next, grows := j.Grow(c.task, last)
		got := ""
		if next.Memory == 2*memory && next.Time == limit {
			got = "memory"
		}
		if next.Time == 3*limit && next.Memory == memory {
			got = "time"
		}
		if got != c.want || grows != (c.want != "") {
			t.Errorf("%s: %+v, %v; want more %q", c.what, next, grows, c.want)
		}
	}
	if next, grows := j.Grow(ended(0, 137, "", "", 8*memory), Request{Memory: 8 * memory}); grows {
		t.Errorf("at the maximum: %+v", next)
	}
}

func TestResize(t *testing.T) {
	j := &Job{Memory: 1 << 30, Time: time.Hour, TimeMin: time.Minute}
	j.Resize(Request{Memory: 2 << 30})
	if j.Memory != 2<<30 || j.Time != time.Hour || j.TimeMin != time.Minute {
		t.Errorf("only memory: %+v", j)
	}
	j.Resize(Request{Memory: 2 << 30, Time: 2 * time.Hour})
	if j.Time != 2*time.Hour || j.TimeMin != 0 {
		t.Errorf("only time: %+v", j)
	}
	j = &Job{CPUs: 4}
	j.MemoryPerCPU = 1 << 30
	j.Resize(Request{Memory: 8 << 30})
	if j.Memory != 0 || j.MemoryPerCPU != 2<<30 || j.MemoryPerNode() != 8<<30 {
		t.Errorf("memory per CPU: %+v", j)
	}
}

func TestCheckGrowth(t *testing.T) {
	for _, c := range []struct {
		memory, time string
		change       func(*Job)
		want         string
	}{
		{"x2", "", func(*Job) {}, "--retry-mem needs a first request: add --mem, for example --mem 4G"},
		{"", "x2", func(*Job) {}, "--retry-time needs a first request: add --time, for example --time 2h"},
		{"x2", "", func(j *Job) { j.Memory = 1 << 30 }, ""},
		{"x2", "", func(j *Job) { j.MemoryPerCPU = 1 << 30 }, ""},
		{"x2,1G", "", func(j *Job) { j.Memory = 1 << 30 }, "--retry-mem: the maximum is not above the first request, 1G"},
		{"", "x2,1h", func(j *Job) { j.Time = 2 * time.Hour }, "--retry-time: the maximum is not above the first request, 2h"},
		{"", "x2", func(j *Job) { j.Time, j.Interactive = time.Hour, true }, "cannot be used with an interactive job"},
	} {
		j := &Job{}
		c.change(j)
		if err := j.Retry.ParseGrowth(c.memory, c.time); err != nil {
			t.Fatal(err)
		}
		if err := j.CheckGrowth(); (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: %v; want %q", c.memory, c.time, err, c.want)
		}
	}
}
