package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hpcc/testdata/helpers/testenv"
)

// The tests of this file compare hpcc with the files of the project BU-CLOUD-S20 (see docs/biggan.md),
// which moved three LSF jobs from POWER to OpenShift by hand.

// bigganDir returns the directory of the project's workflow.
func bigganDir(t *testing.T) string {
	dir := os.Getenv("HPCC_TEST_BIGGAN")
	if dir == "" {
		t.Skip("HPCC_TEST_BIGGAN does not name a checkout of BU-CLOUD-S20/Cloud-native-deployments-of-bare-metal-high-performance-AI-workflows")
	}
	return filepath.Join(dir, "workflows/BigGAN")
}

// bigganObjects returns the objects that a command of hpcc prints, by kind, and its messages.
func bigganObjects(t *testing.T, argv ...string) (map[string]any, string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "hpcc"), argv...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hpcc %v: %v\n%s", argv, err, &stderr)
	}
	bigganJudge(t, out)
	objects := map[string]any{}
	for _, text := range regexp.MustCompile(`(?m)^---$`).Split(string(out), -1) {
		var o map[string]any
		testenv.Check(t, yaml.Unmarshal([]byte(text), &o))
		objects[o["kind"].(string)] = o
	}
	return objects, stderr.String()
}

// bigganJudge has a real API server validate objects, if there is one.
func bigganJudge(t *testing.T, objects []byte) {
	t.Helper()
	cluster := os.Getenv("HPCC_TEST_KUBE")
	if cluster == "" {
		return
	}
	cmd := exec.Command(filepath.Join(cluster, "bin/kubectl"), "--kubeconfig", filepath.Join(cluster, "kubeconfig"), "--namespace", "ocp", "--cache-dir", t.TempDir(),
		"create", "--dry-run=server", "--validate=strict", "-f", "-")
	cmd.Stdin = strings.NewReader(string(objects))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the API server refuses the objects: %v\n%s", err, out)
	}
}

// fieldsOf adds the scalars of a value to a table, by path. Elements of a list with a name have it instead
// of their index, except containers.
func fieldsOf(v any, path string, all map[string]string) map[string]string {
	switch v := v.(type) {
	case map[string]any:
		for k, c := range v {
			fieldsOf(c, strings.TrimPrefix(path+"."+k, "."), all)
		}
	case []any:
		for i, c := range v {
			at := fmt.Sprint(i)
			if m, ok := c.(map[string]any); ok && m["name"] != nil && !strings.HasSuffix(path, "containers") {
				at = fmt.Sprint(m["name"])
			}
			fieldsOf(c, path+"["+at+"]", all)
		}
	default:
		all[path] = fmt.Sprint(v)
	}
	return all
}

// compareFields compares the fields of an object written by hand with those of hpcc's. ours maps
// the begin of a path to that in hpcc's object. Every field that differs needs a reason.
func compareFields(t *testing.T, hand, made any, ours map[string]string, reasons map[string]string) {
	t.Helper()
	got := fieldsOf(made, "", map[string]string{})
	used := map[string]bool{}
	equal := 0
	hands := fieldsOf(hand, "", map[string]string{})
	for _, path := range slices.Sorted(maps.Keys(hands)) {
		at := path
		for from, to := range ours {
			if rest, ok := strings.CutPrefix(path, from); ok {
				at = to + rest
			}
		}
		if v, ok := got[at]; ok && v == hands[path] {
			equal++
			continue
		}
		reason := ""
		for prefix := range reasons {
			if strings.HasPrefix(path, prefix) && len(prefix) > len(reason) {
				reason = prefix
			}
		}
		if reason == "" {
			t.Errorf("%s: %q by hand, %q by hpcc, without a reason", path, hands[path], got[at])
		}
		used[reason] = true
	}
	for prefix := range reasons {
		if !used[prefix] {
			t.Errorf("%s: the reason %q is not needed", prefix, reasons[prefix])
		}
	}
	t.Logf("%d of %d fields are equal", equal, len(hands))
}

// readObject reads a manifest of the project.
func readObject(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	testenv.Check(t, err)
	var o map[string]any
	testenv.Check(t, yaml.Unmarshal(text, &o))
	return o
}

// bigganReasons are the fields of the project's objects that differ in hpcc's objects, each with the
// reason. docs/biggan.md shows them. A path stands for all fields below it.
var bigganReasons = map[string]map[string]string{
	"build": {
		"metadata.name":      "hpcc names the BuildConfig after the image stream",
		"metadata.namespace": "the project of the login",
	},
	"deployment": {
		"apiVersion":                             "DeploymentConfig is deprecated since OpenShift 4.14",
		"kind":                                   "DeploymentConfig is deprecated since OpenShift 4.14",
		"metadata.labels":                        "hpcc's own labels, which its other commands select",
		"metadata.namespace":                     "the project of the login",
		"metadata.selfLink":                      "the server set it; Kubernetes no longer has it",
		"spec.selector":                          "hpcc's own labels",
		"spec.strategy.type":                     "RollingUpdate, the default of a Deployment",
		"spec.template.metadata.labels":          "hpcc's own labels",
		"spec.template.spec.containers[0].name":  "hpcc's container is main",
		"spec.template.spec.containers[0].image": "the trigger fills in the image by its digest",
		"spec.template.spec.containers[0].terminationMessagePath":   "the default of the API",
		"spec.template.spec.containers[0].terminationMessagePolicy": "the default of the API",
		"spec.template.spec.dnsPolicy":                              "the default of the API",
		"spec.template.spec.restartPolicy":                          "the default of the API",
		"spec.template.spec.schedulerName":                          "the default of the API",
		"spec.template.spec.terminationGracePeriodSeconds":          "the default of the API",
		"spec.test":     "only a DeploymentConfig has it",
		"spec.triggers": "a Deployment has the annotation `image.openshift.io/triggers`",
	},
	"pod": {
		"apiVersion": "a Job, whose state and output remain when the pod is gone", "kind": "a Job, whose state and output remain when the pod is gone",
		"spec.containers[0].name": "hpcc's container is main",
		"spec.restartPolicy":      "a job runs once; `--retry` repeats it after a failure",
		"spec.serviceAccount":     "the default, without its token",
	},
	"lsf": {
		"metadata.name":            "the name of the LSF job",
		"spec.containers[0].image": "the image stream resolves the name",
		"spec.containers[0].resources.limits.nvidia.com/gpu": "the LSF job requests 2 on each host",
	},
}

