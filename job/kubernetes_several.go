package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// rayPods is shell that makes a Ray of the pods of a job: the first is its head and runs the program, the
// others lend it what they have.
func rayPods(j *Job) string {
	t := &text{}
	t.line(`if [ "$HPCC_NODE_RANK" != 0 ]; then`)
	t.line(`  until ray start --address="$HPCC_HEAD:6379" --block; do sleep 2; done`)
	t.line("  exit")
	t.line("fi")
	t.line("ray start --head --port=6379 --disable-usage-stats || exit")
	t.line("export RAY_ADDRESS=127.0.0.1:6379")
	t.line(`until [ "$(ray status 2>/dev/null | grep -c ' node_')" -ge "$HPCC_NODES" ]; do sleep 1; done`)
	t.line("%s", quoteAll(slices.Concat(j.entrypoint(), j.Args)))
	t.line("s=$?; ray stop; exit $s")
	return t.String()
}

// operated is the job of several nodes as an operator of the cluster has it.
func (k kubernetes) operated(j *Job, name string) (string, []string, error) {
	if j.Pod.Operator == KubeRay {
		return k.rayJob(j, name)
	}
	return k.mpiJob(j, name)
}

// The operators' own kinds: kubeflow.org/v2beta1 and ray.io/v1.

type mpiObject struct {
	object
	Spec mpiSpec `json:"spec"`
}

type mpiSpec struct {
	SlotsPerWorker int                   `json:"slotsPerWorker"`
	RunPolicy      mpiPolicy             `json:"runPolicy"`
	SSHAuthMount   string                `json:"sshAuthMountPath,omitempty"`
	ReplicaSpecs   map[string]mpiReplica `json:"mpiReplicaSpecs"`
}

type mpiPolicy struct {
	CleanPodPolicy          string `json:"cleanPodPolicy"`
	TTLSecondsAfterFinished int    `json:"ttlSecondsAfterFinished"`
	BackoffLimit            int    `json:"backoffLimit"`
	Suspend                 bool   `json:"suspend,omitempty"`
}

type mpiReplica struct {
	Replicas int         `json:"replicas"`
	Template podTemplate `json:"template"`
}

// mpiJob is a launcher and a worker for each node, between which mpirun finds its way by ssh.
func (k kubernetes) mpiJob(j *Job, name string) (string, []string, error) {
	if j.Ray {
		return "", nil, fmt.Errorf("--ray and --mpi-operator contradict each other: --kuberay is Ray's operator")
	}
	if j.Nodes < 2 {
		return "", nil, fmt.Errorf("--mpi-operator starts processes on several nodes, and the job has one: give --nodes, or leave it out")
	}
	labels := j.labels(name)
	one := *j
	one.Nodes, one.Tasks, one.TasksPerNode = 0, 0, 0
	launcher := one.podSpec(k.target, completionIndex)
	c := &launcher.Containers[0]
	c.Resources = resources{}
	if j.Script == nil {
		c.Args = expandAll(append(mpirun(j), j.Args...))
	}
	several := *j
	several.Script, several.Args = nil, []string{"/usr/sbin/sshd", "-De", "-f", ".sshd_config"}
	several.Nodes, several.Tasks, several.Measure = 0, 0, false
	several.TasksPerNode = j.perNode()
	worker := several.podSpec(k.target, completionIndex)
	worker.Containers[0].Args = several.Args
	worker.ActiveDeadlineSeconds = 0
	spec := mpiSpec{
		SlotsPerWorker: j.perNode(), RunPolicy: mpiPolicy{"Running", int(wholeSeconds(keepEnded)), j.Retry.Times, j.Queue != "" || j.Hold},
		ReplicaSpecs: map[string]mpiReplica{
			"Launcher": {1, podTemplate{meta{Labels: labels}, launcher}},
			"Worker":   {j.Nodes, podTemplate{meta{Labels: labels}, worker}},
		},
	}
	o := &mpiObject{object{"kubeflow.org/v2beta1", "MPIJob", meta{Name: name, Labels: j.queueLabels(name)}}, spec}
	text, err := documents(k.comment(j), o)
	notes := append(j.podNotes(k.target), "the image needs sshd, and an /etc/ssh and a home that its user can read, as the MPI operator's images have")
	return text, notes, err
}

