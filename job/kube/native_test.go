package kube

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestNativeRefused checks the messages for fields that --native cannot set, with their line.
func TestNativeRefused(t *testing.T) {
	for text, want := range map[string]string{
		"restartPolicy: Always":                                                            "--native:1: restartPolicy: hpcc sets this field: use --retry",
		"a: 1\nactiveDeadlineSeconds: 5":                                                   "--native:2: activeDeadlineSeconds: hpcc sets this field: use --time",
		"containers: [{command: [sh]}]":                                                    "containers[0].command: hpcc sets this field: write the program after the image",
		"containers: [{name: x}, {name: main, args: [a]}]":                                 "containers[1].args: hpcc sets",
		"containers: [{name: x}, {image: y}]":                                              "containers[1]: lacks name",
		"containers: [{securityContext: {privileged: true}}]":                              "containers[0].securityContext.privileged: hpcc's pods obey the profile",
		"initContainers: [{name: i, securityContext: {capabilities: {add: [SYS_ADMIN]}}}]": "initContainers[0].securityContext.capabilities: hpcc's pods obey",
		"securityContext: {runAsNonRoot: false}":                                           "securityContext.runAsNonRoot: hpcc's pods obey",
		"securityContext: {runAsUser: 0e0}":                                                "forbids root", "securityContext: {runAsUser: 0x0}": "forbids root",
		"hostNetwork: true":                                  "hostNetwork: hpcc's pods obey",
		"volumes: [{name: v, hostPath: {path: /}}]":          "volumes[0].hostPath: hpcc's pods obey",
		"containers: [{env: [{name: HPCC_JOB, value: x}]}]":  "containers[0].env[0].name: hpcc sets the variables",
		"metadata: {name: x}":                                "metadata.name: only labels and annotations",
		"metadata: {labels: {hpcc/job: x}}":                  "metadata.labels.hpcc/job: hpcc sets this field",
		"metadata: {labels: {kueue.x-k8s.io/queue-name: x}}": "use --queue",
		"containers: {command: [sh]}":                        "--native:1: containers: want a list", "containers: [[{command: [sh]}]]": "containers[0]: want a mapping", "securityContext: []": "want a mapping",
		"priorityClassName:": "--native:1: priorityClassName: lacks a value",
		"a: &x 1\nb: *x":     "--native:2: b: references",
		"a: 1\na: 2":         "--native:2: a: not a name of a field, or given twice",
		"priority: .inf":     "not a number of JSON",
		"a: 1\nb: [":         "line 2",
		"a: 1\n---\nb: 1":    "more than one YAML document",
		"":                   "not a field of a pod",
		"- a":                "not a field of a pod",
		"a: [" + strings.Repeat("1,", maxManifestFields) + "1]": "more than 2000 fields",
		strings.Repeat("a", maxNative+1):                        "at most 65536",
	} {
		if _, err := readNative([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v; want %q", text, err, want)
		}
	}
}

// nativePod returns a pod with every list of hpcc's, and the given --native.
func nativePod(texts ...string) PodSpec {
	return NewPod(jobtest.With(func(j *job.Job) {
		j.GPUs, j.CPUs, j.Hosts, j.Native = 1, 2, []string{"n1"}, texts
		j.Pod.Volumes = []job.Volume{{Claim: "data", Path: "/data", ReadOnly: false}}
		j.Pod.Secrets = []job.Secret{{Name: "s"}}
	}), job.Kubernetes, completionIndex)
}

var nativeSeeds = []string{
	"priorityClassName: high\nruntimeClassName: kata", "tolerations: [{key: rdma, operator: Exists}]", "containers: [{resources: {limits: {rdma/hca: 1}}}]",
	"containers: [{name: main, env: [{name: A, value: b}], envFrom: [{secretRef: {name: t}}], volumeMounts: [{mountPath: /data, name: volume-1, subPath: x}]}, {name: helper, image: i}]",
	"volumes: [{name: volume-1, emptyDir: {sizeLimit: 1Gi}}, {name: more, emptyDir: {}}]", "nodeSelector: {a: b}\ndnsConfig: {nameservers: [10.0.0.1]}",
	"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: Exists}]}, {matchFields: []}]}}}",
	"topologySpreadConstraints: [{topologyKey: rack, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]\nhostAliases: [{ip: 127.0.0.1, hostnames: [a]}]", "securityContext: {supplementalGroups: [1000]}",
}

// TestNativePatch has kubectl apply the patch for Argo to hpcc's pod: the result is the pod of a Job.
func TestNativePatch(t *testing.T) {
	cluster := os.Getenv("HPCC_TEST_KUBE")
	_, err := os.Stat(cluster)
	testenv.Need(t, "kubectl below HPCC_TEST_KUBE (testdata/clusters/kube/up.sh api starts a server)", err)
	for _, text := range append(nativeSeeds, strings.Join(nativeSeeds[:3], "\n")) {
		pod := nativePod(text)
		plain, err := pod.plain()
		testenv.Check(t, err)
		file := filepath.Join(t.TempDir(), "pod.json")
		data, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"}, "spec": plain})
		testenv.Check(t, os.WriteFile(file, data, 0o644))
		_, patch := pod.Native()
		out, err := exec.Command(filepath.Join(cluster, "bin/kubectl"), "patch", "--local", "--type=strategic", "--filename="+file, "--patch="+`{"spec":`+patch+"}", "--output=json").CombinedOutput()
		if err != nil {
			t.Fatalf("%s: kubectl: %v: %s", text, err, out)
		}
		var got struct{ Spec map[string]any }
		testenv.Check(t, json.Unmarshal(out, &got))
		if want := mergedPod(t, pod); !reflect.DeepEqual(sorted(got.Spec), sorted(want)) {
			g, _ := json.MarshalIndent(got.Spec, "", " ")
			w, _ := json.MarshalIndent(want, "", " ")
			t.Errorf("%s: kubectl's merge is\n%s\nwant\n%s", text, g, w)
		}
	}
}

// mergedPod returns what a server reads of a pod.
func mergedPod(t *testing.T, pod PodSpec) (m map[string]any) {
	t.Helper()
	text, err := json.Marshal(pod)
	testenv.Check(t, err)
	testenv.Check(t, json.Unmarshal(text, &m))
	return m
}

// sorted writes every list of a value as a set: a strategic merge does not keep the order.
func sorted(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = sorted(e)
		}
		return out
	case []any:
		out := map[string]int{}
		for _, e := range v {
			text, _ := json.Marshal(sorted(e))
			out[string(text)]++
		}
		return out
	}
	return v
}

