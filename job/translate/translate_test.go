package translate_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "rewrite the recorded translations")

// A translateCase is a file of testdata/translate: a comment, the script in the section "in", further files,
// the results for the targets that the comment names after "full:", the changes for the others (see
// changes), and the report. Each line of the last two begins with the names of its targets.
type translateCase struct {
	file    string
	archive *txtar.Archive
	source  translate.Source
	image   string
	full    []job.Target    // recorded in full
	parsed  map[string]bool // scripts that bash has parsed
}

func readCase(t testing.TB, file string) *translateCase {
	t.Helper()
	a, err := txtar.ParseFile(file)
	testenv.Check(t, err)
	c := &translateCase{file: file, archive: a, parsed: map[string]bool{}}
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
		case "full":
			for name := range strings.FieldsSeq(value) {
				c.full = append(c.full, job.Target(name))
			}
		}
	}
	return c
}

// translate returns the script and the rows for a target, or an error.
func (c *translateCase) translate(to job.Target) (tr *translate.Translation, script string, err error) {
	if tr, err = dispatch.Translator().Translate(c.source, to); err != nil {
		return nil, "", err
	}
	script, err = fitted(tr, cmp.Or(c.image, tr.Job.Image))
	return tr, script, err
}

// plainImage is the image of pods whose script names none.
const plainImage = "registry.example.org/team/base:1"

// fitted completes a translation, and returns the script for its target.
func fitted(tr *translate.Translation, image string) (script string, err error) {
	tr.Job.Program, tr.Job.Store, tr.Job.Image = "/usr/bin/hpcc", "/home/u/.local/share/hpcc", image
	if tr.Job.Image == "" && tr.To.Pods() {
		tr.Job.Image = plainImage
	}
	if tr.Job.OnHost && tr.Job.Image != "" {
		tr.Job.OnHost = false
	}
	tr.Fit()
	script, _, err = dispatch.Render(tr.Job, tr.To)
	return script, err
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

// TestTranslate compares the translation of each script for each target with the recorded one: the report,
// and the lines in which the result differs from the translation of a script without directives. The
// translation contains the script byte for byte.
func TestTranslate(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(filepath.Base(c.file), func(t *testing.T) {
			t.Parallel()
			golden := &txtar.Archive{Comment: c.archive.Comment}
			for _, f := range c.archive.Files {
				if !slices.Contains(outputs, f.Name) && !slices.Contains(jobtest.Targets, job.Target(f.Name)) {
					golden.Files = append(golden.Files, f)
				}
			}
			var reports, changes jobtest.Merged
			var full []txtar.File
			for _, to := range slices.Backward(jobtest.Targets) {
				tr, script, err := c.translate(to)
				if tr != nil {
					reports.Add(to, c.reported(t, tr))
				}
				if err != nil {
					changes.Add(to, []string{"error: " + err.Error()})
					continue
				}
				script, lines := c.check(t, tr, script), c.bodyChanges(tr)
				if slices.Contains(c.full, to) || tr.Job.Interactive {
					full = append(full, txtar.File{Name: string(to), Data: []byte(script)})
				} else {
					lines = append(c.changes(t, tr, script), lines...)
				}
				changes.Add(to, lines)
			}
			slices.Reverse(full)
			golden.Files = append(golden.Files, full...)
			golden.Files = append(golden.Files, txtar.File{Name: outputs[0], Data: changes.Text()}, txtar.File{Name: outputs[1], Data: reports.Text()})
			c.compare(t, txtar.Format(golden))
		})
	}
}

// TestDialects compares the translation of an empty script with testdata/dialects.txtar: Slurm's for each target
// in full with its report, and what differs in the translations of the other dialects. Together with the changes
// that the cases record, they determine all scripts.
func TestDialects(t *testing.T) {
	golden := &txtar.Archive{Comment: []byte("The translation of an empty script. From another dialect, the lines that differ from Slurm's.\n")}
	c := readCase(t, "testdata/translate/empty.txtar")
	c.file = "testdata/dialects.txtar"
	slurm := map[job.Target]string{}
	for _, from := range jobtest.Targets[:4] {
		var merged jobtest.Merged
		for _, to := range slices.Backward(jobtest.Targets) {
			tr := c.plain(t, &translate.Translation{Dialect: from, To: to, Job: &job.Job{}})
			script, err := fitted(tr, "")
			testenv.Check(t, err)
			script = hideBody(t, tr, script)
			text := jobtest.Lines(t, to, script) + rows(tr)
			if from == "slurm" {
				slurm[to] = text
				golden.Files = slices.Insert(golden.Files, 0, txtar.File{Name: string(to), Data: []byte(script + rows(tr))})
			}
			merged.Add(to, jobtest.LineDiff(slurm[to], text))
		}
		if from != "slurm" {
			golden.Files = append(golden.Files, txtar.File{Name: "from " + string(from), Data: merged.Text()})
		}
	}
	c.compare(t, txtar.Format(golden))
}

