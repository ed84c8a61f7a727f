package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/kube"
	"hpcc/job/node"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A rendering is a job for one target. The files testdata/NAME.txt have the lines in which a script or a manifest
// differs from that of the job "plain", which testdata/plain.TARGET has in full, as have workflows with steps.
type rendering struct {
	name   string
	target job.Target
	job    *job.Job
}

// renderings returns the recorded jobs.
func renderings(t *testing.T) (list []rendering) {
	t.Helper()
	add := func(name string, j *job.Job, target job.Target) { list = append(list, rendering{name, target, j}) }
	jobs := map[string]*job.Job{
		"plain": jobtest.Plain(),
		"array": jobtest.With(func(j *job.Job) {
			j.Array = jobtest.Array(t, "1-8%4")
			j.Run = []string{"--set-env=/home/u/job/config.env"}
			j.Args = []string{"python", "main.py", "--id={task}"}
		}),
		"list": jobtest.With(func(j *job.Job) {
			j.Array = jobtest.Array(t, "1,3,7-9,20-40:10")
			j.Output, j.Error = "logs/{name}.{job}.{task}.out", "logs/{name}.{job}.{task}.err"
		}),
		"words": jobtest.With(func(j *job.Job) {
			j.Dir = "/home/u/my work"
			j.Env = []string{"A=it's $HOME; `id`", "EMPTY="}
			j.Args = []string{"sh", "-c", "echo \"$A\"\nexit 3", "*", "~", ""}
		}),
		"interactive": jobtest.With(func(j *job.Job) { j.Interactive, j.Args = true, []string{"bash"} }),
	}
	slurm := map[string]*job.Job{
		"mpi": jobtest.With(func(j *job.Job) {
			j.Nodes, j.Tasks, j.TasksPerNode, j.CPUs, j.GPUs = 2, 8, 4, 3, 4
			j.Memory, j.Time = 3<<30+1, 26*time.Hour+90*time.Second+time.Millisecond
		}),
		"broadcast": jobtest.With(func(j *job.Job) {
			j.Nodes, j.TasksPerNode, j.Image, j.Run = 4, 2, "/home/u/it's sci.sqfs", []string{"--stage"}
		}),
		"site": jobtest.With(func(j *job.Job) {
			j.Queue, j.Account, j.Exclusive, j.Mail = "gpu", "proj", true, "u@example.org"
			j.After, j.Native = []string{"17", "18"}, []string{"--constraint=\\[a|b\\]", "--reservation=r"}
		}),
	}
	gridEngine := map[string]*job.Job{
		"mpi": jobtest.With(func(j *job.Job) {
			j.Tasks, j.CPUs, j.GPUs, j.Memory, j.Time = 8, 2, 16, 16<<30+1, 26*time.Hour
		}),
		"onehost": jobtest.With(func(j *job.Job) { j.Nodes, j.TasksPerNode, j.CPUs = 1, 2, 3 }),
		"site": jobtest.With(func(j *job.Job) {
			j.Queue, j.Account, j.Exclusive, j.Mail = "gpu", "proj", true, "u@example.org"
			j.After, j.Native = []string{"17", "18"}, []string{"-l arch=lx-amd64", "-r y"}
		}),
	}
	local := map[string]*job.Job{
		"limits": jobtest.With(func(j *job.Job) {
			j.Array, j.CPUs, j.Time = jobtest.Array(t, "1-8%1"), 2, 90*time.Second
			j.Queue, j.Memory, j.GPUs = "gpu", 1<<30, 1
		}),
	}
	shapes := map[string]*job.Job{
		"mpi":     slurm["mpi"],
		"site":    slurm["site"],
		"onehost": gridEngine["onehost"],
		"one":     jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "5") }),
		"large":   jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "0,5000-9000:1000%2"); j.Time, j.CPUs = time.Hour, 4 }),
	}
	spread := jobtest.With(func(j *job.Job) { j.Nodes, j.TasksPerNode, j.GPUs, j.Memory = 2, 2, 2, 1<<30 })
	for _, target := range targets() {
		if !target.Pods() {
			add("spread", spread, target)
		}
	}
	measured := jobtest.With(func(j *job.Job) {
		j.Measure, j.Array, j.Tasks, j.CPUs, j.Memory, j.Time = true, jobtest.Array(t, "1-8%1"), 2, 4, 8<<30, 2*time.Hour
	})
	packed := jobtest.With(func(j *job.Job) {
		j.SetPack(true)
		j.Array, j.Nodes, j.TasksPerNode, j.CPUs, j.GPUs, j.Memory, j.Time = jobtest.Array(t, "0-99999%50"), 3, 4, 1, 1, 2<<30, 2*time.Hour
		j.Run, j.Error = []string{"--stage"}, "logs/{task}.err"
		j.Args = []string{"python", "main.py", "--id={task}"}
	})
	full := jobtest.With(func(j *job.Job) { j.SetPack(false); j.Array = jobtest.Array(t, "1-2000") })
	for _, target := range []job.Target{job.Local, "slurm", "gridengine", "lsf", "pbs"} {
		add("measured", measured, target)
		add("packed", packed, target)
		add("packedfull", full, target)
	}
	pod := podJobs(t)
	for target, own := range map[job.Target]map[string]*job.Job{"slurm": slurm, "gridengine": gridEngine, "lsf": shapes, "pbs": shapes, job.Local: local, job.Kubernetes: pod, job.OpenShift: pod, job.Argo: argoJobs(t, pod)} {
		for name, j := range jobs {
			if j.Interactive && (target == "pbs" || target == job.Argo) {
				continue
			}
			add(name, j, target)
		}
		for name, j := range own {
			add(name, j, target)
		}
	}
	return list
}