// FuzzNative checks that --native never removes what hpcc set: the program, its security and its queue.
func FuzzNative(f *testing.F) {
	for _, s := range nativeSeeds {
		f.Add(s, "metadata: {labels: {a: 1}}")
	}
	f.Add("containers: {name: main}", "a: [[{b: 1}]]")
	f.Add("spec: 2001-01-01", "a: 99999999999999999999")
	f.Fuzz(func(t *testing.T, a, b string) {
		if _, err := readNative([]string{a, b}); err != nil {
			return
		}
		plain, pod := mergedPod(t, nativePod()), mergedPod(t, nativePod(a, b))
		if pod["restartPolicy"] != "Never" || pod["shareProcessNamespace"] != true {
			t.Errorf("%q, %q: %v", a, b, pod)
		}
		security, _ := pod["securityContext"].(map[string]any)
		containers, _ := pod["containers"].([]any)
		if security["runAsNonRoot"] != true || len(containers) == 0 {
			t.Fatalf("%q, %q: %v", a, b, pod)
		}
		main, before := containers[0].(map[string]any), plain["containers"].([]any)[0].(map[string]any)
		for _, field := range []string{"name", "image", "command", "args"} {
			if !reflect.DeepEqual(main[field], before[field]) {
				t.Errorf("%q, %q: %s is %v; want %v", a, b, field, main[field], before[field])
			}
		}
		limits := main["securityContext"].(map[string]any)
		if limits["allowPrivilegeEscalation"] != false || limits["capabilities"] == nil || limits["privileged"] != nil {
			t.Errorf("%q, %q: %v", a, b, limits)
		}
	})
}
