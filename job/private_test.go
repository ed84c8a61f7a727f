package job

import (
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

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