// TestRender compares the scripts and manifests of all jobs with the recorded ones, and has bash parse the scripts.
func TestRender(t *testing.T) {
	all := map[string]map[job.Target]string{}
	for _, r := range renderings(t) {
		if all[r.name] == nil {
			all[r.name] = map[job.Target]string{}
		}
		all[r.name][r.target] = rendered(t, r)
	}
	for name, texts := range all {
		var changes jobtest.Merged
		for _, to := range slices.Backward(jobtest.Targets) {
			text, ok := texts[to]
			switch {
			case !ok:
			case name == "plain" || name == "steps" || name == "replaced":
				compare(t, name+"."+string(to), text)
			default:
				changes.Add(to, jobtest.LineDiff(jobtest.Lines(t, to, all["plain"][to]), jobtest.Lines(t, to, text)))
			}
		}
		if len(changes) > 0 {
			compare(t, name+".txt", string(changes.Text()))
		}
	}
}

// podJobs returns the jobs that are specific to pods, or differ there.
func podJobs(t *testing.T) map[string]*job.Job {
	const ref = "registry.example.org/team/base@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	pod := func(change func(*job.Job)) *job.Job {
		return jobtest.With(func(j *job.Job) { j.Pod.Image, j.Pod.UID = ref, 1000; change(j) })
	}
	sweep := pod(func(j *job.Job) {
		j.Args = []string{"python", "main.py", "--lr={lr}", "--seed={seed}", "it's", "$(HOME) $$"}
		j.Pod.Entrypoint = []string{"/opt/entry", "--"}
		var err error
		if j.Params, err = job.ParseParams([]string{"lr=0.1,0.01", "seed=1..3"}, "", ""); err != nil {
			t.Fatal(err)
		}
		j.Array = jobtest.Array(t, "1-6")
	})
	measure := func(j *job.Job) {
		j.Measure, j.Pod.Entrypoint = true, []string{"/usr/local/bin/hpcc-entry", "entry", "--", "/opt/start"}
		j.Pod.Measurer.Argv = []string{"/usr/local/bin/hpcc-entry", "entry", "--measure", "--", "/opt/start"}
	}
	return map[string]*job.Job{
		"sweep": sweep,
		"measured": pod(func(j *job.Job) {
			measure(j)
			j.Tensorboard, j.Pod.Volumes = "/data/logs", []job.Volume{{Claim: "data", Path: "/data", ReadOnly: false}}
		}),
		"measured-array": pod(func(j *job.Job) { measure(j); j.Array, j.Args = jobtest.Array(t, "2-6:2"), []string{"main", "{task}"} }),
		"most": pod(func(j *job.Job) {
			j.Name, j.Array = "Train_Big", jobtest.Array(t, "0-98:2,1%10")
			j.CPUs, j.Memory, j.GPUs, j.GPUType, j.Time, j.Exclusive = 4, 16<<30, 2, "Tesla-V100-SXM2-32GB", 90*time.Minute, true
			j.Retry = job.Retry{Times: 2, Endings: []string{"signal=SIGKILL", "exit=99", "preempted", "exit=99"}}
			j.Hosts, j.NotHosts, j.Features = []string{"n1", "n2"}, []string{"n3"}, []string{"kubernetes.io/arch=ppc64le"}
			j.Env, j.Pod.Env = []string{"A=$(B) $$ $c"}, []string{"HOME=/tmp"}
			j.Pod.Dir, j.Pod.Scratch, j.Pod.Pull, j.Pod.PullSecret, j.Pod.ServiceAccount = "/data/run", 10<<30, "IfNotPresent", "login", "runner"
			j.Pod.Volumes = []job.Volume{{Claim: "data", Path: "/data", ReadOnly: false}, {Claim: "data", Path: "/in", ReadOnly: true}, {Claim: "", Path: "/cache", ReadOnly: false}}
			j.Pod.Ports = []job.Port{{Name: "debug", Number: 5678}, {Name: "http", Number: 80}}
			j.Pod.Secrets = []job.Secret{{Name: "wandb", Path: ""}, {Name: "keys", Path: "/keys"}}
			j.Tensorboard = "/data/logs"
		}),
		"anyuid": pod(func(j *job.Job) {
			j.Pod.UID, j.Pod.AnyUID, j.Pod.Volumes = 0, true, []job.Volume{{Claim: "data", Path: "/data", ReadOnly: false}}
		}),
		"amd":     pod(func(j *job.Job) { j.GPUs, j.GPUType = 2, "amd" }),
		"queue":   pod(func(j *job.Job) { j.Queue, j.Requeue = "gpu", "yes" }),
		"retry":   pod(func(j *job.Job) { j.Retry = job.Retry{Times: 3, Endings: []string{"node-fail"}} }),
		"several": pod(func(j *job.Job) { j.Tasks, j.CPUs, j.MemoryPerCPU = 4, 2, 1<<30 }),
		"nodes":   pod(func(j *job.Job) { j.Nodes, j.GPUs = 4, 4 }),
		"gang": pod(func(j *job.Job) {
			j.Nodes, j.Native = 4, []string{"schedulerName: volcano", "metadata: {annotations: {scheduling.volcano.sh/queue-name: gpu}}"}
		}),
		"native": pod(func(j *job.Job) {
			j.CPUs, j.GPUs, j.Hosts = 2, 1, []string{"n1", "n2"}
			j.Pod.Volumes = []job.Volume{{Claim: "data", Path: "/data", ReadOnly: false}}
			j.Native = []string{
				"priorityClassName: system-node-critical", "tolerations: [{key: rdma, operator: Exists, effect: NoSchedule}]", "containers: [{resources: {limits: {rdma/hca: 1}}}]",
				"metadata: {annotations: {k8s.v1.cni.cncf.io/networks: rdma-net, n: 1}, labels: {team: a}}",
				`containers:
- {name: main, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}], volumeMounts: [{mountPath: /data, name: volume-1, subPath: run}]}
- {name: helper, image: 'example.org/helper:1'}
volumes: [{name: settings, configMap: {name: settings}}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: Exists}]}]}}}`,
			}
		}),
	}
}