// queueLabels are those of the object itself, with the queue of Kueue.
func (j *Job) queueLabels(name string) map[string]string {
	labels := j.labels(name)
	if j.Queue != "" {
		labels[labelQueue] = j.Queue
	}
	return labels
}

type rayObject struct {
	object
	Spec raySpec `json:"spec"`
}

type raySpec struct {
	Entrypoint               string     `json:"entrypoint"`
	ShutdownAfterJobFinishes bool       `json:"shutdownAfterJobFinishes"`
	TTLSecondsAfterFinished  int        `json:"ttlSecondsAfterFinished"`
	ActiveDeadlineSeconds    int64      `json:"activeDeadlineSeconds,omitempty"`
	BackoffLimit             int        `json:"backoffLimit,omitempty"`
	Suspend                  bool       `json:"suspend,omitempty"`
	SubmissionMode           string     `json:"submissionMode"`
	Cluster                  rayCluster `json:"rayClusterSpec"`
}

type rayCluster struct {
	Head    rayGroup   `json:"headGroupSpec"`
	Workers []rayGroup `json:"workerGroupSpecs,omitempty"`
}

type rayGroup struct {
	Name     string            `json:"groupName,omitempty"`
	Replicas *int              `json:"replicas,omitempty"`
	Min      *int              `json:"minReplicas,omitempty"`
	Max      *int              `json:"maxReplicas,omitempty"`
	Params   map[string]string `json:"rayStartParams"`
	Template podTemplate       `json:"template"`
}

// rayJob is a Ray cluster that lives as long as the program.
func (k kubernetes) rayJob(j *Job, name string) (string, []string, error) {
	if !j.Ray {
		return "", nil, fmt.Errorf("--kuberay is for jobs of --ray")
	}
	if j.measured() {
		return "", nil, fmt.Errorf("--measure: KubeRay starts the program itself and takes its pods away with it, so that what was measured would be lost: leave --kuberay out, and hpcc makes the Ray")
	}
	one := *j
	one.Nodes, one.Args, one.Script, one.Measure = 0, nil, nil, false
	pod := one.podSpec(k.target, completionIndex)
	pod.RestartPolicy, pod.ActiveDeadlineSeconds = "", 0 // KubeRay's
	pod.Containers[0].Args, pod.Containers[0].Command = nil, nil
	template := podTemplate{meta{Labels: j.labels(name)}, pod}
	n := max(j.Nodes, 1) - 1
	o := &rayObject{object{"ray.io/v1", "RayJob", meta{Name: name, Labels: j.queueLabels(name)}}, raySpec{
		Entrypoint: quoteAll(slices.Concat(j.entrypoint(), j.Args)), ShutdownAfterJobFinishes: true, TTLSecondsAfterFinished: int(wholeSeconds(keepRay)),
		ActiveDeadlineSeconds: wholeSeconds(j.Time), BackoffLimit: j.Retry.Times, Suspend: j.Queue != "" || j.Hold, SubmissionMode: "HTTPMode",
		Cluster: rayCluster{
			Head:    rayGroup{Params: map[string]string{}, Template: template},
			Workers: []rayGroup{{Name: "workers", Replicas: &n, Min: &n, Max: &n, Params: map[string]string{}, Template: template}},
		},
	}}
	text, err := documents(k.comment(j), o)
	return text, j.podNotes(k.target), err
}

// keepRay is how long a Ray cluster stays after its program: it holds its nodes, and has the program's last words.
const keepRay = 5 * time.Minute

// operatorPaths are where the objects of operators are, up to the namespace.
var operatorPaths = map[string]string{"mpijobs.kubeflow.org": "/apis/kubeflow.org/v2beta1/", "rayjobs.ray.io": "/apis/ray.io/v1/"}

// operatedJob is what of an MPIJob or RayJob hpcc reads.
type operatedJob struct {
	Status struct {
		Conditions                     []kubeCondition // MPIJob
		CompletionTime                 time.Time
		JobStatus, JobDeploymentStatus string // RayJob
		Reason, Message                string
		StartTime, EndTime             time.Time
	}
}

// operated is how an operator's job stands; nothing where there is none.
func (a *kubeAPI) operated(ctx context.Context, path string, pods []kubePod) (standing, error) {
	o := &operatedJob{}
	err := a.get(ctx, path, o)
	if gone := new(kubeError); errors.As(err, &gone) && gone.code == http.StatusNotFound {
		return standing{}, nil
	}
	return o.standing(pods), err
}