// outputs are the sections of a case that all targets share.
var outputs = []string{"changes", "report"}

// changes returns the lines of a script that the translation of an empty script with the same name and image
// lacks, after a plus sign, and those that only the latter has, after a minus sign.
func (c *translateCase) changes(t *testing.T, tr *translate.Translation, script string) (lines []string) {
	t.Helper()
	j, plain := tr.Job, c.plain(t, tr)
	plain.Job.Name = j.Name
	usual, err := fitted(plain, j.Image)
	testenv.Check(t, err)
	if j.Name != strings.TrimSuffix(c.source.Name, ".sh") {
		lines = append(lines, "name: "+j.Name)
	}
	if j.Image != c.image && j.Image != plainImage {
		lines = append(lines, "image: "+j.Image)
	}
	return append(lines, jobtest.LineDiff(jobtest.Lines(t, tr.To, shortBody(hideBody(t, plain, usual))), jobtest.Lines(t, tr.To, shortBody(script)))...)
}

// shortBody returns a script with one line for the body and the commands around it, which the cases in full show.
func shortBody(script string) string { return aroundBody.ReplaceAllLiteralString(script, bodyMark) }

var aroundBody = regexp.MustCompile(`exec 3<<'HPCC_SCRIPT'\n` + regexp.QuoteMeta(bodyMark) + `HPCC_SCRIPT\n|` +
	`# The \| at the start of each line keeps \w+ from reading directives in here\.\nexec 3< <\(sed 's/\^\|//' <<'HPCC_SCRIPT'\n` +
	regexp.QuoteMeta(bodyMark) + `HPCC_SCRIPT\n\)\n`)

// plain translates an empty script in the dialect of a translation, or of Slurm for a manifest, with the same name.
func (c *translateCase) plain(t *testing.T, tr *translate.Translation) *translate.Translation {
	t.Helper()
	source := c.source
	source.Text, source.Command, source.Dialect = []byte("#!/bin/bash\n:\n"), "", tr.Dialect
	if tr.Dialect.Pods() {
		source.Dialect = "slurm"
	}
	if tr.Job.Script != nil {
		source.Name = tr.Job.Script.Name
	}
	plain, err := dispatch.Translator().Translate(source, tr.To)
	testenv.Check(t, err)
	return plain
}

// reported returns the rows of a report. Rows that every script of the dialect has are left out. Instead, the
// last line lists those that this report lacks.
func (c *translateCase) reported(t *testing.T, tr *translate.Translation) (lines []string) {
	t.Helper()
	own, usual := strings.Split(strings.TrimSuffix(rows(tr), "\n"), "\n"), []string(nil)
	if !tr.Dialect.Pods() {
		plain := c.plain(t, tr)
		_, err := fitted(plain, tr.Job.Image)
		testenv.Check(t, err)
		usual = strings.Split(strings.TrimSuffix(rows(plain), "\n"), "\n")
	}
	for _, row := range own {
		if !slices.Contains(usual, row) {
			lines = append(lines, row)
		}
	}
	var lacks []string
	for _, row := range usual {
		if !slices.Contains(own, row) {
			lacks = append(lacks, strings.Split(row, "|")[1])
		}
	}
	if len(lacks) > 0 {
		lines = append(lines, "without "+strings.Join(lacks, ", "))
	}
	return lines
}

// bodyChanges returns the lines of the script that its translation changes.
func (c *translateCase) bodyChanges(tr *translate.Translation) []string {
	s := tr.Job.Script
	if s == nil || tr.Dialect.Pods() {
		return nil
	}
	original := strings.ReplaceAll(string(c.source.Text), "\r\n", "\n")
	for _, f := range c.archive.Files { // the script of a submit command
		if f.Name == s.Name {
			original = string(f.Data)
		}
	}
	return jobtest.LineDiff(original, s.Body)
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
				t.Errorf("%s differs in line %d; \"go test ./job/translate -run TestTranslate -update\" rewrites it; check the difference first. Got:\n%s", c.file, i+1, strings.Join(g[i:min(i+12, len(g))], "\n"))
				return
			}
		}
		t.Errorf("%s has lines after the end of the output", c.file)
	}
}

