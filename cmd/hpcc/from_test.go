package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/translate"
	"hpcc/testdata/testenv"
)

// translations returns the scripts of job/dispatch/testdata/translate, rendered for a target. It
// removes settings that exist only at some site: queues, accounts, hosts, GPUs and dependencies.
func translations(t *testing.T, to job.Target) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../job/dispatch/testdata/translate/*.txtar")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d scripts, %v; want 60", len(files), err)
	}
	dir, out := t.TempDir(), map[string]string{}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		testenv.Check(t, err)
		i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "in" })
		if i < 0 {
			continue // a command line
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		tr, err := dispatch.Translator().Translate(translate.Source{Name: name, Text: a.Files[i].Data, Dir: dir, Home: dir}, to)
		if err != nil {
			continue // an input that the translation must refuse
		}
		j := tr.Job
		j.Program, j.Store = "/bin/hpcc", dir
		tr.Fit()
		j.Queue, j.Account, j.QoS, j.Mail, j.GPUs, j.GPUType, j.Hosts, j.NotHosts, j.Features, j.Native = "", "", "", "", 0, "", nil, nil, nil, nil
		j.After, j.AfterAny, j.AfterFailed, j.AfterEach, j.Exclusive, j.Dir = nil, nil, nil, nil, false, dir
		// The virtual nodes are small: each has four processors.
		j.Memory, j.MemoryPerCPU, j.CPUs = min(j.Memory, 64<<20), min(j.MemoryPerCPU, 64<<20), min(j.CPUs, 1)
		j.Tasks = min(j.Tasks, 4*max(j.Nodes, 1))
		if to == "gridengine" { // the virtual hosts report no free memory
			j.Memory = 0
		}
		script, _, err := dispatch.Render(j, to)
		if err != nil {
			t.Errorf("%s for %s: %v", name, to, err)
			continue
		}
		out[name] = filepath.Join(dir, name)
		testenv.Check(t, os.WriteFile(out[name], []byte(script), 0o644))
	}
	if len(out) < 100 { // the other inputs must be refused
		t.Fatalf("only %d of %d inputs became scripts for %s", len(out), len(files), to)
	}
	return out
}

// TestTranslatedForSlurm checks that Slurm accepts every script that is rendered for it.
func TestTranslatedForSlurm(t *testing.T) {
	needs(t, "slurm")
	for name, script := range translations(t, "slurm") {
		out, err := exec.Command("sbatch", "--test-only", script).CombinedOutput()
		if err != nil {
			text, _ := os.ReadFile(script)
			t.Errorf("%s: sbatch --test-only: %s\n%s", name, out, text)
		}
	}
}

// TestTranslatedForGridEngine checks that Grid Engine accepts every script that is rendered for it.
func TestTranslatedForGridEngine(t *testing.T) {
	needs(t, "gridengine")
	for name, script := range translations(t, "gridengine") {
		out, err := exec.Command("qsub", "-w", "v", script).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "found suitable queue") {
			text, _ := os.ReadFile(script)
			t.Errorf("%s: qsub -w v: %v %s\n%s", name, err, out, text)
		}
	}
}
