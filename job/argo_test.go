package job

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// argoJobs are those of pods that workflows have as well, and several in order.
func argoJobs(t *testing.T, pods map[string]*Job) map[string]*Job {
	t.Helper()
	jobs := maps.Clone(pods)
	delete(jobs, "nodes")
	jobs["steps"] = threeJobs(t)
	jobs["artifact"] = with(func(j *Job) { j.Artifacts = []Artifact{{"", "model", "/out/model.pt"}} })
	return jobs
}

// threeJobs are a training, an array of prunings of which two run at once, and a test that
// looks at all of it, however the prunings went.
func threeJobs(t *testing.T) *Job {
	t.Helper()
	train := with(func(j *Job) {
		j.Name, j.GPUs, j.Time, j.Args = "Train", 1, time.Hour, []string{"python", "train.py"}
		j.Retry = Retry{2, []string{"exit=3", "node-fail"}}
	})
	prune := with(func(j *Job) {
		j.Name, j.Array, j.Args, j.After = "prune", array(t, "2,4,8%2"), []string{"python", "prune.py", "--by={task}"}, []string{"Train"}
	})
	test := with(func(j *Job) {
		j.Name, j.Args, j.AfterAny, j.After = "test", []string{"python", "test.py"}, []string{"prune"}, []string{"train"}
		j.Pod.Volumes = []Volume{{"data", "/data", true}}
	})
	j, err := NewSteps("study", []*Job{train, prune, test}, []Artifact{{"train", "model", "/out/model.pt"}})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestArgoStrict holds what hpcc writes for Argo to the fields that Argo knows.
func TestArgoStrict(t *testing.T) {
	files, err := filepath.Glob("testdata/*.argo")
	if err != nil || len(files) < 8 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadWorkflow(f, b); err != nil {
			t.Error(err)
		}
	}
}

func TestNewStepsRefuses(t *testing.T) {
	named := func(name string, after ...string) *Job {
		return with(func(j *Job) { j.Name, j.After = name, after })
	}
	for _, tt := range []struct {
		want      string
		list      []*Job
		artifacts []Artifact
	}{
		{"one job has no order", []*Job{named("a")}, nil},
		{`two steps of a workflow are called "a-b"`, []*Job{named("a_b"), named("A.b")}, nil},
		{`step b waits for "c", which is none of the jobs that are given with it (a, b)`, []*Job{named("a"), named("b", "c")}, nil},
		{"the steps wait for each other: b → c → b", []*Job{named("a"), named("b", "c"), named("c", "b", "a")}, nil},
		{"say which step leaves it: STEP/x:/x, with one of a, b", []*Job{named("a"), named("b")}, []Artifact{{"", "x", "/x"}}},
		{"the most is 131072", []*Job{named("a"), with(func(j *Job) { j.Name, j.Script = "b", &Script{Body: strings.Repeat("x", MaxScript+1)} })}, nil},
		{"steps a and b: a workflow is measured as a whole, or not", []*Job{named("a"), with(func(j *Job) { j.Name, j.Measure = "b", true })}, nil},
		{"a workflow waits for whole arrays", []*Job{named("a"), with(func(j *Job) { j.Name, j.AfterEach = "b", []string{"a"} })}, nil},
	} {
		if _, err := NewSteps("w", tt.list, tt.artifacts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("NewSteps: %v; want %q", err, tt.want)
		}
	}
}

func TestArgoRefuses(t *testing.T) {
	for _, tt := range []struct {
		want   string
		change func(*Job)
	}{
		{"an order is kept by Argo only among the steps", func(j *Job) { j.After = []string{"17"} }},
		{"has at most 5000", func(j *Job) { j.Array = array(t, "1-5001") }},
		{"each pod of a workflow begins for itself", func(j *Job) { j.Nodes = 2 }},
		{"Argo would put a value of its own", func(j *Job) { j.Args = []string{"echo", "{{workflow.name}}"} }},
		{"Argo would put a value of its own", func(j *Job) { j.Env = []string{"A={{= 1 }}"} }},
		{"Argo starts no Ray", func(j *Job) { j.Ray = true }},
		{"would write over each other", func(j *Job) { j.Array, j.Artifacts = array(t, "1-2"), []Artifact{{"", "a", "/a"}} }},
	} {
		if _, _, err := Render(with(tt.change), Argo); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Render: %v; want %q", err, tt.want)
		}
	}
	if _, _, err := Render(with(func(j *Job) { j.Args = []string{"echo", "{{ x }}", "{{{a}}}", "{{items}}"} }), Argo); err != nil {
		t.Errorf("Render: %v; braces that Argo leaves are taken", err)
	}
	if _, _, err := Render(threeJobs(t), Slurm); err == nil || !strings.Contains(err.Error(), "target slurm has no workflows") {
		t.Errorf("Render: %v", err)
	}
}

