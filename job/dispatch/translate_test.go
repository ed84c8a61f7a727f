package dispatch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/testdata/jobtest"
	"hpcc/testdata/testenv"
)

// matrix lists the targets that each script of testdata/translate is translated for.
var matrix = []job.Target{"slurm", "lsf", "gridengine", "pbs", job.Local, job.Kubernetes, job.OpenShift, job.Argo}

// A translateCase is a file of testdata/translate: a comment, the script in the section "in",
// further files, and for each target the script and the report.
type translateCase struct {
	file    string
	archive *txtar.Archive
	source  translate.Source
	image   string
}

func readCase(t testing.TB, file string) *translateCase {
	t.Helper()
	a, err := txtar.ParseFile(file)
	testenv.Check(t, err)
	c := &translateCase{file: file, archive: a}
	c.source = translate.Source{Name: strings.TrimSuffix(filepath.Base(file), ".txtar") + ".sh", Dir: "/home/u/job", Home: "/home/u", User: "u"}
	files := map[string][]byte{}
	for _, f := range a.Files {
		files[f.Name] = f.Data
	}
	c.source.Text = bytes.ReplaceAll(files["in"], []byte("<CR>\n"), []byte("\r\n"))
	c.source.Open = func(name string) ([]byte, error) {
		if b, ok := files[name]; ok {
			return b, nil
		}
		return nil, os.ErrNotExist
	}
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "command":
			c.source.Command = value
		case "dialect":
			c.source.Dialect = job.Target(value)
		case "image":
			c.image = value
		}
	}
	return c
}

// translate returns the script and the rows for a target, or an error.
func (c *translateCase) translate(to job.Target) (tr *translate.Translation, script string, err error) {
	if tr, err = Translator().Translate(c.source, to); err != nil {
		return nil, "", err
	}
	tr.Job.Program, tr.Job.Store, tr.Job.Image = "/usr/bin/hpcc", "/home/u/.local/share/hpcc", cmp.Or(c.image, tr.Job.Image)
	if tr.Job.Image == "" && to.Pods() {
		tr.Job.Image = "registry.example.org/team/base:1"
	}
	if tr.Job.OnHost && tr.Job.Image != "" {
		tr.Job.OnHost = false
	}
	tr.Fit()
	script, _, err = Render(tr.Job, to)
	return tr, script, err
}

func rows(tr *translate.Translation) string {
	var b strings.Builder
	for _, r := range tr.Rows {
		fmt.Fprintf(&b, "%d|%s|%s|%s\n", r.Line, strings.ReplaceAll(r.Text, "\n", `\n`), r.Fate, r.How)
	}
	return b.String()
}

func cases(t testing.TB) []*translateCase {
	t.Helper()
	files, err := filepath.Glob("testdata/translate/*.txtar")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d scripts in testdata/translate, %v; want at least 60", len(files), err)
	}
	var out []*translateCase
	for _, f := range files {
		out = append(out, readCase(t, f))
	}
	return out
}

// bodyMark stands for the unchanged script in the recorded translations.
const bodyMark = "[the script as it was]\n"

// TestTranslate compares each script's translation and report for each target with the
// recorded ones. The translation contains the script byte for byte.
func TestTranslate(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(filepath.Base(c.file), func(t *testing.T) {
			golden := &txtar.Archive{Comment: c.archive.Comment}
			for _, f := range c.archive.Files {
				if !slices.Contains(matrix, job.Target(strings.TrimSuffix(f.Name, ".report"))) {
					golden.Files = append(golden.Files, f)
				}
			}
			for _, to := range matrix {
				tr, script, err := c.translate(to)
				report := ""
				switch {
				case tr == nil && err != nil:
					script = "error: " + err.Error() + "\n"
				case err != nil:
					script, report = "error: "+err.Error()+"\n", rows(tr)
				default:
					script, report = c.hideBody(t, tr, script), rows(tr)
				}
				golden.Files = append(golden.Files, txtar.File{Name: string(to), Data: []byte(script)}, txtar.File{Name: string(to) + ".report", Data: []byte(report)})
			}
			c.compare(t, txtar.Format(golden))
		})
	}
}

