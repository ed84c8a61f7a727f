package dispatch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/jobscript"
	"hpcc/job/node"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// A toy is a batch system with one queue in memory. It shows what a new one needs: the six
// methods of batch.System, optional interfaces, and a line in the registry.
type toy struct {
	queue map[string]*batch.Request
	ended map[string]bool
}

const toyTarget job.Target = "toy"

func (*toy) Detect(context.Context) bool { return false }

// Describe makes its scripts readable and its tasks detectable.
func (*toy) Describe() *batch.Description {
	return &batch.Description{
		Dialect: &dialect.Dialect{
			Target: toyTarget, Title: "the toy", Prefix: "#TOY", Command: "toy",
			Options:   dialect.Options{Values: map[string]dialect.Setter{"-n": dialect.Set(field.Name)}, Flags: map[string]dialect.Setter{"-play": nil}},
			Launchers: map[string]dialect.Launcher{"toyrun": {}},
			Defaults:  func(*dialect.Reader) {}, Finish: func(*dialect.Reader) {},
			Variables: []job.Variable{{Name: "TOY_ID", Value: "$hpcc_id"}}, VariableText: `\bTOY_\w+`,
			JobID: "$TOY_ID",
		},
		Version: []string{"echo", "toy 1"}, Ping: []string{"false"},
		InJob: func(name string) bool { return name == "TOY_ID" },
		Node: &node.Scheduler{
			Name: toyTarget, IDs: []string{"TOY_ID"},
			Hosts:  func(getenv func(string) string) ([]string, error) { return strings.Fields(getenv("TOY_HOSTS")), nil },
			Remote: func(host string, argv []string) []string { return append([]string{"toyrun", host}, argv...) },
		},
	}
}

func (s *toy) Render(j *job.Job) (string, []string, error) {
	if j.GPUs > 0 {
		return "", nil, fmt.Errorf("the toy does not have GPUs")
	}
	t := &jobscript.Writer{}
	t.Line("#!/bin/sh")
	t.Line("#TOY name=%s tasks=%d", j.Name, j.Count())
	t.Common(j)
	t.Task(j, jobscript.TaskCall{To: s.Describe().Dialect, ID: `"$1"`})
	return t.String(), []string{"the toy forgets its jobs"}, nil
}

func (s *toy) Submit(_ context.Context, r *batch.Request) error {
	if strings.HasPrefix(r.Job.Name, "never") {
		return fmt.Errorf("the toy would never start it")
	}
	r.Native = fmt.Sprintf("toy-%d", len(s.queue)+1)
	s.queue[r.Native] = r
	return nil
}

func (s *toy) Query(_ context.Context, ids []string) (map[string]batch.State, error) {
	out := map[string]batch.State{}
	for _, id := range ids {
		if r := s.queue[id]; r != nil && !s.ended[id] {
			q := batch.State{Reason: "it plays"}
			for k := range r.Job.Array.All() {
				q.Add(k, job.QueueWaiting)
			}
			out[id] = q
		}
	}
	return out, nil
}

func (s *toy) Cancel(_ context.Context, id string) error {
	s.ended[id] = true
	return nil
}

// Nodes makes the toy a batch.NodeLister.
func (*toy) Nodes(context.Context, string) (*capacity.Snapshot, error) {
	return &capacity.Snapshot{Nodes: []capacity.Node{{Name: "t1", CPUs: 4, FreeCPUs: 3, Memory: 8 << 30, FreeMemory: 8 << 30}}}, nil
}