// around returns the objects that OpenShift needs around a job, by name.
func around(t *testing.T) map[string]string {
	t.Helper()
	gpu := jobtest.With(func(j *job.Job) { j.Image, j.GPUs, j.Memory, j.Time = "sci:2", 4, 64<<30, time.Hour })
	native := *gpu
	native.Native = []string{"priorityClassName: system-node-critical", "metadata: {annotations: {a: b}}"}
	texts := map[string]string{}
	for name, a := range map[string]kube.Around{
		"build":  {Build: &kube.Build{Dockerfile: "docker/Dockerfile"}},
		"git":    {Build: &kube.Build{Git: "https://git.example.org/u/sci.git#main", ContextDir: "sub", Args: []string{"V=$(x)"}, Arch: "ppc64le"}},
		"deploy": {Build: &kube.Build{Arch: "amd64"}, Deploy: true},
		"base": {Build: &kube.Build{Git: "https://git.example.org/u/sci.git#main:docker/gpu", Base: "docker.io/lab/base:1", NoCache: true, Env: []string{"BUILD_LOGLEVEL=5"},
			Webhooks: []string{"github=hook", "gitlab=hook", "bitbucket=hook", "generic=other"}}},
		"stream": {Build: &kube.Build{Git: "https://git.example.org/u/sci.git#:docker", Base: "istag/shared/base:1"}},
		"native": {Deploy: true},
	} {
		j := gpu
		if name == "native" {
			j = &native
		}
		got, notes, err := kube.RenderAround(j, a)
		if err != nil {
			t.Errorf("RenderAround(%s): %v", name, err)
			continue
		}
		texts[name] = withNotes(got, notes)
	}
	return texts
}