// check checks a script with bash, and returns it with bodyMark instead of the body. Without an image
// the body must be the source byte for byte.
func (c *translateCase) check(t *testing.T, tr *translate.Translation, script string) string {
	t.Helper()
	s, source := tr.Job.Script, strings.ReplaceAll(string(c.source.Text), "\r\n", "\n")
	switch {
	case tr.To.Pods() && tr.Dialect.Pods(): // a manifest
	case tr.To.Pods() && s != nil:
		c.parses(t, jobtest.Unexpanded(podBody(t, tr.To, script)))
	default:
		c.parses(t, script)
	}
	if s == nil {
		return script
	}
	if slices.ContainsFunc(s.Shell, func(w string) bool { return strings.HasSuffix(w, "sh") }) {
		c.parses(t, s.Body)
	}
	if !tr.To.Pods() && tr.Job.Image == "" && c.source.Command == "" && !submits(source) && s.Body != source {
		t.Errorf("the body for %s differs from the script: %q", tr.To, s.Body)
	}
	return hideBody(t, tr, script)
}

// parses checks that bash can parse a script, once for each text.
func (c *translateCase) parses(t *testing.T, script string) {
	t.Helper()
	if c.parsed[script] {
		return
	}
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("bash refuses a script: %v\n%s\n%s", err, out, script)
	}
	c.parsed[script] = true
}

// prefixes match directives that the commands of schedulers find anywhere in a script. Such a body is hidden.
var prefixes = map[job.Target]string{"slurm": "#(PBS|BSUB)", "lsf": "#BSUB", "gridengine": `#\$`}

// hideBody returns a script or a manifest with bodyMark instead of the body, which it contains once.
func hideBody(t *testing.T, tr *translate.Translation, script string) string {
	t.Helper()
	s := tr.Job.Script
	if s == nil || (tr.To.Pods() && tr.Dialect.Pods()) {
		return script
	}
	body, full := s.Body, script
	if p, ok := prefixes[tr.To]; ok {
		if hides, has := strings.Contains(script, "sed 's/^|//'"), regexp.MustCompile("(?m)^"+p).MatchString(body); hides != has {
			t.Errorf("the script for %s hides its body: %v, which has directives: %v", tr.To, hides, has)
		}
	}
	if tr.To.Pods() {
		full = jobtest.Unexpanded(podBody(t, tr.To, script))
	} else if strings.Contains(script, "sed 's/^|//'") {
		body = "|" + strings.TrimSuffix(strings.ReplaceAll(body, "\n", "\n|"), "|")
	}
	if n := strings.Count(full, body); n != 1 {
		t.Errorf("the script for %s contains its body %d times; want once", tr.To, n)
	}
	if !tr.To.Pods() {
		return strings.Replace(script, body, bodyMark, 1)
	}
	short, marked := *tr.Job, *s
	marked.Body = bodyMark
	short.Script = &marked
	text, _, err := dispatch.Render(&short, tr.To)
	testenv.Check(t, err)
	return text
}

// submits reports whether the first line of a text that is not a comment is a submit command.
func submits(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return dispatch.Translator().IsSubmitCommand(line)
		}
	}
	return false
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

// TestManifests has a real API server validate every translation for pods.
func TestManifests(t *testing.T) {
	for _, to := range jobtest.Targets[5:] {
		t.Run(string(to), func(t *testing.T) { jobtest.CheckManifests(t, string(to), manifests(t, to)) })
	}
}

// TestWorkflows has the real "argo lint" validate the translations for Argo.
func TestWorkflows(t *testing.T) { jobtest.CheckWorkflows(t, manifests(t, job.Argo)) }

// manifests returns the translations of all cases for a target with pods.
func manifests(t *testing.T, to job.Target) (list []jobtest.Manifest) {
	for _, c := range cases(t) {
		if _, script, err := c.translate(to); err == nil {
			list = append(list, jobtest.Manifest{Name: strings.TrimSuffix(filepath.Base(c.file), ".txtar") + "." + string(to), Text: script})
		}
	}
	return list
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
			again, err := dispatch.Translator().Translate(translate.Source{Name: "again.sh", Text: []byte(script), Dialect: to, Dir: tr.Job.Dir, Home: "/home/u"}, to)
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
