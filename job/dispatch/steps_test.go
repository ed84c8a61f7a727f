package dispatch

import (
	"maps"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// argoJobs are those of pods that workflows have as well, and several in order.
func argoJobs(t *testing.T, pods map[string]*job.Job) map[string]*job.Job {
	t.Helper()
	jobs := maps.Clone(pods)
	delete(jobs, "nodes")
	delete(jobs, "gang")
	jobs["steps"] = threeJobs(t)
	jobs["replaced"] = replacingJobs(t)
	jobs["artifact"] = jobtest.With(func(j *job.Job) { j.Artifacts = []job.Artifact{{Step: "", Name: "model", Path: "/out/model.pt"}} })
	return jobs
}

// threeJobs returns a training, an array of prunings of which two run at once, and a test that
// runs after all of them, however they ended.
func threeJobs(t *testing.T) *job.Job {
	t.Helper()
	train := jobtest.With(func(j *job.Job) {
		j.Name, j.GPUs, j.Time, j.Args = "Train", 1, time.Hour, []string{"python", "train.py"}
		j.Retry = job.Retry{Times: 2, Endings: []string{"exit=3", "node-fail"}}
	})
	prune := jobtest.With(func(j *job.Job) {
		j.Name, j.Array, j.Args, j.After = "prune", jobtest.Array(t, "2,4,8%2"), []string{"python", "prune.py", "--by={task}"}, []string{"Train"}
	})
	test := jobtest.With(func(j *job.Job) {
		j.Name, j.Args, j.AfterAny, j.After = "test", []string{"python", "test.py"}, []string{"prune"}, []string{"train"}
		j.Pod.Volumes = []job.Volume{{Claim: "data", Path: "/data", ReadOnly: true}}
	})
	j, err := job.NewSteps("study", []*job.Job{train, prune, test}, []job.Artifact{{Step: "train", Name: "model", Path: "/out/model.pt"}})
	testenv.Check(t, err)
	return j
}

// replacingJobs returns a training, a pruning and a test, each of which changes the model.
func replacingJobs(t *testing.T) *job.Job {
	t.Helper()
	var list []*job.Job
	var artifacts []job.Artifact
	for i, name := range []string{"train", "prune", "test"} {
		list = append(list, jobtest.With(func(j *job.Job) { j.Name, j.Args = name, []string{"python", name + ".py"} }))
		artifacts = append(artifacts, job.Artifact{Step: name, Name: "model", Path: "/out/model.pt"})
		if i > 0 {
			list[i].After = []string{list[i-1].Name}
		}
	}
	j, err := job.NewSteps("replaced", list, artifacts)
	testenv.Check(t, err)
	return j
}

func TestNewStepsRefuses(t *testing.T) {
	named := func(name string, after ...string) *job.Job {
		return jobtest.With(func(j *job.Job) { j.Name, j.After = name, after })
	}
	for _, tt := range []struct {
		want      string
		list      []*job.Job
		artifacts []job.Artifact
	}{
		{"a workflow needs several jobs", []*job.Job{named("a")}, nil},
		{`two steps of the workflow have the name "a-b"`, []*job.Job{named("a_b"), named("A.b")}, nil},
		{`step b waits for "c", which is not among the submitted jobs (a, b)`, []*job.Job{named("a"), named("b", "c")}, nil},
		{"the steps depend on each other: b → c → b", []*job.Job{named("a"), named("b", "c"), named("c", "b", "a")}, nil},
		{"name the step that leaves it: STEP/x:/x, with one of a, b", []*job.Job{named("a"), named("b")}, []job.Artifact{{Step: "", Name: "x", Path: "/x"}}},
		{"the limit is 131072", []*job.Job{named("a"), jobtest.With(func(j *job.Job) { j.Name, j.Script = "b", &job.Script{Body: strings.Repeat("x", job.MaxScript+1)} })}, nil},
		{"steps a and b: --measure applies to the full workflow", []*job.Job{named("a"), jobtest.With(func(j *job.Job) { j.Name, j.Measure = "b", true })}, nil},
		{"a workflow can only wait for full arrays", []*job.Job{named("a"), jobtest.With(func(j *job.Job) { j.Name, j.AfterEach = "b", []string{"a"} })}, nil},
	} {
		if _, err := job.NewSteps("w", tt.list, tt.artifacts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("NewSteps: %v; want %q", err, tt.want)
		}
	}
}

func TestArgoRefuses(t *testing.T) {
	for _, tt := range []struct {
		want   string
		change func(*job.Job)
	}{
		{"a workflow cannot depend on jobs outside it", func(j *job.Job) { j.After = []string{"17"} }},
		{"has at most 5000", func(j *job.Job) { j.Array = jobtest.Array(t, "1-5001") }},
		{"Argo starts each pod separately", func(j *job.Job) { j.Nodes = 2 }},
		{"Argo would replace it", func(j *job.Job) { j.Args = []string{"echo", "{{workflow.name}}"} }},
		{"Argo would replace it", func(j *job.Job) { j.Env = []string{"A={{= 1 }}"} }},
		{"would overwrite each other", func(j *job.Job) {
			j.Array, j.Artifacts = jobtest.Array(t, "1-2"), []job.Artifact{{Step: "", Name: "a", Path: "/a"}}
		}},
	} {
		if _, _, err := Render(jobtest.With(tt.change), job.Argo); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Render: %v; want %q", err, tt.want)
		}
	}
	if _, _, err := Render(jobtest.With(func(j *job.Job) { j.Args = []string{"echo", "{{ x }}", "{{{a}}}", "{{items}}"} }), job.Argo); err != nil {
		t.Errorf("Render: %v; braces that Argo leaves are taken", err)
	}
	j := replacingJobs(t)
	j.Steps[1].Pod.Volumes = []job.Volume{{Claim: "data", Path: "/out/model.pt"}}
	if _, _, err := Render(j, job.Argo); err == nil || !strings.Contains(err.Error(), "step prune: artifact model: a volume is mounted at its path /out/model.pt") {
		t.Errorf("Render: %v; want an error for a volume at the path of an artifact", err)
	}
	if _, _, err := Render(threeJobs(t), "slurm"); err == nil || !strings.Contains(err.Error(), "target slurm does not support workflows") {
		t.Errorf("Render: %v", err)
	}
}
