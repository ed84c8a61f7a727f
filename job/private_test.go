package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestHideValuesKeepsOrder checks that the files of adjacent flags have their order, and that exact
// values are in files of their own.
func TestHideValuesKeepsOrder(t *testing.T) {
	dir := t.TempDir()
	array, err := ParseArray("1-2")
	testenv.Check(t, err)
	j := &Job{Program: "/usr/bin/hpcc", Image: "sci", Array: array, Run: []string{"--env=A=1", "--env=B='$A'", "--set-env=C=$A", "--unset-env=X", "--env=D={task}", "--env=E=5", "--env=F", "--cd=/"}}
	c, err := j.HideValues(dir, "slurm")
	testenv.Check(t, err)
	want := "--env0=DIR/set-env.0 --set-env0=DIR/set-env.2 --unset-env=X --env0=DIR/set-env.4.{task} --env0=DIR/set-env.5 --env=F --cd=/"
	if got := strings.ReplaceAll(strings.Join(c.Run, " "), dir, "DIR"); got != want {
		t.Errorf("flags %s; want %s", got, want)
	}
	for name, want := range map[string]string{"set-env.0": "A=1\n\x00B='$A'\n\x00", "set-env.2": "C=$A\n\x00", "set-env.4.{task}": "D={task}\n\x00", "set-env.5": "E=5\n\x00"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s contains %q, %v; want %q", name, got, err, want)
		}
	}
	if files := c.ValueFiles(); len(files) != 4 {
		t.Errorf("value files %q; want 4", files)
	}
}

// A script whose launcher starts the program with further flags of "hpcc run" does not contain the values either.
func TestHideValuesInLaunchedLines(t *testing.T) {
	j := &Job{Program: "/usr/bin/hpcc", Image: "sci", Run: []string{"--set-env=KEY=s3cret"}}
	j.Script = &Script{Body: "srun -n 2 /usr/bin/hpcc run --set-env=KEY=s3cret --bind=/data:/data sci -- ./a\n"}
	c, err := j.HideValues(t.TempDir(), "slurm")
	testenv.Check(t, err)
	if strings.Contains(c.Script.Body, "s3cret") || !strings.Contains(c.Script.Body, " --bind=/data:/data sci -- ./a\n") {
		t.Errorf("the script is %q", c.Script.Body)
	}
}
