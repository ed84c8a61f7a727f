package node

import (
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/testenv"
)

// TestEndGroupReaps: an orphan that ends after its task is waited for, where this process
// has become its parent, and does not hold the task up.
func TestEndGroupReaps(t *testing.T) {
	testenv.Check(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	cmd := exec.Command("sh", "-c", "sleep 0.2 & sleep 0.3 &")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testenv.Check(t, cmd.Run())
	endGroup(cmd)
	if pid, err := syscall.Wait4(-cmd.Process.Pid, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("child %d, %v is left", pid, err)
	}
}
