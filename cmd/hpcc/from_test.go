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
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// A judge is a batch system on this machine that checks scripts without running them. One that
// cannot do that gets them as held jobs.
type judge struct {
	facility string         // the name for [needs]
	argv     []string       // the script follows, or is standard input if the last element is "<"
	accepted *regexp.Regexp // matches the output of a script that it accepts; the group is the ID of the held job
	remove   string         // the command that removes a held job
}

// judges are the batch systems that check translated scripts, by target.
var judges = map[job.Target]judge{
	"slurm":      {facility: "slurm", argv: []string{"sbatch", "--test-only"}, accepted: regexp.MustCompile("to start at")},
	"gridengine": {facility: "gridengine", argv: []string{"qsub", "-w", "v"}, accepted: regexp.MustCompile("found suitable queue")},
	"lsf":        {facility: "lsf", argv: []string{"bsub", "-H", "<"}, accepted: regexp.MustCompile(`Job <(\d+)> is submitted`), remove: "bkill"},
	"pbs":        {facility: "openpbs", argv: []string{"qsub", "-h"}, accepted: regexp.MustCompile(`^(\d+(?:\[\])?\.\S+)\n$`), remove: "qdel"},
}

// refusal returns what the judge has against a script, or "".
func (g judge) refusal(script string) string {
	argv, in := append(slices.Clone(g.argv), script), (*os.File)(nil)
	if n := len(g.argv) - 1; g.argv[n] == "<" {
		argv = g.argv[:n]
		var err error
		if in, err = os.Open(script); err != nil {
			return err.Error()
		}
		defer in.Close()
	}
	cmd := g.command(argv[0], argv[1:]...)
	cmd.Env = append(cmd.Env, "A=1", "B=1", "y=1") // PBS refuses to export variables that are not set
	if in != nil {
		cmd.Stdin = in
	}
	out, err := cmd.CombinedOutput()
	id := g.accepted.FindSubmatch(out)
	if err != nil || id == nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(g.argv, " "), err, out)
	}
	if g.remove != "" {
		if out, err := g.command(g.remove, string(id[1])).CombinedOutput(); err != nil && !strings.Contains(string(out), "in progress") {
			return fmt.Sprintf("%s %s: %v: %s", g.remove, id[1], err, out)
		}
	}
	return ""
}

// command returns a command of the judge.
func (g judge) command(name string, args ...string) *exec.Cmd {
	if g.facility != "openpbs" {
		return testenv.SchedulerCommand(g.facility, name, args...)
	}
	cmd := exec.Command(filepath.Join(os.Getenv("HPCC_TEST_OPENPBS"), name), args...)
	cmd.Env = os.Environ()
	return cmd
}

// portable returns a script that is translated for a target, without the settings that exist only
// at some site: queues, accounts, hosts, GPUs and dependencies. It requests no more than the four
// nodes with four processors each of the test clusters, and than their limits allow. An error is an
// input that the translation refuses.
func portable(s translate.Source, to job.Target, dir string) (string, error) {
	s.Dir, s.Home = dir, dir
	tr, err := dispatch.Translator().Translate(s, to)
	if err != nil {
		return "", err
	}
	j := tr.Job
	j.Program, j.Store = "/bin/hpcc", dir
	tr.Fit()
	j.Queue, j.Account, j.QoS, j.Mail, j.GPUs, j.GPUType, j.Hosts, j.NotHosts, j.Features, j.Native = "", "", "", "", 0, "", nil, nil, nil, nil
	j.After, j.AfterAny, j.AfterFailed, j.AfterEach, j.Exclusive, j.Dir = nil, nil, nil, nil, false, dir
	j.Memory, j.MemoryPerCPU, j.CPUs = min(j.Memory, 64<<20), min(j.MemoryPerCPU, 64<<20), min(j.CPUs, 1)
	j.Nodes, j.TasksPerNode = min(j.Nodes, 4), min(j.TasksPerNode, 4)
	if j.Tasks = min(j.Tasks, 4*max(j.Nodes, 1)); j.TasksPerNode > 0 && j.Nodes > 0 {
		j.Tasks = min(j.Tasks, j.Nodes*j.TasksPerNode)
	}
	j.Time = min(j.Time, maxTime)
	if j.Array.Count() > maxArray {
		if j.Array, err = job.ParseArray(fmt.Sprint("1-", maxArray)); err != nil {
			return "", err
		}
	}
	if to == "gridengine" { // the virtual hosts report no free memory
		j.Memory = 0
	}
	script, _, err := dispatch.Render(j, to)
	if err != nil {
		return "", fmt.Errorf("rendering: %w", err)
	}
	return script, nil
}

