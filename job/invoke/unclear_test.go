package invoke

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
)

// TestUnclear has messages of real commands, after some of which the server had carried out the request.
func TestUnclear(t *testing.T) {
	killed := exec.Command("sh", "-c", "kill -9 $$").Run()
	refused := exec.Command("false").Run()
	for _, c := range []struct {
		out  string
		err  error
		want bool
	}{
		{"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", refused, true},
		{"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", refused, true},
		{"sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", refused, true},
		{"error: commlib error: got read error (closing \"node/qmaster/1\")", refused, true},
		{"error: unable to send message to qmaster using port 6444 on host \"head\": got send error", refused, true},
		{"qsub: cannot connect to server head (errno=15010)", refused, true},
		{"qsub: End of File", refused, true},
		{"batch system daemon not responding ... still trying", refused, true},
		{"Error from server (Timeout): error when creating \"job.yaml\": Timeout: request did not complete", refused, true},
		{"net/http: TLS handshake timeout", refused, true},
		{"Unable to connect to the server: unexpected EOF", refused, true},
		{"", killed, true},
		{"reading the script", killed, true},
		{"", context.Canceled, true},
		{"", &SilentError{Command: "sbatch"}, true},
		{"sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", refused, false},
		{"sbatch: error: Batch job submission failed: Requested node configuration is not available", refused, false},
		{"Unable to run job: job rejected: no access to project \"x\"", refused, false},
		{"sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", refused, false},
		{"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy; contact your administrator", refused, false},
		{"sbatch: error: --socket-per-node is invalid", refused, false},
		{"qsub: Unknown queue", refused, false},
		{"normal: No such queue. Job not submitted.", refused, false},
		{"Error from server (Forbidden): jobs.batch is forbidden", refused, false},
		{"", refused, false},
		{"", errors.New("exec: \"sbatch\": executable file not found in $PATH"), false},
	} {
		if got := Unclear(fmt.Errorf("submitting: %w", Error([]byte(c.out), c.err))); got != c.want {
			t.Errorf("%q, %v: %v", c.out, c.err, got)
		}
	}
	if Unclear(nil) {
		t.Error("no error is unclear")
	}
}
