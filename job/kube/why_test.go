package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"hpcc/job"
)

// TestReasons checks the words for facts in the form in which Kubernetes 1.29 to 1.34, their kubelets,
// container runtimes and Kueue write them.
func TestReasons(t *testing.T) {
	about := subject{node: "n1", queue: "team", claim: "volume claim data", name: "p1", requests: "cpu=8,memory=64Gi,nvidia.com/gpu=4"}
	for _, c := range []struct {
		from            source
		reason, message string
		want            []string // parts of the explanation; none: it needs no explanation
	}{
		{starting, "ContainerCreating", "", nil},
		{starting, "PodInitializing", "", nil},
		{starting, "ImagePullBackOff", "no such\nthing", []string{`ImagePullBackOff: no such thing; "hpcc deploy"`}},
		{starting, "ErrImagePull", `failed to pull and unpack image "r.example/x:1": failed to resolve reference "r.example/x:1": unexpected status from HEAD request: 401 Unauthorized`, []string{"the registry refuses the node; --pull-secret"}},
		{starting, "ErrImagePull", `rpc error: code = Unknown desc = failed to resolve reference: dial tcp: lookup r.example: no such host`, []string{"the node does not reach the registry"}},
		{starting, "ImagePullBackOff", `Back-off pulling image "r.example/x:1": ErrImagePull: rpc error: code = NotFound desc = failed to pull "r.example/x:1": not found`, []string{`ImagePullBackOff: failed to pull "r.example/x:1": not found; "hpcc deploy"`}},
		{starting, "ImagePullBackOff", `Back-off pulling image "r.example/x:1"`, []string{`ImagePullBackOff: Back-off pulling image "r.example/x:1"; "hpcc deploy"`}},
		{starting, "ErrImagePull", `toomanyrequests: You have reached your pull rate limit`, []string{"the registry limits anonymous pulls"}},
		{starting, "ErrImagePull", `no match for platform in manifest: not found`, []string{`"hpcc build --platform"`}},
		{starting, "ErrImageNeverPull", "", []string{"--pull never"}},
		{starting, "CreateContainerConfigError", "container has runAsNonRoot and image will run as root", []string{"--uid NUMBER"}},
		{starting, "CreateContainerConfigError", `secret "keys" not found`, []string{`secret "keys" not found; create it`}},
		{event, "Failed", `Failed to pull image "r.example/x:1": rpc error: code = NotFound desc = not found`, []string{`Failed to pull image "r.example/x:1": not found; "hpcc deploy"`}},

		{starting, "", "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod.",
			[]string{`no node of 3 fits: 1 reserved by taint node-role.kubernetes.io/control-plane, 2 insufficient nvidia.com/gpu (4 requested); request less with --gpus, or wait until other jobs end; "hpcc nodes"`}},
		{starting, "", "0/9 nodes are available: 4 Insufficient cpu, 5 Insufficient memory, 9 Too many pods. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
			[]string{"4 insufficient cpu (8 requested), 5 insufficient memory (64Gi requested), 9 no room for another pod; request less with --cpus, --mem, or wait"}},
		{starting, "", "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable.",
			[]string{"1 without the requested labels or names, 1 closed for new pods; change --gpu-type, --node-label"}},
		{starting, "", "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 1 node(s) had untolerated taint {nvidia.com/gpu: present}.",
			[]string{"1 not ready, 1 reserved for pods with GPUs; request one with --gpus"}},
		{starting, "", "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.", []string{"no node of 1 fits: 1 reserved or not ready, by a taint"}},
		{starting, "", "0/2 nodes are unavailable: 2 Insufficient cpu.", []string{"no node of 2 fits: 2"}}, // Volcano's words, from its source
		{starting, "Unschedulable", "pod group is not ready, 2 Pending, 4 minAvailable; Pending: 2 Unschedulable", []string{"waits until all 4 pods of the job fit at once"}},
		{starting, "", "Pod lab/x-0 can possibly be assigned to n1, once minAvailable is satisfied", []string{"fits on node n1, and waits until all pods"}},
		{starting, "", "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", []string{"2 in use by other jobs; leave out --exclusive"}},
		{starting, "", `0/1 nodes are available: persistentvolumeclaim "x" not found. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`, []string{`no node of 1 fits: persistentvolumeclaim "x" not found`}},
		{starting, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", []string{"held by a scheduling gate"}},

		{event, "FailedMount", "MountVolume.SetUp failed for volume \"pv1\" : mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs 10.0.0.9:/x /var/lib/kubelet/x\nOutput: mount.nfs: No route to host",
			[]string{"volume claim data cannot be mounted on node n1: ", "mount.nfs: No route to host; the node does not reach the storage server"}},
		{event, "FailedMount", `Unable to attach or mount volumes: unmounted volumes=[volume-1], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition`, []string{"cannot be mounted on node n1: ", "timed out waiting for the condition; the node does not reach"}},
		{event, "FailedMount", "MountVolume.SetUp failed for volume \"pv1\" : mount failed: exit status 32\nOutput: mount.nfs: access denied by server while mounting 10.0.0.9:/x", []string{"access denied by server", "the storage server refuses the node"}},
		{event, "FailedMount", `MountVolume.SetUp failed for volume "secret-1" : secret "keys" not found`, []string{`secret "keys" not found; create it`}},
		{event, "FailedMount", "MountVolume.SetUp failed for volume \"pv1\" : mount failed: exit status 32\nOutput: mount: wrong fs type", []string{"volume claim data cannot be mounted on node n1: mount: wrong fs type; ask"}},
		{event, "FailedAttachVolume", `Multi-Attach error for volume "pv1" Volume is already exclusively attached to one node and can't be attached to another`, []string{"is in use on another node", "--array 1-8%1"}},
		{event, "ClaimPending", "no persistent volumes available for this claim and no storage class is set", []string{"volume claim data has no volume: ", "storage class"}},
		{event, "FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error: code = Unknown desc = network plugin is not ready", []string{"node n1 cannot create the pod: Failed to create pod sandbox: network plugin is not ready; report the node"}},

		{answer, "", `Error creating: pods "train-x" is forbidden: exceeded quota: compute, requested: limits.cpu=4,limits.memory=8Gi, used: limits.cpu=8,limits.memory=1Gi, limited: limits.cpu=10,limits.memory=4Gi`,
			[]string{"exceeded quota compute of the namespace: limits.cpu: 4 more, with 8 of 10 in use; limits.memory: 8Gi more, with 1Gi of 4Gi in use; request less with --cpus, --mem, or wait until other jobs end"}},
		{answer, "", `pods "x" is forbidden: failed quota: compute: must specify limits.cpu for: main; limits.memory for: main`, []string{"quota compute of the namespace needs requests of limits.cpu, limits.memory; set --cpus, --mem"}},
		{answer, "", `pods "x" is forbidden: maximum memory usage per Container is 2Gi, but limit is 4Gi`, []string{"request an amount in this range with --mem"}},
		{answer, "", `error validating data: failed to download openapi: the server has asked for the client to provide credentials`, []string{"the login at the cluster has expired", "log in again"}},
		{answer, "", `dial tcp 10.0.0.1:6443: i/o timeout`, []string{"your network or VPN"}},

		{lost, "NodeLost", "the pod should have ended", []string{`node n1 does not respond: the pod should have ended; `, "kubectl delete pod p1 --force"}},
		{lost, "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod", []string{"preempted by a pod of higher priority (PreemptionByScheduler: default-scheduler", "--retry"}},
		{lost, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", []string{"node n1 failed or was drained (DeletionByTaintManager: Taint manager"}},
		{lost, "EvictionByEvictionAPI", "Eviction API: evicting", []string{"evicted, as when administrators drain node n1"}},
		{lost, "DeletionByPodGC", "PodGC: node no longer exists", []string{"its node was removed (DeletionByPodGC: PodGC: node"}},
		{lost, "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.", []string{"preempted or removed (TerminationByKubelet: Pod was terminated in response to imminent node shutdown"}},
		{ended, "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", []string{"evicted: ", "--scratch SIZE"}},
		{ended, "Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi", []string{"evicted: ", "--mem"}},
		{ended, "OOMKilled", "", []string{"raise the limit with --mem"}},
		{ended, "Error", "my own message", nil},
		{ended, "StartError", `exec: "x": not found`, []string{`could not be started: exec: "x": not found`}},
		{ended, "StartError", "exec /bin/x: exec format error", []string{"the image is for another CPU"}},
		{ended, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline", []string{"raise it with --time"}},
		{ended, "UnexpectedAdmissionError", "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 0, which is unexpected", []string{"node n1 has only 0 of the 2 nvidia.com/gpu", "--retry"}},
		{ended, "UnexpectedAdmissionError", "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected", []string{"all nvidia.com/gpu of node n1 are unhealthy"}},
		{ended, "OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 2, capacity: 2", []string{"had too little nvidia.com/gpu left"}},

		{queued, "Pending", "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed", []string{"queue team: waits until other jobs release nvidia.com/gpu (2 more needed in flavor a100)"}},
		{queued, "Pending", "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, request > maximum capacity (40 > 16)", []string{"queue team: the job requests more cpu than flavor default has in total: 40 > 16; request less with --cpus, or choose another --queue"}},
		{queued, "Pending", "Preempted to accommodate a workload (UID: 1) due to prioritization in the ClusterQueue", []string{"queue team: preempted by another job due to prioritization in the ClusterQueue; Kueue starts the job again"}},
		{queued, "Inadmissible", "ClusterQueue cq is inactive", []string{"queue team: ClusterQueue cq is inactive; ask"}},
		{queued, "Inadmissible", "LocalQueue team is terminating or missing", []string{"terminating or missing; ask"}},
		{queued, "FailedToStart", "invalid node selector", []string{"queue team: Kueue cannot start the job: invalid node selector"}},
		{queued, "Deactivated", "The workload is deactivated due to exceeding the maximum number of re-queuing retries", []string{"has deactivated the job: exceeding the maximum number of re-queuing retries; submit it again"}},
		{queued, "Suspended", "", []string{"suspended; ", "kubectl patch job p1"}},
	} {
		got, rank := explain(fact{c.from, c.reason, c.message, about})
		if len(c.want) == 0 && got != "" {
			t.Errorf("%s: %s: %q; want no explanation", c.reason, c.message, got)
		}
		if rank == len(rules) {
			t.Errorf("%s: %s: no rule explains it", c.reason, c.message)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s:\n%q\nwant %q in it", c.reason, c.message, got, want)
			}
		}
	}
}

// TestHostileReasons checks that foreign text is printable and bounded in every explanation, and that it
// cannot insert names or groups.
func TestHostileReasons(t *testing.T) {
	for i := range rules {
		if rules[i].from == 0 || (rules[i].read == nil) == (rules[i].text == "") {
			t.Errorf("rule %d has no source, or not exactly one of text and read", i)
		}
	}
	for _, text := range []string{
		"\x1b[31mred\x1b[0m\r\nline\x00\x07", strings.Repeat("é", 100_000), "{node} $1 $M ${0}", strings.Repeat("0/3 nodes are available: 1 x, ", 10_000),
		"0/1 nodes are available: " + strings.Repeat("1 Insufficient \x1bcpu, ", 5000), "exceeded quota: q, requested: " + strings.Repeat("a=1,", 5000) + " used: x, limited: y",
	} {
		for _, from := range []source{ended, lost, starting, event, queued, answer} {
			for _, reason := range []string{"", "FailedMount", text} {
				checkText(t, fact{from: from, reason: reason, message: text})
			}
		}
	}
	if got, _ := explain(fact{from: event, reason: "FailedMount", message: "Output: {node} $1", about: subject{node: "n1"}}); !strings.Contains(got, "on node n1: {node} $1; ") {
		t.Errorf("%q", got)
	}
}

func checkText(t *testing.T, f fact) {
	t.Helper()
	got, _ := explain(f)
	if len(got) > maxShown+500 || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\x07\x1b\r\n") {
		t.Errorf("explanation of %d bytes: %q", len(got), got[:min(len(got), 300)])
	}
}

func FuzzReasons(f *testing.F) {
	f.Add(uint8(starting), "", "0/3 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 Insufficient cpu. preemption: x")
	f.Add(uint8(answer), "", "exceeded quota: q, requested: a=1, used: a=2, limited: a=3")
	f.Add(uint8(answer), "", "failed quota: q: must specify a for: main; b for: main")
	f.Add(uint8(event), "FailedMount", "Output: mount.nfs: No route to host")
	f.Fuzz(func(t *testing.T, from uint8, reason, message string) {
		checkText(t, fact{from: source(from), reason: reason, message: message})
	})
}

// TestLostNode checks the tasks of pods that cannot end because their node does not respond: the newest is
// running with an explanation; an earlier one, or one that is not retried, has ended.
func TestLostNode(t *testing.T) {
	gone := func(p podState) podState {
		at := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
		p.Metadata.DeletionTimestamp = &at
		return p
	}
	failing := jobState{}
	failing.Status.Conditions = []condition{{Type: "FailureTarget", Status: "True"}}
	for _, c := range []struct {
		name string
		job  jobState
		pods []podState
		want string
	}{
		{"the newest", jobState{}, []podState{gone(podOf("0", "a", 1, ""))}, "a running; 1 run, 0 wait: node n1 does not respond: "},
		{"replaced", jobState{}, []podState{gone(podOf("0", "a", 1, "")), podOf("0", "b", 2, "")}, "a ended because node n1 does not respond; --retry N starts the task again, b running; 1 run, 0 wait: "},
		{"not retried", failing, []podState{gone(podOf("0", "a", 1, ""))}, "a ended because node n1 does not respond; --retry N starts the task again last; 0 run, 0 wait: "},
	} {
		s := c.job.queueState(c.pods)
		var got []string
		for _, a := range s.Tasks {
			state := "running"
			if a.Ended() {
				state = a.Problem
				if a.Last {
					state += " last"
				}
				if a.Exit != ExitLost {
					t.Errorf("%s: exit status %d", c.name, a.Exit)
				}
			}
			got = append(got, a.Native+" "+state)
		}
		text := fmt.Sprintf("%s; %d run, %d wait: %s", strings.Join(got, ", "), s.Running, s.Waiting, readerWithout().job(&c.job, c.pods, &s))
		if !strings.HasPrefix(text, c.want) || (strings.HasSuffix(c.want, "wait: ") && text != c.want) {
			t.Errorf("%s:\n%s; want\n%s", c.name, text, c.want)
		}
	}
}

// readerWithout returns a reader that gets no answers from the cluster.
func readerWithout() *reader {
	r := newReader(context.Background(), nil, nil)
	r.warnings = func() map[string]eventState { return nil }
	r.nodes = map[string]string{"n1": ""}
	return r
}

// TestManyPods checks that the reason of a job with many pods is the most serious, then the most frequent,
// and that one explanation serves all equal pods.
func TestManyPods(t *testing.T) {
	var pods []podState
	for i := range 1000 {
		p := podOf(fmt.Sprint(i), fmt.Sprint("p", i), 1, "")
		p.Status.ContainerStatuses, p.Spec.NodeName, p.Status.Phase = nil, "", "Pending"
		p.Status.Conditions = []condition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu."}}
		pods = append(pods, p)
	}
	bad := podOf("1000", "bad", 1, "")
	bad.Status.ContainerStatuses[0].State.Running = nil
	bad.Status.ContainerStatuses[0].State.Waiting = &struct{ Reason, Message string }{"ErrImagePull", "manifest unknown"}
	o, r := &jobState{}, readerWithout()
	o.Spec.Completions = 1001
	s := o.queueState(pods)
	if got := r.job(o, pods, &s); !strings.HasPrefix(got, "no node of 1 fits: 1 insufficient cpu; ") {
		t.Errorf("%q", got)
	}
	if got := r.job(o, slices.Concat(pods, []podState{bad}), &s); !strings.HasPrefix(got, "1 of 1001 pods: ErrImagePull: manifest unknown; ") {
		t.Errorf("%q", got)
	}
	if len(r.known) > 2 {
		t.Errorf("%d explanations for two different facts", len(r.known))
	}
}

// TestFailurePolicy: a policy delays the replacement of a pod until it has ended, so jobs whose every
// failure counts have none.
func TestFailurePolicy(t *testing.T) {
	for _, c := range []struct {
		retry job.Retry
		want  string
	}{
		{job.Retry{}, ""},
		{job.Retry{Times: 2}, ""},
		{job.Retry{Times: 2, Endings: []string{"node-fail"}}, "Count,FailIndex"},
		{job.Retry{Times: 2, Endings: []string{"exit=9"}}, "FailIndex,FailIndex"},
		{job.Retry{Times: 2, Endings: []string{"exit=9", "preempted"}}, "Count,FailIndex"},
	} {
		var got []string
		if p := newFailurePolicy(&job.Job{Retry: c.retry}, "FailIndex"); p != nil {
			for _, r := range p.Rules {
				got = append(got, r.Action)
			}
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%+v: %s; want %s", c.retry, got, c.want)
		}
	}
}

// TestKueue checks the words for jobs that the controller of Kueue 0.15.0 held on Kubernetes 1.34.4. The
// file has fields of the Jobs and Workloads that it wrote.
func TestKueue(t *testing.T) {
	text, err := os.ReadFile("testdata/kueue.json")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]struct {
		Job      jobState
		Workload workload
	}{}
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	const deactivated = "queue team: Kueue has deactivated the job; submit it again"
	want := map[string]string{
		"quota":                       "queue team: waits until other jobs release nvidia.com/gpu (1 more needed in flavor a100)",
		"quota for two resources":     "queue team: waits until other jobs release cpu (2 more needed in flavor a100), nvidia.com/gpu (2 more needed in flavor a100)",
		"above the quota":             "queue team: the job requests more cpu than flavor a100 has in total: 8 > 4; request less with --cpus, or choose another --queue",
		"array above the quota":       "queue team: the job requests more cpu than flavor a100 has in total: 6 > 4; request less with --cpus, run fewer pods at once (--array 1-100%10, --nodes), or choose another --queue",
		"resource without quota":      "queue cpuonly does not provide nvidia.com/gpu; leave out --gpus, or choose another --queue",
		"missing cluster queue":       "queue orphan: ClusterQueue missing doesn't exist; ask the cluster's administrators, or choose another --queue",
		"deleted queue":               "queue orphan: LocalQueue orphan doesn't exist; ask the cluster's administrators, or choose another --queue",
		"stopped queue":               "queue team: ClusterQueue cq is inactive; ask the cluster's administrators, or choose another --queue",
		"drained queue":               "queue team: suspended, because the queue and its running jobs were stopped (The ClusterQueue is stopped); Kueue starts the job again when the queue is active",
		"stopped local queue":         "queue team: LocalQueue team is inactive; ask the cluster's administrators, or choose another --queue",
		"drained local queue":         "queue team: suspended, because the queue and its running jobs were stopped (The LocalQueue is stopped); Kueue starts the job again when the queue is active",
		"preempted":                   "queue team: waits until other jobs release nvidia.com/gpu (2 more needed in flavor a100); preempted by another job due to prioritization in the ClusterQueue",
		"deactivated":                 deactivated,
		"deactivated while it waited": deactivated,
		"admission check":             "queue cpuonly: waits for admission check approval (Pending)",
	}
	for name, c := range recorded {
		r, uid := readerWithout(), c.Job.Metadata.UID
		if c.Workload.Metadata.Labels[labelJobUID] != uid {
			t.Errorf("%s: the Workload is not that of the Job", name)
		}
		r.workloads = func() map[string]*workload { return map[string]*workload{uid: &c.Workload} }
		s := c.Job.queueState(nil)
		if got := r.job(&c.Job, nil, &s); got != want[name] {
			t.Errorf("%s:\n%s; want\n%s", name, got, want[name])
		}
	}
	if len(recorded) != len(want) {
		t.Errorf("%d recorded jobs, and %d expectations", len(recorded), len(want))
	}
}