// TestToy runs a job through a batch system that only the test knows.
func TestToy(t *testing.T) {
	s := &toy{map[string]*batch.Request{}, map[string]bool{}}
	registry = append(registry, s)
	defer func() { registry = registry[:len(registry)-1] }()
	dir, work := t.TempDir(), t.TempDir()
	j := jobtest.With(func(j *job.Job) { j.Dir, j.Array = work, jobtest.Array(t, "1-3") })
	sub, notes, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
	if err != nil || len(notes) != 1 || sub.Native != "toy-1" {
		t.Fatalf("Submit: %+v, %q, %v", sub, notes, err)
	}
	script, err := os.ReadFile(filepath.Join(dir, sub.ID, "script"))
	if err != nil || !strings.Contains(string(script), "#TOY name=main tasks=3") {
		t.Errorf("the script is %q, %v", script, err)
	}
	if out, err := exec.Command("sh", "-n", filepath.Join(dir, sub.ID, "script")).CombinedOutput(); err != nil {
		t.Errorf("sh refuses it: %s", out)
	}
	for _, want := range []struct {
		state   string
		waiting int
	}{{"waiting", 3}, {"cancelled", 0}} {
		list, warnings, err := Statuses(t.Context(), dir, nil)
		if err != nil || len(warnings) > 0 || len(list) != 1 || list[0].State() != want.state || list[0].Waiting != want.waiting {
			t.Fatalf("Statuses: %+v, %q, %v; want %+v", list, warnings, err, want)
		}
		if want.waiting > 0 {
			if ended, err := sub.Cancel(t.Context(), dir); !ended || err != nil {
				t.Errorf("Cancel: %v, %v", ended, err)
			}
		}
	}
	if tasks, _, err := sub.Rerun(t.Context(), dir, Rerun{}, nil); err != nil || len(tasks) != 3 || len(sub.Reruns) != 1 || sub.Reruns[0].Native != "toy-2" {
		t.Errorf("Rerun: %v, %+v, %v", tasks, sub.Reruns, err)
	}
	if _, _, err := Submit(t.Context(), dir, jobtest.With(func(j *job.Job) { j.Name, j.Dir = "never", work }), Cluster{Target: toyTarget}); err == nil {
		t.Error("a job that never starts was submitted")
	}
	f, err := Fits(t.Context(), "", jobtest.With(func(j *job.Job) { j.CPUs, j.Time = 2, time.Hour }), Cluster{Target: toyTarget})
	if err != nil || f.When != capacity.Now || f.Nodes[0] != "t1" {
		t.Errorf("Fits: %+v, %v", f, err)
	}
	tr, err := Translator().Translate(translate.Source{Name: "t.sh", Text: []byte("#!/bin/sh\n#TOY -n ball -play\ntoyrun echo $TOY_ID\n"), Dir: work}, job.Local)
	if err != nil || tr.Dialect != toyTarget || tr.Job.Name != "ball" || tr.Lost() != 1 {
		t.Fatalf("Translate: %+v, %v", tr, err)
	}
	if tr.Fit(); tr.Lost() != 2 { // -play and toyrun
		t.Errorf("Fit: %d rows are refused", tr.Lost())
	}
	tr.Job.Program, tr.Job.Store = "/bin/hpcc", dir
	if script, _, err := Render(tr.Job, job.Local); err != nil || !strings.Contains(script, "# Variables that the toy would have set, for t.sh:\nhpcc_id=$PPID\nexport TOY_ID=") {
		t.Errorf("Render: %v\n%s", err, script)
	}
	env := map[string]string{"TOY_ID": "toy-7", "TOY_HOSTS": "h1 h2"}
	getenv := func(name string) string { return env[name] }
	if ids, from := OnNode().NativeIDs(getenv); from != toyTarget || ids["TOY_ID"] != "toy-7" {
		t.Errorf("NativeIDs: %q, %s", ids, from)
	}
	if w, err := OnNode().PerNode(toyTarget, 2, 1, []string{"prog"}, getenv); err != nil || strings.Join(w[1], " ") != "toyrun h2 prog --rank=1" {
		t.Errorf("PerNode: %q, %v", w, err)
	}
	if got := outsideJob([]string{"TOY_ID=1", "A=1"}); len(got) != 1 {
		t.Errorf("outsideJob: %q", got)
	}
	bin := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "toy"), nil, 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if list := Schedulers(t.Context()); len(list) == 0 || list[len(list)-1].Name != "the toy" || list[len(list)-1].Version != "toy 1" || list[len(list)-1].Err == nil {
		t.Errorf("Schedulers: %+v", list)
	}
}
