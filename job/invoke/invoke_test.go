package invoke

import (
	"testing"
)

// TestTimeFormat: the form of times that a user prefers is not that which hpcc reads.
func TestTimeFormat(t *testing.T) {
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	out, err := Call(t.Context(), "/", "sh", "-c", "echo $SLURM_TIME_FORMAT")
	if err != nil || string(out) != "standard\n" {
		t.Errorf("a command gets the format %q, %v", out, err)
	}
}