// TestBigGANBuild compares the BuildConfig, which hpcc writes from a job, a repository and an image.
func TestBigGANBuild(t *testing.T) {
	dir := bigganDir(t)
	hand := readObject(t, filepath.Join(dir, "gpu/openshift/configs/buildconfig-gpubiggan.yaml"))
	f := fieldsOf(hand, "", map[string]string{})
	made, _ := bigganObjects(t, "script", "--to", "openshift", "--from", filepath.Join(dir, "gpu/satori/scripts/make_hdf5.lsf"), "--with", "build",
		"--git", f["spec.source.git.uri"]+"#"+f["spec.source.git.ref"]+":"+f["spec.source.contextDir"],
		"--base", f["spec.strategy.dockerStrategy.from.name"], "--no-cache", "--webhook", "github=hook", f["spec.output.to.name"])
	compareFields(t, hand, made["BuildConfig"], nil, bigganReasons["build"])
	got := fieldsOf(made["BuildConfig"], "", map[string]string{})
	if got["spec.triggers[1].github.secretReference.name"] != "hook" {
		t.Errorf("triggers: %v", got)
	}
	if stream := fieldsOf(made["ImageStream"], "", map[string]string{}); stream["metadata.name"]+":tmpdata" != f["spec.output.to.name"] {
		t.Errorf("the build pushes to %s, but the image stream is %v", f["spec.output.to.name"], stream)
	}
	for dockerfile, want := range map[string]string{"gpu/openshift": "", "cpu": "Multiple CMD instructions"} {
		out, err := exec.Command(filepath.Join(bin, "hpcc"), "build", "--check", filepath.Join(dir, dockerfile)).CombinedOutput()
		if (err == nil) != (want == "") || !strings.Contains(string(out), want) {
			t.Errorf("build --check %s: %v\n%s", dockerfile, err, out)
		}
	}
}

// TestBigGANDeployment compares the DeploymentConfig with hpcc's Deployment.
func TestBigGANDeployment(t *testing.T) {
	file := filepath.Join(bigganDir(t), "gpu/openshift/configs/deployconfig-gpubiggan.yaml")
	made, _ := bigganObjects(t, "script", "--to", "openshift", "--from", file, "--with", "deploy", "powerai:biggan-testdata")
	compareFields(t, readObject(t, file), made["Deployment"], nil, bigganReasons["deployment"])
}

// TestBigGANPod compares the pod with hpcc's Job, written from the pod and from the LSF job.
func TestBigGANPod(t *testing.T) {
	dir := bigganDir(t)
	file := filepath.Join(dir, "gpu/openshift/configs/pod-biggan.yaml")
	hand := readObject(t, file)
	inJob := map[string]string{"spec.": "spec.template.spec."}
	made, _ := bigganObjects(t, "script", "--to", "openshift", "--from", file)
	compareFields(t, hand, made["Job"], inJob, bigganReasons["pod"])
	reasons := maps.Clone(bigganReasons["pod"])
	maps.Copy(reasons, bigganReasons["lsf"])
	made, _ = bigganObjects(t, "script", "--to", "openshift", "--from", filepath.Join(dir, "gpu/satori/scripts/biggan128_imagenet.lsf"), "--nodes", "1", "--tasks-per-node", "4",
		"--with", "build", "--pull", "always", "--env", "NVIDIA_VISIBLE_DEVICES=all", "--env", "NVIDIA_REQUIRE_CUDA=cuda>=5.0", "powerai:biggan-testdata")
	compareFields(t, hand, made["Job"], inJob, reasons)
}

// TestBigGANJobs counts the directives of the project's LSF jobs that hpcc refuses.
func TestBigGANJobs(t *testing.T) {
	dir := bigganDir(t)
	for file, refused := range map[string]int{
		"gpu/satori/scripts/make_hdf5.lsf": 0, "gpu/satori/scripts/calculate_inception_moments.lsf": 0,
		"gpu/satori/scripts/biggan128_imagenet.lsf": 2, "../../ReadMe-image/modified job": 2, // four hosts
	} {
		_, report := bigganObjects(t, "script", "--to", "openshift", "--from", filepath.Join(dir, file), "--with", "build", "powerai:tmpdata")
		rows := regexp.MustCompile(`(?m)^\d+ +-\S+ .* refused  .*$`).FindAllString(report, -1)
		if len(rows) != refused || (refused > 0 && !strings.Contains(report, "MPI cannot start processes in another pod")) {
			t.Errorf("%s: %d directives are refused, want %d:\n%s", file, len(rows), refused, report)
		}
	}
}
