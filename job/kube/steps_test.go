package kube

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/testenv"
)

// cannedAPI answers requests by the path and records them. Other paths do not exist.
type cannedAPI struct {
	answers map[string]string
	asked   []string
}

func (c *cannedAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked = append(c.asked, r.URL.Path)
	res := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Request: r, Header: http.Header{}}
	text, ok := c.answers[r.URL.Path]
	if !ok {
		res.StatusCode, res.Status = http.StatusNotFound, "404 Not Found"
	}
	res.Body = io.NopCloser(strings.NewReader(text))
	return res, nil
}

const (
	podsPath   = "/api/v1/namespaces/restricted/pods"
	eventsPath = "/api/v1/namespaces/restricted/events"
)

// stepReader returns a reader whose API gives these answers.
func stepReader(t *testing.T, answers map[string]string) (*StepReader, *cannedAPI) {
	t.Helper()
	c := &cannedAPI{answers: answers}
	s := &StepReader{Selector: "workflows.argoproj.io/workflow in (w)"}
	s.start(t.Context())
	s.reader.api = &Proxy{namespace: "restricted", client: &http.Client{Transport: c}}
	return s, c
}

// stepOf returns a step that began a minute ago.
func stepOf(pod, host, message string) batch.Attempt {
	return batch.Attempt{Task: job.Task{Native: pod, Host: host, Start: time.Now().Add(-time.Minute)}, Message: message}
}

// captured returns a list that the API server of Kubernetes 1.34 printed for a workflow of three steps:
// none of them starts.
func captured(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/steps/" + name)
	testenv.Check(t, err)
	return string(b)
}

// TestStepReasons explains steps that do not start from the pods and events of a real cluster, and counts
// the requests.
func TestStepReasons(t *testing.T) {
	mount := stepOf("why-2mjmp-mount-3250001115", "node", "PodInitializing")
	pull := stepOf("why-2mjmp-pull-1796294785", "node", `ImagePullBackOff: Back-off pulling image "registry.example/lab/none:1"`)
	fits := stepOf("why-2mjmp-fits-2052810206", "", "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")
	begun := mount
	begun.Start = time.Now()
	noQuota := stepOf("w-x-1", "", `pods "w-x-1" is forbidden: exceeded quota: compute, requested: limits.cpu=4, used: limits.cpu=8, limited: limits.cpu=10`)
	const (
		mounts = `secret none cannot be mounted on node node: secret "none" not found; create it; the pod then starts`
		pulls  = `ImagePullBackOff: failed to pull and unpack image`
		lacks  = `no node of 1 fits: 1 insufficient cpu (999 requested); request less with --cpus, or wait until other jobs end; "hpcc nodes" shows what nodes have`
	)
	for _, c := range []struct {
		name, want string
		steps      []batch.Attempt
		requests   string
	}{
		{"mount", mounts, []batch.Attempt{mount}, "pods events"},
		{"pull", pulls, []batch.Attempt{pull}, "pods"},
		{"fits", lacks, []batch.Attempt{fits}, "pods"},
		{"all", "1 of 3 pods: " + mounts, []batch.Attempt{fits, pull, mount}, "pods events"},
		{"one of them begins", "1 of 2 pods: " + lacks, []batch.Attempt{fits, begun}, "pods"},
		{"it begins", "", []batch.Attempt{begun}, ""},
		{"quota", "exceeded quota compute of the namespace: limits.cpu: 4 more, with 8 of 10 in use; request less with --cpus", []batch.Attempt{noQuota}, ""},
		{"a lock of Argo", "Waiting for ns/lock. Lock status: 0/1", []batch.Attempt{stepOf("w-y-1", "", "Waiting for ns/lock. Lock status: 0/1")}, "pods"},
	} {
		s, api := stepReader(t, map[string]string{podsPath: captured(t, "pods.json"), eventsPath: captured(t, "events.json")})
		got := s.Reason(t.Context(), c.steps, nil)
		if !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("%s:\n%q; want\n%q", c.name, got, c.want)
		}
		var asked []string
		for _, p := range api.asked {
			asked = append(asked, p[strings.LastIndexByte(p, '/')+1:])
		}
		if got := strings.Join(asked, " "); got != c.requests {
			t.Errorf("%s: requests for %q; want %q", c.name, got, c.requests)
		}
	}
}

// TestStepsWithoutAPI explains the same steps by their messages and the events that an Argo server gives.
func TestStepsWithoutAPI(t *testing.T) {
	var list struct{ Items []json.RawMessage }
	testenv.Check(t, json.Unmarshal([]byte(captured(t, "events.json")), &list))
	asked := 0
	s := &StepReader{Events: func(string) []json.RawMessage { asked++; return list.Items }}
	for _, c := range []struct {
		step batch.Attempt
		want string
	}{
		{stepOf("why-2mjmp-mount-3250001115", "node", "PodInitializing"), `volume keys cannot be mounted on node node: secret "none" not found; create it; the pod then starts`},
		{stepOf("why-2mjmp-pull-1796294785", "node", `ImagePullBackOff: Back-off pulling image "registry.example/lab/none:1"`), `ImagePullBackOff: Failed to pull image "registry.example/lab/none:1": failed to pull and unpack`},
		{stepOf("why-2mjmp-fits-2052810206", "", "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."), "no node of 1 fits: 1 insufficient cpu; request less"},
		{stepOf("why-2mjmp-other-1", "node", "PodInitializing"), ""},
	} {
		if got := s.Reason(t.Context(), []batch.Attempt{c.step}, nil); !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("%s:\n%q; want\n%q", c.step.Native, got, c.want)
		}
	}
	if asked != 1 {
		t.Errorf("%d requests for events; want 1", asked)
	}
	if got := s.Reason(t.Context(), nil, []batch.Attempt{stepOf("why-2mjmp-mount-3250001115", "node", "")}); got != "" {
		t.Errorf("running step: %q", got)
	}
}

