package kube

import (
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/jobtest"
)

// TestTakenBack: of what kubectl says when it was refused, the objects that it had made.
func TestTakenBack(t *testing.T) {
	for line, want := range map[string]bool{
		"service/train-261122-034654": true, "job.batch/train": true, "rayjob.ray.io/x": true, "": false,
		`Error from server (AlreadyExists): jobs.batch "train" already exists`: false, "--all": false, "job.batch/x y": false,
	} {
		if got := madeObject().MatchString(line); got != want {
			t.Errorf("%q: %v; want %v", line, got, want)
		}
	}
}

// TestRerunsOfLongNames: the name of a rerun's object is the one that its pods have as a label.
func TestRerunsOfLongNames(t *testing.T) {
	for _, name := range []string{"a", "train-resnet50-imagenet-x", "train-resnet50-imagenet-largechunks-of-all"} {
		if l := job.Label(name + "-261122-003548-r1"); l != job.Label(l) || !strings.HasSuffix(l, "-261122-003548-r1") {
			t.Errorf("label of %s is %s, whose label is %s", name, l, job.Label(l))
		}
	}
}

// TestPodWords holds why a pod waits or ended to what its user can do.
func TestPodWords(t *testing.T) {
	waits := func(reason, message string) string {
		p := podOf("0", "a", 1, "")
		p.Status.ContainerStatuses[0].State.Running = nil
		p.Status.ContainerStatuses[0].State.Waiting = &struct{ Reason, Message string }{reason, message}
		return p.waits()
	}
	ends := func(reason, message, podReason, podMessage string) string {
		p := podOf("0", "a", 1, "bad")
		p.Status.Reason, p.Status.Message = podReason, podMessage
		p.Status.ContainerStatuses[0].State.Terminated.Reason, p.Status.ContainerStatuses[0].State.Terminated.Message = reason, message
		task, _ := p.task()
		return task.Ending()
	}
	for _, c := range []struct{ got, want string }{
		{waits("ContainerCreating", ""), ""},
		{waits("ImagePullBackOff", "no such\nthing"), "no such thing; \"hpcc deploy\""},
		{waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), "--uid NUMBER"},
		{waits("ErrImageNeverPull", ""), "--pull never"},
		{ends("Error", "", "", ""), "status 3"},
		{ends("OOMKilled", "", "", ""), "raise the limit with --mem"},
		{ends("StartError", "exec: \"x\": not found", "", ""), "could not be started: exec: \"x\": not found"},
		{ends("Error", "", "DeadlineExceeded", ""), "raise it with --time"},
		{ends("Error", "", "Evicted", "Pod ephemeral local storage usage exceeds"), "--scratch SIZE"},
	} {
		if !strings.Contains(c.got, c.want) || (c.want == "" && c.got != "") {
			t.Errorf("%q; want %q in it", c.got, c.want)
		}
	}
}

func TestQuantity(t *testing.T) {
	for in, want := range map[string]float64{"500m": 0.5, "2": 2, "64Gi": 64 << 30, "1k": 1000, "3Mi": 3 << 20, "1e3": 1000, "1.5Ki": 1536, "2E": 2e18} {
		if got, ok := parseQuantity(in); !ok || got != want {
			t.Errorf("parseQuantity(%q) = %v, %v; want %v", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "x", "1Xi", "1mi", "Gi"} {
		if got, ok := parseQuantity(in); ok {
			t.Errorf("parseQuantity(%q) = %v", in, got)
		}
	}
	for in, want := range map[int64]string{1 << 30: "1Gi", 1536 << 20: "1536Mi", 1000: "1000", 2048: "2Ki", 3 << 40: "3Ti"} {
		if got := podQuantity(in); got != want {
			t.Errorf("podQuantity(%d) = %s; want %s", in, got, want)
		}
	}
}

// pod is one of a job's, as the server reports it: index, name, when it was made, and how its program ended; "" while it runs.
func podOf(index, name string, made int, ended string) podState {
	var p podState
	p.Metadata.Name = name
	p.Metadata.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": index}
	p.Metadata.CreationTimestamp = time.Unix(int64(made), 0)
	p.Spec.NodeName = "n1"
	c := containerState{Name: MainContainer}
	if ended == "" {
		p.Status.Phase = "Running"
		c.State.Running = &struct{ StartedAt time.Time }{time.Unix(int64(made+1), 0)}
	} else {
		code := map[string]int{"ok": 0, "bad": 3}[ended]
		c.State.Terminated = &struct {
			ExitCode              int
			Reason, Message       string
			StartedAt, FinishedAt time.Time
		}{code, "Error", "", time.Unix(int64(made+1), 0), time.Unix(int64(made+2), 0)}
	}
	p.Status.ContainerStatuses = []containerState{c}
	return p
}

func TestExpandable(t *testing.T) {
	for _, s := range []string{"", "$", "$$", "$$$", "$(A)", "$$(A)", "a$", "$a$(", "$($(x))", "100$$ $(date) ${x}"} {
		e := expandable(s)
		if got := jobtest.Unexpanded(e); got != s {
			t.Errorf("expandable(%q) = %q, of which Kubernetes makes %q", s, e, got)
		}
		if strings.Contains(strings.ReplaceAll(e, "$$", ""), "$(") {
			t.Errorf("expandable(%q) = %q has a variable", s, e)
		}
	}
}