func (c *translateCase) compare(t *testing.T, got []byte) {
	t.Helper()
	if *update {
		testenv.Check(t, os.WriteFile(c.file, got, 0o644))
	}
	want, err := os.ReadFile(c.file)
	testenv.Check(t, err)
	if g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n"); !slices.Equal(g, w) {
		for i := range g {
			if i >= len(w) || g[i] != w[i] {
				t.Errorf("%s differs in line %d; \"go test ./job/dispatch -run TestTranslate -update\" rewrites it; check the difference first. Got:\n%s", c.file, i+1, strings.Join(g[i:min(i+12, len(g))], "\n"))
				return
			}
		}
		t.Errorf("%s has lines after the end of the output", c.file)
	}
}

// hideBody checks a script with bash and replaces the body with bodyMark. Without an image
// the body must be the source byte for byte.
func (c *translateCase) hideBody(t *testing.T, tr *translate.Translation, script string) string {
	t.Helper()
	switch {
	case tr.To.Pods() && tr.Job.Script != nil:
		return hidePodBody(t, tr, script)
	case tr.To.Pods() && tr.Dialect.Pods(): // a manifest
		return script
	}
	if !tr.Job.Interactive || tr.To != "pbs" {
		check := exec.Command("bash", "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("bash refuses the script for %s: %v\n%s\n%s", tr.To, err, out, script)
		}
	}
	s := tr.Job.Script
	if s == nil {
		return script
	}
	if slices.ContainsFunc(s.Shell, func(w string) bool { return strings.HasSuffix(w, "sh") }) {
		check := exec.Command("bash", "-n")
		check.Stdin = strings.NewReader(s.Body)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("bash refuses the body for %s: %s\n%s", tr.To, out, s.Body)
		}
	}
	source := strings.ReplaceAll(string(c.source.Text), "\r\n", "\n")
	if c.image == "" && c.source.Command == "" && !submits(source) && s.Body != source {
		t.Errorf("the body for %s differs from the script: %q", tr.To, s.Body)
	}
	body := s.Body
	if strings.Contains(script, "sed 's/^|//'") {
		body = "|" + strings.TrimSuffix(strings.ReplaceAll(body, "\n", "\n|"), "|")
	}
	if n := strings.Count(script, body); n != 1 {
		t.Errorf("the script for %s contains its body %d times; want once", tr.To, n)
	}
	if c.image != "" || c.source.Command != "" {
		return script
	}
	return strings.Replace(script, body, bodyMark, 1)
}

// submits reports whether the first line of a text that is not a comment is a submit command.
func submits(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return Translator().IsSubmitCommand(line)
		}
	}
	return false
}

// hidePodBody checks the script that a container of the manifest runs, and returns the manifest
// with bodyMark instead of the script.
func hidePodBody(t *testing.T, tr *translate.Translation, manifest string) string {
	t.Helper()
	script := jobtest.Unexpanded(podBody(t, tr.To, manifest))
	check := exec.Command("bash", "-n")
	check.Stdin = strings.NewReader(script)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("bash refuses the script for %s: %v\n%s\n%s", tr.To, err, out, script)
	}
	if n := strings.Count(script, tr.Job.Script.Body); n != 1 {
		t.Errorf("the script for %s contains its body %d times; want once", tr.To, n)
	}
	short, body := *tr.Job, *tr.Job.Script
	body.Body = bodyMark
	short.Script = &body
	text, _, err := Render(&short, tr.To)
	if err != nil {
		t.Error(err)
	}
	return text
}

// podBody returns the script of a manifest.
func podBody(t *testing.T, to job.Target, manifest string) string {
	t.Helper()
	if to == job.Argo {
		var o struct {
			Spec struct {
				Templates []struct{ Container struct{ Args []string } }
			}
		}
		if err := yaml.Unmarshal([]byte(manifest), &o); err != nil {
			t.Fatalf("the manifest for %s: %v", to, err)
		}
		all := o.Spec.Templates
		return all[len(all)-1].Container.Args[1] // after the command, "bash"
	}
	_, last, _ := strings.Cut("---\n"+manifest, "kind: Job")
	var o struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct{ Args []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte("kind: Job"+last), &o); err != nil {
		t.Fatalf("the manifest for %s: %v", to, err)
	}
	return o.Spec.Template.Spec.Containers[0].Args[2]
}

