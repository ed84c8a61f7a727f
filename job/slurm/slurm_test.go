package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/store/wait"
	"hpcc/testdata/testenv"
)

// TestSilentCommand checks that hpcc ends a scheduler's command that hangs, and says so.
func TestSilentCommand(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "scancel"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	begun := time.Now()
	err := System{}.Cancel(wait.With(t.Context(), wait.Patience{Header: 100 * time.Millisecond}), "7")
	if err == nil || !strings.Contains(err.Error(), "scancel did not answer within 300ms and was ended") || time.Since(begun) > 20*time.Second {
		t.Errorf("Cancel = %v after %v; want an error after about 300ms", err, time.Since(begun))
	}
}
