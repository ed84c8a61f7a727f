package jobtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hpcc/testdata/helpers/testenv"
)

// A Manifest is a text of Kubernetes' objects, or a script that starts an interactive pod.
type Manifest struct{ Name, Text string }

// CheckManifests has a real API server validate manifests and the pods in them, in a namespace like the
// target's. testdata/clusters/kube/up.sh starts one.
func CheckManifests(t *testing.T, target string, list []Manifest) {
	t.Helper()
	cluster := os.Getenv("HPCC_TEST_KUBE")
	_, err := os.Stat(cluster)
	testenv.Need(t, "an API server in HPCC_TEST_KUBE (testdata/clusters/kube/up.sh api starts one)", err)
	namespace := map[string]string{"kubernetes": "restricted", "openshift": "ocp", "argo": "restricted"}[target]
	dir, documents := t.TempDir(), 0
	for _, m := range list {
		documents += m.split(t, dir)
	}
	if documents == 0 {
		t.Fatal("no manifest found")
	}
	out := judged(t, dir, filepath.Join(cluster, "bin/kubectl"), "--kubeconfig", filepath.Join(cluster, "kubeconfig"), "--namespace", namespace, "--cache-dir", t.TempDir(),
		"create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", dir)
	if n := strings.Count(out, " created (server dry run)\n"); n != documents && !t.Failed() {
		t.Errorf("the server accepted %d of %d documents", n, documents)
	}
}

// CheckWorkflows has the real "argo lint" validate manifests for Argo.
func CheckWorkflows(t *testing.T, list []Manifest) {
	t.Helper()
	argo := os.Getenv("HPCC_TEST_ARGO")
	_, err := os.Stat(argo)
	testenv.Need(t, "Argo's command line in HPCC_TEST_ARGO (testdata/clusters/kube/build.sh argo builds it)", err)
	dir := t.TempDir()
	if len(list) == 0 {
		t.Fatal("no manifest found")
	}
	for _, m := range list {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, m.Name+".yaml"), []byte(m.Text), 0o644))
	}
	judged(t, dir, argo, "lint", "--offline", "--strict", "--no-color", "--output", "simple", dir)
}

// judged runs a validator on the files in dir, and fails with its output.
func judged(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		refused := regexp.MustCompile(`(?m)^.* created \(server dry run\)\n`).ReplaceAll(out, nil)
		t.Errorf("%v: %s", err, strings.ReplaceAll(stderr.String()+string(refused), dir+"/", ""))
	}
	return string(out)
}

// interactivePod returns the pod that "kubectl run" in a script would create.
func interactivePod(t *testing.T, script string) string {
	t.Helper()
	_, text, _ := strings.Cut(script, "'--overrides=")
	text, _, ok := strings.Cut(text, "' ${HPCC_KUBE_CONTEXT")
	var pod map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, `'\''`, "'")), &pod); err != nil || !ok {
		t.Fatalf("the script starts no pod (%v):\n%s", err, script)
	}
	pod["kind"], pod["metadata"] = "Pod", map[string]any{"name": "interactive"}
	out, err := yaml.Marshal(pod)
	testenv.Check(t, err)
	return string(out)
}

var documentEnd = regexp.MustCompile(`(?m)^---$`)

// split writes the documents of a manifest, and each pod template as a pod, to separate
// files: a server validates a pod only as such. It returns the number of files.
func (m *Manifest) split(t *testing.T, dir string) (n int) {
	t.Helper()
	all := m.Text
	if strings.HasPrefix(all, "#!") {
		all = interactivePod(t, all)
	}
	write := func(data []byte) {
		n++
		testenv.Check(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d.yaml", m.Name, n)), data, 0o644))
	}
	for _, text := range documentEnd.Split(all, -1) {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(text), &document); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		if document == nil {
			continue // comments
		}
		write([]byte(text))
		for _, pod := range append(podsIn(document), stepsIn(document)...) {
			data, err := yaml.Marshal(pod)
			data = bytes.ReplaceAll(data, []byte("image: ' '"), []byte("image: named")) // which OpenShift does before there is a pod
			testenv.Check(t, err)
			write(data)
		}
	}
	return n
}

// podsIn returns a pod for each pod template in a document.
func podsIn(value any) (pods []map[string]any) {
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			pods = append(pods, podsIn(v)...)
		}
	case map[string]any:
		template, _ := value["template"].(map[string]any)
		if spec, _ := template["spec"].(map[string]any); spec["containers"] != nil {
			metadata, _ := template["metadata"].(map[string]any)
			if metadata == nil {
				metadata = map[string]any{}
			}
			metadata["name"] = "pod"
			delete(spec, "serviceAccountName") // the cluster does not have the account of a golden file
			pods = append(pods, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
		}
		for _, v := range value {
			pods = append(pods, podsIn(v)...)
		}
	}
	return pods
}

// stepsIn returns a pod for each template of a workflow that becomes one.
func stepsIn(document map[string]any) (pods []map[string]any) {
	workflow, _ := document["spec"].(map[string]any)
	templates, _ := workflow["templates"].([]any)
	for _, v := range templates {
		template, _ := v.(map[string]any)
		container, _ := template["container"].(map[string]any)
		if container == nil {
			continue
		}
		container["name"] = "main"
		spec := map[string]any{"containers": []any{container}}
		var volumes []any
		for _, from := range []map[string]any{workflow, template} {
			if c, ok := from["securityContext"]; ok {
				spec["securityContext"] = c
			}
			v, _ := from["volumes"].([]any)
			volumes = append(volumes, v...)
		}
		spec["volumes"] = volumes
		pods = append(pods, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "pod"}, "spec": spec})
	}
	return pods
}