func TestParseArtifact(t *testing.T) {
	for in, want := range map[string]Artifact{
		"model:/out/model": {"", "model", "/out/model"}, "train/model:/out/": {"train", "model", "/out"},
	} {
		if got, err := ParseArtifact(in); err != nil || got != want {
			t.Errorf("ParseArtifact(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "model", "model:", "model:out", "model:/", "Mo del:/out", "a b/model:/out", "model:/a/../b"} {
		if got, err := ParseArtifact(in); err == nil {
			t.Errorf("ParseArtifact(%q) = %v; want an error", in, got)
		}
	}
}

// nodes are what Argo said of the workflow of threeJobs, of which the training failed once and one
// pruning for good.
const threeNodes = `{"metadata":{"name":"study-x"},"status":{"phase":"%s","startedAt":"2026-11-22T01:00:00Z","finishedAt":null,"nodes":{
"n0":{"id":"n0","name":"study-x","type":"DAG","phase":"Running","templateName":"main"},
"n1":{"id":"n1","name":"study-x.train","type":"Retry","phase":"Succeeded","templateName":"train","children":["n2","n3"]},
"n2":{"id":"n2","name":"study-x.train(0)","type":"Pod","phase":"Failed","templateName":"train","message":"main: Error (exit code 3)","startedAt":"2026-11-22T01:00:01Z","finishedAt":"2026-11-22T01:00:05Z","hostNodeName":"node1","outputs":{"exitCode":"3"},"nodeFlag":{"retried":true}},
"n3":{"id":"n3","name":"study-x.train(1)","type":"Pod","phase":"Succeeded","templateName":"train","startedAt":"2026-11-22T01:00:06Z","finishedAt":"2026-11-22T01:00:09Z","hostNodeName":"node1","outputs":{"exitCode":"0"},"nodeFlag":{"retried":true}},
"n4":{"id":"n4","name":"study-x.prune","type":"DAG","phase":"Running","templateName":"prune-array"},
"n5":{"id":"n5","name":"study-x.prune.prune(0:0)","type":"Pod","phase":"Succeeded","templateName":"prune","startedAt":"2026-11-22T01:00:10Z","finishedAt":"2026-11-22T01:00:12Z","hostNodeName":"node1","inputs":{"parameters":[{"name":"place","value":"0"}]}},
"n6":{"id":"n6","name":"study-x.prune.prune(1:1)","type":"Pod","phase":"Failed","templateName":"prune","message":"OOMKilled (exit code 137)","startedAt":"2026-11-22T01:00:10Z","finishedAt":"2026-11-22T01:00:13Z","hostNodeName":"node1","inputs":{"parameters":[{"name":"place","value":"1"}]},"outputs":{"exitCode":"137"}},
"n7":{"id":"n7","name":"study-x.prune.prune(2:2)","type":"Pod","phase":"%s","templateName":"prune","message":"Unschedulable: 0/1 nodes are available","startedAt":"2026-11-22T01:00:13Z","finishedAt":null,"inputs":{"parameters":[{"name":"place","value":"2"}]}},
"n8":{"id":"n8","name":"study-x.test","type":"Skipped","phase":"%s","templateName":"test-array","startedAt":"2026-11-22T01:00:13Z","finishedAt":"2026-11-22T01:00:13Z"}
}}}`

// TestArgoRecords has the records of tasks that a workflow's nodes make, twice: the second look changes nothing.
func TestArgoRecords(t *testing.T) {
	read := func(phases ...string) standing {
		text := threeNodes
		for _, p := range phases {
			text = strings.Replace(text, "%s", p, 1)
		}
		wf := &workflow{}
		if err := json.Unmarshal([]byte(text), wf); err != nil {
			t.Fatal(err)
		}
		return wf.standing()
	}
	home := t.TempDir()
	s := &Submission{ID: "study-1", Native: "study-x", Cluster: Cluster{Target: Argo}, Job: threeJobs(t)}
	now := read("Running", "Pending", "Pending")
	if !now.alive || now.running != 0 || now.waiting != 1 || now.reason != "Unschedulable: 0/1 nodes are available" {
		t.Errorf("standing: %+v", now)
	}
	look := func(n standing) (out []string) {
		t.Helper()
		if err := s.learn(home, map[string]standing{"study-x": n}); err != nil {
			t.Fatal(err)
		}
		tasks, err := Tasks(home)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range tasks {
			text := itoa(k.Index) + " " + k.Step + " " + k.Ending() + " " + itoa(k.Attempt) + " " + k.Native
			if !k.Ended() {
				text = itoa(k.Index) + " " + k.Step + " runs"
			}
			out = append(out, text)
		}
		return out
	}
	want := []string{"1 Train status 0 1 study-x-train-264160191", "2 prune status 0 0 study-x-prune-1447176800",
		"3 prune killed, since it used more than its memory (OOMKilled); --mem gives it more 0 study-x-prune-344569204"}
	for range 2 {
		if got := look(now); !reflect.DeepEqual(got, want) {
			t.Errorf("records %q; want %q", got, want)
		}
	}
	want = append(want, "4 prune runs", "5 test did not begin, since what it waits for did not go as it wants 0 ")
	if got := look(read("Failed", "Running", "Omitted")); !reflect.DeepEqual(got, want) {
		t.Errorf("records %q; want %q", got, want)
	}
}

// TestArgoNumbers has steps of a workflow of somebody else keep the number that they got first.
func TestArgoNumbers(t *testing.T) {
	home := t.TempDir()
	s := &Submission{ID: "w-1", Native: "w-x", Cluster: Cluster{Target: Argo}, Job: &Job{Name: "w", Workflow: &Workflow{}}}
	at := time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	step := func(name string, seconds int) attempt {
		t := Task{Native: "w-x-" + name, Step: name, Start: at.Add(time.Duration(seconds) * time.Second)}
		return attempt{Task: t, last: true}
	}
	for _, list := range [][]attempt{{step("b", 0)}, {step("a", 0), step("b", 0), step("c", 5)}} {
		if err := s.learn(home, map[string]standing{"w-x": {alive: true, tasks: list}}); err != nil {
			t.Fatal(err)
		}
	}
	tasks, err := Tasks(home)
	var got string
	for _, k := range tasks {
		got += k.Step + itoa(k.Index) + " "
	}
	if err != nil || got != "b0 a1 c2 " {
		t.Errorf("records %s, %v", got, err)
	}
}

func TestDebug(t *testing.T) {
	for in, want := range map[string]string{
		"python main.py --x 1":              "python -m debugpy --listen 0.0.0.0:5678 --wait-for-client main.py --x 1",
		"/opt/conda/bin/python3.12 -u -m a": "/opt/conda/bin/python3.12 -u -m debugpy --listen 0.0.0.0:5678 --wait-for-client -m a",
		"python -c print(1)":                "", "python": "", "python -X dev a.py": "", "bash a.sh": "", "pythonic a.py": "",
	} {
		j := with(func(j *Job) { j.Args = strings.Fields(in) })
		err := j.Debug()
		if got := strings.Join(j.Args, " "); (want != "" && (err != nil || got != want || j.PortOf("debug") != 5678)) || (want == "" && err == nil) {
			t.Errorf("Debug(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
	w, err := ReadWorkflow("w.yaml", []byte(strings.Replace(threeSteps, `image: busybox, args: ["`, `image: busybox, command: [python, -u], args: [main.py, "`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if names, err := w.Debug(); err != nil || !reflect.DeepEqual(names, []string{"step"}) || !reflect.DeepEqual(w.Ports(), []Port{DebugPort}) {
		t.Errorf("Debug: %q, %v, ports %v", names, err, w.Ports())
	}
	b, err := json.Marshal(w.root.items("spec", "templates")[1].at("container"))
	if want := `"command":["python"],"args":["-u","-m","debugpy","--listen","0.0.0.0:5678","--wait-for-client","main.py",`; err != nil || !strings.Contains(string(b), want) {
		t.Errorf("Debug: %s, %v", b, err)
	}
	if w, err = ReadWorkflow("w.yaml", []byte(threeSteps)); err == nil {
		_, err = w.Debug()
	}
	if err == nil || !strings.Contains(err.Error(), "none of the templates of w.yaml") {
		t.Errorf("Debug: %v", err)
	}
}

// TestStepLogs leaves the lines of Argo's own program out, and nothing else.
func TestStepLogs(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	in := "a\n" + `time="2026-11-22T01:31:57.895Z" level=info msg="sub-process exited" argo=true error="<nil>"` + "\n" +
		`time="2026-11-22T01:31:57.895Z" level=warning msg="cannot save artifact" argo=true` + "\n" + `time=now level=info msg=mine` + "\n" + long + "\nlast"
	want := "a\n" + `time="2026-11-22T01:31:57.895Z" level=warning msg="cannot save artifact" argo=true` + "\n" + `time=now level=info msg=mine` + "\n" + long + "\nlast"
	r, err := stepLogs{textLog(in)}.log(t.Context(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("log: %q, %v", got, err)
	}
}

// textLog is a log that is there.
type textLog string

func (l textLog) log(context.Context, string, bool) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(l))), nil
}
func (textLog) close() {}
