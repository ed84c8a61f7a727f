package kube

import (
	"errors"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
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

// TestReadError checks the errors of kubectl with an expired login and with an invalid manifest.
func TestReadError(t *testing.T) {
	login := "; log in again (oc login, or your site's login for kubectl)"
	for _, c := range []struct {
		out, want string
		refused   bool
	}{
		{"error: error validating \"/x/script\": error validating data: failed to download openapi: the server has asked for the client to provide credentials; if you choose to ignore these errors, turn validation off with --validate=false\n",
			"the login at the cluster has expired, or the cluster does not know it (the server has asked for the client to provide credentials)" + login, false},
		{"E1126 08:03:47.883605    1007 memcache.go:265] \"Unhandled Error\" err=\"x\"\nerror: You must be logged in to the server (Unauthorized)\n",
			"the login at the cluster has expired, or the cluster does not know it (You must be logged in to the server (Unauthorized))" + login, false},
		{"error: error validating \"/x/script\": error validating data: ValidationError(Job.spec): unknown field \"x\"; if you choose to ignore these errors, turn validation off with --validate=false\n",
			"error validating \"/x/script\": error validating data: ValidationError(Job.spec): unknown field \"x\"", true},
		{"The Workflow \"a\" is invalid: spec.arguments.parameters[0].value: Invalid value: \"integer\"\n",
			"The Workflow \"a\" is invalid: spec.arguments.parameters[0].value: Invalid value: \"integer\"", true},
	} {
		err := Refusal([]byte(c.out), errors.New("exit status 1"))
		if err.Error() != c.want || errors.As(err, new(*batch.NoAnswer)) == c.refused {
			t.Errorf("%q:\n%v; want\n%s", c.out, err, c.want)
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
