package argo

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

// lint returns the messages of "argo lint" for those files that it refuses. The files may refer to
// templates in the files with.
func lint(t *testing.T, argo string, files, with []string) map[string]string {
	t.Helper()
	refused := map[string]string{}
	if len(files) == 0 {
		return refused
	}
	cmd := exec.Command(argo, slices.Concat([]string{"lint", "--offline", "--no-color", "--output", "simple"}, files, with)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		if name, rest, ok := strings.Cut(line, ": "); ok && slices.Contains(files, name) {
			refused[name] = strings.TrimSpace(rest)
		}
	}
	switch {
	case err == nil || len(refused) > 0:
	case len(files) == 1:
		refused[files[0]] = stderr.String() + string(out)
	default: // a file that argo cannot read ends it
		half := len(files) / 2
		maps.Copy(refused, lint(t, argo, files[:half], with))
		maps.Copy(refused, lint(t, argo, files[half:], with))
	}
	return refused
}

// judge returns the path of Argo's command line.
func judge(t *testing.T) string {
	t.Helper()
	argo := os.Getenv("HPCC_TEST_ARGO")
	_, err := os.Stat(argo)
	testenv.Need(t, "Argo's command line in HPCC_TEST_ARGO (testdata/kube/build.sh argo builds it)", err)
	return argo
}

// workflowsList lists Argo's examples.
const workflowsList = "../../testdata/workflow-corpus.txt"

// examples returns the files of the list below a directory, by path.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	dir := os.Getenv("HPCC_TEST_WORKFLOWS")
	_, err := os.Stat(dir)
	testenv.Need(t, "the files of testdata/workflow-corpus.txt in HPCC_TEST_WORKFLOWS", err)
	list, err := os.ReadFile(workflowsList)
	testenv.Check(t, err)
	files := map[string][]byte{}
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "#" {
			files[f[2]], err = os.ReadFile(filepath.Join(dir, f[0], f[2]))
			testenv.Check(t, err)
		}
	}
	return files
}

// isTemplate reports whether a file has templates to which other files may refer.
func isTemplate(text []byte) bool {
	return regexp.MustCompile(`(?m)^"?kind"?: "?(Cluster)?WorkflowTemplate\b`).Match(text)
}

// TestExamples checks that hpcc accepts all examples of Argo, which "argo lint" accepts as well, and
// has both check their mutants.
func TestExamples(t *testing.T) {
	argo, dir := judge(t), t.TempDir()
	files, paths, templates := examples(t), []string{}, []string{}
	var list []mutant
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if !bytes.Contains(text, []byte("apiVersion: "+argoVersion)) || bytes.Contains(text, []byte("kind: WorkflowEventBinding")) {
			continue // argo lint reads only workflows
		}
		if _, err := readManifests(name, text); err != nil {
			t.Errorf("hpcc refuses an example: %v", err)
		}
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		testenv.Check(t, os.WriteFile(path, text, 0o644))
		if paths = append(paths, path); isTemplate(text) {
			templates = append(templates, path)
			continue
		}
		if bytes.Contains(text, []byte("emplateRef:")) { // hpcc leaves templates of the cluster to the server
			continue
		}
		some, err := mutants(name, text, 1)
		testenv.Check(t, err)
		list = append(list, some...)
	}
	for file, why := range lint(t, argo, paths, nil) {
		t.Errorf("argo lint refuses an example: %s: %s", file, why)
	}
	t.Logf("hpcc and argo lint accept %d workflows and templates in %d files", len(paths), len(files))
	if len(paths) < 190 {
		t.Errorf("workflow-corpus.txt has %d files with workflows; want 190", len(paths))
	}
	if !testing.Short() {
		compare(t, argo, list, templates, 8000)
	}
}

// TestMutants breaks one rule each in the workflows of testdata/lint.
func TestMutants(t *testing.T) {
	argo := judge(t)
	const tools = "testdata/lint/tools.yaml"
	own, err := filepath.Glob("testdata/lint/*.yaml")
	testenv.Check(t, err)
	var list []mutant
	for _, file := range own {
		text, err := os.ReadFile(file)
		testenv.Check(t, err)
		some, err := mutants(filepath.Base(file), text, 4)
		testenv.Check(t, err)
		if file == tools { // which other workflows cannot refer to if it is wrong
			compare(t, argo, some, nil, 10)
		} else {
			list = append(list, some...)
		}
	}
	for f, why := range lint(t, argo, own, nil) {
		t.Errorf("argo lint refuses %s: %s", f, why)
	}
	compare(t, argo, list, []string{tools}, 400)
}

// compare has hpcc and "argo lint" check mutants. hpcc must refuse each that "argo lint" refuses,
// with its line, and accept the others, except those that the controller or Kubernetes would
// refuse. "argo lint" must refuse some.
func compare(t *testing.T, argo string, list []mutant, with []string, some int) {
	t.Helper()
	dir := t.TempDir()
	var single, paths []string
	for i, m := range list {
		path := filepath.Join(dir, fmt.Sprintf("m%d.yaml", i))
		testenv.Check(t, os.WriteFile(path, m.text, 0o644))
		paths = append(paths, path)
		if isTemplate(m.text) {
			single = append(single, path)
		}
	}
	whys := map[string]string{}
	for _, path := range single { // their templates have the same names
		maps.Copy(whys, lint(t, argo, []string{path}, with))
	}
	together := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return slices.Contains(single, p) })
	for chunk := range slices.Chunk(together, 50) {
		maps.Copy(whys, lint(t, argo, chunk, with))
	}
	both, more := 0, 0
	for i, m := range list {
		why, byLint := whys[paths[i]]
		_, err := readManifests("w.yaml", m.text)
		switch {
		case byLint && err == nil:
			t.Errorf("%s: hpcc accepts it; argo lint: %s", m.name, why)
		case err != nil && !strings.HasPrefix(err.Error(), "w.yaml:"):
			t.Errorf("%s: the message lacks the line: %v", m.name, err)
		case byLint:
			both++
		case err != nil && m.beyond == "":
			t.Errorf("%s: argo lint accepts it; hpcc: %v", m.name, err)
		case err != nil:
			more++
		}
	}
	t.Logf("%d mutants: argo lint refuses %d, and hpcc %d of them; hpcc refuses %d others, which the controller or Kubernetes would refuse", len(list), len(whys), both, more)
	if len(whys) < some {
		t.Errorf("argo lint refuses only %d of %d mutants; want %d", len(whys), len(list), some)
	}
}