// TestTranslateRoundTrip checks that a translated script, translated again into its own
// dialect, is the same job.
func TestTranslateRoundTrip(t *testing.T) {
	for _, c := range cases(t) {
		for _, to := range []job.Target{"slurm", "lsf", "gridengine", "pbs"} {
			tr, script, err := c.translate(to)
			if err != nil || tr.Job.Interactive || tr.Dialect.Pods() { // the program of a manifest is not part of the directives
				continue
			}
			if to == "slurm" && strings.Contains(script, "--nth") {
				continue // Slurm counts the tasks, and hpcc keeps the array
			}
			again, err := Translator().Translate(translate.Source{Name: "again.sh", Text: []byte(script), Dialect: to, Dir: tr.Job.Dir, Home: "/home/u"}, to)
			if err != nil {
				t.Errorf("%s: translating the script for %s again: %v", c.file, to, err)
				continue
			}
			for _, r := range again.Rows {
				if r.Fate == field.Refused && !strings.Contains(r.How, "follows the first command") { // a directive of the embedded script
					t.Errorf("%s: a directive of the script for %s is refused: line %d, %s: %s", c.file, to, r.Line, r.Text, r.How)
				}
			}
			if a, b := comparableJob(tr.Job, to), comparableJob(again.Job, to); a != b {
				t.Errorf("%s: the job\n  %s\nwritten for %s reads as\n  %s\n%s", c.file, a, to, b, script)
			}
		}
	}
}

// comparableJob returns the settings of a job that survive a translation to the target, as JSON.
// It omits what hpcc does itself (opening files, counting arrays, limits), and counts slots
// instead of processes and CPUs, as all dialects do.
func comparableJob(j *job.Job, to job.Target) string {
	k := *j
	k.Script, k.Program, k.Store, k.Image, k.Env, k.Native = nil, "", "", "", nil, nil
	k.OnHost, k.Run, k.Args, k.MailOn, k.Retry = false, nil, nil, nil, job.Retry{}
	for _, e := range []string{"begin", "end", "fail"} {
		if j.MailsOn(e) {
			k.MailOn = append(k.MailOn, e)
		}
	}
	k.Output, k.Memory, k.MemoryPerCPU = j.OutputPattern(), (j.Memory+1<<20-1)>>20, (j.MemoryPerCPU+1<<20-1)>>20
	if to != "slurm" {
		k.Nodes, k.Tasks, k.TasksPerNode, k.CPUs = 0, j.Slots(), 0, 0
		k.Output, k.Error, k.Append, k.Time, k.Array, k.Dir = "", "", false, 0, job.Array{}, ""
		k.Export = slices.DeleteFunc(j.ExportedNames(), func(n string) bool { return n == "HPCC_SUBMISSION" })
	}
	if to != "slurm" && (to != "lsf" || j.Time > 0) {
		k.Warning = job.Warning{} // hpcc sends the signal itself
	}
	switch to {
	case "lsf": // counts minutes, sends one mail at the end, and needs no option to export all variables
		k.Warning.Lead = (k.Warning.Lead + time.Minute - 1).Truncate(time.Minute)
		k.MailOn = slices.DeleteFunc(k.MailOn, func(e string) bool { return e == "fail" && j.MailsOn("end") })
		if !j.MailsOn("end") && j.MailsOn("fail") {
			k.MailOn[len(k.MailOn)-1] = "end"
		}
		if !slices.Contains(j.After, "first") { // hpcc checks the success of jobs with an ID
			k.After, k.AfterAny = nil, append(slices.Clone(j.After), j.AfterAny...)
		}
		if slices.Contains(j.Export, "ALL") || len(j.Hosts) > 1 {
			k.Export, k.Hosts = nil, nil
		}
	case "pbs": // counts memory per chunk, which is a process or a node
		if j.Nodes == 0 && j.TasksPerNode == 0 && j.Tasks > 1 {
			k.Memory = (max(j.MemoryPerCPU*int64(max(j.CPUs, 1)), (j.Memory+int64(j.Tasks)-1)/int64(j.Tasks)) + 1<<20 - 1) >> 20
		}
		k.Memory, k.MemoryPerCPU = max(k.Memory, k.MemoryPerCPU), 0
	case "gridengine": // requests the site's resources with native options
		k.After, k.AfterAny = nil, append(slices.Clone(j.After), j.AfterAny...)
		k.Tasks, k.Memory, k.GPUs, k.Exclusive, k.Hosts, k.NotHosts = 0, 0, 0, false, nil, nil
	}
	if len(k.Export) == 0 {
		k.Export = nil
	}
	b, _ := json.Marshal(k)
	return string(b)
}