// TestStepsRunning explains running steps that do not go on: the node is lost, and Kueue holds a pod.
func TestStepsRunning(t *testing.T) {
	running := `"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]`
	for _, c := range []struct {
		name, pod, want string
		waits           bool
	}{
		{"goes on", `{"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", ` + running + `}}`, "", false},
		{"node not ready", `{"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], ` + running + `}}`, "node n1 does not respond; the cluster removes the pod after some minutes", false},
		{"node lost", `{"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", ` + running + `}}`, `node n1 does not respond: the pod should have ended at `, false},
		{"preempted", `{"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}], ` + running + `}}`, "preempted by a pod of higher priority (PreemptionByScheduler: m)", false},
		{"set of containers", `{"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "a", "state": {"running": {}}}]}}`, "", false},
		{"Kueue", `{"metadata": {"name": "p", "uid": "u1", "labels": {"kueue.x-k8s.io/queue-name": "team"}}, "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "m"}]}}`, "queue team: waits until other jobs release cpu (2 more needed in flavor f)", true},
	} {
		s, _ := stepReader(t, map[string]string{
			podsPath: `{"items": [` + c.pod + `]}`, eventsPath: `{"items": []}`,
			"/apis/kueue.x-k8s.io": `{"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}}`,
			"/apis/kueue.x-k8s.io/v1beta1/namespaces/restricted/workloads": `{"items": [{"metadata": {"labels": {"kueue.x-k8s.io/job-uid": "u1"}},
				"status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor f, 2 more needed"}]}}]}`,
		})
		steps := []batch.Attempt{stepOf("p", "n1", "")}
		got := ""
		if c.waits {
			got = s.Reason(t.Context(), steps, nil)
		} else {
			got = s.Reason(t.Context(), nil, steps)
		}
		if !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("%s:\n%q; want\n%q", c.name, got, c.want)
		}
	}
}

// TestStepProblems explains steps that ended, by the messages of Argo 3.5 to 3.7, the pod or its events.
func TestStepProblems(t *testing.T) {
	pods := `{"items": [{"metadata": {"name": "drained"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Failed",
		"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}],
		"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}]}}]}`
	events := `{"items": [
		{"type": "Normal", "reason": "Preempted", "message": "Preempted by pod u2 on node n1", "involvedObject": {"kind": "Pod", "name": "preempted"}, "eventTime": "2026-01-01T00:00:00Z"},
		{"type": "Warning", "reason": "FailedKillPod", "message": "later", "involvedObject": {"kind": "Pod", "name": "preempted"}, "eventTime": "2026-01-01T00:01:00Z"},
		{"type": "Normal", "reason": "TaintManagerEviction", "message": "Marking for deletion Pod restricted/tainted", "involvedObject": {"kind": "Pod", "name": "tainted"}, "eventTime": "2026-01-01T00:00:00Z"}]}`
	for _, c := range []struct {
		pod, message string
		exit         int
		want         string
		requests     []string
	}{
		{"a", "main: Error (exit code 1): connection refused", 1, "main: Error (exit code 1): connection refused", nil},
		{"b", "main: OOMKilled (exit code 137)", 137, "killed because it used more than its memory (OOMKilled); raise the limit with --mem", nil},
		{"c", "The node was low on resource: ephemeral-storage. Threshold quantity: 1", ExitLost, "evicted: The node was low on resource: ephemeral-storage", nil},
		{"d", `Pod failed before init container starts due to ErrImagePull: manifest unknown`, ExitLost, `ErrImagePull: manifest unknown; "hpcc deploy"`, nil},
		{"e", `pods "e" is forbidden: maximum memory usage per Container is 2Gi, but limit is 4Gi`, ExitLost, `pods "e" is forbidden: maximum memory usage per Container is 2Gi, but limit is 4Gi; request an amount in this range with --mem`, nil},
		{"drained", "main: Error (exit code 143)", 143, "evicted, as when administrators drain node n1 (EvictionByEvictionAPI: Eviction API: evicting); --retry N", []string{podsPath}},
		{"preempted", "pod deleted", ExitLost, "preempted by a pod of higher priority (Preempted: Preempted by pod u2 on node n1); --retry N", []string{podsPath, eventsPath}},
		{"tainted", "pod deleted", ExitLost, "ended because node n1 failed or was drained (TaintManagerEviction: Marking for deletion Pod restricted/tainted); --retry N", []string{podsPath, eventsPath}},
		{"f", "pod deleted", ExitLost, "pod deleted", []string{podsPath, eventsPath}},
	} {
		s, api := stepReader(t, map[string]string{podsPath: pods, eventsPath: events})
		a := stepOf(c.pod, "n1", c.message)
		a.Exit = c.exit
		if got := s.Problem(t.Context(), &a); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s:\n%q; want\n%q", c.pod, got, c.want)
		}
		if !slices.Equal(api.asked, c.requests) {
			t.Errorf("%s: requests %q; want %q", c.pod, api.asked, c.requests)
		}
	}
}