// TestAround compares these objects with recorded ones: one in full, and the lines in which the others differ.
func TestAround(t *testing.T) {
	texts := around(t)
	compare(t, "around.openshift", texts["build"])
	var changes strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for _, line := range jobtest.LineDiff(jobtest.Lines(t, job.OpenShift, texts["build"]), jobtest.Lines(t, job.OpenShift, texts[name])) {
			changes.WriteString(name + " " + line + "\n")
		}
	}
	compare(t, "around.txt", changes.String())
	for _, c := range []struct {
		want  string
		image string
		a     kube.Around
		array string
	}{
		{"not an address for a manifest", "sci", kube.Around{Build: &kube.Build{Git: "https://u:hunter2@git.example.org/x"}}, ""},
		{"not an address for a manifest", "sci", kube.Around{Build: &kube.Build{Git: "https://hunter2@git.example.org/a@b/x"}}, ""},
		{"NAME or NAME:TAG", "Registry/sci", kube.Around{Deploy: true}, ""},
		{"OpenShift supports", "sci", kube.Around{Build: &kube.Build{Arch: "POWER9"}}, ""},
		{"not of the form NAME=VALUE", "sci", kube.Around{Build: &kube.Build{Args: []string{"1x"}}}, ""},
		{"write https://git.example.org/x#REF:DIR", "sci", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x?token=hunter2"}}, ""},
		{"remove one of them", "sci", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x#main:a", ContextDir: "b"}}, ""},
		{"outside the repository", "sci", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x#main:../a"}}, ""},
		{"istag/[PROJECT/]NAME:TAG", "sci", kube.Around{Build: &kube.Build{Base: "istag/a/b/c:1"}}, ""},
		{"not an image reference", "sci", kube.Around{Build: &kube.Build{Base: "a b"}}, ""},
		{"each build would start the next one", "sci:1", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x", Base: "istag/sci:1"}}, ""},
		{"name it with --git", "sci", kube.Around{Build: &kube.Build{Webhooks: []string{"github=hook"}}}, ""},
		{"KIND=SECRET", "sci", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x", Webhooks: []string{"github"}}}, ""},
		{"github, gitlab, bitbucket or generic", "sci", kube.Around{Build: &kube.Build{Git: "https://git.example.org/x", Webhooks: []string{"gitea=hook"}}}, ""},
		{"leave deploy or --array out", "sci", kube.Around{Deploy: true}, "1-3"},
	} {
		j := jobtest.With(func(j *job.Job) { j.Image, j.Array = c.image, jobtest.Array(t, c.array) })
		_, _, err := kube.RenderAround(j, c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("RenderAround(%+v) gave %v; want %q", c.a, err, c.want)
		}
	}
}

// TestPodsRefuse checks the messages for settings that pods do not support.
func TestPodsRefuse(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*job.Job)
	}{
		{"cannot order Jobs", func(j *job.Job) { j.After = []string{"17"} }},
		{"--measure needs hpcc in the image", func(j *job.Job) { j.Measure = true }},
		{"at most 100000", func(j *job.Job) { j.Array = jobtest.Array(t, "1-100001") }},
		{"whose tasks have 2 nodes", func(j *job.Job) { j.Array, j.Nodes = jobtest.Array(t, "1-2"), 2 }},
		{"one process on each node (--tasks-per-node 1)", func(j *job.Job) { j.Nodes, j.TasksPerNode = 2, 2 }},
		{"not a field of a pod; write YAML", func(j *job.Job) { j.Native = []string{"--x"} }},
		{"does not send mail", func(j *job.Job) { j.Mail = "u@example.org" }},
		{"and no earlier signal", func(j *job.Job) { j.Warning = job.Warning{Signal: "USR1", Lead: time.Minute, Steps: false} }},
		{"needs the logs on a volume", func(j *job.Job) { j.Tensorboard = "/logs" }},
		{"two volumes", func(j *job.Job) {
			j.Pod.Volumes = []job.Volume{{Claim: "a", Path: "/x", ReadOnly: false}, {Claim: "b", Path: "/x", ReadOnly: false}}
		}},
		{"two ports", func(j *job.Job) { j.Pod.Ports = []job.Port{{Name: "a", Number: 1}, {Name: "a", Number: 2}} }},
		{"not of the form KEY=VALUE", func(j *job.Job) { j.Pod.NodeLabels = []string{"a b"} }},
		{"not one of always", func(j *job.Job) { j.Pod.Pull = "Sometimes" }},
		{"limit of 1048576", func(j *job.Job) { j.Args = []string{strings.Repeat("x", 1<<20)} }},
	} {
		if _, _, err := Render(jobtest.With(c.change), job.Kubernetes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Render gave %v; want %q", err, c.want)
		}
	}
}

// rendered returns a script or a manifest, with its notes.
func rendered(t *testing.T, r rendering) string {
	t.Helper()
	got, notes, err := Render(r.job, r.target)
	if err != nil {
		t.Errorf("Render(%s, %s): %v", r.name, r.target, err)
		return ""
	}
	// How many tasks run at once here is the machine's affair.
	if r.target == job.Local && !r.job.Array.IsZero() && r.job.Array.Limit != 1 {
		got = regexp.MustCompile(`--parallel=\d+`).ReplaceAllString(got, "--parallel=N")
	}
	if r.target.Pods() && !r.job.Interactive {
		return withNotes(got, notes) // testdata/clusters/kube has the server itself look
	}
	check := exec.Command("bash", "-n")
	check.Stdin = strings.NewReader(got)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("bash refuses the script of %s for %s: %s", r.name, r.target, out)
	}
	return withNotes(got, notes)
}

func withNotes(text string, notes []string) string {
	for _, n := range notes {
		text += "# note: " + n + "\n"
	}
	return text
}

// compare compares a text with its golden file.
func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		testenv.Check(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("%s differs (%v); \"go test ./job/dispatch -update\" writes it anew, read the difference first. Got:\n%s", file, err, got)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestRenderRefuses(t *testing.T) {
	tests := []struct {
		name   string
		job    *job.Job
		target job.Target
		want   string
	}{
		{"no such target", jobtest.Plain(), "moon", "known targets"},
		{"interactive PBS", jobtest.With(func(j *job.Job) { j.Interactive, j.CPUs = true, 2 }), "pbs", "qsub -I -l select=1:ncpus=2:ompthreads=2, and in that shell: /usr/bin/hpcc run sci -- python main.py"},
		{"uneven PBS", jobtest.With(func(j *job.Job) { j.Tasks, j.Nodes = 5, 2 }), "pbs", "same number"},
		{"name with a slash", jobtest.With(func(j *job.Job) { j.Name = "a/b" }), "slurm", "job name"},
		{"line break in a directory", jobtest.With(func(j *job.Job) { j.Dir = "/a\n#SBATCH --uid=0" }), "slurm", "line break"},
		{"line break in native options", jobtest.With(func(j *job.Job) { j.Native = []string{"-x\nrm -rf /"} }), "slurm", "line break"},
		{"line break in an image", jobtest.With(func(j *job.Job) { j.Image = "a\nrm -rf /" }), job.Local, "line break"},
		{"blank in a queue", jobtest.With(func(j *job.Job) { j.Queue = "a b" }), "slurm", "queue"},
		{"variable without a name", jobtest.With(func(j *job.Job) { j.Env = []string{"A B=1"} }), "slurm", "NAME=VALUE"},
		{"index without an array", jobtest.With(func(j *job.Job) { j.Args = []string{"x{task}"} }), "slurm", "--array"},
		{"one file for many tasks", jobtest.With(func(j *job.Job) { j.Array, j.Output = jobtest.Array(t, "1-2"), "out" }), "slurm", "overwrite each other"},
		{"interactive array", jobtest.With(func(j *job.Job) { j.Array, j.Interactive = jobtest.Array(t, "1-2"), true }), "slurm", "interactive"},
		{"tasks that do not fit", jobtest.With(func(j *job.Job) { j.Nodes, j.TasksPerNode, j.Tasks = 2, 2, 5 }), "slurm", "do not fit"},
		{"negative", jobtest.With(func(j *job.Job) { j.CPUs = -1 }), "slurm", "negative"},
		{"record of a job with --ray", jobtest.With(func(j *job.Job) { j.Ray = true }), "slurm", "submitted with --ray"},
		{"GPUs that cannot be shared out", jobtest.With(func(j *job.Job) { j.GPUs, j.CPUs = 2, 4 }), "gridengine", "request a multiple"},
		{"service links set twice", jobtest.With(func(j *job.Job) { j.Pod.CleanEnv, j.Native = true, []string{"enableServiceLinks: true"} }), job.Kubernetes, "--clean-env sets enableServiceLinks"},
		{"waiting here", jobtest.With(func(j *job.Job) { j.After = []string{"1"} }), job.Local, "no queue"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := Render(test.job, test.target)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Render = %v; want an error with %q", err, test.want)
			}
		})
	}
}

