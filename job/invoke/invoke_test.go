package invoke

import (
	"testing"
)

// TestTimeFormat checks that a user's time format does not reach the commands that hpcc reads.
func TestTimeFormat(t *testing.T) {
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	out, err := Call(t.Context(), "/", "sh", "-c", "echo $SLURM_TIME_FORMAT")
	if err != nil || string(out) != "standard\n" {
		t.Errorf("SLURM_TIME_FORMAT of a command = %q, %v; want standard", out, err)
	}
}
