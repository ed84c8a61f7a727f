package translate_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/dispatch"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/jobtest"
)

// fuzzDialect checks that for any input and every target a translation ends, has a fate for
// each row, and becomes a bounded script or an error.
func fuzzDialect(f *testing.F, target job.Target) {
	f.Fuzz(func(t *testing.T, text, command string) {
		for _, to := range jobtest.Targets {
			for _, s := range []translate.Source{{Text: []byte(text)}, {Command: command}} {
				s.Name, s.Dialect, s.Dir, s.Home, s.User = "f.sh", target, "/d", "/h", "u"
				s.Open = func(string) ([]byte, error) { return []byte(text), nil }
				tr, err := dispatch.Translator().Translate(s, to)
				if err != nil {
					continue
				}
				tr.Job.Program, tr.Job.Store = "/bin/hpcc", "/store"
				tr.Fit()
				for _, r := range tr.Rows {
					if !slices.Contains([]field.Fate{field.Kept, field.Changed, field.Emulated, "needs a volume", field.Refused}, r.Fate) || (r.Fate == field.Refused && r.How == "") {
						t.Errorf("row %+v has no fate or no reason", r)
					}
				}
				if script, _, err := dispatch.Render(tr.Job, to); err == nil && len(script) > 8*len(text)+8*len(command)+1<<16 {
					t.Errorf("%d bytes of script for %d", len(script), len(text))
				}
			}
		}
	})
}

// fuzzOptions is fuzzDialect from the options of a dialect.
func fuzzOptions(f *testing.F, target job.Target) {
	d := dialectOf(target)
	f.Add("", d.Command+" --")
	for _, names := range optionNames(d) {
		name, _, _ := strings.Cut(names, " ")
		for _, v := range []string{"", " 1", " 1-8:2%4", " x[1-3]", " select[a]", " 1:2:3", " a=b,c", " =", "=1"} {
			f.Add("#!/bin/sh\n"+d.Prefix+" "+name+v+"\n", d.Command+" "+name+v+" echo")
		}
	}
	fuzzDialect(f, target)
}

// FuzzTranslated starts from the recorded cases and detects their dialect.
func FuzzTranslated(f *testing.F) {
	for _, c := range cases(f) {
		f.Add(string(c.source.Text), c.source.Command)
	}
	fuzzDialect(f, "")
}

// FuzzPodBody checks that a body for pods keeps its lines, and that a shell that could parse the script can parse the
// body. It starts from the files of testdata/podbody.
func FuzzPodBody(f *testing.F) {
	for _, file := range podBodies(f) {
		f.Add(strings.TrimPrefix(string(readCase(f, file).source.Text), podHead))
	}
	f.Fuzz(func(t *testing.T, body string) {
		source := translate.Source{Name: "f.sh", Text: []byte(podHead + body), Dialect: "slurm", Dir: "/d", Home: "/h", User: "u"}
		for _, image := range []string{"", "registry.example.org/sci:1"} {
			tr, err := dispatch.Translator().Translate(source, job.Kubernetes)
			if err != nil || tr.Job.Script == nil {
				return
			}
			before := tr.Job.Script.Body
			tr.Job.Image = image
			tr.Fit()
			after := tr.Job.Script.Body
			if strings.Count(before, "\n") != strings.Count(after, "\n") {
				t.Errorf("%q: the lines changed: %q", before, after)
			}
			if shellParses(before) && !shellParses(after) {
				t.Errorf("%q: cannot be parsed: %q", before, after)
			}
		}
	})
}

// podHead is the head of the scripts of FuzzPodBody.
const podHead = "#!/bin/bash\n#SBATCH -n 1\n"

func shellParses(script string) bool {
	_, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	return err == nil
}

func FuzzReadSlurm(f *testing.F)      { fuzzOptions(f, "slurm") }
func FuzzReadLSF(f *testing.F)        { fuzzOptions(f, "lsf") }
func FuzzReadGridEngine(f *testing.F) { fuzzOptions(f, "gridengine") }
func FuzzReadPBS(f *testing.F)        { fuzzOptions(f, "pbs") }

func dialectOf(t job.Target) *dialect.Dialect {
	return dispatch.Translator()[slices.IndexFunc(dispatch.Translator(), func(d *dialect.Dialect) bool { return d.Target == t })]
}

func optionNames(d *dialect.Dialect) (names []string) {
	for _, table := range []map[string]dialect.Setter{d.Options.Values, d.Options.Pairs, d.Options.Flags, d.Options.Optional} {
		names = slices.AppendSeq(names, maps.Keys(table))
	}
	slices.Sort(names)
	return names
}

// TestOptions: no dialect has two options of one name.
func TestOptions(t *testing.T) {
	for _, d := range dispatch.Translator() {
		seen := map[string]bool{}
		for _, names := range optionNames(d) {
			for name := range strings.FieldsSeq(names) {
				if seen[name] {
					t.Errorf("%s has two options %s", d.Title, name)
				}
				seen[name] = true
			}
		}
	}
}
