package snakemake

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "rewrite the profiles in testdata")

func TestProfile(t *testing.T) {
	dir := t.TempDir()
	for name, p := range map[string]Profile{
		"local": {Program: "/opt/hpcc", To: job.Local, Jobs: 4},
		"full": {Program: "/opt/{my} hpcc", To: "slurm", Submit: []string{"--native=--licenses=a:1"}, Store: "/scratch/store", Jobs: 200,
			MemoryMB: 2000, Minutes: 90, Queue: "long", Account: "p1"},
	} {
		p.Dir = "/home/me/profile"
		got := ""
		for _, file := range []string{"config.yaml", "config.v8+.yaml", "cancel"} {
			got += "== " + file + "\n" + p.Files()[file]
		}
		if *update {
			testenv.Check(t, os.WriteFile(filepath.Join("testdata", name), []byte(got), 0o644))
		}
		want, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil || got != string(want) {
			t.Errorf("testdata/%s: %v; the profile is\n%s", name, err, got)
		}
		p.Dir = filepath.Join(dir, name)
		for range 2 { // the second time it replaces its files
			if names, err := p.Write(); err != nil || len(names) != 3 {
				t.Errorf("Write: %q, %v", names, err)
			}
		}
		testenv.Check(t, os.WriteFile(filepath.Join(p.Dir, "config.yaml"), []byte("jobs: 1\n"), 0o644))
		if _, err := p.Write(); err == nil || !strings.Contains(err.Error(), "is not a profile of hpcc") {
			t.Errorf("Write replaces another profile: %v", err)
		}
	}
}