// phase is an operator's word in Kubernetes' own: Complete, Failed, Suspended or ""; with why.
func (o *operatedJob) phase() (phase, why string) {
	for _, c := range o.Status.Conditions {
		if c.Status == "True" && (c.Type == "Succeeded" || c.Type == "Failed" || c.Type == "Suspended") {
			phase, why = strings.Replace(c.Type, "Succeeded", "Complete", 1), cmp.Or(c.Message, c.Reason)
		}
	}
	switch s := &o.Status; {
	case s.JobStatus == "SUCCEEDED":
		return "Complete", ""
	case s.JobStatus == "FAILED" || s.JobStatus == "STOPPED" || s.JobDeploymentStatus == "Failed":
		return "Failed", cmp.Or(s.Message, s.Reason, s.JobStatus)
	case s.JobDeploymentStatus == "Suspended":
		return "Suspended", ""
	}
	return phase, why
}

// standing makes one record: of the operator's word, and of the pod that runs the program.
func (o *operatedJob) standing(pods []kubePod) standing {
	phase, why := o.phase()
	t, begun := &Task{}, false
	i := slices.IndexFunc(pods, func(p kubePod) bool {
		return p.Metadata.Labels["training.kubeflow.org/job-role"] == "launcher" || p.Metadata.Labels["ray.io/node-type"] == "head"
	})
	s := standing{waiting: 1}
	if i >= 0 {
		t, begun = pods[i].task()
		s.reason = pods[i].waits()
	}
	if phase == "Suspended" {
		s.reason = "suspended"
	}
	over := phase == "Complete" || phase == "Failed"
	if !begun && !over {
		return s
	}
	if s.waiting = 0; !over {
		s.running = 1
		t.End, t.Exit, t.Problem = time.Time{}, 0, ""
	} else {
		o.end(t, phase == "Complete", strings.Join(strings.Fields(why), " "))
	}
	t.Index = 0
	s.tasks = []attempt{{Task: *t, last: true}}
	if i >= 0 {
		s.tasks[0].left(&pods[i])
	}
	return s
}

// end ends the record of a job that is over.
func (o *operatedJob) end(t *Task, ok bool, why string) {
	if t.Start.IsZero() {
		t.Start = o.Status.StartTime
	}
	if t.End.IsZero() {
		if t.End = o.Status.CompletionTime; t.End.IsZero() {
			t.End = o.Status.EndTime
		}
		if t.End.Before(t.Start) {
			t.End = t.Start
		}
	}
	switch {
	case ok:
		t.Exit, t.Signal, t.Problem = 0, "", ""
	case t.Exit == 0:
		t.Exit, t.Problem = exitFailed, "the operator says that it failed: "+cmp.Or(why, "and not why")
	}
}

// exitFailed is the status of a program of which an operator says that it failed, and no more.
const exitFailed = 1

// interactive is a shell script that runs a pod with the terminal of the one who runs it.
func (k kubernetes) interactive(j *Job) (string, []string, error) {
	if err := j.podable(k.target); err != nil {
		return "", nil, err
	}
	if j.Nodes > 1 {
		return "", nil, fmt.Errorf("an interactive job of %d nodes: a pod is on one", j.Nodes)
	}
	pod := j.podSpec(k.target, completionIndex)
	c := &pod.Containers[0]
	c.Stdin, c.TTY, c.StdinOnce = true, true, true
	overrides, err := json.Marshal(struct {
		APIVersion string  `json:"apiVersion"`
		Spec       podSpec `json:"spec"`
	}{"v1", pod})
	if err != nil {
		return "", nil, err
	}
	words := []string{kubeCommand(k.target), "run", "--rm", "--stdin", "--tty", "--quiet", "--restart=Never", "--image=" + j.podImage(), "--labels=" + labelText(j.labels(j.Name)), "--overrides=" + string(overrides)}
	t := &text{}
	t.line("#!/bin/bash")
	t.interactive(j)
	t.line(`name=$(printf %%s "$id" | tail -c 45 | tr A-Z_. a-z--)`)
	t.line(`exec %s ${HPCC_KUBE_CONTEXT:+--context="$HPCC_KUBE_CONTEXT"} ${HPCC_KUBE_NAMESPACE:+--namespace="$HPCC_KUBE_NAMESPACE"} "${name##-}"`, quoteAll(words))
	return t.String(), j.podNotes(k.target), nil
}
