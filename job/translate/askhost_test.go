package translate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/testenv"
)

// complexes is the start of the output of "qconf -sc".
const complexes = `#name               shortcut   type      relop requestable consumable default  urgency
#----------------------------------------------------------------------------------------
gpus                g          INT       <=    YES         %s         0        1000
`

// answer returns a shell command that prints format with a value. For "" it returns one that fails.
func answer(format, value string) string {
	if value == "" {
		return "exit 1"
	}
	return "cat <<'END'\n" + fmt.Sprintf(format, value) + "END\n"
}

// TestSiteRules checks that the Grid Engine of the host decides what slots and GPUs are, not their names.
func TestSiteRules(t *testing.T) {
	for _, c := range []struct {
		rule, consumable string
		want             string // nodes, tasks, tasks per node, CPUs, GPUs per node
	}{
		{"$pe_slots", "YES", "1 0 0 8 8"},
		{"$fill_up", "JOB", "1 8 0 0 1"},
		{"$round_robin", "YES", "1 8 0 0 8"},
		{"4", "YES", "2 8 4 0 4"},
		{"4", "JOB", "2 8 4 0 0"}, // one GPU cannot be divided
		{"", "", "1 0 0 8 8"},     // the name smp decides
	} {
		dir := t.TempDir()
		stand := "#!/bin/sh\ncase \"$*\" in\n'-sp smp') " + answer("pe_name            smp\nallocation_rule    %s\n", c.rule) + " ;;\n-sc) " + answer(complexes, c.consumable) + " ;;\nesac\n"
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "qconf"), []byte(stand), 0o755))
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		source := translate.Source{Name: "job.sh", Text: []byte("#!/bin/bash\n#$ -pe smp 8 -l gpus=1\n./work\n"), Dir: "/home/u", Home: "/home/u"}
		source.AskHost(t.Context())
		tr, err := dispatch.Translator().Translate(source, "slurm")
		testenv.Check(t, err)
		tr.Fit()
		j := tr.Job
		if got := fmt.Sprint(j.Nodes, j.Tasks, j.TasksPerNode, j.CPUs, j.GPUs); got != c.want {
			t.Errorf("allocation rule %q, consumable %q: %s; want %s\n%s", c.rule, c.consumable, got, c.want, rows(tr))
		}
	}
}

// TestOutputDirectory checks that a name of an output file that is an existing directory gets the
// batch system's name for files in it.
func TestOutputDirectory(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/bash\n#$ -N a -o logs -j y\n":  "logs/{name}.o{job}",
		"#!/bin/bash\n#PBS -N a\n#PBS -o logs": "logs/{name}.o{job}",
		"#!/bin/bash\n#BSUB -o logs\n":         "logs/{job}.out",
		"#!/bin/bash\n#BSUB -o other\n":        "other",
	} {
		source := translate.Source{Name: "job.sh", Text: []byte(script), Dir: t.TempDir(), Home: "/home/u"}
		testenv.Check(t, os.Mkdir(filepath.Join(source.Dir, "logs"), 0o755))
		source.AskHost(t.Context())
		for _, to := range []job.Target{"slurm", job.Local} {
			tr, err := dispatch.Translator().Translate(source, to)
			testenv.Check(t, err)
			if tr.Fit(); tr.Job.Output != want {
				t.Errorf("%q for %s: output %q; want %q", strings.TrimSpace(script), to, tr.Job.Output, want)
			}
		}
	}
}