// A script does not grow with its array.
func TestRenderManyTasks(t *testing.T) {
	small, _, _ := Render(jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "1-8") }), "slurm")
	large, _, err := Render(jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "1-100000") }), "slurm")
	if err != nil || len(large) > len(small)+10 {
		t.Errorf("100,000 tasks: %d bytes, %v; 8 tasks: %d bytes", len(large), err, len(small))
	}
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	begun := job.Task{Index: 10, Host: "n1", Start: time.Now()}
	ended := job.Task{Index: 2, Host: "n2", Start: time.Now(), End: time.Now(), Exit: 3}
	for _, task := range []job.Task{begun, ended} {
		testenv.Check(t, task.Write(dir))
	}
	os.WriteFile(filepath.Join(dir, ".new-1"), []byte("{"), 0o644) // left by one that was killed
	os.WriteFile(filepath.Join(dir, "task.x.json"), []byte("{"), 0o644)
	got, err := job.Tasks(dir)
	if err != nil || len(got) != 2 || got[0].Index != 2 || got[0].OK() || !got[0].Ended() || got[1].Ended() {
		t.Errorf("Tasks = %+v, %v; want 2, which failed, and 10, which runs", got, err)
	}
	os.WriteFile(filepath.Join(dir, "task.3.json"), []byte("{"), 0o644)
	if _, err := job.Tasks(dir); err == nil || !strings.Contains(err.Error(), "task.3.json") {
		t.Errorf("Tasks with a broken record: %v; want an error that names it", err)
	}
}

