package dispatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/job/snakemake"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/testenv"
)

// snakemakeBody is the part of a job script that follows the line of its properties.
const snakemakeBody = "\ncd '/flow' && python3 -m snakemake x\n"

// readSnakemake translates a script of Snakemake with these properties.
func readSnakemake(t *testing.T, properties string, to job.Target) (*translate.Translation, error) {
	t.Helper()
	text := "#!/bin/sh\n# properties = " + properties + snakemakeBody
	tr, err := Translator().Translate(translate.Source{Name: "tmp.x/snakejob.align.3.sh", Text: []byte(text), Dir: "/flow"}, to)
	if err == nil {
		tr.Fit()
	}
	return tr, err
}

func TestSnakemakeResources(t *testing.T) {
	type want struct {
		j       job.Job
		memory  int64 // per CPU
		refused string
	}
	for resources, want := range map[string]want{
		`{}`:                                      {},
		`{"mem_mb": 4000, "mem_mib": 3815}`:       {j: job.Job{Memory: 4000 << 20}},
		`{"mem_mib": 3815}`:                       {j: job.Job{Memory: 3815 << 20}},
		`{"mem": "8 GB"}`:                         {j: job.Job{Memory: 8e9}},
		`{"mem": "8 GB", "mem_mb": 8000}`:         {j: job.Job{Memory: 8000 << 20}},
		`{"mem_mb": 4000, "mem_mb_per_cpu": 500}`: {memory: 500 << 20},
		`{"mem_mb": "lots"}`:                      {refused: `mem_mb=lots: "lots" is not an amount of memory`},
		`{"mem_mb": "<TBD>"}`:                     {},
		`{"runtime": 90}`:                         {j: job.Job{Time: 90 * time.Minute}},
		`{"runtime": 0.5}`:                        {j: job.Job{Time: 30 * time.Second}},
		`{"runtime": "1h30m"}`:                    {j: job.Job{Time: 90 * time.Minute}},
		`{"runtime": -1}`:                         {refused: "runtime=-1: -1 is not a number of minutes"},
		`{"threads": 4, "cpus_per_task": 8}`:      {j: job.Job{CPUs: 8}},
		`{"gpu": 2, "gpu_model": "a100"}`:         {j: job.Job{GPUs: 2, Constraints: job.Constraints{GPUType: "a100"}}},
		`{"gpu": 0}`:                              {},
		`{"gres": "gpu:a100:2"}`:                  {j: job.Job{GPUs: 2, Constraints: job.Constraints{GPUType: "a100"}}},
		`{"gres": "lscratch:20"}`:                 {refused: "gres=lscratch:20: hpcc reads only gpu:N and gpu:MODEL:N: pass other resources with slurm_extra or with --native"},
		`{"nodes": 2, "tasks": 8, "slurm_account": "p1", "slurm_partition": "long"}`: {j: job.Job{Nodes: 2, Tasks: 8, Account: "p1", Queue: "long"}},
		`{"lsf_queue": "q", "lsf_project": "p"}`:                                     {j: job.Job{Queue: "q", Account: "p"}},
		`{"slurm_extra": "--licenses=a:1"}`:                                          {j: job.Job{Native: []string{"--licenses=a:1"}}},
		`{"lsf_extra": "-x"}`:                                                        {refused: "lsf_extra=-x: options of another scheduler than slurm"},
		`{"reservation": "r"}`:                                                       {refused: "reservation=r: only some schedulers have it: pass it with slurm_extra or with --native"},
		`{"constraint": "avx&ib"}`:                                                   {j: job.Job{Constraints: job.Constraints{Features: []string{"avx", "ib"}}}},
		`{"constraint": "avx|ib"}`:                                                   {refused: "constraint=avx|ib: hpcc reads only A&B: pass others with slurm_extra or with --native"},
		`{"slurm_partition": "a b"}`:                                                 {refused: `slurm_partition=a b: "a b" contains characters that directives cannot hold`},
		`{"disk_mb": 1000, "tmpdir": "/tmp", "licenses": 3, "extra": "x"}`:           {},
	} {
		tr, err := readSnakemake(t, `{"type": "single", "rule": "align", "wildcards": {"s": "A 1"}, "threads": 2, "resources": `+resources+`}`, "slurm")
		testenv.Check(t, err)
		var refused []string
		for _, r := range tr.Rows {
			if r.Fate == field.Refused {
				refused = append(refused, r.Text+": "+r.How)
			}
		}
		if got := strings.Join(refused, "; "); got != want.refused {
			t.Errorf("%s: refused %q; want %q", resources, got, want.refused)
		}
		got := tr.Job
		if want.j.CPUs == 0 {
			want.j.CPUs = 2
		}
		show := func(j *job.Job, perCPU int64) string {
			return fmt.Sprint(j.CPUs, j.Memory, perCPU, j.Time, j.GPUs, j.GPUType, j.Nodes, j.Tasks, j.Account, j.Queue, j.Native, j.Features)
		}
		if want.refused == "" && show(got, got.MemoryPerCPU) != show(&want.j, want.memory) {
			t.Errorf("%s: %s; want %s", resources, show(got, got.MemoryPerCPU), show(&want.j, want.memory))
		}
		if got.Name != "align-A-1" || got.Script.Body != "#!/bin/sh"+snakemakeBody || got.Script.From != "slurm" {
			t.Errorf("%s: job %q, script of %s %q", resources, got.Name, got.Script.From, got.Script.Body)
		}
	}
}

func TestSnakemakeNames(t *testing.T) {
	for properties, want := range map[string]string{
		`{"rule": "a", "wildcards": {"y": 2, "x": "b/c"}}`: "a-b-c-2",
		`{"type": "group", "groupid": "g1"}`:               "group-g1",
		`{"type": "single"}`:                               "snakejob",
	} {
		if tr, err := readSnakemake(t, properties, job.Local); err != nil || tr.Job.Name != want {
			t.Errorf("%s: %v, %v; want %q", properties, tr, err, want)
		}
	}
	for properties, want := range map[string]string{
		`{"rule": 3}`: "line 2: the properties of Snakemake's job", `{`: "unexpected EOF",
	} {
		if _, err := readSnakemake(t, properties, job.Local); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", properties, err, want)
		}
	}
	// A job may have many input files.
	many, err := json.Marshal(strings.Split(strings.Repeat("data/sample.txt,", 20000), ","))
	testenv.Check(t, err)
	if tr, err := readSnakemake(t, `{"rule": "all", "input": `+string(many)+`}`, job.Local); err != nil || len(tr.Job.Script.Body) > 100 {
		t.Errorf("many files: %v", err)
	}
}

func FuzzSnakemake(f *testing.F) {
	f.Add(`{"rule": "a", "wildcards": {"x": "b"}, "threads": 2, "resources": {"mem_mb": 10, "runtime": "1h", "gres": "gpu:2"}}`)
	f.Add(`{"type": "group", "groupid": 7, "resources": {"slurm_extra": "-x", "lsf_queue": null}}`)
	f.Fuzz(func(t *testing.T, properties string) {
		tr, err := readSnakemake(t, properties, "slurm")
		if err != nil || tr.Lost() > 0 || tr.Dialect != snakemake.Name {
			return
		}
		tr.Job.Program, tr.Job.Store = "/bin/hpcc", "/store"
		if err := tr.Job.Check(); err != nil && !strings.Contains(err.Error(), "do not fit on") {
			t.Errorf("%s: %v", properties, err)
		}
	})
}