const (
	maxTime  = 20 * time.Hour // below the time limits of the queues of the test clusters
	maxArray = 1000           // tasks; their Slurm has the default MaxArraySize
)

// TestTranslated checks that the batch systems on this machine accept every script of
// job/translate/testdata/translate, translated for them.
func TestTranslated(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../job/translate/testdata/translate/*.txtar")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d scripts, %v; want 60", len(files), err)
	}
	for _, to := range slices.Sorted(maps.Keys(judges)) {
		t.Run(string(to), func(t *testing.T) {
			needs(t, judges[to].facility)
			dir, count := t.TempDir(), 0
			for _, file := range files {
				a, err := txtar.ParseFile(file)
				testenv.Check(t, err)
				i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "in" })
				if i < 0 {
					continue // a command line
				}
				name := strings.TrimSuffix(filepath.Base(file), ".txtar")
				script, err := portable(translate.Source{Name: name, Text: a.Files[i].Data}, to, dir)
				if err != nil {
					continue // an input that the translation must refuse
				}
				count++
				judged(t, to, dir, name, script)
			}
			if count < 100 {
				t.Errorf("only %d of %d inputs became scripts for %s", count, len(files), to)
			}
		})
	}
}

// ofIBM matches what only IBM's LSF supports, and not the volclava of the tests: units of memory, -env,
// -rn, and a year in -b.
var ofIBM = regexp.MustCompile(`(?m)(^#BSUB .*(?:-M |mem=)[0-9]+)MB|^#BSUB -(?:env .*|rn)\n|(^#BSUB -b )[0-9]{4}:`)

// judged reports whether the judge of a target accepts a script.
func judged(t *testing.T, to job.Target, dir, name, script string) bool {
	t.Helper()
	if to == "lsf" { // hpcc submit adapts units to volclava, and refuses -env and -rn
		script = ofIBM.ReplaceAllString(script, "$1$2")
	}
	file := filepath.Join(dir, "script")
	testenv.Check(t, os.WriteFile(file, []byte(script), 0o644))
	why := judges[to].refusal(file)
	if why != "" {
		t.Errorf("%s: %s\n%s", name, why, script)
	}
	return why == ""
}

// TestCorpus checks that the batch systems on this machine accept the job scripts of public
// repositories, translated for them, and logs a table.
func TestCorpus(t *testing.T) {
	scripts := jobtest.Corpus(t)
	for _, to := range slices.Sorted(maps.Keys(judges)) {
		t.Run(string(to), func(t *testing.T) {
			needs(t, judges[to].facility)
			dir := t.TempDir()
			accepted, bad, refused := map[job.Target]int{}, map[job.Target]int{}, map[job.Target]int{}
			for _, s := range scripts {
				script, err := portable(translate.Source{Name: s.Name, Text: s.Text, Dialect: s.Dialect}, to, dir)
				switch {
				case err != nil:
					refused[s.Dialect]++
					t.Logf("%s: %v", s.Name, err)
				case judged(t, to, dir, s.Name, script):
					accepted[s.Dialect]++
				default:
					bad[s.Dialect]++
				}
			}
			for _, d := range []job.Target{"gridengine", "lsf", "pbs", "slurm"} {
				t.Logf("%s for %s: %d accepted, %d bad, %d refused by hpcc", d, to, accepted[d], bad[d], refused[d])
			}
		})
	}
}