func TestStatusOfALocalJobThatWasKilled(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{Cluster: Cluster{Target: job.Local}, Native: node.ProcessID(os.Getpid()), Submitted: time.Now(), Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "1-3") })}
	home, err := s.directory(dir)
	testenv.Check(t, err)
	(&job.Task{Index: 1, Start: time.Now(), End: time.Now()}).Write(home)
	(&job.Task{Index: 2, Start: time.Now()}).Write(home)
	for _, test := range []struct {
		native, want           string
		running, waiting, lost int
	}{
		{node.ProcessID(os.Getpid()), "running", 1, 1, 0},
		{strings.Replace(node.ProcessID(os.Getpid()), "/"+itoa(os.Getpid())+"/", "/4194303/", 1), "lost", 0, 0, 2},
		{node.ProcessID(os.Getpid()) + "1", "lost", 0, 0, 2}, // another process with this pid
	} {
		s.Native = test.native
		testenv.Check(t, s.write(home))
		list, _, err := Statuses(t.Context(), dir, []string{s.ID})
		if err != nil || len(list) != 1 {
			t.Fatalf("Statuses = %v, %v", list, err)
		}
		if st := list[0]; st.State() != test.want || st.Done != 1 || st.Running != test.running || st.Waiting != test.waiting || st.Lost != test.lost {
			t.Errorf("native %s: state %s, %d done, %d running, %d waiting, %d lost; want %s, 1, %d, %d, %d",
				test.native, st.State(), st.Done, st.Running, st.Waiting, st.Lost, test.want, test.running, test.waiting, test.lost)
		}
	}
}

// A job of a newer hpcc is reported and does not count as done.
func TestStatusOfAnUnknownTarget(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{Cluster: Cluster{Target: "quantum"}, Native: "7", Job: jobtest.Plain()}
	home, err := s.directory(dir)
	testenv.Check(t, err)
	testenv.Check(t, s.write(home))
	list, warnings, err := Statuses(t.Context(), dir, nil)
	if err != nil || len(list) != 1 || list[0].State() != "waiting" || len(warnings) != 1 || !strings.Contains(warnings[0], `target "quantum"`) {
		t.Errorf("Statuses = %+v, %q, %v; want one that waits, and a warning", list, warnings, err)
	}
}

