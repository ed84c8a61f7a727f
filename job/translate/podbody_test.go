package translate_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/testenv"
)

// TestPodBody compares the body of scripts for pods, and the rows of its lines, with the files of
// testdata/podbody. A script keeps its lines, and a change keeps it in the grammar of bash.
func TestPodBody(t *testing.T) {
	for _, file := range podBodies(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c := readCase(t, file)
			tr, err := dispatch.Translator().Translate(c.source, job.Kubernetes)
			testenv.Check(t, err)
			j := tr.Job
			j.Program, j.Store, j.Pod.Env = "/usr/bin/hpcc", "/home/u/.local/share/hpcc", []string{"HOME=/tmp", "USER=hpcc"}
			if j.Image = c.image; j.Image == "none" {
				j.Image = ""
			}
			for line := range strings.Lines(string(c.archive.Comment)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), "volume: "); ok {
					volume, err := job.ParseVolume(v)
					testenv.Check(t, err)
					j.Pod.Volumes = append(j.Pod.Volumes, volume)
				}
			}
			directives := slices.Clone(tr.Rows)
			tr.Fit()
			tr.Rows = slices.DeleteFunc(tr.Rows, func(r *field.Row) bool { return slices.Contains(directives, r) })
			if image := j.Image; image != c.image {
				tr.Rows = append(tr.Rows, &field.Row{Text: "(image)", How: image})
			}
			if got, want := strings.Count(j.Script.Body, "\n"), bytes.Count(c.source.Text, []byte("\n")); got != want {
				t.Errorf("the body has %d lines, not %d", got, want)
			}
			if parsed(string(c.source.Text)) && !parsed(j.Script.Body) {
				t.Errorf("bash refuses the changed body:\n%s", j.Script.Body)
			}
			golden := &txtar.Archive{Comment: c.archive.Comment, Files: []txtar.File{{Name: "in", Data: c.source.Text},
				{Name: "body", Data: []byte(j.Script.Body)}, {Name: "report", Data: []byte(rows(tr))}}}
			c.compare(t, txtar.Format(golden))
		})
	}
}

// podBodies returns the files of testdata/podbody.
func podBodies(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/podbody/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v; want at least 10", len(files), err)
	}
	return files
}

// parsed reports whether bash can parse a script.
func parsed(script string) bool {
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return err == nil && len(out) == 0
}

// TestPodBodyRuns runs changed container lines with bash, against the container program's own effect on the arguments,
// the variables and the directory.
func TestPodBodyRuns(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/bash
#SBATCH -n 1
A='a  b'
export B=host
singularity exec --env "X=$A" --pwd ` + dir + ` img.sif bash -c 'echo "[$X] $PWD $0 $*"' p "q  r" >out; cat out
docker run -e B=in alpine:3 bash -c 'echo $B'
ch-run --unset-env=B img -- bash -c 'echo "${B-unset}"'
docker run --entrypoint echo alpine:3 one "two  three" | cat
if apptainer exec img.sif false; then echo no; else echo failed; fi
podman run -w ` + dir + ` -e B=podman alpine:3 bash -c 'echo $B $PWD' <in
`
	source := translate.Source{Name: "job.sh", Text: []byte(script), Dir: "/home/u", Home: "/home/u"}
	tr, err := dispatch.Translator().Translate(source, job.Kubernetes)
	testenv.Check(t, err)
	tr.Job.Image = "sci"
	tr.Fit()
	cmd := exec.Command("bash", "-c", tr.Job.Script.Body)
	cmd.Dir = t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(cmd.Dir, "in"), nil, 0o644))
	cmd.Env = os.Environ()
	out, err := cmd.CombinedOutput()
	want := "[a  b] " + dir + " p q  r\nin\nunset\none two  three\nfailed\npodman " + dir + "\n"
	if err != nil || string(out) != want {
		t.Errorf("%v: the script printed\n%s; want\n%s", err, out, want)
	}
}