// twoJobs makes two jobs that this process stands for, and returns their directories.
func twoJobs(t *testing.T, dir string) (homes []string) {
	for range 2 {
		s := &Submission{Cluster: Cluster{Target: job.Local}, Native: node.ProcessID(os.Getpid()), Submitted: time.Now(), Job: jobtest.Plain()}
		home, err := s.directory(dir)
		testenv.Check(t, err)
		testenv.Check(t, s.write(home))
		homes = append(homes, home)
	}
	return homes
}

// A record that cannot be read hides neither its job nor another one.
func TestStatusesTornRecord(t *testing.T) {
	dir := t.TempDir()
	homes := twoJobs(t, dir)
	testenv.Check(t, os.WriteFile(filepath.Join(homes[1], "task.0.json"), []byte(`{"index":0,"sta`), 0o600))
	for _, ids := range [][]string{nil, {filepath.Base(homes[1])}} {
		list, warnings, err := Statuses(t.Context(), dir, ids)
		if err != nil || len(list) != 2-len(ids) || len(warnings) != 1 || !strings.Contains(warnings[0], "task.0.json") {
			t.Errorf("%q: %d jobs, %q, %v; want all, and a warning", ids, len(list), warnings, err)
		}
	}
}

// An unreadable job.json hides no other job. A command that names its job reports why.
func TestStatusesTornJob(t *testing.T) {
	for what, damage := range map[string]func(b []byte) []byte{
		"one bit":   func(b []byte) []byte { b[bytes.Index(b, []byte("submitted"))+14] ^= 1; return b },
		"cut to 0":  func([]byte) []byte { return nil },
		"all zeros": func(b []byte) []byte { return make([]byte, len(b)) },
	} {
		dir := t.TempDir()
		homes := twoJobs(t, dir)
		file := filepath.Join(homes[0], "job.json")
		b, err := os.ReadFile(file)
		testenv.Check(t, err)
		testenv.Check(t, os.WriteFile(file, damage(b), 0o644))
		id := filepath.Base(homes[0])
		list, warnings, err := Statuses(t.Context(), dir, nil)
		if err != nil || len(list) != 1 || list[0].ID != filepath.Base(homes[1]) || len(warnings) != 1 || !strings.Contains(warnings[0], "job.json") {
			t.Errorf("%s: %d jobs, %q, %v; want the other one, and a warning", what, len(list), warnings, err)
		}
		var unreadable *unreadableJobError
		if _, _, err := Statuses(t.Context(), dir, []string{id}); !errors.As(err, &unreadable) {
			t.Errorf("%s: Statuses of it: %v", what, err)
		}
		if _, err := Find(dir, id); !errors.As(err, &unreadable) {
			t.Errorf("%s: Find: %v", what, err)
		}
		if _, err := Find(dir, filepath.Base(homes[1])); err != nil {
			t.Errorf("%s: Find of the other: %v", what, err)
		}
	}
}

// Jobs that begin in one second have different ids.
func TestDirectory(t *testing.T) {
	dir, seen := t.TempDir(), map[string]bool{}
	for range 5 {
		s := &Submission{Job: jobtest.Plain(), Submitted: time.Unix(0, 0)}
		if _, err := s.directory(dir); err != nil || seen[s.ID] {
			t.Fatalf("directory: id %q again, %v", s.ID, err)
		}
		seen[s.ID] = true
	}
}

// A sweep of 100,000 is one small script, made at once.
func TestRenderManyParams(t *testing.T) {
	begin := time.Now()
	p, err := job.ParseParams([]string{"a=1..1000", "b=1..100"}, "", "")
	testenv.Check(t, err)
	j := jobtest.With(func(j *job.Job) {
		j.Params, j.Array, j.Args = p, jobtest.Array(t, "1-100000"), []string{"x", "{a}", "{b}"}
	})
	script, _, err := Render(j, "slurm")
	if err != nil || len(script) > 1000 {
		t.Errorf("%d bytes, %v", len(script), err)
	}
	t.Log("made in", time.Since(begin))
}
